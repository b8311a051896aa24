"""What may go of a log: decided from its segments alone."""

from __future__ import annotations

import pytest

from quorate.core.entry import EntryId, Member
from quorate.machine.metadata import Topic
from quorate.machine.purpose import KIND, TABLES
from quorate.node.retention import UNLIMITED, Keep, keep_of, may_go
from quorate.storage.starting import Stretch

NOW = 1_000_000


def log(*segments: tuple[int, int | None]) -> list[Stretch]:
    """(size, newest timestamp) of each, ten offsets in each."""
    return [
        Stretch(place * 10, EntryId(1, place * 10 + 9), place, size, newest)
        for place, (size, newest) in enumerate(segments)
    ]


def goes(stretches: list[Stretch], *, ms: int = UNLIMITED, size: int = UNLIMITED, settled: int = 999) -> int:
    """Up to which offset; -1: nothing."""
    going = may_go(stretches, Keep(ms, size), settled=settled, now_ms=NOW)
    return -1 if going is None else going.last.offset


YOUNG, OLD = NOW - 10, NOW - 5_000


@pytest.mark.parametrize(
    ("stretches", "upto"),
    [
        (log((100, OLD), (100, OLD), (100, YOUNG)), 19),
        (log((100, YOUNG), (100, OLD), (100, YOUNG)), -1),  # What is behind something young stays, too.
        (log((100, OLD), (100, None), (100, OLD)), 9),  # Nobody knows: it stays.
        (log((100, OLD), (100, OLD)), 19),  # Nothing came for so long: the newest goes as well.
        (log((100, OLD), (0, None)), 9),  # It has gone already; there is nothing in the one behind it.
        (log((100, NOW + 50)), -1),
        ([], -1),
    ],
)
def test_segments_go_whose_newest_record_is_too_old(stretches: list[Stretch], upto: int) -> None:
    assert goes(stretches, ms=1_000) == upto


@pytest.mark.parametrize(
    ("kept", "upto"), [(300, -1), (299, -1), (200, 9), (199, 9), (100, 19), (1, 19), (0, 19), (UNLIMITED, -1)]
)
def test_segments_go_above_which_there_is_enough_and_the_newest_never_does(kept: int, upto: int) -> None:
    assert goes(log((100, YOUNG), (100, YOUNG), (100, YOUNG)), size=kept) == upto


def test_either_is_enough() -> None:
    stretches = log((100, OLD), (100, YOUNG), (100, YOUNG), (100, YOUNG))
    assert goes(stretches, ms=1_000, size=1_000) == 9
    assert goes(stretches, ms=1_000, size=200) == 19
    assert goes(log((100, YOUNG), (100, OLD), (100, YOUNG)), ms=1_000, size=200) == 9


def test_what_is_not_settled_stays_however_old() -> None:
    assert goes(log((100, OLD), (100, OLD)), ms=1_000, settled=18) == 9
    assert goes(log((100, OLD), (100, OLD)), ms=1_000, settled=5) == -1


def test_a_topic_keeps_what_it_says_and_tables_keep_everything() -> None:
    ensembles = ((Member(1, 1),),)
    config = {"retention.ms": "1000", "retention.bytes": "5"}
    assert keep_of(Topic("a", bytes(16), "raft", ensembles, config)) == Keep(1000, 5)
    assert keep_of(Topic("a", bytes(16), "raft", ensembles)).is_everything
    assert keep_of(Topic("a", bytes(16), "raft", ensembles, {**config, KIND: TABLES})).is_everything
