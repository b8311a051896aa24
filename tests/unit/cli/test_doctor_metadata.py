"""`quorate doctor` of the metadata group: a place among the others, of which every node has a copy."""

from __future__ import annotations

import msgspec

from quorate.cli.doctor_facts import CRITICAL, WARNING, Facts
from quorate.core.entry import EntryId
from quorate.machine.metadata import METADATA
from tests.unit.cli.test_doctor import (
    PARTITION,
    found,
    led_by_nobody,
    well,
    with_copy,
    with_fourth_node,
    without,
)

replace = msgspec.structs.replace


def damaged(facts: Facts, *nodes: int, partition: bytes = METADATA) -> Facts:
    for node in nodes:
        facts = with_copy(facts, node, partition, faulty=((20, 29),))
    return facts


def test_what_is_damaged_on_every_copy_of_the_metadata_group_is_named() -> None:
    finding = found(damaged(well(), 1, 2, 3))["every-copy-damaged"]
    assert (finding.severity, finding.where, finding.partitions) == (CRITICAL, "the metadata group", ())
    assert "offsets 20..29 cannot be read on any copy that is there" in finding.what
    assert finding.commands == ("quorate cluster status",)
    assert "copy-damaged" not in found(damaged(well(), 1, 2, 3))
    assert "start node 3 again" in found(without(damaged(well(), 1, 2), 3))["every-copy-damaged"].do


def test_whoever_only_follows_the_metadata_group_has_it_as_well() -> None:
    facts = with_fourth_node(damaged(well(), 1, 2, 3))
    follows = replace(facts.statuses[1].replicas[0], role="follower", faulty=())
    fourth = replace(facts.statuses[4], replicas=(follows,))
    facts = replace(facts, statuses={**facts.statuses, 4: fourth}, earlier={**facts.earlier, 4: fourth})
    assert "every-copy-damaged" not in found(facts)
    assert found(facts)["copy-damaged"].commands == ("quorate cluster status",)


def test_damage_of_the_metadata_group_and_of_others_is_one_finding_for_a_node() -> None:
    both = damaged(damaged(well(), 2), 2, partition=PARTITION)
    finding = found(both)["copy-damaged"]
    assert "something of t/0, the metadata group cannot be read" in finding.what
    assert (finding.partitions, finding.commands) == (("t/0",), ("quorate topic describe t/0",))


def test_a_copy_of_the_metadata_group_that_cannot_go_on_is_told() -> None:
    finding = found(with_copy(well(), 2, METADATA, halted="offset 7: no such command"))["copy-stuck"]
    assert (finding.severity, finding.where) == (WARNING, "the metadata group on node 2")
    assert not any("topic" in command for command in finding.commands)
    leads = found(with_copy(well(), 1, METADATA, halted="offset 7: no such command"))["copy-stuck"]
    assert (leads.severity, leads.commands[0]) == (CRITICAL, "quorate cluster transfer --to 2")


def test_a_copy_of_the_metadata_group_that_lacks_what_the_others_cannot_read_does_not_have_it() -> None:
    facts = damaged(led_by_nobody(well()), 2, 3)
    lacking = with_copy(facts, 1, METADATA, role="candidate", head=EntryId(1, 24), lags={}, in_sync=())
    assert "offsets 25..29" in found(lacking)["every-copy-damaged"].what
