"""A node: the host with sockets, threads and a clock around it. It drives, and decides nothing.

Everything happens in turns of one event loop: a chunk of letters, a finished disk job, a deadline. Each is
told to the host, and what the host ordered in that turn goes out together at its end, one write a
connection. Flushes run in the disk's threads and come back as turns.

A node stops when it is asked to (`stop`), and it fails, for good, when its host says that a flush failed
(rule 5), its directory is gone, or an assertion of ours does not hold: nothing is acknowledged after that.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import msgspec

from quorate.core import commands, effects, events
from quorate.core.entry import TOPIC_ID_BYTES, Member, Partition, Span
from quorate.host import Host, Hosted, Parcel
from quorate.host.parcel import Leads
from quorate.host.producing import Answer
from quorate.host.querying import Consistency, query
from quorate.machine.metadata import METADATA
from quorate.node.codec import SPOKEN
from quorate.node.compaction import Compacting
from quorate.node.config import Address, NodeConfig
from quorate.node.directory import read_identity, store_directory
from quorate.node.doors import Door
from quorate.node.ended import Ended
from quorate.node.ensembles import Ensembles
from quorate.node.entrance import Guests, made_entrances
from quorate.node.farewell import hand_over, make_way
from quorate.node.following import Following
from quorate.node.fullness import Fullness
from quorate.node.health import Unsettled
from quorate.node.held_back import HeldBack
from quorate.node.homes import Homes
from quorate.node.http import watched_over_http
from quorate.node.leaders import Leaders
from quorate.node.logs import ERROR, WARNING, Sink, Speaker, to_stderr
from quorate.node.metadata import MetadataClient
from quorate.node.metrics import Metrics, TimedDisk
from quorate.node.overseers import Overseers
from quorate.node.peers import Peers
from quorate.node.reports import Reports
from quorate.node.requests import NatsStatus, Status
from quorate.node.retention import Retention, start_of, wall_ms
from quorate.node.scrubber import Scrubber
from quorate.node.statuses import status_of
from quorate.node.tls import Security
from quorate.node.transactions import Coordinating
from quorate.node.turning import Turning
from quorate.node.unwanted import Unwanted
from quorate.node.vanished import Vanished
from quorate.storage.disk import Buffer
from quorate.storage.frame import Frame
from quorate.storage.real_disk import SWITCH_INTERVAL_S, RealDisk
from quorate.storage.shared import LANE_JOURNAL
from quorate.tables import Level

WAKE_SLACK_S = 0.01
"""How late a deadline may be noticed that came nearer; the protocols' times are far longer."""


class NodeFailed(Exception):
    """The node had to stop: what it has not acknowledged is unknown."""


class Over(Protocol):
    """Told when a node's life ends."""

    def __call__(self, *, failed: bool) -> None: ...


class Connection(Protocol):
    """A connection that gathers what it has to say until a turn ends."""

    def flush(self) -> None: ...


class Node(Speaker):
    """One node's life in this process: made, run once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        log: Sink | None = None,
        guests: Guests | None = None,
    ) -> None:
        """`guests` serves the connections that do not carry letters; `log` hears what people should know. Raises
        BadConfig for files of TLS."""
        super().__init__(config.node, log if log is not None else to_stderr(config.log_format))
        self.config = config
        self.security = Security(config.all_listeners())
        self.incarnation = 0
        self.disk = 0
        self.host: Host
        self.metadata: MetadataClient
        """Only where the configuration names voters for the metadata group."""
        self.doors: list[Door] = []
        self.receiving_bytes = 0
        """Of letters that have not arrived wholly, over all of them."""
        self.unwanted = Unwanted(self)
        self.metrics = Metrics()
        self.nats_status: Callable[[], NatsStatus | None] = lambda: None
        self._forgiven: set[str] = set()
        """Packages of others, whose tasks may fail."""
        self._guests = guests
        self._watchers: list[Callable[[Partition], None]] = []
        self._told_when_over: list[Over] = []
        self._rng = Random()
        self._peers = Peers(
            config.cluster,
            config.node,
            config.peer_addresses(),
            rng=self._rng,
            log=self.log,
            tls=self.security.to_nodes,
        )
        self._leaders = Leaders(self)
        self.overseers = Overseers(self, self._rng)
        self.homes = Homes(self)
        self.following = Following(self)
        self.compacting = Compacting(self)
        self.fullness = Fullness(self)
        self.unsettled = Unsettled(self)
        self.held_back = HeldBack(self)
        self.began = time.monotonic()
        self._unflushed: list[Connection] = []
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._why_failed = ""
        self._ended = Ended(self)
        self._leaving: asyncio.Task[None] | None = None
        """Asked to stop, and saying goodbye."""
        self._over = False
        """Nothing may be told to the host any more."""
        self._now = 0.0
        """When this turn began."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf

    # --- life ---

    async def run(self) -> None:
        """Serve until stopped; raises NodeFailed, and what opening a directory raises."""
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._loop.set_exception_handler(self._on_loop_error)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        identity = read_identity(self.config)
        self.incarnation, self.disk = identity.incarnation, identity.disk
        self._peers.introduce(
            incarnation=self.incarnation,
            disk=self.disk,
            refused=self.unwanted.refused,
            nobody_there=self._ended.heard,
        )
        with RealDisk(store_directory(self.config), self._deliver, self._watch) as disk:
            disk.lock_now()
            self.host = Host(
                self.id,
                TimedDisk(disk, LANE_JOURNAL, self.metrics.flush),
                self.config.host_settings(),
                send=self._send,
                rng=self._rng,
                observer=Reports(self),
                settled=self._settled,
                led=self._led,
                suspected=self._suspected,
                # Only where leaders give out timestamps is the time of day looked at.
                wall_ms=wall_ms if self.config.raft.ceiling_s else lambda: 0,
            )
            if self.config.voters:
                self.metadata = MetadataClient(self, self._rng)
            self.host.open(time.monotonic())
            self.begin_turn()
            for partition, record in self.config.replicas(self.incarnation):
                self.host.add(time.monotonic(), partition, record)
            self.end_turn()
            try:
                async with watched_over_http(self):
                    await self._serve()
            finally:
                self._over = True
                self.host.store.close()
        if self._why_failed:
            raise NodeFailed(self._why_failed)

    async def _serve(self) -> None:
        entrances = made_entrances(self, self._guests)
        try:
            for entrance in entrances:
                await entrance.open()
            places = ", ".join(str(entrance.address) for entrance in entrances)
            self.log(f"listening on {places}, {len(self.host.hosted)} replicas, {self.config.directory}")
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(entrance.run()) for entrance in entrances]
                running.append(tasks.create_task(self._peers.run(), name="peers"))
                always = (Scrubber(self), Vanished(self), self.unsettled, self.held_back)
                running += [tasks.create_task(work.run(), name=type(work).__name__) for work in always]
                if self.config.voters:
                    works = (self.metadata, self._leaders, Ensembles(self), Turning(self), self.overseers)
                    more = (*works, Retention(self), self.compacting, Coordinating(self))
                    running += [tasks.create_task(work.run(), name=type(work).__name__) for work in more]
                    running.append(tasks.create_task(make_way(self), name="making way"))
                await self._stopped.wait()
                for task in running:
                    task.cancel()
        finally:
            for entrance in entrances:
                entrance.close()
            for door in tuple(self.doors):
                door.abort("this node stops") if self._why_failed else door.close("this node stops")
            for tell in self._told_when_over:
                tell(failed=bool(self._why_failed))
            if self._timer is not None:
                self._timer.cancel()
            if self._leaving is not None:
                self._leaving.cancel()

    def stop(self) -> None:
        """Hand over what is led, let go of everything, and let `run` return; asked twice, at once.

        What is not acknowledged yet stays unknown.
        """
        if self._leaving is not None or self._over:
            self._stopped.set()
        else:
            self._leaving = self._loop.create_task(hand_over(self))
            self._leaving.add_done_callback(lambda _: self._stopped.set())

    def fail(self, why: str) -> None:
        """Acknowledge nothing any more, and end."""
        if not self._why_failed:
            self._why_failed = why
            self._over = True
            self.log(f"fatal: {why}", level=ERROR)
            for door in tuple(self.doors):
                door.abort("this node failed")
            for tell in self._told_when_over:
                tell(failed=True)
            self._stopped.set()

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception nobody caught, in a callback of ours: our bug, and no state can be trusted."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError) and not self._is_forgiven(error):
            self.log_bug(error)
            self.fail(f"{type(error).__name__}: {error}")
        else:
            self.log(f"{context.get('message')}: {error}", level=WARNING)

    def forgive(self, package: str) -> None:
        """What fails in a task of this package's own is told, and puts no state of this node in doubt."""
        self._forgiven.add(package)

    def _is_forgiven(self, error: Exception) -> bool:
        began = error.__traceback__
        return (
            began is not None and began.tb_frame.f_globals.get("__name__", "").split(".")[0] in self._forgiven
        )

    # --- turns ---

    def begin_turn(self) -> None:
        """What a connection brings from here on, until `end_turn`, came at once."""
        if not self._over:
            self._now = time.monotonic()
            self.host.begin_turn(self._now)

    def end_turn(self) -> None:
        """The host has been told all of it: let out what it orders."""
        if not self._over:
            self.host.end_turn(self._let_out)
            self._rest()

    def _rest(self) -> None:
        # Deadlines mostly move away, so they are not looked up every time: while something happens, the
        # timer is just never further off than WAKE_SLACK_S.
        soon = self._now + WAKE_SLACK_S
        if self._timer_due > soon:
            self._wake_at(soon)

    def _let_out(self) -> None:
        if self.host.stopped is not None:
            self.fail(self.host.stopped)
        if self._over:
            return
        self._peers.flush()
        if self._unflushed:
            for connection in self._unflushed:
                connection.flush()
            self._unflushed.clear()

    def unflushed(self, connection: Connection) -> None:
        """Something was put on this connection, to go out with the turn's end."""
        if connection not in self._unflushed:
            self._unflushed.append(connection)

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        # The loop's timers count milliseconds: never wake before it is time.
        delay_s = math.ceil(max(0.0, due - time.monotonic()) * 1000) / 1000
        self._timer = self._loop.call_later(delay_s, self._woke)

    def _woke(self) -> None:
        self._timer = None
        self._timer_due = math.inf
        if self._over:
            return
        due = self.host.deadline()
        self._now = time.monotonic()
        if due is not None and due <= self._now:
            self.host.tick(self._now)
            self._let_out()
            due = self.host.deadline()
        if due is not None:
            self._wake_at(due)

    def _deliver(self, completion: Callable[[], None]) -> None:
        """Called in a disk thread: a job is done."""
        self._loop.call_soon_threadsafe(self._completed, completion)

    def _watch(self, fd: int, completion: Callable[[], None]) -> Callable[[], object]:
        """Call this when that descriptor is readable: jobs are done. Returns what ends that."""
        self._loop.add_reader(fd, self._completed, completion)
        return lambda: self._loop.remove_reader(fd)

    def _completed(self, completion: Callable[[], None]) -> None:
        if self._over:
            completion()  # It is told to nobody; but whoever watches must stop being told of it.
        else:
            self._now = time.monotonic()
            self.host.at(self._now)
            completion()
            self._let_out()
            self._rest()
            self.fullness.look(self._now)

    # --- what connections bring, between `begin_turn` and `end_turn` ---

    def receive(self, parcel: Parcel) -> None:
        if type(parcel.message) is Leads:
            self._leaders.heard(parcel.sender.node, parcel.message)
        elif self._over:
            return
        elif parcel.to_overseer:
            self.overseers.receive(parcel)
        else:
            hosted = self.host.hosted.get(parcel.partition) if parcel.partition is not None else None
            if hosted is None or type(parcel.message) in SPOKEN[hosted.record.protocol]:
                self.host.receive(self._now, parcel)

    def propose(
        self,
        partition: Partition,
        payloads: Sequence[Buffer],
        answer: Answer,
        flushed: Callable[[int], None] | None = None,
    ) -> None:
        if not self._over:
            record = self.host.hosted[partition].record
            how = record.protocol if record.purpose != "metadata" else record.purpose
            timed = self.metrics.timed(how, self._now, answer)
            self.host.propose(self._now, partition, payloads, timed, flushed)

    def fetch(
        self, partition: Partition, offset: int, bytes_max: int, done: Callable[[list[Frame], int], None]
    ) -> None:
        if not self._over:
            self.host.fetch(time.monotonic(), partition, offset, bytes_max, done)

    def check(self, partition: Partition, done: Callable[[list[Span]], None]) -> None:
        """Verify every byte of a replica's log."""
        if not self._over:
            self.begin_turn()
            self.host.check(self._now, partition, done)
            self.end_turn()

    def read(
        self, partition: Partition, level: events.ReadLevel, answer: Answer, *, offset: int = -1
    ) -> None:
        if not self._over:
            self.host.read(time.monotonic(), partition, level, answer, offset=offset)

    def change(
        self,
        partition: Partition,
        answer: Answer,
        *,
        ensemble: tuple[Member, ...],
        learners: tuple[Member, ...] = (),
        version: int = 0,
    ) -> None:
        if not self._over:
            now = time.monotonic()
            self.host.change(now, partition, answer, ensemble=ensemble, learners=learners, version=version)

    def command(self, partition: Partition, make: Callable[[int], commands.Command], answer: Answer) -> None:
        if not self._over:
            self.host.command(time.monotonic(), partition, make, answer)

    def query(
        self,
        partition: Partition,
        ask: Callable[[Any, Level], Any],
        answer: Callable[[effects.Reply, Any], None],
        *,
        consistency: Consistency,
        offset: int = -1,
    ) -> None:
        """Look at what the machine of a replica here has made of its log."""
        if not self._over:
            now = time.monotonic()
            query(self.host, now, partition, ask, answer, consistency=consistency, offset=offset)

    def transfer(self, partition: Partition, answer: Answer, *, to: int) -> None:
        if not self._over:
            self.host.transfer(time.monotonic(), partition, answer, to=to)

    # --- what is known of a partition ---

    def holds(self, partition: Partition) -> bool:
        return partition in self.host.hosted

    def is_elsewhere(self, partition: Partition) -> bool:
        """Other nodes hold it."""
        if not self.config.voters:
            return False
        return partition not in self.host.hosted and partition[:TOPIC_ID_BYTES] in self.metadata.image.by_id

    def log_base(self, partition: Partition) -> int:
        """The offset just below the first one that readers see: what need not be kept may still be there."""
        base: int = self.host.hosted[partition].replica.log.base.offset
        start = start_of(self, partition)
        return base if start is None else max(base, start.first - 1)

    def commit(self, partition: Partition) -> int:
        return self.host.hosted[partition].commit

    def head(self, partition: Partition) -> int:
        """The last offset in the log, settled or not."""
        head: int = self.host.hosted[partition].replica.log.head.offset
        return head

    def is_leader(self, partition: Partition) -> bool:
        hosted = self.host.hosted.get(partition)
        return hosted is not None and hosted.replica.role.name == "leader"

    def is_settled_leader(self, partition: Partition) -> bool:
        """It leads, and an entry of its own epoch is settled: so it knows everything that was settled before."""
        hosted = self.host.hosted.get(partition)
        return hosted is not None and _leads_at(hosted, hosted.commit)

    def leads_with_all(self, partition: Partition) -> bool:
        """It leads, and its machine has everything that earlier leaders left in the log."""
        hosted = self.host.hosted.get(partition)
        return hosted is not None and _leads_at(hosted, hosted.applied.offset)

    def leader_of(self, partition: Partition) -> tuple[int, int]:
        """(node, epoch); (0, epoch) where no leader is known."""
        return self._leaders.of(partition)

    def says_so(self, node: int, partition: Partition) -> bool:
        """Whether that node says that it leads an overseen partition."""
        return self._leaders.says_so(node, partition)

    def watch_settled(self, callback: Callable[[Partition], None]) -> None:
        """Called whenever a partition has settled more here, or has another leader."""
        self._watchers.append(callback)

    def when_over(self, callback: Over) -> None:
        """Called when the node stops or fails: let go of whatever belongs to it."""
        self._told_when_over.append(callback)

    @property
    def is_leaving(self) -> bool:
        """Asked to stop, or stopped."""
        return self._leaving is not None or self._over

    @property
    def is_over(self) -> bool:
        """Nothing may be told to the host any more."""
        return self._over

    @property
    def peers(self) -> tuple[int, ...]:
        """The other nodes, as far as is known where they are."""
        return self._peers.known

    @property
    def connected(self) -> tuple[int, ...]:
        """Those of them to whom a link is up."""
        return self._peers.connected

    @property
    def links(self) -> Peers:
        return self._peers

    @property
    def heard(self) -> tuple[int, ...]:
        """This node, and those that have said something too lately to be suspected."""
        since = time.monotonic() - self.config.detector.suspect_s
        return (self.id, *(door.peer for door in self.doors if door.peer and door.heard_at >= since))

    @property
    def is_cut_off(self) -> bool:
        """Whether there are other nodes, and none of them was heard lately."""
        return len(self.heard) == 1 and len(self.metadata.image.nodes) > 1

    def know_peer(self, node: int, address: Address) -> None:
        self._peers.know(node, address)

    def forget_peer(self, node: int) -> None:
        self._peers.forget(node)

    def send(self, to: int, parcel: Parcel) -> None:
        """Outside of a turn: at once."""
        self._peers.send(to, parcel)
        self._peers.flush()

    def send_in_turn(self, to: int, parcel: Parcel) -> None:
        """To a node's replica, this node's too."""
        if to == self.id:
            self.receive(parcel)
        else:
            self._peers.send(to, parcel)

    def _send(self, to: int, parcel: Parcel) -> None:
        """Of a replica here. Whoever oversees a partition has its node's number with a minus in front."""
        if to > 0:
            self._peers.send(to, parcel)
        elif to == -self.id:
            self.overseers.receive(parcel)
        else:
            self._peers.send(-to, msgspec.structs.replace(parcel, to_overseer=True))

    # --- following the metadata group ---

    def fail_if_replaced(self) -> bool:
        """Stop for good where this directory is never this node's again, and leave it as it is."""
        why = self.unwanted.why_replaced(self.id, self.incarnation)
        if why:
            self.fail(why)
        return bool(why)

    def _settled(self, hosted: Hosted) -> None:
        if hosted.partition == METADATA:
            self.metadata.applied(hosted.applied.offset)
            self.overseers.look()
            self.following.noticed()
        for watcher in self._watchers:
            watcher(hosted.partition)

    def _suspected(self, peer: int) -> None:
        self.overseers.suspect(peer)

    def _led(self, hosted: Hosted) -> None:
        if self.config.voters:
            self.metadata.leaders_version += 1
            self._leaders.look()
        self._ended.led()
        if hosted.partition == METADATA:
            self.overseers.look()
        for watcher in self._watchers:
            watcher(hosted.partition)

    def let_go(self, partition: Partition) -> None:
        """Hold that replica no more."""
        self.host.remove(time.monotonic(), partition)
        for watcher in self._watchers:
            watcher(partition)

    def peer_connected(self, door: Door, peer: int) -> None:
        """A peer that connects anew has lost its older connection, whether we have noticed or not."""
        self._peers.heard_of(peer)
        for other in tuple(self.doors):
            if other is not door and other.peer == peer:
                other.abort("closed by a newer connection")

    def status(self) -> Status:
        return status_of(self)


def _leads_at(hosted: Hosted, offset: int) -> bool:
    """Whether the entry there is of the leadership that this replica has."""
    replica = hosted.replica
    return replica.role.name == "leader" and offset >= 0 and replica.log.epoch_at(offset) == replica.epoch
