"""The audit of `quorate bench spark`: three copies of a log, as three nodes would have them, read and compared.

The log is what producers of small records make of a busy partition: batches of 64 KiB, each of some 600 records of
100 bytes, with a producer's id and sequences. All copies lie in the page cache, so that no disk is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

from quorate.batch import encode_records, with_producer
from quorate.bench.report import Claim, Figure, Say, at_least
from quorate.bench.spark_stage import session_of
from quorate.bench.turns import seconds
from quorate.bench.wal_store import OpenStore
from quorate.core.entry import Member
from quorate.host.replicas import ReplicaRecord, encode_record
from quorate.machine.producers import SEQUENCES_COUNT

if TYPE_CHECKING:
    from quorate.audit.places import Place

CORES = 2
COPIES = 3
BATCH_BYTES = 64 << 10
VALUE_BYTES = 100
RECORD_BYTES = VALUE_BYTES + 10
"""With what stands around each value."""
PRODUCER = 1
IN_FLIGHT = 256
SIZE_MIB, QUICK_SIZE_MIB = 1024, 512
REPETITIONS = 5
NOTE = "audit: three copies of a log of 64 KiB batches of 100-byte records; bytes of all copies, by core"


def audits(place: Path, quick: bool, say: Say) -> tuple[list[Figure], list[Claim]]:
    from quorate.spark.audit import audit

    size_mib = QUICK_SIZE_MIB if quick else SIZE_MIB
    say(f"writing {COPIES} copies of a log of {size_mib} MiB")
    places = _written(place, size_mib << 20)
    rates = []
    with session_of(CORES) as session:

        def once() -> int:
            report = audit(session, places, lambda _: None)
            assert not report.findings, report.findings
            return report.bytes_count

        say("auditing, to warm up")
        once()
        for repetition in range(1, REPETITIONS + 1):
            say(f"auditing, {repetition} of {REPETITIONS}")
            read: list[int] = []
            took_s = seconds(lambda read=read: read.append(once()))  # type: ignore[misc]
            rates.append(read[0] / 1e6 / took_s / CORES)
    return [], [at_least(200, "audit: log read and compared by a core", "MB/s", rates)]


def _written(place: Path, size: int) -> list[Place]:
    from quorate.audit.places import places_in

    member = Member(1, 1)
    state = encode_record(ReplicaRecord("raft", member, (member,)))
    first = place / "n1"
    first.mkdir()
    with OpenStore(first, partitions=1, state=state) as opened:
        opened.append(_batches(size // BATCH_BYTES), in_flight=IN_FLIGHT)
        opened.rest()
        (log,) = opened.logs.values()
        opened.store.note_commit(log.partition, log.offset - 1)
        opened.append([encode_records([(None, bytes(VALUE_BYTES))])], in_flight=1)
        opened.rest()
    for number in range(2, COPIES + 1):
        copytree(first, place / f"n{number}")
    return [found for directory in sorted(place.iterdir()) for found in places_in(directory)]


def _batches(count: int) -> Iterator[bytearray]:
    records_count = BATCH_BYTES // RECORD_BYTES
    batch = encode_records(
        [(None, bytes([number % 251]) * VALUE_BYTES) for number in range(records_count)], timestamp=1000
    )
    for number in range(count):
        sequence = number * records_count % SEQUENCES_COUNT
        yield with_producer(batch, producer_id=PRODUCER, epoch=0, sequence=sequence)
