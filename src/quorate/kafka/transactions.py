"""Transactions of Kafka's producers: what they ask of their coordinator, which is whoever leads their home.

Each request becomes a command of the home's log (machine/transactions.py), and is answered with what that came to.
Every one of them may be sent again. An end is answered when it is decided, which is before its markers are written;
a producer that begins its next transaction meanwhile waits for them a moment, here. Then it hears
CONCURRENT_TRANSACTIONS and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition, partition_of
from quorate.kafka.call import Call
from quorate.kafka.group_coordinator import Refused as NotCoordinated
from quorate.kafka.vouching import ask_coordinator
from quorate.machine.groups import CommitOffsets, Position
from quorate.machine.groups import Result as GroupResult
from quorate.machine.purpose import GROUPS, TOPIC, TRANSACTIONS
from quorate.machine.transaction_words import AddPartitions, BeginProducer, EndPlain, Result, Verdict
from quorate.node.homes import NoHome
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata
from quorate.node.transactions import wall_ms
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

NOBODY = -1
TIMEOUT_SETTING = "transaction.max.timeout.ms"
TIMEOUT_MS_MAX = 15 * 60_000
"""Kafka's default."""
FENCED_FROM = {22: 4, 24: 2, 25: 2, 26: 2}
"""From which version of a request on PRODUCER_FENCED is known (KIP-588); before, it is INVALID_PRODUCER_EPOCH."""
METADATA_BYTES_MAX = 4096
MARKERS_WAIT_S = 1.0
"""For those of the transaction before. Kafka never waits; but whoever is sent away comes back later than they are
written, and kafkajs then sends under new numbers what is in other partitions already."""
MARKERS_PAUSE_S = 0.005
"""Before it is looked again for the first time; then twice as long, and so on."""

_ERRORS: dict[Verdict, ErrorCode] = {
    Verdict.DONE: ErrorCode.none,
    Verdict.CONCURRENT: ErrorCode.concurrent_transactions,
    Verdict.FENCED: ErrorCode.producer_fenced,
    Verdict.BAD_STATE: ErrorCode.invalid_txn_state,
    Verdict.BAD_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    Verdict.BAD_TIMEOUT: ErrorCode.invalid_transaction_timeout,
    Verdict.TOO_MANY: ErrorCode.policy_violation,
    Verdict.BAD_NAME: ErrorCode.invalid_request,
}

Tell = Callable[[ErrorCode, Result | None], None]


def coordinated(broker: Broker, call: Call, name: str, command: Any, tell: Tell) -> None:
    """Propose a command about that name, in a turn; `tell` hears what it came to."""
    node = broker.node
    home = node.homes.partition_of(TRANSACTIONS, name)
    if home is None or not node.is_leader(home):
        tell(ErrorCode.not_coordinator, None)
        return

    def settled(reply: Reply, results: Any) -> None:
        if reply.outcome is Outcome.NOT_LEADER:
            tell(ErrorCode.not_coordinator, None)
        elif reply.outcome is not Outcome.SETTLED or not results or results[0] is None:
            tell(
                ErrorCode.coordinator_not_available, None
            )  # It may have been done: asking again does no harm.
        else:
            tell(_error(call, results[0].verdict), results[0])

    node.homes.propose(home, [command], settled)


def _once_marked(broker: Broker, call: Call, name: str, command: AddPartitions, tell: Tell) -> None:
    """As `coordinated`, when the markers of the transaction before are written; or they take too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MARKERS_WAIT_S

    def ask(pause_s: float) -> None:
        def told(error: ErrorCode, result: Result | None) -> None:
            if error is ErrorCode.concurrent_transactions and loop.time() + pause_s < deadline:
                loop.call_later(pause_s, broker.in_turn, lambda: ask(2 * pause_s))
            else:
                tell(error, result)

        coordinated(broker, call, name, command, told)

    ask(MARKERS_PAUSE_S)


def _error(call: Call, verdict: Verdict) -> ErrorCode:
    if verdict is Verdict.FENCED and call.head.version < FENCED_FROM.get(call.head.api, 0):
        return ErrorCode.invalid_producer_epoch
    return _ERRORS[verdict]


# ---- InitProducerId ----


async def begin(broker: Broker, call: Call, request: Any) -> None:
    """With a transactional id; without one see producer_ids.py."""
    node = broker.node
    name = str(request.transactional_id)

    def tell(error: ErrorCode, result: Result | None) -> None:
        found = result if result is not None and not error else None
        call.answer_with(
            {
                "throttle_time": timedelta(0),
                "error_code": error,
                "producer_id": found.producer_id if found is not None else NOBODY,
                "producer_epoch": found.epoch if found is not None else NOBODY,
            }
        )

    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    most = int(node.metadata.image.cluster.config.get(TIMEOUT_SETTING, TIMEOUT_MS_MAX))
    if not 0 < timeout_ms <= most:
        broker.in_turn(lambda: tell(ErrorCode.invalid_transaction_timeout, None))
        return
    try:
        fresh_id = await node.metadata.next_producer_id()
    except NoMetadata as none:
        node.log(f"no producer id for {name!r}: {none}", level=WARNING)
        broker.in_turn(lambda: tell(ErrorCode.coordinator_not_available, None))
        return
    command = BeginProducer(
        name,
        wall_ms(),
        timeout_ms,
        fresh_id,
        getattr(request, "producer_id", NOBODY),
        getattr(request, "producer_epoch", NOBODY),
    )
    broker.in_turn(lambda: coordinated(broker, call, name, command, tell))


# ---- AddPartitionsToTxn ----


def handle_add_partitions(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    name = str(request.v3_and_below_transactional_id)
    topics = request.v3_and_below_topics
    known = broker.node.metadata.image.topics
    partitions: list[bytes] = []
    errors: dict[tuple[str, int], ErrorCode] = {}
    for asked in topics:
        topic = known.get(asked.name)
        for number in asked.partitions:
            if topic is None or topic.purpose != TOPIC or not 0 <= number < len(topic.ensembles):
                errors[asked.name, number] = ErrorCode.unknown_topic_or_partition
            else:
                partitions.append(partition_of(topic.id, number))

    def tell(error: ErrorCode, _: Result | None) -> None:
        results = [
            {
                "name": asked.name,
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": errors.get((asked.name, number), error),
                    }
                    for number in asked.partitions
                ],
            }
            for asked in topics
        ]
        call.answer_with({"throttle_time": timedelta(0), "results_by_topic_v3_and_below": results})

    if errors or not partitions:  # All of them, or none.
        tell(ErrorCode.operation_not_attempted, None)
        return
    producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    _once_marked(broker, call, name, AddPartitions(name, *producer, tuple(partitions), wall_ms()), tell)


# ---- AddOffsetsToTxn ----


def handle_add_offsets(broker: Broker, call: Call) -> None:
    call.door.run(_add_offsets(broker, call, decode_request(call.frame).body))


async def _add_offsets(broker: Broker, call: Call, request: Any) -> None:
    def tell(error: ErrorCode, _: Result | None) -> None:
        call.answer_with({"throttle_time": timedelta(0), "error_code": error})

    try:
        await broker.node.homes.ensure(GROUPS)
    except NoHome:
        broker.in_turn(lambda: tell(ErrorCode.coordinator_not_available, None))
        return
    home = broker.node.homes.partition_of(GROUPS, request.group_id)
    assert home is not None
    name = str(request.transactional_id)
    command = AddPartitions(name, request.producer_id, request.producer_epoch, (home,), wall_ms())
    broker.in_turn(lambda: _once_marked(broker, call, name, command, tell))


# ---- EndTxn ----


def handle_end(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    name = str(request.transactional_id)

    def tell(error: ErrorCode, _: Result | None) -> None:
        call.answer_with({"throttle_time": timedelta(0), "error_code": error})

    command = EndPlain(name, request.producer_id, request.producer_epoch, request.committed, wall_ms())
    coordinated(broker, call, name, command, tell)


# ---- TxnOffsetCommit ----


def handle_offsets(broker: Broker, call: Call) -> None:
    call.door.run(_commit_offsets(broker, call, decode_request(call.frame).body))


async def _commit_offsets(broker: Broker, call: Call, request: Any) -> None:
    """Positions of a group that count once the transaction is committed; asked of the group's coordinator."""
    node = broker.node
    home = node.homes.partition_of(GROUPS, request.group_id)

    def tell(error: ErrorCode) -> None:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": error}
                    for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        call.answer_with({"throttle_time": timedelta(0), "topics": topics})

    if home is None or not node.is_leader(home):
        broker.in_turn(lambda: tell(ErrorCode.not_coordinator))
        return
    vouched = await ask_coordinator(
        broker,
        str(request.transactional_id),
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        partition=home,
    )
    if vouched is None or vouched[0] is Verdict.CONCURRENT:
        broker.in_turn(lambda: tell(ErrorCode.coordinator_load_in_progress))
    elif vouched[0] is not Verdict.DONE:
        fenced = vouched[0] is Verdict.FENCED
        error = ErrorCode.invalid_producer_epoch if fenced else _ERRORS[vouched[0]]
        broker.in_turn(lambda: tell(error))
    else:
        broker.in_turn(lambda: _propose_offsets(broker, request, home, vouched[1], tell))


def _why_not_of_group(broker: Broker, request: Any) -> ErrorCode:
    """A consumer that is not in its group any more has no say in where the group goes on."""
    try:
        return broker.groups.may_commit(
            broker.groups.find(request.group_id),
            request.group_id,
            getattr(request, "member_id", ""),
            getattr(request, "group_instance_id", None),
            getattr(request, "generation_id", -1),
            is_transaction=True,
        )
    except NotCoordinated as refused:
        return refused.error


def _propose_offsets(
    broker: Broker, request: Any, home: Partition, number: int, tell: Callable[[ErrorCode], None]
) -> None:
    node = broker.node
    now_ms = wall_ms()
    if error := _why_not_of_group(broker, request):
        tell(error)
        return
    positions: dict[str, dict[int, Position]] = {}
    for asked in request.topics:
        topic = node.metadata.image.topics.get(asked.name)
        for part in asked.partitions:
            if topic is None or not 0 <= part.partition_index < len(topic.ensembles):
                tell(ErrorCode.unknown_topic_or_partition)
                return
            metadata = part.committed_metadata or ""
            if len(metadata.encode()) > METADATA_BYTES_MAX:
                tell(ErrorCode.offset_metadata_too_large)
                return
            epoch = getattr(part, "committed_leader_epoch", -1)
            position = Position(part.committed_offset, epoch, metadata, topic.id, now_ms)
            positions.setdefault(asked.name, {})[part.partition_index] = position

    def settled(reply: Reply, results: Any) -> None:
        if reply.outcome is Outcome.NOT_LEADER:
            tell(ErrorCode.not_coordinator)
        elif reply.outcome is not Outcome.SETTLED or not results or results[0] is None:
            tell(ErrorCode.coordinator_not_available)
        elif results[0] is GroupResult.FENCED:
            tell(ErrorCode.invalid_producer_epoch)
        elif results[0] is not GroupResult.DONE:
            tell(ErrorCode.policy_violation)
        else:
            tell(ErrorCode.none)

    command = CommitOffsets(request.group_id, positions, request.producer_id, request.producer_epoch, number)
    node.homes.propose(home, [command], settled)
