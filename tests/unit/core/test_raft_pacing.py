"""Whoever does not count yet is sent what has been read for it: a read can be held up, and nobody else waits."""

from __future__ import annotations

import msgspec

from quorate.core import effects, events
from quorate.core.effects import Effect
from quorate.core.raft.messages import AppendEntries, AppendResponse, WantEntries
from tests.unit.core.kit import (
    N2,
    N3,
    N4,
    NOWHERE,
    THREE,
    TUNING,
    Bench,
    Member,
    Span,
    at,
    catch_up,
    change,
    entries,
    leader,
    new_leader,
    of_kind,
    propose,
    sent,
)

PACED = msgspec.structs.replace(TUNING, paced=True, message_entries_max=2)
LOG = "1-0 1-1 1-2 1-3 1-4"


def newcomer_answers(bench: Bench, member: Member = N4) -> list[Effect]:
    """It has nothing at all, and says so to whatever it is asked."""
    bench.persist()
    theirs = NOWHERE
    ordered = bench.receive(
        member, AppendResponse(2, False, bench.replica.log.head.offset, -1, -1, theirs=theirs)
    )
    return ordered + bench.receive(member, AppendResponse(2, True, -1, -1, -1))


def with_headers(ordered: list[Effect], to: Member) -> list[AppendEntries]:
    return [message for message in sent(ordered, to) if getattr(message, "headers", ())]


def test_a_newcomer_is_sent_what_was_read_and_one_read_at_a_time() -> None:
    bench = leader(LOG, tuning=PACED)
    change(bench, *THREE, N4)
    ordered = newcomer_answers(bench)
    assert not with_headers(ordered, N4)
    (read,) = of_kind(ordered, effects.Read)
    assert (read.first, read.paced) == (0, True)
    ordered = bench.tell(events.Loaded(read.token, entries("1-0 1-1 1-2")))
    (message,) = with_headers(ordered, N4)
    assert [header.offset for header in message.headers] == [0, 1]
    (read,) = of_kind(ordered, effects.Read)
    assert (read.first, read.paced) == (2, True)


def test_while_a_read_is_held_up_it_hears_that_somebody_leads() -> None:
    bench = leader(LOG, tuning=PACED)
    change(bench, *THREE, N4)
    newcomer_answers(bench)
    ordered = bench.wake()
    assert not of_kind(ordered, effects.Read), "the one before is still open"
    (beat,) = sent(ordered, N4)
    assert (beat.headers, beat.search) == ((), True)


def test_the_end_of_the_log_is_sent_at_once() -> None:
    """One that follows is not held up any more, or it would never count."""
    bench = leader(LOG, tuning=PACED)
    change(bench, *THREE, N4)
    newcomer_answers(bench)
    bench.receive(N4, AppendResponse(2, True, 6, 6, -1))
    catch_up(bench, N4)
    (message,) = with_headers(propose(bench), N4)
    assert message.headers[-1].offset == bench.replica.log.head.offset


def test_whoever_counts_is_never_held_up() -> None:
    bench = new_leader(LOG, tuning=PACED)
    ordered = bench.receive(N2, AppendResponse(2, False, 4, -1, -1, theirs=NOWHERE))
    ordered += bench.receive(N2, AppendResponse(2, True, -1, -1, -1))
    assert with_headers(ordered, N2)
    assert not of_kind(ordered, effects.Read)
    assert not with_headers(ordered, N3)


def test_without_it_newcomers_are_sent_what_is_in_memory() -> None:
    bench = leader(LOG, tuning=msgspec.structs.replace(PACED, paced=False))
    change(bench, *THREE, N4)
    ordered = newcomer_answers(bench)
    assert with_headers(ordered, N4)
    assert not of_kind(ordered, effects.Read)


def test_whoever_asks_again_for_what_it_lost_is_not_served_twice() -> None:
    bench = Bench(log=LOG, tuning=PACED)
    lost = WantEntries(1, Span(at("1-0"), at("1-3")))
    (read,) = of_kind(bench.receive(N2, lost), effects.Read)
    assert read.paced
    assert bench.receive(N2, lost) == []
    assert of_kind(bench.receive(N3, lost), effects.Read), "somebody else is"
    (answer,) = sent(bench.tell(events.Loaded(read.token, entries("1-1 1-2 1-3"))), N2)
    assert [header.offset for header in answer.headers] == [1, 2, 3]
    assert of_kind(bench.receive(N2, lost), effects.Read)
