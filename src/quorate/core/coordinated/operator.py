"""The operator of one shard: fences, elects and reconfigures, and stays out of the way of the data.

It is a state machine like the nodes (`step`, `deadline`). All that it must not forget is in the metadata store,
written before the step it stands for is taken (OX-2, OX-5): whoever reads the store knows what may have been done,
and every step can be taken again. So after anything unexpected (its own death included) an operator does one thing:
it reads, and goes on from there.

Several operators at once exclude each other by compare-and-set (OX-3). Whoever is refused waits for a while whether
the other gets on; only a shard that nobody touches meanwhile is taken over.

That a node is gone is told from outside, by `Suspected`.
"""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

import msgspec

from quorate.core import events
from quorate.core.coordinated.answering import judge
from quorate.core.coordinated.electing import Electing
from quorate.core.coordinated.orders import CallOff, MoveLeader, Order, Reconfigure
from quorate.core.coordinated.reshaping import Reshaping
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration, Shard, Status
from quorate.core.coordinated.tending import Tending
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.overseeing import STORE_HANDLERS, Given, Overseer, Verdict


class OperatorTuning(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    retry_s: float = 0.2
    """What was not answered is asked again after this long."""
    patience_s: float = 1.5
    """A chosen leader that does not answer is given up, and a shard that another operator left half-done taken
    over, after this long."""
    watch_s: float = 2.0
    """How often an operator with nothing to do looks whether another has died in the middle of something."""


class Task(Protocol):
    """What an operator is doing about its shard."""

    def begin(self) -> None: ...

    def receive(self, sender: Member, message: Any) -> None: ...

    def suspected(self, node: int) -> None: ...

    def retry(self) -> bool:
        """Ask again whoever has not answered; False if nobody is asked."""
        ...

    def gave_up(self) -> None:
        """It takes too long."""


class Idle:
    """Nothing is known: the store is being asked, or another operator is being waited for."""

    def begin(self) -> None: ...

    def receive(self, sender: Member, message: Any) -> None: ...

    def suspected(self, node: int) -> None: ...

    def retry(self) -> bool:
        return False

    def gave_up(self) -> None: ...


class Operator(Overseer):
    tuning: OperatorTuning
    shard: Shard | None

    def __init__(
        self,
        tuning: OperatorTuning,
        rng: Random,
        birth: Shard | None = None,
        *,
        prefers: tuple[int, ...] = (),
    ) -> None:
        """`birth`: what to begin a shard with of which the store knows nothing.

        `prefers`: nodes, the one first that shall lead where several could; the first leader is waited for.
        """
        super().__init__(tuning, rng)
        self.prefers = prefers
        self.task: Task = Idle()
        self._birth = birth
        self._take_over_at = 0.0
        """Until then whoever has left the shard in the middle of something may go on with it."""
        self._retry_at: float | None = None
        self._give_up_at: float | None = None

    def deadline(self) -> float | None:
        times = (self._look_at, self._retry_at, self._give_up_at)
        return min((time for time in times if time is not None), default=None)

    def describe(self) -> str:
        doing = type(self.task).__name__.lower()
        return f"operator {doing} v{self.version} {self.shard if self.shard is not None else 'knows nothing'}"

    def leading_node(self) -> int:
        return self.shard.leader.node if self.shard is not None and self.shard.leader is not None else 0

    # --- the store ---

    def forget(self) -> None:
        self.task = Idle()
        self._retry_at = self._give_up_at = None

    def lost_a_write(self) -> None:
        self._take_over_at = 0.0

    def found(self, before: int) -> None:
        if self.shard is None:
            if self._birth is not None:
                self.write(self._birth, self.elect)
            return
        half_done = self.shard.status is Status.ELECTION or self.shard.reconfiguration is not None
        if half_done and before and before != self.version:
            # Somebody is at it. If they get on, this version will not be the newest for long.
            self._take_over_at = self.now + self.tuning.patience_s * (2.0 + 2.0 * self.rng.random())
        if half_done and self.now < self._take_over_at:
            self._look_at = min(self._take_over_at, self.now + self.tuning.patience_s / 2)
            return
        self.go_on()

    # --- tasks ---

    def go_on(self) -> None:
        """Take up whatever the store says is to be done."""
        shard = self.shard
        assert shard is not None
        if shard.status is Status.ELECTION:
            self.elect()  # With another epoch: what came of this one nobody knows.
        elif shard.reconfiguration is None:
            self.begin(Tending(self))
        elif shard.reconfiguration.phase is Phase.WANTED:
            self._begin_wanted(shard, shard.reconfiguration)
        else:
            self.begin(Reshaping(self))

    def begin(self, task: Task) -> None:
        self.task = task
        self._retry_at = self._give_up_at = None
        self._look_at = self.now + self.tuning.watch_s
        task.begin()

    def elect(self, *, avoid: Member | None = None) -> None:
        """Let the next epoch begin: first in the store, then anywhere else (OX-5)."""
        shard = self.shard
        assert shard is not None
        change = shard.reconfiguration
        if change is not None and change.phase in (Phase.PREPARE, Phase.ABORT) and not change.again:
            change = None  # Nobody counts otherwise yet: as if it had not begun (OX-28).
        elif change is not None and change.kind is Kind.CONTRACT and change.phase is not Phase.WANTED:
            change = msgspec.structs.replace(change, phase=Phase.WANTED, again=True)
        following = Shard(shard.epoch + 1, Status.ELECTION, shard.ensemble, None, change)
        self.write(following, lambda: self.begin(Electing(self, avoid)))

    def _begin_wanted(self, shard: Shard, change: Reconfiguration) -> None:
        if change.old is not None and change.old == shard.leader:
            self.begin(Tending(self))  # Nobody else could lead; perhaps later.
            return
        self.reconfigure(change)

    def reconfigure(self, change: Reconfiguration) -> None:
        """The next epoch, with the same leader (OX-27)."""
        shard = self.shard
        assert shard is not None
        assert shard.status is Status.STEADY
        assert change.old != shard.leader, "a leader is moved first (OX-31)"
        change = msgspec.structs.replace(change, phase=Phase.PREPARE)
        following = Shard(shard.epoch + 1, Status.STEADY, shard.ensemble, shard.leader, change)
        self.write(following, lambda: self.begin(Reshaping(self)))

    # --- for tasks ---

    def retry_after(self, seconds: float) -> None:
        self._retry_at = self.now + seconds

    def give_up_after(self, seconds: float) -> None:
        self._give_up_at = self.now + seconds

    # --- facts ---

    def _received(self, event: events.Received) -> None:
        if self.shard is None or self._writing is not None:
            return  # Whatever it says will be asked for again.
        if event.message.epoch > self.shard.epoch:
            if self._is_informed:
                self.look()  # Another operator has been at work.
            return
        if event.message.epoch == self.shard.epoch:
            self.task.receive(event.sender, event.message)

    def _suspected(self, event: events.Suspected) -> None:
        self.task.suspected(event.node)

    def _time_passed(self, _: events.TimePassed) -> None:
        if self._give_up_at is not None and self.now >= self._give_up_at:
            self._give_up_at = None
            self.task.gave_up()
        if self._retry_at is not None and self.now >= self._retry_at:
            self._retry_at = None
            if self.task.retry():
                self.retry_after(self.tuning.retry_s)
        if self._look_at is not None and self.now >= self._look_at:
            if type(self.task) is Idle:
                self.look()
            else:
                self.peek()

    # --- orders ---

    def _commanded(self, event: events.Commanded) -> None:
        order: Order = event.command
        why = self._why_not(order)
        if why:
            self.emit(Reply(order.request, Outcome.REFUSED, why=why))
            return
        shard = self.shard
        assert shard is not None
        given = Given(order, before=shard)
        self._orders.append(given)
        change = shard.reconfiguration
        if isinstance(order, MoveLeader):
            self.elect(avoid=shard.leader)
        elif isinstance(order, CallOff):
            assert change is not None
            if change.phase is Phase.ABORT:
                given.is_begun = True  # That serves this order, too.
            else:
                self.call_off()
        else:
            change = Reconfiguration(order.kind, Phase.WANTED, order.old, order.new)
            if order.old == shard.leader and order.old is not None:
                # First the leader is moved; and whoever goes on with that knows what for.
                wanted = msgspec.structs.replace(shard, reconfiguration=change)
                self.write(wanted, self.elect)
            else:
                self.reconfigure(change)

    def _why_not(self, order: Order) -> str:
        """Why this cannot be begun now (OX-26); empty if it can."""
        shard = self.shard
        if shard is None or not self._is_informed:
            return "the metadata store has not answered yet"
        change = shard.reconfiguration
        if isinstance(order, CallOff):
            if change is None or change.phase is Phase.COMMIT or (change.again and not self._may_forget):
                return "nothing is under way that could still be called off"
            return "" if shard.status is Status.STEADY else "an election is under way"
        if shard.status is not Status.STEADY:
            return "an election is under way"
        if change is not None:
            return f"another reconfiguration is under way: {change}"
        if not isinstance(order, Reconfigure):
            return ""
        if (order.old is None) != (order.kind is Kind.EXPAND) or (order.new is None) != (
            order.kind is Kind.CONTRACT
        ):
            return f"{order.kind} names the wrong nodes"
        others = [member.node for member in shard.ensemble if member != order.old]
        if order.new is not None and order.new not in shard.ensemble and order.new.node in others:
            return f"node {order.new.node} is in the ensemble with another disk; swap that for this one"
        if order.old is not None and order.old not in shard.ensemble:
            return f"node {order.old.node} is not in the ensemble"
        if order.new is not None and order.new in shard.ensemble:
            return f"node {order.new.node} is in the ensemble already"
        if order.old is not None and order.new is None and len(shard.ensemble) == 1:
            return "the last copy cannot be removed"
        if order.old is not None and order.old == shard.leader and len(shard.ensemble) == 1:
            return "nobody else could lead; add a node first"
        return ""

    @property
    def _may_forget(self) -> bool:
        """Of a contraction that is tried again: a leader prepares it only when it has settled something with all of
        them, and with that whatever fewer had settled."""
        return isinstance(self.task, Reshaping) and self.task.has_adopted

    def call_off(self) -> None:
        """What is wanted or being prepared is not to be; the leader hears of it."""
        shard = self.shard
        assert shard is not None
        change = shard.reconfiguration
        assert change is not None
        assert change.phase in (Phase.WANTED, Phase.PREPARE)
        assert not change.again or self._may_forget
        if change.phase is Phase.WANTED:
            self.write(msgspec.structs.replace(shard, reconfiguration=None), self.settled)
            return
        change = msgspec.structs.replace(change, phase=Phase.ABORT, again=False)
        aborted = msgspec.structs.replace(shard, reconfiguration=change)
        self.write(aborted, lambda: self.begin(Reshaping(self)))

    def settled(self) -> None:
        """An election or a reconfiguration is over."""
        self._judge_orders()
        self.go_on()

    def judge(self, given: Given, *, has_seen_all: bool) -> Verdict | None:
        assert self.shard is not None
        return judge(given, self.shard, has_seen_all=has_seen_all)


Operator.handlers = STORE_HANDLERS | {
    events.Received: Operator._received,
    events.Suspected: Operator._suspected,
    events.Commanded: Operator._commanded,
    events.TimePassed: Operator._time_passed,
}
