"""An operator, ended at every single step of an election and of each reconfiguration; and the nodes it works with.

Small worlds without faults play one thing each, while clients write and read: a leader dies and another is elected;
a node is swapped for another, added, removed; a leader is swapped, which has to be moved first; a change is called
off while it is being prepared. One swap and one removal begin while a node is behind. Each is played once
undisturbed, to count its steps. Then it is played again for everything that can go wrong at each of them:

- the operator ends for good: before the first of the things that the step orders, between any two of them, behind
  the last one; and another operator starts at once, or when all that was under way has arrived; or the leader ends
  with it;
- it stands still behind the step until another has done its work, and then goes on as if nothing had happened;
- a request to the store is lost, or done though the answer is lost; and that is said to the operator, or nothing;
- the leader, whoever leads afterwards, or the new node ends at a step of its own, and comes back.

Every invariant is checked all the while. In the end the ensemble is what the store's own history says that it must
be (OX-28, D11), nothing acknowledged is lost, and everything has come to rest as after any other run (healing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec

from quorate.core import coordinated
from quorate.core.coordinated import OperatorTuning, Shard, Status
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.coordinated.metadata import ReadShard, StoreSilent, WriteShard
from quorate.core.coordinated.orders import CallOff, Order, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration
from quorate.core.effects import Outcome, Reply, Send
from quorate.core.entry import Member
from quorate.core.invariant import Violated
from quorate.host import HostSettings
from quorate.host.detector import DetectorSettings
from quorate.sim.chaos import Toll
from quorate.sim.disk import SimDiskSettings
from quorate.sim.healing import Healing
from quorate.sim.invariants import Invariants
from quorate.sim.operators import FIRST, Operators
from quorate.sim.oracle import Oracle
from quorate.sim.planner import Planner
from quorate.sim.store import Answer, MemoryStore
from quorate.sim.tunables import Oversight, Tunables
from quorate.sim.watcher import Watcher
from quorate.sim.workload import Manners, Workload
from quorate.sim.world import Setup, World
from quorate.storage.errors import StoreError
from quorate.storage.settings import TINY

SEED = 5
PACE_S = 0.1
PATIENCE_S = 20.0
LATE_PACES = 4
"""So many paces later everything that was under way has arrived, and others have missed whoever comes back."""
STALL_PACES = 15
"""So long an operator stands still: another has done its work meanwhile."""
WRITTEN_BEFORE = 12
"""So much is acknowledged before the play: there is a snapshot, and a log behind it;"""
WRITTEN_BEHIND = 4
"""and so much more that a node which is left behind does not have,"""
BEHIND_PACES = 3
"""until so long after the play has begun."""
SECOND = FIRST + 1
SPARE = 4
NEWCOMER = Member(SPARE, 1)

TUNABLES = Tunables(
    pace_s=PACE_S,
    disk=SimDiskSettings(latency_min=0.0001, latency_max=0.0005),
    host=HostSettings(
        store=msgspec.structs.replace(TINY, mark_delay_s=PACE_S / 10),
        coordinated=coordinated.Tuning(
            heartbeat_s=PACE_S / 5,
            snapshot_every=8,
            keep_behind=0,
            chunk_bytes=64,
            repair_retry_s=PACE_S / 2,
            read_wait_s=PACE_S,
        ),
        detector=DetectorSettings(ping_s=PACE_S / 2, suspect_s=PACE_S * 2),
    ),
    manners=Manners(
        clients_count=1,
        readers_count=1,
        patience_s=PACE_S * 2,
        pause_s=PACE_S / 10,
        value_bytes_max=20,
        large_share=0.0,
    ),
    oversight=Oversight(
        operator=OperatorTuning(retry_s=PACE_S / 2, patience_s=PACE_S * 2, watch_s=PACE_S * 3),
        store_latency_s=0.002,
        suspect_after_s=PACE_S,
    ),
)
SETUP = Setup(
    SEED,
    TUNABLES,
    voters=((1, 2, 3),),
    learners=((),),
    outsiders=((SPARE,),),
    protocol="coordinated",
    operators=(FIRST, SECOND),
)


class UnreliableStore(MemoryStore):
    """It can be told what to do with a request, instead of leaving that to chance."""

    def __init__(self, world: World, latency_s: float) -> None:
        super().__init__(world, latency_s)
        self.requests_count = 0
        self.disturb: Callable[[int], tuple[bool, bool] | None] = lambda number: None
        """Of the request with this number: whether it is done, and whether it is said that the store was silent."""

    def ask(self, operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        self.requests_count += 1
        fate = self.disturb(self.requests_count - 1)
        if fate is None:
            super().ask(operator, shard, request, answer)
            return
        is_done, is_said = fate
        if is_done:
            super().ask(operator, shard, request, lambda event: None)
        if is_said:
            self._world.after(2 * self._latency_s, answer, StoreSilent(request.token))


class Ordered(msgspec.Struct):
    """What somebody ordered of an operator, and was told."""

    order: Order
    operator: int
    life: int
    reply: Reply | None = None


class Stage:
    """One world, from its beginning to where the play begins, and on from there."""

    def __init__(self, setup: Setup = SETUP) -> None:
        self.room = CoordinatedInvariants()
        self.invariants = Invariants(1, lambda: self.room)
        self.oracle = Oracle(1)
        self.world = World(setup, watch=self)
        self.world.on_applied = self.invariants.applied
        self.invariants.on_settled = self.oracle.settled
        self.invariants.local = self.world.local
        self.oracle.settled_end = lambda partition: self.invariants.settled[partition].commit
        self.workload = Workload(SEED, self.world, self.oracle, setup.tunables.manners, setup.holders)
        self.store = UnreliableStore(self.world, setup.tunables.oversight.store_latency_s)
        self.store.on_written = self._written
        self.operators = Operators(self.world, self.store)
        self.operators.on_step = self._operated
        self.planner = Planner(self.operators, Toll(), self.invariants)
        Watcher(self.world, self.operators, self.store, setup.tunables.oversight.suspect_after_s).begin()
        self.ordered: list[Ordered] = []
        self.history: list[Shard] = []
        """Everything that was stored since the play began, and what was stored before."""
        self.operator_steps: list[int] = []
        """Of each step of the first operator since then: how much it ordered."""
        self.node_steps: dict[int, int] = dict.fromkeys(setup.nodes, 0)
        self.said: list[tuple[int, int, Any]] = []
        """Every message since then: from, to, what."""
        self.on_operator_step: Callable[[int], None] = lambda number: None
        self.on_node_step: Callable[[int], None] = lambda node: None
        self.due: Callable[[], object] | None = None
        """What is to be done right behind the event that is happening."""
        self.has_struck = False
        self._is_playing = False
        for number in self.world.nodes:
            self.world.start(number)
        self.operators.start(FIRST)
        self.until(self.is_at_rest, "nobody leads")
        self.workload.begin()
        enough = WRITTEN_BEFORE if self.workload.clients else 0
        self.until(lambda: self.oracle.acknowledged_count >= enough, "writes are not acknowledged")

    # --- what is seen ---

    @property
    def stored(self) -> Shard:
        shard = self.store.newest(0)
        assert shard is not None
        return shard

    @property
    def leader(self) -> Member:
        assert self.stored.leader is not None
        return self.stored.leader

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        self.invariants.stepped(node, partition, replica, event, effects)
        if self._is_playing:
            self._hear(node, effects)
            self.on_node_step(node)
            self.node_steps[node] += 1

    def _operated(self, number: int, shard: int, ordered: list[Any]) -> None:
        self.room.operated(self.invariants, number, shard, ordered)
        if not self._is_playing:
            return
        self._hear(number, ordered)
        if number == FIRST:
            self.operator_steps.append(len(ordered))
        self.on_operator_step(number)

    def _hear(self, source: int, effects: list[Any]) -> None:
        self.said += [(source, effect.to, effect.message) for effect in effects if type(effect) is Send]

    def _written(self, shard: int, version: int, content: Shard) -> None:
        self.room.wrote(self.invariants, shard, version, content)
        self.history.append(content)

    # --- what is done ---

    def play(self, begin: Callable[[Stage], None]) -> None:
        self.history = [self.stored]
        self.store.requests_count = 0
        self._is_playing = True
        begin(self)
        self._strike()

    def happen(self) -> None:
        self.world.happen()
        self._strike()

    def _strike(self) -> None:
        due, self.due = self.due, None
        if due is not None:
            self.has_struck = True
            due()

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = self.world.now + PATIENCE_S
        while not done():
            if self.world.now > deadline:
                raise Violated("liveness", f"{what}: {self.store.newest(0)}")
            self.happen()

    def run(self, paces: float) -> None:
        until = self.world.now + paces * PACE_S
        self.world.after(paces * PACE_S, lambda _: None, None)
        while self.world.now < until:
            self.happen()

    def command(self, number: int, order: Order) -> bool:
        """False if that operator is not there, or does not do it now."""
        ordered = Ordered(order, number, self.operators.life(number))

        def answer(reply: Reply) -> None:
            if ordered.reply is not None:
                raise Violated("change-answer", f"{order} was answered twice: {ordered.reply}, {reply}")
            ordered.reply = reply

        self.ordered.append(ordered)
        is_heard = self.operators.command(number, 0, order, answer)
        refused = ordered.reply is not None and ordered.reply.outcome is Outcome.REFUSED
        if not is_heard or refused:
            self.ordered.remove(ordered)
        return is_heard and not refused

    def take_over(self, _: Any = None) -> None:
        """Another operator, if it is not there yet."""
        if not self.operators.processes[SECOND].is_up:
            self.operators.start(SECOND)

    def restart(self, node: int) -> None:
        if self.world.nodes[node].host is None:
            self.world.start(node)

    # --- the end ---

    def is_at_rest(self) -> bool:
        """Nothing is half-done by the store, and whoever it says to lead does."""
        shard = self.store.newest(0)
        if shard is None or shard.leader is None or shard.reconfiguration is not None:
            return False
        hosted = self.world.hosted(shard.leader.node, 0)
        return hosted is not None and hosted.replica.role.name == "leader"

    def heal(self) -> None:
        self.workload.close()
        for number in self.world.nodes:
            self.restart(number)
        Healing(self.world, self.workload, self.oracle, self.invariants, self.planner).run()
        self.until(lambda: not self._unanswered(), "orders stay unanswered")
        self._judge()

    def _unanswered(self) -> list[Ordered]:
        """Of operators that still live."""
        return [
            ordered
            for ordered in self.ordered
            if ordered.reply is None and self.operators.life(ordered.operator) == ordered.life
        ]

    def _judge(self) -> None:
        """Whether the ensemble is what it has to be, and whoever ordered something was told the truth."""
        before, after = self.history[0].ensemble, self.stored.ensemble
        expected = outcome(self.history)
        if after != expected:
            raise Violated(
                "ensemble-unapplied", f"{self.stored}, and it should be {expected}: {self.history}"
            )
        for ordered in self.ordered:
            if isinstance(ordered.order, Reconfigure) and ordered.reply is not None:
                is_settled = ordered.reply.outcome is Outcome.SETTLED
                if is_settled != (after != before):
                    raise Violated(
                        "change-answer", f"{ordered.reply} to {ordered.order}, and now {self.stored}"
                    )


def outcome(history: list[Shard]) -> tuple[Member, ...]:
    """The ensemble in the end, said from what was written alone, without the core's own words.

    What was written down is completed, by whomever; unless it is called off, or an election finds it in PREPARE or
    called off. What an election finds in COMMIT is completed, too: a contraction by trying again (OX-28, D11).
    """
    ensemble = history[0].ensemble
    change: Reconfiguration | None = None
    for earlier, later in pairwise(history):
        before, now = earlier.reconfiguration, later.reconfiguration
        is_prepared = before is not None and before.phase is Phase.PREPARE
        is_wanted = before is not None and before.phase is Phase.WANTED
        if is_prepared and later.status is Status.ELECTION:
            change = None
        elif now is not None:
            change = now if now.phase is not Phase.ABORT else None
        elif is_wanted:
            change = None
    if change is None:
        return ensemble
    members = {*ensemble} - {change.old}
    return tuple(sorted(members if change.new is None else {*members, change.new}))


# ---- what is played ----


def _lose_leader(stage: Stage) -> None:
    stage.world.crash(stage.leader.node)


def _reconfigure(
    stage: Stage, kind: Kind, *, old: Callable[[Stage], Member] | None = None, new: Member | None = None
) -> None:
    order = Reconfigure(1, kind, old(stage) if old is not None else None, new)
    if not stage.command(FIRST, order):
        raise Violated("liveness", f"the operator refuses {order}")


def _a_follower(stage: Stage) -> Member:
    return next(member for member in stage.stored.ensemble if member != stage.leader)


def _calling_off(stage: Stage, *, late: bool) -> None:
    """Swap, and call that off: when the leader has been asked to prepare it, or when the new node has been told."""
    _reconfigure(stage, Kind.SWAP, old=_a_follower, new=NEWCOMER)
    disturb = stage.on_operator_step
    is_called = False

    def stepped(number: int) -> None:
        nonlocal is_called
        is_told = any(to == SPARE for _, to, _ in stage.said)
        if not is_called and _prepares(stage, number) and (is_told or not late):
            is_called = True
            stage.world.after(0.0, call_off, number)
        disturb(number)

    def call_off(number: int) -> None:
        """Whoever ended before it heard that has to be told again, or rather the next one."""
        nonlocal is_called
        is_called = stage.command(number, CallOff(2))

    stage.on_operator_step = stepped


def _prepares(stage: Stage, number: int) -> bool:
    """Whether an operator knows of a change in PREPARE."""
    operator = stage.operators.operator(number, 0)
    shard = operator.shard if operator is not None else None
    return (
        shard is not None
        and shard.reconfiguration is not None
        and shard.reconfiguration.phase is Phase.PREPARE
    )


def _leave_behind(stage: Stage) -> None:
    """One of the ensemble gets nothing from the leader: what is settled is not on it, but on whoever is to go."""
    due = stage.oracle.acknowledged_count + WRITTEN_BEHIND
    stage.world.network.cut(_links_to_last(stage))
    stage.until(lambda: stage.oracle.acknowledged_count >= due, "two of three settle nothing")


def _links_to_last(stage: Stage) -> tuple[tuple[int, int], ...]:
    leader, last = stage.leader.node, stage.stored.ensemble[-1].node
    return (leader, last), (last, leader)


def _behind(begin: Callable[[Stage], None]) -> Callable[[Stage], None]:
    def begun(stage: Stage) -> None:
        stage.world.after(BEHIND_PACES * PACE_S, stage.world.network.mend, _links_to_last(stage))
        begin(stage)

    return begun


class Play(msgspec.Struct, frozen=True):
    """What sets it off, and what comes before."""

    begin: Callable[[Stage], None]
    prepare: Callable[[Stage], None] = lambda stage: None


SWAP = partial(_reconfigure, kind=Kind.SWAP, old=_a_follower, new=NEWCOMER)
CONTRACT = partial(_reconfigure, kind=Kind.CONTRACT, old=_a_follower)
PLAYS: dict[str, Play] = {
    "election": Play(_lose_leader),
    "swap": Play(SWAP),
    "swap, one behind": Play(_behind(SWAP), _leave_behind),
    "expand": Play(partial(_reconfigure, kind=Kind.EXPAND, new=NEWCOMER)),
    "contract": Play(CONTRACT),
    "contract, one behind": Play(_behind(CONTRACT), _leave_behind),
    "leader swap": Play(partial(_reconfigure, kind=Kind.SWAP, old=lambda stage: stage.leader, new=NEWCOMER)),
    "call off": Play(partial(_calling_off, late=False)),
    "call off late": Play(partial(_calling_off, late=True)),
}


def prepared(name: str) -> Stage:
    stage = Stage()
    PLAYS[name].prepare(stage)
    return stage


class Course(msgspec.Struct, frozen=True):
    """How a play goes undisturbed."""

    operator_steps: tuple[int, ...]
    """How much each step of the operator orders."""
    requests_count: int
    """To the store."""
    victims: dict[int, int]
    """Of the leader, whoever leads in the end, and a new node: how many steps each takes."""


def undisturbed(name: str) -> Course:
    stage = prepared(name)
    led = stage.leader.node
    stage.play(PLAYS[name].begin)
    _play_out(stage, name)
    is_joined = any(to == SPARE for source, to, _ in stage.said if source == FIRST)
    nodes = {led, stage.leader.node} | ({SPARE} if is_joined else set())
    victims = {node: stage.node_steps[node] for node in sorted(nodes) if stage.world.life(node)}
    course = Course(tuple(stage.operator_steps), stage.store.requests_count, victims)
    stage.heal()
    return course


def _play_out(stage: Stage, name: str) -> None:
    """Until it is over; and a little longer, for those who come late."""
    stage.until(lambda: len(stage.history) > 1 and stage.is_at_rest(), f"the {name} does not end")
    stage.run(1.0)


# ---- what goes wrong ----


class OperatorEnds(msgspec.Struct, frozen=True):
    step: int
    carried_out: int
    """Of what that step orders."""
    late: bool
    with_leader: bool = False
    """Whoever leads ends, too: only an election resolves what has stalled then (OX-28)."""

    def __str__(self) -> str:
        who = "the operator and the leader end" if self.with_leader else "the operator ends"
        then = "another one comes late" if self.late else "another one comes at once"
        return f"{who} at step {self.step}, with {self.carried_out} of its orders done, and {then}"

    def arm(self, stage: Stage) -> None:
        operators = stage.operators
        process = operators.processes[FIRST]

        def end() -> None:
            operators.crash(FIRST)
            stage.world.after(LATE_PACES * PACE_S * self.late, stage.take_over, None)
            for node in stage.world.leaders(0) if self.with_leader else ():
                stage.world.crash(node)
                stage.world.after(2 * LATE_PACES * PACE_S, stage.restart, node)

        def stepped(number: int) -> None:
            if number == FIRST and len(stage.operator_steps) == self.step + 1:
                process.fuse = self.carried_out
                stage.due = end

        stage.on_operator_step = stepped


class OperatorStalls(msgspec.Struct, frozen=True):
    step: int

    def __str__(self) -> str:
        return f"the operator stands still behind step {self.step}"

    def arm(self, stage: Stage) -> None:
        def stall() -> None:
            stage.operators.pause(FIRST, STALL_PACES * PACE_S)
            stage.take_over()

        def stepped(number: int) -> None:
            if number == FIRST and len(stage.operator_steps) == self.step + 1:
                stage.due = stall

        stage.on_operator_step = stepped


class AnswerLost(msgspec.Struct, frozen=True):
    request: int
    done: bool
    said: bool

    def __str__(self) -> str:
        what = "done, its answer lost" if self.done else "lost"
        return (
            f"request {self.request} to the store is {what}, which is {'said' if self.said else 'not said'}"
        )

    def arm(self, stage: Stage) -> None:
        def disturb(number: int) -> tuple[bool, bool] | None:
            if number != self.request or stage.has_struck:
                return None
            stage.has_struck = True
            return self.done, self.said

        stage.store.disturb = disturb


class NodeEnds(msgspec.Struct, frozen=True):
    node: int
    step: int
    power: bool
    late: bool

    def __str__(self) -> str:
        what = "loses its power" if self.power else "crashes"
        back = "comes back late" if self.late else "comes back at once"
        return f"n{self.node} {what} behind its step {self.step} and {back}"

    def arm(self, stage: Stage) -> None:
        world = stage.world

        def end() -> None:
            (world.power_loss if self.power else world.crash)(self.node)
            world.after(LATE_PACES * PACE_S * self.late, stage.restart, self.node)

        def stepped(node: int) -> None:
            if node == self.node and stage.node_steps[node] == self.step:
                stage.due = end

        stage.on_node_step = stepped


Disturbance = OperatorEnds | OperatorStalls | AnswerLost | NodeEnds


def disturbances(name: str) -> Iterator[Disturbance]:
    """Every way to disturb it."""
    course = undisturbed(name)
    for step, orders_count in enumerate(course.operator_steps):
        for carried_out in range(orders_count + 1):
            yield OperatorEnds(step, carried_out, late=False)
            yield OperatorEnds(step, carried_out, late=True)
            yield OperatorEnds(step, carried_out, late=False, with_leader=True)
        yield OperatorStalls(step)
    for request in range(course.requests_count):
        for done in (False, True):
            for said in (False, True):
                yield AnswerLost(request, done, said)
    for node, steps_count in course.victims.items():
        for step in range(steps_count):
            late = bool(step % 2)
            yield NodeEnds(node, step, power=False, late=late)
            yield NodeEnds(node, step, power=True, late=not late)


def survive(name: str, disturbance: Disturbance) -> str:
    """Play it with that. What is wrong then; empty if it is as it should be."""
    try:
        stage = prepared(name)
        disturbance.arm(stage)
        stage.play(PLAYS[name].begin)
        stage.until(lambda: stage.has_struck, "nothing went wrong")
        stage.run(2 * LATE_PACES + (STALL_PACES if isinstance(disturbance, OperatorStalls) else 0))
        stage.until(stage.is_at_rest, f"the {name} does not end")
        _went_on(stage, name, disturbance)
        stage.heal()
    except (StoreError, Violated, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _went_on(stage: Stage, name: str, disturbance: Disturbance) -> None:
    """Whoever takes over goes on where the other ended; nothing has to be elected while the leader leads."""
    lost = isinstance(disturbance, NodeEnds) or getattr(disturbance, "with_leader", False)
    is_led = name not in ("election", "leader swap") and not lost
    if is_led and any(shard.status is Status.ELECTION for shard in stage.history):
        raise Violated("resumed", f"an election, though n{stage.leader.node} leads: {stage.history}")
