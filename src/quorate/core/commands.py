"""What somebody with authority can order of a replica. Each is answered by a `Reply` to its request."""

from __future__ import annotations

import msgspec

from quorate.core.entry import Member


class ChangeMembership(msgspec.Struct, frozen=True, gc=False):
    """Let the ensemble and the learners be these, by whatever steps are safe. For the leader."""

    request: int
    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    version: int = 0
    """Rises from order to order, where somebody keeps count: one that is older than what was ordered since is
    refused, however late it arrives."""


class TransferLeadership(msgspec.Struct, frozen=True, gc=False):
    """Let this node lead, or give up after a while (YB-15). For the leader."""

    request: int
    to: int


Command = ChangeMembership | TransferLeadership
