"""FindCoordinator: which node coordinates a group, or a transaction.

It is whoever leads the partition of the home in which it lives, as far as is known here; where nobody is known to,
the client hears that, and asks again. A home that nobody has needed yet is made now.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.core.entry import partition_of
from quorate.kafka.call import Call
from quorate.machine.purpose import GROUPS, TRANSACTIONS
from quorate.node.homes import NoHome
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

KINDS = {0: GROUPS, 1: TRANSACTIONS}
"""By Kafka's type of key."""
BATCHED_FROM = 4
NOBODY = -1
LEADERS_TIMEOUT_S = 5.0
"""A home that was just made has leaders soon. A client that hears of none asks again anyway."""
POLL_S = 0.01


def handle(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    kind = KINDS.get(getattr(request, "key_type", 0))
    homes = broker.node.metadata.image.cluster.homes
    if kind is None or kind in homes:
        _answer(broker, call, request, kind)
    else:
        call.door.run(_make(broker, call, request, kind))


async def _make(broker: Broker, call: Call, request: Any, kind: str) -> None:
    try:
        await broker.node.homes.ensure(kind)
        await _until_led(broker, kind)
    except NoHome as none:
        broker.node.log_offence(f"no home for {kind} yet: {none}")  # Clients ask again and again.
    broker.in_turn(lambda: _answer(broker, call, request, kind))


async def _until_led(broker: Broker, kind: str) -> None:
    image = broker.node.metadata.image
    topic = image.by_id.get(image.cluster.homes.get(kind, b""))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEADERS_TIMEOUT_S
    while topic is not None and loop.time() < deadline:
        leaders = [
            broker.node.leader_of(partition_of(topic.id, number))[0] for number in range(len(topic.ensembles))
        ]
        if all(leaders):
            return
        await asyncio.sleep(POLL_S)


def _answer(broker: Broker, call: Call, request: Any, kind: str | None) -> None:
    if call.head.version >= BATCHED_FROM:
        found = [{"key": key, **_found(broker, call, kind, key)} for key in request.coordinator_keys]
        call.answer_with({"throttle_time": timedelta(0), "coordinators": found})
    else:
        call.answer_with({"throttle_time": timedelta(0), **_found(broker, call, kind, request.key)})


def _found(broker: Broker, call: Call, kind: str | None, name: str) -> dict[str, Any]:
    if kind is None:
        return _nobody(ErrorCode.invalid_request, "only groups (0) and transactions (1) have coordinators")
    partition = broker.node.metadata.image.home_of(kind, name)
    leader = 0 if partition is None else broker.node.leader_of(partition)[0]
    address = broker.metadata.reachable(call.door.listener).get(leader)
    if address is None:
        return _nobody(ErrorCode.coordinator_not_available, "nobody is known to coordinate it now; ask again")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": leader,
        "host": address.host,
        "port": address.port,
    }


def _nobody(error: ErrorCode, why: str) -> dict[str, Any]:
    return {"error_code": error, "error_message": why, "node_id": NOBODY, "host": "", "port": NOBODY}
