"""Whoever ordered something of a controller is told the truth: compared with all that the store ever said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core.effects import Outcome, Reply
from quorate.core.invariant import Violated
from quorate.core.isr import Controller, PartitionState
from quorate.core.isr.orders import ChangeReplicas, ElectUncleanly, MoveLeader, Order
from quorate.core.isr.state import Unclean
from quorate.sim.answers import Given
from quorate.sim.faults import ANY_OPERATOR, Fault
from quorate.sim.isr_answers import IsrAnswers
from tests.unit.core.isr_kit import N1, N2, N3, state
from tests.unit.core.kit import N4
from tests.unit.sim.isr_bench import IsrBench

SWAP = ChangeReplicas(1, N3, N4)
SWAPPED = (N1, N2, N4)


class Book:
    """The answers of a partition that begins with n1 leading n1, n2 and n3, all in sync."""

    def __init__(self) -> None:
        self.history: list[PartitionState] = []
        self.answers = IsrAnswers([self.history])
        self.store(state())

    def store(self, *states: PartitionState) -> None:
        for stored in states:
            self.history.append(stored)
            self.answers.wrote(0)

    def give(self, order: Order, *, behind: int = 0) -> Given:
        """`behind`: so many versions the controller does not know yet."""
        return self.answers.give(order, 0, operator=101, life=1, known=len(self.history) - behind)

    def answer(self, given: Given, outcome: Outcome) -> None:
        self.answers.answer(given, Reply(given.order.request, outcome, why="so it is"))

    def expect_wrong(self, given: Given, outcome: Outcome) -> None:
        with pytest.raises(Violated) as caught:
            self.answer(given, outcome)
        assert caught.value.invariant == "order-answered-wrongly"

    def expect_wrongly_stored(self, stored: PartitionState) -> None:
        with pytest.raises(Violated) as caught:
            self.store(stored)
        assert caught.value.invariant == "order-answered-wrongly"


def swapped(epoch: int = 2) -> PartitionState:
    return state(epoch, replicas=SWAPPED, isr_now=(N1, N2))


def uncleanly(epoch: int = 2, leader: Any = N3) -> PartitionState:
    return state(epoch, 2, leader, isr_now=(leader,), unclean=Unclean(2, leader, (N1, N2)))


# ---- denied ----


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.REFUSED])
@pytest.mark.parametrize(("order", "stored"), [(SWAP, swapped()), (ElectUncleanly(1, N3), uncleanly())])
def test_what_was_denied_is_done_later(outcome: Outcome, order: Order, stored: PartitionState) -> None:
    book = Book()
    book.answer(book.give(order), outcome)
    book.expect_wrongly_stored(stored)


@pytest.mark.parametrize(("order", "stored"), [(SWAP, swapped()), (ElectUncleanly(1, N3), uncleanly())])
def test_what_was_done_is_said_to_be_dropped(order: Order, stored: PartitionState) -> None:
    book = Book()
    given = book.give(order)
    book.store(stored)
    book.expect_wrong(given, Outcome.TIMED_OUT)


def test_what_was_done_and_undone_is_said_to_be_dropped() -> None:
    book = Book()
    given, back = book.give(SWAP), book.give(ChangeReplicas(2, N4, N3))
    book.store(swapped(), state(3, isr_now=(N1, N2)))
    book.answer(back, Outcome.SETTLED)
    book.expect_wrong(given, Outcome.TIMED_OUT)


@pytest.mark.parametrize(
    ("order", "other", "stored"),
    [
        (SWAP, ChangeReplicas(1, N3), swapped()),
        (ChangeReplicas(1, N3), SWAP, state(2, replicas=(N1, N2))),
        (ElectUncleanly(1, N3), ElectUncleanly(1, N2), uncleanly()),
        (ElectUncleanly(1, N3), MoveLeader(1, N3), uncleanly()),
    ],
)
def test_what_happens_was_ordered_as_it_happens(order: Order, other: Order, stored: PartitionState) -> None:
    Book().expect_wrongly_stored(stored)
    book = Book()
    book.give(other)
    book.expect_wrongly_stored(stored)
    book = Book()
    book.give(order)
    book.store(stored)


def test_what_was_denied_is_ordered_again() -> None:
    book = Book()
    book.answer(book.give(SWAP), Outcome.TIMED_OUT)
    again = book.give(msgspec.structs.replace(SWAP, request=2))
    book.store(swapped())
    book.answer(again, Outcome.SETTLED)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, None])
def test_what_nobody_was_told_anything_of_may_happen_at_any_time(outcome: Outcome | None) -> None:
    book = Book()
    given = book.give(SWAP)
    if outcome is not None:
        book.answer(given, outcome)
    book.store(swapped())


def test_another_leader_and_another_isr_need_nobodys_order() -> None:
    book = Book()
    book.answer(book.give(MoveLeader(1, N2)), Outcome.REFUSED)
    book.store(state(2, 2, N2), state(3, 2, N2, isr_now=(N2, N3)))


# ---- settled ----


def test_change_that_the_store_never_saw_is_said_to_be_done() -> None:
    book = Book()
    given, other = book.give(SWAP), book.give(ChangeReplicas(2, N3))
    book.store(state(2, replicas=(N1, N2)))
    book.answer(other, Outcome.SETTLED)
    book.expect_wrong(given, Outcome.SETTLED)


@pytest.mark.parametrize(
    ("to", "stored", "is_true"),
    [
        (None, state(2, 2, N2), True),
        (None, state(2, 2, N1), False),
        (None, state(2, 1, N1, isr_now=(N1, N2)), False),
        (N3, state(2, 2, N3), True),
        (N3, state(2, 2, N2), False),
        (N1, state(2, 1, N1, isr_now=(N1, N2)), False),
    ],
)
def test_another_leader_has_another_epoch(to: Any, stored: PartitionState, is_true: bool) -> None:
    book = Book()
    given = book.give(MoveLeader(1, to))
    book.store(stored)
    if is_true:
        book.answer(given, Outcome.SETTLED)
    else:
        book.expect_wrong(given, Outcome.SETTLED)


def test_another_leader_is_another_than_the_controller_knew() -> None:
    book = Book()
    book.store(state(2, 2, N2))
    book.answer(book.give(MoveLeader(1), behind=1), Outcome.SETTLED)
    book.expect_wrong(book.give(MoveLeader(2)), Outcome.SETTLED)


def test_unclean_election_is_of_whoever_was_named_and_later() -> None:
    book = Book()
    given, other = book.give(ElectUncleanly(1, N2)), book.give(ElectUncleanly(2, N3))
    book.store(uncleanly())
    book.answer(other, Outcome.SETTLED)
    book.expect_wrong(given, Outcome.SETTLED)
    book.expect_wrong(book.give(ElectUncleanly(3, N3)), Outcome.SETTLED)


# ---- controllers that lie ----


@pytest.mark.parametrize(
    ("way", "truth", "lie"),
    [
        ("expand", Outcome.SETTLED, Outcome.TIMED_OUT),
        ("expand", Outcome.REFUSED, Outcome.SETTLED),
        ("move", Outcome.REFUSED, Outcome.SETTLED),
    ],
)
def test_controller_that_says_the_opposite_is_found_out(
    way: str, truth: Outcome, lie: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = IsrBench(controllers=(101,))
    bench.begin()
    step = Controller.step

    def lying(self: Controller, now: float, event: Any) -> list[Any]:
        return [
            msgspec.structs.replace(effect, outcome=lie, why="a lie")
            if isinstance(effect, Reply) and effect.outcome is truth
            else effect
            for effect in step(self, now, event)
        ]

    monkeypatch.setattr(Controller, "step", lying)
    with pytest.raises(Violated) as caught:
        for chance in range(2):  # The second one comes while the store is asked for the first one.
            bench.planner.strike(Fault(0.0, f"order-{way}", (ANY_OPERATOR,), chance=chance))
        bench.run(1.0)
    assert caught.value.invariant == "order-answered-wrongly"
