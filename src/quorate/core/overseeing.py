"""What everybody who oversees a shard does alike: keeps what must not be forgotten in the metadata store.

An overseer (the operator of `coordinated`, the controller of `isr`) is a state machine like a replica (`step`,
`deadline`). Its memory is the store, which it changes by compare-and-set only: several at once exclude each other.
After anything unexpected, its own death included, it does one thing: it reads, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import msgspec

from quorate.core import events, metadata
from quorate.core.effects import Outcome, Reply, Send
from quorate.core.entry import Member

Then = Callable[[], None]
"""What to do once something is written."""


class Given(msgspec.Struct, gc=False):
    """An order that waits for its end."""

    order: Any
    before: Any
    """What was stored when it was given."""
    is_begun: bool = False
    """Its first step is known to be stored."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    outcome: Outcome
    why: str = ""


DONE = Verdict(Outcome.SETTLED)
UNSEEN = Verdict(Outcome.UNKNOWN, "others were at work meanwhile: look at what is stored now")
DROPPED = Verdict(Outcome.TIMED_OUT, "it was dropped")


class Overseer:
    handlers: ClassVar[dict[type, Callable[[Any, Any], None]]]

    def __init__(self, tuning: Any, rng: Random) -> None:
        self.tuning = tuning
        self.rng = rng
        self.now = 0.0
        self.version = 0
        """Of what the store said last; 0: it has nothing."""
        self.shard: Any = None
        self._looked_at = 0
        """The version that was seen last; 0 where a change would be no surprise."""
        self._look_at: float | None = None
        self._token = 0
        self._is_informed = False
        """What is stored is known, unless others have written; no order is taken before."""
        self._reading = False
        self._is_peeking = False
        self._writing: tuple[Any, Then] | None = None
        self._orders: list[Given] = []
        self._silent_at = -1
        """The version that an unanswered write was based on: until there is another, it may yet be done."""
        self._effects: list[Any] = []

    # --- the door ---

    def step(self, now: float, event: Any) -> list[Any]:
        assert not self._effects
        self.now = now
        self.handlers[type(event)](self, event)
        ordered, self._effects = self._effects, []
        return ordered

    # --- what each adds ---

    def found(self, before: int) -> None:
        """The store says what it holds, and that is news; `before`: the version that was seen before."""
        raise NotImplementedError

    def forget(self) -> None:
        """Whatever was under way is over: the store is asked, or written to."""

    def lost_a_write(self) -> None:
        """The store did not say what became of one."""

    def judge(self, given: Given, *, has_seen_all: bool) -> Verdict | None:
        """What whoever gave that order hears; None: it is still under way.

        `has_seen_all`: nothing was stored since that is not known here.
        """
        raise NotImplementedError

    def leading_node(self) -> int:
        """Who leads by what the store says; 0: nobody."""
        raise NotImplementedError

    # --- the store ---

    def look(self) -> None:
        """Forget what is under way, and go on from what the store says."""
        self.forget()
        if self._writing is not None:
            self._unanswered()
        self._is_informed = False
        self._ask_store()
        self._is_peeking = False

    def peek(self) -> None:
        """Whether what is under way is still what the store says: another one may have ended it."""
        self._ask_store()
        self._is_peeking = True

    def _ask_store(self) -> None:
        self._reading = True
        self._token += 1
        self._look_at = self.now + self.tuning.patience_s  # The answer may never come.
        self.emit(metadata.ReadShard(self._token))

    def write(self, shard: Any, then: Then) -> None:
        """Nothing else is done until that is known to be written."""
        assert self._writing is None
        self.forget()
        self._token += 1
        self._is_informed = self._reading = False
        self._writing = shard, then
        self._look_at = self.now + self.tuning.patience_s
        self.emit(metadata.WriteShard(self._token, self.version, shard))

    def _read(self, event: metadata.ShardRead) -> None:
        if event.token != self._token or not self._reading:
            return
        self._reading = False
        if self._is_peeking and event.version == self.version:
            self._look_at = self.now + self.tuning.watch_s
            return
        self.forget()
        self._is_informed = True
        has_seen_all = event.version <= self.version + 1
        before, self.version, self.shard = self._looked_at, event.version, event.shard
        self._looked_at = event.version
        if self.shard is None:
            assert not self._orders, "none is taken before the shard is known, and none is ever unwritten"
        self._judge_orders(has_seen_all=has_seen_all)
        self.found(before)

    def _written(self, event: metadata.ShardWritten) -> None:
        if event.token != self._token or self._writing is None:
            return
        (self.shard, then), self._writing = self._writing, None
        self._is_informed = True
        self.version = self._looked_at = event.version
        self._look_at = None
        for given in self._orders:
            given.is_begun = True
        then()

    def _refused(self, event: metadata.WriteRefused) -> None:
        """Another one was faster. It is perhaps alive: do not undo its work at once."""
        if event.token == self._token and self._writing is not None:
            self._writing = None
            self._looked_at = self.version
            self.look()

    def _silent(self, event: metadata.StoreSilent) -> None:
        if event.token != self._token:
            return
        if self._writing is not None:
            self._unanswered()
        self._reading = False
        self._look_at = self.now + self.tuning.retry_s

    def _unanswered(self) -> None:
        """It may have been written, or be yet. What this one may have written itself needs no waiting."""
        self._writing = None
        self._silent_at = self.version
        self._looked_at = 0
        self.lost_a_write()

    # --- orders from people ---

    def _judge_orders(self, *, has_seen_all: bool = True) -> None:
        """Whether what was ordered has happened, or can no longer happen."""
        for given in self._orders.copy():
            verdict = self.judge(given, has_seen_all=has_seen_all)
            if verdict is not None:
                self._end(given, verdict)
            else:
                given.is_begun = True  # Whoever wrote that.

    def _end(self, given: Given, verdict: Verdict) -> None:
        self._orders = [other for other in self._orders if other is not given]
        if verdict.outcome is Outcome.TIMED_OUT and self.version == self._silent_at:
            verdict = Verdict(Outcome.UNKNOWN, "the metadata store has not answered: it may yet be done")
        self.emit(Reply(given.order.request, verdict.outcome, leader=self.leading_node(), why=verdict.why))

    # --- effects ---

    def emit(self, effect: Any) -> None:
        self._effects.append(effect)

    def send(self, to: Member, message: Any) -> None:
        self.emit(Send(to.node, message))

    # --- facts ---

    def _started(self, _: events.Started) -> None:
        self.look()


STORE_HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    events.Started: Overseer._started,
    metadata.ShardRead: Overseer._read,
    metadata.ShardWritten: Overseer._written,
    metadata.WriteRefused: Overseer._refused,
    metadata.StoreSilent: Overseer._silent,
}
