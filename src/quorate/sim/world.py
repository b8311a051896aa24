"""A made-up world: nodes with disks and clocks, a network between them, and one queue of things to come.

Everything that happens comes out of one heap ordered by virtual time (ties in the order of making), so a
run is a function of its setup. The world drives real hosts over simulated disks and knows nothing of any
protocol; faults (`chaos.py`), clients (`workload.py`) and checks (`invariants.py`) are put in from outside.

A world without faults and clients serves scenarios: with `hold=True` messages wait to be delivered, dropped
or doubled one by one, and `settle()` lets everything happen that needs no timer.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

import msgspec

from quorate.core.commands import ChangeMembership, Command, TransferLeadership
from quorate.core.effects import Reply, Report
from quorate.core.entry import EntryId, Member, Partition, Quorums, Span, partition_of
from quorate.core.events import ReadLevel
from quorate.host import Host, Hosted, HostSettings, Parcel, ReplicaRecord
from quorate.host.querying import Consistency, query
from quorate.machine.turning import Turned
from quorate.sim.chance import stream
from quorate.sim.clock import Clock
from quorate.sim.disk import SimDisk
from quorate.sim.network import Network
from quorate.sim.setup import Setup
from quorate.sim.sim_node import NEVER, SimNode
from quorate.sim.trace import Trace, tell
from quorate.storage.disk import DiskFailed, DiskFull
from quorate.storage.frame import Frame

TOPIC = bytes(range(16))
"""The one topic of a made-up world."""
WALL_SECONDS = 1_000.0
"""The time of day when a world begins."""
RESTART_SECONDS = 0.05
"""A process that ended by itself is started again after this long."""


class Letter(msgspec.Struct, frozen=True, gc=False):
    """A message on its way."""

    number: int
    source: int
    target: int
    parcel: Parcel


class Watch(Protocol):
    """Whoever checks every step."""

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None: ...


class World:
    def __init__(self, setup: Setup, *, watch: Watch | None = None, trace: Trace | None = None) -> None:
        self.setup = setup
        self.tunables = setup.tunables
        self.watch = watch
        self.trace = trace
        self.now = 0.0
        self.events_count = 0
        """Everything that came out of the queue: arrivals, completions, timers, requests, faults."""
        self.steps_count = 0
        """Facts that replicas were told: after each of them, everything is checked."""
        self.crashes_count = 0
        self.reports: list[tuple[int, Report]] = []
        self.network = Network(setup.seed, setup.everybody, setup.tunables.weather)
        self.partitions = [partition_of(TOPIC, number) for number in range(len(setup.voters))]
        self.held: dict[int, Letter] = {}
        """Messages that wait to be delivered by hand, by number."""
        self.strangers: dict[int, Callable[[Letter], None]] = {}
        """Those in the network who are no nodes, by number: what they do with a message."""
        self.alarms: list[Callable[[Any], None]] = [self._wake]
        """What comes due by a timer, and not because something is under way."""
        self.on_stop: Callable[[int], None] = lambda node: None
        """Told when a process ended by itself."""
        self.on_applied: Callable[[int, int, int, Any], None] = lambda node, partition, offset, state: None
        """Told what a machine is, after it has applied everything up to an offset."""
        self.record_of: Callable[[SimNode, int], ReplicaRecord] = self._record
        """What a replica is told at birth, where nothing is known of an earlier one."""
        self._applied: dict[tuple[int, int], EntryId] = {}
        self._numbers = {partition: number for number, partition in enumerate(self.partitions)}
        self._messages_count = 0
        self.sent_bytes = 0
        """Of entries and snapshots, in all messages that were sent."""
        self._receiving = 0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._pushes = 0
        self.nodes = {
            number: SimNode(number, self._make_disk(number), self._make_wall(number))
            for number in setup.nodes
        }

    def _make_disk(self, number: int) -> SimDisk:
        def schedule(delay: float, finish: Callable[[], None]) -> None:
            self.after(delay, self._disk_finished, (number, finish))

        rng = stream(self.setup.seed, "disk", number)
        return SimDisk(rng, schedule, self.tunables.disk)

    def _make_wall(self, number: int) -> Clock:
        """No two nodes agree on the time of day."""
        rng = stream(self.setup.seed, "wall", number)
        pace = self.tunables.pace_s
        wall = Clock(WALL_SECONDS + pace * rng.choice((-3.0, -0.2, 0.0, 0.2, 3.0)) * rng.random())
        wall.change(0.0, rate=1.0 + rng.choice((-0.2, -0.01, 0.0, 0.01, 0.2)))
        return wall

    def number_of(self, partition: Partition) -> int:
        return self._numbers[partition]

    # --- time ---

    def after(self, seconds: float, function: Callable[[Any], None], argument: Any) -> None:
        self._pushes += 1
        heappush(self._heap, (self.now + seconds, self._pushes, function, argument))

    def run(self, until: float, steps_max: int = 1 << 62) -> None:
        """Let everything happen that is due until then, timers too."""
        heap = self._heap
        count = 0
        try:
            while heap and heap[0][0] <= until:
                if self.steps_count >= steps_max:
                    return
                self.now, _, function, argument = heappop(heap)
                count += 1
                function(argument)
        finally:
            self.events_count += count
        self.now = max(self.now, until)

    def happen(self) -> bool:
        """Let the one thing happen that is due next; False if nothing ever will be."""
        if not self._heap:
            return False
        self.now, _, function, argument = heappop(self._heap)
        self.events_count += 1
        function(argument)
        return True

    def settle(self, steps_max: int = 100_000) -> None:
        """Let everything happen that is under way, and no timer. Held messages stay where they are."""
        heap = self._heap
        limit = self.steps_count + steps_max
        timers = []
        while heap and self.steps_count < limit:
            due = heappop(heap)
            if due[2] in self.alarms:
                timers.append(due)
                continue
            self.events_count += 1
            self.now = max(self.now, due[0])
            due[2](due[3])
        for timer in timers:
            heappush(heap, timer)

    def elapse(self, number: int) -> bool:
        """Let one node's next timer come due, whenever that is. False if it waits for none."""
        node = self.nodes[number]
        if node.host is None or (deadline := node.host.deadline()) is None:
            return False
        self.now = max(self.now, node.clock.world(deadline))
        node.host.tick(max(deadline, node.clock.local(self.now)))
        self._turned(node)
        return True

    # --- nodes ---

    def life(self, number: int) -> int:
        """Which life a node is in; 0 while it is down."""
        node = self.nodes[number]
        return node.lives if node.host is not None else 0

    def local(self, number: int) -> float | None:
        """What a node's clock shows; None while it is down."""
        node = self.nodes[number]
        return node.clock.local(self.now) if node.host is not None else None

    def start(self, number: int) -> bool:
        """Start a node's process on whatever is on its disk; False if it ended at once."""
        node = self.nodes[number]
        assert node.host is None
        node.lives += 1
        if self.trace is not None:
            self.trace.add(self.now, number, "started" if node.lives == 1 else "restarted")
        node.paused_until = 0.0
        node.wake_at = NEVER
        life = node.lives
        host = Host(
            number,
            node.disk,
            self._settings(number),
            send=lambda target, parcel: self._send(node, life, target, parcel),
            rng=stream(self.setup.seed, "host", number, node.lives),
            observer=self,
            wall_ms=lambda: int(node.wall.local(self.now) * 1000),
        )
        node.host = host
        try:
            self._open(node, host)
        except (DiskFailed, DiskFull) as error:
            host.stopped = str(error)
        self._turned(node)
        return node.host is not None

    def _settings(self, number: int) -> HostSettings:
        settings = self.nodes[number].settings(self.tunables.host)
        for node, priority in self.setup.priorities:
            if node == number:
                raft = msgspec.structs.replace(settings.raft, priority=priority)
                confirm = msgspec.structs.replace(settings.confirm, priority=priority)
                settings = msgspec.structs.replace(settings, raft=raft, confirm=confirm)
        return settings

    def _open(self, node: SimNode, host: Host) -> None:
        now = node.clock.local(self.now)
        host.open(now)
        for index, partition in enumerate(self.partitions):
            if node.number in self.setup.holders[index]:
                host.add(now, partition, self.record_of(node, index))

    def _record(self, node: SimNode, index: int) -> ReplicaRecord:
        """What a replica is told at birth: the ensemble as it was when the world began."""
        return ReplicaRecord(
            self.setup.protocol_of(index),
            Member(node.number, node.incarnation),
            tuple(Member(voter, 1) for voter in self.setup.voters[index]),
            tuple(Member(learner, 1) for learner in self.setup.learners[index]),
            purpose=self.setup.purpose_of(index),
            quorums=(self.setup.quorums[index] if self.setup.quorums else None) or msgspec.UNSET,
        )

    def crash(self, number: int) -> bool:
        """The process ends, without a word; False if there is none."""
        return self._stop(number, "crashed", lambda disk: disk.crash())

    def power_loss(self, number: int) -> bool:
        """The machine loses its power, and with it whatever was not flushed."""
        return self._stop(number, "power lost", lambda disk: disk.power_loss())

    def wipe(self, number: int) -> None:
        """Somebody puts in an empty disk; what starts on it is another incarnation."""
        self._stop(number, "crashed", lambda disk: disk.crash())
        node = self.nodes[number]
        node.disk.wipe()
        node.incarnation += 1
        if self.trace is not None:
            self.trace.add(self.now, number, "wiped")

    def _stop(self, number: int, what: str, tell_disk: Callable[[SimDisk], None]) -> bool:
        node = self.nodes[number]
        tell_disk(node.disk)
        was_up = node.host is not None
        node.host = None
        if was_up:
            self.crashes_count += 1
        if self.trace is not None:
            self.trace.add(self.now, number, what)
        return was_up

    def refused(self, number: int, peer: int) -> None:
        """A node looks where another one was, and nobody listens there: its process has ended."""
        node = self.nodes[number]
        is_idle = node.host is None or node.paused_until > self.now
        if is_idle or self.nodes[peer].host is not None or self.network.links[number, peer].cuts:
            return
        assert node.host is not None
        if self.trace is not None:
            self.trace.add(self.now, number, "refused", peer=peer)
        node.host.at(node.clock.local(self.now))
        node.host.suspect(peer, ended=True)
        self._turned(node)

    def pause(self, number: int, seconds: float) -> None:
        """The process stands still; the world goes on."""
        node = self.nodes[number]
        if node.host is not None:
            node.paused_until = max(node.paused_until, self.now + seconds)
            if self.trace is not None:
                self.trace.add(self.now, number, "paused", text=f"for {seconds:.3f}s")

    def hosted(self, number: int, partition: int) -> Hosted | None:
        host = self.nodes[number].host
        return host.hosted.get(self.partitions[partition]) if host is not None else None

    def leaders(self, partition: int) -> list[int]:
        """Nodes that believe to lead."""
        found = []
        for number in self.setup.holders[partition]:
            hosted = self.hosted(number, partition)
            if hosted is not None and hosted.replica.role.name == "leader":
                found.append(number)
        return found

    # --- turns of a host ---

    def _turned(self, node: SimNode) -> None:
        """A host has had its turn: when does it want the next one?"""
        host = node.host
        if host is None:
            return
        if host.stopped is not None:
            if self.trace is not None:
                self.trace.add(self.now, node.number, "failed", text=host.stopped)
            self.crash(node.number)
            self.on_stop(node.number)
            return
        deadline = host.deadline()
        if deadline is None:
            return
        at = max(node.clock.world(deadline), self.now)
        if at < node.wake_at:
            node.wake_at = at
            self._pushes += 1
            heappush(self._heap, (at, self._pushes, self._wake, (node, at, node.lives)))

    def _wake(self, timer: tuple[SimNode, float, int]) -> None:
        node, at, life = timer
        if node.host is None or node.lives != life or at != node.wake_at:
            return
        node.wake_at = NEVER
        if node.paused_until > self.now:
            node.wake_at = at = node.paused_until
            self._pushes += 1
            heappush(self._heap, (at, self._pushes, self._wake, (node, at, life)))
            return
        deadline = node.host.deadline()
        if deadline is not None:
            local = node.clock.local(self.now)
            # Converting there and back may round below the deadline, by less than a nanosecond.
            if local >= deadline - 1e-9:
                node.host.tick(max(deadline, local))
            self._turned(node)

    def clock_changed(self, number: int) -> None:
        """A clock was set: whatever was planned by it is due at another time."""
        node = self.nodes[number]
        node.wake_at = NEVER
        self._turned(node)

    def _disk_finished(self, job: tuple[int, Callable[[], None]]) -> None:
        number, finish = job
        node = self.nodes[number]
        if node.paused_until > self.now and node.host is not None:
            self.after(node.paused_until - self.now, self._disk_finished, job)
            return
        if node.host is not None:
            node.host.at(node.clock.local(self.now))
        finish()
        self._turned(node)

    # --- messages ---

    def _send(self, node: SimNode, life: int, target: int, parcel: Parcel) -> None:
        if node.lives == life and node.host is not None:
            self.post(node.number, target, node.translated(parcel))

    def post(self, source: int, target: int, parcel: Parcel) -> None:
        """A message begins its journey."""
        self._messages_count += 1
        number = self._messages_count
        if parcel.frames:
            self.sent_bytes += sum([frame.size for frame in parcel.frames])
        self.sent_bytes += len(parcel.chunk)
        letter = Letter(number, source, target, parcel)
        trace = self.trace
        if trace is not None and parcel.partition is not None:
            index = self._numbers[parcel.partition]
            text = tell(parcel.message) + (f" +{len(parcel.frames)} frames" if parcel.frames else "")
            trace.add(self.now, source, "sent", partition=index, text=text, message=number, peer=target)
        if self.setup.hold and parcel.partition is not None:
            self.held[number] = letter
            return
        journeys = self.network.journeys(source, target, letter)
        if not journeys:
            self.lost(letter)
        for delay, copy in journeys:
            self._pushes += 1
            heappush(self._heap, (self.now + delay, self._pushes, self._deliver, copy))

    @property
    def messages_count(self) -> int:
        return self._messages_count

    def lost(self, letter: Letter) -> None:
        partition = letter.parcel.partition
        if self.trace is not None and partition is not None:
            self.trace.add(
                self.now,
                letter.source,
                "lost",
                partition=self._numbers[partition],
                message=letter.number,
                peer=letter.target,
            )

    def _deliver(self, letter: Letter) -> None:
        node = self.nodes.get(letter.target)
        if node is None:
            self.strangers[letter.target](letter)
            return
        host = node.host
        if host is None:
            self.lost(letter)
            return
        if node.paused_until > self.now:
            self.after(node.paused_until - self.now, self._deliver, letter)
            return
        self._receiving = letter.number
        host.receive(node.clock.local(self.now), node.translated(letter.parcel))
        self._receiving = 0
        self._turned(node)

    def deliver(self, number: int) -> None:
        """A held message arrives now."""
        self._deliver(self.held.pop(number))

    def drop(self, number: int) -> None:
        self.lost(self.held.pop(number))

    def duplicate(self, number: int) -> int:
        """A held message is there twice; the copy has a number of its own."""
        self._messages_count += 1
        letter = self.held[number]
        copy = Letter(self._messages_count, letter.source, letter.target, letter.parcel)
        self.held[copy.number] = copy
        return copy.number

    # --- clients ---

    def propose(
        self, number: int, partition: int, payloads: list[bytes], answer: Callable[[Reply], None]
    ) -> bool:
        """Hand entries to a node; False if it is down (or stands still, which clients cannot tell)."""

        def ask(host: Host, now: float) -> None:
            host.propose(now, self.partitions[partition], payloads, answer)

        return self.ask(number, partition, ask)

    def read(
        self,
        number: int,
        partition: int,
        level: ReadLevel,
        answer: Callable[[Reply], None],
        offset: int = -1,
    ) -> bool:
        """Ask a node up to where one may read there; False if it is down."""

        def ask(host: Host, now: float) -> None:
            host.read(now, self.partitions[partition], level, answer, offset=offset)

        return self.ask(number, partition, ask)

    def query(
        self,
        number: int,
        partition: int,
        ask: Callable[[Any, Any], Any],
        answer: Callable[[Reply, Any], None],
        *,
        consistency: Consistency,
        offset: int = -1,
    ) -> bool:
        """Let `ask` look at what a node has built from a log; False if it is down."""

        def look(host: Host, now: float) -> None:
            query(host, now, self.partitions[partition], ask, answer, consistency=consistency, offset=offset)

        return self.ask(number, partition, look)

    def command(
        self, number: int, partition: int, make: Callable[[int], Command], answer: Callable[[Reply], None]
    ) -> bool:
        """Order something of a node's replica: `make` gets the request's number; False if it is down."""

        def ask(host: Host, now: float) -> None:
            host.command(now, self.partitions[partition], make, answer)

        return self.ask(number, partition, ask)

    def change(
        self,
        number: int,
        partition: int,
        answer: Callable[[Reply], None],
        *,
        ensemble: tuple[Member, ...],
        learners: tuple[Member, ...] = (),
        quorums: Quorums | None = None,
    ) -> bool:
        """Command a node to change who counts; False if it is down."""

        def make(request: int) -> Command:
            return ChangeMembership(request, ensemble, learners, quorums=quorums)

        return self.command(number, partition, make, answer)

    def turn(self, number: int, partition: int, turned: Turned, voters: tuple[Member, ...]) -> None:
        """Let a node's copy be of another generation, if it can be now."""
        which = self.partitions[partition]
        self.ask(number, partition, lambda host, now: host.turn(now, which, turned, voters=voters))

    def transfer(self, number: int, partition: int, answer: Callable[[Reply], None], *, to: int) -> bool:
        """Command a node to let another lead; False if it is down."""
        return self.command(number, partition, lambda request: TransferLeadership(request, to), answer)

    def ask(self, number: int, partition: int, ask: Callable[[Host, float], object]) -> bool:
        """A node that stands still finds it when it goes on, if it is still the same process."""
        node = self.nodes[number]
        host = node.host
        if host is None or self.partitions[partition] not in host.hosted:
            return False

        def resumed(life: int) -> None:
            if life == node.lives:
                self.ask(number, partition, ask)

        if node.paused_until > self.now:
            self.after(node.paused_until - self.now, resumed, node.lives)
            return True
        ask(host, node.clock.local(self.now))
        self._turned(node)
        return True

    def fetch(
        self,
        number: int,
        partition: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[Frame], int, int], None],
    ) -> bool:
        """Read settled entries of a node; `done` gets them, its commit, and the offset below its log."""
        node = self.nodes[number]
        hosted = self.hosted(number, partition)
        if node.host is None or hosted is None or node.paused_until > self.now:
            return False
        base = hosted.replica.log.base.offset

        def answered(frames: list[Frame], commit: int) -> None:
            # What a snapshot took the place of meanwhile may be left out: nobody knows any more if it was void.
            removed = min(hosted.replica.log.base.offset, frames[0].header.offset - 1) if frames else base
            done(frames, commit, max(base, removed))

        node.host.fetch(node.clock.local(self.now), self.partitions[partition], offset, bytes_max, answered)
        self._turned(node)
        return True

    def applied(self, number: int, partition: int) -> int:
        """Up to where a node can show what is settled, at this moment; -1 if it shows nothing."""
        hosted = self.hosted(number, partition)
        return min(hosted.commit, hosted.applied.offset) if hosted is not None else -1

    def check(self, number: int, partition: int, done: Callable[[list[Span]], None]) -> bool:
        """Let a node verify every byte of a partition."""
        node = self.nodes[number]
        if node.host is None:
            return False
        node.host.check(node.clock.local(self.now), self.partitions[partition], done)
        self._turned(node)
        return True

    def expire(self, number: int, partition: int, to: EntryId, checksum: int) -> bool:
        """Let a node know that nothing up to that entry has to be kept; False if it is down."""

        def tell_host(host: Host, now: float) -> None:
            host.expire(now, self.partitions[partition], to, checksum)

        return self.ask(number, partition, tell_host)

    # --- what hosts tell whoever watches ---

    def stepped(self, now: float, node: int, hosted: Hosted, event: Any, ordered: list[Any]) -> None:
        self.steps_count += 1
        index = self._numbers[hosted.partition]
        if self.trace is not None:
            self.trace.stepped(self.now, node, index, hosted.replica, event, ordered, self._receiving)
        if self.watch is not None:
            self.watch.stepped(node, index, hosted.replica, event, ordered)
        if hosted.applied is not self._applied.get((node, index)):
            self._applied[node, index] = hosted.applied
            self.on_applied(node, index, hosted.applied.offset, hosted.tally.counts)

    def reported(self, now: float, node: int, partition: Partition, report: Report) -> None:
        self.reports.append((node, report))
        if self.trace is not None:
            index = self._numbers[partition]
            self.trace.add(self.now, node, "reported", partition=index, text=tell(report))
