"""`quorate doctor` by facts alone: each thing that can be wrong is planted, and found; else nothing is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.cli import doctor, say
from quorate.cli.doctor import diagnosed
from quorate.cli.doctor_facts import CRITICAL, KINDS, NOTE, WARNING, Clock, Facts, Finding, worst_first
from quorate.cli.options import NATS_SUBJECT, SERVERS
from quorate.core.entry import EntryId, Member, Membership, Wanted, partition_of
from quorate.core.generation import Generation
from quorate.core.isr import PartitionState
from quorate.machine.changing import Change
from quorate.machine.cluster import Cluster
from quorate.machine.compactions import Compaction
from quorate.machine.metadata import METADATA, NodeInfo, Topic
from quorate.machine.shards import Stored
from quorate.node.certificates import Certificate
from quorate.node.health import Health
from quorate.node.held_back import HoldsBack, OpenTransaction
from quorate.node.requests import Image, NatsStatus, ReplicaStatus, Status

TRIO = tuple(Member(node, 1) for node in (1, 2, 3))
ID = bytes(15) + b"t"
PARTITION = partition_of(ID, 0)
NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
HEALTH = Health("1.0", NOW_MS, 9000.0, "data", 100 << 30, 60 << 30, heard=(1, 2, 3))

replace = msgspec.structs.replace


# --- a cluster in which nothing is wrong, and ways to change it ---


def copy_of(partition: bytes, node: int) -> ReplicaStatus:
    """Node 1 leads everything, and the others are as far."""
    role, known = ("leader", {"lags": {2: 0, 3: 0}, "in_sync": (1, 2, 3)}) if node == 1 else ("follower", {})
    me = Member(node, 1)
    copy = ReplicaStatus(partition, role, 1, 4, EntryId(4, 120), 120, 0, me, Membership(TRIO), base=9)
    return replace(copy, **known)


def status_of(node: int) -> Status:
    copies = (copy_of(METADATA, node), copy_of(PARTITION, node))
    others = tuple(other for other in (1, 2, 3) if other != node)
    return Status(node, others, 0, copies, metadata_leader=1, registered=(1, 2, 3), health=HEALTH)


def well() -> Facts:
    image = Image(
        1,
        9,
        tuple(NodeInfo(node, 1, "127.0.0.1", 9091 + node, knows=2) for node in (1, 2, 3)),
        (Topic("t", ID, "raft", (TRIO,)),),
        metadata=Membership(TRIO),
        is_current=True,
        cluster=Cluster(level=2),
    )
    statuses = {node: status_of(node) for node in (1, 2, 3)}
    clocks = {node: Clock(NOW_MS - 2, NOW_MS + 2) for node in (1, 2, 3)}
    return Facts(image, statuses, dict(statuses), clocks, {}, NOW_MS)


def with_image(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, image=replace(facts.image, **changes))


def with_topic(facts: Facts, **changes: Any) -> Facts:
    (topic,) = facts.image.topics
    return with_image(facts, topics=(replace(topic, **changes),))


def without(facts: Facts, *nodes: int) -> Facts:
    """They do not answer."""
    left = {node: status for node, status in facts.statuses.items() if node not in nodes}
    return replace(
        facts, statuses=left, earlier=dict(left), silent=dict.fromkeys(nodes, "connection refused")
    )


def with_health(facts: Facts, node: int, **changes: Any) -> Facts:
    def changed(statuses: dict[int, Status]) -> dict[int, Status]:
        status = statuses[node]
        assert status.health is not None
        return {**statuses, node: replace(status, health=replace(status.health, **changes))}

    return replace(facts, statuses=changed(facts.statuses), earlier=changed(facts.earlier))


def with_copy(
    facts: Facts, node: int, partition: bytes = PARTITION, *, lately: bool = False, **changes: Any
) -> Facts:
    """Changed in both looks; with `lately`, in the second alone."""

    def changed(statuses: dict[int, Status]) -> dict[int, Status]:
        status = statuses[node]
        copies = tuple(
            replace(one, **changes) if one.partition == partition else one for one in status.replicas
        )
        return {**statuses, node: replace(status, replicas=copies)}

    earlier = facts.earlier if lately else changed(facts.earlier)
    return replace(facts, statuses=changed(facts.statuses), earlier=earlier)


def with_transaction(facts: Facts, *, age_s: float = 1.0, **changes: Any) -> Facts:
    """Producer 7 has one open from offset 101 on; node 3 coordinates it."""
    for node in (1, 2, 3):
        facts = with_copy(facts, node, held_back=HoldsBack(7, 101, age_s))
    known = replace(OpenTransaction(7, "pay-7", NOW_MS - 1000, 900_000), **changes)
    return replace(facts, statuses={**facts.statuses, 3: replace(facts.statuses[3], transactions=(known,))})


def with_racks(facts: Facts, racks: dict[int, str]) -> Facts:
    return with_image(
        facts, nodes=tuple(replace(info, rack=racks.get(info.node, "")) for info in facts.image.nodes)
    )


def with_fourth_node(facts: Facts) -> Facts:
    """It copies nothing, and follows the metadata group."""
    fourth = Status(4, (1, 2, 3), 0, (), health=replace(HEALTH, heard=(1, 2, 3, 4)))
    statuses: dict[int, Status] = {4: fourth}
    for node, status in facts.statuses.items():
        assert status.health is not None
        health = replace(status.health, heard=(1, 2, 3, 4))
        statuses[node] = replace(status, connected=(*status.connected, 4), health=health)
    info = replace(facts.image.nodes[0], node=4, port=9095)
    return replace(
        with_image(facts, nodes=(*facts.image.nodes, info)), statuses=statuses, earlier=dict(statuses)
    )


def with_voters(facts: Facts, *voters: int) -> Facts:
    membership = Membership(tuple(Member(node, 1) for node in voters))
    return with_copy(with_image(facts, metadata=membership), 1, METADATA, membership=membership)


def isr(facts: Facts, *in_sync: int, min_isr: int = 2, asked: str | None = None) -> Facts:
    state = PartitionState(7, 4, TRIO[0], TRIO, tuple(TRIO[node - 1] for node in in_sync), min_isr=min_isr)
    config = {"min.insync.replicas": asked} if asked else {}
    facts = with_topic(facts, replication="isr", config=config)
    facts = with_image(facts, stored={PARTITION: Stored(5, 90, state)})
    return with_copy(facts, 1, protocol="isr", in_sync=in_sync)


def led_by_nobody(facts: Facts) -> Facts:
    return with_copy(facts, 1, role="candidate", lags={}, in_sync=())


def a_group_of_tables(facts: Facts) -> Facts:
    return with_topic(facts, replication="confirm", config={"quorate.kind": "tables"})


def drained(facts: Facts, node: int) -> Facts:
    return with_image(facts, cluster=Cluster(2, {f"quorate.node.{node}.drained": "30"}), lives={node: 30})


# --- what can be wrong ---


def disk_lost(facts: Facts) -> Facts:
    infos = tuple(replace(info, incarnation=7) if info.node == 3 else info for info in facts.image.nodes)
    return with_image(facts, nodes=infos, lost_now=(("t", 0, 3),))


def behind(facts: Facts) -> Facts:
    """Node 3 has not even confirmed what was there at the earlier look."""
    facts = with_copy(facts, 1, lags={2: 0, 3: 100})
    return with_copy(facts, 1, lately=True, head=EntryId(4, 150), lags={2: 0, 3: 130})


def fed_by_nats(facts: Facts) -> Facts:
    facts = with_topic(facts, config={NATS_SUBJECT: "orders.>"})
    nats = NatsStatus("nats://n:4222", "connection refused", (), 0, 0)
    return replace(facts, statuses={**facts.statuses, 1: replace(facts.statuses[1], nats=nats)})


def apart(facts: Facts) -> Facts:
    """Node 2 hears nothing of node 3, whose link looks as if it were up."""
    return with_health(facts, 2, heard=(1, 2))


def shared_racks(facts: Facts) -> Facts:
    """Nodes 1 and 2 stand in one rack, and 4 in one that has no copy."""
    return with_racks(with_fourth_node(facts), {1: "a", 2: "a", 3: "b", 4: "c"})


Plant = Callable[[Facts], Facts]


def to_be_compacted(facts: Facts, ready: tuple[tuple[Member, int], ...], wanted_ms: int) -> Facts:
    wanted = Generation(EntryId(0, -1), 0, EntryId(1, 99), 7, -1, (99,))
    return with_topic(facts, compactions={0: Compaction(wanted=wanted, wanted_ms=wanted_ms, ready=ready)})


PLANTS: dict[str, tuple[str, Plant]] = {
    "metadata-no-majority": (CRITICAL, lambda facts: without(with_image(facts, is_current=False), 2, 3)),
    "partition-lost": (
        CRITICAL,
        lambda facts: with_image(led_by_nobody(facts), lost_now=(("t", 0, 2), ("t", 0, 3))),
    ),
    "every-copy-damaged": (
        CRITICAL,
        lambda facts: with_copy(
            with_copy(with_copy(facts, 1, faulty=((20, 29),)), 2, faulty=((25, 40),)), 3, faulty=((10, 26),)
        ),
    ),
    "partition-leaderless": (CRITICAL, led_by_nobody),
    "too-few-copies": (CRITICAL, lambda facts: without(isr(facts, 1), 2, 3)),
    "unsettled": (CRITICAL, lambda facts: with_copy(facts, 1, commit=100, unsettled_s=42.0)),
    "transaction-open": (WARNING, lambda facts: with_transaction(facts, began_ms=NOW_MS - 45_000)),
    "disk-full": (CRITICAL, lambda facts: with_health(facts, 2, is_full=True)),
    "copy-stuck": (WARNING, lambda facts: with_copy(facts, 2, halted="offset 7: no such table")),
    "node-silent": (WARNING, lambda facts: without(facts, 3)),
    "disk-lost": (WARNING, disk_lost),
    "nodes-apart": (WARNING, apart),
    "voters-away": (WARNING, lambda facts: without(facts, 3)),
    "copies-away": (WARNING, lambda facts: without(facts, 3)),
    "copy-behind": (WARNING, behind),
    "copy-damaged": (WARNING, lambda facts: with_copy(facts, 2, faulty=((20, 29),))),
    "disk-filling": (WARNING, lambda facts: with_health(facts, 2, disk_free_bytes=10 << 30)),
    "clocks-apart": (WARNING, lambda facts: with_health(facts, 2, wall_ms=NOW_MS + 700)),
    "certificate-ends": (
        WARNING,
        lambda facts: with_health(facts, 2, certificates=(Certificate("k", "n.pem", NOW_MS + 20 * DAY_MS),)),
    ),
    "versions-differ": (WARNING, lambda facts: with_health(facts, 2, version="1.1")),
    "levels-differ": (
        WARNING,
        lambda facts: with_image(
            facts, nodes=(*facts.image.nodes[:2], replace(facts.image.nodes[2], knows=3))
        ),
    ),
    "nats-silent": (WARNING, fed_by_nats),
    "one-copy": (WARNING, lambda facts: with_topic(facts, ensembles=(TRIO[:1],))),
    "min-insync-all": (WARNING, lambda facts: isr(facts, 1, 2, 3, min_isr=3, asked="3")),
    "min-insync-unheeded": (WARNING, lambda facts: with_topic(facts, config={"min.insync.replicas": "3"})),
    "defaults-contradict": (
        WARNING,
        lambda facts: with_image(
            facts,
            cluster=Cluster(2, {"default.replication.factor": "2", "min.insync.replicas": "3"}),
        ),
    ),
    "retention-below-segment": (
        WARNING,
        lambda facts: with_topic(facts, config={"retention.ms": "3600000", "retention.bytes": "1000000"}),
    ),
    "compaction-differs": (
        WARNING,
        lambda facts: to_be_compacted(facts, ((TRIO[0], 1), (TRIO[1], 2)), NOW_MS),
    ),
    "compaction-held-up": (
        WARNING,
        lambda facts: to_be_compacted(facts, ((TRIO[0], 1), (TRIO[2], 1)), NOW_MS - 3_600_000),
    ),
    "racks-not-used": (WARNING, shared_racks),
    "voters-few": (WARNING, lambda facts: with_voters(facts, 1)),
    "voters-even": (NOTE, lambda facts: with_voters(with_fourth_node(facts), 1, 2, 3, 4)),
    "two-copies": (NOTE, lambda facts: with_topic(facts, ensembles=(TRIO[:2],))),
    "racks-unknown": (NOTE, lambda facts: with_racks(facts, {1: "a", 2: "b"})),
    "level-behind": (NOTE, lambda facts: with_image(facts, cluster=Cluster(level=1))),
    "moving-rate": (NOTE, lambda facts: with_image(facts, cluster=Cluster(2, {"quorate.moving.rate": "0"}))),
    "node-drained": (NOTE, lambda facts: drained(with_fourth_node(facts), 4)),
    "change-open": (
        NOTE,
        lambda facts: with_topic(with_fourth_node(facts), changes={0: Change((*TRIO, Member(4, 1)), 8)}),
    ),
    "node-restarted": (NOTE, lambda facts: with_health(facts, 2, uptime_s=20.0)),
}


def found(facts: Facts) -> dict[str, Finding]:
    return {finding.id: finding for finding in diagnosed(facts)}


def test_where_nothing_is_wrong_nothing_is_said() -> None:
    assert diagnosed(well()) == []
    assert diagnosed(with_fourth_node(well())) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_is_found(kind: str) -> None:
    severity, plant = PLANTS[kind]
    finding = found(plant(well()))[kind]
    assert finding.severity == severity
    assert finding.where
    assert finding.what
    assert finding.do
    assert "\n" not in finding.what + finding.do + "".join(finding.commands)


def test_every_kind_of_finding_is_planted_and_described() -> None:
    assert set(PLANTS) == set(KINDS)
    operating = (Path(__file__).parents[3] / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in operating.splitlines() if line.startswith("| `") and "-" in line]
    assert [row for row in rows if row in KINDS] == list(KINDS), (
        "the table of docs/OPERATIONS.md has them, in order"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_brings_little_else_with_it(kind: str) -> None:
    """One trouble is told in few words: what follows from it, and no false alarm."""
    follows = {
        "metadata-no-majority": {"node-silent", "too-few-copies"},
        "partition-lost": {"disk-lost"},
        "too-few-copies": {"node-silent", "voters-away"},
        "node-silent": {"voters-away", "copies-away"},
        "voters-away": {"node-silent", "copies-away"},
        "copies-away": {"node-silent", "voters-away"},
        "disk-lost": {"copies-away"},
    }
    assert set(found(PLANTS[kind][1](well()))) - {kind} <= follows.get(kind, set())


# --- what is worst comes first ---


def test_worst_first() -> None:
    facts = with_health(without(led_by_nobody(well()), 3), 2, uptime_s=10.0)
    severities = [finding.severity for finding in diagnosed(facts)]
    assert severities == sorted(severities, key=[CRITICAL, WARNING, NOTE].index)
    assert {CRITICAL, WARNING, NOTE} == set(severities)
    kinds = [Finding(kind, WARNING, "", "", "") for kind in reversed(KINDS)]
    assert [finding.id for finding in worst_first(kinds)] == list(KINDS)


# --- words, and bounds ---


def test_a_silent_node_is_told_with_what_it_holds_and_why_it_is_silent() -> None:
    finding = found(without(well(), 3))["node-silent"]
    assert finding.where == "node 3"
    assert finding.what == "it does not answer (connection refused). It holds 1 copy and a vote"
    assert "quorate cluster replace 3 --with NODE" in finding.do
    assert (
        "If its disk is as it was, nothing else is needed; if that is lost, make its directory anew"
        in finding.do
    )


def test_a_silent_node_that_holds_nothing_can_be_forgotten() -> None:
    finding = found(without(with_fourth_node(well()), 4))["node-silent"]
    assert "quorate cluster forget 4" in finding.commands


def test_many_partitions_with_one_trouble_are_one_finding() -> None:
    facts = without(with_topic(well(), ensembles=(TRIO,) * 8), 3)
    for node in (1, 2):
        copies = tuple(copy_of(partition_of(ID, number), node) for number in range(8))
        facts.statuses[node] = facts.earlier[node] = replace(facts.statuses[node], replicas=copies)
    (finding,) = [finding for finding in diagnosed(facts) if finding.id == "copies-away"]
    assert finding.where == "t/0, t/1, t/2, t/3, t/4 and 3 more"
    assert len(finding.partitions) == 8
    assert (
        finding.what
        == "2 of 3 copies are there (node 3: does not answer): if one more goes, nothing can be written"
    )


def test_what_passes_by_itself_is_not_spoken_of() -> None:
    election = with_copy(well(), 1, lately=True, role="candidate", lags={}, in_sync=())
    assert diagnosed(election) == []
    assert "partition-leaderless" in found(replace(election, earlier={}))
    catching_up = with_copy(well(), 1, lately=True, head=EntryId(4, 900), lags={2: 0, 3: 700})
    assert diagnosed(catching_up) == [], "node 3 has all that was there at the earlier look"
    shrunk = with_copy(isr(well(), 1, 2, 3), 1, lately=True, in_sync=(1, 2))
    assert diagnosed(shrunk) == []


def test_a_copy_that_its_leader_never_hears_of_is_behind() -> None:
    finding = found(with_copy(well(), 1, lags={2: 0, 3: 121}))["copy-behind"]
    assert (finding.where, finding.partitions) == ("node 3", ("t/0",))
    assert "111 offsets behind" in finding.what


def test_a_follower_of_the_metadata_group_can_be_behind() -> None:
    facts = with_copy(well(), 1, METADATA, lags={2: 0, 3: 100})
    finding = found(facts)["copy-behind"]
    assert (finding.nodes, finding.partitions) == ((3,), ())
    assert "its copies of the metadata group" in finding.what


def test_an_isr_that_shrank_is_told_and_is_worse_where_too_few_are_left() -> None:
    finding = found(isr(well(), 1, 2))["copies-away"]
    assert finding.what.startswith("2 of 3 copies are there (node 3: out of sync)")
    too_few = found(isr(well(), 1))["too-few-copies"]
    assert too_few.what.startswith(
        "1 of 3 copies is there (node 2: out of sync, node 3: out of sync), and 2 must be"
    )
    assert "copies-away" not in found(isr(well(), 1))


def test_what_another_copy_has_is_mended_and_what_none_has_is_named() -> None:
    some = with_copy(with_copy(well(), 1, faulty=((20, 29),)), 2, faulty=((25, 40),))
    assert set(found(some)) == {"copy-damaged"}, "node 3 has it all"
    away = found(without(some, 3))["every-copy-damaged"]
    assert "offsets 25..29 cannot be read on any copy that is there" in away.what
    assert away.do == "start node 3 again, on its machine: its copy may have it"
    metadata = found(with_copy(well(), 2, METADATA, faulty=((1, 2),)))["copy-damaged"]
    assert "something of the metadata group cannot be read" in metadata.what


def test_a_copy_that_lacks_what_the_others_cannot_read_does_not_have_it() -> None:
    """It was killed before it had that, or before it knew that it had: its log ends below."""
    ends = EntryId(1, 24)
    some = with_copy(with_copy(well(), 2, faulty=((20, 29),)), 3, faulty=((10, 26),))
    lacking = with_copy(led_by_nobody(some), 1, head=ends)
    nowhere = found(lacking)
    assert "copy-damaged" not in nowhere, "that would say that another copy has it"
    assert "offsets 25..26 cannot be read on any copy that is there" in nowhere["every-copy-damaged"].what
    has_it = with_copy(led_by_nobody(some), 1, head=EntryId(1, 26))
    assert "every-copy-damaged" not in found(has_it)
    electing = replace(lacking, earlier=some.earlier)
    assert "every-copy-damaged" not in found(electing), "who comes to lead says what counts"
    led = with_copy(some, 1, head=ends)
    assert "every-copy-damaged" not in found(led), "what the leader lacks was never settled"
    assert "every-copy-damaged" not in found(led_by_nobody(well())), "nothing is damaged"


def test_a_transaction_that_holds_readers_back_can_be_given_up() -> None:
    facts = with_copy(without(a_group_of_tables(well()), 2, 3), 1, commit=100, unsettled_s=42.0)
    finding = found(facts)["unsettled"]
    assert (
        "a transaction waits for 42 s to be on enough copies (1 of 3 are there, 2 must confirm it)"
        in finding.what
    )
    assert "20 offsets from 101 on are not settled" in finding.what
    assert finding.commands[-1] == "quorate table promote t --node 1 --roll-back"
    assert "unsettled" not in found(with_copy(well(), 1, commit=119, unsettled_s=1.0))


def test_tables_whose_leaders_change_by_order_are_promoted() -> None:
    facts = with_copy(led_by_nobody(a_group_of_tables(well())), 2, head=EntryId(4, 130))
    finding = found(facts)["partition-leaderless"]
    assert finding.commands[-1] == "quorate table promote t --node 2", "it has most"


@pytest.mark.parametrize(
    ("free", "severity"), [(15 << 30, None), (14 << 30, WARNING), (5 << 30, WARNING), (4 << 30, CRITICAL)]
)
def test_a_disk_is_filling_before_it_is_full(free: int, severity: str | None) -> None:
    finding = found(with_health(well(), 2, disk_free_bytes=free)).get("disk-filling")
    assert (finding.severity if finding is not None else None) == severity
    if finding is not None:
        assert finding.what.startswith(f"{free >> 30} GiB of 100 GiB are free")
        assert "df -h data" in finding.commands


def test_a_disk_whose_size_cannot_be_told_is_not_judged() -> None:
    assert diagnosed(with_health(well(), 2, disk_total_bytes=0, disk_free_bytes=0)) == []


def test_clocks_are_apart_only_where_that_is_certain() -> None:
    """A node that took long to answer may have read its clock at any moment of that."""
    facts = with_health(well(), 2, wall_ms=NOW_MS + 600)
    assert "the clock of node 2 is 0.6 s or more ahead of that of node 1" in found(facts)["clocks-apart"].what
    slow = replace(facts, clocks={**facts.clocks, 2: Clock(NOW_MS, NOW_MS + 600)})
    assert diagnosed(slow) == []


@pytest.mark.parametrize(
    ("days", "severity", "when"),
    [
        (31, None, ""),
        (29, WARNING, "ends in 29 days"),
        (6, CRITICAL, "ends in 6 days"),
        (1, CRITICAL, "ends in 24 hours"),
        (-1, CRITICAL, "has ended"),
    ],
)
def test_certificates_are_told_before_they_end(days: int, severity: str | None, when: str) -> None:
    certificate = Certificate("listeners.nodes.tls.cert", "n2.pem", NOW_MS + days * DAY_MS)
    finding = found(with_health(well(), 2, certificates=(certificate,))).get("certificate-ends")
    assert (finding.severity if finding is not None else None) == severity
    if finding is not None:
        assert finding.where == "node 2, listeners.nodes.tls.cert"
        assert when in finding.what


def test_a_version_that_says_nothing_of_itself_is_an_older_one() -> None:
    facts = well()
    silent = replace(facts.statuses[3], health=None)
    facts = replace(facts, statuses={**facts.statuses, 3: silent}, earlier={**facts.earlier, 3: silent})
    (finding,) = diagnosed(facts)
    assert "node 3: an older version" in finding.what


def test_a_cluster_that_was_just_started_has_no_restarted_nodes() -> None:
    facts = well()
    for node in (1, 2, 3):
        facts = with_health(facts, node, uptime_s=5.0)
    assert diagnosed(facts) == []


def test_copies_are_added_where_there_are_none() -> None:
    facts = with_topic(well(), ensembles=(TRIO[:1],))
    assert found(facts)["one-copy"].commands == ("quorate topic alter t --replicas 3",)
    on_its_way = with_topic(facts, changes={0: Change(TRIO, 8)})
    assert set(found(on_its_way)) == {"change-open"}, "what is ordered is not advised"


def test_a_single_node_is_not_blamed_for_single_copies() -> None:
    facts = with_topic(with_image(well(), nodes=well().image.nodes[:1]), ensembles=(TRIO[:1],))
    alone = replace(well().statuses[1], connected=())
    facts = with_voters(replace(facts, statuses={1: alone}, earlier={1: alone}), 1)
    facts = with_copy(facts, 1, membership=Membership(TRIO[:1]), lags={}, in_sync=(1,))
    (finding,) = diagnosed(facts)
    assert (finding.id, finding.severity) == ("one-copy", NOTE)


def test_copies_are_moved_to_a_rack_that_has_none() -> None:
    finding = found(shared_racks(well()))["racks-not-used"]
    assert finding.commands == ("quorate topic replace t/0 --node 2 --with 4",)
    two_racks = with_racks(well(), {1: "a", 2: "a", 3: "b"})
    assert diagnosed(two_racks) == [], "there are no more racks than that"


def test_retention_is_met_by_segments_that_are_smaller() -> None:
    finding = found(PLANTS["retention-below-segment"][1](well()))["retention-below-segment"]
    assert finding.commands == (
        "quorate topic alter t --config segment.ms=3600000 --config segment.bytes=1000000",
    )
    met = {"retention.ms": "3600000", "segment.ms": "600000", "retention.bytes": str(1 << 30)}
    assert diagnosed(with_topic(well(), config=met)) == []
    new = with_image(well(), cluster=Cluster(2, {"retention.ms": "1000"}))
    assert found(new)["retention-below-segment"].commands == (
        "quorate cluster alter --config segment.ms=1000",
    )


def test_a_change_that_waits_for_a_silent_node_is_a_warning() -> None:
    facts = with_topic(with_fourth_node(well()), changes={0: Change((*TRIO, Member(4, 1)), 8)})
    assert found(without(facts, 4))["change-open"].severity == WARNING
    wanted = Membership(TRIO, wanted=Wanted((*TRIO, Member(4, 1)), ()))
    voting = with_copy(with_fourth_node(well()), 1, METADATA, membership=wanted)
    finding = found(voting)["change-open"]
    assert (finding.severity, finding.where) == (NOTE, "the metadata group")
    assert finding.what.startswith("to vote 1, 2, 3, 4")


def test_what_is_pasted_goes_to_the_cluster_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORATE_BOOTSTRAP", raising=False)
    commands = ("quorate topic describe t", "df -h data")
    finding = Finding("disk-full", CRITICAL, "node 1", "", "", commands)
    there = doctor._with_servers(finding, "10.0.0.1:9092")
    assert there.commands == ("quorate topic describe t -b 10.0.0.1:9092", "df -h data")
    assert doctor._with_servers(finding, SERVERS).commands == commands
    monkeypatch.setenv("QUORATE_BOOTSTRAP", "10.0.0.1:9092")
    assert doctor._with_servers(finding, "10.0.0.1:9092").commands == commands


def test_findings_are_told_to_people_and_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    facts = without(well(), 3)
    findings = diagnosed(facts)
    doctor._print(say.console(), facts, findings)
    said = capsys.readouterr().out
    assert said.startswith("warning  node 3  (node-silent)\n    It does not answer (connection refused).")
    assert said.endswith("\n3 warnings; looked at 3 nodes, 1 topic, 1 partition\n")
    view = msgspec.json.decode(msgspec.json.encode(doctor._view(facts, findings)))
    assert view["counts"] == {"critical": 0, "warning": 3, "note": 0}
    assert [finding["id"] for finding in view["findings"]] == ["node-silent", "voters-away", "copies-away"]
    assert (view["nodes"], view["silent"], view["is_current"]) == ([1, 2, 3], [3], True)
    doctor._print(say.console(), well(), [])
    assert capsys.readouterr().out == "nothing is wrong: 3 nodes, 1 topic, 1 partition\n"


def test_the_name_of_a_setting_is_not_altered_at_the_beginning_of_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for kind, name in {
        "retention-below-segment": "retention.ms",
        "min-insync-all": "min.insync.replicas",
    }.items():
        facts = PLANTS[kind][1](well())
        doctor._print(say.console(), facts, diagnosed(facts))
        assert f"\n    {name} is " in capsys.readouterr().out
    assert doctor._sentence("they do not. So be it") == "They do not. So be it."


def test_who_holds_compaction_up_is_named_and_only_when_it_takes_long() -> None:
    ready = ((TRIO[0], 1), (TRIO[2], 1))
    finding = found(to_be_compacted(well(), ready, NOW_MS - 3_600_000))["compaction-held-up"]
    assert finding.nodes == (2,)
    assert "node 2 has not made it ready" in finding.what
    assert found(to_be_compacted(well(), ready, NOW_MS - 60_000)) == {}
