"""Joint commits that take long: one goes on while it is asked for again, for as long as its caller says."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quorate.batch import encode_records
from quorate.client import CommitFailed, Joint, Unreachable
from quorate.client.cluster import TRY_S
from quorate.node import transactions
from quorate.wire import joint as wire
from tests.unit.kafka.harness import Served, serve
from tests.unit.kafka.test_transactions import TOPIC, until_seen


def joint(served: Served, *, timeout_s: float) -> Joint:
    return Joint(f"127.0.0.1:{served.port}", "query", "run-1", timeout_s=timeout_s)


def staged(one: Joint, number: int = 0) -> wire.Part:
    writer = one.writer(one.open(number, task=0, attempt=0))
    writer.append(TOPIC, {partition: encode_records([(None, b"row")]) for partition in (0, 1)})
    return writer.part()


def counts_asked(
    monkeypatch: pytest.MonkeyPatch, *, answered_after_s: float | None, slow: tuple[int, ...] = (0, 1)
) -> Counter[int]:
    """Leaders that are slow to count (None: they never answer); how often which partition was asked."""
    count, asked = transactions.count_records, Counter[int]()

    def slowly(node: Any, request: Any, answer: Any) -> None:
        number = int.from_bytes(request.partition[16:])
        asked[number] += 1
        if number not in slow:
            count(node, request, answer)
        elif answered_after_s is not None:
            asyncio.get_running_loop().call_later(answered_after_s, in_turn, node, request, answer)

    def in_turn(node: Any, *order: Any) -> None:
        node.begin_turn()
        count(node, *order)
        node.end_turn()

    monkeypatch.setattr(transactions, "count_records", slowly)
    return asked


def test_a_commit_that_takes_longer_than_one_try_goes_on_and_each_partition_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=TRY_S + 0.5)

    def client(served: Served) -> None:
        with joint(served, timeout_s=4 * TRY_S) as one:
            assert one.commit(0, [staged(one)]).already_in is False

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await asyncio.to_thread(client, served)
            assert asked == {0: 1, 1: 1}
            assert served.node.metrics.joint_repeated == 0
            for number in (0, 1):
                await until_seen(connection, [b"row"], number=number)

    serve(tmp_path, test)


def test_a_caller_that_has_waited_in_vain_hears_for_which_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None, slow=(1,))

    def client(served: Served) -> None:
        with joint(served, timeout_s=10.0) as one:
            part = staged(one)
        with joint(served, timeout_s=2.0) as one, pytest.raises(Unreachable, match=f"1 part.*{TOPIC}"):
            one.commit(0, [part])

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await asyncio.to_thread(client, served)
            assert asked == {0: 1, 1: 1}

    serve(tmp_path, test)


def test_what_one_leader_says_against_a_commit_is_told_though_another_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_asked(monkeypatch, answered_after_s=None, slow=(1,))

    def client(served: Served) -> None:
        with joint(served, timeout_s=60.0) as one:
            part = staged(one)
            first, second = part.written
            too_many = wire.Part(part.producer_id, (replace(first, count=first.count + 1), second))
            with pytest.raises(CommitFailed, match="1 settled records in events, and 2 are listed"):
                one.commit(0, [too_many])

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            async with asyncio.timeout(30):
                await asyncio.to_thread(client, served)

    serve(tmp_path, test)
