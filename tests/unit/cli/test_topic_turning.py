"""`quorate topic alter --replication` says how it is: ordered, so, or overtaken by another order."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest

from quorate.cli import orders
from quorate.cli.entry import run
from quorate.client import admin
from quorate.machine.turning import Turning
from tests.unit.cli.test_typed_again import Cluster, cluster

__all__ = ["cluster"]


@pytest.fixture
def turning(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The topic `raft` is to be replicated by isr."""
    monkeypatch.setattr(orders, "reached", lambda _: nullcontext())
    monkeypatch.setattr(admin, "alter_topic", lambda *_: None)
    topic = msgspec.structs.replace(cluster.seen.topics[0], turning=Turning("isr", 9))
    cluster.seen = msgspec.structs.replace(cluster.seen, topics=(topic,))
    return cluster


@pytest.mark.usefixtures("turning")
def test_what_is_only_ordered_is_not_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic alter raft --replication isr --no-wait --config retention.ms=5".split()) == 0
    said = "topic raft: retention.ms is 5, to be replicated by isr: 0 of 1 partition so far\n"
    assert capsys.readouterr().out == said


@pytest.mark.usefixtures("turning")
def test_who_is_overtaken_by_another_order_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic alter raft --replication confirm".split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip() == (
        "quorate: raft: isr was ordered by somebody else meanwhile; look, and order again"
    )
