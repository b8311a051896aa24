"""InitProducerId: a number of its own for every idempotent producer.

Each request gets a new number, from a block that the metadata group gave this node; a producer that asks again
starts anew. One with a transactional id asks its coordinator (transactions.py).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from quorate.kafka import transactions
from quorate.kafka.call import Call
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

FIRST_EPOCH = 0
NOBODY = -1


def handle(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    if request.transactional_id is not None:
        call.door.run(transactions.begin(broker, call, request))
    else:
        call.door.run(_take(broker, call))


async def _take(broker: Broker, call: Call) -> None:
    error, producer_id = ErrorCode.none, NOBODY
    try:
        producer_id = await broker.node.metadata.next_producer_id()
    except NoMetadata as none:
        broker.node.log(f"no producer id for a client: {none}", level=WARNING)
        error = ErrorCode.coordinator_load_in_progress
    broker.in_turn(lambda: _answer(call, error, producer_id))


def _answer(call: Call, error: ErrorCode, producer_id: int = NOBODY) -> None:
    call.answer_with(
        {
            "throttle_time": timedelta(0),
            "error_code": error,
            "producer_id": producer_id,
            "producer_epoch": FIRST_EPOCH if producer_id != NOBODY else NOBODY,
        }
    )
