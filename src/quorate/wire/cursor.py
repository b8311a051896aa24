"""Reading forward through bytes of unknown origin.

Every count and length is compared with the bytes that remain before it is used: whoever sends two billion
topics in ten bytes is refused before anything is allocated (rule 10 of the reliability rules). What cannot
be read is a BadMessage; nothing else is raised.

A broker also bounds how many elements all lists of a request have together: a request may be large because of
its records, but millions of tiny elements would hold up everybody else for seconds.

Kafka has two spellings of everything that has a length. *Flexible* versions write it as an unsigned varint
that is one too large, so that 0 can mean null, and end each structure with tagged fields; older versions
write two or four bytes, and -1 for null.
"""

from __future__ import annotations

import struct

Buffer = bytes | bytearray | memoryview

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F64 = struct.Struct(">d")
VARINT_BYTES_MAX = 5
REQUEST_ELEMENTS_MAX = 100_000
"""Enough to name every partition that a cluster may have, each with its replicas."""
ELEMENTS_UNBOUNDED = 1 << 62


class BadMessage(Exception):
    """These bytes are not the request or response that they say they are."""


class Cursor:
    """A place in a message. A null string, array or byte string is None."""

    __slots__ = ("at", "buffer", "elements_left", "end")

    def __init__(
        self, buffer: Buffer, at: int = 0, end: int | None = None, *, elements_max: int = ELEMENTS_UNBOUNDED
    ) -> None:
        self.buffer = buffer
        self.at = at
        self.end = len(buffer) if end is None else end
        self.elements_left = elements_max

    # ---- numbers ----

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        """Several, which follow one another."""
        at = self.at
        self.at = at + form.size
        if self.at > self.end:
            raise self._ends()
        return form.unpack_from(self.buffer, at)

    def i8(self) -> int:
        number = self.buffer[self._step(1)]
        return number - 256 if number > 127 else number

    def i16(self) -> int:
        at = self.at
        self.at = at + 2
        if self.at > self.end:
            raise self._ends()
        number: int = _I16.unpack_from(self.buffer, at)[0]
        return number

    def i32(self) -> int:
        at = self.at
        self.at = at + 4
        if self.at > self.end:
            raise self._ends()
        number: int = _I32.unpack_from(self.buffer, at)[0]
        return number

    def i64(self) -> int:
        number: int = self.numbers(_I64)[0]
        return number

    def f64(self) -> float:
        number: float = _F64.unpack_from(self.buffer, self._step(8))[0]
        return number

    def uvarint(self) -> int:
        at = self.at
        if at < self.end and self.buffer[at] < 128:  # Nearly all of them.
            self.at = at + 1
            return self.buffer[at]
        number = shift = 0
        for _ in range(VARINT_BYTES_MAX):
            byte = self.buffer[self._step(1)]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise BadMessage(f"a length before byte {self.at} is longer than {VARINT_BYTES_MAX} bytes")

    # ---- what has a length ----

    def array(self, *, flexible: bool) -> int | None:
        """How many elements follow. Each takes a byte at least, so more than what remains is a lie."""
        count = self.uvarint() - 1 if flexible else self.i32()
        if count == -1:
            return None
        if not 0 <= count <= self.end - self.at:
            raise BadMessage(f"{count} elements cannot be in {self.end - self.at} bytes, at byte {self.at}")
        return self._elements(count)

    def string(self, *, flexible: bool) -> str | None:
        length = self.uvarint() - 1 if flexible else self.i16()
        if length == -1:
            return None
        start = self.skip(length)
        try:
            return bytes(self.buffer[start : start + length]).decode()
        except UnicodeDecodeError:
            raise BadMessage(f"the text at byte {start} is not UTF-8") from None

    def records(self, *, flexible: bool) -> memoryview | None:
        """A view, not a copy; writable where the buffer is."""
        length = self.uvarint() - 1 if flexible else self.i32()
        if length == -1:
            return None
        start = self.skip(length)
        return memoryview(self.buffer)[start : start + length]

    def uuid(self) -> bytes:
        start = self._step(16)
        return bytes(self.buffer[start : start + 16])

    def tags(self) -> int:
        """How many tagged fields follow."""
        return self._elements(self.uvarint())

    def skip_tags(self) -> None:
        """Past the tagged fields that end a flexible structure, whatever they are."""
        at = self.at
        if at < self.end and not self.buffer[at]:  # Hardly ever is there one.
            self.at = at + 1
            return
        for _ in range(self.tags()):
            self.uvarint()
            self.skip(self.uvarint())

    def skip(self, length: int) -> int:
        """Where the next `length` bytes start; the cursor stands behind them."""
        if not 0 <= length <= self.end - self.at:
            raise BadMessage(f"{length} bytes announced at byte {self.at}, {self.end - self.at} are left")
        start = self.at
        self.at = start + length
        return start

    def finish(self) -> None:
        if self.at != self.end:
            raise BadMessage(f"{self.end - self.at} bytes are left behind the message")

    def _elements(self, count: int) -> int:
        if count > self.elements_left:
            raise BadMessage(f"{count} elements at byte {self.at}; {self.elements_left} more are taken")
        self.elements_left -= count
        return count

    def _step(self, size: int) -> int:
        start = self.at
        self.at = start + size
        if self.at > self.end:
            raise self._ends()
        return start

    def _ends(self) -> BadMessage:
        return BadMessage(f"the message ends at byte {self.end}, inside a field")


def after_tags(buffer: Buffer, at: int) -> int:
    """Where what follows the tagged fields at `at` starts; for who needs no cursor otherwise."""
    if at < len(buffer) and not buffer[at]:
        return at + 1
    cursor = Cursor(buffer, at, elements_max=REQUEST_ELEMENTS_MAX)
    cursor.skip_tags()
    return cursor.at
