"""What can be wrong with a line is found before anything runs, and said with what could stand there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.sim.scenario import PATTERNS, run_text
from quorate.sim.scenario_log import Item, admits, read_entries, write_items
from quorate.sim.scenario_script import Problem, parse
from quorate.sim.scenario_words import Mistake, split

CAST = "nodes R1 R2 R3\n"


def mistakes(text: str) -> list[Problem]:
    result = run_text(text)
    assert all(problem.misunderstood for problem in result.problems)
    return list(result.problems)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("elect R9", "there is no node R9; there are: R1 R2 R3"),
        ("elect", "`elect` is not understood; write: elect NODE [with VOTER...]"),
        ("elct R1", "there is no `elct`; a line begins with one of: protocol, nodes,"),
        ("expect lgo R1 = 5-0", "is not understood; what can be expected: log, flushed"),
        ("expect log R1 = 5", "`5` is no entry; write `3-0` (epoch 3, offset 0)"),
        ("expect log R1 = 0-1", "0-1: epochs of entries begin with 1"),
        ("expect log R1 = 1-3..2", "an entry ends where it begins, or later"),
        ("expect log R1 = 1-0 ...", "`...` stands between two entries"),
        ("expect log R1 = 1-0 ... 2-4", "`...` stands between two entries of one epoch"),
        ("expect role R1 = boss", "there is no role boss; there are: leader, follower"),
        ("expect answer w1 = settled", "nothing was asked as w1; so far: nothing"),
        ("expect commit R1 = many", "`many` is not a number"),
        ("deliver apend R1 -> R2", "raft has no message `apend`; it has: gone-request"),
        ("run 5", "`5` is not a time; write 2s or 300ms"),
        ('expect error "x"', "`expect error` stands directly below the command that must fail"),
        ("setting speed = 5", "there is no setting speed; there are: "),
        ("setting message-entries-max = many", "message-entries-max is a whole number"),
        ("setting prefer-snapshots = maybe", "prefer-snapshots is yes or no"),
        ("read R1 quickly as r", "write: read NODE linearizable|lease as NAME"),
        ("change R1 to R1 R9 as c", "there is no node R9"),
        ("protocol paxos", "there is no protocol paxos; there are: raft"),
        ("nodes R1", "there are two nodes R1"),
        ("nodes 1a", "`1a` cannot be a node's name"),
        ("log R1 = 1-0 1-2", "the entries of a log follow each other: 1-2 does not"),
        ("log R1 = 2-0 1-1", "epochs never fall along a log"),
        ("log R1 = ?0", "a given log is whole"),
        ('propose R1 "x as w', "a quotation mark is missing"),
    ],
)
def test_a_mistake_is_named_with_what_could_stand_there(line: str, said: str) -> None:
    (problem,) = mistakes(CAST + line)
    assert problem.line == 2
    assert said in problem.what


ISR = "protocol isr\n" + CAST + "outsiders R4\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("operators O1", "in isr there are no operators: write: controllers"),
        (
            "log R1 = 1-0\nisr R1 R4",
            "`isr` names nodes that copy the partition from the beginning, each once",
        ),
        (
            "log R1 = 1-0\nisr R1 R1",
            "`isr` names nodes that copy the partition from the beginning, each once",
        ),
        ("isr R1", "`isr` says who is in sync where logs are given"),
        ("setting min-isr = 4", "min-isr is at least 1, and at most as many as there are nodes: 3"),
        ("setting min-isr = 0", "min-isr is at least 1"),
        ("deliver fecth R1 -> R2", "isr has no message `fecth`; it has: partition-told"),
    ],
)
def test_what_isr_does_not_begin_with_is_said(lines: str, said: str) -> None:
    (problem,) = mistakes(ISR + lines)
    assert said in problem.what


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("protocol raft\nnodes R1\ncontrollers C1", "in raft there are no controllers: replicas elect"),
        (
            "protocol coordinated\nnodes R1\ncontrollers C1",
            "in coordinated there are no controllers: write: op",
        ),
        ("nodes R1\nisr R1", "in raft nobody has to be in sync; write `protocol isr` above"),
    ],
)
def test_controllers_and_their_isr_are_of_one_protocol(line: str, said: str) -> None:
    (problem,) = mistakes(line)
    assert said in problem.what


def test_all_mistakes_of_a_file_are_found_at_once() -> None:
    found = mistakes(CAST + "elect R9\n\nexpect role R1 = boss  # who?\n")
    assert [problem.line for problem in found] == [2, 4]


def test_what_is_given_stands_above_the_first_command() -> None:
    (problem,) = mistakes(CAST + "elect R1\nlog R1 = 1-0\n")
    assert "`log` says how the world begins" in problem.what


def test_a_scenario_has_nodes() -> None:
    assert "nodes R1 R2 R3" in mistakes("# nothing\n")[0].what
    assert "nodes R1 R2 R3" in mistakes("expect no leader\n")[0].what


def test_a_proposals_name_is_used_once() -> None:
    (problem,) = mistakes(CAST + "propose R1 as w\npropose R1 as w\n")
    assert "w is the name of the request in line 2" in problem.what


def test_logs_that_no_run_could_leave_are_refused() -> None:
    (problem,) = mistakes(CAST + "log R1 = 1-0 3-1\nlog R2 = 2-0 3-1\n")
    assert problem.line == 3
    assert "no run could leave such logs: R2 has 3-1 behind other entries" in problem.what


def test_offsets_count_from_what_the_file_says() -> None:
    (problem,) = mistakes("offsets from 1\n" + CAST + "log R1 = 1-0\n")
    assert "1-0: this file counts offsets from 1" in problem.what
    (problem,) = mistakes("offsets from 1\n" + CAST + "expect commit R1 = 0\n")
    assert "write `none`" in problem.what


WORDS = sorted({word.strip("[].") for pattern in PATTERNS for word in pattern.replace("|", " ").split()})
SAMPLES = [
    "R1",
    "R9",
    "1-0",
    "1-0..2",
    "2-1*",
    "?3",
    "...",
    "empty",
    "7",
    "2s",
    '"x y"',
    '"',
    "#",
    "append",
    "*",
]
LINES = st.lists(st.sampled_from(WORDS + SAMPLES) | st.text(max_size=4), max_size=9).map(" ".join)


@given(st.lists(LINES, max_size=6))
def test_whatever_is_written_is_understood_or_named(lines: list[str]) -> None:
    script = parse("\n".join([CAST.strip(), *lines]), PATTERNS)
    assert all(problem.what and problem.misunderstood for problem in script.problems)


# ---- logs ----


@pytest.mark.parametrize(
    "text",
    [
        "3-0 3-1* 4-2..5 ?6 5-7",
        "after 1-4 1-5",
        "empty",
        "1-0 ... 1-9 2-10",
        "1-0 1-1 1-2",
        "?0..4 1-5",
        "after 1-4",
    ],
)
def test_logs_are_written_as_they_are_read(text: str) -> None:
    assert write_items(read_entries(split(text), 0), 0) == text


def test_offsets_are_shifted_both_ways() -> None:
    items = read_entries(split("1-1 1-2..3 ?4"), 1)
    assert items == (Item(1, 0, 0), Item(1, 1, 2), Item(0, 3, 3))
    assert write_items(items, 1) == "1-1 1-2..3 ?4"


def test_a_star_may_be_left_out_but_not_made_up() -> None:
    plain, starred = read_entries(split("1-0"), 0), read_entries(split("1-0*"), 0)
    assert admits(plain, starred)
    assert admits(plain, plain)
    assert not admits(starred, plain)
    assert not admits(plain, (*plain, Item(1, 1, 1)))


def test_a_row_is_as_if_written_in_full() -> None:
    assert read_entries(split("1-0 ... 1-3"), 0) == read_entries(split("1-0 1-1 1-2 1-3"), 0)
    with pytest.raises(Mistake):
        read_entries(split("1-0 ... 1-100000"), 0)
