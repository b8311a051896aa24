"""Everything goes wrong at once, and what is settled stays; then it heals, and everybody is in sync and silent."""

from __future__ import annotations

import pytest

from quorate.core.effects import Outcome
from tests.unit.core.isr_storm import Storm


@pytest.mark.behaviour("LB-10", "LB-16", "LB-17", "LB-21", "LB-23", "D1")
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("min_isr", [1, 2])
def test_what_is_settled_survives_a_storm(replicas: int, min_isr: int) -> None:
    for seed in range(6):
        storm = Storm(seed, replicas=replicas, min_isr=min(min_isr, replicas))
        storm.run(2.0)
        storm.rage(15.0)
        storm.heal()


def test_in_good_weather_everything_is_settled_and_the_first_leader_stays() -> None:
    storm = Storm(1)
    storm.run(2.0)
    state = storm.store.shard
    requests = []
    for _ in range(50):
        requests.append(storm.write(state.leader.node))
        storm.read(state.leader.node)
        storm.run(0.02)
    storm.heal()
    assert all(storm.replies[request] is Outcome.SETTLED for request in requests)
    assert storm.store.shard == state
    assert storm.counts["reads"] == 50


@pytest.mark.behaviour("LB-20", "LB-21", "LB-23")
def test_a_dead_follower_is_left_behind_and_taken_in_again() -> None:
    storm = Storm(2)
    storm.run(2.0)
    leader = storm.store.shard.leader
    follower = next(process for process in storm.nodes.values() if process.me != leader)
    storm.crash(follower, for_s=5.0)
    epoch = storm.store.shard.epoch
    request = storm.write(leader.node)
    assert storm.run(4.0, until=lambda: storm.replies.get(request) is Outcome.SETTLED)
    assert (follower.me in storm.store.shard.isr, storm.store.shard.epoch) == (False, epoch + 1)
    assert storm.run(10.0, until=lambda: follower.me in storm.store.shard.isr)
    assert (storm.store.shard.leader, storm.store.shard.epoch) == (leader, epoch + 2)


@pytest.mark.behaviour("LB-13", "LB-17", "LB-18")
def test_a_dead_leader_is_reported_and_replaced_with_everything_that_was_settled() -> None:
    storm = Storm(3)
    storm.run(2.0)
    before = storm.store.shard
    request = storm.write(before.leader.node)
    assert storm.run(2.0, until=lambda: storm.replies.get(request) is Outcome.SETTLED)
    storm.crash(storm.nodes[before.leader.node], for_s=30.0)
    storm.suspect(before.leader.node)
    assert storm.run(5.0, until=lambda: storm.store.shard.leader != before.leader)
    after = storm.store.shard
    assert (after.epoch, after.leader_epoch) == (before.epoch + 1, before.leader_epoch + 1)
    assert storm.run(5.0, until=lambda: storm.nodes[after.leader.node].machine.role.name == "leader")
    request = storm.write(after.leader.node)
    assert storm.run(5.0, until=lambda: storm.replies.get(request) is Outcome.SETTLED)
    assert len(storm.settled) == 2
