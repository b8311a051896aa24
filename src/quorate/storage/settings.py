"""Sizes and times of a store. The defaults suit a real disk; `TINY` keeps every edge near, for simulations."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * 1024


class StoreSettings(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    journal_bytes: int = 32 * MIB
    """Size of each of the two journal files. They grow by themselves if a checkpoint needs it."""
    marks_bytes: int = 4 * MIB
    """Size of each of the two files of the second place."""
    align_bytes: int = 4096
    """Rounds start at multiples of this, so that writing one never touches a sector of another."""
    journal_entry_max: int = 16 * KIB
    """Larger entries go straight to their segment, and the journal holds only their header."""
    early_bytes: int = 1 * MIB
    """So much of them is written before their round's turn has come: worth waking a thread for."""
    round_bytes_max: int = 4 * MIB
    """A round that has gathered this much takes no further orders."""
    write_back_bytes: int = 8 * MIB
    """Entries that wait in memory for their segments; above this they are written and flushed there."""
    carry_bytes_max: int = 1 * MIB
    """A new generation of the journal carries at most this much over, if the disk lets us choose."""
    segment_bytes: int = 64 * MIB
    """A segment that has reached this size is sealed."""
    index_bytes: int = 64 * KIB
    """One point of a segment's sparse index per this many bytes."""
    tail_bytes: int = 32 * MIB
    """Newest frames of all logs that are kept in memory for whoever reads them next."""
    read_bytes: int = 1 * MIB
    """How much is read from a segment at once, unless one entry is larger."""
    check_bytes: int = 4 * MIB
    """How much is read at once where all of it is checked."""
    headers_max: int = 2048
    """Newest headers of a log that are found out when it is opened."""
    mark_delay_s: float = 0.05
    """How long after a round its marks reach the second place at the latest."""
    retry_s: float = 0.25
    """How often a full disk is tried again."""

    @property
    def reserve_bytes(self) -> int:
        """The part of a journal that only votes, cuts and control entries may use when the disk is full."""
        return self.journal_bytes // 4


TINY = StoreSettings(
    journal_bytes=64 * KIB,
    marks_bytes=16 * KIB,
    align_bytes=128,
    journal_entry_max=1 * KIB,
    early_bytes=512,
    round_bytes_max=8 * KIB,
    write_back_bytes=6 * KIB,
    carry_bytes_max=2 * KIB,
    segment_bytes=4 * KIB,
    index_bytes=512,
    tail_bytes=16 * KIB,
    read_bytes=4 * KIB,
    check_bytes=4 * KIB,
    headers_max=64,
    mark_delay_s=0.02,
    retry_s=0.05,
)
