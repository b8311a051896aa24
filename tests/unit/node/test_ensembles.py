"""What the keeper of ensembles decides, without a cluster."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.core.entry import Member, Membership, Partition, Standing, Wanted, partition_of
from quorate.core.raft import Tuning
from quorate.host import Hosted, ReplicaRecord
from quorate.machine.changing import Change
from quorate.machine.metadata import ADDED_MAX, METADATA, Topic
from quorate.machine.shards import Stored
from quorate.node import ensembles
from quorate.node.ensembles import (
    STUCK_S,
    UNDER_WAY_COUNT_MAX,
    UNSEEN_S,
    Ensembles,
    is_reached,
    is_superseded,
)
from tests.unit.core import isr_kit

LIFE = ADDED_MAX + 5
LOST_ITS_RECORD = ADDED_MAX + 77


@pytest.mark.parametrize(
    ("held", "mine", "superseded"),
    [
        (LIFE, [LIFE], False),
        (LIFE, [40], True),
        (20, [40], True),
        (40, [40], False),
        (20, [40, 20], False),
        (LOST_ITS_RECORD, [40], False),
        (LOST_ITS_RECORD, [LIFE], False),
    ],
    ids=[
        "as at first",
        "added again",
        "added a third time",
        "as added",
        "still one of those who may count",
        "a record lost after it was added",
        "a record lost",
    ],
)
def test_only_a_replica_that_had_left_makes_room_for_a_new_one(
    held: int, mine: list[int], superseded: bool
) -> None:
    members = [Member(4, incarnation) for incarnation in mine]
    assert is_superseded(Member(4, held), members, LIFE) == superseded


THREE = tuple(Member(node, LIFE) for node in (1, 2, 3))
CHANGE = Change(THREE, at=50)


def hosted_with(membership: Membership, settled: Membership) -> Hosted:
    hosted = Hosted(partition_of(bytes(16), 0), ReplicaRecord("raft", THREE[0], THREE), Tuning(), Random(1))
    hosted.replica.membership = membership
    hosted.standing = Standing(settled)
    return hosted


@pytest.mark.parametrize(
    ("membership", "settled", "reached"),
    [
        (Membership(THREE, version=50), Membership(THREE, version=50), True),
        (Membership(THREE, version=40), Membership(THREE, version=40), False),
        (Membership(THREE, version=50), Membership(THREE, version=40), False),
        (Membership(THREE, wanted=Wanted(THREE, (), 50), version=50), Membership(THREE, version=40), False),
    ],
    ids=["by this very order", "as it was before, by a leader of then", "not settled", "under way"],
)
def test_a_change_is_reached_by_its_own_order_only(
    membership: Membership, settled: Membership, reached: bool
) -> None:
    """Otherwise a leader that was paused would let copies be removed that count by now."""
    assert is_reached(hosted_with(membership, settled), CHANGE) == reached


# --- how many at once ---

FOUR = Member(4, LIFE)
MANY = 100


class Mover:
    """A node that leads, or oversees, many partitions which are all to get a copy on node 4 and lose one."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, replication: str, *, wanted: tuple[Member, ...]
    ) -> None:
        self.now = 0.0
        self.ordered: dict[Partition, None] = {}
        self.heard: tuple[int, ...] = (1, 2, 3, 4)
        self.leading = True
        self.waits: set[Partition] = set()
        self.host = SimpleNamespace(hosted={}, pacer=SimpleNamespace(waits=self.waits.__contains__))
        changes = {number: Change(wanted, at=50) for number in range(MANY)}
        topic = Topic("t", bytes(16), replication, (THREE,) * MANY, changes=changes)
        born = isr_kit.state(replicas=THREE, leader=THREE[0])
        shards = {partition: Stored(1, 1, born) for partition in topic.partitions()}
        image = SimpleNamespace(topics={"t": topic}, shard=shards.get)
        self.metadata = SimpleNamespace(image=image)
        self.overseers = SimpleNamespace(oversees=lambda _: True, command=self._command)
        self.cursors = {each: SimpleNamespace(matched=-1, snapshot_at=0, member=FOUR) for each in shards}
        for partition in (*shards, METADATA):
            hosted = hosted_with(Membership(THREE), Membership(THREE))
            hosted.replica.role = SimpleNamespace(cursors={4: self.cursors.get(partition)})
            self.host.hosted[partition] = hosted
        monkeypatch.setattr(ensembles, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._looks = Ensembles(self)._look  # type: ignore[arg-type]

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def is_leader(self, partition: Partition) -> bool:
        return True

    def says_so(self, node: int, partition: Partition) -> bool:
        return self.leading

    def leads_with_all(self, partition: Partition) -> bool:
        return False

    def change(self, partition: Partition, *_: Any, **__: Any) -> None:
        self.ordered[partition] = None

    def _command(self, partition: Partition, *_: Any) -> None:
        self.ordered[partition] = None

    def works(self, seconds: float, *, gets_on: bool) -> int:
        """So long nothing that was ordered is done; how much was, in all."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for partition in self.ordered:
                self.cursors[partition].matched += gets_on
            self._looks()
        return len(self.ordered)


WITH_FOUR = (*THREE[:2], FOUR)


@pytest.mark.parametrize("replication", ["raft", "isr"])
def test_so_many_changes_are_under_way_at_once_however_long_they_take(
    monkeypatch: pytest.MonkeyPatch, replication: str
) -> None:
    mover = Mover(monkeypatch, replication, wanted=WITH_FOUR)
    assert mover.works(60, gets_on=True) == UNDER_WAY_COUNT_MAX


@pytest.mark.parametrize("replication", ["raft", "isr"])
def test_a_change_that_does_not_get_on_holds_up_no_others(
    monkeypatch: pytest.MonkeyPatch, replication: str
) -> None:
    mover = Mover(monkeypatch, replication, wanted=WITH_FOUR)
    mover.works(1, gets_on=False)
    mover.heard = (1, 2, 3)
    assert mover.works(STUCK_S + 2, gets_on=False) == 2 * UNDER_WAY_COUNT_MAX


def test_what_waits_for_its_turn_by_the_rate_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    mover = Mover(monkeypatch, "raft", wanted=WITH_FOUR)
    mover.works(1, gets_on=False)
    mover.waits.update(mover.ordered)
    assert mover.works(60, gets_on=False) == UNDER_WAY_COUNT_MAX
    mover.waits.pop()
    assert mover.works(STUCK_S + 2, gets_on=False) == UNDER_WAY_COUNT_MAX + 1, "others waiting is no excuse"


@pytest.mark.parametrize("away", ["who should lead", "who should say so"])
def test_where_nobody_leads_nobody_gets_on(monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """Newcomers are heard; but the only copy in sync is gone."""
    mover = Mover(monkeypatch, "isr", wanted=WITH_FOUR)
    mover.leading = away == "who should lead"
    mover.heard = (2, 3, 4) if mover.leading else (1, 2, 3, 4)
    assert mover.works(10 * STUCK_S, gets_on=False) == MANY


def test_what_cannot_be_seen_to_get_on_holds_up_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its newcomer is there, and has a full disk, perhaps."""
    mover = Mover(monkeypatch, "isr", wanted=WITH_FOUR)
    assert mover.works(UNSEEN_S - 1, gets_on=False) == UNDER_WAY_COUNT_MAX
    assert mover.works(3, gets_on=False) == 2 * UNDER_WAY_COUNT_MAX


@pytest.mark.parametrize("replication", ["raft", "isr"])
def test_where_nobody_has_to_copy_anything_all_is_ordered_at_once(
    monkeypatch: pytest.MonkeyPatch, replication: str
) -> None:
    mover = Mover(monkeypatch, replication, wanted=THREE[:2])
    assert mover.works(1, gets_on=False) == MANY
