"""Calls about what is not there yet, answered as a broker without it answers: clients then know, and go on.

There are no access rules for topics (who may connect is said by SASL and TLS, docs/SECURITY.md), and nobody is
slowed down by quotas.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

NO_ACLS = "there are no access rules here: whoever may connect may do everything (docs/SECURITY.md)"
NO_QUOTAS = "there are no quotas here: nobody is slowed down"
_WITHOUT_ACLS = {"error_code": ErrorCode.security_disabled, "error_message": NO_ACLS}
_NOW = {"throttle_time": timedelta(0)}


def handle_describe_acls(_: Broker, call: Call) -> None:
    decode_request(call.frame)
    call.answer_with({**_NOW, **_WITHOUT_ACLS, "resources": ()})


def handle_create_acls(_: Broker, call: Call) -> None:
    wanted = decode_request(call.frame).body.creations
    call.answer_with({**_NOW, "results": [_WITHOUT_ACLS for _ in wanted]})


def handle_delete_acls(_: Broker, call: Call) -> None:
    wanted = decode_request(call.frame).body.filters
    call.answer_with({**_NOW, "filter_results": [{**_WITHOUT_ACLS, "matching_acls": ()} for _ in wanted]})


def handle_describe_quotas(_: Broker, call: Call) -> None:
    decode_request(call.frame)
    call.answer_with({**_NOW, "error_code": ErrorCode.none, "error_message": None, "entries": ()})


def handle_alter_quotas(_: Broker, call: Call) -> None:
    """To take one away that is not there is done; to set one is refused."""
    entries: list[dict[str, Any]] = []
    for entry in decode_request(call.frame).body.entries:
        sets = any(not each.remove for each in entry.ops)
        entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
        entries.append(
            {
                "error_code": ErrorCode.invalid_request if sets else ErrorCode.none,
                "error_message": NO_QUOTAS if sets else None,
                "entity": entity,
            }
        )
    call.answer_with({**_NOW, "entries": entries})
