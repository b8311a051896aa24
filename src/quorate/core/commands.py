"""What somebody with authority can order of a replica. Each is answered by a `Reply` to its request."""

from __future__ import annotations

import msgspec

from quorate.core.entry import Member, Quorums


class ChangeMembership(msgspec.Struct, frozen=True, gc=False):
    """Let the ensemble and the learners be these, by whatever steps are safe. For the leader."""

    request: int
    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    version: int = 0
    """Rises from order to order, where somebody keeps count: one that is older than what was ordered since is
    refused, however late it arrives."""
    quorums: Quorums | None = None
    """`confirm` only; None: as many as now, or as are wanted by an open change; refused if those do not fit."""


class TransferLeadership(msgspec.Struct, frozen=True, gc=False):
    """Let this node lead, or give up after a while (YB-15). For the leader."""

    request: int
    to: int


class Promote(msgspec.Struct, frozen=True, gc=False):
    """Stand for election now, whoever leads (TT-12, TT-15). For the replica that is to lead; `confirm` only."""

    request: int
    roll_back: bool = False
    """Void what former leaders left unsettled, as far as it is known to be, instead of settling it: a person's
    act, which can take back what a client was told (TT-24, D8)."""


class Demote(msgspec.Struct, frozen=True, gc=False):
    """Take no more writes, settle what is there, and lead no more (TT-21). For the leader; `confirm` only."""

    request: int


class RollBack(msgspec.Struct, frozen=True, gc=False):
    """Take back every transaction that waits for its quorum (TT-10). For the leader; `confirm` only."""

    request: int


class SetReadOnly(msgspec.Struct, frozen=True, gc=False):
    """Take no writes, or take them again, until leadership ends (TT-24). For the leader; `confirm` only."""

    request: int
    read_only: bool


class CutLoose(msgspec.Struct, frozen=True, gc=False):
    """The leader is gone for good: give up what is not known to be settled here (TT-32). From then on this
    replica neither votes nor counts (D9). For any replica but the leader; `confirm` only."""

    request: int


class JoinAgain(msgspec.Struct, frozen=True, gc=False):
    """Count again, after having been cut loose or after an entry could not be applied; `confirm` only."""

    request: int


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Take nothing more, settle what is there, and end the log's protocol with a Barrier (017). For the leader, in
    every room. Answered when that is settled."""

    request: int
    at: int
    """Names the turn; one that is not above the replica's generation is over."""


Command = (
    ChangeMembership
    | TransferLeadership
    | Promote
    | Demote
    | RollBack
    | SetReadOnly
    | CutLoose
    | JoinAgain
    | Turn
)
