"""Parcels that are well-formed and wrong: what the core would believe without looking is refused here."""

from __future__ import annotations

import pytest

from quorate.batch import encode_records, parse_batch_header, stamp
from quorate.core.entry import NOWHERE, Header, Member, Partition, Snapshot, partition_of
from quorate.core.raft.messages import AppendEntries, SnapshotChunk, VoteRequest, VoteResponse
from quorate.host import Parcel, Ping
from quorate.node.codec import (
    Hello,
    Refused,
    Welcome,
    decode_greeting,
    decode_parcel,
    encode_greeting,
    encode_parcel,
)
from quorate.node.letters import BadLetter, seal
from quorate.storage.frame import Frame, build

HERE, THERE = partition_of(bytes(16), 0), partition_of(bytes(16), 1)
SENDER = Member(2, 1)
SNAPSHOT = Snapshot(NOWHERE, 0, 10)


def frame_of(partition: Partition) -> Frame:
    payload = stamp(encode_records([(None, b"value")]), offset=0, epoch=1)
    return build(
        partition, Header(1, 0, 1, len(payload), crc=parse_batch_header(payload).crc), payload, NOWHERE, 0
    )


FRAME = frame_of(HERE)


@pytest.mark.parametrize(
    ("parcel", "words"),
    [
        (Parcel(HERE, SENDER, Ping(1)), "Ping with a partition"),
        (Parcel(None, SENDER, VoteRequest(1, NOWHERE)), "no partition is named"),
        (Parcel(Partition(b"abc"), SENDER, VoteRequest(1, NOWHERE)), "identity of 3 bytes"),
        (Parcel(HERE, SENDER, AppendEntries(1, NOWHERE, 0, (FRAME.header,))), "headers without their frames"),
        (Parcel(HERE, SENDER, VoteResponse(1, True), (FRAME,)), "carries no entries"),
        (Parcel(HERE, SENDER, AppendEntries(1, NOWHERE, 0), (frame_of(THERE),)), "the frame is of partition"),
        (Parcel(HERE, SENDER, SnapshotChunk(1, SNAPSHOT, 0, 5), chunk=b"abc"), "chunk of 3 bytes, not 5"),
        (Parcel(HERE, SENDER, SnapshotChunk(1, SNAPSHOT, 0, 5)), "chunk of 0 bytes, not 5"),
        (Parcel(HERE, SENDER, VoteResponse(1, True), chunk=b"abc"), "chunk of 3 bytes, not 0"),
        (Parcel(HERE, SENDER, VoteResponse(1, True), version=9), "format 9 is unknown"),
    ],
)
def test_a_parcel_that_cannot_be_is_refused(parcel: Parcel, words: str) -> None:
    with pytest.raises(BadLetter, match=words):
        decode_parcel(b"".join(encode_parcel(parcel)[0])[4:])


def test_a_chunk_is_checked_against_its_checksum() -> None:
    parcel = Parcel(HERE, SENDER, SnapshotChunk(1, SNAPSHOT, 0, 3), chunk=b"abc")
    letter = b"".join(encode_parcel(parcel)[0])[4:]
    assert decode_parcel(letter) == parcel
    with pytest.raises(BadLetter, match="not the one that was announced"):
        decode_parcel(letter[:-1] + b"d")


@pytest.mark.parametrize("greeting", [Hello("c", 1, 2), Welcome(2), Refused("no")])
def test_greetings_arrive_as_they_were_sent(greeting: Hello | Welcome | Refused) -> None:
    assert decode_greeting(encode_greeting(greeting)[4:]) == greeting


@pytest.mark.parametrize(
    "letter", [seal(b""), seal(b"\x80"), seal(b"\xc0"), encode_greeting(Welcome(1)) + b"more"]
)
def test_what_is_no_greeting_is_refused(letter: bytes) -> None:
    with pytest.raises(BadLetter):
        decode_greeting(letter[4:])
