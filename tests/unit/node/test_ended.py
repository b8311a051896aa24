"""Nodes whose processes are gone: whoever comes to lead hears of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.host import Host
from quorate.host.detector import DetectorSettings
from quorate.node import peers
from tests.unit.kafka.harness import Served, serve, until

GONE = 2
SLOW = DetectorSettings(ping_s=100.0, suspect_s=1000.0)
"""Nobody is found by silence alone."""


def test_a_new_leader_hears_at_once_who_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not wait until somebody tries once more to reach them, which may be seconds later."""
    monkeypatch.setattr(peers, "RECONNECT_FIRST_S", 1000.0)
    monkeypatch.setattr(peers, "RECONNECT_MAX_S", 1000.0)
    told: list[tuple[int, bool]] = []
    suspect = Host.suspect

    def heard(host: Host, peer: int, *, ended: bool = False) -> None:
        told.append((peer, ended))
        suspect(host, peer, ended=ended)

    monkeypatch.setattr(Host, "suspect", heard)

    async def test(served: Served) -> None:
        await until(lambda: GONE in served.node.links.ended)
        told.clear()
        async with await served.connect() as client:
            assert (await client.create("topic", copies=1)).error_code == 0
            await until(lambda: (GONE, True) in told)

    settings: dict[str, Any] = {"peers": {GONE: "127.0.0.1:1"}, "detector": SLOW}
    serve(tmp_path, test, **settings)
