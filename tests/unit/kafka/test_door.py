"""The stream of requests: how it may be cut, in which order it is answered, and what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.kafka import Broker, broker, door, offsets
from quorate.kafka.call import CROWDED
from quorate.node import Node
from quorate.wire import fetch
from quorate.wire.fetch import FetchRequest, WantedPartition, WantedTopic
from quorate.wire.messages import VERSIONS, Api, decode_response
from tests.unit.kafka.harness import Connection, Served, produce_values, serve, until

VERSIONS_ASKED = {"client_software_name": "test", "client_software_version": "1"}


LATEST = {
    "replica_id": -1,
    "isolation_level": 0,
    "topics": [{"name": "topic", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
}
ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def waiting_fetch(correlation: int, topic: str, offset: int, wait_ms: int) -> bytes:
    wanted = WantedTopic(topic, bytes(16), [WantedPartition(0, offset, 1 << 20)])
    return bytes(fetch.encode_request(12, correlation, None, FetchRequest(wait_ms, 1, 1 << 20, [wanted])))


def correlation_of(response: bytes) -> int:
    return int.from_bytes(response[:4], "big")


def test_requests_may_be_cut_anywhere(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            requests = b"".join(connection.request(Api.API_VERSIONS, VERSIONS_ASKED) for _ in range(3))
            for cut in range(len(requests)):
                await connection.send(requests[:cut])
                await asyncio.sleep(0)
                await connection.send(requests[cut:])
                assert [correlation_of(await connection.receive()) for _ in range(3)] == [1, 2, 3]
            for byte in requests:
                await connection.send(bytes((byte,)))
                await asyncio.sleep(0)
            assert [correlation_of(await connection.receive()) for _ in range(3)] == [1, 2, 3]

    serve(tmp_path, test)


def test_a_request_of_many_chunks_arrives_whole(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("large", max_message_bytes=str(8 << 20))
            batch = encode_records([(None, bytes(1000))] * 5000)
            assert len(batch) > 4 << 20
            answer = await connection.produce("large", batch)
            assert (answer.error_code, answer.base_offset) == (0, 1)
            found = await connection.fetch("large", 1, partition_bytes_max=1)
            assert found.batches[0][61:] == batch[61:]

    serve(tmp_path, test)


def test_answers_keep_the_order_of_requests_that_are_done_in_another(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as waiting, await served.connect() as other:
            await waiting.create("ordered")
            quick = [waiting.request(Api.API_VERSIONS, VERSIONS_ASKED) for _ in range(2)]
            await waiting.send(waiting_fetch(100, "ordered", 1, 60_000) + quick[0] + quick[1])
            await other.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            assert (await other.produce("ordered", encode_records([(None, b"wake")]))).error_code == 0
            assert [correlation_of(await waiting.receive()) for _ in range(3)] == [100, 2, 3]

    serve(tmp_path, test)


def test_what_cannot_be_read_ends_the_connection_with_a_line_in_the_log(tmp_path: Path) -> None:
    metadata = b"\0\3\0\4\0\0\0\1\xff\xff"
    cases = {
        b"\x7f\xff\xff\xff": "a request of 2147483647 bytes; at most 104857600 are taken",
        b"\0\0\0\0": "a request of 0 bytes",
        b"\0\0\0\2\0\3": "the message ends at byte 2, inside a field",
        b"\0\0\0\x0e" + metadata + b"\x7f\xff\xff\xff": "request 3 version 4: 2147483647 elements",
        b"\0\0\0\x0a" + b"\0\5\0\0" + bytes(6): "request 5 version 0: this request is not served",
        b"\0\0\0\x0a\0\1\0\3" + bytes(6): "request 1 version 3: this version is not served, only 4 to 16",
    }

    async def test(served: Served) -> None:
        for content, line in cases.items():
            async with await served.connect() as connection:
                await connection.send(content)
                assert await connection.is_closed()
            assert line in served.said[-1]
            assert served.said[-1].endswith("; disconnected")
            assert served.said[-1].startswith("node 1: Kafka client 127.0.0.1:")

    serve(tmp_path, test)


def test_requests_before_a_bad_one_are_answered(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            good = connection.request(Api.API_VERSIONS, VERSIONS_ASKED)
            await connection.send(good + b"\xff\xff\xff\xff")
            assert correlation_of(await connection.receive()) == 1
            assert await connection.is_closed()

    serve(tmp_path, test)


def test_a_client_with_too_many_requests_under_way_is_held_back_and_served(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await other.create("busy")
            count = 2 * door.UNANSWERED_COUNT_MAX
            await connection.send(b"".join(waiting_fetch(n, "busy", 1, 60_000) for n in range(count)))
            await until(lambda: any(door._held_back for door in broker_of(served).doors))
            assert (await other.produce("busy", encode_records([(None, b"wake")]))).error_code == 0
            assert [correlation_of(await connection.receive()) for _ in range(count)] == list(range(count))
            assert not any(door._held_back for door in broker_of(served).doors)

    serve(tmp_path, test)


def broker_of(served: Served) -> Broker:
    """The one that watches this node."""
    watcher = served.node._watchers[0]
    broker = watcher.__self__  # type: ignore[attr-defined]
    assert isinstance(broker, Broker)
    return broker


def test_a_client_that_goes_leaves_nothing_waiting(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as other:
            await other.create("left")
            leaving = await served.connect()
            await leaving.send(waiting_fetch(1, "left", 1, 60_000))
            broker = broker_of(served)
            await until(lambda: broker._waiting)
            async with leaving:
                pass
            await until(lambda: not broker._waiting)
            assert (await other.produce("left", encode_records([(None, b"value")]))).error_code == 0

    serve(tmp_path, test)


def test_acks_0_gets_no_answer_and_a_failure_ends_the_connection(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("silent")
            batch = encode_records([(None, b"value")])
            await connection.send(connection.request(Api.PRODUCE, produce_values("silent", batch, acks=0)))
            body = await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            assert body.error_code == 0
            assert len(await fetched_values(connection, "silent")) == 1
            await connection.send(connection.request(Api.PRODUCE, produce_values("nowhere", batch, acks=0)))
            assert await connection.is_closed()
            assert "a batch for nowhere, partition 0 with acks=0 failed with error 3" in served.said[-1]

    serve(tmp_path, test)


def test_nothing_behind_a_request_that_ended_the_connection_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was cut: the bad one comes in two pieces, and a good one with the second."""
    kept: list[int] = []
    keep = door.Door._keep

    def noted(self: door.Door, data: bytes, wanted: int) -> None:
        kept.append(wanted)
        keep(self, data, wanted)

    monkeypatch.setattr(door.Door, "_keep", noted)

    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await other.create("topic")
            batch = encode_records([(None, b"value")])
            bad = connection.request(Api.PRODUCE, produce_values("nowhere", batch, acks=0))
            good = connection.request(Api.PRODUCE, produce_values("topic", batch, acks=0))
            kept.clear()
            await connection.send(bad[:20])
            await until(lambda: bool(kept))
            await connection.send(bad[20:] + good)
            assert await connection.is_closed()
            await other.ask(Api.PRODUCE, produce_values("topic", batch))
            assert len(await fetched_values(other, "topic")) == 1

    serve(tmp_path, test)


async def fetched_values(connection: Connection, topic: str) -> list[bytes]:
    found = await connection.fetch(topic, 1, wait_ms=5000)
    return [bytes(batch) for batch in found.batches]


def test_a_client_of_the_future_learns_what_is_served(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.send(b"\0\0\0\x0e" + b"\0\x12\0\x63\0\0\0\7\0\0" + b"tags")
            correlation, body = decode_response(Api.API_VERSIONS, 0, await connection.receive())
            assert correlation == 7
            assert body.error_code == 35
            offered = {key.api_key: (key.min_version, key.max_version) for key in body.api_keys}
            assert offered[Api.API_VERSIONS] == (0, 4)
            body = await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED, offered[Api.API_VERSIONS][1])
            assert body.error_code == 0

    serve(tmp_path, test)


@pytest.mark.parametrize("larger_comes_first", [False, True])
def test_where_unfinished_requests_are_too_much_the_largest_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, larger_comes_first: bool
) -> None:
    monkeypatch.setattr(door, "RECEIVING_BYTES_MAX", 10_000)
    larger, smaller = ((50_000).to_bytes(4, "big") + bytes(count) for count in (7_000, 4_000))

    async def test(served: Served) -> None:
        async with await served.connect() as hostile, await served.connect() as honest:
            order = [(hostile, larger), (honest, smaller)]
            broker = broker_of(served)
            first, second = order if larger_comes_first else reversed(order)
            await first[0].send(first[1])
            await until(lambda: broker.receiving_bytes == len(first[1]))
            await second[0].send(second[1])
            assert await hostile.is_closed()
            line = "more than 10000 bytes of unfinished requests are here, most of them from it; disconnected"
            assert served.said[-1].endswith(line)
            await until(lambda: broker.receiving_bytes == len(smaller))
        await until(lambda: not broker.doors)
        assert broker.receiving_bytes == 0
        async with await served.connect() as third:
            await third.create("topic")
            assert (await third.produce("topic", encode_records([(None, bytes(9000))]))).error_code == 0
            assert broker.receiving_bytes == 0

    serve(tmp_path, test)


def test_who_begins_a_request_and_does_not_end_it_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as stalled, await served.connect() as steady:
            monkeypatch.setattr(door, "REQUEST_TIMEOUT_S", 0.2)
            for connection in (stalled, steady):
                await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
                request = connection.request(Api.API_VERSIONS, VERSIONS_ASKED)
                await connection.send(request[:-1])
            await steady.send(request[-1:])
            await steady.receive()
            assert await stalled.is_closed()
            assert served.said[-1].endswith("no whole request in time; disconnected")
            await steady.ask(Api.API_VERSIONS, VERSIONS_ASKED)

    serve(tmp_path, test)


def test_where_answers_wait_to_be_taken_whoever_keeps_them_waiting_for_longest_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_bytes = 16 << 20  # Far more than the system takes for a connection.
    monkeypatch.setattr(door, "UNTAKEN_BYTES_MAX", answer_bytes)
    wanted = WantedTopic("much", bytes(16), [WantedPartition(0, 1, answer_bytes)])
    asking = bytes(fetch.encode_request(12, 7, None, FetchRequest(0, 1, answer_bytes, [wanted])))

    async def test(served: Served) -> None:
        async with (
            await served.connect() as writer,
            await served.connect() as hostile,
            await served.connect() as honest,
        ):
            await writer.create("much")
            for _ in range(16):
                await writer.produce("much", encode_records([(None, bytes(1_000_000))]))
            found = broker_of(served)
            await hostile.send(asking)
            await until(lambda: len(found.untaken) == 1)
            await honest.send(asking)
            line = "answers wait to be taken, its own for longest; disconnected"
            await until(lambda: served.said[-1].endswith(line))
            await until(lambda: len(found.doors) == 2)
            assert len(await honest.receive()) > answer_bytes * 3 // 4
            await until(lambda: not found.untaken)

    serve(tmp_path, test)


def test_writes_wait_outside_while_too_much_is_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = encode_records([(None, b"value")])

    async def test(served: Served) -> None:
        found = broker_of(served)
        async with await served.connect() as writer:
            await writer.create("topic")
            async with await served.connect() as crowd:
                await crowd.send(b"".join(waiting_fetch(n, "topic", 1, 60_000) for n in range(100)))
                await until(lambda: found.unanswered_bytes > 5_000)
                monkeypatch.setattr(broker, "UNANSWERED_BYTES_MAX", 5_000)
                answer = await writer.produce("topic", content)
                assert answer.error_code == ErrorCode.not_enough_replicas
                assert answer.error_message == CROWDED
                numbered = encode_records([(None, b"v")], producer_id=9, producer_epoch=0, base_sequence=0)
                answer = await writer.produce("topic", numbered)
                assert answer.error_code == ErrorCode.not_enough_replicas_after_append
                assert (await writer.ask(Api.METADATA, ALL_TOPICS)).topics
            await until(lambda: found.unanswered_bytes == 0)
            assert (await writer.produce("topic", content)).error_code == 0

    serve(tmp_path, test)


def test_a_write_that_waits_for_others_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            monkeypatch.setattr(Node, "propose", lambda *_: None)  # Nobody ever answers.
            values = produce_values("topic", encode_records([(None, bytes(100_000))]))
            await connection.send(connection.request(Api.PRODUCE, values))
            (found,) = broker_of(served).doors
            await until(lambda: found._calls)
            (call,) = found._calls
            assert call.request_bytes > 100_000
            assert len(call.frame) == 0
            monkeypatch.undo()

    serve(tmp_path, test)


def test_fetches_of_a_client_that_reads_nothing_are_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks for a megabyte in sixty bytes; when it reads at last, it gets every answer."""
    count, content = 100, encode_records([(None, bytes(1 << 20))])
    fetched: list[int] = []
    fetch_of_node = Node.fetch

    def counted(node: Node, *arguments: Any) -> None:
        fetched.append(1)
        fetch_of_node(node, *arguments)

    monkeypatch.setattr(Node, "fetch", counted)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic", max_message_bytes="2000000")
            await connection.produce("topic", content)
            wanted = [WantedTopic("topic", bytes(16), [WantedPartition(0, 1, 2 << 20)])]
            request = fetch.encode_request(12, 7, "test", FetchRequest(0, 1, 2 << 20, wanted))
            transport = cast(asyncio.ReadTransport, connection.writer.transport)
            transport.pause_reading()
            await connection.send(bytes(request) * count)
            before = -1
            while before != len(fetched):  # Until it comes to rest by itself.
                before = len(fetched)
                async with await served.connect() as other:
                    for _ in range(20):
                        await other.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            assert 0 < len(fetched) < count // 2
            transport.resume_reading()
            for _ in range(count):
                assert len(await connection.receive()) > 1 << 20
            assert len(fetched) == count

    serve(tmp_path, test)


def test_a_bug_in_a_request_costs_its_connection_and_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            with monkeypatch.context() as patched:
                patched.setattr(offsets.Listing, "_answer", buggy)
                newest = (Api.METADATA, VERSIONS[Api.METADATA][1])
                patched.setitem(broker._SERVED, newest, buggy)
                for api, values in ((Api.LIST_OFFSETS, LATEST), (Api.METADATA, ALL_TOPICS)):
                    async with await served.connect() as other:
                        await other.send(other.request(api, values))
                        assert await other.is_closed()
            assert sum("a bug of ours" in line for line in served.said) == 2
            answer = await connection.produce("topic", encode_records([(None, b"still here")]))
            assert answer.error_code == 0

    serve(tmp_path, test)
