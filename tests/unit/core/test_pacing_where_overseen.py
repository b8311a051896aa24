"""The same where somebody oversees: whoever does not count yet is sent what has been read for it, others now."""

from __future__ import annotations

import msgspec

from quorate.core import effects, events
from quorate.core.coordinated.messages import AddEntryResponse, PrepareReconfigurationRequest
from quorate.core.effects import Effect
from tests.unit.core import coordinated_kit, isr_kit
from tests.unit.core.kit import N2, N4, NOWHERE, THREE, Member, at, entries, of_kind, sent

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


def test_in_isr_the_end_of_the_log_is_sent_at_once() -> None:
    tuning = msgspec.structs.replace(isr_kit.TUNING, paced=True, message_entries_max=2)
    stored = isr_kit.state(2, 2, replicas=(*THREE, N4), isr_now=THREE)
    bench = isr_kit.new_leader(LOG, stored, tuning=tuning)
    assert offsets_sent(isr_kit.fetch(bench, N4, at("1-3")), N4) == [4, 5]


def test_in_coordinated_whoever_is_to_count_waits_its_turn() -> None:
    tuning = msgspec.structs.replace(
        coordinated_kit.TUNING, paced=True, message_entries_max=2, whole_logs=True
    )
    bench = coordinated_kit.leader(LOG, tuning=tuning)
    change = coordinated_kit.expand(N4)
    bench.receive(coordinated_kit.OPERATOR, PrepareReconfigurationRequest(3, change))
    bench.persist()
    head = bench.replica.log.head.offset
    bench.receive(N4, AddEntryResponse(3, False, head, -1, -1, NOWHERE))
    ordered = bench.receive(N4, AddEntryResponse(3, True, -1, -1, -1, NOWHERE))
    assert offsets_sent(ordered, N4) == []
    (read,) = of_kind(ordered, effects.Read)
    assert (read.first, read.paced) == (0, True)
    ordered = bench.tell(events.Loaded(read.token, entries("1-0 1-1 1-2")))
    assert offsets_sent(ordered, N4) == [0, 1]
