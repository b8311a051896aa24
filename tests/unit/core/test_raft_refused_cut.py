"""A cut that the disk cannot carry out, because the place to cut at turned out to be damaged."""

from __future__ import annotations

from quorate.core import effects, events
from quorate.core.entry import Header, Span
from quorate.core.raft.messages import AppendEntries
from tests.unit.core.kit import N2, Bench, at, of_kind


def test_what_was_handed_out_is_not_given_up() -> None:
    """Settled up to 3-2, to be cut there, and everything above 1-0 is damaged."""
    bench = Bench(log="1-0 3-1 3-2 3-3", epoch=3, commit=0)
    ordered = bench.receive(N2, AppendEntries(5, at("3-2"), 2, (Header(5, 3, size=10),)))
    (cut,) = of_kind(ordered, effects.Cut)
    assert cut.to == at("3-2")
    assert effects.Commit(2) in ordered, "handed out, while the order to cut is on its way"
    bench.tell(events.Damaged(Span(at("1-0"), at("3-3"))))
    ordered = bench.tell(events.Failed(cut.io, "cannot be found", at("3-3")))
    replica = bench.replica
    assert replica.commit == 2, "what is settled stays settled"
    assert replica.log.head == at("3-3"), "nothing was cut: the disk has what it had"
    assert replica.log.faulty == (Span(at("1-0"), at("3-3")),)
    assert replica.flushed_agreement() == 0, "nothing of it is acknowledged before it is mended"
    assert [cut.to for cut in of_kind(ordered, effects.Cut)] == [at("3-3")]
    assert not replica.can_lead()


def test_where_nothing_was_handed_out_it_is_given_up_and_owed() -> None:
    bench = Bench(log="1-0 3-1 3-2 3-3", epoch=3, commit=0)
    ordered = bench.receive(N2, AppendEntries(5, at("3-2"), 0, (Header(5, 3, size=10),)))
    (cut,) = of_kind(ordered, effects.Cut)
    bench.tell(events.Damaged(Span(at("1-0"), at("3-3"))))
    ordered = bench.tell(events.Failed(cut.io, "cannot be found", at("3-3")))
    assert [cut.to for cut in of_kind(ordered, effects.Cut)] == [at("1-0")]
    assert bench.replica.owed >= at("3-3")
    assert bench.replica.log.head == at("1-0")
