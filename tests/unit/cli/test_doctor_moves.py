"""`quorate doctor` of copies that move, or are made anew: what was ordered is not advised again."""

from __future__ import annotations

import msgspec

from quorate.cli.cluster_status import _lacks_copies
from quorate.cli.doctor import diagnosed
from quorate.cli.doctor_facts import NOTE, WARNING, Facts
from quorate.core.entry import Member, Membership, Wanted, partition_of
from quorate.core.isr import PartitionState
from quorate.machine.changing import Change
from quorate.machine.cluster import Cluster
from quorate.machine.metadata import METADATA
from quorate.machine.shards import Stored
from quorate.node.requests import ReplicaStatus
from tests.unit.cli.test_doctor import (
    ID,
    PARTITION,
    PLANTS,
    TRIO,
    behind,
    copy_of,
    disk_lost,
    found,
    isr,
    well,
    with_copy,
    with_fourth_node,
    with_image,
    with_topic,
    with_voters,
    without,
)

replace = msgspec.structs.replace
ANEW = Member(3, 70)


def ordered_anew(facts: Facts) -> Facts:
    """`quorate cluster replace 3`, and the new copy is not there yet."""
    return with_topic(disk_lost(facts), changes={0: Change((*TRIO[:2], ANEW), 8)})


def revoted(facts: Facts) -> Facts:
    voters = Membership((*TRIO[:2], Member(3, 7)))
    return with_copy(facts, 1, METADATA, membership=voters)


def test_what_was_on_a_lost_disk_is_not_said_to_catch_up() -> None:
    facts = behind(disk_lost(well()))
    assert set(found(facts)) == {"disk-lost", "copies-away"}
    assert found(facts)["disk-lost"].commands == ("quorate cluster replace 3",)


def test_what_was_ordered_of_a_lost_disk_is_not_advised_again() -> None:
    facts = revoted(ordered_anew(well()))
    assert set(found(facts)) == {"disk-lost", "copies-away", "change-open"}
    for finding in found(facts).values():
        assert not any("replace" in command for command in finding.commands)
    assert "is ordered to count again: 1 of its copies" in found(facts)["disk-lost"].what
    assert "(node 3: on a new disk, being made)" in found(facts)["copies-away"].what
    half = with_image(facts, lost=(("t", 0, 3),))
    assert found(half)["disk-lost"].commands == ("quorate cluster replace 3",), (
        "it was not ordered of every copy"
    )
    votes_not = ordered_anew(well())
    assert found(votes_not)["disk-lost"].commands == ("quorate cluster replace 3",), "nor of its vote"
    wanted = Membership(TRIO, wanted=Wanted((*TRIO[:2], Member(3, 7)), ()))
    assert found(with_copy(votes_not, 1, METADATA, membership=wanted))["disk-lost"].commands == (
        "quorate cluster status",
    )


def standing_still(facts: Facts) -> Facts:
    return with_image(facts, cluster=Cluster(2, {"quorate.moving.rate": "0"}))


def test_copies_that_nobody_may_send_to_do_not_go_on_by_themselves() -> None:
    moving = PLANTS["change-open"][1](well())
    assert found(moving)["change-open"].do == "wait; it goes on by itself"
    finding = found(standing_still(moving))["change-open"]
    assert finding.do == (
        "let them go on: copies that are being made stand still, as quorate.moving.rate is 0"
    )
    assert finding.commands[0] == "quorate cluster alter --reset quorate.moving.rate"
    anew = found(standing_still(revoted(ordered_anew(well()))))["disk-lost"]
    assert anew.commands[0] == finding.commands[0]
    fewer = with_topic(standing_still(well()), changes={0: Change(TRIO[:2], 8)})
    assert found(fewer)["change-open"].do == "wait; it goes on by itself", "nothing is sent"


def test_changes_that_wait_for_the_same_are_one_finding() -> None:
    wanted = Change((*TRIO, Member(4, 1)), 8)
    facts = with_topic(
        with_fourth_node(well()), ensembles=(TRIO,) * 8, changes=dict.fromkeys(range(7), wanted)
    )
    for node in (1, 2, 3):
        copies = (copy_of(METADATA, node), *(copy_of(partition_of(ID, number), node) for number in range(8)))
        facts.statuses[node] = facts.earlier[node] = replace(facts.statuses[node], replicas=copies)
    (finding,) = diagnosed(facts)
    assert (finding.id, finding.where) == ("change-open", "t/0, t/1, t/2, t/3, t/4 and 2 more")
    assert finding.partitions == tuple(f"t/{number}" for number in range(7))
    assert finding.what.startswith("copies move, in 7 partitions; t/0 is to be on 1, 2, 3, 4: node 4 ")
    assert finding.commands == ("quorate cluster status",)


def test_a_copy_of_isr_that_is_being_made_is_not_away() -> None:
    """It is stored as a copy from the start, and in sync only at the end."""
    newcomer = Member(4, 90)
    change = Change((*TRIO[:2], newcomer), 8)
    members = (*TRIO, newcomer)
    facts = isr(with_fourth_node(well()), 1, 2, 3)
    state = PartitionState(7, 4, TRIO[0], members, TRIO, min_isr=2)
    facts = with_image(facts, stored={PARTITION: Stored(5, 90, state)})
    facts = with_topic(facts, changes={0: change})
    assert set(found(facts)) == {"change-open"}
    shrunk = with_copy(facts, 1, in_sync=(1, 2))
    assert "2 of 3 copies are there (node 3: out of sync)" in found(shrunk)["copies-away"].what
    assert not _lacks_copies(facts.found, facts.image.topics[0], 0, led(facts))
    assert _lacks_copies(shrunk.found, shrunk.image.topics[0], 0, led(shrunk))


def led(facts: Facts) -> ReplicaStatus:
    leader = facts.found.leader(PARTITION)
    assert leader is not None
    return leader


def test_copies_are_added_to_each_partition_that_lacks_them() -> None:
    """What one partition lacks, another may have: `quorate topic alter` looks at each, and takes none away."""
    one, two, three = TRIO
    facts = with_topic(with_fourth_node(well()), ensembles=((one, two), (three, one)))
    assert found(facts)["two-copies"].commands == ("quorate topic alter t --replicas 3",)
    more = with_topic(facts, ensembles=((one, two), (*TRIO, Member(4, 1))))
    assert found(more)["two-copies"].commands == ("quorate topic add t/0 --node 3",), "none is taken away"


def test_a_node_that_is_there_already_is_started_not_added() -> None:
    facts = with_topic(with_voters(without(well(), 3), 1, 2), ensembles=(TRIO[:2],))
    assert found(facts)["two-copies"].do == (
        "three copies need three nodes that answer and are not drained: start node 3 again, on its machine, or "
        "add nodes"
    )
    assert found(facts)["voters-few"].do == (
        "let three vote; for that, start node 3 again, on its machine, or add nodes"
    )
    assert found(facts)["voters-few"].commands == ()
    assert found(with_voters(well(), 1, 2))["voters-few"].do == "let three vote"


def test_a_vote_that_waits_for_a_silent_node_does_not_come_by_itself() -> None:
    to_vote = Membership(TRIO[:2], learners=TRIO[2:], wanted=Wanted(TRIO, ()))
    facts = with_copy(well(), 1, METADATA, membership=to_vote)
    here = found(facts)["change-open"]
    assert (here.severity, here.do) == (NOTE, "wait; it goes on by itself")
    away = found(without(facts, 3))["change-open"]
    assert (away.severity, away.nodes) == (WARNING, (3,))
    assert away.do == ("start node 3 again, on its machine; or order something else, which takes its place")
