"""Log matching, by the receiving side's own rules, over any order of leaders and any losses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import appending
from quorate.core.entry import NOWHERE, Header
from quorate.core.events import Recovered
from quorate.core.log import LogView

REPLICAS = 4

leads = st.tuples(st.just("lead"), st.integers(0, REPLICAS - 1), st.lists(st.integers(1, 3), max_size=4))
sends = st.tuples(
    st.just("send"),
    st.integers(0, REPLICAS - 1),
    st.integers(0, REPLICAS - 1),
    st.integers(0, 9),
    st.integers(1, 5),
)


def everything(log: LogView) -> list[tuple[int, int, int]]:
    return [(header.epoch, header.offset, header.count) for header in log.window]


@pytest.mark.behaviour("YB-6")
@given(st.lists(leads | sends, max_size=40))
def test_the_same_epoch_at_the_same_offset_means_the_same_log_up_to_there(steps: list[Any]) -> None:
    """Any replica may lead a new epoch and append; any may be sent any part of any log behind a position that
    it holds. (Who may lead is what elections are for; matching holds without them.)"""
    logs = [LogView(Recovered(NOWHERE, NOWHERE, ())) for _ in range(REPLICAS)]
    epoch = 0
    for step in steps:
        if step[0] == "lead":
            log = logs[step[1]]
            epoch += 1
            for count in step[2]:
                log.append((Header(epoch, log.head.offset + 1, count),))
        else:
            _, source, target, start, count = step
            entries = tuple(logs[source].window[start : start + count])
            prev = logs[source].window[start - 1].id if 0 < start <= len(logs[source].window) else NOWHERE
            if source == target or not entries or not logs[target].holds(prev):
                continue
            plan = appending.plan(logs[target], prev, entries)
            if plan.cut_to is not None:
                logs[target].cut(plan.cut_to)
            logs[target].append(plan.append)
            assert (
                everything(logs[target])[: start + len(entries)]
                == everything(logs[source])[: start + len(entries)]
            )
        for one in logs:
            for other in logs:
                for offset in range(min(one.head.offset, other.head.offset) + 1):
                    if one.epoch_at(offset) == other.epoch_at(offset):
                        below = [header for header in one.window if header.offset <= offset]
                        assert below == [header for header in other.window if header.offset <= offset]
