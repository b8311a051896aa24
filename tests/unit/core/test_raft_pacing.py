"""Whoever does not count yet is sent what has been read for it: a read can be held up, and nobody else waits."""

from __future__ import annotations

import msgspec

from quorate.core import effects, events
from quorate.core.effects import Effect
from quorate.core.entry import Snapshot
from quorate.core.raft.messages import AppendEntries, AppendResponse, SnapshotChunk, WantEntries
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


def test_one_that_has_come_to_count_waits_for_no_read_any_more() -> None:
    """That may wait for ever, as at rate 0; and whom something is read for is not told what is settled."""
    bench = leader(LOG, tuning=PACED)
    change(bench, *THREE, N4)
    (held,) = of_kind(newcomer_answers(bench), effects.Read)
    assert not of_kind(bench.tell(events.Counted(THREE)), effects.Read), "it does not count"
    ordered = bench.tell(events.Counted((*THREE, N4)))
    assert not of_kind(ordered, effects.Read), "it is all in memory"
    offsets = [header.offset for message in with_headers(ordered, N4) for header in message.headers]
    assert offsets[:2] == [0, 1]
    (beat,) = sent(bench.wake(), N4)
    assert (beat.headers, beat.search) == ((), False)
    assert not with_headers(bench.tell(events.Loaded(held.token, entries("1-0 1-1"))), N4), "it has that"


def test_what_is_held_is_not_waited_for_once_the_follower_has_all() -> None:
    """What it had flushed was heard of late."""
    bench = leader(LOG, tuning=PACED)
    change(bench, *THREE, N4)
    newcomer_answers(bench)
    head = bench.replica.log.head.offset
    bench.receive(N4, AppendResponse(2, True, head, head, -1))
    (beat,) = [message for message in sent(bench.wake(), N4) if not message.headers]
    assert not beat.search


def pieces(ordered: list[Effect]) -> list[bool]:
    """Whether they wait their turn."""
    sends = of_kind(ordered, effects.Send)
    return [send.paced for send in sends if type(send.message) is SnapshotChunk]


def test_a_piece_of_a_snapshot_waits_its_turn_only_where_it_is_for_a_newcomer() -> None:
    snapshot = Snapshot(at("1-4"), 1, 10)
    more = {"base": at("1-4"), "snapshot": snapshot, "commit": 4}
    bench = leader("1-5", tuning=PACED, **more)
    change(bench, *THREE, N4)
    bench.persist()
    ordered: list[Effect] = []
    for probe in (bench.replica.log.head.offset, 4):
        ordered += bench.receive(N4, AppendResponse(2, False, probe, -1, -1, theirs=NOWHERE))
    assert pieces(ordered) == [True]
    counts = leader("1-5", tuning=PACED, **more)
    lost = counts.replica.role.cursors[N2.node]
    assert pieces(counts.receive(N2, AppendResponse(2, True, lost.matched, 5, -1, wants_snapshot=4))) == [
        False
    ]


LOST = WantEntries(1, Span(at("1-0"), at("1-3")))


def test_damage_of_whoever_counts_is_mended_at_once() -> None:
    bench = Bench(log=LOG, tuning=PACED)
    (read,) = of_kind(bench.receive(N2, LOST), effects.Read)
    assert not read.paced
    bench.tell(events.Counted((*THREE, N4)))
    (read,) = of_kind(bench.receive(N4, LOST), effects.Read)
    assert not read.paced, "nobody has to lead, and the membership may be older than what is known"


def test_a_newcomer_that_asks_again_for_what_its_log_lacks_is_not_served_twice() -> None:
    bench = Bench(log=LOG, tuning=PACED)
    (read,) = of_kind(bench.receive(N4, LOST), effects.Read)
    assert (read.paced_for, read.mends) == (N4.node, True)
    assert bench.receive(N4, LOST) == []
    another = Member(N4.node + 1, 1)
    assert of_kind(bench.receive(another, LOST), effects.Read), "somebody else is"
    (answer,) = sent(bench.tell(events.Loaded(read.token, entries("1-1 1-2 1-3"))), N4)
    assert [header.offset for header in answer.headers] == [1, 2, 3]
    (read,) = of_kind(bench.receive(N4, LOST), effects.Read)
    other = WantEntries(1, Span(at("1-1"), at("1-3")))
    assert of_kind(bench.receive(N4, other), effects.Read), "it is another life, and lacks something else"
    assert bench.tell(events.Loaded(read.token, entries("1-1 1-2 1-3"))) == []


def test_whoever_counts_and_asks_again_is_not_served_twice_either() -> None:
    """It asks every half second, and a slow disk would gather reads without end."""
    bench = Bench(log=LOG, tuning=PACED)
    (read,) = of_kind(bench.receive(N2, LOST), effects.Read)
    assert bench.receive(N2, LOST) == []
    (answer,) = sent(bench.tell(events.Loaded(read.token, entries("1-1 1-2 1-3"))), N2)
    assert [header.offset for header in answer.headers] == [1, 2, 3]
    assert of_kind(bench.receive(N2, LOST), effects.Read), "what was read was lost on its way"


def test_what_mends_is_held_up_no_longer_than_until_its_copy_counts() -> None:
    bench = Bench(log=LOG, tuning=PACED)
    (held,) = of_kind(bench.receive(N4, LOST), effects.Read)
    bench.tell(events.Counted((*THREE, N4)))
    (read,) = of_kind(bench.receive(N4, LOST), effects.Read)
    assert (held.paced, read.paced) == (True, False)
    assert bench.receive(N4, LOST) == [], "that is not held"
    loaded = entries("1-1 1-2 1-3")
    assert bench.tell(events.Loaded(held.token, loaded)) == []
    assert sent(bench.tell(events.Loaded(read.token, loaded)), N4)
