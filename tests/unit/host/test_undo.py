"""Machines that change on append: what they have is what the log has, whatever happens to the log meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import commands, effects, events
from quorate.core.entry import NOWHERE, EntryId, Flag, Kind, NoOp, Promote, Rollback, Span
from quorate.host import replicas as replicas_module
from quorate.machine.producers import Producers
from quorate.storage.settings import TINY
from tests.unit.host.puppet import PARTITION, POISON, Stage, Watchful, use_puppet


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    use_puppet(monkeypatch)
    made = Stage()
    made.add()
    return made


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Entries go around the journal, so that after a restart they must be read from their segments."""
    use_puppet(monkeypatch)
    made = Stage(msgspec.structs.replace(TINY, journal_entry_max=1))
    made.add()
    return made


def values(entries: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [value for _, _, value in entries]


@pytest.mark.behaviour("TT-3")
def test_an_appended_entry_is_applied_at_once_and_stands_when_it_is_settled(stage: Stage) -> None:
    stage.take(b"a", b"b")
    assert values(stage.machine.local) == [b"a", b"b"]
    assert stage.machine.settled == []
    stage.settle()
    stage.commit(0)
    assert values(stage.machine.settled) == [b"a"]
    assert values(stage.machine.local) == [b"a", b"b"]
    assert (stage.hosted.applied, stage.hosted.appended) == (EntryId(1, 0), EntryId(1, 1))


@pytest.mark.behaviour("TT-3")
def test_what_is_cut_is_taken_back(stage: Stage) -> None:
    stage.take(b"a", b"b", b"c")
    stage.cut(EntryId(1, 0))
    stage.take(b"d", epoch=2)
    assert values(stage.machine.local) == [b"a", b"d"]
    stage.settle()
    stage.commit(1)
    assert stage.machine.settled == [(1, 0, b"a"), (2, 1, b"d")]


@pytest.mark.behaviour("TT-38")
def test_void_records_are_settled_by_nobody_and_counted_by_nobody(stage: Stage) -> None:
    stage.take(b"a", b"b", NoOp(1), b"c", Rollback(1), b"d")
    assert values(stage.machine.local) == [b"a", b"d"]
    stage.settle()
    stage.commit(5)
    assert values(stage.machine.settled) == [b"a", b"d"]
    counts = stage.hosted.tally.counts
    assert (counts.last, counts.entries, counts.records) == (5, 6, 2)


@pytest.mark.behaviour("TT-22")
def test_after_a_restart_what_is_settled_is_settled_and_the_rest_appended(stage: Stage) -> None:
    stage.take(b"a", b"b", b"c", b"d")
    stage.settle()
    stage.restart()
    stage.commit(1)
    stage.settle()
    assert values(stage.machine.settled) == [b"a", b"b"]
    assert values(stage.machine.local) == [b"a", b"b", b"c", b"d"]
    stage.cut(EntryId(1, 2))
    assert values(stage.machine.local) == [b"a", b"b", b"c"]


@pytest.mark.behaviour("TT-22")
def test_new_entries_wait_behind_those_that_are_read_back(cold: Stage) -> None:
    cold.take(b"a", b"b")
    cold.settle()
    cold.restart()
    assert cold.hosted.feeding
    cold.take(b"c")
    assert cold.machine.local == []
    cold.settle()
    assert values(cold.machine.local) == [b"a", b"b", b"c"]
    cold.take(b"d")
    assert values(cold.machine.local) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("again", [(), (b"x",), (b"x", b"y", b"z")])
def test_what_was_cut_while_it_was_read_is_not_applied(cold: Stage, again: tuple[bytes, ...]) -> None:
    """The read is under way with the old entries, and comes back when others stand in their place."""
    cold.take(b"a", b"b", b"c")
    cold.settle()
    cold.restart()
    assert cold.hosted.feeding
    cold.cut(EntryId(1, 0))
    cold.take(*again, epoch=2)
    cold.settle()
    assert values(cold.machine.local) == [b"a", *again]
    cold.commit(len(again))
    cold.settle()
    assert values(cold.machine.settled) == [b"a", *again]


def test_what_was_cut_while_it_was_read_is_not_settled_in_place_of_what_was(cold: Stage) -> None:
    """Read to be appended, it comes back when other entries of the same offsets are settled already."""
    cold.take(b"a", b"b")
    cold.settle()
    cold.restart()
    held = [cold.jobs.pop(0)]  # The read: by now it is decided what it says.
    assert cold.hosted.feeding
    cold.cut(NOWHERE)
    cold.take(b"x", b"y", epoch=2)
    cold.settle()
    cold.commit(1)
    held[0]()
    cold.settle()
    assert cold.machine.settled == [(2, 0, b"x"), (2, 1, b"y")]


@pytest.mark.parametrize("is_settled", [False, True])
def test_what_was_found_before_the_cut_and_told_after_it_is_not_applied(
    stage: Stage, is_settled: bool
) -> None:
    """The entries are held for the journal only: the read knows at once what it says, and says it later."""
    stage.take(b"a")
    stage.hosted.halted = "for a while"
    stage.take(b"b", b"c", b"d")
    stage.settle()
    stage.host.store._shared.memory.shrink(0)
    stage.host._feeder.resume(stage.hosted)
    assert stage.hosted.feeding
    told = stage.jobs.pop(0)
    stage.cut(EntryId(1, 0))
    stage.take(b"x", epoch=2)
    stage.settle()
    if is_settled:
        stage.commit(1)
    told()
    stage.settle()
    assert stage.machine.local == [(1, 0, b"a"), (2, 1, b"x")]


def test_a_machine_on_its_way_to_a_rollback_takes_back_what_is_void_before_it_settles_more(
    cold: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is being fed from the disk in small pieces, and everything is settled while it is in the midst."""
    from quorate.host import feeder

    monkeypatch.setattr(feeder, "FEED_BYTES_MAX", 1)
    cold.take(b"a", b"b", b"c", Rollback(1), b"d")
    cold.settle()
    cold.restart()
    while cold.hosted.appended.offset < 1:
        cold.jobs.pop(0)()
    assert cold.hosted.appended.offset == 1
    cold.commit(4)
    cold.settle()
    assert values(cold.machine.settled) == [b"a", b"d"]
    assert cold.machine.cuts == [0]


def test_what_is_void_is_not_done_again_where_a_machine_is_taken_back_in_the_midst_of_it(
    cold: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the Rollback, and is told from the disk, piece by piece, what of it is settled; a snapshot is to take
    its place meanwhile, and does not."""
    from quorate.host import feeder

    cold.take(b"a", b"b", b"c", Rollback(1), b"d")
    cold.settle()
    cold.restart()
    cold.settle()
    assert values(cold.machine.local) == [b"a", b"d"]
    monkeypatch.setattr(feeder, "FEED_BYTES_MAX", 1)
    monkeypatch.setattr(cold.host.store, "frames", lambda *_: None)
    cold.commit(4)
    while cold.hosted.applied.offset < 1:
        cold.jobs.pop(0)()
    cold.hosted.take_back(cold.hosted.applied)
    assert values(cold.machine.local) == [b"a"]
    cold.settle()
    assert values(cold.machine.settled) == [b"a", b"d"]


def test_undo_is_bounded_and_the_rest_is_fed_when_more_is_settled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quorate.host import feeder

    monkeypatch.setattr(feeder, "UNDO_OFFSETS_MAX", 2)
    stage.take(b"a", b"b", b"c", b"d")
    assert values(stage.machine.local) == [b"a", b"b"]
    stage.settle()
    stage.commit(0)
    assert values(stage.machine.local) == [b"a", b"b", b"c"]
    stage.take(b"e")
    stage.commit(4)
    assert values(stage.machine.settled) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_failed_order_takes_back_what_it_would_have_brought(cold: Stage) -> None:
    cold.take(b"a")
    cold.settle()
    cold.disk.set_full(True)
    cold.take(b"b")
    assert values(cold.machine.local) == [b"a", b"b"]
    cold.settle()
    assert [failed.head for failed in cold.puppet.of(events.Failed)] == [EntryId(1, 0)]
    cold.cut(EntryId(1, 0))
    assert values(cold.machine.local) == [b"a"]


def test_where_the_logs_end_is_unreadable_nothing_above_the_last_readable_entry_is_kept(stage: Stage) -> None:
    """A cut failed, and what stood there before is back, unreadable: the machine may have something else there."""
    stage.take(b"a", b"b", b"c")
    stage.settle()

    def act(puppet: object) -> list[effects.Effect]:
        stage.puppet.log.faulty = (Span(EntryId(1, 0), EntryId(1, 2)),)
        return [effects.Cut(stage.puppet.next_io(), EntryId(1, 2))]

    stage.do(act)
    assert values(stage.machine.local) == [b"a"]


def test_an_entry_that_cannot_be_applied_stops_the_machine_until_somebody_has_looked(stage: Stage) -> None:
    stage.take(b"a")
    stage.take(POISON, b"b")
    assert stage.puppet.of(events.ApplyFailed) == [events.ApplyFailed(1, "poison")]
    assert values(stage.machine.local) == [b"a"]
    stage.settle()
    stage.commit(2)
    assert stage.machine.settled == []
    stage.cut(EntryId(1, 2))
    stage.take(b"c")
    assert values(stage.machine.local) == [b"a"]


def test_a_machine_that_was_stuck_tries_again_when_its_replica_is_joined_again(stage: Stage) -> None:
    stage.take(b"a", POISON)
    stage.cut(EntryId(1, 0))
    stage.take(b"b", epoch=2)
    assert values(stage.machine.local) == [b"a"]
    stage.host.command(stage.now, PARTITION, commands.JoinAgain, stage.replies.append)
    assert [reply.outcome for reply in stage.replies] == [effects.Outcome.SETTLED]
    assert values(stage.machine.local) == [b"a", b"b"]


def test_of_damaged_settled_entries_one_may_be_a_rollback(stage: Stage) -> None:
    stage.take(b"a", b"b", Rollback(1), b"c")
    stage.settle()
    stage.restart()
    span = Span(EntryId(1, 1), EntryId(1, 2))

    def act(puppet: object) -> list[effects.Effect]:
        stage.puppet.log.mark_faulty(span)
        stage.puppet.log.controls.clear()
        return [effects.Commit(3)]

    stage.do(act)
    stage.settle()
    assert stage.machine.settled == []
    got: list[object] = []
    stage.host.fetch(stage.now, PARTITION, 0, 1 << 20, lambda frames, commit: got.append((frames, commit)))
    stage.settle()
    assert got == [([], 3)]


def test_adding_a_replica_in_a_turn_feeds_nothing_before_the_turn_ends(stage: Stage) -> None:
    """Its record was damaged, and it comes back as another incarnation with the log that is there."""
    stage.take(b"a", b"b")
    stage.settle()
    stage.host.store._logs[PARTITION].state_damaged = True
    record = stage.hosted.record
    del stage.host.hosted[PARTITION]
    stage.host.begin_turn(stage.now)
    stage.host.add(stage.now, PARTITION, record)
    stage.host.persisted(PARTITION, 0)
    assert not stage.hosted.started
    assert stage.machine.local == []
    stage.host.end_turn()
    stage.settle()
    assert stage.hosted.started


@pytest.mark.behaviour("TT-36")
def test_the_machine_says_which_transactions_are_synchronous(stage: Stage) -> None:
    stage.take(b"quick", b"slow")
    flags = [header.flags & Flag.SYNCHRONOUS for header in stage.puppet.log.window]
    assert flags == [0, Flag.SYNCHRONOUS]


@pytest.mark.behaviour("TT-36")
def test_everything_that_is_produced_is_synchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    use_puppet(monkeypatch)
    monkeypatch.setitem(replicas_module.MACHINES, "tables", Producers)
    stage = Stage()
    stage.add()
    assert stage.hosted.undo is None
    stage.take(b"quick", Promote(1, 0))
    flags = [(header.kind, header.flags & Flag.SYNCHRONOUS) for header in stage.puppet.log.window]
    assert flags == [(Kind.RECORDS, Flag.SYNCHRONOUS), (Kind.CONTROL, 0)]


def test_on_logs_of_other_protocols_it_changes_on_settle_only(monkeypatch: pytest.MonkeyPatch) -> None:
    use_puppet(monkeypatch)
    monkeypatch.setattr(replicas_module, "UNDOING", "another")
    room = replicas_module.PROTOCOLS["confirm"]
    room.Config = lambda me, tuning: None
    stage = Stage()
    stage.add()
    assert isinstance(stage.machine, Watchful)
    stage.take(b"a")
    assert stage.machine.local == []
    stage.settle()
    stage.commit(0)
    assert values(stage.machine.settled) == [b"a"]
