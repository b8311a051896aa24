"""Requests and answers as letters; lengths from the network are bounded by what is there."""

from __future__ import annotations

import pytest

from quorate.batch import encode_records
from quorate.core.coordinated import Shard
from quorate.core.coordinated import Status as ShardStatus
from quorate.core.effects import Outcome
from quorate.core.entry import EntryId, Member, Membership, partition_of
from quorate.core.events import ReadLevel
from quorate.core.isr import PartitionState
from quorate.machine import changing
from quorate.machine.metadata import NodeInfo, Topic
from quorate.machine.shards import Stored
from quorate.node.letters import BadLetter, seal
from quorate.node.requests import (
    Answer,
    Answered,
    AskImage,
    AskStatus,
    Change,
    Fetch,
    Fetched,
    Forget,
    Image,
    Propose,
    Read,
    Rejected,
    ReplicaStatus,
    Request,
    Status,
    Transfer,
    attached_batches,
    attached_frames,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

ENSEMBLE = (Member(1, 1), Member(2, 1))
REPLICA = ReplicaStatus(
    bytes(20),
    "leader",
    1,
    2,
    EntryId(2, 3),
    3,
    4,
    ENSEMBLE[0],
    Membership(ENSEMBLE, outgoing=ENSEMBLE),
    {2: 1},
    "isr",
    -1,
    (1, 2),
    ((5, 9),),
)
SHARDS = {
    partition_of(bytes(16), 0): Stored(3, 70, Shard(2, ShardStatus.STEADY, ENSEMBLE, ENSEMBLE[0])),
    partition_of(bytes(16), 1): Stored(4, 71, PartitionState(3, 2, ENSEMBLE[1], ENSEMBLE, ENSEMBLE[1:])),
}
TOPIC = Topic("t", bytes(16), "raft", (ENSEMBLE,), changes={0: changing.Change(ENSEMBLE[:1], 7)})
BATCH = encode_records([(None, b"value")])


@pytest.mark.parametrize(
    "request_",
    [
        Propose(bytes(20), (1, 2)),
        Fetch(bytes(20), 5, 6),
        Read(bytes(20), ReadLevel.AT_OFFSET, 7),
        Change(bytes(20), (1, 2)),
        Change(bytes(20), (1, 2), seen=7),
        Transfer(bytes(20), 2),
        AskStatus(),
        AskImage(),
        AskImage(("t",)),
        AskImage((), current=True),
        Forget(4, 7),
    ],
)
def test_requests_arrive_as_they_were_sent(request_: Request) -> None:
    number, found, attachment = decode_request(encode_request(9, request_)[4:])
    assert (number, found, len(attachment)) == (9, request_, 0)


@pytest.mark.parametrize(
    "answer",
    [
        Answered(Outcome.SETTLED, 1, 2, 3),
        Answered(Outcome.REFUSED, -1, 2, 3, "why not"),
        Fetched(1, 0, 0),
        Status(1, (2,), 0, (REPLICA,)),
        Image(1, 2, (NodeInfo(1, 1, "h", 9092),), (TOPIC,), (("t", 0, 1),)),
        Image(1, 2, (), (), (), Membership(ENSEMBLE, version=3), is_current=True),
        Image(1, 2, (), (TOPIC,), stored=SHARDS),
        Rejected("no"),
    ],
)
def test_answers_arrive_as_they_were_sent(answer: Answer) -> None:
    assert decode_answer(encode_answer(9, answer)[4:])[:2] == (9, answer)


def test_batches_are_views_of_the_attachment() -> None:
    attachment = memoryview(BATCH + BATCH)
    batches = attached_batches(Propose(bytes(20), (len(BATCH), len(BATCH))), attachment)
    assert [bytes(batch) for batch in batches] == [BATCH, BATCH]
    assert all(batch.obj is attachment.obj for batch in batches)


@pytest.mark.parametrize(
    "sizes", [(), (1,), (len(BATCH) - 1,), (len(BATCH) + 1,), (-1,), (1 << 60,), (0, len(BATCH))]
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(BadLetter):
        attached_batches(Propose(bytes(20), sizes), memoryview(BATCH))


def test_a_count_beyond_the_bytes_is_refused() -> None:
    with pytest.raises(BadLetter, match="cannot be in"):
        attached_frames(Fetched(1, 0, 1 << 60), memoryview(bytes(100)))


def test_an_attachment_that_nothing_speaks_of_is_refused() -> None:
    with pytest.raises(BadLetter, match="nothing speaks of"):
        decode_request(encode_request(1, AskStatus(), 3)[4:] + b"abc")


@pytest.mark.parametrize("envelope", [b"", b"\x93\x01", b"\x92\x01\x81\xa4type\xa4what", b"\xc1"])
def test_what_is_no_request_is_refused(envelope: bytes) -> None:
    with pytest.raises(BadLetter):
        decode_request(seal(envelope)[4:])
    with pytest.raises(BadLetter):
        decode_answer(seal(envelope)[4:])


def test_an_envelope_nested_too_deep_is_refused() -> None:
    """A field that nobody knows is skipped, however deep it is: the decoder gives up in its own way."""
    envelope = b"\x93\x01\x82\xa4type\xa7status?\xa1x" + b"\x91" * 100_000 + b"\x90\x00"
    with pytest.raises(BadLetter):
        decode_request(seal(envelope)[4:])
