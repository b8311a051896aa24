"""What has been ordered of the disk, and what of it is durable."""

from __future__ import annotations

import pytest

from quorate.core.entry import NOWHERE
from quorate.core.ordering import Ordering
from tests.unit.core.kit import at


def append(ordering: Ordering, last: str, *, epoch: int) -> int:
    io = ordering.issue()
    ordering.appended(io, epoch, at(last))
    return io


def cut(ordering: Ordering, to: str) -> int:
    ordering.cut(at(to) if to else NOWHERE)
    return ordering.issue()


def test_an_append_is_durable_when_its_flush_is_done() -> None:
    ordering = Ordering(NOWHERE)
    first = append(ordering, "1-0", epoch=1)
    append(ordering, "1-1", epoch=1)
    assert ordering.durable == NOWHERE
    ordering.complete(first)
    assert ordering.durable == at("1-0")


@pytest.mark.behaviour("OR-18", "OR-20")
def test_the_completion_of_a_cut_entry_does_not_count_for_its_successor_under_the_same_id() -> None:
    ordering = Ordering(NOWHERE)
    original = append(ordering, "1-1", epoch=1)
    cut(ordering, "")
    append(ordering, "3-0", epoch=5)
    cut(ordering, "")
    again = append(ordering, "1-1", epoch=6)
    ordering.complete(original)
    assert ordering.durable == NOWHERE, "1-1 was cut since: its first flush proves nothing about the second"
    ordering.complete(again)
    assert ordering.durable == at("1-1")


@pytest.mark.behaviour("OR-20")
def test_a_completion_in_a_later_epoch_still_counts_for_an_entry_that_stands() -> None:
    ordering = Ordering(NOWHERE)
    io = append(ordering, "1-4", epoch=1)
    cut(ordering, "1-2")
    ordering.complete(io)
    assert ordering.durable == at("1-2"), "what the cut left standing is flushed, whoever leads now"


def test_what_is_held_comes_out_with_its_order_and_never_after_a_failure() -> None:
    ordering = Ordering(NOWHERE)
    first, second = ordering.issue(), ordering.issue()
    ordering.hold(first, "one")
    ordering.hold(second, "two")
    assert ordering.complete(first) == ["one"]
    ordering.fail(second)
    assert ordering.complete(ordering.issue()) == []
