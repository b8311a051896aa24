"""State built from entries. A machine is fed settled entries in order, and can be snapshot and restored.

Some can also change when entries are *appended*, before anybody knows whether they will be settled, and take that
back exactly (`Undoable`): in `confirm` groups the host drives them so.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, runtime_checkable

from quorate.core.entry import Header
from quorate.tables import CannotApply

__all__ = ["CannotApply", "InPieces", "Judging", "Machine", "Payload", "Undoable"]

Payload = bytes | bytearray | memoryview


class Machine(Protocol):
    """What a host drives beside each replica."""

    def settle(self, header: Header, checksum: int, payload: Payload) -> None:
        """The next settled entry; never the same one twice, never one out of order, never a void one."""
        ...

    def snapshot(self) -> bytes:
        """The settled state so far, complete."""
        ...

    def restore(self, data: bytes) -> None:
        """Be as if everything up to that snapshot had been settled here, and nothing else appended."""
        ...


@runtime_checkable
class Undoable(Machine, Protocol):
    """A machine that can change on append. What was appended is one stretch, right above what is settled.

    It raises CannotApply, before it has changed anything, for an entry that every equal copy can apply: then this
    copy is not equal (TT-8).
    """

    def append(self, header: Header, payload: Payload) -> object:
        """The next entry of the log: apply it, and keep what takes that back. A Rollback takes back others."""
        ...

    def cut(self, to_offset: int) -> None:
        """Everything appended above this offset was cut: take it back, newest first."""
        ...


@runtime_checkable
class InPieces(Protocol):
    """A machine whose snapshot takes too long to be made at once."""

    def snapshot_pieces(self) -> Generator[bytes]:
        """The settled state as of the first piece; between pieces the machine goes on. Closed where it is not
        wanted to its end."""
        ...


@runtime_checkable
class Judging(Protocol):
    """A machine whose entries are transactions, one record each, and that knows the synchronous ones (TT-36)."""

    def is_synchronous(self, payload: Payload) -> bool:
        """Raises CannotApply for what is no transaction: that must not get into a log."""
        ...
