"""`quorate doctor`, and whoever orders, of partitions whose disks are lost: what is intact is never given up."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quorate.cli.doctor import diagnosed
from quorate.cli.doctor_facts import CRITICAL, Facts
from quorate.cli.how_far import expect_majorities, until_reached, why_never_led
from quorate.cli.wrong import WrongUsage
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration, Shard, Status
from quorate.core.entry import Member
from quorate.machine.changing import Change
from quorate.machine.shards import Stored
from tests.unit.cli.test_doctor import (
    PARTITION,
    PLANTS,
    TRIO,
    found,
    isr,
    led_by_nobody,
    well,
    with_copy,
    with_fourth_node,
    with_image,
    with_topic,
    with_voters,
)

replace = msgspec.structs.replace
ANEW = 7


def disks_lost(facts: Facts, *nodes: int) -> Facts:
    """They run with directories made anew, which vote, and hold nothing of the topic that they held."""
    infos = tuple(
        replace(info, incarnation=ANEW) if info.node in nodes else info for info in facts.image.nodes
    )
    lost = tuple(("t", 0, node) for node in nodes)
    return with_image(facts, nodes=infos, lost=lost, lost_now=lost)


def intact(facts: Facts) -> Facts:
    """Node 1 is in sync, and answers."""
    return disks_lost(isr(facts, 1, 2, 3), 2, 3)


def all_that_counts_is_lost(facts: Facts) -> Facts:
    """Node 1 was in sync alone; the others answer, and lack what it had since."""
    return led_by_nobody(disks_lost(isr(facts, 1, min_isr=1), 1))


def whys(facts: Facts) -> str:
    (topic,) = facts.image.topics
    return why_never_led(facts.image, topic, 0, facts.statuses)


# ---- isr ----


def test_a_copy_in_sync_is_enough_and_its_topic_is_not_given_up() -> None:
    for nobody_leads in (led_by_nobody(intact(well())), a_moment_without_a_leader(intact(well()))):
        assert "partition-lost" not in found(nobody_leads)
        assert not any("delete" in command for each in diagnosed(nobody_leads) for command in each.commands)
        assert whys(nobody_leads) == ""
        expect_majorities(nobody_leads.image, [(nobody_leads.image.topics[0], 0)], nobody_leads.statuses)


def test_one_that_left_too_small_an_isr_may_lead_as_well() -> None:
    facts = disks_lost(isr(well(), 1, min_isr=2), 1)
    stored = facts.image.stored[PARTITION]
    eligible = with_image(
        facts, stored={PARTITION: replace(stored, shard=replace(stored.shard, elr=TRIO[1:2]))}
    )
    assert whys(led_by_nobody(eligible)) == ""
    assert whys(led_by_nobody(facts)) != ""


def test_where_every_copy_that_may_lead_is_lost_that_is_said() -> None:
    facts = all_that_counts_is_lost(well())
    finding = found(facts)["partition-lost"]
    assert finding.severity == CRITICAL
    assert finding.nodes == (1,)
    assert finding.what.startswith(
        "the disk of its copy on node 1 is lost, and no other is known to have all that was acknowledged: "
        "nobody can lead it"
    )
    assert finding.commands[-1] == "quorate topic delete t"
    assert "partition-leaderless" not in found(facts)
    with pytest.raises(WrongUsage, match="`quorate topic delete t` gives it up"):
        expect_majorities(facts.image, [(facts.image.topics[0], 0)], facts.statuses)


def test_what_never_comes_is_not_said_to_go_on_by_itself_nor_ordered_again() -> None:
    facts = all_that_counts_is_lost(well())
    others = with_voters(facts, 2, 3)
    assert "disk-lost" not in found(others), "its one copy there has nothing to be made from"
    wanted = Change((Member(1, 70), *TRIO[1:]), 8)
    ordered = with_image(with_topic(others, changes={0: wanted}), lost=())
    assert set(found(ordered)).isdisjoint({"disk-lost", "change-open"})
    for finding in (*diagnosed(facts), *diagnosed(ordered)):
        assert "by itself" not in finding.do
    (topic,) = ordered.image.topics

    class Waiting:
        stands = standing = ""

        async def image(self, _: list[str], *, even_old: bool) -> object:
            return ordered.image

        async def statuses(self, _: float) -> object:
            return ordered.statuses

    with pytest.raises(WrongUsage, match="nobody can lead it"):
        asyncio.run(until_reached(Waiting(), [(topic.name, 0)], 60.0))  # type: ignore[arg-type]


def test_a_vote_and_other_copies_on_that_node_are_replaced_all_the_same() -> None:
    """The metadata group still has the life before as its voter."""
    finding = found(all_that_counts_is_lost(well()))["disk-lost"]
    assert finding.commands == ("quorate cluster replace 1",)
    assert finding.partitions == ()


def test_one_of_before_that_was_filled_since_is_not_the_one_that_was_lost() -> None:
    """The metadata group has not heard yet that the change has come to its end: what is stored is newer."""
    facts = all_that_counts_is_lost(well())
    new = Member(1, 70)
    state = replace(facts.image.stored[PARTITION].shard, replicas=(new, *TRIO[1:]), leader=new, isr=(new,))
    facts = with_image(
        with_topic(facts, changes={0: Change((new, *TRIO[1:]), 8)}),
        lost=(),
        stored={PARTITION: Stored(6, 95, state)},
    )
    assert whys(facts) == ""


# ---- raft, and coordinated ----


def a_moment_without_a_leader(facts: Facts) -> Facts:
    return with_copy(facts, 1, lately=True, role="candidate", lags={}, in_sync=())


def test_a_missed_moment_gives_nothing_up() -> None:
    lost = PLANTS["partition-lost"][1](well())
    facts = replace(lost, earlier=well().statuses)
    assert "partition-lost" not in found(facts), "it had a leader at the earlier look"
    assert "partition-lost" in found(replace(facts, earlier={}))


def test_disks_that_are_lost_are_not_said_to_come_back() -> None:
    """What was registered in their place has made them void."""
    finding = found(PLANTS["partition-lost"][1](well()))["partition-lost"]
    assert "put back" not in finding.do
    assert "restore a backup" in finding.do


def coordinated(facts: Facts, ensemble: tuple[Member, ...], change: Reconfiguration | None = None) -> Facts:
    shard = Shard(4, Status.ELECTION, ensemble, None, change)
    facts = with_image(with_topic(facts, replication="coordinated"), stored={PARTITION: Stored(5, 90, shard)})
    return led_by_nobody(with_copy(facts, 1, protocol="coordinated"))


def test_an_operator_needs_a_majority_of_those_that_count_by_now() -> None:
    four = Member(4, 1)
    lost = disks_lost(with_fourth_node(well()), 2, 3)
    assert whys(coordinated(lost, TRIO)).startswith(
        "t/0: the disks of its copies on nodes 2, 3 are lost, 2 of 3"
    )
    # The image has not heard yet that two of them counted no more when their disks went.
    assert whys(coordinated(lost, (TRIO[0], four))) == ""
    swapped = Reconfiguration(Kind.SWAP, Phase.COMMIT, TRIO[1], four)
    one = disks_lost(with_fourth_node(well()), 2)
    assert whys(coordinated(one, TRIO, swapped)) == ""
