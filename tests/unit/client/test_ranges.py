"""Exactly the offsets that were asked for, whatever shape the answers have; never silently less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import CONTROL, TRANSACTIONAL, encode_control, encode_records, stamp
from quorate.client import BadAnswer, Cluster, OffsetsMissing, Unreachable
from quorate.client.ranges import Range, batches_between
from quorate.wire.messages import Api
from tests.unit.client.scripted import Answer, Frame, ScriptedNode, fetched, metadata, offsets


def batch(first: int, count: int) -> bytes:
    return bytes(stamp(encode_records([(None, b"%d" % n) for n in range(count)]), offset=first, epoch=1))


NO_RECORDS = bytes(stamp(encode_control(9, b""), offset=0, epoch=1))
LOG = {0: NO_RECORDS, 1: batch(1, 4), 5: batch(5, 5), 10: batch(10, 10)}
"""Offsets 0 to 19."""


class Log:
    """A node that serves a log, a batch an answer."""

    def __init__(self, log: dict[int, bytes], *, start: int = 0, settled: int = 20) -> None:
        self.log = log
        self.start = start
        self.settled = settled
        self.empty_answers = 0
        self.node = ScriptedNode(self.answer)

    def answer(self, frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, self.node)
        if frame.api == Api.LIST_OFFSETS:
            return offsets(frame, self.start)
        offset = frame.body.topics[0].partitions[0].offset
        if not self.start <= offset <= self.settled:
            self.settled += 10
            return fetched(frame, [], error=ErrorCode.offset_out_of_range)
        if self.empty_answers:
            self.empty_answers -= 1
            return fetched(frame, [])
        first = max((base for base in self.log if base <= offset), default=min(self.log))
        return fetched(frame, [self.log[first]], high_watermark=self.settled)


@contextmanager
def served(log: Log, *, timeout_s: float = 5.0) -> Iterator[Cluster]:
    with log.node, Cluster(log.node.bootstrap, timeout_s=timeout_s) as cluster:
        yield cluster


def bases(batches: Iterator[memoryview]) -> list[int]:
    return [int.from_bytes(found[:8], "big") for found in batches]


def test_a_range_is_the_batches_that_hold_it() -> None:
    with served(Log(LOG)) as cluster:
        assert bases(batches_between(cluster, Range("t", 0, 0, 20))) == [0, 1, 5, 10]
        assert bases(batches_between(cluster, Range("t", 0, 3, 6))) == [1, 5]
        assert bases(batches_between(cluster, Range("t", 0, 19, 20))) == [10]
        assert bases(batches_between(cluster, Range("t", 0, 7, 7))) == []


def test_empty_answers_are_asked_again() -> None:
    log = Log(LOG)
    log.empty_answers = 3
    with served(log) as cluster:
        assert bases(batches_between(cluster, Range("t", 0, 0, 5))) == [0, 1]


def test_a_new_leader_that_has_not_settled_it_yet_is_waited_for() -> None:
    with served(Log(LOG, settled=4)) as cluster:
        assert bases(batches_between(cluster, Range("t", 0, 5, 20))) == [5, 10]


def test_a_range_that_never_comes_is_an_error_and_not_less() -> None:
    log = Log(LOG)
    log.empty_answers = 1_000_000
    with (
        served(log, timeout_s=0.3) as cluster,
        pytest.raises(Unreachable, match="nothing more came at offset 0"),
    ):
        list(batches_between(cluster, Range("t", 0, 0, 5)))


def test_answers_that_bring_nothing_new_do_not_go_on_for_ever() -> None:
    with (
        served(Log({0: NO_RECORDS}), timeout_s=0.3) as cluster,
        pytest.raises(Unreachable, match="nothing more came at offset 3"),
    ):
        list(batches_between(cluster, Range("t", 0, 3, 5)))


def test_offsets_that_were_removed_are_an_error() -> None:
    with served(Log(LOG, start=5)) as cluster, pytest.raises(OffsetsMissing, match="offsets 2 to 4 of t-0"):
        list(batches_between(cluster, Range("t", 0, 2, 20)))


def test_offsets_that_were_removed_are_passed_over_if_allowed() -> None:
    with served(Log(LOG, start=5)) as cluster:
        wanted = Range("t", 0, 2, 20)
        assert bases(batches_between(cluster, wanted, missing_is_error=False)) == [5, 10]


def test_a_range_that_was_removed_altogether_is_empty_if_allowed() -> None:
    with served(Log(LOG, start=10)) as cluster:
        assert bases(batches_between(cluster, Range("t", 0, 2, 8), missing_is_error=False)) == []


def test_a_hole_between_batches_is_an_error() -> None:
    class Holed(Log):
        def answer(self, frame: Frame) -> Answer:
            if frame.api == Api.FETCH:
                return fetched(frame, [LOG[1], LOG[10]], high_watermark=20)
            return super().answer(frame)

    with served(Holed(LOG)) as cluster, pytest.raises(OffsetsMissing, match="offsets 5 to 9"):
        list(batches_between(cluster, Range("t", 0, 1, 20)))


def test_a_damaged_batch_is_not_handed_on() -> None:
    damaged = bytearray(LOG[1])
    damaged[-1] ^= 1
    with served(Log({1: bytes(damaged)}, start=1)) as cluster, pytest.raises(BadAnswer, match="checksum"):
        list(batches_between(cluster, Range("t", 0, 1, 5)))


def transactional(first: int, count: int, producer_id: int, *, marker: bool = False) -> bytes:
    made = encode_records(
        [(None, b"v")] * count,
        1_000,
        attributes=TRANSACTIONAL | (CONTROL if marker else 0),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )
    return bytes(stamp(made, offset=first, epoch=1))


def test_aborted_batches_are_left_out_where_only_committed_ones_are_wanted() -> None:
    log = [
        transactional(0, 2, 7),
        transactional(2, 2, 8),
        batch(4, 1),
        transactional(5, 1, 7, marker=True),
        transactional(6, 1, 8, marker=True),
        transactional(7, 2, 7),
        transactional(9, 1, 7, marker=True),
        transactional(10, 2, 7),
        transactional(12, 1, 7, marker=True),
    ]

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node)
        asked = frame.body.topics[0].partitions[0].offset
        there = [each for each in log if int.from_bytes(each[:8], "big") >= asked]
        # Of 7 the first and the last are aborted, of 8 the only one is not.
        aborted = ((7, 10), (7, 0)) if frame.body.isolation else ()
        return fetched(frame, there, high_watermark=13, aborted=aborted)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        found = bases(batches_between(cluster, Range("t", 0, 0, 13), committed=True))
        assert found == [2, 4, 5, 6, 7, 9, 12]
        assert len(bases(batches_between(cluster, Range("t", 0, 0, 13)))) == len(log)
