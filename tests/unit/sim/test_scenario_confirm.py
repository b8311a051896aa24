"""Scenarios of `confirm`: what their page of texts shows, and what is said where a line makes no sense."""

from __future__ import annotations

import pytest

from quorate.batch import encode_records
from quorate.core.entry import Header, Kind, Promote, Rollback
from quorate.machine import Judging, Undoable
from quorate.sim.scenario import run_text
from quorate.sim.scenario_notes import ASYNCHRONOUS, Notes

BEGINNING = "protocol confirm\nnodes R1 R2 R3\n"


def written(*texts: str, key: bytes | None = None) -> bytes:
    return encode_records([(key, text.encode()) for text in texts])


def rollback(offset: int, first: int) -> Header:
    return Header(1, offset, kind=Kind.CONTROL, control=Rollback(first))


def page(*texts: str) -> Notes:
    """Each of them appended, from offset 0 on."""
    notes = Notes()
    for offset, text in enumerate(texts):
        notes.append(Header(1, offset), written(text))
    return notes


def told(text: str) -> list[str]:
    return [problem.what for problem in run_text(BEGINNING + text).problems]


def test_a_page_is_a_machine_that_undoes_and_judges() -> None:
    assert isinstance(Notes(), Undoable)
    assert isinstance(Notes(), Judging)
    assert Notes().is_synchronous(written("a"))
    assert not Notes().is_synchronous(written("a", key=ASYNCHRONOUS))


@pytest.mark.behaviour("TT-3")
def test_what_is_rolled_back_is_gone_and_a_cut_of_the_rollback_brings_it_back() -> None:
    notes = page("a", "b", "c")
    notes.append(rollback(3, first=1), b"")
    assert notes.local == ["a"]
    notes.cut(2)
    assert notes.local == ["a", "b", "c"]
    notes.cut(0)
    assert notes.local == ["a"]


def test_void_entries_leave_the_page_when_their_rollback_is_settled() -> None:
    notes = page("a", "b")
    notes.append(rollback(2, first=1), b"")
    notes.settle(Header(1, 0), 0, written("a"))
    notes.settle(rollback(2, first=1), 0, b"")
    assert notes.settled == notes.local == ["a"]


def test_a_snapshot_is_of_what_is_settled() -> None:
    notes = page("a", "b")
    notes.settle(Header(1, 0), 0, written("a"))
    other = page("x")
    other.restore(notes.snapshot())
    assert other.local == ["a"]


def test_controls_write_nothing() -> None:
    notes = Notes()
    notes.append(Header(1, 0, kind=Kind.CONTROL, control=Promote(1, 0)), b"")
    assert notes.local == []


def test_orders_of_confirm_are_refused_elsewhere() -> None:
    result = run_text("nodes R1 R2 R3\npromote R1 as p1\n")
    assert [problem.what for problem in result.problems] == [
        "`promote R1 as p1` failed: in raft nobody can order that of a replica; write `protocol confirm` above"
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [("quorums 1 2", "their sum must exceed 3"), ("quorums 3 1", "could elect two leaders at once")],
)
def test_unsafe_quorums_are_found_before_anything_runs(line: str, why: str) -> None:
    assert why in told(f"{line}\nexpect no leader\n")[0]


def test_only_confirm_has_quorums_of_a_size() -> None:
    problems = run_text("nodes R1 R2 R3\nquorums 2 2\nexpect no leader\n").problems
    assert problems[0].what == "only in confirm quorums have sizes; write `protocol confirm` above"


def test_what_was_found_instead_is_said() -> None:
    said = told(
        'elect R1\nsettle\npropose R1 "a" as w\nexpect local R1 = nothing\nexpect decisions R1 = none\n'
        'expect void R1 = 1\nexpect voting R2 = "leader R2, former none"\nexpect set aside R1 = 1\n'
    )
    assert said == [
        'expected local R1 = nothing, found "a"',
        'expected decisions R1 = none, found "1-0 promote R1"',
        "expected void R1 = 1, found none",
        'expected voting R2 = "leader R2, former none", found "leader R1, former none"',
        "expected set aside R1 = 1, found 0",
    ]


def test_a_raft_node_has_no_voting_table_and_applies_nothing_early() -> None:
    result = run_text('nodes R1\nexpect voting R1 = "leader none, former none"\nexpect local R1 = "a"\n')
    assert [problem.what.partition("found ")[2] for problem in result.problems] == [
        "none: there is no such table in raft",
        "nothing: only in confirm something is applied before it is settled",
    ]
