"""Whoever is gone without a word: a machine that lost its power, a cable that was pulled."""

from __future__ import annotations

import asyncio
import socket

KEEPALIVE_IDLE_S = 120


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """A client whose machine is gone does not say so; the system notices after a while, and frees its place."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
