"""One follower as its leader sees it: searching, streaming, receiving a snapshot."""

from __future__ import annotations

import math

import pytest

from quorate.core.cursor import Cursor, Phase
from quorate.core.entry import NOWHERE, EntryId
from quorate.core.log import LogView
from tests.unit.core.kit import at, entries, recovered


def cursor_on(log: LogView) -> Cursor:
    return Cursor(2, 1, log, now=0.0)


def log_of(length: int, epoch: int = 1) -> LogView:
    return LogView(recovered(" ".join(f"{epoch}-{offset}" for offset in range(length))))


@pytest.mark.behaviour("OR-11")
def test_a_search_starts_with_nothing_known_below_the_last_entry() -> None:
    cursor = cursor_on(log_of(10))
    assert (cursor.agreed, cursor.end, cursor.phase) == (-1, 10, Phase.SEARCHING)


@pytest.mark.behaviour("OR-12")
def test_a_second_refusal_halves_the_span() -> None:
    log = LogView(recovered(" ".join(f"{offset + 1}-{offset}" for offset in range(16))))
    cursor = cursor_on(log)
    cursor.refused(log, probe=15, theirs=EntryId(14, 13))
    assert (cursor.probe, cursor.end) == (13, 14), "the epoch index names the likely position"
    cursor.refused(log, probe=13, theirs=EntryId(13, 12))
    assert (cursor.probe, cursor.end) == ((-1 + 13) // 2, 13), "it was wrong: the middle of what is left"


@pytest.mark.behaviour("OR-13", "OR-14", "OR-15")
def test_accepted_raises_the_lower_bound_refused_lowers_the_upper_and_streaming_starts_where_they_meet() -> (
    None
):
    log = LogView(recovered(" ".join(f"{offset + 1}-{offset}" for offset in range(16))))
    cursor = cursor_on(log)
    cursor.refused(log, probe=15, theirs=EntryId(14, 13))
    cursor.refused(log, probe=13, theirs=EntryId(13, 12))
    assert cursor.probe == 6
    cursor.accepted(log, probe=6, matched=6)
    assert (cursor.agreed, cursor.end, cursor.phase) == (6, 13, Phase.SEARCHING)
    cursor.refused(log, probe=cursor.probe, theirs=EntryId(8, 7))
    cursor.accepted(log, probe=7, matched=7)
    assert (cursor.agreed, cursor.next, cursor.phase) == (7, 8, Phase.STREAMING)


@pytest.mark.behaviour("OR-15")
@pytest.mark.parametrize("shared", [-1, 0, 1, 7, 500, 1021, 1022])
def test_a_search_without_help_takes_log2_probes_and_a_few(shared: int) -> None:
    """The follower's hints are as bad as they can be: each only says that the probe itself is wrong."""
    length = 1023
    log = log_of(length, epoch=2)
    cursor = cursor_on(log)
    probes = 0
    while cursor.phase is Phase.SEARCHING:
        probes += 1
        probe = cursor.probe
        if probe <= shared:
            cursor.accepted(log, probe=probe, matched=probe)
        else:
            cursor.refused(log, probe=probe, theirs=EntryId(2, probe - 1))
    assert (cursor.agreed, cursor.next) == (shared, shared + 1)
    assert probes <= 2 * math.ceil(math.log2(length + 1)) + 2


def test_an_empty_follower_is_found_by_one_refusal() -> None:
    log = log_of(1000)
    cursor = cursor_on(log)
    cursor.refused(log, probe=999, theirs=NOWHERE)
    assert cursor.probe == -1
    cursor.accepted(log, probe=-1, matched=-1)
    assert (cursor.phase, cursor.next) == (Phase.STREAMING, 0)


def test_old_refusals_are_ignored() -> None:
    log = log_of(10)
    cursor = cursor_on(log)
    cursor.accepted(log, probe=9, matched=9)
    assert not cursor.refused(log, probe=5, theirs=at("1-4"))
    assert cursor.phase is Phase.STREAMING


def test_a_refusal_while_streaming_goes_back_to_what_is_flushed() -> None:
    log = log_of(10)
    cursor = cursor_on(log)
    cursor.accepted(log, probe=9, matched=4)
    log.append(entries("1-10 1-11"))
    cursor.sent(entries("1-10"))
    cursor.sent(entries("1-11"))
    assert cursor.refused(log, probe=10, theirs=at("1-9"))
    assert (cursor.phase, cursor.probe, cursor.inflight_bytes) == (Phase.SEARCHING, 9, 0)


def test_a_follower_that_gave_up_what_it_had_flushed_is_searched_from_nothing() -> None:
    log = log_of(10)
    cursor = cursor_on(log)
    assert cursor.accepted(log, probe=9, matched=9)
    assert not cursor.refused(log, probe=8, theirs=EntryId(1, 3)), "older than what is known"
    assert cursor.refused(log, probe=9, theirs=EntryId(1, 3))
    assert (cursor.phase, cursor.matched, cursor.probe) == (Phase.SEARCHING, -1, 3)


def test_what_is_in_flight_is_bounded_and_freed_by_answers() -> None:
    log = log_of(4)
    cursor = cursor_on(log)
    cursor.accepted(log, probe=-1, matched=-1)
    cursor.phase, cursor.next = Phase.STREAMING, 0
    cursor.sent(entries("1-0 1-1"))
    assert not cursor.has_room(bytes_max=200, messages_max=8)
    cursor.accepted(log, probe=1, matched=1)
    assert cursor.has_room(bytes_max=200, messages_max=8)


def test_a_follower_that_lost_what_it_had_not_flushed_is_found_again() -> None:
    """A full disk refused an entry that the follower had agreed to: it must not count as agreed for ever."""
    log = log_of(20)
    cursor = cursor_on(log)
    cursor.refused(log, probe=19, theirs=at("1-15"))
    cursor.refused(log, probe=15, theirs=at("1-15"))
    cursor.accepted(log, probe=cursor.probe, matched=7)
    cursor.agreed, cursor.end, cursor.probe = 15, 20, 15
    assert cursor.refused(log, probe=15, theirs=at("1-14"))
    assert cursor.probe < 15
    assert cursor.agreed == 7
