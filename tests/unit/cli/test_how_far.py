"""How far a change is, in words: what is known of each copy, and what will never come about."""

from __future__ import annotations

import asyncio

import pytest

from quorate.cli import how_far
from quorate.cli.cluster_status import _settings
from quorate.cli.how_far import STAND_STILL, Teller, phase, until_reached, voters_phase, why_never_led
from quorate.cli.orders import NOBODY_LEADS
from quorate.cli.topic_copies import Copies, added, is_under_way, removed, swapped
from quorate.cli.topic_describe import _row, _title
from quorate.cli.topic_view import Found
from quorate.cli.wrong import NotYet, WrongUsage
from quorate.core.entry import EntryId, Member, Membership, Partition, Wanted, partition_of
from quorate.machine.changing import Change
from quorate.machine.cluster import MOVING_RATE, Cluster
from quorate.machine.metadata import METADATA, Topic
from quorate.node.requests import Image, ReplicaStatus, Status

ONE, TWO, THREE, FOUR = (Member(node, 1) for node in (1, 2, 3, 4))
NEW_TWO = Member(2, 70)
TRIO = (ONE, TWO, THREE)
AT_REST = Membership(TRIO)
ID = bytes(15) + b"\1"


def topic_of(ensemble: tuple[Member, ...], wanted: tuple[Member, ...] = ()) -> Topic:
    return Topic("t", ID, "raft", (ensemble,), {}, changes={0: Change(wanted, 70)} if wanted else {})


def image_with(*, lost: tuple[int, ...] = (), lost_now: tuple[int, ...] = ()) -> Image:
    found, now = (tuple(("t", 0, node) for node in nodes) for nodes in (lost, lost_now))
    return Image(1, 9, (), (), found, lost_now=now)


def leads(
    *others: int, lags: dict[int, int], membership: Membership = AT_REST, of: Partition | None = None
) -> dict[int, Status]:
    """Node 1 leads, with offsets up to 28,985; it and the others answer."""
    partition = of or partition_of(ID, 0)
    replica = ReplicaStatus(partition, "leader", 1, 3, EntryId(3, 28_985), 28_985, 0, ONE, membership, lags)
    return {1: Status(1, (), 0, (replica,)), **silent_copies(*others)}


def silent_copies(*nodes: int) -> dict[int, Status]:
    """Nodes that answer, and lead nothing."""
    follower = ReplicaStatus(partition_of(ID, 0), "follower", 0, 3, EntryId(3, 120), 100, 0)
    return {node: Status(node, (), 0, (follower,)) for node in nodes}


def test_a_newcomer_is_never_said_to_lack_more_than_there_is() -> None:
    adding = topic_of(TRIO, (*TRIO, FOUR))
    image = image_with()
    for lag, words in {28_986: "is expected", 12_345: "is 10,000 or more behind", 0: "has caught up"}.items():
        statuses = leads(2, 3, 4, lags={2: 0, 3: 0, 4: lag})
        assert phase(adding, 0, image, statuses) == f"to be on 1, 2, 3, 4: node 4 {words}"
    assert phase(adding, 0, image, leads(lags={4: 7})) == "to be on 1, 2, 3, 4: node 4 does not answer"


def test_where_nobody_leads_it_is_said_what_is_known_of_each_copy() -> None:
    replacing = topic_of(TRIO, (ONE, NEW_TWO, THREE))
    told = phase(replacing, 0, image_with(lost_now=(2,)), silent_copies(1, 2))
    assert told == "to be on 1, 2, 3: nobody leads; node 2: disk lost; node 3: does not answer"


def test_a_lost_majority_is_not_waited_for() -> None:
    trio = topic_of(TRIO)
    assert why_never_led(image_with(lost_now=(2,)), trio, 0, {}) == ""
    why = why_never_led(image_with(lost_now=(2, 3)), trio, 0, {})
    assert why.startswith("t/0: the disks of its copies on nodes 2, 3 are lost, 2 of 3: without a majority")
    assert "`quorate topic delete t` gives it up" in why
    # Half is no majority, either; but whoever leads knows better than an image that is a moment old.
    pair = topic_of((ONE, TWO))
    assert "the disk of its copy on node 2 is lost, 1 of 2" in why_never_led(
        image_with(lost_now=(2,)), pair, 0, {}
    )
    assert why_never_led(image_with(lost_now=(2,)), pair, 0, leads(lags={2: 0})) == ""


def test_open_changes_of_voters_are_told() -> None:
    assert voters_phase({}) == NOBODY_LEADS
    assert voters_phase(leads(lags={}, of=METADATA)) == ""
    wanted = Membership(TRIO, wanted=Wanted((*TRIO, FOUR), (), 4))
    statuses = leads(2, 3, lags={4: 3}, membership=wanted, of=METADATA)
    assert voters_phase(statuses) == "the metadata group: to vote 1, 2, 3, 4: node 4 does not answer"
    joint = Membership((*TRIO, FOUR), outgoing=TRIO, wanted=Wanted((*TRIO, FOUR), (), 4))
    statuses = leads(2, 3, lags={4: 3}, membership=joint, of=METADATA)
    assert voters_phase(statuses).endswith("the new ensemble must agree; node 4 does not answer")


def test_progress_is_said_when_it_changes_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(how_far, "monotonic", lambda: now)
    teller = Teller()
    for line, after_s in (("a", 0.0), ("a", 1.0), ("b", 1.0), ("b", 14.0), ("b", 1.0), ("b", 1.0)):
        now += after_s
        teller.tell(line)
    assert capsys.readouterr().err.splitlines() == ["a", "b", "b (after 17 s)"]


# ---- a row of `quorate topic describe` ----


def row_of(image: Image, statuses: dict[int, Status]) -> tuple[str, ...]:
    return _row(Found(image, statuses), topic_of(TRIO), 0)


class Waiting:
    """As much of a cluster as whoever waits sees of it."""

    stands = standing = ""

    def __init__(self, image: Image) -> None:
        self.seen = image

    async def image(self, _: list[str], *, even_old: bool) -> Image:
        return self.seen


@pytest.mark.parametrize(
    ("rate", "wanted", "said"),
    [
        ("0", (*TRIO, FOUR), STAND_STILL),
        ("1", (*TRIO, FOUR), "it goes on by itself"),
        ("0", (ONE, TWO), "it goes on by itself"),
    ],
)
def test_copies_that_nobody_may_send_to_are_not_said_to_go_on_by_themselves(
    rate: str, wanted: tuple[Member, ...], said: str
) -> None:
    image = Image(1, 9, (), (topic_of(TRIO, wanted),), cluster=Cluster(2, {MOVING_RATE: rate}))
    with pytest.raises(NotYet) as late:
        asyncio.run(until_reached(Waiting(image), [("t", 0)], 0.0))  # type: ignore[arg-type]
    assert str(late.value) == f"not yet so after 0 s; {said}, or order something else"
    assert (STAND_STILL in _settings(image)) == (rate == "0")


def test_a_row_without_a_leader_shows_every_copy() -> None:
    row = row_of(image_with(lost_now=(2,)), silent_copies(1, 2))
    assert row[1] == "none"
    assert row[-1] == "node 1: there up to 120, node 2: disk lost, node 3: does not answer"


def test_a_copy_that_was_not_heard_since_the_leader_changed_is_not_a_number_behind() -> None:
    row = row_of(image_with(), leads(2, 3, lags={2: 6, 3: 28_986}))
    assert row[-1] == "node 2: 6, node 3: not heard yet"
    row = row_of(image_with(), leads(lags={2: 6, 3: 28_986}))
    assert row[-1] == "node 2: 6, does not answer, node 3: does not answer"
    assert row_of(image_with(), leads(2, 3, lags={2: 0, 3: 0}))[-1] == "nobody"


# ---- what is ordered, and what is so already ----


def test_what_is_so_already_is_not_ordered_again() -> None:
    copies = Copies("t/0", [1, 2], is_open=False)
    assert added(copies, [2]) == removed(copies, [3]) == swapped(copies, 3, 2) == [1, 2]
    assert added(copies, [2, 3]) == [1, 2, 3]
    assert removed(copies, [2, 3]) == [1]


def test_what_contradicts_is_refused() -> None:
    copies = Copies("t/0", [1, 2], is_open=False)
    with pytest.raises(WrongUsage, match="the last copy cannot be removed"):
        removed(copies, [1, 2])
    with pytest.raises(WrongUsage, match="node 2 has a copy already"):
        swapped(copies, 1, 2)
    with pytest.raises(WrongUsage, match="node 3 has no copy"):
        swapped(copies, 3, 4)
    with pytest.raises(WrongUsage, match="node 3 has no copy"):
        swapped(copies, 3, 3)


def test_a_replacement_that_is_under_way_is_known_again() -> None:
    same = topic_of(TRIO, (ONE, NEW_TWO, THREE))
    assert is_under_way(image_with(lost_now=(2,)), same, 0, old=2, new=2)
    assert not is_under_way(image_with(lost=(2,), lost_now=(2,)), same, 0, old=2, new=2)
    other = topic_of(TRIO, (ONE, FOUR, THREE))
    assert is_under_way(image_with(), other, 0, old=2, new=4)
    assert not is_under_way(image_with(), other, 0, old=3, new=4)
    assert not is_under_way(image_with(), topic_of(TRIO), 0, old=2, new=4)


def test_a_topic_is_described_with_the_subject_that_feeds_it() -> None:
    assert _title(topic_of(TRIO)) == "Topic t, raft"
    fed = Topic("t", ID, "raft", (TRIO,), {"quorate.nats.subject": "orders.*"})
    assert _title(fed) == "Topic t, raft, fed from NATS subject orders.*"
