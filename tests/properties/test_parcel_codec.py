"""Parcels as bytes: whatever is sent arrives the same, and whatever else arrives is refused by name."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.batch import encode_records, parse_batch_header, stamp
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, Member, NoOp, Partition, Snapshot, Span
from quorate.core.raft import messages
from quorate.host import Parcel, Ping
from quorate.host.parcel import packed, unpacked
from quorate.node.codec import decode_parcel, encode_parcel
from quorate.node.letters import LETTER_BYTES_MAX, BadLetter, Letters
from quorate.storage.disk import Buffer
from quorate.storage.frame import Frame, build, control_payload

numbers = st.integers(0, 2**63 - 1)
offsets = st.integers(-1, 2**63 - 1)
entry_ids = st.builds(EntryId, numbers, offsets)
spans = st.builds(Span, entry_ids, entry_ids)
partitions = st.binary(min_size=20, max_size=20).map(Partition)
members = st.builds(Member, st.integers(1, 2**31), numbers)
snapshots = st.builds(Snapshot, entry_ids, st.integers(0, 2**32 - 1), st.integers(0, 2**40))

plain_messages = st.one_of(
    st.builds(messages.VoteRequest, numbers, entry_ids),
    st.builds(messages.VoteResponse, numbers, st.booleans(), st.booleans()),
    st.builds(messages.AppendEntries, numbers, entry_ids, offsets, search=st.booleans(), quiet=st.booleans()),
    st.builds(
        messages.AppendResponse,
        numbers,
        st.booleans(),
        offsets,
        offsets,
        offsets,
        theirs=st.none() | entry_ids,
        faulty=st.none() | spans,
        wants_snapshot=offsets,
        quiet=st.booleans(),
    ),
    st.builds(messages.SnapshotResponse, numbers, snapshots, numbers),
    st.builds(messages.WantEntries, numbers, spans),
    st.builds(messages.HaveEntries, numbers, spans, why_not=st.sampled_from(["", "damaged", "unknown"])),
)


def chain(partition: Partition, values: list[bytes], *, epoch: int, offset: int) -> tuple[Frame, ...]:
    """So many entries behind one another; an empty value is a control entry."""
    frames: list[Frame] = []
    prev, prev_checksum = (NOWHERE, 0) if offset == 0 else (EntryId(epoch, offset - 1), 7)
    for value in values:
        if value:
            payload = stamp(encode_records([(None, value)]), offset=offset, epoch=epoch)
            header = Header(epoch, offset, 1, len(payload), crc=parse_batch_header(payload).crc)
        else:
            header = Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(3))
            payload = control_payload(header)
        frame = build(partition, header, payload, prev, prev_checksum)
        frames.append(frame)
        prev, prev_checksum, offset = frame.header.id, frame.checksum, offset + 1
    return tuple(frames)


@st.composite
def parcels(draw: st.DrawFn) -> Parcel:
    partition, sender = draw(partitions), draw(members)
    what = draw(st.sampled_from(["ping", "plain", "entries", "repair", "chunk"]))
    if what == "ping":
        return Parcel(None, sender, Ping(draw(numbers)))
    if what == "plain":
        return Parcel(partition, sender, draw(plain_messages))
    if what == "chunk":
        chunk = draw(st.binary(min_size=1, max_size=300))
        message = messages.SnapshotChunk(draw(numbers), draw(snapshots), draw(numbers), len(chunk))
        return Parcel(partition, sender, message, chunk=chunk)
    values = draw(st.lists(st.binary(max_size=100), min_size=1, max_size=5))
    epoch = draw(st.integers(1, 2**31))
    frames = chain(partition, values, epoch=epoch, offset=draw(st.integers(0, 2**40)))
    headers = tuple(frame.header for frame in frames)
    if what == "entries":
        return Parcel(partition, sender, messages.AppendEntries(epoch, frames[0].prev, 5, headers), frames)
    span = Span(frames[0].prev, frames[-1].header.id)
    return Parcel(partition, sender, messages.HaveEntries(epoch, span, headers), frames)


def as_sent(parcel: Parcel) -> Parcel:
    """The host packs before it sends."""
    return Parcel(parcel.partition, parcel.sender, packed(parcel.message), parcel.frames, parcel.chunk)


def letter_of(parcel: Parcel) -> bytes:
    buffers, bytes_count = encode_parcel(as_sent(parcel))
    joined = b"".join(buffers)
    assert len(joined) == bytes_count
    assert struct.unpack_from(">I", joined) == (bytes_count - 4,)
    return joined[4:]


def same_frame(one: Frame, other: Frame) -> bool:
    return bytes(one.head) == bytes(other.head) and bytes(one.payload) == bytes(other.payload)


@given(parcels())
def test_what_was_sent_arrives(parcel: Parcel) -> None:
    found = decode_parcel(letter_of(parcel))
    assert found.partition == parcel.partition
    assert found.sender == parcel.sender
    assert found.version == parcel.version
    assert bytes(found.chunk) == parcel.chunk
    assert len(found.frames) == len(parcel.frames)
    assert all(map(same_frame, found.frames, parcel.frames))
    assert unpacked(found) == parcel.message, "headers come back from the frames"


@given(parcels())
def test_frames_are_views_of_the_letter_and_not_copies(parcel: Parcel) -> None:
    letter = letter_of(parcel)
    for frame in decode_parcel(letter).frames:
        assert isinstance(frame.payload, memoryview)
        assert frame.payload.obj is letter


@given(parcels(), st.data())
def test_a_flipped_bit_is_refused(parcel: Parcel, data: st.DataObject) -> None:
    letter = bytearray(letter_of(parcel))
    position = data.draw(st.integers(0, len(letter) * 8 - 1))
    letter[position // 8] ^= 1 << position % 8
    with pytest.raises(BadLetter):
        decode_parcel(bytes(letter))


@given(parcels(), st.data())
def test_a_letter_cut_short_or_too_long_is_refused(parcel: Parcel, data: st.DataObject) -> None:
    letter = letter_of(parcel)
    with pytest.raises(BadLetter):
        decode_parcel(letter[: data.draw(st.integers(0, len(letter) - 1))])
    with pytest.raises(BadLetter):
        decode_parcel(letter + data.draw(st.binary(min_size=1, max_size=100)))


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BadLetter):
        decode_parcel(garbage)


class Taken(Letters):
    """A connection's receiving side, without a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.letter_bytes_max = LETTER_BYTES_MAX
        self.letters: list[bytes] = []
        self.closing = False
        self._transport: Any = self

    def is_closing(self) -> bool:
        return self.closing

    def close(self, reason: str = "") -> None:
        self.closing = True
        self.closed_because = reason

    def letter_received(self, letter: Buffer) -> None:
        self.letters.append(bytes(letter))


@given(st.lists(st.binary(min_size=8, max_size=60_000), max_size=6), st.data())
def test_letters_are_the_same_however_the_stream_is_cut(letters: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(letter).to_bytes(4, "big") + letter for letter in letters)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    taken = Taken()
    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if first < last:
            taken.data_received(stream[first:last])
    assert taken.letters == letters


def test_a_length_out_of_bounds_closes_before_anything_is_kept() -> None:
    taken = Taken()
    taken.data_received((LETTER_BYTES_MAX + 1).to_bytes(4, "big") + b"rest")
    assert taken.closing
    assert str(LETTER_BYTES_MAX) in taken.closed_because
    assert not taken.letters
