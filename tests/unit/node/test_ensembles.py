"""What the keeper of ensembles decides, without a cluster."""

from __future__ import annotations

from random import Random

import pytest

from quorate.core.entry import Member, Membership, Standing, Wanted, partition_of
from quorate.core.raft import Tuning
from quorate.host import Hosted, ReplicaRecord
from quorate.machine.changing import Change
from quorate.machine.metadata import ADDED_MAX
from quorate.node.ensembles import is_reached, is_superseded

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
