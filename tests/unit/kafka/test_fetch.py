"""Fetch: what is sent, how much of it, and how long it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from msgspec import structs

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.kafka import fetch as kafka_fetch
from quorate.storage.frame import Frame
from quorate.wire.fetch import FetchRequest, WantedPartition, WantedTopic
from tests.unit.kafka.harness import Connection, Served, serve, until
from tests.unit.kafka.test_door import broker_of

LONG_MS = 60_000


def batch_of(size: int, records: int = 1) -> bytes:
    return batch.encode_records([(None, bytes(size))] * records)


async def fill(connection: Connection, topic: str, *batches: bytes, partitions: int = 1) -> None:
    assert (await connection.create(topic, partitions=partitions)).error_code == 0
    for partition in range(partitions):
        for content in batches:
            assert (await connection.produce(topic, content, partition=partition)).error_code == 0


def bases(batches: object) -> list[int]:
    assert isinstance(batches, list)
    return [batch.parse_batch_header(content).base_offset for content in batches]


def test_a_fetch_inside_a_batch_gets_all_of_it(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10, 5), batch_of(10, 5))
            assert bases((await connection.fetch("topic", 3)).batches) == [1, 6]
            assert bases((await connection.fetch("topic", 10)).batches) == [6]
            # The leader's own entry is a batch like any other: clients skip it by themselves.
            assert bases((await connection.fetch("topic", 0)).batches) == [0, 1, 6]

    serve(tmp_path, test)


def test_every_version_is_answered(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            for version in range(4, 13):
                found = await connection.fetch("topic", 1, version=version)
                assert (found.error, found.high_watermark, len(found.batches)) == (0, 2, 1)
            topic_id = served.node.metadata.image.topics["topic"].id
            for version in range(13, 17):
                for asked, error in ((topic_id, 0), (bytes(15) + b"\7", ErrorCode.unknown_topic_id)):
                    wanted = WantedTopic("", asked, [WantedPartition(0, 1, 1000)])
                    (found,) = await connection.fetch_all(FetchRequest(0, 1, 1000, [wanted]), version)
                    assert found.error == error

    serve(tmp_path, test)


def test_the_same_request_again_is_answered_by_what_is_there_now(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            for end in (2, 3, 4):
                for _ in range(2):
                    found = await connection.fetch("topic", end)
                    assert (found.error, found.high_watermark, found.last_stable) == (0, end, end)
                    assert (found.log_start, list(found.batches)) == (0, [])
                assert (await connection.produce("topic", batch_of(10))).error_code == 0
                assert bases((await connection.fetch("topic", end)).batches) == [end]
            await served.node.metadata.delete_topic(served.node.metadata.image.topics["topic"].id)
            unknown = ErrorCode.unknown_topic_or_partition
            assert (await connection.fetch("topic", 4)).error == unknown
            assert (await connection.fetch("topic", 4)).error == unknown

    serve(tmp_path, test)


def test_bytes_are_bounded_but_the_first_batch_always_comes(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            size = len(batch_of(1000))
            await fill(connection, "topic", *[batch_of(1000)] * 5, partitions=2)

            async def sizes(bytes_max: int, partition_bytes_max: int) -> list[int]:
                wanted = [WantedPartition(number, 1, partition_bytes_max) for number in range(2)]
                request = FetchRequest(0, 1, bytes_max, [WantedTopic("topic", bytes(16), wanted)])
                return [len(found.batches) for found in await connection.fetch_all(request)]

            assert await sizes(100 * size, 100 * size) == [5, 5]
            assert await sizes(100 * size, 2 * size) == [2, 2]
            assert await sizes(3 * size, 2 * size) == [2, 1]
            assert await sizes(3 * size, 100 * size) == [3, 0]
            assert await sizes(10, 10) == [1, 0]
            assert await sizes(100 * size, 10) == [1, 0]

    serve(tmp_path, test)


def test_offsets_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            assert (await connection.fetch("topic", 2)).error == 0
            assert (await connection.fetch("topic", 3)).error == ErrorCode.offset_out_of_range
            assert (await connection.fetch("topic", -1)).error == ErrorCode.offset_out_of_range
            unknown = await connection.fetch("nowhere", 0, wait_ms=LONG_MS)
            assert unknown.error == ErrorCode.unknown_topic_or_partition

    serve(tmp_path, test)


@pytest.mark.parametrize("outcome", [Outcome.NOT_LEADER, Outcome.UNKNOWN, None])
def test_one_that_may_not_lead_any_more_calls_nothing_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None
) -> None:
    """A client was told more by another: it is to ask who leads, and neither begin anew nor go to the end."""

    async def test(served: Served) -> None:
        def read(partition: Partition, level: ReadLevel, answer: Callable[[Reply], None]) -> None:
            assert level is ReadLevel.LINEARIZABLE
            if outcome is not None:  # Cut off, it hears nothing for a while.
                answer(Reply(0, outcome))

        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            monkeypatch.setattr(served.node, "read", read)
            elsewhere = (await connection.fetch("topic", 3, wait_ms=50)).error
            assert elsewhere == ErrorCode.not_leader_or_follower
            assert (await connection.fetch("topic", 2)).error == 0
            assert (await connection.fetch("topic", -1)).error == ErrorCode.offset_out_of_range

    serve(tmp_path, test)


def test_an_epoch_that_is_yet_to_be_is_of_another_leader(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            topic = await connection.create("topic")
            await connection.produce("topic", batch_of(10))
            (partition,) = served.node.metadata.image.by_id[topic.topic_id.bytes].partitions()
            _, epoch = served.node.leader_of(partition)
            for last_epoch, error in ((epoch, 0), (epoch + 1, ErrorCode.unknown_leader_epoch)):
                wanted = WantedTopic("topic", bytes(16), [WantedPartition(0, 1, 1000, last_epoch=last_epoch)])
                (found,) = await connection.fetch_all(FetchRequest(0, 1, 1000, [wanted]))
                assert (found.error, found.diverging) == (error, None)

    serve(tmp_path, test)


def test_another_epoch_than_the_leaders_is_told_apart(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            topic = served.node.metadata.image.topics["topic"]
            _, epoch = served.node.leader_of(topic.partitions()[0])
            errors = [
                (await connection.fetch("topic", 1, leader_epoch=known)).error
                for known in (epoch - 1, epoch, epoch + 1)
            ]
            assert errors == [ErrorCode.fenced_leader_epoch, 0, ErrorCode.unknown_leader_epoch]

    serve(tmp_path, test)


def test_a_waiting_fetch_is_woken_by_what_is_settled(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await fill(connection, "topic")
            waiting = asyncio.ensure_future(connection.fetch("topic", 1, wait_ms=LONG_MS))
            broker = broker_of(served)
            await until(lambda: broker._waiting)
            await other.produce("topic", batch_of(10))
            found = await waiting
            assert bases(found.batches) == [1]
            assert found.high_watermark == 2
            assert not broker._waiting

    serve(tmp_path, test)


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await fill(connection, "topic", partitions=1)
            size = len(batch_of(100))
            asked = connection.fetch("topic", 1, wait_ms=LONG_MS, bytes_min=size + 1)
            waiting = asyncio.ensure_future(asked)
            broker = broker_of(served)
            await until(lambda: broker._waiting)
            await other.produce("topic", batch_of(100))
            await until(lambda: not broker._woken)
            assert not waiting.done()
            await other.produce("topic", batch_of(100))
            assert bases((await waiting).batches) == [1, 2]

    serve(tmp_path, test)


def test_a_fetch_that_waited_long_enough_is_answered_with_what_is_there(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            began = time.monotonic()
            assert (await connection.fetch("topic", 2, wait_ms=60)).batches == []
            assert 0.05 < time.monotonic() - began < 5
            assert bases((await connection.fetch("topic", 1, wait_ms=60, bytes_min=10_000)).batches) == [1]
            assert await connection.fetch_all(FetchRequest(LONG_MS, 1, 1000, [])) == []

    serve(tmp_path, test)


def test_a_fetch_of_a_topic_that_is_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            waiting = asyncio.ensure_future(connection.fetch("topic", 2, wait_ms=500))
            broker = broker_of(served)
            await until(lambda: broker._waiting)
            topic = served.node.metadata.image.topics["topic"]
            await served.node.metadata.delete_topic(topic.id)
            await until(lambda: not served.node.holds(topic.partitions()[0]))
            assert (await waiting).error == ErrorCode.unknown_topic_or_partition

    serve(tmp_path, test)


def test_another_leader_answers_a_waiting_fetch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            waiting = asyncio.ensure_future(connection.fetch("topic", 2, wait_ms=LONG_MS))
            broker = broker_of(served)
            await until(lambda: broker._waiting)
            monkeypatch.setattr(served.node, "is_leader", lambda _: False)
            broker._settled(served.node.metadata.image.topics["topic"].partitions()[0])
            assert (await waiting).error == ErrorCode.not_leader_or_follower

    serve(tmp_path, test)


def test_a_read_that_does_not_come_back_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10))
            monkeypatch.setattr(served.node, "fetch", lambda *_: None)
            monkeypatch.setattr(kafka_fetch, "READ_TIMEOUT_S", 0.03)
            assert (await connection.fetch("topic", 1, wait_ms=10)).error == ErrorCode.kafka_storage_error

    serve(tmp_path, test)


def test_what_was_left_out_as_void_is_an_empty_batch_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", batch_of(10), batch_of(10, 3), batch_of(10))
            fetch = served.node.fetch

            def without_the_second(partition: Any, offset: int, bytes_max: int, done: Any) -> None:
                def got(frames: Any, commit: int) -> None:
                    done([frame for frame in frames if frame.header.offset != 2], commit)

                fetch(partition, offset, bytes_max, got)

            monkeypatch.setattr(served.node, "fetch", without_the_second)
            for offset, covered in ((1, [(1, 1, 1), (2, 3, 0), (5, 1, 1)]), (3, [(3, 2, 0), (5, 1, 1)])):
                found = (await connection.fetch("topic", offset)).batches
                headers = [batch.verify(content) for content in found]
                assert [
                    (each.base_offset, each.offsets_count, each.record_count) for each in headers
                ] == covered

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("reads_max", "covered"),
    [(64, [(1, 2, 0), (3, 1, 1)]), (1, [(1, 1, 0), (2, 1, 0)])],
    ids=["read on", "too many"],
)
def test_blanks_alone_are_no_answer_while_records_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_max: int, covered: list[tuple[int, int, int]]
) -> None:
    """Compacted segments of which nothing is left, each a read of its own."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", *[batch_of(10)] * 3)
            fetch = served.node.fetch

            def one_by_one(partition: Any, offset: int, bytes_max: int, done: Any) -> None:
                def got(frames: list[Frame], commit: int) -> None:
                    done([blank(frame) if frame.header.offset < 3 else frame for frame in frames[:1]], commit)

                fetch(partition, offset, bytes_max, got)

            monkeypatch.setattr(served.node, "fetch", one_by_one)
            monkeypatch.setattr(kafka_fetch, "BLANKS_READ_MAX", reads_max)
            assert await covered_from(connection, 1) == covered

    serve(tmp_path, test)


def test_blanks_at_the_end_are_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await fill(connection, "topic", *[batch_of(10)] * 3)
            fetch = served.node.fetch

            def only_blanks(partition: Any, offset: int, bytes_max: int, done: Any) -> None:
                fetch(
                    partition,
                    offset,
                    bytes_max,
                    lambda frames, commit: done([*map(blank, frames[:1])], commit),
                )

            monkeypatch.setattr(served.node, "fetch", only_blanks)
            assert await covered_from(connection, 1) == [(1, 2, 0), (3, 1, 0)]

    serve(tmp_path, test)


def blank(frame: Frame) -> Frame:
    content = batch.encode_blank(first=frame.header.offset, last=frame.header.last)
    return structs.replace(frame, payload=memoryview(content))


async def covered_from(connection: Connection, offset: int) -> list[tuple[int, int, int]]:
    headers = [batch.verify(content) for content in (await connection.fetch("topic", offset)).batches]
    return [(each.base_offset, each.offsets_count, each.record_count) for each in headers]
