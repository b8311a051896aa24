"""A node without its sockets, threads and clock: replicas, one store, and the orders between them.

Whatever happens (a parcel, a proposal, a completed flush, a deadline) becomes an event of one replica and
goes into one queue; `_drain` steps replicas and has executed what they order (executing.py), until nothing is left,
and then lets the store start its next round. So one turn's appends of all replicas share one flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

import msgspec

from quorate.batch import BadBatch, BatchHeader
from quorate.core import commands, effects, events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import EntryId, Member, Partition, Quorums, Span
from quorate.core.generation import Generation
from quorate.host.compacting import Compacting
from quorate.host.contract import NOTHING, Context, HostSettings, Observer, headers_of
from quorate.host.detector import Detector
from quorate.host.executing import Executor
from quorate.host.feeder import Feeder
from quorate.host.fetching import fetch
from quorate.host.flushes import Flushes
from quorate.host.pacing import Pacer
from quorate.host.parcel import Parcel, Ping, unpacked
from quorate.host.producing import Answer
from quorate.host.replicas import Hosted, Reader, ReplicaRecord, as_recovered, decode_record, encode_record
from quorate.host.sending import Sender
from quorate.host.snapshots import Snapshots
from quorate.host.turning import settled_only, turn
from quorate.machine import CannotApply
from quorate.machine.markers import Marker, marker_of
from quorate.machine.producers import Numbered, numbered
from quorate.machine.turning import Turned
from quorate.storage.disk import Buffer, Disk
from quorate.storage.frame import Frame
from quorate.storage.store import Store


class Host:
    """All replicas of one node."""

    def __init__(
        self,
        node: int,
        disk: Disk,
        settings: HostSettings,
        *,
        send: Callable[[int, Parcel], None],
        rng: Random,
        observer: Observer | None = None,
        settled: Callable[[Hosted], None] = lambda _: None,
        led: Callable[[Hosted], None] = lambda _: None,
        suspected: Callable[[int], None] = lambda _: None,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`settled` is called when a replica has settled more, `led` when it knows another leader, `suspected` with
        a node from which nothing was heard for too long.

        `wall_ms` is the time of day, for the timestamps that leaders give out (YB-14).
        """
        self.node = node
        self.hosted: dict[Partition, Hosted] = {}
        self.stopped: str | None = None
        """Why this node must stop: nothing is acknowledged any more (rule 5)."""
        self.store: Store
        self._feeder: Feeder
        self._snapshots: Snapshots
        self._executor: Executor
        self._compacting: Compacting
        self._disk = disk
        self._settings = settings
        self._send = send
        self._rng = rng
        self._observer = observer
        self._settled = settled
        self._led = led
        self._suspected = suspected
        self._wall_ms = wall_ms
        self._boot = rng.getrandbits(63)
        self._detector = Detector(settings.detector)
        self.pacer = Pacer(lambda: self._now)
        """What goes to copies that do not count yet."""
        self._queue: deque[tuple[Hosted, events.Event, Context]] = deque()
        self._draining = False
        self._deadlines: list[tuple[float, int, Hosted]] = []
        self._pushes = 0
        self._now = 0.0

    # --- life ---

    def open(self, now: float) -> None:
        """Read the disk, and start every replica found on it whose record can be read."""
        self._now = now
        self.store = Store.open(self._disk, self._settings.store, self)
        self._feeder = Feeder(self.store, self._settled, self._cannot_apply)
        self._flushes = Flushes()
        self._snapshots = Snapshots(self.store, self._feeder, self._settled, self._tell_now)
        self._executor = Executor(
            self.store,
            self._feeder,
            self._snapshots,
            Sender(self.store, self._send, self._snapshots.is_whole, self.pacer),
            self.pacer,
            self._flushes,
            settled=self._settled,
            tell=self._tell_now,
            report=self._report,
        )
        self._compacting = Compacting(self.store, self._tell, self._tell_first)
        for partition in self.store.partitions():
            log = self.store.recovered(partition)
            if log.state is not None and not log.state_damaged:
                self._start(partition, decode_record(log.state))
        self._drain()

    def add(self, now: float, partition: Partition, record: ReplicaRecord) -> None:
        """Hold this replica, if it is not held yet.

        Where its log is on the disk and its record is not readable, it may have voted and promised what it
        no longer knows: it comes back as another incarnation, which does not count (rule 4).
        """
        self._now = now
        if partition in self.hosted:
            return
        if partition in self.store.partitions():
            another = Member(record.me.node, self._rng.getrandbits(63))
            record = msgspec.structs.replace(record, me=another)
            self.store.save_state(partition, 0, encode_record(record))
        else:
            self.store.create(partition, 0, encode_record(record))
        self._start(partition, record, is_made=True)
        self._drain()

    def remove(self, now: float, partition: Partition) -> None:
        """Hold this replica no more, and remove its files: its topic was deleted, or it left the ensemble."""
        self._now = now
        hosted = self.hosted.pop(partition)
        self._flushes.forget(partition)
        self.pacer.forget(partition)
        hosted.end("the replica was removed")
        self.store.delete(partition)
        hosted.answer_all()
        self._watch_peers()
        self._drain()

    def turn(self, now: float, partition: Partition, turned: Turned, *, voters: tuple[Member, ...]) -> bool:
        """Let this replica's protocol end, and that one begin above the barrier (017); False: not yet, ask again.

        `voters` are those whose copies count then.
        """
        self._now = now
        hosted = self.hosted[partition]
        if hosted.record.turn >= turned.generation:
            return True
        start = turn(self.store, hosted, turned, voters)
        if start is None:
            return False
        record, recovered = start
        self._flushes.forget(partition)
        self.pacer.forget(partition)
        hosted.end("another protocol has begun")
        following = self._host(partition, record)
        following.take_over(hosted)
        hosted.answer_all()
        self._tell(following, events.Started(recovered))
        self._led(following)
        self._drain()
        return True

    def _host(self, partition: Partition, record: ReplicaRecord) -> Hosted:
        tuning = self._settings.tuning(protocol=record.protocol, purpose=record.purpose)
        hosted = self.hosted[partition] = Hosted(partition, record, tuning, self._rng)
        return hosted

    def _start(self, partition: Partition, record: ReplicaRecord, *, is_made: bool = False) -> None:
        hosted = self._host(partition, record)
        log = self.store.recovered(partition)
        data = self.store.snapshot_now(partition)
        snapshot = None
        if data is not None:
            hosted.restore(data)
            snapshot = hosted.snapshot_of(len(data))
        recovered = as_recovered(log, record, snapshot)
        if is_made and record.turn:
            recovered = settled_only(self.store, partition, recovered)
        self._tell(hosted, events.Started(recovered))

    # --- what comes in ---

    def receive(self, now: float, parcel: Parcel) -> None:
        self._now = now
        if parcel.partition is None:
            if self._detector.pinged(now, parcel.sender.node, parcel.message.boot):
                self.suspect(parcel.sender.node)
            return
        self._detector.heard(now, parcel.sender.node)
        hosted = self.hosted.get(parcel.partition)
        if hosted is None or parcel.generation != hosted.record.turn:
            return
        message = unpacked(parcel)
        if message is None:
            return  # The bytes are not what the message says: as if it had been lost.
        context = NOTHING
        if parcel.frames or parcel.chunk:
            context = Context(chunk=parcel.chunk)
            for frame in parcel.frames:
                context.frames[frame.header.offset] = frame
        self._tell(hosted, events.Received(parcel.sender, message), context)
        self._drain()

    def propose(
        self,
        now: float,
        partition: Partition,
        payloads: Sequence[Buffer],
        answer: Answer,
        flushed: Callable[[int], None] | None = None,
    ) -> None:
        """Append these batches, verified by the caller's side of the wire, as one proposal.

        A batch with a producer id is a proposal of its own. `flushed` hears when it is on the disk here, if this
        replica still leads then; `answer`, what became of it, in any case.
        """
        self._now = now
        hosted = self.hosted[partition]
        hosted.requests += 1
        request = hosted.requests
        try:
            headers, produced = headers_of(payloads, hosted)
        except CannotApply as error:
            answer(Reply(request, Outcome.REFUSED, leader=hosted.replica.leader, why=str(error)))
            return
        context = Context(payloads=payloads, flushed=flushed)
        if produced is not None and hosted.desk is not None:
            context.numbered = _numbers_of(produced, payloads[0]) if len(headers) == 1 else None
            if context.numbered is None:
                answer(Reply(request, Outcome.OUT_OF_ORDER, leader=hosted.replica.leader))
                return
        no_room = self._why_no_room(payloads)
        if no_room is not None:
            answer(Reply(request, no_room, leader=hosted.replica.leader))
            return
        hosted.answers[request] = answer
        self._tell(hosted, events.Proposed(request, headers, self._wall_ms()), context)
        self._drain()

    def _why_no_room(self, payloads: Sequence[Buffer]) -> Outcome | None:
        if self.store.waiting_bytes > self._settings.waiting_bytes_max:
            return Outcome.BUSY
        return None if self.store.room_for(sum(map(len, payloads))) else Outcome.FULL

    def read(
        self, now: float, partition: Partition, level: events.ReadLevel, answer: Answer, *, offset: int = -1
    ) -> None:
        """Up to where a client may read here; see `ReadLevel`. The answer's `offset` is applied here by then."""
        self._now = now
        hosted = self.hosted[partition]

        def when_applied(reply: Reply) -> None:
            if reply.outcome is not Outcome.SETTLED or hosted.applied.offset >= reply.offset:
                answer(reply)
                return
            # What must be read back first is not there yet; perhaps it is damaged.
            wanted = offset if level is events.ReadLevel.AT_OFFSET else reply.offset
            deadline = self._now + hosted.replica.config.tuning.read_wait_s
            hosted.readers.append(Reader(wanted, deadline, reply, answer))
            hosted.answer_readers(self._now)
            self._schedule(hosted)

        request = hosted.expect(when_applied)
        self._tell(hosted, events.ReadAsked(request, level, offset))
        self._drain()

    def command(
        self, now: float, partition: Partition, make: Callable[[int], commands.Command], answer: Answer
    ) -> None:
        """Order something of a replica, by the number that `make` gets; answered when it is done, or why not."""
        self._now = now
        hosted = self.hosted[partition]

        def joined(reply: Reply) -> None:
            if reply.outcome is Outcome.SETTLED and hosted.halted is not None:
                self._feeder.resume(hosted)
            answer(reply)

        hosted.requests += 1
        command = make(hosted.requests)
        hosted.answers[command.request] = joined if type(command) is commands.JoinAgain else answer
        self._tell(hosted, events.Commanded(command))
        self._drain()

    def change(
        self,
        now: float,
        partition: Partition,
        answer: Answer,
        *,
        ensemble: tuple[Member, ...],
        learners: tuple[Member, ...] = (),
        version: int = 0,
        quorums: Quorums | None = None,
    ) -> None:
        """Let the ensemble be this one; answered when it is, or why not."""

        def make(request: int) -> commands.Command:
            return commands.ChangeMembership(request, ensemble, learners, version, quorums)

        self.command(now, partition, make, answer)

    def transfer(self, now: float, partition: Partition, answer: Answer, *, to: int) -> None:
        """Let that node lead; answered when it does, or why not."""
        self.command(now, partition, lambda request: commands.TransferLeadership(request, to), answer)

    def expire(self, now: float, partition: Partition, to: EntryId, checksum: int) -> None:
        """Nothing up to this entry has to be kept any longer.

        Damage that reaches over it goes as a whole, where nobody could say what is to be where in the file.
        """
        self._now = now
        hosted = self.hosted[partition]
        if hosted.started and to.offset <= hosted.replica.log.base.offset:
            return
        fault = self.store.fault_over(partition, to)
        if fault is not None:
            to, checksum = fault.last, fault.last_checksum
        self._tell(hosted, events.Expired(to, checksum))
        self._drain()

    def prepare_compaction(
        self,
        now: float,
        partition: Partition,
        generation: Generation,
        opened: Callable[[Buffer], Buffer],
        done: Callable[[int | None], None],
    ) -> str:
        """Make what is left after a generation ready, beside what there is. `done` hears its checksum, which is the
        same on every replica, or None; or else this says why it cannot be made yet. To be asked again."""
        self._now = now
        hosted = self.hosted[partition]
        self._tell(hosted, events.CompactionWanted(generation.upto))
        self._drain()
        why_not = self._compacting.why_not(hosted, generation)
        if not why_not:
            self._compacting.prepare(hosted, generation, opened, done)
            self.store.pump(now)
        return why_not

    def compact(self, now: float, partition: Partition, generation: Generation) -> bool:
        """Every replica has prepared that generation, and the same: let go of what there was. Whether that is so
        here; to be told again as long as it is not."""
        self._now = now
        hosted = self.hosted[partition]
        self._tell(hosted, events.CompactionAgreed(generation.upto))
        self._drain()
        if not hosted.started:
            return False
        if hosted.replica.log.compacted >= generation.upto:
            return True
        return self._compacting.swap(hosted, generation) or self._compacting.refill(hosted, generation)

    def fetch(
        self,
        now: float,
        partition: Partition,
        offset: int,
        bytes_max: int,
        done: Callable[[list[Frame], int], None],
    ) -> None:
        """Settled entries from the one that holds `offset` on, and up to where this replica has settled.

        Void ones are left out, but the answer is not empty because of them: see fetching.py.
        """
        self._now = now
        fetch(self.store, self.hosted[partition], offset, bytes_max, done)
        self.store.pump(self._now)

    def check(self, now: float, partition: Partition, done: Callable[[list[Span]], None]) -> None:
        """Verify every byte of a partition; what is found faulty is repaired from peers."""
        self._now = now

        def snapshot_too(spans: list[Span]) -> None:
            if partition in self.hosted:  # It may have gone meanwhile.
                self._snapshots.check(self.hosted[partition])
            done(spans)

        self.store.check(partition, snapshot_too)
        self.store.pump(now)

    def deadline(self) -> float | None:
        """When `tick` wants to be called."""
        heap = self._deadlines
        while heap and heap[0][2].scheduled != heap[0][0]:
            heappop(heap)
        due = heap[0][0] if heap else None
        for other in (self._detector.deadline, self.store.deadline(), self.pacer.deadline):
            if other is not None and (due is None or other < due):
                due = other
        return due

    def tick(self, now: float) -> None:
        self._now = now
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            place, _, hosted = heappop(heap)
            if hosted.scheduled != place:
                continue
            hosted.scheduled = None
            hosted.answer_readers(now)
            due = hosted.replica.deadline()
            if due is not None and due <= now:
                self._tell(hosted, events.TimePassed())
            else:
                self._schedule(hosted)
        ping, suspected = self._detector.tick(now)
        for peer in ping:
            self._send(peer, Parcel(None, Member(self.node, 0), Ping(self._boot)))
        for peer in suspected:
            self.suspect(peer)
        self.pacer.go_on()
        self._drain()
        self.store.tick(now)

    def count(self, now: float, partition: Partition, ensemble: tuple[Member, ...]) -> None:
        """Of a partition's copies these count, also where they lag: nothing for them is held up."""
        self._now = now
        hosted = self.hosted[partition]
        if hosted.replica.counted != ensemble:
            self._tell(hosted, events.Counted(ensemble))
            self._drain()

    def pace(self, now: float, rate: int) -> None:
        """Send so many bytes a second, of all replicas, to copies that do not count yet; below 0: as many as go."""
        self._now = now
        self.pacer.set_rate(rate)
        self._drain()

    def _watch_peers(self) -> None:
        """Who shares a replica with us has changed."""
        peers = {peer for hosted in self.hosted.values() for peer in hosted.peers}
        self._detector.watch(self._now, tuple(sorted(peers)))

    def suspect(self, peer: int, *, ended: bool = False) -> None:
        """Nothing was heard from that node for too long, or it is in another life now, or its process has ended."""
        for hosted in self.hosted.values():
            if peer in hosted.replica.peers:
                self._tell(hosted, events.Suspected(peer, ended))
        self._suspected(peer)
        self._drain()

    # --- what the store says ---

    def at(self, now: float) -> None:
        """The time it is: whoever drives the disk says so before each completion, which ends up below."""
        self._now = now

    def persisted(self, partition: Partition, io: int) -> None:
        hosted = self.hosted[partition]
        self._snapshots.persisted(hosted, io)
        if io:
            self._tell(hosted, events.Persisted(io))
            self._drain()
            self._flushes.look(hosted)
        if hosted.applied.offset < hosted.commit or hosted.undo is not None:
            self._feeder.feed(hosted)  # A repair may have been what it waited for.

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        if not io:  # Not even its birth was possible: whoever runs this node has to look.
            self.stopped = reason
            return
        hosted = self.hosted[partition]
        self._snapshots.failed(hosted, io)
        self._tell(hosted, events.Failed(io, reason, self.store.head(partition)))
        self._compacting.failed(hosted)
        self._drain()

    def damaged(self, partition: Partition, span: Span) -> None:
        if partition in self.hosted:
            self._tell(self.hosted[partition], events.Damaged(span))
            self._drain()

    def fatal(self, reason: str) -> None:
        self.stopped = reason

    # --- the turn ---

    def begin_turn(self, now: float) -> None:
        """Several things have happened at once: what is told until `end_turn` shares one flush."""
        assert not self._draining
        self._now = now
        self._draining = True

    def end_turn(self, let_out: Callable[[], None] = lambda: None) -> None:
        """`let_out` sends what the turn ordered, before our own round: others' flushes run beside it."""
        self._draining = False
        self._work_off()
        let_out()
        self.store.pump(self._now)

    def _tell(self, hosted: Hosted, event: events.Event, context: Context = NOTHING) -> None:
        self._queue.append((hosted, event, context))

    def _tell_now(self, hosted: Hosted, event: events.Event, context: Context = NOTHING) -> None:
        """Also from completions of the disk; within a turn it waits for the turn's end."""
        self._tell(hosted, event, context)
        self._drain()

    def _tell_first(self, hosted: Hosted, event: events.Event) -> None:
        """Before all that waits to be told: the store has changed already."""
        self._queue.appendleft((hosted, event, NOTHING))
        self._drain()

    def _drain(self) -> None:
        if not self._draining:
            self._work_off()
            self.store.pump(self._now)

    def _work_off(self) -> None:
        self._draining = True
        queue = self._queue
        gathering: Hosted | None = None
        """Whose proposals are taken one after the other, to be sent together."""
        try:
            while queue and self.stopped is None:
                hosted, event, context = queue.popleft()
                if hosted.gone:
                    continue
                if context.numbered is not None and not hosted.is_next(event, context.numbered):
                    if gathering is not hosted:
                        continue
                    event, context = events.Gathered(), NOTHING
                gathering = None
                if type(event) is events.Proposed and queue and _follows(queue[0], hosted):
                    event = events.Proposed(event.request, event.headers, event.wall_ms, more=True)
                    gathering = hosted
                ordered = hosted.replica.step(self._now, event)
                hosted.started = True
                if self._observer is not None:
                    self._observer.stepped(self._now, self.node, hosted, event, ordered)
                self._executor.execute(hosted, ordered, context)
                if hosted.undo is not None:
                    self._feeder.feed(hosted)
                self._schedule(hosted)
                replica = hosted.replica
                if replica.leader != hosted.leader:
                    hosted.leader = replica.leader
                    self._led(hosted)
                if replica.peers is not hosted.peers:
                    hosted.peers = replica.peers
                    self._watch_peers()
        finally:
            self._draining = False

    def _schedule(self, hosted: Hosted) -> None:
        """A deadline that moved away keeps its old place: it comes up early once, and is looked at then."""
        due = hosted.deadline()
        if due is not None and (hosted.scheduled is None or due < hosted.scheduled):
            hosted.scheduled = due
            self._pushes += 1
            heappush(self._deadlines, (due, self._pushes, hosted))

    # --- what people hear ---

    def _report(self, hosted: Hosted, report: effects.Report) -> None:
        if self._observer is not None:
            self._observer.reported(self._now, self.node, hosted.partition, report)

    def _cannot_apply(self, hosted: Hosted, offset: int, reason: str) -> None:
        """Rooms that know of it act; a person has to hear of it in any case."""
        if events.ApplyFailed in hosted.replica.handlers:
            self._tell_now(hosted, events.ApplyFailed(offset, reason))
        else:
            why = f"offset {offset} could not be applied here, nor anything behind it: {reason}"
            self._report(hosted, effects.Report(why, member=hosted.record.me))


def _numbers_of(produced: BatchHeader, payload: Buffer) -> Numbered | Marker | None:
    """A batch's place among those of its producer; None where it makes no sense."""
    if not produced.is_control:
        return numbered(produced)
    try:
        return marker_of(payload)
    except BadBatch:
        return None


def _follows(told: tuple[Hosted, events.Event, Context], hosted: Hosted) -> bool:
    return told[0] is hosted and type(told[1]) is events.Proposed
