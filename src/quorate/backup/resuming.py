"""How far an earlier restore of a topic got: its own log says so, nothing else is believed.

What is there is read and compared with the backup, batch by batch. A restore writes under a producer id of its own
and numbers what it writes, so whoever goes on under that id cannot write twice what was on its way when the earlier
one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quorate.backup.batches import Batch, checked_batches
from quorate.backup.errors import WrongBackup
from quorate.backup.manifest import PartitionSaved
from quorate.backup.outcomes import Uncommitted
from quorate.backup.place import Place
from quorate.batch import is_same_but_for_producer, parse_batch_header
from quorate.client.cluster import LATEST, Cluster
from quorate.client.ranges import Range, batches_between

SEQUENCES_COUNT = 1 << 31


class Standing(NamedTuple):
    """What is there of one partition."""

    producer_id: int = -1
    """-1: nothing yet."""
    sequence: int = 0
    """Of what is to come next."""
    batches: int = 0
    """With records: so many of the backup's are there."""
    bytes_count: int = 0
    moved: int = 0
    """Records whose offset is not the one that they had."""
    first_moved: int = -1


def standing(
    cluster: Cluster,
    topic: str,
    number: int,
    place: Place,
    partition: PartitionSaved,
    uncommitted: Uncommitted,
) -> Standing:
    """Raises WrongBackup where something else is there."""
    end = cluster.offsets(topic, {number: LATEST})[number] or 0
    expected = records_of(place, partition, uncommitted)
    found = Standing()
    for content in batches_between(cluster, Range(topic, number, 0, end), missing_is_error=False):
        header = parse_batch_header(content)
        if header.is_control or (header.producer_id < 0 and not header.record_count):
            continue
        where = f"{topic}/{number}, offset {header.base_offset}"
        if header.producer_id < 0 or found.producer_id not in (-1, header.producer_id):
            raise WrongBackup(
                f"{where}: no restore has written that; give the topic that is restored to another name (--as)"
            )
        sequence = (header.base_sequence + header.offsets_count) % SEQUENCES_COUNT
        found = found._replace(producer_id=header.producer_id, sequence=sequence)
        if not header.record_count:
            continue
        batch = next(expected, None)
        if batch is None or not is_same_but_for_producer(content, batch.plain):
            raise WrongBackup(
                f"{where} is not what this backup holds; give the topic that is restored to another name (--as)"
            )
        found = found._replace(batches=found.batches + 1, bytes_count=found.bytes_count + len(content))
        if header.base_offset != batch.first:
            first = batch.first if found.first_moved < 0 else found.first_moved
            found = found._replace(moved=found.moved + header.record_count, first_moved=first)
    return found


def records_of(place: Place, partition: PartitionSaved, uncommitted: Uncommitted) -> Iterator[Batch]:
    """Batches that are restored, in order; raises Damaged."""
    for file in partition.files:
        for batch in checked_batches(place, file):
            if batch.has_records and not uncommitted.holds(batch):
                yield batch
