"""State built from entries. A machine is fed settled entries in order, and can be snapshot and restored."""

from __future__ import annotations

from typing import Protocol

from quorate.core.entry import Header


class Machine(Protocol):
    """What a host drives beside each replica."""

    def settle(self, header: Header, checksum: int, payload: bytes | bytearray | memoryview) -> None:
        """The next settled entry; never the same one twice, never one out of order."""
        ...

    def snapshot(self) -> bytes:
        """The state so far, complete."""
        ...

    def restore(self, data: bytes) -> None:
        """Be as if everything up to that snapshot had been settled here."""
        ...
