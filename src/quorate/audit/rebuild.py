"""States built from logs once more: tables and the cluster's image, by each copy, to be compared with others.

A copy starts from its own snapshot, and once more from nothing where its log is all there. At some offsets it says
what it has: equal logs make equal states, and a snapshot is what its log makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec

from quorate.audit.replica import Looked
from quorate.core.entry import NOWHERE, Kind, Partition
from quorate.host.manifest import Manifest
from quorate.host.replicas import MACHINES
from quorate.machine import CannotApply, Machine
from quorate.machine.metadata import METADATA, Metadata
from quorate.machine.table import Tables
from quorate.storage.disk import DiskFailed
from quorate.storage.frame import DamagedFrame, Frame, parse
from quorate.storage.snapshot_file import HEADER_BYTES

PURPOSES = ("tables", "metadata")
"""What is worth building again: of other topics a log's machine says nothing that the log does not."""

Said = tuple[int, str, int]
"""Offset, what it was built from, digest."""


def rebuild(looked: Looked, partition: Partition, offsets: Sequence[int]) -> Iterator[Said]:
    """What the state is at these offsets, as far as this copy gets to them."""
    facts = looked.facts[partition]
    kept = looked.snapshot_of(partition)
    if kept is not None:
        data = looked.disk.read_now(kept.file, HEADER_BYTES, kept.snapshot.size)
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        machine = MACHINES[facts.purpose]()
        machine.restore(manifest.machine)
        yield from _run(looked, partition, machine, manifest.last.offset, offsets, "its snapshot")
    if facts.base == NOWHERE and not facts.is_compacted:
        yield from _run(looked, partition, MACHINES[facts.purpose](), -1, offsets, "its log")


def image_of(looked: Looked) -> Metadata | None:
    """The cluster's image as this node knows it; None where it has none."""
    facts = looked.facts.get(METADATA)
    if facts is None:
        return None
    machine: Machine = Metadata()
    start = -1
    kept = looked.snapshot_of(METADATA)
    if kept is not None:
        data = looked.disk.read_now(kept.file, HEADER_BYTES, kept.snapshot.size)
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        machine.restore(manifest.machine)
        start = manifest.last.offset
    for _ in _run(looked, METADATA, machine, start, (), ""):
        pass
    assert isinstance(machine, Metadata)
    return machine


def _run(
    looked: Looked,
    partition: Partition,
    machine: Machine,
    start: int,
    offsets: Sequence[int],
    built_from: str,
) -> Iterator[Said]:
    facts = looked.facts[partition]
    wanted = sorted({offset for offset in offsets if start <= offset <= facts.commit})
    if wanted and wanted[0] == start:
        yield wanted.pop(0), built_from, _digest(machine)
    if not wanted and offsets:
        return
    upto = wanted[-1] if wanted else facts.commit
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
        if wanted and start == wanted[0]:
            yield wanted.pop(0), built_from, _digest(machine)


def frames_of(looked: Looked, partition: Partition) -> Iterator[Frame]:
    """Every entry that can be read, in order, with its payload."""
    for stretch in sorted(looked.facts[partition].stretches, key=lambda each: each.before.offset):
        position = stretch.position
        try:
            content = looked.disk.read_now(stretch.file, position, stretch.end - position)
            at = 0
            while position + at < stretch.end:
                frame, at = parse(content, at, partition)
                yield frame
        except (DamagedFrame, DiskFailed):
            continue
    findings, looked.findings = looked.findings, []
    try:
        yield from looked.carried(partition)
    finally:
        looked.findings = findings


def _digest(machine: Machine) -> int:
    return machine.digest() if isinstance(machine, Tables) else crc32(machine.snapshot())
