"""Produce: record batches into the log.

With acks=all a batch is answered when a quorum has flushed it; with acks=1, or where the topic says that this is
enough (`quorate.flush`), when the leader has, and then it may be lost with that leader. With acks=0 no response is
sent, and a client whose batch was refused is disconnected, as Kafka does, so that it notices.

A batch is looked at as far as its header; its checksum is verified, its records are not opened, but where the topic
is compacted (keys.py). Where the topic gives records the time at which they were taken, the header alone says so,
and clients read it there.

A producer with an id may have sent a batch before, and that one may be in the log. So whatever it is told to
try again is "possibly written" or says nothing about earlier attempts, and what comes behind such a batch is
not called out of order (retrying.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.kafka.call import CROWDED, Call
from quorate.kafka.terms import Terms
from quorate.machine.metadata import Topic
from quorate.machine.producers import Numbered, numbered
from quorate.machine.transaction_words import Verdict
from quorate.node.retention import wall_ms
from quorate.wire.produce import NO_TIMESTAMP, PartitionAnswer, encode_response

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS = (-1, 0, 1)
TIMEOUT_MS_MAX = 5 * 60_000
COMPRESSION_GREATEST = 4
_MAGIC_AT = 16
_UNDECIDED = -1

_ERRORS: dict[Outcome, int] = {
    Outcome.SETTLED: ErrorCode.none,
    Outcome.NOT_LEADER: ErrorCode.not_leader_or_follower,
    # Rule 9: it may have been written. Retriable, and an idempotent producer's retry is recognised.
    Outcome.UNKNOWN: ErrorCode.request_timed_out,
    Outcome.BUSY: ErrorCode.not_enough_replicas,
    # Retriable: the disk gets room again, or another node leads.
    Outcome.FULL: ErrorCode.kafka_storage_error,
    # `confirm`: it was there, and was taken back with all that came behind it. A retry is a new attempt.
    Outcome.ROLLED_BACK: ErrorCode.not_enough_replicas_after_append,
    Outcome.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    Outcome.FENCED: ErrorCode.invalid_producer_epoch,
    # Of a transaction that is not vouched for any more: asked again, its coordinator says why.
    Outcome.NOT_OPEN: ErrorCode.not_enough_replicas_after_append,
    Outcome.DUPLICATE: ErrorCode.duplicate_sequence_number,
}

_NOT_OPEN: dict[Verdict | None, int] = {
    Verdict.FENCED: ErrorCode.invalid_producer_epoch,
    Verdict.BAD_STATE: ErrorCode.invalid_txn_state,
    Verdict.BAD_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    Verdict.TOO_MANY: ErrorCode.policy_violation,
}
"""What a producer hears of a transaction that its coordinator does not know as open."""


class Refused(Exception):
    """A batch that cannot be taken: the error code, and why in words."""

    def __init__(self, error: ErrorCode, why: str | None = None) -> None:
        super().__init__(why)
        self.error = error
        self.why = why


class Producing:
    """One request: its batches are proposed at once, and it is answered when the last of them is decided."""

    __slots__ = (
        "_acks",
        "_broker",
        "_call",
        "_missing_count",
        "_proposed",
        "_timeout_ms",
        "_topics",
        "_transactional_id",
    )

    def __init__(self, broker: Broker, call: Call) -> None:
        request = call.door.produce_requests.parse(call.frame, call.head.body_at, call.head.version)
        call.frame = b""  # What waits for followers is on the disk, and not in memory as well.
        broker.node.metrics.produce_requests += 1
        self._broker = broker
        self._call = call
        self._acks = request.acks
        self._transactional_id = request.transactional_id
        self._topics: list[tuple[str, list[PartitionAnswer]]] = []
        self._missing_count = 0
        for wanted in request.topics:
            self._missing_count += len(wanted.partitions)
        self._timeout_ms = 0
        """Until it expires; 0: it does not wait yet."""
        self._proposed: list[Callable[[Reply], None]] = []
        """Who hears what became of each batch."""
        if not self._missing_count:
            self._finish()
            return
        known = broker.node.metadata.image.topics
        for wanted in request.topics:
            topic = known.get(wanted.name)
            answers = [PartitionAnswer(produced.number, _UNDECIDED) for produced in wanted.partitions]
            self._topics.append((wanted.name, answers))
            for place, produced in enumerate(wanted.partitions):
                number = produced.number
                try:
                    if request.acks not in ACKS:
                        raise Refused(ErrorCode.invalid_required_acks)
                    self._propose(answers, place, topic, number, produced.records)
                except Refused as refused:
                    answer = PartitionAnswer(number, refused.error, message=refused.why)
                    self._decided(answers, place, answer)
        if self._missing_count:
            self._timeout_ms = min(max(request.timeout_ms, 1), TIMEOUT_MS_MAX)
            broker.expiring.begin(self, self._timeout_ms)
            call.abandon = self._wait_no_longer

    def _propose(
        self,
        answers: list[PartitionAnswer],
        place: int,
        topic: Topic | None,
        number: int,
        records: memoryview | None,
    ) -> None:
        error, partition = self._broker.find(topic, number)
        if error:
            numbers = _numbers_of(records) if records else None
            if error == ErrorCode.not_leader_or_follower and numbers is not None:
                self._call.door.retrying.judged(partition, numbers, Outcome.NOT_LEADER)
            raise Refused(ErrorCode(error))
        assert topic is not None
        terms = self._broker.terms(topic)
        if terms.is_tables:
            raise Refused(ErrorCode.invalid_record, f"{topic.name} is a group of tables: use `quorate table`")
        if terms.is_internal:
            raise Refused(ErrorCode.invalid_topic_exception, f"{topic.name} is the cluster's own")
        if not records:
            raise Refused(ErrorCode.invalid_record, "no record batch")
        header = check_batch(records, terms.bytes_max)
        numbers = numbered(header) if header.producer_id >= 0 else None
        metrics = self._broker.node.metrics
        metrics.produce_batches += 1
        metrics.produce_bytes += len(records)
        append_time = _given_time(terms, header, records)
        if header.attributes & batch.TRANSACTIONAL and (not self._transactional_id or numbers is None):
            raise Refused(ErrorCode.invalid_record, "a transactional batch of no transactional producer")
        answer = partial(self._replied, answers, place, partition, numbers, append_time)
        self._proposed.append(answer)
        is_enough = self._acks == ACKS_LEADER or terms.leader_is_enough
        flushed = partial(_flushed, answer) if is_enough else None
        if self._broker.is_crowded or (terms.is_looked_into and self._broker.keys.is_crowded):
            answer(Reply(0, Outcome.BUSY, why=CROWDED))
        elif terms.is_looked_into:
            go = partial(self._looked, answers, place, partition, records, numbers, answer, flushed)
            self._broker.keys.when_looked(partition, records, go)
        else:
            self._hand_in(answers, place, partition, records, numbers, answer, flushed)

    def _looked(
        self,
        answers: list[PartitionAnswer],
        place: int,
        partition: Partition,
        records: memoryview,
        numbers: Numbered | None,
        answer: Callable[[Reply], None],
        flushed: Callable[[int], None] | None,
        why: str,
    ) -> None:
        """A batch for a compacted topic: its keys were looked for."""
        if answers[place].error != _UNDECIDED:
            return
        if why:
            number = answers[place].number
            self._decided(answers, place, PartitionAnswer(number, ErrorCode.invalid_record, message=why))
        elif self._broker.node.holds(partition):
            self._hand_in(answers, place, partition, records, numbers, answer, flushed)
        else:
            answer(Reply(0, Outcome.NOT_LEADER))

    def _hand_in(
        self,
        answers: list[PartitionAnswer],
        place: int,
        partition: Partition,
        records: memoryview,
        numbers: Numbered | None,
        answer: Callable[[Reply], None],
        flushed: Callable[[int], None] | None,
    ) -> None:
        if numbers is None or not numbers.is_transactional:
            self._broker.node.propose(partition, [records], answer, flushed)
        else:
            assert self._transactional_id
            go = partial(self._vouched, answers, place, partition, records, answer)
            self._broker.vouching.when_vouched(self._transactional_id, partition, numbers, go)

    def _vouched(
        self,
        answers: list[PartitionAnswer],
        place: int,
        partition: Partition,
        records: memoryview,
        answer: Callable[[Reply], None],
        verdict: Verdict | None,
    ) -> None:
        """A batch of a transaction: its coordinator has said whether that is open."""
        node = self._broker.node
        if answers[place].error != _UNDECIDED:
            return
        if verdict is Verdict.DONE and node.holds(partition):
            node.propose(partition, [records], answer)
        elif (error := _NOT_OPEN.get(verdict)) is not None:
            self._decided(answers, place, PartitionAnswer(answers[place].number, error, message=str(verdict)))
        else:
            answer(Reply(0, Outcome.BUSY))

    def _replied(
        self,
        answers: list[PartitionAnswer],
        place: int,
        partition: Partition,
        numbers: Numbered | None,
        append_time: int,
        reply: Reply,
    ) -> None:
        if answers[place].error != _UNDECIDED:
            return  # Too late: the client was told that the outcome is unknown.
        node = self._broker.node
        error = _ERRORS[reply.outcome] if numbers is None else self._judged(partition, numbers, reply.outcome)
        log_start = node.log_base(partition) + 1 if not error and node.holds(partition) else -1
        number = answers[place].number
        append_time = NO_TIMESTAMP if error else append_time
        answer = PartitionAnswer(number, error, reply.offset, log_start, reply.why, append_time)
        self._decided(answers, place, answer)

    def _judged(self, partition: Partition, numbers: Numbered, outcome: Outcome) -> int:
        """The error for a producer with an id, who may have sent this batch before."""
        outcome = self._call.door.retrying.judged(partition, numbers, outcome)
        if outcome is Outcome.BUSY:
            return ErrorCode.not_enough_replicas_after_append
        if outcome is Outcome.OUT_OF_ORDER:  # Never told to a client that does what it should: worth a line.
            self._broker.node.log_offence(
                f"partition {partition.hex()}: producer {numbers.producer_id}, epoch {numbers.epoch}, is out of "
                f"order with {numbers.first} to {numbers.last}"
            )
        return _ERRORS[outcome]

    def _decided(self, answers: list[PartitionAnswer], place: int, answer: PartitionAnswer) -> None:
        answers[place] = answer
        if answer.error:
            self._broker.node.metrics.error("produce", ErrorCode(answer.error).name)
        self._missing_count -= 1
        if not self._missing_count:
            self._finish()

    def expire(self) -> None:
        """Rule 9: the outcome of what is not decided yet is unknown; the error says so."""
        for answer in self._proposed:
            answer(Reply(0, Outcome.UNKNOWN))

    def _wait_no_longer(self) -> None:
        self._broker.expiring.end(self, self._timeout_ms)

    def _finish(self) -> None:
        if self._timeout_ms:
            self._wait_no_longer()
        call = self._call
        if self._acks != ACKS_NONE:
            message = encode_response(call.head.version, call.head.correlation, self._topics)
            call.answer([message], len(message))
            return
        call.answer((), 0)
        for name, answers in self._topics:
            for answer in answers:
                if answer.error:
                    where = f"{name}, partition {answer.number}"
                    call.door.turn_away(f"a batch for {where} with acks=0 failed with error {answer.error}")
                    return


def _flushed(answer: Callable[[Reply], None], first: int) -> None:
    """By the leader alone, which is all that is asked for."""
    answer(Reply(0, Outcome.SETTLED, first))


def _given_time(terms: Terms, header: batch.BatchHeader, records: memoryview) -> int:
    """The time that the records are given, if the topic does that; -1: they keep their own. Raises Refused."""
    if terms.gives_time:
        now_ms = wall_ms()
        batch.set_append_time(records, now_ms)
        return now_ms
    if header.attributes & batch.LOG_APPEND_TIME:
        raise Refused(ErrorCode.invalid_timestamp, "only a log says when it took records, not their producer")
    return NO_TIMESTAMP


def _numbers_of(records: memoryview) -> Numbered | None:
    """Of a batch that nobody has verified."""
    try:
        header = batch.parse_batch_header(records)
    except batch.BadBatch:
        return None
    return numbered(header) if header.producer_id >= 0 else None


def check_batch(records: memoryview, bytes_max: int) -> batch.BatchHeader:
    """The header of one whole, intact batch, not larger than its topic takes; raises Refused."""
    size = len(records)
    if size > bytes_max:
        raise Refused(ErrorCode.message_too_large, f"a batch of {size} bytes; the topic takes {bytes_max}")
    if size > _MAGIC_AT and records[_MAGIC_AT] < batch.MAGIC:
        raise Refused(
            ErrorCode.unsupported_for_message_format, f"message format {records[_MAGIC_AT]}; only 2 is taken"
        )
    try:
        header = batch.verify(records)
    except batch.BadBatch as bad:
        if size >= batch.BATCH_MIN and _length_of(records) < size:
            raise Refused(ErrorCode.invalid_record, "more than one record batch for a partition") from None
        raise Refused(ErrorCode.corrupt_message, str(bad)) from None
    attributes = header.attributes
    if attributes & batch.CONTROL:
        raise Refused(ErrorCode.invalid_record, "a control batch; clients do not write these")
    if attributes & batch.TRANSACTIONAL and header.producer_id < 0:
        raise Refused(ErrorCode.invalid_record, "a batch of a transaction, and of no producer")
    if header.record_count != header.last_offset_delta + 1:
        why = f"{header.record_count} records over {header.offsets_count} offsets"
        raise Refused(ErrorCode.invalid_record, why)
    if attributes & batch.COMPRESSION_MASK > COMPRESSION_GREATEST:
        why = f"compression {header.compression} is unknown"
        raise Refused(ErrorCode.unsupported_compression_type, why)
    return header


def _length_of(records: memoryview) -> int:
    """Of the first batch in there, as it says itself."""
    return int.from_bytes(records[8:12], "big") + batch.LENGTH_EXCLUDES
