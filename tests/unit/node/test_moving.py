"""What is ordered of whoever oversees a partition, when somebody wants another leader for it."""

from __future__ import annotations

import pytest

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated import orders as operator
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.isr import PartitionState
from quorate.core.isr import orders as controller
from quorate.machine.shards import State
from quorate.node.orders import _moved, _order_to_move
from quorate.node.requests import Answered

ONE, TWO, THREE = TRIO = tuple(Member(node, 7) for node in (1, 2, 3))
SHARD = Shard(4, Status.STEADY, TRIO, ONE)
STATE = PartitionState(7, 4, ONE, TRIO, TRIO, min_isr=2)


@pytest.mark.parametrize(
    ("stored", "to", "order"),
    [
        (SHARD, 0, operator.MoveLeader(5)),
        (STATE, 0, controller.MoveLeader(5)),
        (STATE, 3, controller.MoveLeader(5, to=THREE)),
    ],
    ids=["an operator chooses", "a controller chooses", "a controller is told whom"],
)
def test_whoever_oversees_it_is_told(
    stored: State, to: int, order: operator.Order | controller.Order
) -> None:
    make = _order_to_move(stored, to)
    assert callable(make)
    assert make(5) == order


@pytest.mark.parametrize("stored", [SHARD, STATE])
def test_whoever_leads_already_need_not_be_told(stored: State) -> None:
    assert _order_to_move(stored, 1) == Answered(Outcome.SETTLED, -1, 0, 1)


def test_what_cannot_be_is_refused_in_words() -> None:
    for stored, to, why in (
        (SHARD, 2, "an operator chooses who leads"),
        (STATE, 9, "node 9 does not hold this partition"),
    ):
        refused = _order_to_move(stored, to)
        assert isinstance(refused, Answered)
        assert (refused.outcome, refused.why.startswith(why)) == (Outcome.REFUSED, True)


def test_while_somebody_is_being_elected_whoever_asks_tries_again() -> None:
    assert _order_to_move(Shard(5, Status.ELECTION, TRIO), 0) is None


def test_an_election_that_ends_where_it_began_is_not_what_was_wanted() -> None:
    assert _moved(Reply(5, Outcome.SETTLED, leader=2)).outcome is Outcome.SETTLED
    again = _moved(Reply(5, Outcome.SETTLED, leader=1, why="the same node leads again"))
    assert (again.outcome, again.why) == (Outcome.TIMED_OUT, "the same node leads again")
