"""What a node says of itself, and how long it has seen entries wait."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from quorate import __version__
from quorate.core.entry import partition_of
from quorate.node import Node
from quorate.node.health import Unsettled
from quorate.node.requests import decode_answer, encode_answer
from quorate.node.state import why_not_ready
from tests.unit.core import kit
from tests.unit.core.kit import N2
from tests.unit.kafka.harness import Served, serve, until

PARTITION = partition_of(bytes(16), 0)


def test_a_node_says_how_it_is(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await until(lambda: not why_not_ready(served.node))
        status = served.node.status()
        assert decode_answer(encode_answer(9, status)[4:])[1] == status
        health = status.health
        assert health is not None
        assert health.version == __version__
        assert abs(health.wall_ms - time.time() * 1000) < 60_000
        assert 0 < health.uptime_s < 60
        assert health.directory == str(tmp_path / "n1")
        disk = shutil.disk_usage(tmp_path)
        assert 0 < health.disk_free_bytes <= health.disk_total_bytes <= disk.total
        assert (health.is_full, health.heard, health.certificates) == (False, (1,), ())
        assert all(replica.unsettled_s == 0 and not replica.halted for replica in status.replicas)

    serve(tmp_path, test)


def watching(bench: Any) -> Unsettled:
    """A node that hosts this replica."""
    hosted = SimpleNamespace(replica=bench.replica, commit=bench.replica.commit)
    node = SimpleNamespace(host=SimpleNamespace(hosted={PARTITION: hosted}))
    return Unsettled(cast(Node, node))


def hosted_by(unsettled: Unsettled) -> Any:
    return unsettled._node.host.hosted[PARTITION]


def test_what_a_leader_cannot_settle_grows_old() -> None:
    bench = kit.leader("1-0")
    kit.propose(bench)
    bench.persist()
    unsettled = watching(bench)
    assert unsettled.age_s(PARTITION, 5.0) == 0.0, "nobody has looked yet"
    unsettled.look(10.0)
    unsettled.look(11.0)
    assert unsettled.age_s(PARTITION, 30.0) == 20.0
    kit.propose(bench)
    unsettled.look(31.0)
    assert unsettled.age_s(PARTITION, 32.0) == 22.0, "what comes behind it makes it no younger"


def test_what_is_settled_is_waited_for_no_more() -> None:
    bench = kit.leader("1-0")
    kit.propose(bench)
    bench.persist()
    unsettled = watching(bench)
    unsettled.look(10.0)
    kit.flushed(bench, N2, 2)
    assert bench.replica.commit == bench.replica.log.head.offset
    hosted_by(unsettled).commit = bench.replica.commit
    assert unsettled.age_s(PARTITION, 20.0) == 0.0
    unsettled.look(20.0)
    kit.propose(bench)
    unsettled.look(21.0)
    assert unsettled.age_s(PARTITION, 22.0) == 1.0


def test_only_who_leads_waits() -> None:
    unsettled = watching(kit.following())
    unsettled.look(10.0)
    assert unsettled.age_s(PARTITION, 20.0) == 0.0
