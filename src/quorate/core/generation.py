"""A generation of compaction: what of a log is to survive, and where the files end that hold it.

The same for every replica, and all that one has to be told: see docs/decisions/020-compaction-keeps-the-chain.md.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId


class Generation(msgspec.Struct, frozen=True, gc=False):
    start: EntryId
    """The entry below the first file, and the checksum of its frame."""
    start_checksum: int
    last: EntryId
    """The last entry that it is about, and the checksum of its frame."""
    checksum: int
    deleted_upto: int
    """Tombstones up to this offset go, too."""
    ends: tuple[int, ...]
    """The last offset of each file."""

    @property
    def upto(self) -> int:
        return self.last.offset

    def __str__(self) -> str:
        return f"{self.start.offset + 1}..{self.upto} in {len(self.ends)} files"
