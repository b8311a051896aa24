"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: consumers who share partitions among themselves.

A join and a sync may wait as long as their group's round lasts; what they wait for is group_live.py's business.
A client that goes meanwhile is not waited for any longer than one that is silent.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.kafka.group_coordinator import Led, Refused
from quorate.kafka.group_live import LiveGroup
from quorate.kafka.group_member import Join, Joined, Sync, Synced
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

NEEDS_ID_FROM = 4
NULL_PROTOCOL_FROM = 7
CAN_SKIP_FROM = 9
MANY_LEAVE_FROM = 3
REBALANCE_S_MAX = 24 * 3600.0
SAID_MAX = 1000
"""Of a name that a client gives itself."""


# ---- joining ----


def handle_join(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    wanted = _wanted(call, request)
    try:
        led, group = broker.groups.group(request.group_id)
    except Refused as refused:
        _answer_join(call, Joined(refused.error, request.member_id))
        return
    answer = partial(_answer_join, call)
    group.join(time.monotonic(), wanted, answer)
    if call.buffers is None:
        call.abandon = partial(_gone, broker, led, group, answer)
    broker.groups.rearm(led, group)


def _wanted(call: Call, request: Any) -> Join:
    version = call.head.version
    session_s = request.session_timeout.total_seconds()
    rebalance_s = request.rebalance_timeout.total_seconds() if version >= 1 else session_s
    return Join(
        request.member_id,
        getattr(request, "group_instance_id", None),
        (call.head.client_id or "")[:SAID_MAX],
        "/" + call.door.visitor.rpartition(" ")[2].rpartition(":")[0],
        request.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_s,
        min(max(rebalance_s, 0.0), REBALANCE_S_MAX),
        needs_id=version >= NEEDS_ID_FROM,
        can_skip=version >= CAN_SKIP_FROM,
    )


def _answer_join(call: Call, joined: Joined) -> None:
    no_protocol = None if call.head.version >= NULL_PROTOCOL_FROM else ""
    call.answer_with(
        {
            "throttle_time": timedelta(0),
            "error_code": joined.error,
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": no_protocol if joined.protocol is None else joined.protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": instance, "metadata": metadata}
                for member_id, instance, metadata in joined.members
            ],
        }
    )


def _gone(broker: Broker, led: Led, group: LiveGroup, answer: object) -> None:
    """The client that waited for this answer is gone. It is noticed when its connection is wholly taken down."""

    def act() -> None:
        group.gone(time.monotonic(), answer)
        broker.groups.rearm(led, group)

    asyncio.get_running_loop().call_soon(broker.in_turn, act)


# ---- shares ----


def handle_sync(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    wanted = Sync(
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id,
        getattr(request, "protocol_type", None),
        getattr(request, "protocol_name", None),
        tuple((share.member_id, share.assignment) for share in request.assignments),
    )
    try:
        led, group = broker.groups.known(request.group_id)
    except Refused as refused:
        _answer_sync(call, Synced(refused.error))
        return
    answer = partial(_answer_sync, call)
    group.sync(time.monotonic(), wanted, answer)
    if call.buffers is None:
        call.abandon = partial(_gone, broker, led, group, answer)
    broker.groups.rearm(led, group)


def _answer_sync(call: Call, synced: Synced) -> None:
    call.answer_with(
        {
            "throttle_time": timedelta(0),
            "error_code": synced.error,
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol,
            "assignment": synced.assignment,
        }
    )


# ---- being there ----


def handle_heartbeat(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    try:
        _, group = broker.groups.known(request.group_id)
        instance = getattr(request, "group_instance_id", None)
        error = group.heartbeat(time.monotonic(), request.member_id, instance, request.generation_id)
    except Refused as refused:
        # Whoever has yet to load the group cannot tell, and not every client (aiokafka, for one) knows that error
        # of a heartbeat: as Kafka does, let the member go on until the next.
        is_loading = refused.error == ErrorCode.coordinator_load_in_progress
        error = ErrorCode.none if is_loading else refused.error
    call.answer_with({"throttle_time": timedelta(0), "error_code": error})


def handle_leave(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    error, answers = ErrorCode.none, []
    if call.head.version >= MANY_LEAVE_FROM:
        leaving = [(member.member_id, member.group_instance_id) for member in request.members]
    else:
        leaving = [(request.member_id, None)]
    try:
        led, group = broker.groups.known(request.group_id)
        for member_id, instance in leaving:
            why = group.leave(time.monotonic(), member_id, instance)
            answers.append({"member_id": member_id, "group_instance_id": instance, "error_code": why})
        broker.groups.rearm(led, group)
    except Refused as refused:
        error = refused.error
        if error == ErrorCode.unknown_member_id and call.head.version >= MANY_LEAVE_FROM:
            error = ErrorCode.none  # That is to be said of each.
            answers = [
                {"member_id": member_id, "group_instance_id": instance, "error_code": refused.error}
                for member_id, instance in leaving
            ]
    if not error and call.head.version < MANY_LEAVE_FROM:
        error = answers[0]["error_code"]
    call.answer_with({"throttle_time": timedelta(0), "error_code": error, "members": answers})
