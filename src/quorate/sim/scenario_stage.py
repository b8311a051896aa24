"""The world of a scenario: nothing happens in it by chance, and nothing that was not asked for.

Messages wait until they are delivered, timers until they are woken, and disks are instant unless their
completions are held. Underneath are the same hosts, stores and simulated disks as in every made-up world, and
the same invariants look at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from quorate.core.entry import Member, Span
from quorate.host import Parcel, ReplicaRecord
from quorate.host.parcel import unpacked
from quorate.host.replicas import MACHINES, UNDOING
from quorate.sim.chance import stream
from quorate.sim.clock import Clock
from quorate.sim.disk import SimDisk, SimDiskSettings
from quorate.sim.network import Weather
from quorate.sim.scenario_given import Account, give
from quorate.sim.scenario_notes import Notes
from quorate.sim.scenario_operators import Overseeing
from quorate.sim.scenario_room import host_settings, message_name, oversight_settings
from quorate.sim.scenario_script import Cast
from quorate.sim.scenario_tell import Narrator, Teller
from quorate.sim.setup import Setup
from quorate.sim.sim_node import NEVER, SimNode
from quorate.sim.trace import Trace, tell
from quorate.sim.tunables import Tunables
from quorate.sim.world import Letter, World
from quorate.storage.frame import FRAME_HEAD_BYTES, FRAME_MAGIC, DamagedFrame, parse

STEP_SECONDS = 0.001
"""How long a message takes while time passes."""
INSTANT = SimDiskSettings(latency_min=0.0, latency_max=0.0)
STILL = Weather(delay_min=0.0, delay_mean=0.0)
NOTES = "notes"
"""What a log of `confirm` is for in a scenario: something that is written on append, and taken back."""
MACHINES[NOTES] = Notes
EVENTS_MAX = 100_000
"""A story that goes on for longer without any timer never ends."""


class Refused(Exception):
    """A command that cannot be carried out in the world as it is."""


class Watcher:
    """Sees every step: tells it first, so that the story ends with what went wrong, and then checks it."""

    def __init__(self, narrator: Narrator, account: Account) -> None:
        self.narrator = narrator
        self.account = account

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        self.narrator.stepped(node, replica, event, effects)
        self.account.stepped(node, partition, replica, event, effects)


class Stage(World):
    def __init__(self, cast: Cast, trace: Trace | None = None) -> None:
        tunables = Tunables(
            weather=STILL,
            disk=INSTANT,
            host=host_settings(cast.settings),
            oversight=oversight_settings(cast.settings, len(cast.voters)),
        )
        setup = Setup(
            cast.seed,
            tunables,
            voters=(cast.voters,),
            learners=(cast.learners,),
            outsiders=(cast.outsiders,),
            protocol=cast.room.name,
            operators=tuple(cast.operators.values()),
            priorities=tuple(cast.priorities.items()),
            quorums=(cast.quorums,),
            hold=True,
        )
        self.cast = cast
        self.teller = Teller(cast.names, cast.origin, cast.room)
        self.narrator = Narrator(self.teller)
        self.account = Account(1, cast.room.invariants)
        self.holding: set[int] = set()
        """Nodes whose disks complete nothing until they are told to."""
        self.paused: set[int] = set()
        self.broken: set[tuple[int, int]] = set()
        """Links that lose everything."""
        self.jobs: dict[int, list[Callable[[], None]]] = {number: [] for number in setup.nodes}
        """Completions that are held."""
        self.begun = False
        super().__init__(setup, watch=Watcher(self.narrator, self.account), trace=trace)
        self.operators = Overseeing(self) if cast.operators else None
        self.on_stop = lambda number: self.narrator.say(f"{self.name(number)} stops: its disk failed")

    def begin(self) -> None:
        """Put what is given on the disks, and start everybody."""
        self.begun = True
        stored = give(self, self.cast)
        if self.operators is not None and stored is not None:
            self.operators.found(stored)
        for number in self.nodes:
            self.start(number)
        self.calm()
        self.narrator.take()

    def note(self, number: int, what: str, text: str = "") -> None:
        """Something befalls a node, or (0) the network, of which no replica hears: pictures show it."""
        if self.trace is not None:
            self.trace.add(self.now, number, what, text=text)

    # --- looking ---

    def name(self, number: int) -> str:
        return self.teller.node(number)

    def record(self, number: int) -> ReplicaRecord:
        return self._record(self.nodes[number], 0)

    def _record(self, node: SimNode, index: int) -> ReplicaRecord:
        record = super()._record(node, index)
        if self.setup.protocol != UNDOING:
            return record
        return msgspec.structs.replace(record, purpose=NOTES)

    def member(self, number: int) -> Member:
        """A node with the disk that it has now."""
        return Member(number, self.nodes[number].incarnation)

    def oversight(self) -> Overseeing:
        if self.operators is None:
            named = self.cast.room.overseers or "operators"
            raise Refused(f"nobody oversees this; above the first command: {named} O1")
        return self.operators

    def is_up(self, number: int) -> bool:
        if number in self.nodes:
            return self.hosted(number, 0) is not None
        return self.oversight().processes[number].is_up

    def up(self, number: int) -> Any:
        """The replica of a node that runs, or an operator that does."""
        if number not in self.nodes:
            operator = self.oversight().operator(number, 0)
            if operator is None:
                raise Refused(f"{self.name(number)} is down")
            return operator
        hosted = self.hosted(number, 0)
        if hosted is None:
            raise Refused(f"{self.name(number)} is down")
        return hosted.replica

    def acting(self, number: int) -> Any:
        """The replica of a node that can do something."""
        if number in self.paused:
            raise Refused(f"{self.name(number)} is paused")
        return self.up(number)

    def letters(self, source: int, target: int, called: str | None = None) -> list[Letter]:
        """Messages that wait on a link (0: on any), the oldest first; of one name, if it is given."""
        return [
            letter
            for letter in self.held.values()
            if source in (0, letter.source)
            and target in (0, letter.target)
            and (called is None or is_called(letter, called))
        ]

    @property
    def messages_count(self) -> int:
        """How many were ever sent: the number of the newest."""
        return self._messages_count

    # --- what happens between two commands ---

    def calm(self) -> None:
        """Disks do what they were told to; machines that have applied the same are the same."""
        before = self.events_count
        self.settle(EVENTS_MAX)
        if self.events_count - before >= EVENTS_MAX:
            raise Refused("this never ends")
        for number in self.nodes:
            hosted = self.hosted(number, 0)
            if hosted is not None:
                self.account.applied(number, 0, hosted.applied.offset, hosted.tally.counts)

    def _make_disk(self, number: int) -> SimDisk:
        return SimDisk(stream(self.setup.seed, "disk", number), self._scheduler(number), INSTANT)

    def _make_wall(self, number: int) -> Clock:
        """Everybody agrees on the time of day, unless a scenario sets a clock."""
        return Clock()

    def _scheduler(self, number: int) -> Callable[[float, Callable[[], None]], None]:
        def schedule(_: float, finish: Callable[[], None]) -> None:
            self.after(0.0, self._disk_finished, (number, finish))

        return schedule

    def _disk_finished(self, job: tuple[int, Callable[[], None]]) -> None:
        number, finish = job
        if number in self.holding or number in self.paused:
            self.jobs[number].append(finish)
        else:
            super()._disk_finished(job)

    # --- messages ---

    def _deliver(self, letter: Letter) -> None:
        if letter.target not in self.paused:  # Only what is not held comes this way: pings.
            super()._deliver(letter)

    def hand_over(self, letter: Letter) -> None:
        """A message arrives, and whoever gets it does what it has to."""
        self.acting(letter.target)
        if (letter.source, letter.target) in self.broken:
            raise Refused(f"the link {self.link(letter)} is cut")
        self.narrator.say(f"{self.link(letter)} {self.teller.message(content(letter))}")
        self.deliver(letter.number)
        self.calm()

    def lose(self, letter: Letter) -> None:
        self.narrator.say(f"{self.link(letter)} {self.teller.message(content(letter))} is lost")
        self.drop(letter.number)

    def link(self, letter: Letter) -> str:
        return f"{self.name(letter.source)} -> {self.name(letter.target)}"

    def flow(self, among: Collection[int]) -> None:
        """Deliver until nothing is left that can be delivered between these nodes."""
        for _ in range(EVENTS_MAX):
            ready = [letter for letter in self.letters(0, 0) if self._flows(letter, among)]
            if not ready:
                return
            self._pass_on(ready[0])
        raise Refused("this never ends")

    def _flows(self, letter: Letter, among: Collection[int]) -> bool:
        return letter.source in among and letter.target in among and letter.target not in self.paused

    def _pass_on(self, letter: Letter) -> None:
        if not self.is_up(letter.target) or (letter.source, letter.target) in self.broken:
            self.lose(letter)
        else:
            self.hand_over(letter)

    def duplicate(self, number: int) -> int:
        copy = self.held[super().duplicate(number)]
        if self.trace is not None:
            text = tell(copy.parcel.message)
            self.trace.add(
                self.now, copy.source, "sent", partition=0, text=text, message=copy.number, peer=copy.target
            )
        return copy.number

    def put(self, source: int, target: int, parcel: Parcel) -> None:
        """A message that nobody has ordered waits with the others."""
        self._send(self.nodes[source], self.nodes[source].lives, target, parcel)

    def reorder(self, source: int, target: int, places: tuple[int, ...]) -> None:
        waiting = self.letters(source, target)
        if sorted(places) != list(range(1, len(waiting) + 1)):
            raise Refused(
                f"{len(waiting)} messages wait on {self.name(source)} -> {self.name(target)}: "
                f"name each of 1 to {len(waiting)} once"
            )
        wanted = iter([waiting[place - 1] for place in places])
        numbers = {letter.number for letter in waiting}
        order = [next(wanted) if number in numbers else letter for number, letter in self.held.items()]
        self.held = {letter.number: letter for letter in order}

    # --- time ---

    def wake(self, number: int) -> None:
        """A node's own time passes until its replica wants to be woken; nobody else's does."""
        deadline = self.acting(number).deadline()
        if deadline is None:
            raise Refused(f"{self.name(number)} is at rest: nothing will wake it by itself")
        if number not in self.nodes:
            self.oversight().elapse(number)
            self.calm()
            return
        node = self.nodes[number]
        assert node.host is not None
        local = node.clock.local(self.now)
        node.clock.change(self.now, jump=max(0.0, deadline - local))
        node.host.tick(max(deadline, local))
        self.clock_changed(number)
        self.calm()

    def miss_leader(self, number: int) -> None:
        """Its leader is not heard for so long that this node owes nobody its vote; it does not stand itself."""
        replica = self.acting(number)
        node = self.nodes[number]
        assert node.host is not None
        if replica.role.name == "leader":
            return  # It hears itself.
        local = node.clock.local(self.now)
        node.clock.change(self.now, jump=max(0.0, self.cast.room.promised_until(replica) - local))
        if replica.leader and replica.role.deadline is None:
            node.host.at(node.clock.local(self.now))
            node.host.suspect(replica.leader)
        self.clock_changed(number)

    def pass_time(self, seconds: float) -> None:
        """Time passes for everybody, and messages arrive."""
        until = self.now + seconds
        while self.now < until:
            self.run(min(until, self.now + STEP_SECONDS))
            for letter in self.letters(0, 0):
                if letter.target not in self.paused:
                    self._pass_on(letter)

    def set_wall(self, number: int, seconds: float) -> None:
        """The time of day on a node; nothing is timed by it."""
        wall = self.nodes[number].wall
        wall.change(self.now, jump=seconds - wall.local(self.now))

    # --- disks ---

    def flush(self, number: int) -> None:
        """What the disk had been given when it was held, or flushed last, is done."""
        jobs, self.jobs[number] = self.jobs[number], []
        if not jobs:
            raise Refused(f"{self.name(number)} waits for nothing of its disk")
        for finish in jobs:
            super()._disk_finished((number, finish))
        self.calm()

    def let_go(self, number: int) -> None:
        """Completions that nothing holds any more."""
        while self.jobs[number] and number not in self.holding | self.paused:
            self.flush(number)

    def damage(self, number: int, offset: int) -> None:
        """Flip a bit in the payload of every frame on this disk that covers the offset."""
        disk = self.nodes[number].disk
        hits = 0
        for file in disk.files():
            content = disk.content(file)
            at = content.find(FRAME_MAGIC)
            while at >= 0:
                try:
                    frame, _ = parse(content, at, self.partitions[0])
                except DamagedFrame:
                    pass  # Something else with the same four bytes.
                else:
                    if frame.header.offset <= offset <= frame.header.last:
                        disk.flip(file, at + FRAME_HEAD_BYTES + frame.header.size - 1, 0)
                        hits += 1
                at = content.find(FRAME_MAGIC, at + 1)
        if not hits:
            raise Refused(f"nothing on the disk of {self.name(number)} covers {self.teller.offset(offset)}")
        self.note(number, "damaged", f"offset {offset}")
        self.account.damaged(number)

    def scrub(self, number: int) -> None:
        self.acting(number)

        def done(_: list[Span]) -> None:
            """What was found was told to the replica."""

        self.check(number, 0, done)
        self.calm()

    # --- processes ---

    def end(self, number: int, *, losing: bool) -> None:
        """The process dies. What it had handed to its disk is there, or (losing) only what was flushed."""
        self.up(number)
        if number not in self.nodes:
            self.oversight().crash(number)
            self.paused.discard(number)
            return
        node = self.nodes[number]
        flushed = node.disk.durable_files() if losing else None
        if not losing:
            self._write_down(number)
        self.crash(number)
        if flushed is not None:
            rng = stream(self.setup.seed, "disk", number, node.lives)
            node.disk = SimDisk.from_files(flushed, rng, self._scheduler(number), INSTANT)
        self.forget(number)

    def forget(self, number: int) -> None:
        """A process that is gone waits for nothing."""
        self.jobs[number].clear()
        self.holding.discard(number)
        self.paused.discard(number)

    def _write_down(self, number: int) -> None:
        """Everything ordered so far reaches the disk, and nobody hears of it."""
        host = self.nodes[number].host
        assert host is not None
        host.stopped = "crashed"
        self.holding.add(number)
        while self.jobs[number]:
            jobs, self.jobs[number] = self.jobs[number], []
            for finish in jobs:
                finish()
            self.calm()

    def pause_process(self, number: int) -> None:
        self.acting(number)
        self.note(number, "paused")
        self.paused.add(number)
        if number in self.nodes:
            self.nodes[number].paused_until = NEVER
        else:
            self.oversight().processes[number].paused_until = NEVER

    def resume_process(self, number: int) -> None:
        if number not in self.paused:
            raise Refused(f"{self.name(number)} is not paused")
        self.note(number, "resumed")
        self.paused.discard(number)
        if number not in self.nodes:
            self.oversight().resume(number)
            return
        self.nodes[number].paused_until = 0.0
        self.clock_changed(number)
        self.let_go(number)
        self.calm()


def is_called(letter: Letter, word: str) -> bool:
    """`append` is any message whose name is that, or begins with it: append-entries, append-response."""
    name = letter_name(letter)
    return name == word or name.startswith(f"{word}-")


def content(letter: Letter) -> Any:
    """What the other end will read. Entries that do not follow each other are not told: its host drops them."""
    message = unpacked(letter.parcel)
    return message if message is not None else letter.parcel.message


def letter_name(letter: Letter) -> str:
    return message_name(type(letter.parcel.message))
