"""The smallest useful machine: how much a partition holds, and a digest to compare copies by."""

from __future__ import annotations

from zlib import crc32

import msgspec

from quorate.core.entry import Header, Kind


class Counts(msgspec.Struct, frozen=True, gc=False):
    """A tally's state, as it stands in snapshots."""

    last: int = -1
    entries: int = 0
    records: int = 0
    payload_bytes: int = 0
    digest: int = 0
    """Over the checksum of every settled entry, in order: two copies that agree on it agree on everything."""


class Tally:
    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = Counts()

    def settle(
        self, header: Header, checksum: int, payload: bytes | bytearray | memoryview, *, is_void: bool = False
    ) -> None:
        """A void entry is part of the log, and of the digest; but its records are none."""
        counts = self.counts
        has_records = header.kind == Kind.RECORDS and not is_void
        assert header.offset == counts.last + 1, "entries are settled once, in order"
        self.counts = Counts(
            header.last,
            counts.entries + 1,
            counts.records + (header.count if has_records else 0),
            counts.payload_bytes + header.size,
            crc32(checksum.to_bytes(4, "big"), counts.digest),
        )

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.counts)

    def restore(self, data: bytes) -> None:
        self.counts = msgspec.msgpack.decode(data, type=Counts)
