"""Whether those who ordered something of operators were told the truth: by all that the store ever said.

- change-answer: an order is answered twice, or denied without a reason;
- order-answered-wrongly: what is said to be settled is not in the store's history; or a change that was refused, or
  said to be dropped, is begun or done all the same, and nobody has ordered it again.

Whose order it was that a change comes from is not in the store. So a change needs one order at least that asked for
it and was not denied since; one that was never answered, or answered with UNKNOWN, may have been carried out at any
time. Elections come about for many reasons, and others call things off, too: where that was denied, nothing can be
said.
"""

from __future__ import annotations

import msgspec

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.orders import CallOff, Order, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.invariant import Violated

Change = tuple[Kind, Member | None, Member | None]
"""Which kind, who goes, who comes."""


class Given(msgspec.Struct, eq=False):
    """An order to an operator."""

    operator: int
    life: int
    shard: int
    order: Order
    known: int
    """The version that the operator knew then,"""
    since: int
    """and the newest one of the store."""
    reply: Reply | None = None

    @property
    def change(self) -> Change | None:
        order = self.order
        return (order.kind, order.old, order.new) if isinstance(order, Reconfigure) else None

    @property
    def is_denied(self) -> bool:
        """Whether it was said that nothing has come of it, and nothing will."""
        return self.reply is not None and self.reply.outcome in (Outcome.REFUSED, Outcome.TIMED_OUT)

    def __str__(self) -> str:
        told = f"{self.reply.outcome.name} ({self.reply.why})" if self.reply is not None else "no answer"
        return f"{told} to {self.order} of p{self.shard} by operator {self.operator}"


class Answers:
    def __init__(self, history: list[list[Shard]]) -> None:
        """`history`: of each shard, all that was ever stored; the first is version 1."""
        self.given: list[Given] = []
        self._history = history
        self._changes: list[tuple[int, int, Change]] = []
        """Of ensembles: shard, version, which."""

    def give(self, order: Order, shard: int, *, operator: int, life: int, known: int) -> Given:
        given = Given(operator, life, shard, order, known, len(self._history[shard]))
        self.given.append(given)
        return given

    def wrote(self, shard: int) -> None:
        """Another version is stored."""
        history = self._history[shard]
        version = len(history)
        if version == 1:
            return
        earlier, later = history[-2], history[-1]
        begun, done = _begun(earlier, later), _done(earlier, later)
        if begun is not None:
            self._is_wanted(shard, version, begun)
        if done is not None:
            self._changes.append((shard, version, done))
            self._is_wanted(shard, version, done)

    def answer(self, given: Given, reply: Reply) -> None:
        if given.reply is not None:
            raise Violated("change-answer", f"{given}, and again: {reply}")
        given.reply = reply
        if given.is_denied:
            if not reply.why:
                raise Violated("change-answer", f"{given}: without a reason")
            for shard, version, change in self._changes:
                if shard == given.shard and version > given.since and change == given.change:
                    self._is_wanted(shard, version, change)
        elif reply.outcome is Outcome.SETTLED:
            self._is_true(given)

    # --- what was denied ---

    def _orders(self, shard: int, change: Change) -> list[Given]:
        return [given for given in self.given if given.shard == shard and given.change == change]

    def _is_wanted(self, shard: int, version: int, change: Change) -> None:
        """Some order that was not denied asked for it before."""
        if not any(given.since < version and not given.is_denied for given in self._orders(shard, change)):
            stored = self._history[shard][version - 1]
            self._wrong(shard, f"version {version} is {stored}: {self._told(shard, change)}")

    def _told(self, shard: int, change: Change) -> str:
        return ", ".join(map(str, self._orders(shard, change))) or f"nobody ordered {change}"

    # --- what is said to be settled ---

    def _is_true(self, given: Given) -> None:
        order, history = given.order, self._history[given.shard]
        since = history[max(0, given.since - 1) :]
        known = history[max(0, given.known - 1) :]
        if isinstance(order, Reconfigure):
            is_true = any(_is_in_force(order, stored.ensemble) for stored in since)
        elif isinstance(order, CallOff):
            is_true = _was_called_off(known)
        else:
            statuses = [stored.status for stored in known]
            is_true = (
                Status.ELECTION in statuses and Status.STEADY in statuses[statuses.index(Status.ELECTION) :]
            )
        if not is_true:
            self._wrong(given.shard, f"{given}; stored since: {', '.join(map(str, known))}")

    def _wrong(self, shard: int, detail: str) -> None:
        raise Violated("order-answered-wrongly", f"p{shard} {detail}")


def _identity(change: Reconfiguration | None) -> Change | None:
    return (change.kind, change.old, change.new) if change is not None else None


def _begun(before: Shard, after: Shard) -> Change | None:
    change = _identity(after.reconfiguration)
    return change if change != _identity(before.reconfiguration) else None


def _done(before: Shard, after: Shard) -> Change | None:
    """By what the ensembles themselves say."""
    old = next((member for member in before.ensemble if member not in after.ensemble), None)
    new = next((member for member in after.ensemble if member not in before.ensemble), None)
    if old is None and new is None:
        return None
    return Kind.EXPAND if old is None else Kind.CONTRACT if new is None else Kind.SWAP, old, new


def _is_in_force(change: Reconfigure | Reconfiguration, ensemble: tuple[Member, ...]) -> bool:
    return (change.new is None or change.new in ensemble) and change.old not in ensemble


def _was_called_off(known: list[Shard]) -> bool:
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
