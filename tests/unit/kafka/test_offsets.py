"""ListOffsets: the ends of a log, and the first record at or after a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.kafka.offsets import first_record_at
from quorate.wire import opening
from quorate.wire.messages import Api
from tests.unit.kafka.harness import Connection, Served, serve

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch_at(*times: int, compression: int = 0) -> bytes:
    builder: Any = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for number, time_ms in enumerate(times):
        assert builder.append(number, time_ms, b"key", b"value", []) is not None
    return bytes(builder.build())


async def offset_at(
    connection: Connection, time_ms: int, *, version: int = 7, **wanted: Any
) -> tuple[int, int, int]:
    """(error, time, offset)"""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_ms} | wanted
    topics = [{"name": "topic", "partitions": [partition]}]
    body = await connection.ask(
        Api.LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics}, version
    )
    found = body.topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_the_first_record_of_a_batch_at_or_after_a_time(compression: int) -> None:
    content = batch_at(100, 300, 200, 400, compression=compression)
    stamped = bytes(batch.stamp(content, offset=50, epoch=1))
    assert first_record_at(stamped, 0) == (100, 50)
    assert first_record_at(stamped, 150) == (300, 51)
    assert first_record_at(stamped, 400) == (400, 53)
    assert first_record_at(stamped, 401) is None


def test_a_batch_that_nobody_can_open_holds_no_time() -> None:
    content = bytearray(batch_at(100, 300, compression=1))
    content[batch.BATCH_MIN :] = bytes(len(content) - batch.BATCH_MIN)
    assert first_record_at(content, 0) is None


def test_no_time_is_found_in_a_batch_whose_records_lie_about_their_length() -> None:
    poison = bytes.fromhex(
        "0000000000000000000000760000000002825a77180000000000030000000000000000ffffffffffffffffffffffffffff"
        "ffffffffffffffff00000004ffffffff0f00c801c801020efeffffffffffffffff010933ceffffffff0f000ec801feffff"
        "ffffffffffff013700018080808080808080800180808080808080808001a759"
    )
    assert first_record_at(poison, 0) is None


def test_a_batch_that_would_be_too_large_is_named_by_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.opened, "__defaults__", (20,))
    content = batch.stamp(batch_at(100, 300, 200, compression=4), offset=50, epoch=1)
    assert first_record_at(content, 300) == (300, 50)


def test_ends_and_times_of_a_log(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            assert await offset_at(connection, -1) == (0, -1, 1)
            assert await offset_at(connection, -3) == (0, -1, -1)
            assert await offset_at(connection, 0) == (0, -1, -1)
            for number, times in enumerate([(100, 110), (500, 120), (300, 500)]):
                content = batch_at(*times, compression=number)
                assert (await connection.produce("topic", content)).error_code == 0
            for version in range(1, 8):
                assert await offset_at(connection, -2, version=version) == (0, -1, 0)
                assert await offset_at(connection, -1, version=version) == (0, -1, 7)
                assert await offset_at(connection, 105, version=version) == (0, 110, 2)
            # Times need not rise with offsets: the first record in the log counts.
            assert await offset_at(connection, 111) == (0, 500, 3)
            assert await offset_at(connection, 501) == (0, -1, -1)
            assert await offset_at(connection, -3) == (0, 500, 3)
            assert await offset_at(connection, -3, version=6) == (ErrorCode.unsupported_version, -1, -1)

    serve(tmp_path, test)


def test_a_topic_that_is_named_twice_is_answered_twice(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic", partitions=2)
            assert (await connection.produce("topic", batch_at(100))).error_code == 0
            topics = [
                {
                    "name": "topic",
                    "partitions": [{"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}],
                }
                for number in (0, 1)
            ]
            values = {"replica_id": -1, "isolation_level": 0, "topics": topics}
            body = await connection.ask(Api.LIST_OFFSETS, values)
            found = [
                (part.partition_index, part.offset) for topic in body.topics for part in topic.partitions
            ]
            assert found == [(0, 2), (1, 1)]

    serve(tmp_path, test)


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            unknown = (ErrorCode.unknown_topic_or_partition, -1, -1)
            assert await offset_at(connection, -1) == unknown
            await connection.create("topic")
            assert await offset_at(connection, -1, partition_index=1) == unknown
            fenced = await offset_at(connection, -1, current_leader_epoch=0)
            assert fenced == (ErrorCode.fenced_leader_epoch, -1, -1)

    serve(tmp_path, test)


def test_a_new_leader_names_no_end_before_it_has_settled_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            monkeypatch.setattr(served.node, "is_settled_leader", lambda _: False)
            assert await offset_at(connection, -2) == (0, -1, 0)
            assert await offset_at(connection, -1) == (ErrorCode.offset_not_available, -1, -1)
            not_available = (ErrorCode.leader_not_available, -1, -1)
            assert await offset_at(connection, 0, version=4) == not_available

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.NOT_LEADER, ErrorCode.not_leader_or_follower),
        (Outcome.UNKNOWN, ErrorCode.offset_not_available),
        (Outcome.TIMED_OUT, ErrorCode.offset_not_available),
        (None, ErrorCode.offset_not_available),
    ],
)
def test_an_end_is_not_named_before_it_is_sure_that_the_leader_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None, error: ErrorCode
) -> None:
    """None: a majority is silent."""
    monkeypatch.setattr("quorate.kafka.offsets.CURRENT_TIMEOUT_S", 0.05)

    async def test(served: Served) -> None:
        asked: list[ReadLevel] = []

        def read(_: Partition, level: ReadLevel, answer: Callable[[Reply], None]) -> None:
            asked.append(level)
            if outcome is not None:
                answer(Reply(1, outcome))

        async with await served.connect() as connection:
            await connection.create("topic")
            monkeypatch.setattr(served.node, "read", read)
            assert await offset_at(connection, -1) == (error, -1, -1)
            assert await offset_at(connection, 500) == (error, -1, -1)
            assert (await offset_at(connection, -2))[0] == ErrorCode.none
            assert asked == [ReadLevel.LINEARIZABLE] * 2

    serve(tmp_path, test)
