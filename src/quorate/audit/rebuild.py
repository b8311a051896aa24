"""States built from logs once more: tables, homes, and the cluster's image, by each copy, and compared with others.

A copy starts from its own snapshot, and once more from nothing where its log is all there. At some offsets it says
what it has: equal logs make equal states, and a snapshot is what its log makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec

from quorate.audit.replica import Looked
from quorate.audit.segment import Stretch
from quorate.core.entry import NOWHERE, Kind, Partition
from quorate.host.manifest import Manifest
from quorate.host.replicas import MACHINES
from quorate.machine import CannotApply, Machine
from quorate.machine.metadata import METADATA, Metadata
from quorate.machine.table import Tables
from quorate.machine.transactions import Transactions
from quorate.storage.disk import DiskFailed
from quorate.storage.frame import DamagedFrame, Frame, parse
from quorate.storage.snapshot_file import HEADER_BYTES

PURPOSES = ("tables", "metadata", "groups", "transactions")
"""What is worth building again: of topics a log's machine says nothing that the log does not."""

Said = tuple[int, str, int]
"""Offset, what it was built from, digest."""
Decision = tuple[int, int, bool]
"""A producer, the number of its transaction, and whether it is to be committed."""


def rebuild(looked: Looked, partition: Partition, offsets: Sequence[int]) -> Iterator[Said]:
    """What the state is at these offsets, as far as this copy gets to them."""
    facts = looked.facts[partition]
    if facts.snapshot >= 0:
        machine, start = _begun(looked, partition)
        yield from _said(looked, partition, machine, start, offsets, "its snapshot")
    if _is_all_there(looked, partition):
        yield from _said(looked, partition, MACHINES[facts.purpose](), -1, offsets, "its log")


def image_of(looked: Looked) -> Metadata | None:
    """The cluster's image as this node knows it; None where it has none."""
    facts = looked.facts.get(METADATA)
    if facts is None:
        return None
    machine, start = _begun(looked, METADATA)
    for _ in _settled(looked, METADATA, machine, start, facts.commit):
        pass
    assert isinstance(machine, Metadata)
    return machine


def decisions(looked: Looked, partition: Partition) -> Iterator[Decision]:
    """What a home has decided, as far back as this copy goes."""
    machine, start = Transactions(), -1
    if not _is_all_there(looked, partition):
        begun, start = _begun(looked, partition)
        assert isinstance(begun, Transactions)
        machine = begun
    told: set[Decision] = set()
    for _ in _settled(looked, partition, machine, start, looked.facts[partition].commit):
        ending = {(producer_id, each.number, each.commit) for producer_id, each in machine.endings()}
        yield from sorted(ending - told)
        told = ending


def _is_all_there(looked: Looked, partition: Partition) -> bool:
    facts = looked.facts[partition]
    return facts.base == NOWHERE and not facts.is_compacted


def _begun(looked: Looked, partition: Partition) -> tuple[Machine, int]:
    """A machine as the copy's snapshot has it, and the last offset in that; without one, as machines begin."""
    machine = MACHINES["metadata" if partition == METADATA else looked.facts[partition].purpose]()
    kept = looked.snapshot_of(partition)
    if kept is None:
        return machine, -1
    data = looked.disk.read_now(kept.file, HEADER_BYTES, kept.snapshot.size)
    manifest = msgspec.msgpack.decode(data, type=Manifest)
    machine.restore(manifest.machine)
    return machine, manifest.last.offset


def _said(
    looked: Looked,
    partition: Partition,
    machine: Machine,
    start: int,
    offsets: Sequence[int],
    built_from: str,
) -> Iterator[Said]:
    wanted = {offset for offset in offsets if start <= offset <= looked.facts[partition].commit}
    if start in wanted:
        yield start, built_from, _digest(machine)
    if not wanted - {start}:
        return
    for offset in _settled(looked, partition, machine, start, max(wanted)):
        if offset in wanted:
            yield offset, built_from, _digest(machine)


def _settled(looked: Looked, partition: Partition, machine: Machine, start: int, upto: int) -> Iterator[int]:
    """Settle what lies behind `start`, as far as it can be read; the last offset of each entry, when it is done."""
    facts = looked.facts[partition]
    for frame in frames_of(looked, partition):
        header = frame.header
        if header.last <= start:
            continue
        if header.offset != start + 1 or header.last > upto:
            return  # Damage, which others tell of.
        try:
            if not (header.kind == Kind.RECORDS and facts.is_void(header.offset)):
                machine.settle(header, frame.checksum, frame.payload)
        except CannotApply:
            return
        start = header.last
        yield start


def frames_of(looked: Looked, partition: Partition) -> Iterator[Frame]:
    """Every entry that can be read, in order, with its payload."""
    for stretch in sorted(looked.facts[partition].stretches, key=lambda each: each.before.offset):
        yield from _chained(looked, partition, stretch)
    findings, looked.findings = looked.findings, []
    try:
        yield from looked.carried(partition)
    finally:
        looked.findings = findings


def _chained(looked: Looked, partition: Partition, stretch: Stretch) -> Iterator[Frame]:
    """Of one stretch, as far as its chain goes. What stands behind an entry vouches for it: a stale one may well
    fit what is before it."""
    at, checksum = 0, stretch.before_checksum
    last: Frame | None = None
    try:
        content = looked.disk.read_now(stretch.file, stretch.position, stretch.end - stretch.position)
        while stretch.position + at < stretch.end:
            frame, at = parse(content, at, partition)
            if frame.prev_checksum != checksum:
                return
            if last is not None:
                yield last
            last, checksum = frame, frame.checksum
    except (DamagedFrame, DiskFailed):
        return
    if last is not None and checksum == stretch.last_checksum:
        yield last


def _digest(machine: Machine) -> int:
    return machine.digest() if isinstance(machine, Tables) else crc32(machine.snapshot())
