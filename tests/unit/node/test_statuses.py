"""What a leader of each protocol says of its followers: how far behind they are, and who is in sync."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import isr
from quorate.node.statuses import in_sync, lags
from tests.unit.core import coordinated_kit, isr_kit, kit
from tests.unit.core.kit import N1, N2, N3, THREE


def raft_leader() -> Any:
    bench = kit.leader("1-0")
    kit.propose(bench)
    bench.persist()
    kit.flushed(bench, N2, 2)
    return bench.replica


def coordinated_leader() -> Any:
    bench = coordinated_kit.leader("1-0")
    coordinated_kit.propose(bench)
    bench.persist()
    coordinated_kit.flushed(bench, N2, 2)
    return bench.replica


@pytest.mark.parametrize("leads", [raft_leader, coordinated_leader])
def test_in_sync_is_whoever_has_what_is_settled(leads: Any) -> None:
    replica = leads()
    assert (replica.commit, replica.log.head.offset) == (2, 2)
    assert lags(replica) == {2: 0, 3: 1}
    assert in_sync(replica, THREE) == (1, 2)
    assert in_sync(replica, (N1, N3)) == (1,), "who does not count is in nothing"


def test_where_there_is_an_isr_that_is_in_sync_however_far_behind() -> None:
    bench = isr_kit.leader("1-0", isr_kit.state(2, 2, isr_now=(N1, N2), min_isr=2))
    isr_kit.propose(bench)
    bench.persist()
    replica = bench.replica
    assert isinstance(replica, isr.Replica)
    assert lags(replica) == {2: 1, 3: 1}
    assert in_sync(replica, THREE) == (1, 2)


@pytest.mark.parametrize("follows", [kit.following, coordinated_kit.following, isr_kit.following])
def test_only_a_leader_knows(follows: Any) -> None:
    replica = follows().replica
    assert (lags(replica), in_sync(replica, THREE)) == ({}, ())
