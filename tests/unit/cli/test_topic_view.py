"""A topic as `quorate topic describe` and `quorate cluster status` see it, by what nodes and the store say."""

from __future__ import annotations

import msgspec
import pytest

from quorate.cli.cluster_status import _node, _partitions, _troubles
from quorate.cli.topic_describe import _copy_rows, _row
from quorate.cli.topic_turning import waiting_for
from quorate.cli.topic_view import Found
from quorate.core.coordinated import Shard
from quorate.core.coordinated import Status as ShardStatus
from quorate.core.entry import EntryId, Member, Membership, partition_of
from quorate.core.isr import PartitionState
from quorate.machine.metadata import METADATA, NodeInfo, Topic
from quorate.machine.shards import State, Stored
from quorate.machine.turning import Turning
from quorate.node.requests import Image, ReplicaStatus, Status

TRIO = tuple(Member(node, 1) for node in (1, 2, 3))
ID = bytes(15) + b"t"
PARTITION = partition_of(ID, 0)
SHARD = Shard(4, ShardStatus.STEADY, TRIO, TRIO[0])
STATE = PartitionState(7, 4, TRIO[0], TRIO, TRIO[:2], min_isr=2)


def topic_of(protocol: str) -> Topic:
    return Topic("t", ID, protocol, (TRIO,))


def image_of(topic: Topic, stored: State | None = None) -> Image:
    shards = {PARTITION: Stored(5, 90, stored)} if stored is not None else {}
    return Image(1, 9, (), (topic,), is_current=True, stored=shards)


def copy_of(node: int, role: str = "follower", *, protocol: str = "raft", **more: object) -> Status:
    head, me = EntryId(4, 120), Member(node, 1)
    copy = ReplicaStatus(PARTITION, role, 1, 4, head, 110, 0, me, Membership(TRIO), protocol=protocol, base=9)
    return Status(node, (), 0, (msgspec.structs.replace(copy, **more),))


def statuses(protocol: str = "raft") -> dict[int, Status]:
    """Node 1 leads, node 2 is as far, node 3 does not answer."""
    leader = copy_of(1, "leader", protocol=protocol, lags={2: 0, 3: 20}, in_sync=(1, 2))
    return {1: leader, 2: copy_of(2, protocol=protocol, faulty=((20, 29),))}


def test_every_copy_is_shown_with_what_is_known_of_it() -> None:
    topic = topic_of("raft")
    view = Found(image_of(topic), statuses()).topic(topic, [0])
    assert _copy_rows(view) == [
        ("0", "1", "leader", "4", "10..120", "110", "0", "yes", ""),
        ("0", "2", "follower", "4", "10..120", "110", "0", "yes", "20..29"),
        ("0", "3", "does not answer", "", "", "", "20", "no", ""),
    ]
    first, second, third = msgspec.to_builtins(view)["partitions"][0]["copies"]
    assert (first["role"], first["first"], first["head"], first["lag"]) == ("leader", 10, 120, 0)
    assert second["faulty"] == [[20, 29]] or second["faulty"] == [(20, 29)]
    known = {key: value for key, value in third.items() if value is not None}
    assert known == {"node": 3, "state": "does not answer", "lag": 20, "in_sync": False, "faulty": []}


def test_a_copy_of_which_its_leader_heard_nothing_yet_has_no_lag() -> None:
    topic, found = topic_of("raft"), statuses()
    found[1] = copy_of(1, "leader", lags={2: 121, 3: 121}, in_sync=(1,))
    view = Found(image_of(topic), found).topic(topic, [0])
    assert [copy.lag for copy in view.partitions[0].copies] == [0, None, None]


def test_where_nobody_leads_nobody_is_said_to_be_in_sync() -> None:
    topic = topic_of("raft")
    (partition,) = Found(image_of(topic), {2: copy_of(2)}).topic(topic, [0]).partitions
    assert (partition.leader, partition.commit) == (None, None)
    assert [copy.in_sync for copy in partition.copies] == [None, None, None]
    assert [copy.state for copy in partition.copies] == ["does not answer", "up", "does not answer"]


@pytest.mark.parametrize(("protocol", "stored"), [("coordinated", SHARD), ("isr", STATE)])
def test_who_counts_is_what_the_store_says_where_somebody_oversees_it(protocol: str, stored: State) -> None:
    four = (*TRIO, Member(4, 60))
    members = {"ensemble": four} if protocol == "coordinated" else {"replicas": four}
    topic = topic_of(protocol)
    image = image_of(topic, msgspec.structs.replace(stored, **members))
    (partition,) = Found(image, statuses(protocol)).topic(topic, [0]).partitions
    assert partition.nodes == [1, 2, 3, 4]
    assert partition.stored["version"] == 5
    assert partition.stored["shard"]["leader"] == {"node": 1, "incarnation": 1}


@pytest.mark.parametrize(("protocol", "stored"), [("raft", None), ("coordinated", SHARD), ("isr", STATE)])
def test_copies_stand_in_the_order_of_the_list_the_preferred_leader_first(
    protocol: str, stored: State | None
) -> None:
    topic = Topic("t", ID, protocol, ((TRIO[2], TRIO[0], TRIO[1]),))
    found = Found(image_of(topic, stored), statuses(protocol))
    (partition,) = found.topic(topic, [0]).partitions
    assert (partition.nodes, partition.preferred) == ([1, 2, 3], [3, 1, 2])
    assert _row(found, topic, 0)[3] == "3, 1, 2"


def test_where_two_ensembles_count_each_stands_in_the_order_of_the_list_and_newcomers_last() -> None:
    topic = Topic("t", ID, "raft", ((TRIO[2], TRIO[0], TRIO[1]),))
    membership = Membership((TRIO[0], TRIO[2], Member(4, 60)), outgoing=TRIO)
    found = Found(image_of(topic), {1: copy_of(1, "leader", membership=membership)})
    assert _row(found, topic, 0)[3] == "3, 1, 4 and 3, 1, 2"


def test_partitions_that_somebody_should_look_after_are_named() -> None:
    topic = topic_of("isr")
    assert _troubles(_partitions(Found(image_of(topic), {}))) == ["nobody leads t/0"]
    all_there = {**statuses("isr"), 3: copy_of(3, protocol="isr")}
    del all_there[2]
    all_there[2] = copy_of(2, protocol="isr")
    shrunk = _partitions(Found(image_of(topic), all_there))
    assert _troubles(shrunk) == ["copies are away, or out of sync, of t/0"]
    all_there[1] = copy_of(1, "leader", protocol="isr", in_sync=(1, 2, 3))
    whole = _partitions(Found(image_of(topic), all_there))
    assert (_troubles(whole), whole["partitions"]) == ([], 1)
    away = _partitions(Found(image_of(topic_of("raft")), statuses()))
    assert _troubles(away) == [
        "copies are away, or out of sync, of t/0",
        "something cannot be read, and is being mended, of t/0",
    ]


@pytest.mark.parametrize("protocol", ["raft", "coordinated", "isr", "confirm"])
def test_copies_on_disks_that_are_lost_are_away_though_their_node_answers(protocol: str) -> None:
    topic = topic_of(protocol)
    leader = copy_of(1, "leader", protocol=protocol, in_sync=(1, 2, 3))
    all_there = {1: leader, 2: copy_of(2, protocol=protocol), 3: copy_of(3, protocol=protocol)}
    assert _troubles(_partitions(Found(image_of(topic), all_there))) == []
    all_there[3] = Status(3, (), 0, ())
    for lost in ("lost", "lost_now"):
        image = msgspec.structs.replace(image_of(topic), **{lost: (("t", 0, 3),)})
        assert _troubles(_partitions(Found(image, all_there))) == ["copies are away, or out of sync, of t/0"]


def test_a_node_with_a_new_disk_does_not_count_whether_it_voted_or_not() -> None:
    topic = topic_of("raft")
    info = NodeInfo(3, 7, "h", 9)
    lost = msgspec.structs.replace(image_of(topic), lost=(("t", 0, 3),), lost_now=(("t", 0, 3),))

    def role(image: Image, *voters: Member) -> str:
        leader = ReplicaStatus(METADATA, "leader", 1, 2, EntryId(2, 3), 3, 0, TRIO[0], Membership(voters))
        return str(_node(info, image, Status(3, (), 0, ()), leader)["metadata"])

    assert role(lost, *TRIO) == role(lost, *TRIO[:2]) == "disk lost, does not count"
    assert role(image_of(topic), *TRIO[:2]) == "follows"
    assert role(lost, *TRIO[:2], Member(3, 7)) == "votes", (
        "there it counts again, and copies are told of apart"
    )


@pytest.mark.parametrize(
    ("barrier", "waits_for"),
    [
        (-1, "its leader, node 1, ends raft"),
        (120, "its leader, node 1, ends raft"),
        (110, "node 1 has ended raft, and tells the metadata group"),
    ],
)
def test_what_a_turn_waits_for_is_told(barrier: int, waits_for: str) -> None:
    topic = msgspec.structs.replace(topic_of("raft"), turning=Turning("isr", 9))
    seen = Found(image_of(topic), {1: copy_of(1, "leader", lags={2: 0}, barrier=barrier)})
    assert waiting_for(seen, topic, 0) == waits_for


def test_a_turn_that_waits_for_a_majority_in_sync_says_who_is() -> None:
    topic = msgspec.structs.replace(topic_of("isr"), turning=Turning("raft", 9))
    leader = copy_of(1, "leader", protocol="isr", lags={2: 0, 3: 0}, in_sync=(1,))
    assert waiting_for(Found(image_of(topic), {1: leader}), topic, 0) == (
        "a majority of its 3 copies has to be in sync first, and so far is node 1"
    )
