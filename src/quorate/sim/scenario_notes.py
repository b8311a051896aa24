"""What `confirm` scenarios build from their entries: a page of texts, written on append and taken back exactly.

Deliberately dumb: nothing has to be undone in it, since what is not settled is only listed, until somebody reads.
"""

from __future__ import annotations

import msgspec

from quorate.batch import decode_records
from quorate.core.entry import Header, Kind, Rollback
from quorate.machine import Payload

ASYNCHRONOUS = b"asynchronous"
"""The key of records that an asynchronous transaction writes."""
PADDING = "\0"
"""Fills a record up to its size; no reader of a scenario sees it."""


class Notes:
    def __init__(self) -> None:
        self.settled: list[str] = []
        self._appended: list[tuple[Header, list[str]]] = []

    @property
    def local(self) -> list[str]:
        """What a local reader sees: everything that is applied here, but what is rolled back in this log."""
        seen = list(self.settled)
        for header, texts in self._appended:
            if not self._is_taken_back(header.offset):
                seen += texts
        return seen

    def _is_taken_back(self, offset: int) -> bool:
        return any(
            isinstance(header.control, Rollback) and header.control.first <= offset < header.offset
            for header, _ in self._appended
        )

    def append(self, header: Header, payload: Payload) -> None:
        self._appended.append((header, _texts(header, payload)))

    def cut(self, to_offset: int) -> None:
        while self._appended and self._appended[-1][0].last > to_offset:
            self._appended.pop()

    def settle(self, header: Header, checksum: int, payload: Payload) -> None:
        while self._appended and self._appended[0][0].last <= header.last:
            self._appended.pop(0)
        self.settled += _texts(header, payload)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.settled)

    def restore(self, data: bytes) -> None:
        self.settled = msgspec.msgpack.decode(data, type=list[str])
        self._appended.clear()

    def is_synchronous(self, payload: Payload) -> bool:
        return any(record.key != ASYNCHRONOUS for record in decode_records(payload))


def _texts(header: Header, payload: Payload) -> list[str]:
    if header.kind != Kind.RECORDS:
        return []
    return [(record.value or b"").decode().rstrip(PADDING) for record in decode_records(payload)]
