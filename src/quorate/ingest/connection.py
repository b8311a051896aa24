"""The library's client, with two things that it does not do: insist on TLS, and survive a message it cannot read.

Both are overridden inside of it; tests/unit/ingest/test_connection.py fails if another version does not call them.
"""

from __future__ import annotations

from typing import Any

import nats.errors
from nats.aio.client import Client


class Unreadable(nats.errors.Error):
    def __str__(self) -> str:
        return "a message whose subject, reply subject or headers are no text was dropped"


class Unencrypted(nats.errors.Error):
    def __str__(self) -> str:
        return "the server does not encrypt, and tls:// insists on it"


class Connection(Client):
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The library encrypts only if the server asks for it, and else sends a password in clear text."""
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Unencrypted
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """What is no UTF-8, say, would end the library's reading, but not its connection."""
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception:  # Whatever a stranger's message makes of the library.
            await self._error_cb(Unreadable())
