"""What people ask about transactions: DescribeProducers, DescribeTransactions, ListTransactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from kio.schema.errors import ErrorCode

from quorate.core.entry import TOPIC_ID_BYTES, Partition, number_of
from quorate.kafka.call import Call
from quorate.machine.producers import Producers
from quorate.machine.purpose import TRANSACTIONS
from quorate.machine.transaction_words import Phase, Plain
from quorate.machine.transactions import Transactions
from quorate.node.transactions import wall_ms
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

PHASES = {
    Phase.EMPTY: "Empty",
    Phase.ONGOING: "Ongoing",
    Phase.COMMITTING: "PrepareCommit",
    Phase.ABORTING: "PrepareAbort",
    Phase.COMMITTED: "CompleteCommit",
    Phase.ABORTED: "CompleteAbort",
}
"""As Kafka calls them."""
NOT_KNOWN = -1


def handle_describe_producers(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    known = broker.node.metadata.image.topics
    once: dict[str, dict[int, None]] = {}
    for asked in request.topics:  # Four bytes stand for thousands of producers: once, however often.
        once.setdefault(asked.name, {}).update(dict.fromkeys(asked.partition_indexes))
    topics = [
        {"name": name, "partitions": [_producers(broker, known.get(name), number) for number in numbers]}
        for name, numbers in once.items()
    ]
    call.answer_with({"throttle_time": timedelta(0), "topics": topics})


def _producers(broker: Broker, topic: Any, number: int) -> dict[str, Any]:
    error, partition = broker.find(topic, number)
    producers: list[dict[str, Any]] = []
    machine = None if error else broker.node.host.hosted[partition].machine
    if isinstance(machine, Producers):
        first = machine.open_transactions()
        producers = [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last,
                "last_timestamp": NOT_KNOWN,
                "coordinator_epoch": NOT_KNOWN,
                "current_txn_start_offset": first.get(producer_id, NOT_KNOWN),
            }
            for producer_id, producer in sorted(machine.all().items())
        ]
    return {
        "partition_index": number,
        "error_code": ErrorCode(error),
        "error_message": None,
        "active_producers": producers,
    }


def handle_describe(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    states = [_described(broker, str(name)) for name in dict.fromkeys(request.transactional_ids)]
    call.answer_with({"throttle_time": timedelta(0), "transaction_states": states})


def _described(broker: Broker, name: str) -> dict[str, Any]:
    node = broker.node
    home = node.homes.partition_of(TRANSACTIONS, name)
    found: Plain | None = None
    partitions: list[bytes] = []
    if home is None or not node.leads_with_all(home):
        error = ErrorCode.not_coordinator
    else:
        machine = cast(Transactions, node.host.hosted[home].machine)
        found = machine.plain(name)
        error = ErrorCode.none if found is not None else ErrorCode.transactional_id_not_found
        if found is not None:
            ending = next((each for pid, each in machine.endings() if pid == found.producer_id), None)
            partitions = found.partitions if ending is None else ending.partitions
    is_open = found is not None and found.phase in (Phase.ONGOING, Phase.COMMITTING, Phase.ABORTING)
    began_ms = found.began_ms if found is not None and is_open else NOT_KNOWN
    return {
        "error_code": error,
        "transactional_id": name,
        "transaction_state": PHASES[found.phase] if found is not None else "",
        "transaction_timeout": timedelta(milliseconds=found.timeout_ms if found is not None else 0),
        "transaction_start_time": datetime.fromtimestamp(began_ms / 1000, UTC),
        "producer_id": found.producer_id if found is not None else NOT_KNOWN,
        "producer_epoch": found.epoch if found is not None else NOT_KNOWN,
        "topics": _named(broker, partitions),
    }


def _named(broker: Broker, partitions: list[bytes]) -> list[dict[str, Any]]:
    image = broker.node.metadata.image
    named: dict[str, list[int]] = {}
    for partition in partitions:
        topic = image.by_id.get(partition[:TOPIC_ID_BYTES])
        if topic is not None:
            named.setdefault(topic.name, []).append(number_of(Partition(partition)))
    return [{"topic": name, "partitions": sorted(numbers)} for name, numbers in sorted(named.items())]


def handle_list(broker: Broker, call: Call) -> None:
    """Of the homes that are led here; a client asks every node."""
    request = decode_request(call.frame).body
    wanted = set(request.state_filters)
    producer_ids = set(request.producer_id_filters)
    least_ms = getattr(request, "duration_filter", NOT_KNOWN)
    now_ms = wall_ms()
    states = [
        {
            "transactional_id": name,
            "producer_id": plain.producer_id,
            "transaction_state": PHASES[plain.phase],
        }
        for name, plain in _all(broker)
        if (not wanted or PHASES[plain.phase] in wanted)
        and (not producer_ids or plain.producer_id in producer_ids)
        and (least_ms < 0 or (plain.phase is Phase.ONGOING and now_ms - plain.began_ms > least_ms))
    ]
    call.answer_with(
        {
            "throttle_time": timedelta(0),
            "error_code": ErrorCode.none,
            "unknown_state_filters": sorted(wanted - set(PHASES.values())),
            "transaction_states": states,
        }
    )


def _all(broker: Broker) -> Iterator[tuple[str, Plain]]:
    node = broker.node
    for partition, hosted in node.host.hosted.items():
        if hosted.record.purpose == TRANSACTIONS and node.leads_with_all(partition):
            yield from sorted(cast(Transactions, hosted.machine).all_plain())
