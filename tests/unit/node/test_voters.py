"""What is ordered of the metadata group when somebody wants other voters."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member, Membership, Wanted
from quorate.node.orders import voters_wanted

ONE, TWO, THREE, FOUR = (Member(node, 1) for node in (1, 2, 3, 4))
AT_REST = Membership((ONE, TWO, THREE), (FOUR,), version=5)
TO_ADD = Wanted((ONE, TWO, THREE, FOUR), (), 6)
UNDER_WAY = Membership((ONE, TWO, THREE), (FOUR,), wanted=TO_ADD, version=6)


@pytest.mark.parametrize(
    ("now", "ensemble", "learners", "wanted"),
    [
        (AT_REST, (ONE, TWO, THREE, FOUR), (), TO_ADD),
        (UNDER_WAY, (ONE, TWO, THREE, FOUR), (), TO_ADD),
        (UNDER_WAY, (ONE, TWO, THREE, FOUR), (Member(5, 1),), TO_ADD),
        (UNDER_WAY, (ONE, TWO), (THREE, FOUR), Wanted((ONE, TWO), (THREE, FOUR), 7)),
        (AT_REST, (ONE, TWO, THREE), (), Wanted((ONE, TWO, THREE), (FOUR,), 5)),
        (AT_REST, (ONE, TWO, Member(3, 9)), (FOUR,), Wanted((ONE, TWO, Member(3, 9)), (FOUR,), 6)),
    ],
    ids=[
        "a change is one version above",
        "the same order again is the same",
        "even if somebody else has joined meanwhile",
        "another order takes its place",
        "what is so already",
        "another disk of the same node",
    ],
)
def test_an_order_has_a_version_of_its_own_unless_it_is_given_again(
    now: Membership, ensemble: tuple[Member, ...], learners: tuple[Member, ...], wanted: Wanted
) -> None:
    assert voters_wanted(now, ensemble, learners) == wanted
