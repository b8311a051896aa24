"""One node's directory, looked at as its own recovery would, without writing: which logs, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from quorate.audit.disk import ReadingDisk
from quorate.audit.findings import Finding
from quorate.audit.places import Place
from quorate.audit.segment import Scan, Stretch
from quorate.core.entry import EntryId, Partition, Rollback, Span
from quorate.host.replicas import ReplicaRecord, decode_record
from quorate.storage.errors import DamagedStore, ForeignDirectory
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, attach
from quorate.storage.generations import Generation
from quorate.storage.log import Log
from quorate.storage.records import OPEN, Fault
from quorate.storage.recovery import Recovery
from quorate.storage.rounds import Rounds
from quorate.storage.segment import (
    FOOTER_BYTES_MAX,
    PARTITIONS,
    DamagedFooter,
    parse_footer,
    partition_named,
)
from quorate.storage.settings import StoreSettings
from quorate.storage.shared import Shared
from quorate.storage.snapshot_file import Kept, file_of, id_of, verify_now
from quorate.storage.snapshots import Snapshots
from quorate.storage.write_back import WriteBack


class LogFacts(msgspec.Struct, frozen=True):
    """What is known of one replica's log before any segment is read."""

    replica: str
    partition: Partition
    protocol: str
    purpose: str
    base: EntryId
    head: EntryId
    commit: int
    snapshot: int
    """The last offset in its newest snapshot that is whole; -1: none."""
    stretches: tuple[Stretch, ...]
    voids: tuple[tuple[int, int], ...]
    """Settled ROLLBACKs: what stands from the first of these offsets up to the second is void."""
    is_compacted: bool = False

    def is_void(self, offset: int) -> bool:
        return any(first <= offset < upto for first, upto in self.voids)


class Looked:
    """A directory as it was at one moment."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.disk = ReadingDisk(Path(place.store))
        self.findings: list[Finding] = []
        self.logs: dict[Partition, Log] = {}
        self.facts: dict[Partition, LogFacts] = {}
        self.sequence = 0
        """Of the newest round: another one later says that the node is at work."""
        self.disk.keep_journals()
        shared = Shared(self.disk, StoreSettings(), _Nobody())
        recovery = Recovery(shared, WriteBack(shared, Rounds(shared)), Snapshots(shared))
        try:
            generation = recovery.replay()
        except (DamagedStore, ForeignDirectory) as damaged:
            self.tell("store", detail=str(damaged))
            return
        self.sequence = generation.last
        self.logs = shared.logs
        self.damaged_rounds = _damaged_rounds(generation)
        for partition, log in shared.logs.items():
            self._look_at(partition, log, recovery.found(partition))
        harmed = {finding.kind for finding in self.findings} & {"lost", "state"}
        if self.damaged_rounds and not harmed:
            self.tell("journal", detail="; ".join(self.damaged_rounds))
        self._strangers({log.directory for log in (*shared.logs.values(), *shared.deleting.values())})

    def tell(
        self, kind: str, log: Log | None = None, first: int = -1, last: int = -1, detail: str = ""
    ) -> None:
        partition = log.partition.hex() if log is not None else ""
        found = Finding(self.place.replica, partition, kind, first, last, detail)
        before = self.findings[-1] if self.findings else None
        if before is not None and first >= 0 and before.goes_on_with(found):
            self.findings[-1] = msgspec.structs.replace(before, last=last)
        else:
            self.findings.append(found)

    def _strangers(self, known: set[str]) -> None:
        for name in self.disk.list_now(PARTITIONS):
            directory = f"{PARTITIONS}/{name}"
            if directory not in known and self.disk.list_now(directory):
                partition = partition_named(name)
                self.findings.append(
                    Finding(
                        self.place.replica, partition.hex() if partition else "", "stranger", detail=directory
                    )
                )

    # --- one log ---

    def _look_at(self, partition: Partition, log: Log, found: list[Fault]) -> None:
        record = self._record(log)
        if log.state_damaged or record is None:
            self.tell("state", log, detail="neither place has the newest")
        for fault in log.faulty:
            if fault not in found:
                self.tell("known", log, fault.before.offset + 1, fault.last.offset)
            elif not self._fills(log, fault):
                where = f"{log.file(fault.segment)} at byte {fault.position}"
                self.tell("lost", log, fault.before.offset + 1, fault.last.offset, where)
        commit = min(log.commit, log.head.offset)
        kept = self._snapshot(log)
        self.facts[partition] = LogFacts(
            self.place.replica,
            partition,
            record.protocol if record is not None else "",
            record.purpose if record is not None else "",
            log.base,
            log.head,
            commit,
            kept.snapshot.last.offset if kept is not None else -1,
            tuple(self._stretches(log, found)),
            tuple(
                (header.control.first, header.offset)
                for header in log.controls
                if type(header.control) is Rollback and header.last <= commit
            ),
            log.compacted_upto >= 0,
        )
        self._footers(log)

    def _record(self, log: Log) -> ReplicaRecord | None:
        try:
            return decode_record(log.state)
        except (msgspec.MsgspecError, KeyError):
            return None

    def _fills(self, log: Log, fault: Fault) -> bool:
        """Whether a segment has what the journal has lost: all of it, in its chain."""
        if fault.segment != fault.next_segment:
            return False
        scan = Scan(self.disk, log.partition, _inside(log, fault))
        for _ in scan.entries():
            pass
        return not scan.damage

    def _stretches(self, log: Log, found: list[Fault]) -> Iterator[Stretch]:
        """What of the log must lie in segments, without what is known to be damaged."""
        flushed = log.flushed()
        spans = [fault for fault in log.faulty if fault not in found or not self._fills(log, fault)]
        filled = [fault for fault in log.faulty if fault not in spans]
        for fault in filled:
            yield _inside(log, fault)
        for segment, following in pairwise((*log.segments, None)):
            assert segment is not None
            if segment.base > flushed.segment:
                return
            at, before, checksum = 0, segment.before, segment.before_checksum
            if segment.base == log.start[0]:
                at, before, checksum = log.start[1], log.base, log.base_checksum
            end = flushed.position, flushed.id, flushed.checksum
            if segment.base < flushed.segment:
                assert following is not None
                end = segment.size, following.before, following.before_checksum
            for fault in sorted((*spans, *filled), key=lambda each: each.before.offset):
                if fault.segment == segment.base and before.offset <= fault.before.offset < end[1].offset:
                    if at < fault.position:
                        yield Stretch(
                            log.file(segment.base),
                            at,
                            before,
                            checksum,
                            fault.position,
                            fault.before,
                            fault.before_checksum,
                        )
                    at = end[0]
                if fault.next_segment == segment.base and fault.last.offset >= before.offset:
                    at, before, checksum = fault.next_position, fault.last, fault.last_checksum
                elif fault.before.offset < segment.base and fault.last.offset >= end[1].offset:
                    at = end[0]
            if at < end[0]:
                yield Stretch(log.file(segment.base), at, before, checksum, *end)

    def _footers(self, log: Log) -> None:
        """Of sealed segments that are flushed; a segment that ends with its frames has none yet."""
        flushed = log.flushed()
        for segment in log.segments[:-1]:
            size = self.disk.size_now(log.file(segment.base)) or 0
            if segment.size == OPEN or segment.base >= flushed.segment or size <= segment.size:
                continue
            content = self.disk.read_now(log.file(segment.base), segment.size, FOOTER_BYTES_MAX)
            try:
                parse_footer(content, log.partition)
            except DamagedFooter as damaged:
                self.tell("footer", log, segment.base, segment.base, f"{log.file(segment.base)}: {damaged}")

    def _snapshot(self, log: Log) -> Kept | None:
        """The newest that is whole. Those that lie beyond the log's ends are of no use to anybody."""
        newest: Kept | None = None
        for last in filter(None, map(id_of, self.disk.list_now(log.directory))):
            if not log.base.offset <= last.offset <= log.head.offset:
                continue
            kept = verify_now(self.disk, log.partition, file_of(log, last), last)
            if kept is None:
                if (
                    self.disk.size_now(file_of(log, last)) is not None
                ):  # Another may just have taken its place.
                    self.tell("snapshot", log, last.offset, last.offset, file_of(log, last))
            elif newest is None or last.offset > newest.snapshot.last.offset:
                newest = kept
        return newest

    def snapshot_of(self, partition: Partition) -> Kept | None:
        findings, self.findings = self.findings, []
        try:
            return self._snapshot(self.logs[partition])
        finally:
            self.findings = findings

    def carried(self, partition: Partition) -> Iterator[Frame]:
        """Entries that the journal holds, in order. Of large ones the payload is in the segment."""
        log = self.logs[partition]
        for frame, segment, position, _, large in log.lazy:
            if not large:
                yield frame
                continue
            header = frame.header
            file = log.file(segment)
            content = b""
            size = self.disk.size_now(file)
            if size is not None:
                content = self.disk.read_now(file, position + FRAME_HEAD_BYTES, header.size)
            try:
                head = self.disk.read_now(file, position, FRAME_HEAD_BYTES) if size is not None else b""
                if head != frame.head:
                    kind = "missing" if size is None else "short" if len(head) < FRAME_HEAD_BYTES else "frame"
                    self.tell(kind, log, header.offset, header.last, f"{file} at byte {position}")
                    continue
                yield attach(frame, content)
            except DamagedFrame as damaged:
                kind = "short" if len(content) < header.size else "payload"
                detail = f"{file} at byte {position}: {damaged.why}"
                self.tell(kind, log, header.offset, header.last, detail)


def _inside(log: Log, fault: Fault) -> Stretch:
    return Stretch(
        log.file(fault.segment),
        fault.position,
        fault.before,
        fault.before_checksum,
        fault.next_position,
        fault.last,
        fault.last_checksum,
    )


def _damaged_rounds(generation: Generation) -> list[str]:
    """Rounds of either place that something later vouches for, and that are not whole. The newest may be torn."""
    told = []
    for name, scan in (("journal", generation.journal), ("marks", generation.marks)):
        first, last = scan.first, scan.last
        damaged = [sequence for sequence in range(first or last, last) if not scan.complete(sequence)]
        if damaged:
            told.append(f"{name}.{generation.letter}: {len(damaged)} of its rounds, from {damaged[0]} on")
        elif not first:
            told.append(f"{name}.{generation.letter}: its first round")
    return told


class _Nobody:
    """An audit orders nothing, and so hears nothing."""

    def persisted(self, partition: Partition, io: int) -> None:
        raise AssertionError("nothing was ordered")

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        raise AssertionError(reason)

    def damaged(self, partition: Partition, span: Span) -> None:
        raise AssertionError(span)

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)
