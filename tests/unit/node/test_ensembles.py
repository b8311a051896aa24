"""What the keeper of ensembles decides, without a cluster."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member
from quorate.machine.metadata import ADDED_MAX
from quorate.node.ensembles import is_superseded

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
