"""What a snapshot holds: one msgpack map, the machine's bytes in the middle of it.

A machine that is written piece by piece has a length that nobody knows when its first piece is written. So the map
is also made by hand here, around bytes that are already on the disk, in the same format: `head` always has
the same length.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId, Standing

MACHINE_BYTES_MAX = (1 << 32) - 1
"""As msgpack has no longer strings of bytes."""
_MAP_OF_5 = b"\x85"
_BYTES_32 = b"\xc6"


class Manifest(msgspec.Struct, frozen=True, gc=False):
    last: EntryId
    checksum: int
    tally: bytes
    machine: bytes
    standing: Standing = Standing()


_encode = msgspec.msgpack.Encoder().encode


def encode_manifest(manifest: Manifest) -> bytes:
    return _encode(manifest)


def head(manifest: Manifest, machine_bytes: int) -> bytes:
    """What comes before so many bytes of a machine."""
    assert machine_bytes <= MACHINE_BYTES_MAX
    fields = ("last", manifest.last), ("checksum", manifest.checksum), ("tally", manifest.tally)
    said = b"".join(_encode(name) + _encode(value) for name, value in fields)
    return _MAP_OF_5 + said + _encode("machine") + _BYTES_32 + machine_bytes.to_bytes(4, "big")


def tail(manifest: Manifest) -> bytes:
    """What comes behind them."""
    return _encode("standing") + _encode(manifest.standing)
