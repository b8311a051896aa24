"""A topic into a place: all that is settled when it begins, or all that is new since the last time.

Batches are fetched as any reader fetches them, compared with their checksums, and written as they came. A manifest
is written whenever a data file is there, so that whatever ends this, little is lost, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep, time
from typing import NamedTuple

from quorate.backup import manifest as manifests
from quorate.backup.errors import Damaged, Stopped, WrongBackup
from quorate.backup.manifest import (
    FILE_BYTES_MAX,
    FORMAT,
    TOPIC,
    DataFile,
    Gap,
    Manifest,
    PartitionSaved,
    batches_name,
    hashed,
)
from quorate.backup.pace import Progress, Throttle, in_bits
from quorate.backup.place import Place
from quorate.backup.source import Source
from quorate.batch import parse_batch_header
from quorate.client.cluster import EARLIEST, LATEST, Cluster
from quorate.client.errors import ClientError
from quorate.client.ranges import Range, batches_between

INTERRUPTED = "stopped: what is saved so far stands; the same command goes on from there"

IsStopped = Callable[[], bool]


class Saved(NamedTuple):
    manifest: Manifest
    bytes_count: int
    """Of what is new."""
    records: int
    lost: list[tuple[int, Gap]]
    """By partition: what was removed from the topic between the last time and this one."""


def save_topic(
    place: Place,
    cluster: Cluster,
    source: Source,
    *,
    rate: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    is_stopped: IsStopped = lambda: False,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Saved:
    """Raises Stopped, BackupError and ClientError; what was saved until then is there in any case."""
    cluster.expect(source.name, source.id)
    numbers = range(source.partitions)
    starts = cluster.offsets(source.name, dict.fromkeys(numbers, EARLIEST))
    ends = cluster.offsets(source.name, dict.fromkeys(numbers, LATEST))
    before = expect_same(place, source, TOPIC)
    if before is not None:
        _expect_whole(place, before)
    old = before.partitions if before is not None else ()
    parts = []
    for number in numbers:
        known = old[number] if number < len(old) else None
        part = _Part(place, source.name, number, known, starts[number] or 0, ends[number] or 0)
        part.file_bytes_max = file_bytes_max
        parts.append(part)
    saving = _Saving(place, source, before, parts, cluster)
    saving.run(Throttle(rate, monotonic()), Progress(source.name, tell), is_stopped)
    return saving.saved()


def expect_same(place: Place, source: Source, kind: str) -> Manifest | None:
    """The backup that this one is to be added to, or begin one; raises WrongBackup.

    Once it is known that there is something to be saved: a first try that fails before that leaves nothing.
    """
    before = manifests.newest_or_none(place, source.name)
    if before is None:
        manifests.begin(place, source.name)
    elif before.id != source.id.hex() or before.kind != kind:
        raise WrongBackup(
            f"{place}: the backup of {source.name} there is of another one that had this name "
            f"(id {before.id}, now {source.id.hex()}); choose another place"
        )
    else:
        manifests.has_begun(place, source.name)
    return before


def _expect_whole(place: Place, before: Manifest) -> None:
    if gone := manifests.missing(place, before):
        raise Damaged(
            f"{place}: {gone[0]} is not there any more ({len(gone)} of {len(before.files)} files are missing): "
            f"nothing is added to a backup that is not whole; choose another place"
        )


def pause(throttle: Throttle, bytes_count: int, is_stopped: IsStopped) -> None:
    """As long as the rate asks for."""
    for pause_s in in_bits(throttle.pause_s(monotonic(), bytes_count)):
        if not is_stopped():
            sleep(pause_s)


class _Part:
    """One partition, and how far it is."""

    def __init__(
        self, place: Place, topic: str, number: int, known: PartitionSaved | None, start: int, end: int
    ) -> None:
        self._place = place
        self._topic = topic
        self._number = number
        self.file_bytes_max = FILE_BYTES_MAX
        self.start = start if known is None else known.start
        self.position = start if known is None else known.end
        """Everything below is in a file, or in `_open`, or gone."""
        self.first, self.end = self.position, end
        self.files: list[DataFile] = [] if known is None else list(known.files)
        self.gaps: list[Gap] = [] if known is None else list(known.gaps)
        self.new_gaps: list[Gap] = []
        self.new_files: list[DataFile] = []
        self._open: list[memoryview] = []
        self._open_bytes = 0
        if end < self.position:
            raise WrongBackup(
                f"{topic}/{number} ends at offset {end}, and {self.position} are saved already: this is not "
                f"the topic that was saved, or it has lost something; choose another place"
            )

    def add(self, batch: memoryview) -> bool:
        """Whether a file was written."""
        header = parse_batch_header(batch)
        is_full = bool(self._open) and self._open_bytes + len(batch) > self.file_bytes_max
        if is_full:
            self.close()
        self._skip_to(header.base_offset)
        self._open.append(batch)
        self._open_bytes += len(batch)
        self.position = header.base_offset + header.offsets_count
        return is_full

    def finish(self) -> None:
        self.close()
        self._skip_to(self.end)

    def _skip_to(self, offset: int) -> None:
        if offset > self.position:
            gap = Gap(self.position, offset)
            self.gaps.append(gap)
            self.new_gaps.append(gap)
            self.position = offset

    def close(self) -> None:
        """What is open becomes a file."""
        if not self._open:
            return
        headers = [parse_batch_header(batch) for batch in self._open]
        content = b"".join(self._open)
        first, last = headers[0], headers[-1]
        name = batches_name(self._topic, self._number, first.base_offset)
        self._place.write(name, content)
        records = sum(header.record_count for header in headers if not header.is_control)
        end = last.base_offset + last.offsets_count
        made = DataFile(name, len(content), hashed(content), first.base_offset, end, len(headers), records)
        self.files.append(made)
        self.new_files.append(made)
        self._open, self._open_bytes = [], 0

    def saved(self) -> PartitionSaved:
        assert not self._open, "a manifest names files"
        return PartitionSaved(self.start, self.position, tuple(self.files), tuple(self.gaps))


class _Saving:
    def __init__(
        self, place: Place, source: Source, before: Manifest | None, parts: list[_Part], cluster: Cluster
    ) -> None:
        self._place = place
        self._source = source
        self._parts = parts
        self._cluster = cluster
        self._number = before.number if before is not None else 0
        self._manifest = before

    def run(self, throttle: Throttle, progress: Progress, is_stopped: IsStopped) -> None:
        try:
            for number in range(len(self._parts)):
                self._save(number, throttle, progress, is_stopped)
        except (Stopped, ClientError):
            self._write(complete=False)
            raise
        self._write(complete=True)

    def _save(self, number: int, throttle: Throttle, progress: Progress, is_stopped: IsStopped) -> None:
        part = self._parts[number]
        wanted = Range(self._source.name, number, part.position, part.end)
        whole = sum(each.end - each.first for each in self._parts)
        for batch in batches_between(self._cluster, wanted, missing_is_error=False):
            if is_stopped():
                raise Stopped(INTERRUPTED)
            if part.add(batch):
                self._write(complete=False)
            done = sum(each.position - each.first for each in self._parts)
            progress.went(len(batch), done=done, whole=whole)
            pause(throttle, len(batch), is_stopped)
        part.finish()

    def _write(self, *, complete: bool) -> None:
        for part in self._parts:
            part.close()
        source = self._source
        self._number += 1
        self._manifest = Manifest(
            FORMAT,
            TOPIC,
            source.name,
            source.id.hex(),
            source.cluster,
            self._number,
            round(time() * 1000),
            source.replication,
            source.replicas,
            source.config,
            complete,
            tuple(part.saved() for part in self._parts),
        )
        manifests.write(self._place, self._manifest)

    def saved(self) -> Saved:
        assert self._manifest is not None
        new = [file for part in self._parts for file in part.new_files]
        lost = [(number, gap) for number, part in enumerate(self._parts) for gap in part.new_gaps]
        return Saved(self._manifest, sum(file.size for file in new), sum(file.records for file in new), lost)
