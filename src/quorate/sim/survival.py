"""What is to survive compaction in a world, against a dictionary: every record that was ever settled, with its key.

Each record says in a header which one it is, as a tombstone has no value that could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import msgspec

from quorate.batch import Record, decode_records, parse_batch_header
from quorate.core.entry import Kind
from quorate.core.generation import Generation
from quorate.core.invariant import Violated
from quorate.sim.faults import COMPACTION, takes_part
from quorate.storage.frame import Frame

TOMBSTONES = 0.15
KEYS_COUNT = 5
NAME = "name"
"""The header that says which record it is: a tombstone has no value that could."""


def keyed(rng: Random, records: Sequence[tuple[None, bytes]]) -> list[Record]:
    """The same records with keys, some of them tombstones."""
    made = []
    for _, value in records:
        key = None if rng.random() < 0.1 else b"key %d" % rng.randrange(KEYS_COUNT)
        kept = None if key is not None and rng.random() < TOMBSTONES else value
        made.append(Record(key, kept, headers=((NAME, value.partition(b" ")[0]),)))
    return made


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    name: bytes | None


def rows_of(payload: Any, offset: int) -> list[Row]:
    base = parse_batch_header(payload).base_offset
    return [
        Row(offset + record.offset - base, record.key, record.value, dict(record.headers).get(NAME))
        for record in decode_records(payload)
    ]


class KnowsVoid(Protocol):
    """Who knows which settled records were rolled back."""

    is_void: Callable[[int, int], bool]


class Survival:
    """What was ever settled, record by record, and so what is to survive."""

    def __init__(self, partitions_count: int, oracle: KnowsVoid) -> None:
        self._oracle = oracle
        self._proposed: dict[int, bytes] = {}
        self._settled: list[dict[int, Row]] = [{} for _ in range(partitions_count)]

    def proposed(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._proposed[parse_batch_header(payload).crc] = payload

    def settled(self, partition: int, offset: int, crc: int) -> None:
        if crc in self._proposed:
            rows = rows_of(self._proposed[crc], offset)
            self._settled[partition].update((row.offset, row) for row in rows)

    def read(self, partition: int, frame: Frame, who: str) -> None:
        """What is left of entries holds nothing but what was in them."""
        for row in rows_of(frame.payload, frame.header.offset):
            if self._settled[partition].get(row.offset) != row or self._oracle.is_void(partition, row.offset):
                raise Violated("last-value-kept", f"{who} gave {row} in what is left as {frame.header}")

    def expected(self, partition: int, generation: Generation | None) -> dict[int, Row]:
        rows = {
            offset: row
            for offset, row in sorted(self._settled[partition].items())
            if not self._oracle.is_void(partition, offset)
        }
        if generation is None:
            return rows
        newest = {row.key: offset for offset, row in rows.items() if offset <= generation.upto}
        return {
            offset: row
            for offset, row in rows.items()
            if offset > generation.upto
            or row.key is None
            or (newest[row.key] == offset and not (row.value is None and offset <= generation.deleted_upto))
        }

    def check(
        self, partition: int, generation: Generation | None, frames: Sequence[Frame], upto: int, who: str
    ) -> None:
        """All that a copy gives, up to an offset."""
        found = {
            row.offset: row
            for frame in frames
            if frame.header.kind == Kind.RECORDS
            for row in rows_of(frame.payload, frame.header.offset)
        }
        expected = self.expected(partition, generation)
        for offset in sorted({*found, *expected}):
            if offset <= upto and found.get(offset) != expected.get(offset):
                said = f"{found.get(offset)} at {offset}, and {expected.get(offset)} is to be there"
                raise Violated("last-value-kept", f"p{partition}: {who} has {said} ({generation})")


def survival_in(
    seed: int, faults: tuple[str, ...], partitions_count: int, oracle: KnowsVoid
) -> Survival | None:
    """None where nothing is compacted."""
    return Survival(partitions_count, oracle) if takes_part(seed, COMPACTION, faults) else None
