"""Damage is counted when it is found, and when it is mended."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorate.core import effects, events
from quorate.core.entry import EntryId, Header, Member, Span, partition_of
from quorate.machine.metadata import METADATA
from quorate.node import Node
from quorate.node import reports as told
from quorate.node.config import NodeConfig
from quorate.node.metadata import MetadataClient
from quorate.node.metrics import Metrics
from quorate.node.reports import TELL_AFRESH_S, TOLD_MAX, Reports
from quorate.node.tls import Security


def a_node() -> tuple[SimpleNamespace, list[str]]:
    said: list[str] = []
    return SimpleNamespace(metrics=Metrics(), log=lambda line, **_: said.append(line)), said


def test_what_was_damaged_and_what_was_mended_is_counted() -> None:
    node, _ = a_node()
    reports = Reports(cast(Node, node))
    hosted: Any = SimpleNamespace(partition=METADATA)
    span = Span(EntryId(1, 3), EntryId(1, 9))
    reports.stepped(1.0, 1, hosted, events.Damaged(span), [])
    assert (node.metrics.damaged, node.metrics.mended_offsets) == (1, 0)
    repair = effects.Repair(7, (Header(1, 4, 2, 10), Header(1, 6, 4, 10)))
    received = events.Received(Member(2, 1), object())
    reports.stepped(1.0, 1, hosted, received, [effects.Commit(3), repair])
    assert (node.metrics.damaged, node.metrics.mended_offsets) == (1, 6)


def test_damage_is_said_whoever_found_it() -> None:
    node, said = a_node()
    reports = Reports(cast(Node, node))
    hosted: Any = SimpleNamespace(partition=METADATA)
    span = Span(EntryId(1, 3), EntryId(1, 9))
    line = "partition metadata: offsets 4..9 cannot be read here; other copies are asked for them"
    recovered: Any = SimpleNamespace(faulty=(span,))
    reports.stepped(1.0, 1, hosted, events.Started(recovered), [])
    assert said == [line], "found when it was opened"
    reports.stepped(1.0, 1, hosted, events.Damaged(span), [])
    assert said == [line] * 2, "found when it was read"


def test_a_log_that_is_damaged_all_over_does_not_flood() -> None:
    node, said = a_node()
    hosted: Any = SimpleNamespace(partition=METADATA)
    reports = Reports(cast(Node, node))
    for offset in range(100):
        span = Span(EntryId(1, offset), EntryId(1, offset + 1))
        reports.stepped(1.0, 1, hosted, events.Damaged(span), [])
    assert len(said) == TOLD_MAX
    assert said[-1].endswith("; if there are more, the rest is not told one by one")
    assert node.metrics.damaged == 100, "each is counted"


def test_what_a_start_finds_is_said_before_the_metadata_group_is_held() -> None:
    """Its record may be damaged, too: then it is added when every other replica has started (host.open)."""
    node, said = a_node()
    node.id, node.host = 1, SimpleNamespace(hosted={})
    node.config = NodeConfig(cluster="test", node=1, directory="n1", listen="127.0.0.1:1", voters=(1,))
    node.security = Security({})
    node.metadata = MetadataClient(cast(Node, node), Random(1))
    partition = partition_of(bytes(range(16)), 7)
    hosted: Any = SimpleNamespace(partition=partition)
    recovered: Any = SimpleNamespace(faulty=(Span(EntryId(1, 3), EntryId(1, 9)),))
    reports = Reports(cast(Node, node))
    reports.stepped(1.0, 1, hosted, events.Started(recovered), [])
    reports.reported(1.0, 1, partition, effects.Report("every copy is damaged", None, Member(1, 1)))
    assert [line.split(":")[0] for line in said] == [f"partition {bytes(range(16)).hex()}-7"] * 2


def test_of_whom_was_told_long_ago_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics come and go."""
    now = 100.0
    monkeypatch.setattr(told, "time", SimpleNamespace(monotonic=lambda: now))
    node, said = a_node()
    node.config = SimpleNamespace(voters=())
    reports = Reports(cast(Node, node))
    damaged = events.Damaged(Span(EntryId(1, 3), EntryId(1, 9)))
    for number in range(100):
        hosted: Any = SimpleNamespace(partition=partition_of(bytes(16), number))
        reports.stepped(now, 1, hosted, damaged, [])
        now += 1.0
    assert len(said) == 100
    assert len(reports._told) == TELL_AFRESH_S
