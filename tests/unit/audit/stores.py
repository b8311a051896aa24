"""Directories of replicas, made by the store itself, and what each says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from quorate.audit.findings import Finding
from quorate.audit.places import Place
from quorate.audit.replica import Looked
from quorate.audit.segment import Scan
from quorate.batch import TRANSACTIONAL, encode_records, stamp
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, Member, Partition, partition_of
from quorate.core.generation import Generation
from quorate.host.replicas import ReplicaRecord, encode_record
from quorate.machine.markers import Marker, encode_marker
from quorate.storage.segment import directory_of
from quorate.storage.surviving import Survivors
from tests.unit.storage.harness import World

TOPIC = bytes(range(100, 116))
FILLER = partition_of(bytes(range(200, 216)), 0)
ENTRIES_COUNT = 40
VALUE_BYTES = 300
MEMBERS = tuple(Member(node, 1) for node in (1, 2, 3))


class Batch(NamedTuple):
    """One entry to be: its epoch and payload."""

    epoch: int
    payload: bytes


def records(seed: int = 0, *, epoch: int = 1, producer: int = -1, sequence: int = -1) -> Batch:
    value = bytes([seed % 251]) * VALUE_BYTES
    producer_epoch = 0 if producer >= 0 else -1
    payload = encode_records(
        [(None, value)],
        timestamp=1000,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return Batch(epoch, payload)


def keyed() -> list[Batch]:
    """Five keys that are written over and over."""
    return [
        Batch(1, encode_records([(b"k%d" % (n % 5), bytes([n]) * VALUE_BYTES)], timestamp=1000))
        for n in range(ENTRIES_COUNT)
    ]


def transactional(producer: int, sequence: int) -> Batch:
    payload = encode_records(
        [(None, bytes(VALUE_BYTES))],
        timestamp=1000,
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return Batch(1, payload)


def ended(producer: int, number: int, *, commit: bool) -> Batch:
    return Batch(1, encode_marker(Marker(producer, 0, number, commit), coordinator_epoch=1, now_ms=1000))


def usual(count: int = ENTRIES_COUNT) -> list[Batch]:
    return [records(number) for number in range(count)]


def record(protocol: str = "raft", purpose: str = "topic", *, me: int = 1, state: int = 0) -> bytes:
    return encode_record(ReplicaRecord(protocol, MEMBERS[me - 1], MEMBERS, purpose=purpose, preferred=state))


def number(partition: int) -> Partition:
    return partition_of(TOPIC, partition)


class Made:
    """A store with some logs in it, all settled if nothing else is said, most of them in segments."""

    def __init__(self) -> None:
        self.world = World()
        self.world.open()

    def add(
        self,
        partition: Partition,
        batches: list[Batch],
        *,
        protocol: str = "raft",
        purpose: str = "topic",
        settles: bool = True,
    ) -> None:
        world = self.world
        world.create(partition, record(protocol, purpose))
        for batch in batches:
            self.append(partition, batch, settles=settles)
        world.run()

    def append(self, partition: Partition, batch: Batch, *, settles: bool = True) -> None:
        store = self.world.store
        offset = store.head(partition).offset + 1
        payload = bytes(stamp(batch.payload, offset=offset, epoch=batch.epoch))
        crc = int.from_bytes(payload[17:21], "big")
        header = Header(batch.epoch, offset, 1, len(payload), Kind.RECORDS, 0, crc)
        store.append(partition, self.world.io(partition), store.seal(partition, [header], [payload]))
        if settles:
            store.note_commit(partition, offset)
        self.world.run()

    def save(self, partition: Partition, state: bytes) -> None:
        self.world.save(state, partition)
        self.world.run()

    def save_snapshot(self, partition: Partition, last: EntryId, checksum: int, data: bytes) -> None:
        done: list[Exception | None] = []
        self.world.store.save_snapshot(partition, last, checksum, data, done.append)
        self.world.run()
        assert done == [None]

    def learn_of_damage(self, partition: Partition, edit: Callable[[bytearray], object]) -> None:
        """The first segment is harmed, and the node comes upon it, and knows."""
        files = {name: self.world.disk.content(name) for name in self.world.disk.files()}
        name = f"{directory_of(partition)}/{0:020d}.log"
        content = bytearray(files[name])
        edit(content)
        self.world = World(files={**files, name: bytes(content)})
        self.world.open()
        assert self.world.check(partition)
        self.rest()

    def rest(self) -> None:
        """Write elsewhere until a new generation of the journal begins: then segments hold what was before."""
        shared = self.world.store._shared
        generation = shared.journal.generation
        if FILLER not in self.world.store.partitions():
            self.world.create(FILLER, record())
        while shared.journal.generation < generation + 2:
            self.append(FILLER, records())

    def compact(self, partition: Partition) -> None:
        """A generation of compaction, of which nothing is deleted but what was written over, is put in place."""
        self.rest()
        inner = self.world.store
        middle = inner._logs[partition].segments[1:4]
        last = middle[-1]
        ends = tuple(segment.before.offset for segment in middle)
        generation = Generation(NOWHERE, 0, last.before, last.before_checksum, -1, ends)
        done: list[object] = []
        survivors = Survivors(upto=generation.upto, deleted_upto=-1)
        inner.compactor.prepare(partition, generation, survivors, done.append)
        self.until(done)
        assert inner.compactor.swap(partition, generation) is not None
        self.rest()

    def until(self, done: list[object]) -> None:
        """The disk goes on until something was told."""
        while not done:
            self.world.store.pump(self.world.now)
            assert done or self.world.step()

    def write(self, directory: Path) -> Place:
        self.world.run()
        disk = self.world.disk
        for name in disk.files():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(disk.content(name))
        return Place(directory.name, str(directory))


# ---- what is found ----


def found_in(place: Place) -> list[Finding]:
    """What one directory says of itself."""
    looked = Looked(place)
    found: list[Finding] = []
    for partition, facts in looked.facts.items():
        for stretch in facts.stretches:
            scan = Scan(looked.disk, partition, stretch)
            for _ in scan.entries():
                pass
            found += [
                Finding(place.replica, partition.hex(), each.kind, each.first, each.last, each.detail)
                for each in scan.damage
            ]
        for _ in looked.carried(partition):
            pass
    return sorted(looked.findings + found)


def bare(findings: list[Finding]) -> list[Finding]:
    """Without the words."""
    return [msgspec.structs.replace(each, detail="") for each in findings]
