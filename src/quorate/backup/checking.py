"""Every byte of a backup, compared with what was written."""

from __future__ import annotations

from collections.abc import Callable

from quorate.backup import snapshot
from quorate.backup.batches import Batch, checked_batches
from quorate.backup.errors import BackupError, Damaged
from quorate.backup.manifest import TABLES, Manifest, PartitionSaved
from quorate.backup.outcomes import Outcomes, Uncommitted
from quorate.backup.place import Place

Went = Callable[[int], None]
Saw = Callable[[int, Batch], None]


def check(place: Place, manifest: Manifest, went: Went = lambda _: None) -> list[Uncommitted]:
    """Of a topic, by partition, what is not to be restored. Raises the first thing that is wrong."""
    outcomes = [Outcomes() for _ in manifest.partitions]

    def saw(number: int, batch: Batch) -> None:
        outcomes[number].add(batch, f"{place}: {manifest.name}/{number}")

    for problem in problems(place, manifest, went, saw):
        raise Damaged(problem)
    return [each.uncommitted() for each in outcomes]


def problems(
    place: Place, manifest: Manifest, went: Went = lambda _: None, saw: Saw = lambda _, __: None
) -> list[str]:
    """All that is wrong, a line each; `went` hears of bytes that were read, `saw` of batches, by partition."""
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
                for batch in checked_batches(place, file):
                    saw(number, batch)
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
