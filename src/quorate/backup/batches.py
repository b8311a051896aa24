"""Data files of a topic: record batches as they were fetched, one after the other, and nothing between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from quorate.backup.errors import Damaged
from quorate.backup.manifest import DataFile, hashed
from quorate.backup.place import Place
from quorate.batch import (
    BATCH_MIN,
    HEAD_BYTES,
    LENGTH_EXCLUDES,
    TRANSACTIONAL,
    BadBatch,
    BatchHeader,
    Buffer,
    verify,
)

_ATTRIBUTES_AT = HEAD_BYTES + 1
"""Their lower byte."""


class Batch(NamedTuple):
    header: BatchHeader
    content: memoryview

    @property
    def first(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.base_offset + self.header.offsets_count

    @property
    def has_records(self) -> bool:
        """Others are the log's own, or stand for what was taken back: readers never see them."""
        return not self.header.is_control and self.header.record_count > 0

    @property
    def plain(self) -> Buffer:
        """As if it were of no transaction. Its checksum is not made anew: whoever says who writes it does that."""
        if not self.header.is_transactional:
            return self.content
        made = bytearray(self.content)
        made[_ATTRIBUTES_AT] &= ~TRANSACTIONAL
        return made


def read_file(place: Place, file: DataFile) -> bytes:
    """Its bytes, as they were written; raises Damaged."""
    content = place.read(file.name)
    if len(content) != file.size:
        raise Damaged(f"{place}: {file.name} has {len(content):,} bytes, and {file.size:,} were written")
    if hashed(content) != file.sha256:
        raise Damaged(f"{place}: {file.name} is damaged: its SHA-256 is not what was written")
    return content


def batches_of(content: bytes, where: str) -> Iterator[Batch]:
    """Each compared with its own checksum; raises Damaged."""
    view = memoryview(content)
    at = 0
    while at < len(view):
        if len(view) - at < BATCH_MIN:
            raise Damaged(f"{where} ends within a batch, at byte {at}")
        size = int.from_bytes(view[at + 8 : at + LENGTH_EXCLUDES], "big") + LENGTH_EXCLUDES
        try:
            header = verify(view[at : at + size])
        except BadBatch as bad:
            raise Damaged(f"{where}, at byte {at}: {bad}") from bad
        yield Batch(header, view[at : at + size])
        at += size


def checked_batches(place: Place, file: DataFile) -> list[Batch]:
    """All of a file, which is what its manifest says; raises Damaged."""
    where = f"{place}: {file.name}"
    found = list(batches_of(read_file(place, file), where))
    for one, two in pairwise(found):
        if two.first < one.end:
            raise Damaged(f"{where}: offset {two.first} comes behind {one.end - 1}")
    said = (file.first, file.end, file.batches, file.records)
    records = sum(batch.header.record_count for batch in found if batch.has_records)
    ends = (found[0].first, found[-1].end) if found else (file.first, file.end)
    if said != (*ends, len(found), records):
        raise Damaged(f"{where} holds offsets {ends[0]} to {ends[1] - 1}, and not what its manifest says")
    return found
