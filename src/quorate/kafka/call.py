"""One request on its way: what was asked, and where its answer goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.wire.cursor import Buffer
from quorate.wire.entities import make
from quorate.wire.messages import Api, RequestHead, encode_response, response_class

if TYPE_CHECKING:
    from quorate.kafka.door import Door


CROWDED = "too much waits for its answer on this node"
"""Why a write is not taken now."""


class Call(msgspec.Struct, eq=False):
    """Answered once, in a turn of the node, at once or later; or abandoned, when the client is gone."""

    door: Door
    head: RequestHead
    frame: Buffer
    request_bytes: int
    buffers: Sequence[Buffer] | None = None
    """The answer, once there is one; empty where the client wants none."""
    answer_bytes: int = 0
    abandon: Callable[[], None] | None = None
    """Called when nobody waits for the answer any more."""

    def answer(self, buffers: Sequence[Buffer], answer_bytes: int) -> None:
        assert self.buffers is None
        self.buffers = buffers
        self.answer_bytes = answer_bytes
        self.frame = b""
        self.abandon = None
        self.door.answered()

    def answer_with(self, values: dict[str, Any]) -> None:
        """By kio's schema for this version; values that it has no field for are left out."""
        api, version = Api(self.head.api), self.head.version
        body = make(response_class(api, version), values)
        message = encode_response(api, version, self.head.correlation, body)
        self.answer([message], len(message))
