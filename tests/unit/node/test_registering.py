"""What others know of a node, when theirs is not the whole truth."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from quorate.machine.metadata import FIRST_INCARNATION, METADATA, NodeInfo, RegisterNode
from quorate.node import metadata
from quorate.node.state import why_not_ready
from tests.unit.kafka.harness import Served, serve, until


def test_a_node_says_again_who_it_is_when_another_comes_with_a_newer_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other may have begun with a snapshot of an older node, which does not say what this one knows."""
    monkeypatch.setattr(metadata, "KNOWN_LEVEL", 1)

    async def test(served: Served) -> None:
        client = served.node.metadata
        await until(lambda: not why_not_ready(served.node))
        assert (client.image.cluster.level, client.image.nodes[1].knows) == (1, 1)
        # As if the image here were one that had lost what this node knows.
        monkeypatch.setattr(metadata, "KNOWN_LEVEL", 2)
        other = NodeInfo(2, FIRST_INCARNATION, "127.0.0.1", 1, disk=7, knows=1)
        await client.command(RegisterNode(other))
        await until(lambda: client.image.nodes[1].knows == 2)
        renewed = await client.command(RegisterNode(msgspec.structs.replace(other, knows=2)))
        await until(lambda: served.node.host.hosted[METADATA].applied.offset > renewed)
        assert client.image.version == renewed, "to say the same again changes nothing"

    serve(tmp_path, test)
