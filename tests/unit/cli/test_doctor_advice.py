"""`quorate doctor`: what it advises does what its sentence says, and what was forgotten is told."""

from __future__ import annotations

import msgspec

from quorate.cli.doctor import diagnosed
from quorate.cli.doctor_facts import NOTE, Facts
from quorate.core.entry import Member, Membership, Wanted
from quorate.machine.changing import Change
from quorate.machine.cluster import Cluster, drained_setting
from quorate.machine.metadata import METADATA
from tests.unit.cli.test_doctor import (
    TRIO,
    drained,
    found,
    well,
    with_copy,
    with_fourth_node,
    with_image,
    with_topic,
    with_voters,
    without,
)

replace = msgspec.structs.replace
FOUR = Member(4, 1)


# ---- commands do what is said ----


def test_every_partition_gets_as_many_copies_as_are_said() -> None:
    single = tuple((member,) for member in TRIO)
    finding = found(with_topic(well(), ensembles=single))["one-copy"]
    assert finding.do == "let three nodes copy it"
    assert finding.commands == ("quorate topic alter t --replicas 3",)


def test_nobody_loses_a_copy_by_it() -> None:
    """`topic alter --replicas` lets every partition have so many."""
    facts = with_topic(with_fourth_node(well()), ensembles=((TRIO[0],), (*TRIO, FOUR)))
    assert found(facts)["one-copy"].commands == ("quorate topic add t/0 --node 2,3",)


def test_copies_are_wanted_of_nodes_that_may_have_them() -> None:
    facts = with_topic(well(), ensembles=((TRIO[0],),))
    two = found(without(facts, 3))["one-copy"]
    assert (two.do, two.commands) == ("let two nodes copy it", ("quorate topic alter t --replicas 2",))
    alone = found(without(with_topic(well(), ensembles=(TRIO[:2],)), 3))["two-copies"]
    assert alone.commands == ()
    assert alone.do == (
        "three copies need three nodes that answer and are not drained: start node 3 again, on its machine, or "
        "add nodes"
    )
    lives = {1: 0, 2: 1, 3: 2}
    config = {drained_setting(node): str(lives[node]) for node in (2, 3)}
    assert found(with_image(facts, cluster=Cluster(2, config), lives=lives))["one-copy"].commands == ()


def test_a_vote_is_taken_from_whoever_is_silent() -> None:
    four = with_voters(with_fourth_node(well()), 1, 2, 3, 4)
    assert found(four)["voters-even"].commands == ("quorate cluster remove 4",)
    assert found(without(four, 3))["voters-even"].commands == ("quorate cluster remove 3",)


def test_a_silent_node_that_is_to_have_something_cannot_be_forgotten() -> None:
    silent = without(with_fourth_node(well()), 4)
    target = found(with_topic(silent, changes={0: Change((*TRIO, FOUR), 8)}))["node-silent"]
    assert not any("forget" in command for command in target.commands)
    assert "It holds 0 copies, and is, or was, to hold 1 more" in target.what
    assert target.partitions == ("t/0",)
    given_up = found(with_topic(silent, changes={0: Change(TRIO, 9, others=(FOUR,))}))["node-silent"]
    assert not any("forget" in command for command in given_up.commands)
    wanted = Membership(TRIO, wanted=Wanted((*TRIO, FOUR), ()))
    to_vote = found(with_copy(silent, 1, METADATA, membership=wanted))["node-silent"]
    assert not any("forget" in command for command in to_vote.commands)
    assert "quorate cluster forget 4" in found(silent)["node-silent"].commands


# ---- what was set for a while, and forgotten ----


def with_rate(facts: Facts, rate: int) -> Facts:
    return with_image(facts, cluster=Cluster(2, {"quorate.moving.rate": str(rate)}))


def test_a_rate_of_nothing_is_told_before_anything_waits_for_it() -> None:
    finding = found(with_rate(well(), 0))["moving-rate"]
    assert finding.severity == NOTE
    assert finding.commands == ("quorate cluster alter --reset quorate.moving.rate",)
    moving = with_topic(with_fourth_node(with_rate(well(), 0)), changes={0: Change((*TRIO, FOUR), 8)})
    assert "moving-rate" not in found(moving), "the change that waits for it says so"


def test_a_rate_is_told_while_copies_wait_for_it() -> None:
    paced = with_rate(with_fourth_node(well()), 1 << 20)
    assert diagnosed(paced) == [], "nothing waits"
    moving = found(with_topic(paced, changes={0: Change((*TRIO, FOUR), 8)}))
    assert "1 MiB/s" in moving["moving-rate"].what
    assert moving["moving-rate"].partitions == ("t/0",)
    fewer = found(with_topic(paced, changes={0: Change(TRIO[:2], 8)}))
    assert "moving-rate" not in fewer, "nothing is sent"


def test_a_node_that_is_drained_and_has_nothing_left_is_told() -> None:
    finding = found(drained(with_fourth_node(well()), 4))["node-drained"]
    assert (finding.severity, finding.nodes) == (NOTE, (4,))
    assert finding.commands == ("quorate cluster drain 4 --undo", "quorate cluster decommission 4")


def test_a_drain_that_came_to_a_halt_is_told_and_one_that_goes_on_is_not() -> None:
    facts = drained(with_fourth_node(well()), 3)
    finding = found(facts)["node-drained"]
    assert "1 copy" in finding.what
    assert finding.commands == ("quorate cluster drain 3", "quorate cluster drain 3 --undo")
    assert finding.partitions == ("t/0",)
    going = with_topic(facts, changes={0: Change((*TRIO[:2], FOUR), 8)})
    assert set(found(going)) == {"change-open"}
