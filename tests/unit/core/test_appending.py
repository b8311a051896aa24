"""The receiving side: match, skip, cut at the first conflict, store."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import appending
from quorate.core.log import LogView
from tests.unit.core.kit import NOWHERE, Span, at, entries, recovered


def log_of(text: str, **more: Any) -> LogView:
    return LogView(recovered(text, **more))


@pytest.mark.behaviour("OR-1")
def test_only_a_log_that_holds_the_entry_before_goes_on() -> None:
    log = log_of("1-0 1-1 2-2")
    assert log.holds(at("2-2"))
    assert log.holds(at("1-1"))
    assert not log.holds(at("1-2")), "same offset, another epoch"
    assert not log.holds(at("2-3")), "beyond the end"
    assert log.holds(NOWHERE), "everything agrees before the first entry"


@pytest.mark.behaviour("OR-2")
def test_empty_slots_are_filled() -> None:
    plan = appending.plan(log_of("1-0"), at("1-0"), entries("1-1 1-2"))
    assert plan == appending.Plan(None, entries("1-1 1-2"), (), at("1-2"))


@pytest.mark.behaviour("OR-3", "OR-8")
def test_entries_that_are_there_are_skipped_and_nothing_behind_them_is_cut() -> None:
    plan = appending.plan(log_of("1-0 1-1 1-2 1-3"), at("1-0"), entries("1-1 1-2"))
    assert plan == appending.Plan(None, (), (), at("1-2"))


@pytest.mark.behaviour("OR-4", "OR-8")
def test_the_first_that_differs_cuts_the_log_there() -> None:
    plan = appending.plan(log_of("1-0 1-1 2-2 2-3"), at("1-0"), entries("1-1 3-2 3-3"))
    assert plan == appending.Plan(at("1-1"), entries("3-2 3-3"), (), at("3-3"))


@pytest.mark.behaviour("OR-17")
def test_what_goes_past_the_leader_goes_when_the_leader_writes_there() -> None:
    plan = appending.plan(log_of("1-0 1-1 1-2 1-3"), at("1-1"), entries("2-2"))
    assert plan == appending.Plan(at("1-1"), entries("2-2"), (), at("2-2"))


def test_entries_of_several_offsets_are_compared_whole() -> None:
    plan = appending.plan(log_of("1-0..4 1-5..9"), at("1-4"), entries("1-5..9 2-10..11"))
    assert plan == appending.Plan(None, entries("2-10..11"), (), at("2-11"))


def test_entries_below_the_base_are_settled_and_skipped() -> None:
    log = log_of("2-5 2-6", base=at("1-4"))
    plan = appending.plan(log, at("1-2"), entries("1-3 1-4 2-5 2-6 2-7"))
    assert plan == appending.Plan(None, entries("2-7"), (), at("2-7"))


def faulty_log() -> LogView:
    """1-0 1-1 [1-2 1-3 unreadable] 1-4."""
    log = log_of("1-0 1-1 1-2 1-3 1-4")
    log.mark_faulty(Span(at("1-1"), at("1-3")))
    return log


def test_entries_that_fall_on_damage_repair_it() -> None:
    plan = appending.plan(faulty_log(), at("1-0"), entries("1-1 1-2 1-3 1-4 1-5"))
    assert plan == appending.Plan(None, entries("1-5"), entries("1-2 1-3"), at("1-5"))


def test_damage_that_the_leader_contradicts_is_given_up_but_owed() -> None:
    plan = appending.plan(faulty_log(), at("1-1"), entries("2-2 2-3 2-4"))
    assert plan == appending.Plan(
        None, entries("2-2 2-3 2-4"), (), at("2-4"), gives_up=Span(at("1-1"), at("1-3"))
    )


def test_a_conflict_behind_repaired_damage_is_cut_after_the_repair() -> None:
    plan = appending.plan(faulty_log(), at("1-1"), entries("1-2 1-3 2-4"))
    assert plan == appending.Plan(at("1-3"), entries("2-4"), entries("1-2 1-3"), at("2-4"))


def test_entries_that_end_inside_damage_verify_nothing_of_it() -> None:
    plan = appending.plan(faulty_log(), at("1-0"), entries("1-1 1-2"))
    assert plan == appending.Plan(None, (), (), at("1-1"))
