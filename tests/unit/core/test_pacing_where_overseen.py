"""The same where somebody oversees: whoever does not count yet is sent what has been read for it, others now."""

from __future__ import annotations

import msgspec

from quorate.core import effects, events
from quorate.core.coordinated.messages import AddEntryResponse, PrepareReconfigurationRequest
from quorate.core.effects import Effect
from quorate.core.entry import Snapshot, Span
from quorate.core.fetching import ChunkRequest, ChunkResponse
from quorate.core.repairing import WantEntries
from tests.unit.core import coordinated_kit, isr_kit
from tests.unit.core.kit import N2, N3, N4, NOWHERE, THREE, Member, at, entries, of_kind, sent

LOG = "1-0 1-1 1-2 1-3 1-4"


def offsets_sent(ordered: list[Effect], to: Member) -> list[int]:
    return [header.offset for message in sent(ordered, to) for header in getattr(message, "headers", ())]


def test_in_isr_whoever_is_not_waited_for_waits_its_turn() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True, message_entries_max=2)
    stored = isr_kit.state(2, 2, replicas=(*THREE, N4), isr_now=THREE)
    bench = isr_kit.new_leader(LOG, stored, tuning=tuning)
    ordered = isr_kit.fetch(bench, N4, NOWHERE)
    assert offsets_sent(ordered, N4) == []
    (read,) = of_kind(ordered, effects.Read)
    assert (read.first, read.paced) == (0, True)
    assert not of_kind(isr_kit.fetch(bench, N4, NOWHERE), effects.Read), "asked again, it is not read again"
    ordered = bench.tell(events.Loaded(read.token, entries("1-0 1-1 1-2")))
    assert offsets_sent(ordered, N4) == [0, 1]
    assert offsets_sent(isr_kit.fetch(bench, N2, at("1-0")), N2) == [1, 2]


def test_in_isr_whoever_left_the_isr_and_is_of_the_ensemble_catches_up_as_fast_as_it_can() -> None:
    """A restart takes it longer than `lag_s`: out of the ISR it goes, and it has to come back at any rate."""
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True, message_entries_max=2)
    stored = isr_kit.state(2, 2, isr_now=THREE[:2])
    bench = isr_kit.new_leader(LOG, stored, tuning=tuning)
    bench.tell(events.Counted(THREE))
    ordered = isr_kit.fetch(bench, N3, at("1-0"))
    assert offsets_sent(ordered, N3) == [1, 2]
    assert not of_kind(ordered, effects.Read)


def test_in_isr_a_new_disk_waits_its_turn_until_it_counts() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True, message_entries_max=2)
    again = isr_kit.AGAIN
    stored = isr_kit.state(2, 2, replicas=(*THREE[:2], again), isr_now=THREE[:2])
    bench = isr_kit.new_leader(LOG, stored, tuning=tuning)
    bench.tell(events.Counted(THREE))
    (held,) = of_kind(isr_kit.fetch(bench, again, NOWHERE), effects.Read)
    assert held.paced_for == again.node, "what counted was another incarnation"
    bench.tell(events.Counted((*THREE[:2], again)))
    assert offsets_sent(isr_kit.fetch(bench, again, NOWHERE), again) == [0, 1]
    assert bench.tell(events.Loaded(held.token, entries("1-0 1-1"))) == [], "nobody waits for it any more"


def test_in_isr_who_does_not_lead_mends_at_once_whoever_counts() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True)
    bench = isr_kit.following(LOG, tuning=tuning)
    lost = WantEntries(1, Span(at("1-0"), at("1-3")))
    for asks, is_paced in ((N3, False), (N4, True)):
        (read,) = of_kind(bench.receive(asks, lost), effects.Read)
        assert read.paced is is_paced


def test_where_it_is_fetched_a_piece_of_a_snapshot_waits_only_for_a_newcomer() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True)
    snapshot = Snapshot(at("1-4"), 1, 10)
    stored = isr_kit.state(2, 2, replicas=(*THREE, N4), isr_now=THREE[:2])
    bench = isr_kit.new_leader("1-5", stored, base=at("1-4"), snapshot=snapshot, tuning=tuning)
    bench.tell(events.Counted(THREE))
    for asks, is_paced in ((N2, False), (N3, False), (N4, True)):
        (send,) = of_kind(bench.receive(asks, ChunkRequest(2, snapshot, 0)), effects.Send)
        assert (send.message, send.paced) == (ChunkResponse(2, snapshot, 0, 10), is_paced)


def test_in_isr_the_end_of_the_log_is_sent_at_once() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True, message_entries_max=2)
    stored = isr_kit.state(2, 2, replicas=(*THREE, N4), isr_now=THREE)
    bench = isr_kit.new_leader(LOG, stored, tuning=tuning)
    assert offsets_sent(isr_kit.fetch(bench, N4, at("1-3")), N4) == [4, 5]


def expanding() -> tuple[coordinated_kit.Bench, list[Effect]]:
    """A leader with a newcomer that has nothing, and what was ordered when it said so."""
    tuning = msgspec.structs.replace(
        coordinated_kit.TUNING, paced=True, message_entries_max=2, whole_logs=True
    )
    bench = coordinated_kit.leader(LOG, tuning=tuning)
    change = coordinated_kit.expand(N4)
    bench.receive(coordinated_kit.OPERATOR, PrepareReconfigurationRequest(3, change))
    bench.persist()
    head = bench.replica.log.head.offset
    bench.receive(N4, AddEntryResponse(3, False, head, -1, -1, NOWHERE))
    return bench, bench.receive(N4, AddEntryResponse(3, True, -1, -1, -1, NOWHERE))


def test_in_coordinated_whoever_is_to_count_waits_its_turn() -> None:
    bench, ordered = expanding()
    assert offsets_sent(ordered, N4) == []
    (read,) = of_kind(ordered, effects.Read)
    assert (read.first, read.paced) == (0, True)
    ordered = bench.tell(events.Loaded(read.token, entries("1-0 1-1 1-2")))
    assert offsets_sent(ordered, N4) == [0, 1]


def test_in_coordinated_one_that_has_come_to_count_waits_for_no_read_any_more() -> None:
    """While one is open, the leader's heart does not beat for it."""
    bench, ordered = expanding()
    (held,) = of_kind(ordered, effects.Read)
    assert not sent(bench.wake(), N4)
    ordered = bench.tell(events.Counted((*THREE, N4)))
    assert not of_kind(ordered, effects.Read), "it is all in memory"
    assert offsets_sent(ordered, N4)[:2] == [0, 1]
    (beat,) = sent(bench.wake(), N4)
    assert beat.headers == ()
    assert bench.tell(events.Loaded(held.token, entries("1-0 1-1"))) == []
