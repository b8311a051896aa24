"""What travels between nodes: a protocol's message, and beside it the bytes of the entries it names."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from quorate.core.entry import FORMAT_VERSION, EntryId, Header, Member, Partition
from quorate.storage.frame import Frame


class Ping(msgspec.Struct, frozen=True, gc=False, tag="ping"):
    """One node to another, whatever their replicas do: I am up, in this life."""

    boot: int


class Leads(msgspec.Struct, frozen=True, gc=False, tag="leads"):
    """One node to another: these partitions, in these epochs, are led here. Clients ask any node for it."""

    partitions: tuple[tuple[bytes, int], ...]


class Parcel(msgspec.Struct, frozen=True, gc=False):
    partition: Partition | None
    """None: from node to node."""
    sender: Member
    message: Any
    frames: tuple[Frame, ...] = ()
    chunk: bytes = b""
    version: int = FORMAT_VERSION
    to_overseer: bool = False
    """For whoever oversees the partition on that node, not for its replica there."""
    generation: int = 0
    """Of its sender's replica: whoever is of another one does not hear it (017)."""


def packed(message: Any) -> Any:
    """The message without its headers: the frames beside it say the same, and are what will be stored."""
    return replace(message, headers=()) if getattr(message, "headers", ()) else message


def unpacked(parcel: Parcel) -> Any | None:
    """The message with headers rebuilt from its frames; None if the frames are not a chain behind `prev`.

    The core believes headers, so nothing reaches it that the bytes do not bear out.
    """
    message = parcel.message
    frames = parcel.frames
    if not frames:
        return message
    expected = _entry_before(message)
    if expected is not None and frames[0].prev != expected:
        return None
    headers: list[Header] = []
    before: Frame | None = None
    for frame in frames:
        if before is not None and (frame.prev != before.header.id or frame.prev_checksum != before.checksum):
            return None
        headers.append(frame.header)
        before = frame
    return replace(message, headers=tuple(headers))


def _entry_before(message: Any) -> EntryId | None:
    span = getattr(message, "span", None)
    before: EntryId | None = span.before if span is not None else getattr(message, "prev", None)
    return before
