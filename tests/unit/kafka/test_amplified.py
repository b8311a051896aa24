"""Small requests that would cost much: what is named again and again is answered once, large answers come one at a
time, and what waits to be looked into has a bound, whether or not its sender is still there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.kafka import keys, metadata, offsets
from quorate.kafka.call import CROWDED
from quorate.wire import fetch
from quorate.wire.fetch import FetchRequest, WantedPartition, WantedTopic
from quorate.wire.messages import Api, decode_response
from tests.unit.kafka.harness import Connection, Served, produce_values, serve, until
from tests.unit.kafka.test_door import ALL_TOPICS, VERSIONS_ASKED, broker_of
from tests.unit.kafka.test_keys import packed

MANY = 1000
GROUP = "readers"


async def with_a_position(connection: Connection) -> None:
    await connection.ask(Api.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [GROUP]})
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "noted"}
    values = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "topic", "partitions": [place]}],
    }
    (topic,) = (await connection.ask(Api.OFFSET_COMMIT, values)).topics
    assert topic.partitions[0].error_code == ErrorCode.none


def asked_of_group(*numbers: int) -> dict[str, Any]:
    topics = [{"name": "topic", "partition_indexes": numbers}]
    return {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": topics}


def test_what_is_named_a_thousand_times_is_answered_once(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            await with_a_position(connection)
            wanted: dict[str, Any] = ALL_TOPICS | {"topics": [{"name": "topic", "topic_id": None}] * MANY}
            assert len((await connection.ask(Api.METADATA, wanted)).topics) == 1
            resource = {"resource_type": 2, "resource_name": "topic", "configuration_keys": None}
            wanted = {
                "resources": [resource] * MANY,
                "include_synonyms": False,
                "include_documentation": False,
            }
            assert len((await connection.ask(Api.DESCRIBE_CONFIGS, wanted)).results) == 1
            wanted = {"topics": [{"name": "topic", "partition_indexes": [0] * MANY}] * 2}
            (topic,) = (await connection.ask(Api.DESCRIBE_PRODUCERS, wanted)).topics
            assert [each.partition_index for each in topic.partitions] == [0]
            wanted = {"transactional_ids": ["one"] * MANY}
            assert len((await connection.ask(Api.DESCRIBE_TRANSACTIONS, wanted)).transaction_states) == 1
            wanted = {"groups": [GROUP] * MANY, "include_authorized_operations": False}
            assert len((await connection.ask(Api.DESCRIBE_GROUPS, wanted)).groups) == 1
            wanted = {"groups": [asked_of_group(*[0] * MANY)], "require_stable": True}
            (group,) = (await connection.ask(Api.OFFSET_FETCH, wanted)).groups
            assert [each.metadata for each in group.topics[0].partitions] == ["noted"]

    serve(tmp_path, test)


def test_whoever_asks_for_the_same_again_and_again_is_disconnected(tmp_path: Path) -> None:
    """Each place of such a fetch would be looked at whenever somebody writes to the one partition."""
    repeated = [WantedTopic("topic", bytes(16), [WantedPartition(0, 1, 1 << 20)] * MANY)]
    fetched = bytes(fetch.encode_request(11, 1, None, FetchRequest(60_000, 1, 1 << 20, repeated)))

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            groups = {"groups": [asked_of_group(0)] * 2, "require_stable": True}
            for request, line in (
                (fetched, "1000 partitions, and some of them more than once; disconnected"),
                (connection.request(Api.OFFSET_FETCH, groups), "a group is there twice in one request; disc"),
            ):
                async with await served.connect() as hostile:
                    await hostile.send(request)
                    assert await hostile.is_closed()
                assert line in served.said[-1]
            assert (await connection.produce("topic", encode_records([(None, b"value")]))).error_code == 0

    serve(tmp_path, test)


def test_large_answers_are_not_made_for_a_client_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata of many partitions in thirty bytes, two thousand times in one chunk."""
    count, made = 900, []
    answer = metadata.MetadataCache.answer

    def counted(self: metadata.MetadataCache, call: Any) -> bytes:
        made.append(1)
        return answer(self, call) + bytes(1 << 20)

    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            monkeypatch.setattr(metadata.MetadataCache, "answer", counted)
            request = connection.request(Api.METADATA, ALL_TOPICS)
            transport = cast(asyncio.ReadTransport, connection.writer.transport)
            transport.pause_reading()
            await connection.send(request * count)
            before = -1
            while before != len(made):  # Until it comes to rest by itself.
                before = len(made)
                for _ in range(50):
                    await other.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            assert 0 < before < count // 10
            transport.resume_reading()
            for _ in range(2 * before):
                assert len(await connection.receive()) > 1 << 20

    serve(tmp_path, test)


def test_a_connection_looks_for_one_time_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, most = [0], [0]
    first_at = offsets.Listing._first_at

    async def counted(self: offsets.Listing, *arguments: Any) -> Any:
        looking[0] += 1
        most[0] = max(most[0], looking[0])
        for _ in range(20):
            await asyncio.sleep(0)
        looking[0] -= 1
        return await first_at(self, *arguments)

    monkeypatch.setattr(offsets.Listing, "_first_at", counted)
    place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 5}
    asked = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "topic", "partitions": [place]}],
    }

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            await connection.send(connection.request(Api.LIST_OFFSETS, asked) * 20)
            for _ in range(20):
                await connection.receive()
            assert most == [1]
            broker_of(served).looking = asyncio.Semaphore(2)
            others = [await served.connect() for _ in range(6)]
            await asyncio.gather(*(each.ask(Api.LIST_OFFSETS, asked) for each in others))
            assert most == [2]
            for each in others:
                async with each:
                    pass

    serve(tmp_path, test)


def test_batches_that_wait_to_be_looked_into_have_a_bound_though_their_sender_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = 9
    large = packed([(b"k", bytes(2 * keys.AT_ONCE_BYTES_MAX))])
    monkeypatch.setattr(keys, "WAITING_BYTES_MAX", 3 * len(large))

    async def test(served: Served) -> None:
        broker = broker_of(served)
        async with await served.connect() as connection:
            await connection.create("compacted", cleanup_policy="compact")
            await connection.create("other")
            for _ in range(2):
                await broker.opening.acquire()  # As if others were looked into.
            async with await served.connect() as hostile:
                request = hostile.request(Api.PRODUCE, produce_values("compacted", large, acks=0), version)
                await hostile.send(request * 4)
                await until(lambda: broker.keys.is_crowded)
            await until(lambda: len(broker.doors) == 1)
            assert broker.unanswered_bytes == 0
            values = produce_values("compacted", large)
            await connection.send(connection.request(Api.PRODUCE, values, version))
            body = decode_response(Api.PRODUCE, version, await connection.receive())[1]
            answer = body.responses[0].partition_responses[0]
            assert (answer.error_code, answer.error_message) == (ErrorCode.not_enough_replicas, CROWDED)
            assert (await connection.produce("other", large)).error_code == 0
            for _ in range(2):
                broker.opening.release()
            await until(lambda: not broker.keys.is_crowded and not broker.keys._waiting_bytes)
            assert (await connection.produce("compacted", large)).base_offset == 1 + 4

    serve(tmp_path, test)
