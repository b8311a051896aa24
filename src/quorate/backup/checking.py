"""Every byte of a backup, compared with what was written."""

from __future__ import annotations

from collections.abc import Callable

from quorate.backup import snapshot
from quorate.backup.batches import checked_batches
from quorate.backup.errors import BackupError, Damaged
from quorate.backup.manifest import TABLES, Manifest, PartitionSaved
from quorate.backup.place import Place

Went = Callable[[int], None]


def check(place: Place, manifest: Manifest, went: Went = lambda _: None) -> None:
    """Raises the first thing that is wrong."""
    for problem in problems(place, manifest, went):
        raise Damaged(problem)


def problems(place: Place, manifest: Manifest, went: Went = lambda _: None) -> list[str]:
    """All that is wrong, a line each; `went` hears of bytes that were read."""
    found: list[str] = []
    if manifest.kind == TABLES:
        try:
            snapshot.check(place, manifest, went)
        except BackupError as error:
            found.append(str(error))
        return found
    for number, partition in enumerate(manifest.partitions):
        found += _order(f"{place}: {manifest.name}/{number}", partition)
        for file in partition.files:
            try:
                checked_batches(place, file)
            except BackupError as error:
                found.append(str(error))
            went(file.size)
    return found


def _order(where: str, partition: PartitionSaved) -> list[str]:
    """Files and gaps follow each other: what is missing between them is missing from the backup."""
    spans = sorted([(file.first, file.end) for file in partition.files])
    spans = sorted(spans + [(gap.first, gap.end) for gap in partition.gaps])
    at = partition.start
    for first, end in spans:
        if first > at:
            return [f"{where}: nothing is named that holds offsets {at} to {first - 1}"]
        at = max(at, end)
    if at != partition.end:
        return [f"{where}: it ends at offset {at - 1}, and its manifest says {partition.end - 1}"]
    return []
