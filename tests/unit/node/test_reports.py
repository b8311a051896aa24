"""Damage is counted when it is found, and when it is mended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from quorate.core import effects, events
from quorate.core.entry import EntryId, Header, Member, Span
from quorate.node import Node
from quorate.node.metrics import Metrics
from quorate.node.reports import Reports


def test_what_was_damaged_and_what_was_mended_is_counted() -> None:
    node = SimpleNamespace(metrics=Metrics())
    reports = Reports(cast(Node, node))
    hosted: Any = None
    span = Span(EntryId(1, 3), EntryId(1, 9))
    reports.stepped(1.0, 1, hosted, events.Damaged(span), [])
    assert (node.metrics.damaged, node.metrics.mended_offsets) == (1, 0)
    repair = effects.Repair(7, (Header(1, 4, 2, 10), Header(1, 6, 4, 10)))
    received = events.Received(Member(2, 1), object())
    reports.stepped(1.0, 1, hosted, received, [effects.Commit(3), repair])
    assert (node.metrics.damaged, node.metrics.mended_offsets) == (1, 6)
