"""Whoever ordered something is told the truth: compared with all that the store ever said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core.coordinated import Operator, Shard
from quorate.core.coordinated.orders import CallOff, MoveLeader, Order, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.invariant import Violated
from quorate.sim.answers import Given
from quorate.sim.faults import ANY_OPERATOR, Fault
from quorate.sim.operator_answers import OperatorAnswers
from tests.unit.core.coordinated_kit import N1, N2, N3, N4, contract, electing, expand, steady, swap
from tests.unit.sim.operator_bench import Bench

SWAP = Reconfigure(1, Kind.SWAP, N3, N4)
SWAPPED = (N1, N2, N4)
WHY = {Outcome.REFUSED: "not now", Outcome.TIMED_OUT: "it was dropped", Outcome.UNKNOWN: "who knows"}


class Book:
    """The answers of a shard that begins as steady e1 {n1,n2,n3}."""

    def __init__(self, *stored: Shard) -> None:
        self.history: list[Shard] = []
        self.answers = OperatorAnswers([self.history])
        self.store(steady(1), *stored)

    def store(self, *shards: Shard) -> None:
        for shard in shards:
            self.history.append(shard)
            self.answers.wrote(0)

    def give(self, order: Order) -> Given:
        return self.answers.give(order, 0, operator=101, life=1, known=len(self.history))

    def answer(self, given: Given, outcome: Outcome) -> None:
        self.answers.answer(given, Reply(given.order.request, outcome, why=WHY.get(outcome, "")))

    def expect(self, invariant: str, given: Given, outcome: Outcome) -> None:
        with pytest.raises(Violated) as caught:
            self.answer(given, outcome)
        assert caught.value.invariant == invariant

    def expect_wrong(self, *shards: Shard) -> None:
        with pytest.raises(Violated) as caught:
            self.store(*shards)
        assert caught.value.invariant == "order-answered-wrongly"


def swapping(book: Book, epoch: int = 2) -> None:
    """Stored from its beginning to its end."""
    phases = (Phase.PREPARE, Phase.COMMIT)
    book.store(*(steady(epoch, change=swap(N3, N4, phase)) for phase in phases), steady(epoch, SWAPPED))


# ---- denied ----


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.REFUSED])
def test_what_was_denied_is_begun_later(outcome: Outcome) -> None:
    book = Book()
    book.answer(book.give(SWAP), outcome)
    book.expect_wrong(steady(2, change=swap(N3, N4)))


def test_what_was_dropped_goes_on() -> None:
    book = Book()
    given = book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)))
    book.answer(given, Outcome.TIMED_OUT)
    book.store(steady(2, change=swap(N3, N4, Phase.COMMIT)))
    book.expect_wrong(steady(2, SWAPPED))


def test_what_was_done_and_undone_is_said_to_be_dropped() -> None:
    book = Book()
    given, back = book.give(SWAP), book.give(Reconfigure(2, Kind.SWAP, N4, N3))
    swapping(book)
    for phase in (Phase.PREPARE, Phase.COMMIT):
        book.store(steady(3, SWAPPED, change=swap(N4, N3, phase)))
    book.store(steady(3))
    book.answer(back, Outcome.SETTLED)
    book.expect("order-answered-wrongly", given, Outcome.TIMED_OUT)


@pytest.mark.parametrize(
    ("shard", "order"),
    [
        (steady(2, change=expand(N4)), Reconfigure(1, Kind.EXPAND, new=N4)),
        (steady(2, change=contract(N3)), Reconfigure(1, Kind.CONTRACT, N3)),
    ],
)
def test_what_nobody_ordered_is_begun(shard: Shard, order: Reconfigure) -> None:
    Book().expect_wrong(shard)
    book = Book()
    book.give(order)
    book.store(shard)


def test_what_was_denied_is_ordered_again() -> None:
    book = Book()
    given = book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)), electing(3), steady(3))
    book.answer(given, Outcome.TIMED_OUT)
    again = book.give(msgspec.structs.replace(SWAP, request=2))
    swapping(book, epoch=4)
    book.answer(again, Outcome.SETTLED)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, None])
def test_what_nobody_was_told_anything_of_may_happen_at_any_time(outcome: Outcome | None) -> None:
    book = Book()
    given = book.give(SWAP)
    if outcome is not None:
        book.answer(given, outcome)
    swapping(book)


# ---- settled ----


def test_change_that_the_store_never_saw_is_said_to_be_done() -> None:
    book = Book()
    given = book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)), steady(2, change=swap(N3, N4, Phase.COMMIT)))
    book.expect("order-answered-wrongly", given, Outcome.SETTLED)


def test_change_that_is_done_is_called_off() -> None:
    book = Book()
    book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)))
    given = book.give(CallOff(2))
    book.store(steady(2, change=swap(N3, N4, Phase.COMMIT)), steady(2, SWAPPED))
    book.expect("order-answered-wrongly", given, Outcome.SETTLED)


def test_change_that_still_is_under_way_is_called_off() -> None:
    book = Book()
    book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)))
    book.expect("order-answered-wrongly", book.give(CallOff(2)), Outcome.SETTLED)


@pytest.mark.parametrize(
    "stored",
    [
        [steady(2, change=swap(N3, N4, Phase.ABORT))],
        [electing(3)],
        [steady(2), steady(3, change=swap(N3, N4)), steady(3, change=swap(N3, N4, Phase.COMMIT))],
    ],
)
def test_calling_off_is_done_by_whomever_and_what_comes_later_is_another_matter(stored: list[Shard]) -> None:
    book = Book()
    book.give(SWAP)
    book.store(steady(2, change=swap(N3, N4)))
    given = book.give(CallOff(2))
    book.store(*stored)
    book.answer(given, Outcome.SETTLED)


def test_another_leader_takes_an_election() -> None:
    book = Book()
    book.give(SWAP)
    given = book.give(MoveLeader(2))
    swapping(book)
    book.expect("order-answered-wrongly", given, Outcome.SETTLED)
    given = book.give(MoveLeader(3))
    book.store(electing(3, SWAPPED))
    book.expect("order-answered-wrongly", given, Outcome.SETTLED)
    given = book.give(MoveLeader(4))
    book.store(electing(4, SWAPPED), steady(4, SWAPPED, N2))
    book.answer(given, Outcome.SETTLED)


# ---- how it is said ----


def test_answer_comes_once_and_a_denial_with_a_reason() -> None:
    book = Book()
    given = book.give(SWAP)
    book.answer(given, Outcome.UNKNOWN)
    book.expect("change-answer", given, Outcome.UNKNOWN)
    with pytest.raises(Violated, match="without a reason"):
        book.answers.answer(book.give(SWAP), Reply(1, Outcome.REFUSED))


# ---- operators that lie ----


@pytest.mark.parametrize(
    ("truth", "lie", "chances"),
    [(Outcome.SETTLED, Outcome.TIMED_OUT, 1), (Outcome.REFUSED, Outcome.SETTLED, 2)],
)
def test_operator_that_says_the_opposite_is_found_out(
    truth: Outcome, lie: Outcome, chances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(operators=(101,))
    bench.elect()
    bench.run(1.0)
    step = Operator.step

    def lying(self: Operator, now: float, event: Any) -> list[Any]:
        return [
            msgspec.structs.replace(effect, outcome=lie, why="a lie")
            if isinstance(effect, Reply) and effect.outcome is truth
            else effect
            for effect in step(self, now, event)
        ]

    monkeypatch.setattr(Operator, "step", lying)
    with pytest.raises(Violated) as caught:
        for chance in range(chances):  # The second one comes while the first one is under way.
            bench.planner.strike(Fault(0.0, "order-swap", (ANY_OPERATOR,), chance=chance))
        bench.run(2.0)
    assert caught.value.invariant == "order-answered-wrongly"


def test_order_that_nobody_hears_is_none() -> None:
    bench = Bench(operators=(101,))
    bench.elect()
    bench.operators.pause(101, 1.0)
    assert bench.planner.order(101, 0, Reconfigure(1, Kind.EXPAND, new=Member(4, 1))) is None
    bench.operators.crash(101)
    assert bench.planner.order(101, 0, Reconfigure(2, Kind.EXPAND, new=Member(4, 1))) is None
    assert bench.planner.answers.given == []
