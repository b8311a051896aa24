"""Frames: an entry comes back as it was written, or not at all."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from quorate import batch
from quorate.core.entry import EntryId, Header, Kind, Member, Membership, NoOp, Partition, partition_of
from quorate.storage import frame as frames
from quorate.storage.frame import DamagedFrame, Frame

HERE = partition_of(b"topic-id-16bytes", 3)
ELSEWHERE = partition_of(b"topic-id-16bytes", 4)
BELOW = EntryId(2, 6)


def sealed(*values: bytes, epoch: int = 3, offset: int = 7, prev: EntryId = BELOW) -> Frame:
    payload = batch.stamp(
        batch.encode_records([(b"k", value) for value in values], 5), offset=offset, epoch=epoch
    )
    crc = batch.parse_batch_header(payload).crc
    header = Header(epoch, offset, len(values), len(payload), Kind.RECORDS, 1, crc)
    return frames.build(HERE, header, payload, prev, 0xDEAD)


def whole(frame: Frame) -> bytes:
    return frame.head + bytes(frame.payload)


def resealed(content: bytes, at: int, change: bytes) -> bytes:
    """A frame with a changed header whose checksum fits: not damage, but nonsense."""
    head = content[:at] + change + content[at + len(change) : 76]
    return head + crc32c(head).to_bytes(4, "big") + content[80:]


def test_header_is_laid_out_as_documented() -> None:
    frame = sealed(b"one", b"two")
    assert frame.head[:76] == struct.pack(
        ">4sBBH20sQqIIIQqI",
        b"QfrA",
        1,
        0,
        1,
        HERE,
        3,
        7,
        2,
        len(frame.payload),
        frame.header.crc,
        2,
        6,
        0xDEAD,
    )
    assert frame.head[76:] == crc32c(frame.head[:76]).to_bytes(4, "big")
    assert frame.checksum == crc32c(frame.head[:76])
    assert frame.partition == HERE
    assert frame.size == len(whole(frame))
    assert str(frame) == f"3-7..8 {len(frame.payload)}B after 2-6"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_parse_returns_what_was_built_and_where_it_ends(kind: type) -> None:
    frame = sealed(b"one", b"two")
    content = kind(b"before" + whole(frame) + b"after")
    parsed, end = frames.parse(content, 6, HERE)
    assert parsed == frame
    assert end == 6 + frame.size
    assert parsed.prev == EntryId(2, 6)
    assert parsed.prev_checksum == 0xDEAD


def test_checksum_depends_on_the_whole_log_below() -> None:
    frame = sealed(b"one")
    other = frames.build(HERE, frame.header, frame.payload, frame.prev, 0xBEEF)
    assert frame.payload == other.payload
    assert frame.checksum != other.checksum


def test_control_entries_come_back_decoded_and_are_the_same_bytes_everywhere() -> None:
    member = Member(1, 1)
    for control in (NoOp(2), Membership((member,), (Member(2, 5),), (member, Member(3, 1)))):
        header = Header(4, 9, kind=Kind.CONTROL, control=control)
        frame = frames.build(HERE, header, frames.control_payload(header), EntryId(4, 8), 1)
        assert frame.header.size == len(frame.payload)
        assert frame.header.crc == batch.verify(frame.payload).crc
        assert frames.parse(whole(frame), 0, HERE) == (frame, frame.size)
        assert frame.header.control == control
        assert frames.control_payload(header) == frame.payload


def test_a_header_alone_says_what_payload_belongs_to_it() -> None:
    frame = sealed(b"large")
    alone = frames.parse_head(frame.head, 0, HERE)
    assert alone.header == frame.header
    assert alone.size == frame.size
    assert alone.payload == b""
    assert frames.attach(alone, frame.payload) == frame
    with pytest.raises(DamagedFrame, match="bytes, not"):
        frames.attach(alone, bytes(frame.payload)[:-1])
    with pytest.raises(DamagedFrame, match="does not start as that of 3-7 does"):
        frames.attach(alone, sealed(b"LARGE").payload)


def test_a_frame_of_another_partition_is_refused() -> None:
    with pytest.raises(DamagedFrame, match=f"of partition {HERE.hex()}, not {ELSEWHERE.hex()}"):
        frames.parse(whole(sealed(b"one")), 0, ELSEWHERE)
    assert frames.parse(whole(sealed(b"one")), 0, None)[0].partition == HERE


def test_a_payload_of_another_entry_is_refused() -> None:
    here, there = sealed(b"one"), sealed(b"one", offset=8, prev=EntryId(3, 7))
    with pytest.raises(DamagedFrame, match="does not start as that of 3-7 does"):
        frames.parse(here.head + bytes(there.payload))


def test_every_flipped_bit_is_seen() -> None:
    content = whole(sealed(b"one"))
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            with pytest.raises(DamagedFrame):
                frames.parse(damaged, 0, HERE)


def test_every_truncation_is_seen() -> None:
    content = whole(sealed(b"one"))
    for size in range(len(content)):
        with pytest.raises(DamagedFrame, match=r"too few|are left"):
            frames.parse(content[:size], 0, HERE)


@pytest.mark.parametrize(
    ("at", "change", "why"),
    [
        (4, b"\x09", "frame format 9 is unknown to this version"),
        (5, b"\x07", "kind 7"),
        (44, b"\0\0\0\0", "0 offsets"),
        (48, b"\xff\xff\xff\xff", "4294967295 bytes is out of bounds"),
        (48, b"\0\0\0\x3c", "60 bytes is out of bounds"),
        (56, b"\xff" * 8, "cannot precede 3-7"),
        (64, b"\xff" * 8, "2--1 cannot precede 3-7"),
        (44, b"\0\0\0\x02", "not the batch that 3-8 announces"),
        (5, b"\x01", "not the batch that 3-7 announces"),
    ],
)
def test_nonsense_under_a_fitting_checksum_is_refused(at: int, change: bytes, why: str) -> None:
    with pytest.raises(DamagedFrame, match=why):
        frames.parse(resealed(whole(sealed(b"one")), at, change), 0, HERE)


def test_unknown_control_records_are_refused() -> None:
    for record_type, value, why in (
        (0, b"", "control record type 0 is unknown here"),
        (frames.CONTROL_TYPE, b"\x81\xa4type\xa3new", "unreadable"),
    ):
        payload = batch.stamp(batch.encode_control(record_type, value), offset=7, epoch=3)
        header = Header(3, 7, kind=Kind.CONTROL)
        frame = frames.build(HERE, header, payload, EntryId(2, 6), 0)
        with pytest.raises(DamagedFrame, match=why):
            frames.parse(whole(frame), 0, HERE)


def test_damage_is_named_with_its_place() -> None:
    with pytest.raises(DamagedFrame) as caught:
        frames.parse(b"junk" * 40, 4, HERE, where="partitions/x/0.log")
    assert (caught.value.where, caught.value.at) == ("partitions/x/0.log", 4)
    assert str(caught.value) == "partitions/x/0.log at byte 4: no frame starts here"


def test_a_frame_is_only_built_around_the_payload_that_its_header_describes() -> None:
    frame = sealed(b"one")
    other = batch.stamp(frame.payload, offset=8, epoch=3)
    for header, payload, prev in (
        (frame.header, other, frame.prev),
        (Header(3, 7, 2, frame.header.size, crc=frame.header.crc), frame.payload, frame.prev),
        (Header(3, 7, 1, frame.header.size, crc=1), frame.payload, frame.prev),
        (Header(3, 7, 1, frame.header.size, Kind.CONTROL), frame.payload, frame.prev),
        (frame.header, frame.payload, EntryId(2, 5)),
        (frame.header, frame.payload, EntryId(4, 6)),
    ):
        with pytest.raises(AssertionError):
            frames.build(Partition(HERE), header, payload, prev, 0)
