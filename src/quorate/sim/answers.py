"""Whether those who ordered something of operators were told the truth: by all that the store ever said.

- change-answer: an order is answered twice, or denied without a reason;
- order-answered-wrongly: what is said to be settled is not in the store's history; or a change that was refused, or
  said to be dropped, is begun or done all the same, and nobody has ordered it again.

Whose order it was that a change comes from is not in the store. So a change needs one order at least that asked for
it and was not denied since; one that was never answered, or answered with UNKNOWN, may have been carried out at any
time. What comes about for other reasons, too, another leader above all, may be denied and happen all the same.

What an order asks for, and how the store shows that, is each protocol's own: operator_answers.py, isr_answers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quorate.core.effects import Outcome, Reply
from quorate.core.invariant import Violated

Change = tuple[Any, ...]
"""What happens to a shard only if somebody orders it; the same for whatever comes to the same."""


class Given(msgspec.Struct, eq=False):
    """An order to an operator, or to a controller."""

    operator: int
    life: int
    shard: int
    order: Any
    change: Change | None
    """What it asks for; None: something that also happens by itself."""
    known: int
    """The version that the operator knew then,"""
    since: int
    """and the newest one of the store."""
    reply: Reply | None = None

    @property
    def is_denied(self) -> bool:
        """Whether it was said that nothing has come of it, and nothing will."""
        return self.reply is not None and self.reply.outcome in (Outcome.REFUSED, Outcome.TIMED_OUT)

    def __str__(self) -> str:
        told = f"{self.reply.outcome.name} ({self.reply.why})" if self.reply is not None else "no answer"
        return f"{told} to {self.order} of p{self.shard} by operator {self.operator}"


class Answers:
    def __init__(self, history: Sequence[Sequence[Any]]) -> None:
        """`history`: of each shard, all that was ever stored; the first is version 1."""
        self.given: list[Given] = []
        self._history = history
        self._changes: list[tuple[int, int, Change]] = []
        """What was done: shard, version, which."""

    # --- what each protocol adds ---

    def asked(self, order: Any) -> Change | None:
        """What somebody has to order, and this one does."""
        raise NotImplementedError

    def begun(self, earlier: Any, later: Any) -> list[Change]:
        """What is under way since this write; nothing where a change is one write."""
        return []

    def done(self, earlier: Any, later: Any) -> list[Change]:
        raise NotImplementedError

    def is_true(self, order: Any, *, since: Sequence[Any], known: Sequence[Any]) -> bool:
        """Whether this was settled, by what the store has said: `since` it was given, and since it was `known`."""
        raise NotImplementedError

    # --- what happens ---

    def give(self, order: Any, shard: int, *, operator: int, life: int, known: int) -> Given:
        given = Given(operator, life, shard, order, self.asked(order), known, len(self._history[shard]))
        self.given.append(given)
        return given

    def wrote(self, shard: int) -> None:
        """Another version is stored."""
        history = self._history[shard]
        version = len(history)
        if version == 1:
            return
        earlier, later = history[-2], history[-1]
        for begun in self.begun(earlier, later):
            self._is_wanted(shard, version, begun)
        for done in self.done(earlier, later):
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
            self._is_settled(given)

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

    def _is_settled(self, given: Given) -> None:
        history = self._history[given.shard]
        since, known = history[max(0, given.since - 1) :], history[max(0, given.known - 1) :]
        if not self.is_true(given.order, since=since, known=known):
            self._wrong(given.shard, f"{given}; stored since: {', '.join(map(str, known))}")

    def _wrong(self, shard: int, detail: str) -> None:
        raise Violated("order-answered-wrongly", f"p{shard} {detail}")
