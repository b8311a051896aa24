"""What the metadata store holds of one shard. Only the operator reads or writes it (OX-1)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from quorate.core.entry import Member
from quorate.core.invariant import ImpossibleState
from quorate.core.quorum import has_majority


class Status(StrEnum):
    ELECTION = "election"
    STEADY = "steady"


class Kind(StrEnum):
    SWAP = "swap"
    EXPAND = "expand"
    CONTRACT = "contract"


class Phase(StrEnum):
    WANTED = "wanted"
    """Not begun: an election came in between, and it is to be tried again (D11)."""
    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    """Called off while it was prepared; the leader has to hear of it."""


class Reconfiguration(msgspec.Struct, frozen=True, gc=False):
    """One node out, one in, or both."""

    kind: Kind
    phase: Phase
    old: Member | None = None
    new: Member | None = None
    again: bool = False
    """A contraction that was in COMMIT before an election: some leader may have settled something with those who
    stay. That must not be forgotten before it is done, so it is neither dropped nor called off."""

    def __post_init__(self) -> None:
        if (self.old is None) != (self.kind is Kind.EXPAND) or (self.new is None) != (
            self.kind is Kind.CONTRACT
        ):
            raise ImpossibleState(f"{self.kind} of {self.old} and {self.new}")

    def applied_to(self, ensemble: tuple[Member, ...]) -> tuple[Member, ...]:
        kept = [member for member in ensemble if member != self.old]
        if self.new is not None and self.new not in kept:
            kept.append(self.new)
        return tuple(sorted(kept))

    def same_as(self, other: Reconfiguration) -> bool:
        """The same change, in whatever phase."""
        return (self.kind, self.old, self.new) == (other.kind, other.old, other.new)

    def __str__(self) -> str:
        names = {Kind.SWAP: "swap {0} for {1}", Kind.EXPAND: "add {1}", Kind.CONTRACT: "remove {0}"}
        old, new = (f"n{member.node}" if member is not None else "" for member in (self.old, self.new))
        return f"{names[self.kind].format(old, new)} ({self.phase})"


class Shard(msgspec.Struct, frozen=True, gc=False, tag="coordinated"):
    epoch: int
    status: Status
    ensemble: tuple[Member, ...]
    leader: Member | None = None
    """None from the beginning of an election to its end."""
    reconfiguration: Reconfiguration | None = None

    def __post_init__(self) -> None:
        if not self.ensemble or self.ensemble != tuple(sorted(self.ensemble)):
            raise ImpossibleState(f"{self}: an ensemble is sorted, and somebody is in it")

    @property
    def may_have_grown(self) -> Reconfiguration | None:
        """A swap or an expansion in its commit phase: the leader has applied it, or not."""
        change = self.reconfiguration
        return (
            change if change is not None and change.phase is Phase.COMMIT and change.new is not None else None
        )

    @property
    def fencing_ensemble(self) -> tuple[Member, ...]:
        """Whoever may have got entries: a majority of them meets each majority of before and after (OX-19)."""
        change = self.may_have_grown
        if change is None or change.new in self.ensemble:
            return self.ensemble
        assert change.new is not None
        return tuple(sorted((*self.ensemble, change.new)))

    @property
    def final_ensemble(self) -> tuple[Member, ...]:
        """Where an election ends, and where leader and followers come from (OX-20).

        It completes what may have grown. It never completes a contraction: what is settled may be on the one that
        goes, and not on enough of those that stay (D11).
        """
        change = self.may_have_grown
        return self.ensemble if change is None else change.applied_to(self.ensemble)

    def has_fenced(self, members: set[Member]) -> bool:
        """Whether these meet every majority that may have settled something (OX-8).

        A majority of the fencing ensemble does. So do majorities of both ensembles, which can be fewer nodes: a
        node that is wiped again while it is swapped for itself does not stop the others.
        """
        if has_majority(members, self.fencing_ensemble):
            return True
        return has_majority(members, self.ensemble) and has_majority(members, self.final_ensemble)

    def __str__(self) -> str:
        nodes = "{" + ",".join(f"n{member.node}" for member in self.ensemble) + "}"
        leader = f" led by n{self.leader.node}" if self.leader is not None else ""
        change = f", {self.reconfiguration}" if self.reconfiguration is not None else ""
        return f"e{self.epoch} {self.status} {nodes}{leader}{change}"
