"""ApiVersions: what is served, exactly. It is the first thing that a client asks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.wire.entities import make
from quorate.wire.messages import VERSIONS, Api, encode_response, response_class

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker


def handle(_: Broker, call: Call) -> None:
    call.answer_with(_values(ErrorCode.none))


def answer_unsupported(call: Call) -> None:
    """A client newer than we are gets the oldest answer, and asks again with what it finds there."""
    body = make(response_class(Api.API_VERSIONS, 0), _values(ErrorCode.unsupported_version))
    message = encode_response(Api.API_VERSIONS, 0, call.head.correlation, body)
    call.answer([message], len(message))


def _values(error: ErrorCode) -> dict[str, Any]:
    served = [
        {"api_key": api, "min_version": least, "max_version": greatest}
        for api, (least, greatest) in VERSIONS.items()
    ]
    return {"error_code": error, "api_keys": served, "throttle_time": timedelta(0)}
