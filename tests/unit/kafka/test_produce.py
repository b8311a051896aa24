"""Produce: what is taken, what is refused, and with which error a client hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.kafka.offsets import first_record_at
from quorate.kafka.produce import Refused, check_batch
from quorate.kafka.terms import MESSAGE_BYTES_DEFAULT
from quorate.wire.messages import Api
from tests.unit.kafka.harness import Served, produce_values, serve

FINAL = (Outcome.OUT_OF_ORDER, Outcome.FENCED, Outcome.DUPLICATE)
"""What a producer must not simply send again."""

BATCH = batch.encode_records([(b"key", b"value"), (None, b"value")], 1000)


def error_of(content: bytes, bytes_max: int = MESSAGE_BYTES_DEFAULT) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        check_batch(memoryview(content), bytes_max)
    return refused.value.error


def changed(content: bytes, at: int, byte: int) -> bytes:
    return content[:at] + bytes((byte,)) + content[at + 1 :]


def signed(header: dict[str, int]) -> bytes:
    """The batch with another header, and a checksum that fits it."""
    fields = batch.parse_batch_header(BATCH)
    content = batch.header_bytes(fields, **header) + BATCH[batch.BATCH_MIN :]
    crc = crc32c(content[batch.HEAD_BYTES :])
    return batch.header_bytes(fields, **header, crc=crc) + BATCH[batch.BATCH_MIN :]


def test_an_intact_batch_is_taken() -> None:
    check_batch(memoryview(BATCH), len(BATCH))
    check_batch(memoryview(signed({"attributes": 4})), len(BATCH))


def test_batches_are_refused_for_what_is_wrong_with_them() -> None:
    assert error_of(BATCH, len(BATCH) - 1) == ErrorCode.message_too_large
    assert error_of(changed(BATCH, 16, 1)) == ErrorCode.unsupported_for_message_format
    assert error_of(changed(BATCH, 16, 3)) == ErrorCode.corrupt_message
    assert error_of(BATCH[:-1]) == ErrorCode.corrupt_message
    assert error_of(BATCH[:20]) == ErrorCode.corrupt_message
    assert error_of(BATCH + BATCH) == ErrorCode.invalid_record
    assert error_of(changed(BATCH, len(BATCH) - 2, 7)) == ErrorCode.corrupt_message
    assert error_of(signed({"attributes": batch.CONTROL})) == ErrorCode.invalid_record
    assert error_of(signed({"attributes": batch.TRANSACTIONAL})) == ErrorCode.invalid_record
    assert error_of(signed({"attributes": 5})) == ErrorCode.unsupported_compression_type
    assert error_of(signed({"record_count": 1})) == ErrorCode.invalid_record
    assert error_of(signed({"last_offset_delta": 7})) == ErrorCode.invalid_record


def test_offsets_count_up_and_the_batch_is_kept_as_it_came(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            for version in (3, 5, 8, 9, 11):
                answer = await connection.produce("topic", BATCH, version=version)
                assert answer.error_code == 0
                assert getattr(answer, "log_start_offset", 0) == 0
            assert answer.base_offset == 1 + 4 * 2
            found = await connection.fetch("topic", 1)
            assert [batch.parse_batch_header(kept).base_offset for kept in found.batches] == [1, 3, 5, 7, 9]
            assert all(kept[batch.HEAD_BYTES :] == BATCH[batch.HEAD_BYTES :] for kept in found.batches)

    serve(tmp_path, test)


def test_each_partition_of_a_request_is_answered_for_itself(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic", partitions=2)
            values = produce_values("topic", BATCH)
            values["topic_data"][0]["partition_data"] = [
                {"index": 1, "records": BATCH},
                {"index": 2, "records": BATCH},
                {"index": 0, "records": BATCH[:-1]},
                {"index": 0, "records": None},
                {"index": -1, "records": BATCH},
            ]
            values["topic_data"].append(
                {"name": "nowhere", "partition_data": [{"index": 0, "records": BATCH}]}
            )
            body = await connection.ask(Api.PRODUCE, values)
            errors = [
                (part.index, part.error_code)
                for topic in body.responses
                for part in topic.partition_responses
            ]
            unknown = ErrorCode.unknown_topic_or_partition
            corrupt, invalid = ErrorCode.corrupt_message, ErrorCode.invalid_record
            assert errors == [(1, 0), (2, unknown), (0, corrupt), (0, invalid), (-1, unknown), (0, unknown)]
            assert body.responses[0].partition_responses[2].error_message is not None

    serve(tmp_path, test)


def test_acks_that_do_not_exist_and_requests_without_batches(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            answer = await connection.produce("topic", BATCH, acks=2)
            assert answer.error_code == ErrorCode.invalid_required_acks
            values = produce_values("topic", BATCH)
            values["topic_data"] = []
            assert (await connection.ask(Api.PRODUCE, values)).responses == ()

    serve(tmp_path, test)


def test_a_topic_may_give_records_the_time_at_which_it_took_them(tmp_path: Path) -> None:
    """Only the header says so: records that are compressed stay as they came."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic", message_timestamp_type="LogAppendTime")
            began_ms = time.time_ns() // 1_000_000
            answer = await connection.produce("topic", BATCH)
            assert answer.error_code == 0
            taken_ms = round(answer.log_append_time.timestamp() * 1000)
            assert began_ms <= taken_ms <= time.time_ns() // 1_000_000
            (taken,) = (await connection.fetch("topic", answer.base_offset)).batches
            header = batch.verify(taken)
            assert (header.has_append_time, header.max_timestamp) == (True, taken_ms)
            assert bytes(taken[batch.BATCH_MIN :]) == BATCH[batch.BATCH_MIN :]
            assert {record.timestamp for record in batch.decode_records(taken)} == {header.max_timestamp}
            assert first_record_at(taken, header.max_timestamp) == (header.max_timestamp, answer.base_offset)

    serve(tmp_path, test)


def test_a_producer_does_not_say_when_a_log_took_its_records(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            taken = bytearray(BATCH)
            batch.set_append_time(taken, 5)
            answer = await connection.produce("topic", bytes(taken))
            assert answer.error_code == ErrorCode.invalid_timestamp
            answer = await connection.produce("topic", BATCH)
            assert (answer.error_code, answer.log_append_time) == (0, None)

    serve(tmp_path, test)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_leader_alone_answers_with_the_offset_whatever_acks_say(tmp_path: Path, acks: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            offsets = [(await connection.produce("topic", BATCH, acks=acks)).base_offset for _ in range(3)]
            assert offsets == [1, 3, 5]

    serve(tmp_path, test)


def test_a_producers_batch_that_comes_again_is_answered_and_not_appended_again(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")

            async def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
                content = batch.encode_records(
                    [(None, b"value")], producer_id=9, producer_epoch=epoch, base_sequence=sequence
                )
                answer = await connection.produce("topic", content)
                return answer.error_code, answer.base_offset

            assert [await send(0), await send(1), await send(1), await send(0)] == [
                (0, 1),
                (0, 2),
                (0, 2),
                (0, 1),
            ]
            assert await send(5) == (ErrorCode.out_of_order_sequence_number, -1)
            assert await send(0, epoch=1) == (0, 3)
            assert await send(2) == (ErrorCode.invalid_producer_epoch, -1)
            assert (await connection.fetch("topic", 1)).high_watermark == 4

    serve(tmp_path, test)


def test_requests_of_one_chunk_are_all_written(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            values = produce_values("topic", BATCH)
            await connection.send(b"".join(connection.request(Api.PRODUCE, values) for _ in range(100)))
            for _ in range(100):
                await connection.receive()
            assert (await connection.fetch("topic", 1)).high_watermark == 1 + 200

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.NOT_LEADER, ErrorCode.not_leader_or_follower),
        (Outcome.UNKNOWN, ErrorCode.request_timed_out),
        (Outcome.BUSY, ErrorCode.not_enough_replicas),
        (Outcome.FULL, ErrorCode.kafka_storage_error),
        (Outcome.ROLLED_BACK, ErrorCode.not_enough_replicas_after_append),
        (Outcome.OUT_OF_ORDER, ErrorCode.out_of_order_sequence_number),
        (Outcome.FENCED, ErrorCode.invalid_producer_epoch),
        (Outcome.DUPLICATE, ErrorCode.duplicate_sequence_number),
    ],
)
def test_every_outcome_has_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, error: ErrorCode
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            reply = Reply(1, outcome)
            monkeypatch.setattr(served.node, "propose", lambda _, __, answer, ___: answer(reply))
            answer = await connection.produce("topic", BATCH)
            assert (answer.error_code, answer.base_offset) == (error, -1)
            assert error.retriable == (outcome not in FINAL)

    serve(tmp_path, test)


def numbered_batch(sequence: int, epoch: int = 0) -> bytes:
    return batch.encode_records(
        [(None, b"value")], producer_id=9, producer_epoch=epoch, base_sequence=sequence
    )


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.NOT_LEADER, ErrorCode.not_leader_or_follower),
        (Outcome.UNKNOWN, ErrorCode.request_timed_out),
        (Outcome.BUSY, ErrorCode.not_enough_replicas_after_append),
        (Outcome.FULL, ErrorCode.kafka_storage_error),
        (Outcome.ROLLED_BACK, ErrorCode.not_enough_replicas_after_append),
    ],
)
def test_what_follows_a_batch_that_must_come_again_is_not_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, error: ErrorCode
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")

            async def send(sequence: int, epoch: int = 0) -> int:
                return (await connection.produce("topic", numbered_batch(sequence, epoch))).error_code

            assert await send(0) == 0
            with monkeypatch.context() as patch:
                patch.setattr(served.node, "propose", lambda _, __, answer, ___: answer(Reply(1, outcome)))
                assert await send(1) == error
            assert await send(2) == ErrorCode.not_enough_replicas_after_append
            assert await send(0) == 0  # Another answer of an older one changes nothing.
            assert await send(3) == ErrorCode.not_enough_replicas_after_append
            assert await send(3, epoch=1) == ErrorCode.out_of_order_sequence_number
            assert [await send(1), await send(2), await send(3)] == [0, 0, 0]
            assert await send(5) == ErrorCode.out_of_order_sequence_number
            assert (await connection.fetch("topic", 1)).high_watermark == 5

    serve(tmp_path, test)


def test_what_follows_a_batch_that_timed_out_is_not_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            assert (await connection.produce("topic", numbered_batch(0))).error_code == 0
            with monkeypatch.context() as patch:
                patch.setattr(served.node, "propose", lambda *_: None)
                values = produce_values("topic", numbered_batch(1)) | {"timeout": timedelta(milliseconds=30)}
                body = await connection.ask(Api.PRODUCE, values)
                assert body.responses[0].partition_responses[0].error_code == ErrorCode.request_timed_out
            with monkeypatch.context() as patch:
                patch.setattr(served.node, "is_leader", lambda _: False)
                answer = await connection.produce("topic", numbered_batch(2))
                assert answer.error_code == ErrorCode.not_leader_or_follower
            answer = await connection.produce("topic", numbered_batch(3))
            assert answer.error_code == ErrorCode.not_enough_replicas_after_append

    serve(tmp_path, test)


def test_a_producer_whose_second_batch_is_refused_for_a_moment_writes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka, with the answers that it gets while a leader hands over."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            propose: Callable[..., None] = served.node.propose
            proposed = 0

            def unkind(
                partition: Partition,
                records: list[memoryview],
                answer: Callable[[Reply], None],
                _: None = None,
            ) -> None:
                nonlocal proposed
                proposed += 1
                if proposed == 2:  # Written, and nobody is told so.
                    propose(partition, records, lambda _: answer(Reply(1, Outcome.UNKNOWN)))
                elif proposed == 3:
                    answer(Reply(1, Outcome.BUSY))
                else:
                    propose(partition, records, answer)

            monkeypatch.setattr(served.node, "propose", unkind)
            failed = await asyncio.to_thread(produce_singly, f"127.0.0.1:{served.port}")
            assert failed == []
            assert proposed > 10
            assert (await connection.fetch("topic", 1)).high_watermark == 1 + 10

    serve(tmp_path, test)


def produce_singly(servers: str) -> list[object]:
    """Ten records, each a batch of its own, with several under way; what failed."""
    settings = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "batch.num.messages": 1,
        "linger.ms": 0,
    }
    producer = Producer(settings)
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(10):
        producer.produce("topic", str(number), partition=0, on_delivery=delivered)
    assert producer.flush(20) == 0
    return failed


def test_what_is_not_settled_in_time_is_unknown_and_a_late_reply_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("topic")
            replies: list[Callable[[Reply], None]] = []
            with monkeypatch.context() as patch:
                patch.setattr(served.node, "propose", lambda _, __, answer, ___: replies.append(answer))
                values = produce_values("topic", BATCH) | {"timeout": timedelta(milliseconds=30)}
                body = await connection.ask(Api.PRODUCE, values)
            answer = body.responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.request_timed_out
            replies[0](Reply(1, Outcome.SETTLED, 5))
            assert (await connection.produce("topic", BATCH)).error_code == 0

    serve(tmp_path, test)
