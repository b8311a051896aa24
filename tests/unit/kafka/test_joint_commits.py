"""Joint commits that take long: one goes on while it is asked for again, for as long as its caller says."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quorate.batch import encode_records
from quorate.client import CommitFailed, Joint, Refused, Unreachable
from quorate.client.cluster import TRY_S
from quorate.kafka import joint as kafka_joint
from quorate.node import NodeFailed, transactions
from quorate.node.requests import CountRecords
from quorate.wire import joint as wire
from quorate.wire.messages import Api
from tests.unit.kafka.harness import Connection, Served, serve, until
from tests.unit.kafka.test_transactions import TOPIC, until_seen

OTHER = "others"
BOTH = {TOPIC: (0, 1)}
HOUR_S = 3600.0


def joint(served: Served, *, timeout_s: float, app: str = "query") -> Joint:
    return Joint(f"127.0.0.1:{served.port}", app, "run-1", timeout_s=timeout_s)


def staged(one: Joint, where: Mapping[str, tuple[int, ...]] = BOTH, *, open_s: float = 900.0) -> wire.Part:
    writer = one.writer(one.open(0, task=0, attempt=0, timeout_s=open_s))
    for topic, partitions in where.items():
        writer.append(topic, {partition: encode_records([(None, b"row")]) for partition in partitions})
    return writer.part()


async def staged_at(served: Served, where: Mapping[str, tuple[int, ...]] = BOTH, **how: float) -> wire.Part:
    def client() -> wire.Part:
        with joint(served, timeout_s=10.0) as one:
            return staged(one, where, **how)

    return await asyncio.to_thread(client)


async def commit(served: Served, *parts: wire.Part, app: str = "query", timeout_s: float = 20.0) -> bool:
    """Whether it was in already."""

    def client() -> bool:
        with joint(served, timeout_s=timeout_s, app=app) as one:
            return one.commit(0, parts).already_in

    return await asyncio.to_thread(client)


async def left(served: Served, part: wire.Part, asked: Counter[int]) -> None:
    """A commit that may take an hour, and whose caller has gone while it is counted."""
    async with await served.connect() as connection:
        await connection.send(wire.encode_request(commit_of(part), 1, "test"))
        await until(lambda: asked)


async def answer_to(connection: Connection, request: wire.Request) -> wire.Answer:
    await connection.send(wire.encode_request(request, 1, "test"))
    return wire.decode_answer(await connection.receive())[1]


def commit_of(part: wire.Part) -> wire.Commit:
    return wire.Commit("query", 0, "run-1", (part,), round(HOUR_S * 1000))


async def delete(connection: Connection, topic: str) -> None:
    values = {"topic_names": [topic], "timeout": timedelta(seconds=5)}
    (answer,) = (await connection.ask(Api.DELETE_TOPICS, values, 5)).responses
    assert answer.error_code == 0


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
    monkeypatch.setattr(kafka_joint, "SOON_S", 0.2)
    monkeypatch.setattr(kafka_joint, "UNASKED_S_MAX", TRY_S - 1.0)

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
        with joint(served, timeout_s=6.0) as one, pytest.raises(Unreachable, match=f"1 part.*{TOPIC}"):
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


# ---- what ends it while it is counted ----


@pytest.mark.parametrize(("at_a_time", "deleted"), [(64, TOPIC), (1, OTHER)], ids=["asked", "waiting"])
def test_a_topic_that_is_deleted_while_its_count_is_under_way_fails_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int, deleted: str
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None, slow=(0,))
    monkeypatch.setattr(kafka_joint, "COUNTING_MAX", at_a_time)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for topic in (TOPIC, OTHER):
                await connection.create(topic, partitions=2)
            part = await staged_at(served, {TOPIC: (0,), OTHER: (1,)})
            committing = asyncio.create_task(commit(served, part))
            await until(lambda: asked[0])
            await delete(connection, deleted)
            with pytest.raises(CommitFailed, match=f"topic '{deleted}' was deleted"):
                await committing

    serve(tmp_path, test)


def test_a_deleted_topic_that_is_not_listed_does_not_hold_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None, slow=(0,))

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for topic in (TOPIC, OTHER):
                await connection.create(topic, partitions=2)
            part = await staged_at(served, {TOPIC: (1,), OTHER: (0,)})
            listed = tuple(each for each in part.written if each.topic == TOPIC)
            committing = asyncio.create_task(commit(served, replace(part, written=listed)))
            await until(lambda: asked[0])
            await delete(connection, OTHER)
            assert await committing is False
            await until_seen(connection, [b"row"], number=1)

    serve(tmp_path, test)


def test_who_has_given_the_number_up_waits_for_no_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None)

    def give_up(served: Served) -> None:
        with joint(served, timeout_s=10.0) as one:
            assert one.abort(0)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            part = await staged_at(served)
            committing = asyncio.create_task(commit(served, part))
            await until(lambda: asked)
            await asyncio.to_thread(give_up, served)
            with pytest.raises(Refused, match="given up"):
                await committing

    serve(tmp_path, test)


def test_an_attempt_that_times_out_while_it_is_counted_fails_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_asked(monkeypatch, answered_after_s=None)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            part = await staged_at(served, open_s=3.0)
            with pytest.raises(CommitFailed, match="timed out"):
                await commit(served, part)

    serve(tmp_path, test)


# ---- nobody asks for it ----


def test_a_commit_that_nobody_asks_for_any_more_keeps_no_other_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None)
    monkeypatch.setattr(kafka_joint, "COMMITS_MAX", 1)
    monkeypatch.setattr(kafka_joint, "UNASKED_S_MAX", 1.0, raising=False)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await left(served, await staged_at(served), asked)
            assert await commit(served, app="another", timeout_s=10.0) is False
            assert any("nobody has asked for it" in line for line in served.said)

    serve(tmp_path, test)


def test_a_commit_whose_result_nobody_fetched_keeps_no_other_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=0.5)
    monkeypatch.setattr(kafka_joint, "COMMITS_MAX", 1)
    monkeypatch.setattr(kafka_joint, "KEPT_S", HOUR_S)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await left(served, await staged_at(served), asked)
            await until_seen(connection, [b"row"])
            assert await commit(served, app="another", timeout_s=10.0) is False

    serve(tmp_path, test)


def test_a_commit_ends_where_its_coordinator_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counts_asked(monkeypatch, answered_after_s=None)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await left(served, await staged_at(served), asked)
            monkeypatch.setattr(served.node, "leads_with_all", lambda _: False)
            await until(lambda: any("its coordinator is elsewhere now" in line for line in served.said))

    serve(tmp_path, test)


def test_who_lost_the_answer_to_a_commit_hears_it_again_and_who_has_it_that_the_number_is_in(
    tmp_path: Path,
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as first, await served.connect() as second:
            await first.create(TOPIC, partitions=2)
            part = await staged_at(served)
            assert await answer_to(first, commit_of(part)) == wire.Committed(0)
            assert await answer_to(second, commit_of(part)) == wire.Committed(0)
            assert await answer_to(second, commit_of(part)) == wire.Committed(0, already_in=True)
            assert served.node.metrics.joint_repeated == 1

    serve(tmp_path, test)


# ---- our bugs ----


def plant(monkeypatch: pytest.MonkeyPatch, served: Served, kind: type[Exception]) -> Counter[int]:
    """All counts fail, at one moment; how many have begun."""
    order, begun, failing = served.node.metadata.order, Counter[int](), asyncio.Event()

    async def fails(partition: Any, request: Any, **how: Any) -> Any:
        if not isinstance(request, CountRecords):
            return await order(partition, request, **how)
        begun[0] += 1
        asyncio.get_running_loop().call_later(0.3, failing.set)
        await failing.wait()
        raise kind("planted")

    monkeypatch.setattr(served.node.metadata, "order", fails)
    return begun


def is_cleared_up() -> bool:
    gc.collect()
    return not any(type(each) is kafka_joint.Committing for each in gc.get_objects())


@pytest.mark.parametrize("waits", [False, True], ids=["nobody waits", "somebody waits"])
def test_a_bug_in_a_commit_is_told_and_leaves_the_node_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(kafka_joint, "KEPT_S", 0.1)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            part = await staged_at(served)
            begun = plant(monkeypatch, served, RuntimeError)
            if waits:
                with pytest.raises(Unreachable, match="RuntimeError"):
                    await commit(served, part, timeout_s=3.0)
            else:
                await left(served, part, begun)
                await until(lambda: any("RuntimeError: planted" in line for line in served.said))
            await until(is_cleared_up)  # What nobody had looked at would stop the node now.
            assert (await connection.produce(TOPIC, encode_records([(None, b"x")]))).error_code == 0

    serve(tmp_path, test)


def test_an_assertion_that_does_not_hold_stops_the_node_though_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            part = await staged_at(served)
            begun = plant(monkeypatch, served, AssertionError)
            gc.disable()  # It is the commit that tells, and not what clears up behind it.
            try:
                await left(served, part, begun)
                await until(lambda: any("AssertionError: planted" in line for line in served.said))
            finally:
                gc.enable()

    with pytest.raises(NodeFailed, match="AssertionError: planted"):
        serve(tmp_path, test)
