"""Schedules of faults: the same from the same seed, composed of profiles, and fair."""

from __future__ import annotations

import msgspec
import pytest

from quorate.sim.chance import stream
from quorate.sim.faults import (
    LEADER,
    PROFILES,
    Place,
    around,
    parse_profiles,
    profiles_of,
    schedule,
    shape,
    takes_part,
)

PLACE = Place(nodes=(1, 2, 3), unlucky=(2,), pace=0.1, ends=5.0)
EVERYTHING = tuple(name for name in PROFILES if name not in ("operator", "retention", "compaction", "pacing"))


def test_schedule_is_in_order_of_time_and_the_same_from_the_same_seed() -> None:
    faults = schedule(7, EVERYTHING, PLACE)
    assert faults == schedule(7, EVERYTHING, PLACE)
    assert faults != schedule(8, EVERYTHING, PLACE)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_alone_makes_faults(name: str) -> None:
    place = PLACE if name != "operator" else msgspec.structs.replace(PLACE, operators=(101, 102))
    assert all(schedule(seed, (name,), place) for seed in range(10))


def test_operators_are_left_alone_where_there_are_none_and_by_all() -> None:
    assert schedule(1, ("operator",), PLACE) == ()
    assert "operator" not in parse_profiles("all")
    assert parse_profiles("all,operator") == (*EVERYTHING, "operator")


def test_logs_keep_what_has_not_expired_only_where_somebody_asks_for_that() -> None:
    assert "retention" not in parse_profiles("all")
    assert parse_profiles("all,retention") == (*EVERYTHING, "retention")


def test_operators_crash_stand_still_and_are_cut_off_like_nodes() -> None:
    place = msgspec.structs.replace(PLACE, operators=(101,))
    faults = [fault for seed in range(30) for fault in schedule(seed, ("crash", "pause", "network"), place)]
    assert {fault.kind for fault in faults if 101 in fault.nodes} == {"crash", "pause"}
    assert any(101 in link for fault in faults for link in fault.links)


def test_profile_makes_the_same_faults_in_whatever_company() -> None:
    for seed in range(20):
        alone = schedule(seed, ("crash",), PLACE)
        together = [
            fault for fault in schedule(seed, ("crash", "power", "network"), PLACE) if fault.kind == "crash"
        ]
        assert together in ([], list(alone))


def test_lost_copies_hit_unlucky_nodes_only() -> None:
    for seed in range(50):
        for fault in schedule(seed, ("damage", "wipe"), PLACE):
            assert set(fault.nodes) <= set(PLACE.unlucky)


def test_nobody_unlucky_means_no_lost_copies() -> None:
    place = Place(nodes=(1, 2), unlucky=(), pace=0.1, ends=5.0)
    assert not schedule(1, ("damage", "wipe"), place)


@pytest.mark.parametrize("nodes", [(1, 2), (1, 2, 3), (1, 2, 3, 4, 5)])
def test_shapes_cut_links_between_different_nodes_only(nodes: tuple[int, ...]) -> None:
    rng = stream(7, "shapes")
    for _ in range(100):
        for source, target in shape(rng, nodes):
            assert source != target
            assert {source, target} <= set(nodes)


def test_one_node_is_made_deaf_mute_or_both() -> None:
    assert around("deaf", 1, (1, 2, 3)) == ((2, 1), (3, 1))
    assert around("mute", 1, (1, 2, 3)) == ((1, 2), (1, 3))
    assert set(around("isolate", 1, (1, 2, 3))) == {(2, 1), (3, 1), (1, 2), (1, 3)}


def test_profiles_are_named_all_none_or_one_by_one() -> None:
    assert parse_profiles("all") == EVERYTHING
    assert parse_profiles("none") == ()
    assert parse_profiles("power,crash") == ("crash", "power")


def test_all_profiles_are_all_of_them_whatever_else_is_named() -> None:
    assert parse_profiles("all,membership") == EVERYTHING


def test_profile_takes_part_alone_and_sits_some_seeds_out_in_company() -> None:
    assert all(takes_part(seed, "membership", ("membership",)) for seed in range(50))
    there = [takes_part(seed, "membership", EVERYTHING) for seed in range(50)]
    assert any(there)
    assert not all(there)
    for seed, present in enumerate(there):
        kinds = {fault.kind for fault in schedule(seed, EVERYTHING, PLACE)}
        assert any(kind == "transfer" or kind.startswith("change-") for kind in kinds) == present
    assert not takes_part(1, "membership", ("crash",))


def test_commands_go_mostly_to_whoever_leads() -> None:
    nodes = [fault.nodes for seed in range(30) for fault in schedule(seed, ("membership",), PLACE)]
    assert nodes.count((LEADER,)) > len(nodes) / 2
    assert nodes.count((LEADER,)) < len(nodes)


def test_only_protocols_with_operators_have_their_profile() -> None:
    assert profiles_of("raft") == (*EVERYTHING, "retention", "compaction", "pacing")
    assert profiles_of("coordinated") == tuple(PROFILES)


def test_unknown_profile_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'fire'.*network.*wipe"):
        parse_profiles("crash,fire")
