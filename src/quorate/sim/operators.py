"""Operator processes of a made-up world: each drives one operator per shard, over the nodes' network.

They have no disk: whoever starts again remembers nothing, and reads the store. They stand still and die like
nodes. They can also be made to die between two of the things that a step orders (`fuse`), which is where the store
knows more than the nodes, or the nodes more than the store.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import events
from quorate.core.effects import Reply, Send
from quorate.core.entry import NOWHERE, Member
from quorate.core.events import Recovered, Started
from quorate.core.metadata import ReadShard, ShardWritten, WriteShard
from quorate.host import Parcel
from quorate.sim import overseen
from quorate.sim.chance import stream
from quorate.sim.sim_node import NEVER
from quorate.sim.store import Store
from quorate.sim.world import Letter, World

FIRST = 101
"""Operators' numbers begin here: none is a node's."""
NOTHING_KEPT = Started(Recovered(base=NOWHERE, head=NOWHERE, epochs=()))

Answer = Callable[[Reply], None]


class Process:
    """One operator process, if it runs."""

    __slots__ = (
        "answers",
        "down_until",
        "fuse",
        "generations",
        "lives",
        "number",
        "operators",
        "paused_until",
        "wake_at",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = 0
        self.operators: list[Any] = []
        """One per shard; none while it is down."""
        self.generations: dict[int, int] = {}
        """Of its shards: whose replicas it speaks to, where they have turned (generations.py)."""
        self.answers: dict[tuple[int, int], Answer] = {}
        """By shard and request: who waits for what was ordered."""
        self.fuse: int | None = None
        """So many more orders are carried out, and then it dies."""
        self.down_until = 0.0
        self.paused_until = 0.0
        self.wake_at = NEVER

    @property
    def is_up(self) -> bool:
        return bool(self.operators)

    @property
    def me(self) -> Member:
        return Member(self.number, self.lives)


class Operators:
    """All operator processes of a world."""

    def __init__(self, world: World, store: Store) -> None:
        self.world = world
        self.store = store
        self.processes = {number: Process(number) for number in world.setup.operators}
        self.shards_count = len(world.setup.shards)
        self.on_step: Callable[[int, int, list[Any]], None] = lambda operator, shard, ordered: None
        """Told what each step of an operator has ordered."""
        self.on_crash: Callable[[int], None] = lambda operator: None
        """Told when one died by its fuse."""
        self.make: Callable[[int, Random], Any] = lambda shard, rng: overseen.make(
            world.setup, shard, rng=rng
        )
        """Whoever oversees a shard, for one life of a process."""
        self.is_current: Callable[[int, int], bool] = lambda number, shard: True
        """Whether what the store says of a shard is for the one that this process has for it."""
        self.history: list[list[Any]] = [[] for _ in world.setup.shards]
        """Of each shard: all that was ever written to the store, by whomever; each room has its own."""
        self.reconfigurations_count = 0
        """Changes of an ensemble that an operator knows to be written down as done."""
        for number in self.processes:
            world.strangers[number] = self._receive
        world.alarms.append(self._wake)

    @property
    def lives_count(self) -> int:
        return sum(process.lives for process in self.processes.values())

    def up(self) -> list[int]:
        return [number for number, process in self.processes.items() if process.is_up]

    def operator(self, number: int, shard: int) -> Any:
        """None while it is down."""
        process = self.processes[number]
        return process.operators[shard] if process.is_up else None

    def life(self, number: int) -> int:
        """Which life it is in; 0 while it is down."""
        process = self.processes[number]
        return process.lives if process.is_up else 0

    # --- life ---

    def start(self, number: int) -> None:
        process = self.processes[number]
        assert not process.is_up
        process.lives += 1
        process.paused_until = 0.0
        process.wake_at = NEVER
        process.fuse = None
        self._tell_world(number, "started" if process.lives == 1 else "restarted")
        setup = self.world.setup
        process.operators = [
            self.make(shard, stream(setup.seed, "operator", number, process.lives, shard))
            for shard in setup.shards
        ]
        for shard in range(self.shards_count):
            self._step(process, shard, NOTHING_KEPT)
        self._turned(process)

    def replace(self, number: int, shard: int, generation: int, operator: Any) -> None:
        """Somebody else oversees a shard from now on, in a process that runs."""
        process = self.processes[number]
        process.operators[shard] = operator
        process.generations[shard] = generation
        self._step(process, shard, NOTHING_KEPT)
        self._turned(process)

    def crash(self, number: int) -> bool:
        """It ends, without a word; False if it does not run."""
        process = self.processes[number]
        was_up = process.is_up
        process.operators = []
        process.answers.clear()
        if was_up:
            self._tell_world(number, "crashed")
        return was_up

    def pause(self, number: int, seconds: float) -> None:
        process = self.processes[number]
        if process.is_up:
            process.paused_until = max(process.paused_until, self.world.now + seconds)
            self._tell_world(number, "paused", f"for {seconds:.3f}s")

    def resume(self, number: int) -> None:
        process = self.processes[number]
        process.paused_until = min(process.paused_until, self.world.now)
        process.wake_at = NEVER
        self._turned(process)

    def _tell_world(self, number: int, what: str, text: str = "") -> None:
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, number, what, text=text)

    # --- what they are told ---

    def suspect(self, number: int, shard: int, node: int) -> None:
        """Somebody tells an operator that this node is gone, or does not lead though it should."""
        self._tell(self.processes[number], shard, events.Suspected(node))

    def command(self, number: int, shard: int, order: overseen.Order, answer: Answer) -> bool:
        """Order something; False if it does not run, or stands still."""
        process = self.processes[number]
        if not process.is_up or process.paused_until > self.world.now:
            return False
        process.answers[shard, order.request] = answer
        self._tell(process, shard, events.Commanded(order))
        return True

    def _receive(self, letter: Letter) -> None:
        process = self.processes[letter.target]
        if not process.is_up:
            self.world.lost(letter)
            return
        parcel = letter.parcel
        assert parcel.partition is not None
        shard = self.world.number_of(parcel.partition)
        if parcel.generation != process.generations.get(shard, 0):
            return
        self._tell(process, shard, events.Received(parcel.sender, parcel.message), letter.number)

    def elapse(self, number: int) -> bool:
        """Let one process's next timer come due, whenever that is. False if it waits for none."""
        process = self.processes[number]
        due = self._due(process)
        if due is None:
            return False
        self.world.now = max(self.world.now, due)
        self._time_passed(process)
        return True

    # --- turns ---

    def _tell(self, process: Process, shard: int, event: Any, message: int = 0) -> None:
        """Now, or when it goes on; to the process that it is meant for, or to nobody."""
        life = process.lives

        def tell(_: None) -> None:
            if process.lives != life or not process.is_up:
                return
            if process.paused_until > self.world.now:
                self.world.after(process.paused_until - self.world.now, tell, None)
                return
            self._step(process, shard, event, message)
            self._turned(process)

        tell(None)

    def _step(self, process: Process, shard: int, event: Any, message: int = 0) -> None:
        if not process.is_up:
            return
        operator = process.operators[shard]
        ordered = operator.step(self.world.now, event)
        trace = self.world.trace
        if trace is not None:
            trace.stepped(self.world.now, process.number, shard, operator, event, ordered, message)
        self.on_step(process.number, shard, ordered)
        for effect in ordered:
            if self._burns_down(process):
                return
            self._carry_out(process, shard, effect)

    def _burns_down(self, process: Process) -> bool:
        if process.fuse is None:
            return False
        process.fuse -= 1
        if process.fuse >= 0:
            return False
        self.crash(process.number)
        self.on_crash(process.number)
        return True

    def _carry_out(self, process: Process, shard: int, effect: Any) -> None:
        if isinstance(effect, Send):
            generation = process.generations.get(shard, 0)
            parcel = Parcel(self.world.partitions[shard], process.me, effect.message, generation=generation)
            self.world.post(process.number, effect.to, parcel)
        elif isinstance(effect, Reply):
            process.answers.pop((shard, effect.request))(effect)
        else:
            self._ask_store(process, shard, effect)

    def _ask_store(self, process: Process, shard: int, request: ReadShard | WriteShard) -> None:
        life, asker = process.lives, process.operators[shard]
        before = asker.shard

        def answered(event: Any) -> None:
            if process.lives != life or not process.is_up or process.operators[shard] is not asker:
                return
            if not self.is_current(process.number, shard):
                return
            if isinstance(event, ShardWritten) and isinstance(request, WriteShard) and before is not None:
                self.reconfigurations_count += overseen.members(before) != overseen.members(request.shard)
            self._tell(process, shard, event)

        self.store.ask(process.number, shard, request, answered)

    # --- timers ---

    def _due(self, process: Process) -> float | None:
        dues = (operator.deadline() for operator in process.operators)
        return min((due for due in dues if due is not None), default=None)

    def _turned(self, process: Process) -> None:
        due = self._due(process)
        if due is not None and max(due, self.world.now) < process.wake_at:
            process.wake_at = max(due, self.world.now)
            self.world.after(
                process.wake_at - self.world.now, self._wake, (process, process.wake_at, process.lives)
            )

    def _wake(self, timer: tuple[Process, float, int]) -> None:
        process, at, life = timer
        if process.lives != life or at != process.wake_at or not process.is_up:
            return
        process.wake_at = NEVER
        if process.paused_until > self.world.now:
            process.wake_at = process.paused_until
            self.world.after(process.wake_at - self.world.now, self._wake, (process, process.wake_at, life))
            return
        self._time_passed(process)

    def _time_passed(self, process: Process) -> None:
        for shard in range(self.shards_count):
            due = process.operators[shard].deadline() if process.is_up else None
            if due is not None and due <= self.world.now + 1e-9:  # There and back may round.
                self.world.now = max(self.world.now, due)
                self._step(process, shard, events.TimePassed())
        self._turned(process)
