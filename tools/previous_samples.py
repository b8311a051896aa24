"""One of everything that nodes say to each other and write into the metadata group, as JSON on stdout.

Run by tools/previous.py with the code of the previous release: what is imported here is that. Each sample has every
field set, to a value that its default is not.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from quorate.batch import encode_records, parse_batch_header, stamp
from quorate.core.carrying import CarriesChunk
from quorate.core.coordinated.shard import Kind, Reconfiguration
from quorate.core.entry import NOWHERE, Header, Member, partition_of
from quorate.core.isr.state import PartitionState
from quorate.host.parcel import Leads, Parcel, Ping
from quorate.machine import metadata, shards
from quorate.node import codec, requests
from quorate.storage.frame import Frame, build

PARTITION = partition_of(bytes(range(16)), 3)
SENDER = Member(2, 1)
CHUNK = b"a piece of a snapshot"
SIZE_BYTES = 4
_IN, _OUT = Member(2, 1), Member(3, 4)
SENSIBLE: dict[type, dict[str, object]] = {
    Reconfiguration: {"kind": Kind.SWAP},
    PartitionState: {"replicas": (_IN, _OUT), "isr": (_IN,), "elr": (_OUT,), "leader": _IN, "min_isr": 2},
}
"""Of what refuses to be anything: fields that agree with each other."""


class Sampler:
    """Values by type, no two alike where that is possible."""

    def __init__(self) -> None:
        self._numbers = count(5)

    def of(self, kind: Any) -> Any:
        if isinstance(kind, NewType):
            return PARTITION if kind.__name__ == "Partition" else self.of(kind.__supertype__)
        origin, inside = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self.of(next(one for one in inside if one is not types.NoneType))
        if origin is tuple:
            return (self.of(inside[0]),) if inside[-1] is Ellipsis else tuple(map(self.of, inside))
        if origin is dict:
            return {self.of(inside[0]): self.of(inside[1])}
        if kind in (None, types.NoneType):
            return None
        if issubclass(kind, Enum):
            return list(kind)[-1]
        if issubclass(kind, msgspec.Struct):
            return self.struct(kind)
        if kind is bool:
            return True
        number = next(self._numbers)
        return {int: number, str: f"word {number}", bytes: b"%d" % number, float: number + 0.5}[kind]

    def struct(self, kind: type[msgspec.Struct], **given: object) -> Any:
        hints, given = get_type_hints(kind), SENSIBLE.get(kind, {}) | given
        sampled = {field: self.of(hints[field]) for field in kind.__struct_fields__ if field not in given}
        return kind(**sampled, **given)


def frame() -> Frame:
    payload = stamp(encode_records([(b"key", b"value")]), offset=0, epoch=1)
    header = Header(1, 0, 1, len(payload), crc=parse_batch_header(payload).crc)
    return build(PARTITION, header, payload, NOWHERE, 0)


def letter(pieces: Any) -> bytes:
    """Without its size."""
    return (pieces if isinstance(pieces, bytes) else b"".join(pieces[0]))[SIZE_BYTES:]


def samples() -> Iterator[tuple[str, Any, bytes]]:
    """What it is, what it says, its bytes."""
    sampler = Sampler()
    for kind in (*get_args(codec.Message), Ping, Leads):
        message = sampler.struct(kind)
        frames: tuple[Frame, ...] = ()
        chunk = b""
        if hasattr(message, "headers"):
            message, frames = msgspec.structs.replace(message, headers=()), (frame(),)
        if isinstance(message, CarriesChunk):
            message, chunk = msgspec.structs.replace(message, length=len(CHUNK)), CHUNK
        partition = None if kind in (Ping, Leads) else PARTITION
        yield (
            "parcel",
            message,
            letter(codec.encode_parcel(Parcel(partition, SENDER, message, frames, chunk))),
        )
    for kind in get_args(codec.Greeting):
        greeting = sampler.struct(kind)
        yield "greeting", greeting, letter(codec.encode_greeting(greeting))
    for kind in get_args(requests.Request):
        request = sampler.struct(kind)
        yield "request", request, letter(requests.encode_request(7, request))
    for kind in get_args(requests.Answer):
        answer = sampler.struct(kind)
        yield "answer", answer, letter(requests.encode_answer(7, answer))
    for kind in get_args(metadata.Command):
        given = sampler.struct(kind)
        yield "command", given, msgspec.msgpack.encode(given)
    for stored in get_args(shards.State):  # One for each protocol that has overseers.
        kept = {PARTITION: shards.Stored(1, 2, sampler.struct(stored))}
        image = sampler.struct(metadata._State, shards=kept)
        yield "image", image, msgspec.msgpack.encode(image)


def main() -> None:
    made = [
        {
            "what": what,
            "type": type(said).__name__,
            "says": msgspec.to_builtins(said, str_keys=True),
            "hex": raw.hex(),
        }
        for what, said, raw in samples()
    ]
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
