"""Whoever wants the copies of a world to agree in another way, and the store that knows how they do (017).

It stands for the metadata group and for what nodes do by its image: wants turns and calls them off, hears of
barriers from whoever leads, and decides by the same code as the real group what begins then
(machine/turning.py). Every node and every operator process sees that with a delay of its own, over and over:
what a node believes may be old by several turns, and what it says may come late or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from quorate.core import commands, coordinated, isr
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.host import ReplicaRecord
from quorate.host.turning import reached
from quorate.machine.metadata import OVERSEEN, REPLICATIONS
from quorate.machine.turning import VOIDING, NoteBarrier, Turned, epoch_of, first_state, is_of, is_whole
from quorate.sim import overseen
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.generations import Generations
from quorate.sim.isr_watcher import IsrWatcher
from quorate.sim.operators import Operators
from quorate.sim.sim_node import SimNode
from quorate.sim.store import MemoryStore
from quorate.sim.watcher import Watcher
from quorate.sim.world import World

LOOKS_PER_PACE = 8
CALLED_OFF = 0.2
"""How many turns are called off, if they are not over by then."""
LOST = 0.2
"""How much of what a node says to the metadata group is lost."""
ROLLED_BACK = 0.3
"""How often somebody takes back what waits, just when a turn of `confirm` begins."""


class Known(msgspec.Struct):
    """What the image says of one partition."""

    protocol: str
    turned: Turned | None = None
    wanted: tuple[int, str] | None = None
    """A turn, and to what."""

    @property
    def generation(self) -> int:
        return self.turned.generation if self.turned is not None else 0


class Nobody:
    """Oversees a partition that needs nobody."""

    shard = None

    def step(self, now: float, event: Any) -> list[Any]:
        return []

    def deadline(self) -> float | None:
        return None

    def describe(self) -> str:
        return "nobody"


class Turner:
    def __init__(
        self, world: World, generations: Generations, store: MemoryStore, operators: Operators
    ) -> None:
        self.world = world
        self.pairs: list[tuple[str, str]] = []
        """From what to what each partition has turned."""
        self.called_off = 0
        self._generations = generations
        self._store = store
        self._operators = operators
        self._rng = stream(world.setup.seed, "turner")
        self._at = 0
        self._over = False
        protocol = world.setup.protocol
        self.known = [Known(protocol) for _ in world.partitions]
        self._seen: dict[int, list[Known]] = {
            number: list(map(msgspec.structs.replace, self.known))
            for number in (*world.nodes, *operators.processes)
        }
        """What each node and each operator process believes."""
        self._ordered: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By node and partition: its life, the epoch and the turn of the last order that it has."""
        self._waiting = 0
        self._born, world.record_of = world.record_of, self._record
        operators.make = self._make
        store.on_written = self._wrote
        store.accepts = lambda shard, content: is_of(self.known[shard].protocol, content)
        operators.on_step = self._operated
        operators.is_current = self._is_current

    # --- as the steward of a world whose ensembles stay ---

    def begin(self) -> None:
        pace = self.world.tunables.pace_s
        seconds = self.world.tunables.seconds
        for number in self._seen:
            self.world.after(pace * self._rng.random(), self._look, number)
        for partition in range(len(self.known)):
            for _ in range(self._rng.choice((1, 2, 2, 3))):
                at = seconds * (0.05 + 0.85 * self._rng.random())
                self.world.after(at, self._want, partition)

    def strike(self, fault: Fault) -> None:
        """Nobody comes or goes while partitions turn: the metadata group refuses it."""

    def members(self, partition: int) -> tuple[int, ...]:
        """Who counts: not whose record was lost to damage, for nobody is there to take it in again (rule 4)."""
        found = []
        for member in self.voters(partition):
            hosted = self.world.hosted(member.node, partition)
            if hosted is None or hosted.record.me == member:
                found.append(member.node)
        return tuple(found)

    def unanswered(self) -> list[str]:
        return []

    def settle_down(self) -> Callable[[], list[str]]:
        return list

    def renew(self) -> Callable[[], list[str]]:
        return list

    def voters(self, partition: int) -> tuple[Member, ...]:
        return tuple(Member(node, 1) for node in self.world.setup.voters[partition])

    # --- what is wanted ---

    def _want(self, partition: int) -> None:
        known = self.known[partition]
        if self._over:
            return
        self._at += 1
        others = [name for name in REPLICATIONS if name != known.protocol]
        known.wanted = self._at, self._rng.choice(others)
        self._tell(f"p{partition} is to turn to {known.wanted[1]} ({self._at})")
        if self._rng.random() < CALLED_OFF:
            later = self.world.tunables.pace_s * 4 * self._rng.random()
            self.world.after(later, self._call_off, (partition, self._at))

    def _call_off(self, which: tuple[int, int]) -> None:
        partition, at = which
        known = self.known[partition]
        if known.wanted is not None and known.wanted[0] == at:
            known.wanted = None
            self.called_off += 1
            self._tell(f"p{partition} is not to turn ({at})")

    def heal(self) -> None:
        """Nothing more is wanted; what is, is seen through."""
        self._over = True

    def unfinished(self) -> list[str]:
        found = [
            f"p{partition} to {known.wanted[1]}"
            for partition, known in enumerate(self.known)
            if known.wanted is not None
        ]
        for partition, known in enumerate(self.known):
            for node in self.members(partition):
                hosted = self.world.hosted(node, partition)
                if hosted is None or hosted.record.turn != known.generation:
                    found.append(f"p{partition} n{node}")
                elif hosted.replica.barrier is not None:
                    found.append(f"p{partition} n{node} ends")
        return found

    # --- what is decided ---

    def _note(self, note: NoteBarrier) -> None:
        """As the metadata group decides it: in one moment, for everybody."""
        partition = self.world.number_of(note.partition)
        known, voters = self.known[partition], self.voters(partition)
        stored = self._store.newest(partition)
        if note.at <= known.generation or not is_whole(note, voters):
            return
        if stored is not None and epoch_of(stored) > note.epoch:
            return
        before = known.protocol
        to = known.wanted[1] if known.wanted is not None else before
        voids = before == VOIDING or (known.turned is not None and known.turned.voids)
        turned = Turned(note.at, to, note.barrier, note.epoch, note.leader.node, voids)
        self.pairs.append((before, to))
        self._tell(f"p{partition} turns from {before} to {to} at {note.barrier} ({note.at})")
        known.turned, known.protocol = turned, to
        if known.wanted is not None:
            known.wanted = None
        state = first_state(to, note, voters, min_isr=self._min_isr(partition))
        self._generations.begin(partition, turned, voters)
        version = self._store.turn(partition, state)
        if state is not None:
            self._generations.began_with(partition, version, state)

    def _wrote(self, shard: int, version: int, content: Any) -> None:
        account = self._generations.account(shard)
        assert account.room is not None
        account.room.wrote(account, shard, version, content)
        self._operators.history[shard].append(content)

    def _operated(self, number: int, shard: int, ordered: list[Any]) -> None:
        generation = self._operators.processes[number].generations.get(shard, 0)
        account = self._generations.accounts[shard, generation]
        if account.room is not None and ordered:
            account.room.operated(account, number, shard, ordered)

    # --- what nodes do ---

    def _look(self, number: int) -> None:
        """A node or an operator process looks at its image; now and then, that is newer than before."""
        pace = self.world.tunables.pace_s / LOOKS_PER_PACE
        self.world.after(pace * (0.5 + self._rng.random()), self._look, number)
        if self._rng.random() < 0.4 or self._over:
            self._seen[number] = list(map(msgspec.structs.replace, self.known))
        if number in self._operators.processes:
            self._oversee(number)
            return
        node = self.world.nodes[number]
        if node.host is None or node.paused_until > self.world.now:
            return
        for partition, seen in enumerate(self._seen[number]):
            hosted = self.world.hosted(number, partition)
            if hosted is None or not hosted.started:
                continue
            if seen.turned is not None and seen.generation > hosted.record.turn:
                self.world.turn(number, partition, seen.turned, self.voters(partition))
                continue
            note = reached(hosted)
            if note is not None:
                if self._rng.random() >= LOST:
                    self.world.after(pace * 4 * self._rng.random(), self._note, note)
            elif seen.wanted is not None and seen.wanted[0] > hosted.record.turn:
                self._order(number, partition, hosted, seen.wanted[0])

    def _order(self, number: int, partition: int, hosted: Any, at: int) -> None:
        replica = hosted.replica
        order = self.world.life(number), replica.epoch, at
        if replica.role.name != "leader" or self._ordered.get((number, partition)) == order:
            return
        self._ordered[number, partition] = order
        if hosted.record.protocol == VOIDING and self._rng.random() < ROLLED_BACK:
            self.world.command(number, partition, commands.RollBack, self._answered)
        answered = partial(self._ordered_and_answered, (number, partition))
        self.world.command(number, partition, lambda request: commands.Turn(request, at), answered)

    def _ordered_and_answered(self, which: tuple[int, int], reply: Reply) -> None:
        """Put off, it is ordered again."""
        if reply.outcome is Outcome.REFUSED:
            self._ordered.pop(which, None)

    def _answered(self, reply: Reply) -> None:
        """What came of it is seen in the log."""

    def _record(self, node: SimNode, partition: int) -> ReplicaRecord:
        """Nobody makes a copy by an image that is not current."""
        born, known = self._born(node, partition), self.known[partition]
        if known.turned is None:
            return born
        return msgspec.structs.replace(
            born,
            protocol=known.protocol,
            generation=known.generation,
            voids=known.turned.voids or msgspec.UNSET,
        )

    # --- what operators do ---

    def _make(self, shard: int, rng: Random) -> Any:
        """A process that starts has the image of some moment; it hears of another one soon."""
        return Nobody()

    def _min_isr(self, partition: int) -> int:
        """What is fair where nobody comes in the place of a copy that was lost."""
        setup = self.world.setup
        unlucky = sum(voter in setup.unlucky for voter in setup.voters[partition])
        return min(overseen.min_isr(setup, partition), len(setup.voters[partition]) - unlucky)

    def _is_current(self, number: int, shard: int) -> bool:
        """Whoever reads what is stored reads which generation it is of: its image has both."""
        return self._operators.processes[number].generations.get(shard, 0) == self.known[shard].generation

    def _oversee(self, number: int) -> None:
        process = self._operators.processes[number]
        for shard, seen in enumerate(self._seen[number]):
            if not process.is_up or process.paused_until > self.world.now:
                return
            is_new = isinstance(process.operators[shard], Nobody) and seen.protocol in OVERSEEN
            if is_new or process.generations.get(shard, 0) != seen.generation:
                operator = self._overseer(number, shard, seen.protocol)
                self._operators.replace(number, shard, seen.generation, operator)

    def _overseer(self, number: int, shard: int, protocol: str) -> Any:
        setup, voters = self.world.setup, self.voters(shard)
        rng = stream(setup.seed, "overseer", number, shard, self._operators.processes[number].lives, self._at)
        oversight = setup.tunables.oversight
        if protocol == "isr":
            birth = isr.Birth(voters, self._min_isr(shard))
            return isr.Controller(oversight.controller, rng, birth=birth)
        if protocol == "coordinated":
            newborn = coordinated.Shard(0, coordinated.Status.ELECTION, voters)
            return coordinated.Operator(oversight.operator, rng, birth=newborn)
        return Nobody()

    def _tell(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, 0, "turning", text=text)


class TurnWatcher(IsrWatcher):
    """Failure detection for whoever oversees a partition just now."""

    def _wrong(self, operator: int, shard: int) -> list[int]:
        stored = self._store.newest(shard)
        if isinstance(stored, coordinated.Shard):
            return Watcher._wrong(self, operator, shard)
        return super()._wrong(operator, shard)
