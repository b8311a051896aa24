"""A small world with operators, clients and a store that does as it is told: where every_operator_crash.py plays.

Three nodes are an ensemble, a fourth is spare; one operator lives, another can take over. Everything that is said,
stepped and stored from the beginning of the play on is counted, and something can be done right behind any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from quorate.core import coordinated
from quorate.core.coordinated import OperatorTuning, Shard, Status
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.coordinated.metadata import ReadShard, StoreSilent, WriteShard
from quorate.core.coordinated.orders import Order, Reconfigure
from quorate.core.coordinated.shard import Phase, Reconfiguration
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
from quorate.storage.settings import TINY

SEED = 5
PACE_S = 0.1
PATIENCE_S = 20.0
WRITTEN_BEFORE = 12
"""So much is acknowledged before the play: there is a snapshot, and a log behind it."""
SECOND = FIRST + 1
SPARE = 4

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
