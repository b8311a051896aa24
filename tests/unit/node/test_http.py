"""The window of a node: what is answered over HTTP, and who is cut off."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from quorate.batch import encode_records
from quorate.node import http
from quorate.node.http import BadHttp, parse_head
from quorate.node.state import why_not_ready
from tests.unit.kafka.harness import TIMEOUT_S, Served, serve, until
from tests.unit.node.exposition_reading import Exposition

ANYWHERE = "127.0.0.1:0"


def window(served: Served) -> int:
    """The port: the node says which the system chose."""
    return next(
        int(found[1]) for line in served.said if (found := re.search(r"HTTP on 127.0.0.1:(\d+)", line))
    )


async def ask(served: Served, content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer, after which the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", window(served))
    try:
        writer.write(content)
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["Connection"] == "close"
    return int(first.split(" ")[1]), headers, body


async def get(served: Served, path: str) -> tuple[int, bytes]:
    status, headers, body = await ask(served, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert int(headers["Content-Length"]) == len(body)
    return status, body


def test_a_node_that_is_ready_says_so_and_what_it_counts_and_knows(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        assert await get(served, "/health") == (200, b"alive\n")
        await until(lambda: not why_not_ready(served.node))
        assert await get(served, "/ready") == (200, b"ready\n")
        async with await served.connect() as client:
            await client.create("events", partitions=2)
            both = served.node.metadata.image.topics["events"].partitions()
            await until(lambda: all(map(served.node.leads_with_all, both)))
            batch = encode_records([(None, b"x" * 100)])
            assert (await client.produce("events", batch)).error_code == 0
            assert (await client.produce("nowhere", batch)).error_code == 3
            assert (await client.fetch("events", 0)).error == 0
            status, body = await get(served, "/metrics")
            assert status == 200
            page = Exposition(body.decode())
            assert page.value("quorate_produce_batches_total") >= 1
            assert page.value("quorate_produce_bytes_total") >= len(batch)
            assert page.value("quorate_produce_requests_total") >= 2
            assert page.value("quorate_fetch_requests_total") == 1
            assert page.value("quorate_fetch_bytes_total") >= len(batch)
            assert page.value("quorate_client_requests_total", client="test") == 4
            assert page.value("quorate_client_request_bytes_total", client="test") >= 2 * len(batch)
            assert page.value("quorate_client_answer_bytes_total", client="test") >= len(batch)
            errors = page.by("quorate_request_errors_total")
            assert errors[("request", "produce"), ("error", "unknown_topic_or_partition")] == 1
            assert page.value("quorate_commit_seconds_count", protocol="raft") >= 1
            assert page.value("quorate_commit_seconds_count", protocol="metadata") >= 1
            assert page.value("quorate_flush_seconds_count") >= 1
            assert page.value("quorate_replicas", protocol="raft", role="leader") == 2
            assert page.value("quorate_replicas", protocol="metadata", role="leader") == 1
            assert page.value("quorate_connections", kind="kafka") == 1
            assert page.value("quorate_ready") == 1
            assert page.value("quorate_unsettled_seconds") < TIMEOUT_S
            free_bytes, total_bytes = (page.value(f"quorate_disk_{what}_bytes") for what in ("free", "total"))
            assert 0 < free_bytes <= total_bytes
        status, body = await get(served, "/state?pretty")
        told = msgspec.json.decode(body)
        assert (told["cluster"], told["node"], told["ready"]) == ("test", 1, True)
        assert told["metadata"]["leader"] == 1
        assert told["nodes"][0]["rack"] == "b"
        assert told["topics"][0]["partitions"][1]["copies"] == [1]
        assert {replica["partition"] for replica in told["replicas"]} == {"metadata", "events/0", "events/1"}

    serve(tmp_path, test, http=ANYWHERE, rack="b")


def test_whoever_asks_for_something_else_hears_what_there_is(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        status, headers, body = await ask(served, b"HEAD /health HTTP/1.1\r\n\r\n")
        assert (status, body, headers["Content-Length"]) == (200, b"", "6")
        status, headers, body = await ask(served, b"POST /health HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert (await get(served, "/"))[0] == 404
        assert b"/metrics" in (await get(served, "/nothing"))[1]
        for nonsense in (b"", b"GET /health", b"\xff\xfe /x HTTP/1.1", b"\x16\x03\x01"):
            assert (await ask(served, nonsense + b"\r\n\r\n"))[0] == 400
        long = b"GET /health HTTP/1.1\r\nX: " + b"x" * http.HEAD_BYTES_MAX
        assert (await ask(served, long))[0] == 431
        assert (await ask(served, long + b"\r\n\r\n"))[0] == 431
        assert await get(served, "/health") == (200, b"alive\n")

    serve(tmp_path, test, http=ANYWHERE)


def test_a_request_that_comes_in_pieces_is_answered_and_one_that_never_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", window(served))
        for piece in (b"GET /hea", b"lth HTTP/1.1\r", b"\n\r", b"\n"):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.read()).endswith(b"alive\n")
        writer.close()
        monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
        assert (await ask(served, b"GET /health HTTP/1.1\r\n"))[0] == 408

    serve(tmp_path, test, http=ANYWHERE)


def test_connections_beyond_the_bound_are_cut_off_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        monkeypatch.setattr(http, "CONNECTIONS_COUNT_MAX", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", window(served))
        await until(lambda: served.node.metrics.connections["http"]() == 1)
        other, others_writer = await asyncio.open_connection("127.0.0.1", window(served))
        async with asyncio.timeout(TIMEOUT_S):
            try:
                assert await other.read() == b""
            except ConnectionResetError:
                pass
        others_writer.close()
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.read()).endswith(b"alive\n")
        writer.close()

    serve(tmp_path, test, http=ANYWHERE)


def test_a_bug_of_ours_in_an_answer_does_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> str:
        raise AssertionError("a bug of ours")

    async def test(served: Served) -> None:
        monkeypatch.setattr(http, "exposition", broken)
        status, body = await get(served, "/metrics")
        assert (status, b"a bug of ours" in body) == (500, True)
        assert sum("AssertionError: a bug of ours" in line for line in served.said) == 1
        assert await get(served, "/health") == (200, b"alive\n")

    serve(tmp_path, test, http=ANYWHERE)


def test_a_node_that_was_told_no_address_listens_for_nobody(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        assert not any("HTTP on" in line for line in served.said)

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/2", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"get / HTTP/1.1", 405),
        (b"DELETE / HTTP/1.0", 405),
    ],
)
def test_a_head_that_is_none(head: bytes, status: int) -> None:
    with pytest.raises(BadHttp) as refused:
        parse_head(head)
    assert refused.value.status == status


def test_what_follows_a_question_mark_makes_no_difference() -> None:
    assert parse_head(b"GET /metrics?name[]=x HTTP/1.1\r\nHost: x") == ("GET", "/metrics")
