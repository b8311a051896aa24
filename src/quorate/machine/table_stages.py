"""What is staged: parts of transactions that are larger than one entry, which nobody sees until they are committed.

A part is kept under its stage and its number, like a row under its key, so that it is taken back, settled and put
into snapshots like one. There is a bound for all of them together. Beyond it whole stages are forgotten, those that
were begun first: whoever staged them has most likely died. If not, its commit is refused, and says so.
"""

from __future__ import annotations

from quorate.machine.table_rows import VERSION_BYTES, Box
from quorate.tables import STAGED_BYTES_MAX, STAGED_OPERATIONS_MAX, STAGED_PARTS_MAX

COUNT_BYTES = 4

StageKey = tuple[bytes, int]
"""A stage's id and the number of a part."""
Staged = Box[bytes]
"""Each part: the offset of its entry, how many operations it has, and these."""


def made_part(version: bytes, count: int, operations: bytes) -> bytes:
    return version + count.to_bytes(COUNT_BYTES, "big") + operations


def operations_of(kept: bytes) -> memoryview:
    return memoryview(kept)[VERSION_BYTES + COUNT_BYTES :]


def fits(staged: Staged) -> bool:
    return _Size(staged).fits()


def overdue(staged: Staged, newest: bytes) -> list[bytes]:
    """The stages that have to go, so that the others have room; never the newest one."""
    size = _Size(staged)
    if size.fits():
        return []
    begun: dict[bytes, bytes] = {}
    for (stage, _), kept in staged.rows.items():
        began = kept[:VERSION_BYTES]
        begun[stage] = min(began, begun.get(stage, began))
    going: list[bytes] = []
    for stage in sorted(begun, key=lambda each: (begun[each], each)):
        if stage != newest and not size.fits():
            going.append(stage)
            for (each, _), kept in staged.rows.items():
                if each == stage:
                    size.less(kept)
    return going


class _Size:
    def __init__(self, staged: Staged) -> None:
        self.parts = len(staged.rows)
        self.bytes = sum(map(len, staged.rows.values()))
        self.operations = sum(map(_count, staged.rows.values()))

    def less(self, kept: bytes) -> None:
        self.parts -= 1
        self.bytes -= len(kept)
        self.operations -= _count(kept)

    def fits(self) -> bool:
        return (
            self.parts <= STAGED_PARTS_MAX
            and self.bytes <= STAGED_BYTES_MAX
            and self.operations <= STAGED_OPERATIONS_MAX
        )


def _count(kept: bytes) -> int:
    return int.from_bytes(kept[VERSION_BYTES : VERSION_BYTES + COUNT_BYTES], "big")
