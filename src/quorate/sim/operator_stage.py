"""A small world with operators, clients and a store that does as it is told: where every_operator_crash.py plays.

Three nodes are an ensemble, a fourth is spare; one operator lives, another can take over. Everything that is said,
stepped and stored from the beginning of the play on is counted, and something can be done right behind any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from quorate.core.coordinated import OperatorTuning, Shard, Status, Tuning
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.coordinated.orders import Order
from quorate.core.coordinated.shard import Phase, Reconfiguration
from quorate.core.effects import Outcome, Send
from quorate.core.entry import Member
from quorate.core.invariant import Violated
from quorate.core.metadata import ReadShard, StoreSilent, WriteShard
from quorate.sim import stage as stages
from quorate.sim.chaos import Toll
from quorate.sim.healing import LIVENESS, RECONFIGURATION_COMPLETES
from quorate.sim.operators import FIRST, Operators
from quorate.sim.planner import Planner
from quorate.sim.setup import Setup
from quorate.sim.stage import PACE_S, SEED, TUNING
from quorate.sim.store import Answer, MemoryStore
from quorate.sim.tunables import Oversight
from quorate.sim.watcher import Watcher
from quorate.sim.workload import Manners
from quorate.sim.world import World

WRITTEN_BEFORE = 12
"""So much is acknowledged before the play: there is a snapshot, and a log behind it."""
SECOND = FIRST + 1
SPARE = 4

TUNABLES = stages.small(
    {"coordinated": Tuning(**TUNING)},
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


class Stage(stages.Stage):
    """One world, from its beginning to where the play begins, and on from there."""

    room: CoordinatedInvariants

    def __init__(self, setup: Setup = SETUP) -> None:
        super().__init__(setup, CoordinatedInvariants())
        self.store = UnreliableStore(self.world, setup.tunables.oversight.store_latency_s)
        self.store.on_written = self._written
        self.operators = Operators(self.world, self.store)
        self.operators.on_step = self._operated
        self.planner = Planner(self.operators, Toll(), self.invariants)
        Watcher(self.world, self.operators, self.store, setup.tunables.oversight.suspect_after_s).begin()
        self.operator_steps: list[int] = []
        """Of each step of the first operator since the play began: how much it ordered."""
        self.node_steps: dict[int, int] = dict.fromkeys(setup.nodes, 0)
        self.said: list[tuple[int, int, Any]] = []
        """Every message since then: from, to, what."""
        self.on_operator_step: Callable[[int], None] = lambda number: None
        self.on_node_step: Callable[[int], None] = lambda node: None
        self.due: Callable[[], object] | None = None
        """What is to be done right behind the event that is happening."""
        self.has_struck = False
        self._is_playing = False
        self._versions_before = 0
        for number in self.world.nodes:
            self.world.start(number)
        self.operators.start(FIRST)
        self.until(self.is_at_rest, "nobody leads")
        self.workload.begin()
        enough = WRITTEN_BEFORE if self.workload.clients else 0
        self.until(lambda: self.oracle.acknowledged_count >= enough, "writes are not acknowledged")

    # --- what is seen ---

    @property
    def history(self) -> list[Shard]:
        """What was stored before the play began, and everything since."""
        return self.operators.history[0][self._versions_before :]

    @property
    def stored(self) -> Shard:
        shard = self.store.newest(0)
        assert isinstance(shard, Shard)
        return shard

    @property
    def leader(self) -> Member:
        assert self.stored.leader is not None
        return self.stored.leader

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        super().stepped(node, partition, replica, event, effects)
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
        self.operators.history[shard].append(content)

    # --- what is done ---

    def play(self, begin: Callable[[Stage], None]) -> None:
        self._versions_before = len(self.operators.history[0]) - 1
        self.store.requests_count = 0
        self._is_playing = True
        begin(self)
        self._strike()

    def happen(self) -> None:
        super().happen()
        self._strike()

    def _strike(self) -> None:
        due, self.due = self.due, None
        if due is not None:
            self.has_struck = True
            due()

    def stuck(self, what: str) -> Violated:
        promise = RECONFIGURATION_COMPLETES if self.planner.is_reconfiguring() else LIVENESS
        return Violated(promise, f"{what}: {self.store.newest(0)}")

    def run(self, paces: float) -> None:
        until = self.world.now + paces * PACE_S
        self.world.after(paces * PACE_S, lambda _: None, None)
        while self.world.now < until:
            self.happen()

    def command(self, number: int, order: Order) -> bool:
        """False if that operator is not there, or does not do it now."""
        given = self.planner.order(number, 0, order)
        return given is not None and (given.reply is None or given.reply.outcome is not Outcome.REFUSED)

    def take_over(self, _: Any = None) -> None:
        """Another operator, if it is not there yet."""
        if not self.operators.processes[SECOND].is_up:
            self.operators.start(SECOND)

    # --- the end ---

    def is_at_rest(self) -> bool:
        """Nothing is half-done by the store, and whoever it says to lead does."""
        shard = self.store.newest(0)
        if shard is None or shard.leader is None or shard.reconfiguration is not None:
            return False
        hosted = self.world.hosted(shard.leader.node, 0)
        return hosted is not None and hosted.replica.role.name == "leader"

    def heal(self) -> None:
        """Afterwards the ensemble is what it has to be."""
        self.come_to_rest(self.planner)
        expected = outcome(self.history)
        if self.stored.ensemble != expected:
            raise Violated(
                "ensemble-unapplied", f"{self.stored}, and it should be {expected}: {self.history}"
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
