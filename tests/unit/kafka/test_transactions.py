"""Transactions at a served node: what producers ask of their coordinator, and what consumers see of it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import TRANSACTIONAL, decode_records, encode_records, parse_batch_header
from quorate.client import AttemptOver, CommitFailed, Joint, NumberIn, RunFenced
from quorate.kafka import transactions as kafka_transactions
from quorate.machine.transaction_words import Forget
from quorate.node import transactions
from quorate.wire.fetch import READ_COMMITTED, FetchedPartition, FetchRequest, WantedPartition, WantedTopic
from quorate.wire.joint import Part, Written
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, produce_values, serve, until
from tests.unit.kafka.test_door import ALL_TOPICS

NAME, TOPIC = "payments", "events"


class Producer:
    """A transactional producer, one request at a time."""

    def __init__(self, connection: Connection, name: str = NAME) -> None:
        self.connection = connection
        self.name = name
        self.id = self.epoch = -1
        self.sequence = 0

    async def begin(self, *, timeout_s: float = 60.0, keeps: bool = False) -> ErrorCode:
        """InitProducerId, as often as the coordinator asks for it."""
        values = {
            "transactional_id": self.name,
            "transaction_timeout": timedelta(seconds=timeout_s),
            "producer_id": self.id if keeps else -1,
            "producer_epoch": self.epoch if keeps else -1,
        }
        async with asyncio.timeout(10):
            while True:
                found = await self.connection.ask(Api.INIT_PRODUCER_ID, values)
                if found.error_code not in (
                    ErrorCode.concurrent_transactions,
                    ErrorCode.coordinator_not_available,
                    ErrorCode.not_coordinator,
                ):
                    break
                await asyncio.sleep(0.01)
        if not found.error_code:
            self.id, self.epoch, self.sequence = found.producer_id, found.producer_epoch, 0
        return ErrorCode(found.error_code)

    async def add(self, *numbers: int, topic: str = TOPIC, version: int | None = None) -> ErrorCode:
        """AddPartitionsToTxn, as often as the coordinator asks for it."""
        async with asyncio.timeout(10):
            while True:
                error = await self.add_once(*numbers, topic=topic, version=version)
                if error != ErrorCode.concurrent_transactions:
                    return error
                await asyncio.sleep(0.01)

    async def add_once(self, *numbers: int, topic: str = TOPIC, version: int | None = None) -> ErrorCode:
        values = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": numbers or (0,)}],
        }
        found = await self.connection.ask(Api.ADD_PARTITIONS_TO_TXN, values, version)
        (result,) = found.results_by_topic_v3_and_below
        return ErrorCode(result.results_by_partition[0].partition_error_code)

    async def write(self, *values: bytes, number: int = 0) -> ErrorCode:
        payload = encode_records(
            [(None, value) for value in values],
            attributes=TRANSACTIONAL,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        body = produce_values(TOPIC, payload, number) | {"transactional_id": self.name}
        answer = await self.connection.ask(Api.PRODUCE, body)
        (found,) = answer.responses[0].partition_responses
        if not found.error_code:
            self.sequence += len(values)
        return ErrorCode(found.error_code)

    async def end(self, *, commit: bool) -> ErrorCode:
        values = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        return ErrorCode((await self.connection.ask(Api.END_TXN, values)).error_code)


async def ready(served: Served, connection: Connection, *names: str) -> None:
    """The topic is there, and everybody has a coordinator."""
    await connection.create(TOPIC, partitions=2)
    for name in names or (NAME,):
        async with asyncio.timeout(10):
            while True:
                values = {"key": name, "key_type": 1, "coordinator_keys": [name]}
                found = (await connection.ask(Api.FIND_COORDINATOR, values)).coordinators[0]
                if not found.error_code:
                    break
                await asyncio.sleep(0.01)


async def committed(connection: Connection, number: int = 0, offset: int = 0) -> FetchedPartition:
    wanted = WantedPartition(number, offset, 1 << 20)
    request = FetchRequest(0, 1, 1 << 20, [WantedTopic(TOPIC, bytes(16), [wanted])], READ_COMMITTED)
    return (await connection.fetch_all(request))[0]


def seen(fetched: FetchedPartition) -> list[bytes]:
    """As a consumer of committed records has them."""
    values: list[bytes] = []
    begins = dict(sorted(fetched.aborted, key=lambda each: -each[1]))
    aborted: set[int] = set()
    for payload in fetched.batches:
        header = parse_batch_header(payload)
        first = begins.get(header.producer_id, 1 << 62)
        if first <= header.base_offset and header.is_transactional and not header.is_control:
            aborted.add(header.producer_id)
        if header.is_control:
            if header.producer_id in aborted:
                aborted.discard(header.producer_id)
                begins.pop(header.producer_id, None)
        elif header.producer_id not in aborted:
            values += [record.value or b"" for record in decode_records(payload)]
    return values


async def until_seen(connection: Connection, wanted: list[bytes], number: int = 0) -> FetchedPartition:
    async with asyncio.timeout(10):
        while True:
            fetched = await committed(connection, number)
            if seen(fetched) == wanted:
                return fetched
            await asyncio.sleep(0.01)


def test_the_next_transaction_waits_for_the_markers_of_the_one_before_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = transactions.Coordinating._mark
    may_mark = asyncio.Event()

    async def held_back(self: transactions.Coordinating, *order: Any) -> None:
        await may_mark.wait()
        await mark(self, *order)

    monkeypatch.setattr(transactions.Coordinating, "_mark", held_back)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            assert not await producer.begin()
            assert not await producer.add()
            assert not await producer.write(b"first")
            assert not await producer.end(commit=True)
            monkeypatch.setattr(kafka_transactions, "MARKERS_WAIT_S", 0.05)
            assert await producer.add_once() == ErrorCode.concurrent_transactions
            monkeypatch.setattr(kafka_transactions, "MARKERS_WAIT_S", 10.0)
            asyncio.get_running_loop().call_later(0.05, may_mark.set)
            assert await producer.add_once() == ErrorCode.none

    serve(tmp_path, test)


def test_what_is_committed_is_seen_whole_and_what_is_aborted_never(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            assert await producer.begin() == ErrorCode.none
            assert await producer.add(0) == ErrorCode.none
            assert await producer.write(b"a", b"b") == ErrorCode.none
            fetched = await committed(connection)
            assert (fetched.last_stable, list(fetched.batches)[1:]) == (fetched.last_stable, [])
            assert seen(fetched) == []
            assert fetched.high_watermark > fetched.last_stable
            assert await producer.end(commit=True) == ErrorCode.none
            await until_seen(connection, [b"a", b"b"])
            assert await producer.add(0) == ErrorCode.none
            assert await producer.write(b"c") == ErrorCode.none
            assert await producer.end(commit=False) == ErrorCode.none
            assert await producer.add(0) == ErrorCode.none
            assert await producer.write(b"d") == ErrorCode.none
            assert await producer.end(commit=True) == ErrorCode.none
            fetched = await until_seen(connection, [b"a", b"b", b"d"])
            assert [each[0] for each in fetched.aborted] == [producer.id]
            assert fetched.last_stable == fetched.high_watermark

    serve(tmp_path, test)


@pytest.mark.parametrize("version", range(VERSIONS[Api.ADD_PARTITIONS_TO_TXN][1] + 1))
def test_a_batch_needs_its_partition_in_the_transaction(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            await producer.begin()
            assert await producer.write(b"early") == ErrorCode.invalid_txn_state
            assert await producer.add(1, version=version) == ErrorCode.none
            assert await producer.write(b"elsewhere") == ErrorCode.invalid_txn_state
            assert await producer.write(b"here", number=1) == ErrorCode.none
            assert await producer.add(7) == ErrorCode.unknown_topic_or_partition
            assert await producer.end(commit=True) == ErrorCode.none
            assert await producer.end(commit=False) == ErrorCode.invalid_txn_state

    serve(tmp_path, test)


def test_a_newer_producer_of_the_same_id_fences_the_older(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            old, new = Producer(connection), Producer(connection)
            await old.begin()
            await old.add(0)
            await old.write(b"old")
            assert await new.begin() == ErrorCode.none
            assert (new.id, new.epoch > old.epoch) == (old.id, True)
            assert await old.write(b"late") == ErrorCode.invalid_producer_epoch
            assert await old.end(commit=True) == ErrorCode.producer_fenced
            assert await old.begin(keeps=True) == ErrorCode.producer_fenced
            await new.add(0)
            await new.write(b"new")
            await new.end(commit=True)
            await until_seen(connection, [b"new"])

    serve(tmp_path, test)


def test_what_takes_too_long_is_aborted_and_readers_go_on(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            await producer.begin(timeout_s=0.2)
            await producer.add(0)
            await producer.write(b"slow")
            async with asyncio.timeout(10):
                while True:
                    fetched = await committed(connection)
                    if fetched.last_stable == fetched.high_watermark and fetched.aborted:
                        break
                    await asyncio.sleep(0.02)
            assert await producer.end(commit=True) == ErrorCode.producer_fenced
            assert await producer.begin(keeps=True) == ErrorCode.none
            await producer.add(0)
            await producer.write(b"again")
            await producer.end(commit=True)
            await until_seen(connection, [b"again"])

    serve(tmp_path, test)


def test_offsets_of_a_group_are_committed_with_the_transaction(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            await producer.begin()
            who = {
                "transactional_id": NAME,
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "group_id": "readers",
            }
            part = {
                "partition_index": 1,
                "committed_offset": 42,
                "committed_leader_epoch": -1,
                "committed_metadata": "x",
            }
            positions = who | {
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": TOPIC, "partitions": [part]}],
            }

            async def commit_offsets() -> ErrorCode:
                async with asyncio.timeout(10):
                    while True:
                        answer = await connection.ask(Api.TXN_OFFSET_COMMIT, positions)
                        error = ErrorCode(answer.topics[0].partitions[0].error_code)
                        if error not in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
                            return error
                        await asyncio.sleep(0.01)

            assert (await connection.ask(Api.ADD_OFFSETS_TO_TXN, who)).error_code == ErrorCode.none
            assert await commit_offsets() == ErrorCode.none
            home = served.node.homes.partition_of("groups", "readers")
            assert home is not None
            groups: Any = served.node.host.hosted[home].machine
            assert groups.groups["readers"].positions == {}
            assert await producer.end(commit=True) == ErrorCode.none
            await until(lambda: TOPIC in groups.groups["readers"].positions)
            assert groups.groups["readers"].positions[TOPIC][1].offset == 42
            assert await commit_offsets() == ErrorCode.invalid_txn_state, "that transaction is over"

    serve(tmp_path, test)


def test_a_transaction_times_out_however_busy_its_coordinator_is(tmp_path: Path) -> None:
    """Somebody else has one transaction after the other, without a pause."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await ready(served, connection)
            late, busy = Producer(connection), Producer(other, "busy")
            await late.begin(timeout_s=0.3)
            await late.add(0)
            await busy.begin()

            async def is_over() -> bool:
                asked = {"transactional_ids": [NAME]}
                (found,) = (await connection.ask(Api.DESCRIBE_TRANSACTIONS, asked)).transaction_states
                return str(found.transaction_state) != "Ongoing"

            async with asyncio.timeout(10):
                while not await is_over():
                    await busy.add(1)
                    await busy.end(commit=True)

    serve(tmp_path, test)


def test_people_can_look_at_transactions(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await ready(served, connection)
            producer = Producer(connection)
            await producer.begin()
            await producer.add(0, 1)
            await producer.write(b"x")
            described = await connection.ask(
                Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": [NAME, "nobody"]}
            )
            found, nobody = described.transaction_states
            assert (found.transaction_state, found.producer_id) == ("Ongoing", producer.id)
            assert [(each.topic, each.partitions) for each in found.topics] == [(TOPIC, (0, 1))]
            assert abs(found.transaction_start_time.timestamp() - time.time()) < 60
            assert nobody.error_code in (ErrorCode.transactional_id_not_found, ErrorCode.not_coordinator)
            values = {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1}
            listed = await connection.ask(Api.LIST_TRANSACTIONS, values)
            assert [each.transactional_id for each in listed.transaction_states] == [NAME]
            asked = {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}
            producers = await connection.ask(Api.DESCRIBE_PRODUCERS, asked)
            (active,) = producers.topics[0].partitions[0].active_producers
            assert (active.producer_id, active.current_txn_start_offset >= 0) == (producer.id, True)
            await producer.end(commit=True)
            described = await connection.ask(Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": [NAME]})
            (found,) = described.transaction_states
            if found.transaction_state == "CompleteCommit":
                assert found.transaction_start_time.timestamp() < 0, "none is open: there is no such time"

    serve(tmp_path, test)


# ---- joint ----


def joint(served: Served, run: str = "run-1") -> Joint:
    return Joint(f"127.0.0.1:{served.port}", "query", run, timeout_s=10.0)


def test_a_joint_commit_publishes_what_it_lists(tmp_path: Path) -> None:
    def client(served: Served) -> None:
        with joint(served) as one:
            parts = []
            for task in range(2):
                writer = one.writer(one.open(0, task=task, attempt=0))
                writer.append(TOPIC, {0: encode_records([(None, b"task %d" % task)] * 2)})
                writer.append(TOPIC, {number: encode_records([(None, b"more")]) for number in (0, 1)})
                parts.append(writer.part())
            loser = one.writer(one.open(0, task=1, attempt=1))
            loser.append(TOPIC, {0: encode_records([(None, b"never")])})
            assert one.commit(0, parts).already_in is False
            assert one.commit(0, parts).already_in is True
            assert one.last() == 0
            assert one.abort(0) is False
            with pytest.raises(AttemptOver):
                loser.append(TOPIC, {0: encode_records([(None, b"late")])})
            with pytest.raises(NumberIn):
                one.open(0, task=5, attempt=0)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await asyncio.to_thread(client, served)
            await until_seen(
                connection, [b"task 0", b"task 0", b"more", b"task 1", b"task 1", b"more"], number=0
            )
            await until_seen(connection, [b"more", b"more"], number=1)
            assert served.node.metrics.joint_repeated == 1
            assert any("number 0 is already in" in line for line in served.said)

    serve(tmp_path, test)


def test_a_joint_commit_fails_whole(tmp_path: Path) -> None:
    def client(served: Served) -> None:
        with joint(served) as one:
            good = one.writer(one.open(0, task=0, attempt=0))
            good.append(TOPIC, {0: encode_records([(None, b"x")])})
            part = good.part()
            (written,) = part.written
            more = Part(part.producer_id, (Written(written.topic, written.topic_id, 0, written.count + 1),))
            with pytest.raises(CommitFailed, match="1 settled records in events, and 2 are listed"):
                one.commit(0, [more])
            slow = one.open(0, task=1, attempt=0, timeout_s=0.05)
            one.writer(slow).append(TOPIC, {0: encode_records([(None, b"slow")])})
            with pytest.raises(AttemptOver):
                for number in range(10_000):  # Until it is too old.
                    one.writer(slow).append(TOPIC, {1: encode_records([(None, b"%d" % number)])})
            with pytest.raises(CommitFailed, match="timed out"):
                one.commit(0, [part, Part(slow.producer_id)])
            with joint(served, "run-2") as two:
                assert two.abort(0) is True
                with pytest.raises(RunFenced):
                    one.commit(0, [part])

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(TOPIC, partitions=2)
            await asyncio.to_thread(client, served)
            async with asyncio.timeout(10):
                while True:
                    fetched = await committed(connection)
                    if fetched.last_stable == fetched.high_watermark:
                        break
                    await asyncio.sleep(0.02)
            assert seen(fetched) == []

    serve(tmp_path, test)


def test_how_long_a_transaction_may_take_is_a_setting_of_the_cluster(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.ask(Api.FIND_COORDINATOR, {"key_type": 1, "coordinator_keys": [NAME]})
            producer = Producer(connection)
            assert await producer.begin(timeout_s=15 * 60) == ErrorCode.none
            assert await producer.begin(timeout_s=15 * 60 + 1) == ErrorCode.invalid_transaction_timeout
            await set_cluster(connection, "transaction.max.timeout.ms", "2000")
            assert await producer.begin(timeout_s=3) == ErrorCode.invalid_transaction_timeout
            assert await producer.begin(timeout_s=2) == ErrorCode.none

    serve(tmp_path, test)


def often_forgetting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever is idle for too long is forgotten ten times a second; each time is noted."""
    noted: list[Any] = []

    def noting(*idle: int) -> Forget:
        noted.append(idle)
        return Forget(*idle)

    monkeypatch.setattr(transactions, "FORGET_EVERY_S", 0.1)
    monkeypatch.setattr(transactions, "Forget", noting)
    return noted


def test_a_transactional_id_is_kept_as_long_as_the_cluster_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 7 days where it is set to nothing."""
    assert transactions.PLAIN_IDLE_MS == 7 * 24 * 3600 * 1000
    forgotten = often_forgetting(monkeypatch)

    async def state(connection: Connection) -> ErrorCode:
        described = await connection.ask(Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": [NAME]})
        code: ErrorCode = described.transaction_states[0].error_code
        return code

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.ask(Api.FIND_COORDINATOR, {"key_type": 1, "coordinator_keys": [NAME]})
            assert await Producer(connection).begin() == ErrorCode.none
            await until(lambda: len(forgotten) > 2)
            assert await state(connection) == ErrorCode.none
            await set_cluster(connection, "transactional.id.expiration.ms", "1")
            async with asyncio.timeout(10):
                while await state(connection) != ErrorCode.transactional_id_not_found:
                    pass

    serve(tmp_path, test)


async def set_cluster(connection: Connection, name: str, value: str) -> None:
    setting = {"name": name, "value": value, "config_operation": 0}
    cluster = {"resource_type": 4, "resource_name": "", "configs": [setting]}
    values = {"resources": [cluster], "validate_only": False}
    (altered,) = (await connection.ask(Api.INCREMENTAL_ALTER_CONFIGS, values)).responses
    assert altered.error_code == ErrorCode.none, altered


def test_the_last_number_of_an_app_is_kept_as_long_as_the_cluster_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 90 days where it is set to nothing."""
    assert transactions.APP_IDLE_MS == 90 * 24 * 3600 * 1000
    forgotten = often_forgetting(monkeypatch)

    def commit(served: Served) -> None:
        with joint(served) as one:
            assert one.commit(7, []).already_in is False

    def last(served: Served) -> int:
        with joint(served) as one:
            return one.last()

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await asyncio.to_thread(commit, served)
            await until(lambda: len(forgotten) > 2)
            assert await asyncio.to_thread(last, served) == 7
            await set_cluster(connection, "quorate.joint.idle.ms", "1")
            async with asyncio.timeout(10):
                while await asyncio.to_thread(last, served) != -1:
                    await connection.ask(Api.METADATA, ALL_TOPICS)

    serve(tmp_path, test)
