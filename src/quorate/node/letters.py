"""Letters: how a stream of bytes is divided, for peers and for clients alike.

    total u32 · envelope length u32 · checksum u32 · envelope (msgpack) · attachment

`total` counts what follows it. The checksum is over the envelope: entries in the attachment carry their own
(a chain of CRC-32C), and what does not is checksummed by whoever puts it there. The attachment is written
and read as it is: entries are never copied through a codec.

A large letter is a view of what arrived, where it arrived in one piece; a small one is copied out, so that
an entry which lives on keeps little more than itself in memory. A letter in several pieces is put together
when all of it is there: a length alone allocates nothing (rule 10).
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast
from zlib import crc32

from quorate.node.tls import why_failed
from quorate.storage.disk import Buffer
from quorate.storage.frame import FRAME_HEAD_BYTES, FRAME_PAYLOAD_MAX

PREFACE = b"QRT1"
"""The first bytes on a connection to a node that is to carry letters. Whoever speaks Kafka's protocol starts
with a request's length, and none is that long."""
ATTACHMENT_BYTES_MAX = FRAME_PAYLOAD_MAX + FRAME_HEAD_BYTES + (4 << 20)
"""The largest entry, or many small ones."""
LETTER_BYTES_MAX = ATTACHMENT_BYTES_MAX + (1 << 20)
HELLO_BYTES_MAX = 1024
"""Strangers get no more than this."""
VIEW_BYTES_MIN = 16 << 10
"""Smaller letters do not hold on to the chunk that they came in."""
JOIN_BYTES_MAX = 4 << 10
"""Up to this size letters, and what gathers of them, become one buffer: copying is cheaper than listing pieces."""

_HEAD = struct.Struct(">III")
_TOTAL = struct.Struct(">I")
_REST = struct.Struct(">II")
_TOTAL_BYTES = _TOTAL.size
_REST_BYTES = _REST.size


class BadLetter(Exception):
    """The other side sent bytes that are not what this protocol allows."""


def seal(envelope: bytes, attachment_bytes: int = 0) -> bytes:
    """The front of a letter; its attachment follows in the stream as it is."""
    size = len(envelope)
    return _HEAD.pack(_REST_BYTES + size + attachment_bytes, size, crc32(envelope)) + envelope


def opened(letter: Buffer) -> tuple[Buffer, memoryview]:
    """The envelope and the attachment of a letter (without its total); raises BadLetter."""
    size = len(letter)
    if size < _REST_BYTES:
        raise BadLetter(f"a letter of {size} bytes is too short")
    envelope_bytes, checksum = _REST.unpack_from(letter)
    end = _REST_BYTES + envelope_bytes
    if end > size:
        raise BadLetter(f"an envelope of {envelope_bytes} bytes in a letter of {size}")
    view = memoryview(letter)
    envelope = view[_REST_BYTES:end]
    if crc32(envelope) != checksum:
        raise BadLetter("an envelope does not match its checksum")
    return envelope, view[end:]


class Letters(asyncio.Protocol, ABC):
    """One connection: letters come in one by one; buffers gather and go out together.

    Subclasses say what to do with a letter (`letter_received`). Whatever is wrong with one closes the connection,
    with a reason.
    """

    def __init__(
        self,
        chunk_began: Callable[[], None] = lambda: None,
        chunk_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`chunk_began` is called when bytes have arrived, `chunk_ended` when every whole letter among them was
        handed over."""
        self._chunk_began = chunk_began
        self._chunk_ended = chunk_ended
        self.letter_bytes_max = HELLO_BYTES_MAX
        self.closed_because = ""
        self.offence = ""
        """What was wrong with the other side's last letter."""
        self._transport: asyncio.Transport | None = None
        self._pieces: list[Buffer] = []
        """The front of a letter that is not all there."""
        self._pieces_bytes = 0
        self._wanted_bytes = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0

    # --- for subclasses ---

    @abstractmethod
    def letter_received(self, letter: Buffer) -> None:
        """The next one, without its total; raises BadLetter."""

    def closed(self) -> None:
        """The connection is gone; `closed_because` says why, where that is known."""

    # --- out ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """What waits here and in the transport."""
        if self._transport is None:
            return 0
        return self._outgoing_bytes + self._transport.get_write_buffer_size()

    @property
    def unfinished_bytes(self) -> int:
        """Of a letter that is not all there."""
        return self._pieces_bytes if self._pieces else 0

    def put(self, buffers: Sequence[Buffer], bytes_count: int) -> None:
        """Goes out with `flush`, together with whatever else gathers before it."""
        self._outgoing += buffers
        self._outgoing_bytes += bytes_count

    def flush(self) -> None:
        outgoing = self._outgoing
        if not outgoing:
            return
        transport = self._transport
        bytes_count = self._outgoing_bytes
        self._outgoing = []
        self._outgoing_bytes = 0
        if transport is None or transport.is_closing():
            return
        try:
            if len(outgoing) == 1:
                transport.write(outgoing[0])
            elif bytes_count <= JOIN_BYTES_MAX:
                transport.write(b"".join(outgoing))
            else:
                transport.writelines(outgoing)
        except RuntimeError:
            pass  # uvloop has closed it just now, and says so here first.

    def close(self, reason: str = "") -> None:
        """What was put before is still sent, if the other side takes it."""
        self.closed_because = self.closed_because or reason
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        self.closed_because = self.closed_because or reason
        if self._transport is not None:
            self._transport.abort()

    # --- in: called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed_because = self.closed_because or _in_words(error)
        self._transport = None
        self._outgoing.clear()
        self._pieces.clear()
        self.closed()

    def data_received(self, data: bytes) -> None:
        self._chunk_began()
        try:
            self._split(data, self._complete(data) if self._pieces else 0)
        except BadLetter as bad:
            self.offence = str(bad)
            self.close(self.offence)
        self._chunk_ended()

    def _complete(self, data: bytes) -> int:
        """Finish the letter that is in pieces, if the rest is here; how much of the data that took."""
        missing = self._wanted_bytes - self._pieces_bytes
        self._pieces.append(data[:missing])
        self._pieces_bytes += len(self._pieces[-1])
        if len(data) < missing:
            return len(data)
        whole = bytearray().join(self._pieces)  # Writable: a batch in it can be stamped where it lies.
        self._pieces.clear()
        if len(whole) > _TOTAL_BYTES:
            self.letter_received(memoryview(whole)[_TOTAL_BYTES:])
        else:  # Only now is it known how long the letter is.
            self._keep(whole, self._letter_bytes(whole, 0))
        return missing + (self._complete(data[missing:]) if self._pieces else 0)

    def _split(self, data: bytes, at: int) -> None:
        end = len(data)
        view = memoryview(data)
        total = 0
        while end - at >= _TOTAL_BYTES and (not at or self.is_open):
            total = self._letter_bytes(data, at)
            start = at + _TOTAL_BYTES
            if total > end - start:
                break
            at = start + total
            letter = view[start:at]
            # One that is large, or most of its chunk, stays where it is.
            self.letter_received(letter if total >= VIEW_BYTES_MIN or 2 * total > end else bytes(letter))
            total = 0
        if at < end and self.is_open:
            self._keep(data[at:], total)

    def _letter_bytes(self, data: Buffer, at: int) -> int:
        total: int = _TOTAL.unpack_from(data, at)[0]
        if total < _REST_BYTES:
            raise BadLetter(f"a letter of {total} bytes is too short")
        if total > self.letter_bytes_max:
            raise BadLetter(f"a letter of {total} bytes; at most {self.letter_bytes_max} are taken")
        return total

    def _keep(self, piece: Buffer, letter_bytes: int) -> None:
        self._pieces.append(piece)
        self._pieces_bytes = len(piece)
        self._wanted_bytes = _TOTAL_BYTES + letter_bytes


def _in_words(error: Exception | None) -> str:
    if error is None:
        return "closed by the other side"
    return why_failed(error) if isinstance(error, ssl.SSLError) else str(error)
