"""How fast, and how: what a follower is sent, and that a slow one costs nobody but itself."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.entry import Header
from quorate.core.log import HEADERS_MAX
from quorate.core.raft.messages import AppendEntries, AppendResponse, SnapshotChunk
from tests.unit.core.kit import (
    N2,
    N3,
    TUNING,
    Bench,
    Snapshot,
    at,
    catch_up,
    flushed,
    leader,
    of_kind,
    propose,
    sent,
)

ONE_BY_ONE = msgspec.structs.replace(TUNING, message_bytes_max=1, inflight_bytes_max=1)
KEEPING = msgspec.structs.replace(TUNING, keep_behind=1 << 20)
FRUGAL = msgspec.structs.replace(KEEPING, prefer_snapshots=True)


def appends(ordered: list[effects.Effect]) -> list[AppendEntries]:
    return [message for message in sent(ordered, N2) if isinstance(message, AppendEntries)]


def far_ahead(tuning: object, *, snapshot_bytes: int) -> tuple[Bench, list[effects.Effect]]:
    """N2 agrees at 0 and nowhere above; what it needs is on the leader's disk, but not in its memory."""
    bench = leader("1-0", tuning=tuning)
    for request in range(2 * HEADERS_MAX):
        propose(bench, request)
        catch_up(bench, N3)
    bench.tell(events.SnapshotTaken(Snapshot(at("2-4000"), 1, snapshot_bytes)))
    assert bench.replica.log.window[0].offset > 0
    cursor = bench.replica.role.cursors[2]
    cursor.search_anew(bench.replica.log)
    cursor.probe, cursor.end = 1, 2
    return bench, bench.receive(N2, AppendResponse(2, True, 1, 1, -1))


def test_the_log_is_read_where_a_snapshot_would_cost_more() -> None:
    _, ordered = far_ahead(FRUGAL, snapshot_bytes=10 * 4001)
    assert [read.first for read in of_kind(ordered, effects.Read)] == [2]


def test_a_snapshot_is_sent_where_it_costs_less_than_what_it_stands_for() -> None:
    _, ordered = far_ahead(FRUGAL, snapshot_bytes=10 * 3000)
    assert [type(message) for message in sent(ordered, N2)] == [SnapshotChunk]
    assert of_kind(ordered, effects.Read) == []


def test_a_log_that_others_read_is_sent_whatever_it_costs() -> None:
    _, ordered = far_ahead(KEEPING, snapshot_bytes=1)
    assert [read.first for read in of_kind(ordered, effects.Read)] == [2]


def test_after_the_snapshot_come_the_entries_behind_it() -> None:
    bench, _ = far_ahead(FRUGAL, snapshot_bytes=10)
    ordered = bench.receive(N2, AppendResponse(2, True, 4000, 4000, 4000))
    (first, *_) = appends(ordered)
    assert first.prev == at("2-4000")
    assert first.headers[0].offset == 4001


def test_entries_larger_than_any_bound_go_one_by_one_and_all_of_them_go() -> None:
    bench = leader(tuning=ONE_BY_ONE)
    for request in range(5):
        propose(bench, request, size=1 << 24)
    bench.persist()
    for offset in range(2, 7):
        ordered = flushed(bench, N2, offset)
        assert bench.replica.commit == offset
        assert [message.headers[0].offset for message in appends(ordered)] == (
            [offset + 1] if offset < 6 else []
        )


def test_a_large_entry_that_was_lost_is_sent_again() -> None:
    bench = leader(tuning=ONE_BY_ONE)
    propose(bench, 1, size=1 << 24)
    bench.persist()
    (beat,) = appends(bench.wake())
    assert (beat.headers, beat.prev) == ((), at("2-2")), "it is on its way, as far as anybody knows"
    (probe,) = appends(bench.receive(N2, AppendResponse(2, False, 2, 1, 1, theirs=at("2-1"))))
    assert (probe.prev, probe.search) == (at("2-1"), True)
    (again,) = appends(bench.receive(N2, AppendResponse(2, True, 1, 1, 1)))
    assert [header.offset for header in again.headers] == [2]


def test_a_large_entry_in_the_middle_of_small_ones_holds_nobody_up() -> None:
    tuning = msgspec.structs.replace(TUNING, message_bytes_max=100, inflight_bytes_max=1 << 30)
    bench = leader(tuning=tuning)
    headers = tuple(Header(0, 0, size=size) for size in (10, 10, 1 << 20, 10, 10))
    messages = appends(bench.tell(events.Proposed(1, headers)))
    assert [[header.offset for header in message.headers] for message in messages] == [[2, 3], [4], [5, 6]]


@pytest.mark.behaviour("YB-3")
def test_a_follower_that_does_not_answer_slows_nobody() -> None:
    tuning = msgspec.structs.replace(TUNING, inflight_messages_max=4, uncommitted_entries_max=8)
    bench = leader(tuning=tuning)
    to_silent = 0
    for request in range(500):
        ordered = propose(bench, request)
        to_silent += len(sent(ordered, N3))
        bench.persist()
        flushed(bench, N2, bench.replica.log.head.offset)
        assert bench.replica.commit == bench.replica.log.head.offset
    assert to_silent == 4, "what is on its way to it is bounded"


@pytest.mark.behaviour("YB-3")
def test_a_follower_that_answers_late_catches_up_while_others_go_on() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, inflight_messages_max=1))
    for request in range(20):
        propose(bench, request)
        bench.persist()
        flushed(bench, N2, bench.replica.log.head.offset)
    ordered = flushed(bench, N3, 2)
    (message,) = [m for m in sent(ordered, N3) if isinstance(m, AppendEntries)]
    assert [message.headers[0].offset, message.headers[-1].offset] == [3, 21], (
        "all that is there, in one message"
    )
    assert bench.replica.commit == 21
