"""DescribeGroups, ListGroups and DeleteGroups: the groups that are coordinated here, for people who look after
them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.kafka.group_coordinator import Led, Refused
from quorate.kafka.group_live import LiveGroup
from quorate.kafka.group_member import Stage
from quorate.machine.groups import DeleteGroup
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

NOT_FOUND_FROM = 6
"""The first version of DescribeGroups in which a group that is not there is an error, and not one that is dead."""
NAMED_COUNT_MAX = 1000
"""Groups in one request."""
CLASSIC = "classic"
"""The kind of groups, as newer versions have it."""


# ---- describing ----


def handle_describe(broker: Broker, call: Call) -> None:
    names = _names(decode_request(call.frame).body.groups)
    # Once, however often it is named: a few bytes stand for all that the members of a group say.
    groups = [_described(broker, name, call.head.version) for name in dict.fromkeys(names)]
    call.answer_with({"throttle_time": timedelta(0), "groups": groups})


def _described(broker: Broker, name: str, version: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": name,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
    try:
        led = broker.groups.find(name)
    except Refused as refused:
        return values | {"error_code": refused.error}
    stage, live = led.stage_of(name), led.live.get(name)
    if stage is Stage.DEAD and version >= NOT_FOUND_FROM:
        return values | {
            "error_code": ErrorCode.group_id_not_found,
            "error_message": f"there is no group {name}",
            "group_state": stage.value,
        }
    if live is None:
        known = led.machine.groups.get(name)
        protocol_type = "" if known is None else known.protocol_type
        return values | {"group_state": stage.value, "protocol_type": protocol_type}
    return values | {
        "group_state": stage.value,
        "protocol_type": live.protocol_type,
        "protocol_data": live.protocol if stage is Stage.STABLE else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(live.protocol) if stage is Stage.STABLE else b"",
                "member_assignment": member.assignment,
            }
            for member in live.members.values()
        ],
    }


# ---- listing ----


def handle_list(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    states = {state.casefold() for state in getattr(request, "states_filter", ())}
    types = {kind.casefold() for kind in getattr(request, "types_filter", ())}
    error, listed = ErrorCode.none, []
    try:
        for led in broker.groups.all_led():
            listed += [
                each
                for each in _listed(led)
                if (not states or each["group_state"].casefold() in states)
                and (not types or CLASSIC in types)
            ]
    except Refused as refused:
        error, listed = refused.error, []
    call.answer_with({"throttle_time": timedelta(0), "error_code": error, "groups": listed})


def _listed(led: Led) -> Iterator[dict[str, Any]]:
    for name in sorted({*led.machine.groups, *led.live}):
        live = led.live.get(name)
        kind = live.protocol_type if live is not None else led.machine.groups[name].protocol_type
        yield {
            "group_id": name,
            "protocol_type": kind,
            "group_state": led.stage_of(name).value,
            "group_type": CLASSIC,
        }


# ---- deleting ----


def handle_delete(broker: Broker, call: Call) -> None:
    Deleting(broker, call, _names(decode_request(call.frame).body.groups_names))


class Deleting:
    """One request for several groups, answered when the last is gone."""

    def __init__(self, broker: Broker, call: Call, names: tuple[str, ...]) -> None:
        self._call = call
        self._names = names
        self._errors: dict[str, ErrorCode] = {}
        for name in dict.fromkeys(names):
            self._delete(broker, name)
        if not names:
            self._answer()

    def _delete(self, broker: Broker, name: str) -> None:
        try:
            led = broker.groups.find(name)
        except Refused as refused:
            self._deleted(name, refused.error)
            return
        live: LiveGroup | None = led.live.get(name)
        if live is not None:
            self._deleted(name, ErrorCode.non_empty_group)
        else:
            broker.groups.write(led, DeleteGroup(name), lambda error: self._deleted(name, error))

    def _deleted(self, name: str, error: ErrorCode) -> None:
        self._errors[name] = error
        if len(self._errors) == len(set(self._names)):
            self._answer()

    def _answer(self) -> None:
        results = [{"group_id": name, "error_code": self._errors[name]} for name in self._names]
        self._call.answer_with({"throttle_time": timedelta(0), "results": results})


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > NAMED_COUNT_MAX:
        raise BadMessage(f"{len(names)} groups in one request; {NAMED_COUNT_MAX} are the most")
    return names
