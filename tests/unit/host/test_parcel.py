"""What travels between nodes: nothing reaches the core that the bytes do not bear out."""

from __future__ import annotations

from quorate.batch import encode_records, stamp
from quorate.core.entry import NOWHERE, EntryId, Header, Member, partition_of
from quorate.core.raft.messages import AppendEntries, AppendResponse
from quorate.host.parcel import Parcel, packed, unpacked
from quorate.storage.frame import Frame, build

PARTITION = partition_of(bytes(16), 0)
SENDER = Member(1, 1)


def chain(*values: bytes, epoch: int = 1) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    prev, checksum = NOWHERE, 0
    for offset, value in enumerate(values):
        payload = stamp(encode_records([(None, value)]), offset=offset, epoch=epoch)
        crc = int.from_bytes(payload[17:21], "big")
        frame = build(PARTITION, Header(epoch, offset, 1, len(payload), crc=crc), payload, prev, checksum)
        frames.append(frame)
        prev, checksum = frame.header.id, frame.checksum
    return tuple(frames)


def append(frames: tuple[Frame, ...], prev: EntryId = NOWHERE) -> Parcel:
    return Parcel(PARTITION, SENDER, AppendEntries(1, prev, -1), frames)


def test_headers_are_rebuilt_from_the_frames() -> None:
    frames = chain(b"a", b"b")
    message = unpacked(append(frames))
    assert message == AppendEntries(1, NOWHERE, -1, tuple(frame.header for frame in frames))


def test_headers_are_not_sent_beside_the_frames_that_say_the_same() -> None:
    frames = chain(b"a")
    assert packed(AppendEntries(1, NOWHERE, -1, (frames[0].header,))) == AppendEntries(1, NOWHERE, -1)


def test_frames_that_are_not_a_chain_are_dropped() -> None:
    first, _, third = chain(b"a", b"b", b"c")
    assert unpacked(append((first, third))) is None
    (_, other) = chain(b"another", b"b")
    assert unpacked(append((first, other))) is None, "same ids, another predecessor"


def test_frames_that_do_not_follow_the_named_entry_are_dropped() -> None:
    frames = chain(b"a", b"b")
    assert unpacked(append(frames[1:], prev=EntryId(2, 0))) is None
    assert unpacked(append(frames[1:], prev=EntryId(1, 0))) is not None


def test_a_message_without_frames_is_as_it_came() -> None:
    answer = AppendResponse(1, True, 0, 0, 0)
    assert unpacked(Parcel(PARTITION, SENDER, answer)) is answer
