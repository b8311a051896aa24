"""What orders to operators of `coordinated` ask for, and how the store shows it (answers.py).

A reconfiguration is begun, goes through its phases, and is done. Elections come about for many reasons, and others
call things off, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.orders import CallOff, Order, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration
from quorate.core.entry import Member
from quorate.sim.answers import Answers

Change = tuple[Kind, Member | None, Member | None]
"""Which kind, who goes, who comes."""


class OperatorAnswers(Answers):
    def asked(self, order: Order) -> Change | None:
        return (order.kind, order.old, order.new) if isinstance(order, Reconfigure) else None

    def begun(self, earlier: Shard, later: Shard) -> list[Change]:
        change = _identity(later.reconfiguration)
        return [change] if change is not None and change != _identity(earlier.reconfiguration) else []

    def done(self, earlier: Shard, later: Shard) -> list[Change]:
        """By what the ensembles themselves say."""
        old = next((member for member in earlier.ensemble if member not in later.ensemble), None)
        new = next((member for member in later.ensemble if member not in earlier.ensemble), None)
        if old is None and new is None:
            return []
        return [(Kind.EXPAND if old is None else Kind.CONTRACT if new is None else Kind.SWAP, old, new)]

    def is_true(self, order: Order, *, since: Sequence[Shard], known: Sequence[Shard]) -> bool:
        if isinstance(order, Reconfigure):
            return any(_is_in_force(order, stored.ensemble) for stored in since)
        if isinstance(order, CallOff):
            return _was_called_off(known)
        statuses = [stored.status for stored in known]
        return Status.ELECTION in statuses and Status.STEADY in statuses[statuses.index(Status.ELECTION) :]


def _identity(change: Reconfiguration | None) -> Change | None:
    return (change.kind, change.old, change.new) if change is not None else None


def _is_in_force(change: Reconfigure | Reconfiguration, ensemble: tuple[Member, ...]) -> bool:
    return (change.new is None or change.new in ensemble) and change.old not in ensemble


def _was_called_off(known: Sequence[Shard]) -> bool:
    """Whatever was under way at first ended without being done; what was begun anew later is another matter."""
    unwanted = known[0].reconfiguration
    for stored in known[1:]:
        change = stored.reconfiguration
        if change is not None and change.phase is Phase.ABORT:
            return True
        if _identity(change) != _identity(unwanted):
            assert unwanted is not None
            return not _is_in_force(unwanted, stored.ensemble)
    return False
