"""Where a connection is first heard: its first bytes say whether letters follow, or Kafka's protocol.

A listener may take only one of them. Somebody who brings letters where only clients are served is told so;
whoever is no node hears nothing where only nodes are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from quorate.node.codec import GREETING_TIMEOUT_S, Refused, encode_greeting
from quorate.node.letters import PREFACE

MakeProtocol = Callable[[], asyncio.Protocol]

WAITING_COUNT_MAX = 200
"""Connections that have not said anything yet."""
NO_LETTERS = (
    "this listener is for Kafka clients; nodes and their tools speak on the one named `nodes`: "
    "see `quorate --help`, --access"
)


class Porch(asyncio.Protocol):
    """Until four bytes are there. Then the connection belongs to somebody else."""

    def __init__(
        self, waiting: set[asyncio.Transport], *, letters: MakeProtocol | None, guests: MakeProtocol | None
    ) -> None:
        """`waiting` holds the connections of all porches of this listener; None: such are not served here."""
        self._waiting = waiting
        self._letters = letters
        self._guests = guests
        self._first = b""
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._waiting) >= WAITING_COUNT_MAX:
            self._transport.abort()
        self._waiting.add(self._transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(GREETING_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < len(PREFACE):
            return
        self._leave()
        if self._first.startswith(PREFACE):
            if self._letters is not None:
                self._hand_over(self._letters(), self._first[len(PREFACE) :])
            else:
                self._transport.write(encode_greeting(Refused(NO_LETTERS)))
                self._transport.close()
        elif self._guests is not None:
            self._hand_over(self._guests(), self._first)
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._patience.cancel()
        self._waiting.discard(self._transport)

    def _hand_over(self, owner: asyncio.Protocol, first: bytes) -> None:
        transport = self._transport
        transport.set_protocol(owner)
        owner.connection_made(transport)
        if first and not transport.is_closing():
            owner.data_received(first)
