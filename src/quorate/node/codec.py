"""Parcels as letters, and what two nodes say when they meet.

A parcel's envelope is msgpack: partition, sender, format version, the tagged message, what is attached (so many
frames, or a chunk), and whether it is for the partition's replica or for whoever oversees it. Messages of all four
protocols are told apart by their tags: no two have the same one. Frames travel as they lie on the disk, and are
parsed and verified on arrival as views of the letter. Everything that the core believes without looking at bytes is
checked here: a message that carries headers of its own, frames beside a message that has no place for them, a chunk
of another length than its message says, are refused (rule 10).
"""

from __future__ import annotations

from typing import get_args
from zlib import crc32

import msgspec

from quorate.core.carrying import CarriesChunk
from quorate.core.confirm import messages as confirm
from quorate.core.coordinated import messages as coordinated
from quorate.core.entry import FORMAT_VERSION, PARTITION_BYTES, Member, Partition
from quorate.core.isr import messages as isr
from quorate.core.raft import messages as raft
from quorate.host.parcel import Leads, Parcel, Ping
from quorate.node.letters import JOIN_BYTES_MAX, BadLetter, opened, seal
from quorate.storage.disk import Buffer
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, parse

ANOTHER_DISK = "had another disk; if that is lost, remove this directory and make it anew with --replaces"
"""Why a node is refused whose directory was made anew as if nothing had been promised with it."""
REPLACED = (
    "was replaced by a directory made later with --replaces; the older one counts no more: "
    "run the newer, or make another with --replaces"
)
"""Why a node is refused that comes back with a directory in whose place another one was registered."""
FORGOTTEN = (
    "was forgotten with `quorate cluster forget`; its directory counts no more: "
    "to let it join again, make another with --replaces"
)
"""Why a node is refused that somebody said was gone for good."""
FOR_GOOD = (ANOTHER_DISK, REPLACED, FORGOTTEN)
OTHER_CLUSTER = "this is cluster"
"""Why somebody is refused who speaks of another cluster; whose mistake that is, one refusal does not tell."""
GREETING_TIMEOUT_S = 5.0
"""Whoever has not said hello, or welcome, by then is not somebody to talk to."""


class Hello(msgspec.Struct, frozen=True, gc=False, tag="hello"):
    """The first letter on a connection. `node` 0: a client; `to` 0: whoever listens there.

    A client that does not know the cluster's id says "".
    """

    cluster: str
    node: int = 0
    to: int = 0
    version: int = FORMAT_VERSION
    incarnation: int = 0
    disk: int = 0


class Welcome(msgspec.Struct, frozen=True, gc=False, tag="welcome"):
    """The answer to `Hello`: go on."""

    node: int
    version: int = FORMAT_VERSION
    cluster: str = ""
    """Only where the other side did not know it."""


class Refused(msgspec.Struct, frozen=True, gc=False, tag="refused"):
    """The answer to `Hello`: no, and why; the connection is closed."""

    why: str


Greeting = Hello | Welcome | Refused


Message = raft.Message | coordinated.Message | isr.Message | confirm.Message


class _Envelope(msgspec.Struct, frozen=True, gc=False, array_like=True):
    partition: Partition | None
    node: int
    incarnation: int
    version: int
    message: Message | Ping | Leads
    frames_count: int = 0
    chunk_bytes: int = 0
    chunk_checksum: int = 0
    to_overseer: bool = False
    generation: int = 0


SPOKEN: dict[str, frozenset[type]] = {
    "raft": frozenset(get_args(raft.Message)),
    "coordinated": frozenset(get_args(coordinated.Message)),
    "isr": frozenset(get_args(isr.Message)),
    "confirm": frozenset(get_args(confirm.Message)),
}
"""What replicas of each protocol say to each other; of anything else the sender is mistaken."""
_BETWEEN_NODES = frozenset((Ping, Leads))
_WITH_ENTRIES = frozenset(kind for kind in get_args(Message) if "headers" in kind.__struct_fields__)
_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_decode_greeting = msgspec.msgpack.Decoder(Greeting).decode


def encode_greeting(greeting: Greeting) -> bytes:
    return seal(_encode(greeting))


def decode_greeting(letter: Buffer) -> Greeting:
    envelope, attachment = opened(letter)
    if len(attachment):
        raise BadLetter("a greeting has no attachment")
    try:
        greeting: Greeting = _decode_greeting(envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLetter(f"no greeting: {error}") from error
    return greeting


def encode_parcel(parcel: Parcel) -> tuple[list[Buffer], int]:
    """The buffers of a letter, to be written one after the other, and how many bytes they are."""
    sender, frames, chunk = parcel.sender, parcel.frames, parcel.chunk
    checksum = 0
    attachment: list[Buffer] = []
    attachment_bytes = 0
    if chunk:
        checksum = crc32(chunk)
        attachment.append(chunk)
        attachment_bytes = len(chunk)
    for frame in frames:
        size = frame.header.size
        assert size == len(frame.payload)
        attachment += (frame.head, frame.payload)
        attachment_bytes += FRAME_HEAD_BYTES + size
    envelope = _Envelope(
        parcel.partition,
        sender.node,
        sender.incarnation,
        parcel.version,
        parcel.message,
        len(frames),
        len(chunk),
        checksum,
        parcel.to_overseer,
        parcel.generation,
    )
    front = seal(_encode(envelope), attachment_bytes)
    bytes_count = len(front) + attachment_bytes
    if bytes_count <= JOIN_BYTES_MAX:
        return [b"".join((front, *attachment)) if attachment else front], bytes_count
    return [front, *attachment], bytes_count


def decode_parcel(letter: Buffer) -> Parcel:
    """The parcel in a letter; raises BadLetter. Its frames are views of the letter."""
    content, attachment = opened(letter)
    try:
        envelope: _Envelope = _decode_envelope(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLetter(f"no parcel: {error}") from error
    _check(envelope)
    partition, to_overseer, generation = envelope.partition, envelope.to_overseer, envelope.generation
    sender = Member(envelope.node, envelope.incarnation)
    chunk_bytes = envelope.chunk_bytes
    if chunk_bytes:
        if chunk_bytes != len(attachment) or crc32(attachment) != envelope.chunk_checksum:
            raise BadLetter("a snapshot's chunk is not the one that was announced")
        return Parcel(
            partition,
            sender,
            envelope.message,
            (),
            bytes(attachment),
            envelope.version,
            to_overseer,
            generation,
        )
    frames: tuple[Frame, ...] = ()
    if attachment or envelope.frames_count:
        frames = _parse_frames(attachment, envelope.frames_count, partition)
    version = envelope.version
    return Parcel(partition, sender, envelope.message, frames, b"", version, to_overseer, generation)


def _check(envelope: _Envelope) -> None:
    message, partition = envelope.message, envelope.partition
    kind = type(message)
    if envelope.version != FORMAT_VERSION:
        raise BadLetter(f"message format {envelope.version} is unknown to this version of quorate")
    if kind in _BETWEEN_NODES:
        if partition is not None or envelope.to_overseer:
            raise BadLetter(f"{kind.__name__} with a partition, and is said between nodes")
    elif partition is None:
        raise BadLetter(f"{kind.__name__} is said between replicas, and no partition is named")
    elif len(partition) != PARTITION_BYTES:
        raise BadLetter(f"{kind.__name__} with a partition's identity of {len(partition)} bytes")
    if kind in _WITH_ENTRIES:
        if getattr(message, "headers", ()):
            raise BadLetter("headers without their frames")
        if envelope.frames_count < 0:
            raise BadLetter("a negative count")
    elif envelope.frames_count:
        raise BadLetter(f"{kind.__name__} carries no entries")
    chunk_bytes = message.length if isinstance(message, CarriesChunk) else 0
    if envelope.chunk_bytes != chunk_bytes or chunk_bytes < 0:
        raise BadLetter(f"{kind.__name__} with a chunk of {envelope.chunk_bytes} bytes, not {chunk_bytes}")


def _parse_frames(attachment: memoryview, count: int, partition: Partition | None) -> tuple[Frame, ...]:
    if not count:
        raise BadLetter(f"{len(attachment)} bytes are attached that nothing speaks of")
    if count * FRAME_HEAD_BYTES > len(attachment):
        raise BadLetter(f"{count} entries cannot be in {len(attachment)} bytes")
    frames: list[Frame] = []
    at = 0
    try:
        for _ in range(count):
            frame, at = parse(attachment, at, partition, where="letter")
            frames.append(frame)
    except DamagedFrame as damaged:
        raise BadLetter(str(damaged)) from damaged
    if at != len(attachment):
        raise BadLetter(f"{len(attachment) - at} bytes are left behind the last entry")
    return tuple(frames)
