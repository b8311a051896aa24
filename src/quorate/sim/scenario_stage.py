"""The world of a scenario: nothing happens in it by chance, and nothing that was not asked for.

Messages wait until they are delivered, timers until they are woken, and disks are instant unless their
completions are held. Underneath are the same hosts, stores and simulated disks as in every made-up world, and
the same invariants look at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.batch import encode_records
from quorate.core.entry import EntryId, Header, Kind, NoOp, Partition, Span
from quorate.host import Parcel, Ping
from quorate.host.parcel import unpacked
from quorate.host.replicas import encode_record
from quorate.sim.chance import stream
from quorate.sim.disk import SimDisk, SimDiskSettings
from quorate.sim.invariants import Invariants
from quorate.sim.network import Weather
from quorate.sim.scenario_log import Item
from quorate.sim.scenario_room import host_settings
from quorate.sim.scenario_script import Cast
from quorate.sim.scenario_tell import Narrator, Teller
from quorate.sim.tunables import Tunables
from quorate.sim.world import NEVER, Letter, Setup, SimNode, World
from quorate.storage.frame import FRAME_HEAD_BYTES, FRAME_MAGIC, DamagedFrame, parse_head
from quorate.storage.store import Store

import msgspec

STEP_SECONDS = 0.001
"""How long a message takes while time passes."""
INSTANT = SimDiskSettings(latency_min=0.0, latency_max=0.0)
STILL = Weather(delay_min=0.0, delay_mean=0.0)
EVENTS_MAX = 100_000
"""A story that goes on for longer without any timer never ends."""


class Refused(Exception):
    """A command that cannot be carried out in the world as it is."""


class Account(Invariants):
    """Invariants of a world that did not begin with empty logs."""

    def given(self, headers: tuple[Header, ...]) -> None:
        before = EntryId(0, -1)
        for header in headers:
            entry = (before.epoch, before.offset, header.offset, header.crc, header.control)
            self._entries[0].setdefault((header.epoch, header.last), entry)
            self.leaders[0].setdefault(header.epoch, 0)
            before = header.id


class Stage(World):
    def __init__(self, cast: Cast) -> None:
        tunables = Tunables(weather=STILL, disk=INSTANT, host=host_settings(cast.settings))
        setup = Setup(cast.seed, tunables, voters=(cast.voters,), learners=(cast.learners,), hold=True)
        self.cast = cast
        self.teller = Teller(cast.names, cast.origin, cast.room)
        self.narrator = Narrator(self.teller)
        self.account = Account(1, cast.room.invariants)
        self.holding: set[int] = set()
        """Nodes whose disks complete nothing until they are told to."""
        self.paused: set[int] = set()
        self.broken: set[tuple[int, int]] = set()
        """Links that lose everything."""
        self._jobs: dict[int, list[Callable[[], None]]] = {number: [] for number in setup.nodes}
        super().__init__(setup, watch=self)
        self.on_stop = lambda number: self.narrator.say(f"{self.teller.node(number)} stops: its disk failed")

    def name(self, number: int) -> str:
        return self.teller.node(number)

    # --- the beginning ---

    def begin(self) -> None:
        """Put what is given on the disks, and start everybody."""
        epochs = [item.epoch for items in self.cast.logs.values() for item in items]
        latest = max((*epochs, *self.cast.epochs.values()), default=0)
        for number, node in self.nodes.items():
            if latest:
                self._give(node, self.cast.logs.get(number, ()), self.cast.epochs.get(number, latest))
            self.start(number)
        self.settle()
        self.narrator.take()

    def _give(self, node: SimNode, items: tuple[Item, ...], epoch: int) -> None:
        """Write a log and an epoch as a store itself would have written them."""
        store = Store.open(node.disk, self.tunables.host.store, _Deaf())
        partition = self.partitions[0]
        epoch = max((epoch, *(item.epoch for item in items)))
        record = msgspec.structs.replace(self._record(node, 0), state=self.cast.room.saved_state(epoch))
        store.create(partition, 0, encode_record(record))
        headers = []
        for io, item in enumerate(items, start=1):
            header, payloads = self._entry(item)
            store.append(partition, io, store.seal(partition, (header,), payloads))
            headers.append(header)
        store.pump()
        World.settle(self)
        self.account.given(tuple(headers))
        self.narrator.learn(tuple(headers))
        node.disk.crash()  # Whoever wrote this is gone.

    def _entry(self, item: Item) -> tuple[Header, list[bytes]]:
        """The same bytes on every node that is given this entry."""
        count = item.last - item.first + 1
        if item.control:
            return Header(item.epoch, item.first, kind=Kind.CONTROL, control=NoOp(0)), []
        values = [f"{item.epoch}-{item.first + index + self.cast.origin}" for index in range(count)]
        payload = encode_records([(None, value.encode()) for value in values])
        crc = int.from_bytes(payload[17:21], "big")
        return Header(item.epoch, item.first, count, len(payload), Kind.RECORDS, 0, crc), [payload]

    # --- looking ---

    def up(self, number: int) -> Any:
        """The replica of a node that runs."""
        hosted = self.hosted(number, 0)
        if hosted is None:
            raise Refused(f"{self.name(number)} is down")
        return hosted.replica

    def letters(self, source: int, target: int, called: str | None = None) -> list[Letter]:
        """Messages that wait on a link (0: on any), the oldest first; of one name, if it is given."""
        return [
            letter
            for letter in self.held.values()
            if source in (0, letter.source)
            and target in (0, letter.target)
            and (called is None or is_called(letter, called))
        ]

    # --- what happens between two commands ---

    def settle(self, events_max: int = EVENTS_MAX) -> None:
        """Disks do what they were told to."""
        super().settle(events_max)
        for number in self.nodes:
            hosted = self.hosted(number, 0)
            if hosted is not None:
                self.account.applied(number, 0, hosted.applied.offset, hosted.machine.counts)

    def stepped(self, *arguments: Any) -> None:
        """Both from the hosts (with a time and a Hosted) and, as a watch, from the world."""
        if len(arguments) == 5 and isinstance(arguments[0], int):
            node, index, replica, event, ordered = arguments
            self.narrator.stepped(node, replica, event, ordered)
            self.account.stepped(node, index, replica, event, ordered)
        else:
            super().stepped(*arguments)

    def _make_disk(self, number: int) -> SimDisk:
        return SimDisk(stream(self.setup.seed, "disk", number), self._scheduler(number), INSTANT)

    def _scheduler(self, number: int) -> Callable[[float, Callable[[], None]], None]:
        def schedule(_: float, finish: Callable[[], None]) -> None:
            self.after(0.0, self._disk_finished, (number, finish))

        return schedule

    def _disk_finished(self, job: tuple[int, Callable[[], None]]) -> None:
        number, finish = job
        if number in self.holding or number in self.paused:
            self._jobs[number].append(finish)
        else:
            super()._disk_finished(job)


class _Deaf:
    """Listens to a store that only writes what is given."""

    def persisted(self, partition: Partition, io: int) -> None: ...
    def failed(self, partition: Partition, io: int, reason: str) -> None:
        raise AssertionError(reason)

    def damaged(self, partition: Partition, span: Span) -> None: ...
    def fatal_error(self, reason: str) -> None:
        raise AssertionError(reason)
