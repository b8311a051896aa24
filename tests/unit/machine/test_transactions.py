"""The coordinator of transactions: every rule of plain and joint ones, as commands and what they come to."""

from __future__ import annotations

import pytest

from quorate.core.entry import Header
from quorate.machine import joint_transactions
from quorate.machine.commanded import commands_batch
from quorate.machine.transaction_words import (
    EPOCH_EXHAUSTED,
    AbortJoint,
    AddPartitions,
    BeginProducer,
    CommitJoint,
    EndPlain,
    Enlist,
    Forget,
    Mark,
    Marked,
    OpenAttempt,
    Part,
    Phase,
    Renew,
    Result,
    Seal,
    TimeOut,
    Verdict,
)
from quorate.machine.transactions import Transactions

HERE, THERE = b"h" * 20, b"t" * 20
NAME, APP = "payments", "query-1"


class Coordinator(Transactions):
    """With short words for what clients do."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh = 100
        self.now_ms = 1000

    def begin(self, producer_id: int = -1, epoch: int = -1, *, timeout_ms: int = 60_000) -> Result:
        self.fresh += 1
        return self.apply(BeginProducer(NAME, self.now_ms, timeout_ms, self.fresh, producer_id, epoch))

    def add(self, producer: Result, *partitions: bytes) -> Verdict:
        command = AddPartitions(NAME, producer.producer_id, producer.epoch, partitions, self.now_ms)
        return self.apply(command).verdict

    def end(self, producer: Result, *, commit: bool) -> Verdict:
        command = EndPlain(NAME, producer.producer_id, producer.epoch, commit, self.now_ms)
        return self.apply(command).verdict

    def mark_all(self) -> list[tuple[int, int, bool]]:
        """As if every marker were written; (producer id, epoch, commit) of those that ended."""
        ended = [(producer_id, each.epoch, each.commit) for producer_id, each in self.endings()]
        marks = [
            Mark(producer_id, each.number, partition)
            for producer_id, each in self.endings()
            for partition in each.partitions
        ]
        self.apply(Marked(tuple(marks)))
        assert not list(self.endings())
        return ended

    def open(self, number: int, run: str = "run-1", *, task: int = 0, timeout_ms: int = 60_000) -> Result:
        self.fresh += 1
        return self.apply(OpenAttempt(APP, number, run, task, 0, timeout_ms, self.fresh, self.now_ms))

    def enlist(self, attempt: Result, partition: bytes = HERE) -> Verdict:
        return self.apply(Enlist(APP, attempt.producer_id, attempt.epoch, partition, self.now_ms)).verdict

    def commit(self, number: int, *attempts: Result, run: str = "run-1", where: bytes = HERE) -> Result:
        parts = tuple(Part(attempt.producer_id, (where,)) for attempt in attempts)
        sealed = self.apply(Seal(APP, number, run, parts, self.now_ms))
        if sealed.verdict is not Verdict.DONE:
            return sealed
        return self.apply(CommitJoint(APP, number, run, parts, self.now_ms))

    def abort(self, number: int, run: str = "run-1") -> Verdict:
        return self.apply(AbortJoint(APP, number, run, self.now_ms)).verdict

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(TimeOut(self.now_ms))


# ---- plain ----


def test_a_transaction_goes_from_its_first_partition_to_its_markers() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin()
    assert (producer.verdict, producer.epoch) == (Verdict.DONE, 0)
    assert coordinator.end(producer, commit=True) is Verdict.BAD_STATE, "nothing was begun"
    assert coordinator.add(producer, HERE, THERE) is Verdict.DONE
    assert coordinator.add(producer, HERE) is Verdict.DONE
    assert coordinator.may_write(NAME, producer.producer_id, 0, HERE) is Verdict.DONE
    assert coordinator.may_write(NAME, producer.producer_id, 0, b"e" * 20) is Verdict.BAD_STATE
    assert coordinator.end(producer, commit=True) is Verdict.DONE
    [(producer_id, ending)] = coordinator.endings()
    assert (producer_id, ending.commit, ending.partitions) == (producer.producer_id, True, [HERE, THERE])
    assert coordinator.add(producer, HERE) is Verdict.CONCURRENT, "the last one is not over"
    assert coordinator.may_write(NAME, producer.producer_id, 0, HERE) is Verdict.CONCURRENT
    coordinator.apply(Marked((Mark(producer_id, ending.number, HERE),)))
    assert coordinator.add(producer, HERE) is Verdict.CONCURRENT
    coordinator.apply(Marked((Mark(producer_id, ending.number, THERE),)))
    known = coordinator.plain(NAME)
    assert known is not None
    assert known.phase is Phase.COMMITTED
    assert coordinator.add(producer, HERE) is Verdict.DONE


def test_the_end_of_a_transaction_is_said_again_and_never_otherwise() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin()
    coordinator.add(producer, HERE)
    assert coordinator.end(producer, commit=True) is Verdict.DONE
    assert coordinator.end(producer, commit=True) is Verdict.DONE
    assert coordinator.end(producer, commit=False) is Verdict.BAD_STATE
    coordinator.mark_all()
    assert coordinator.end(producer, commit=True) is Verdict.DONE
    assert coordinator.end(producer, commit=False) is Verdict.BAD_STATE


def test_a_marker_of_another_transaction_ends_nothing() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin()
    for _ in range(2):
        coordinator.add(producer, HERE)
        coordinator.end(producer, commit=True)
        [(producer_id, ending)] = coordinator.endings()
        coordinator.apply(Marked((Mark(producer_id, ending.number - 1, HERE),)))
        assert coordinator.is_ending(producer_id)
        coordinator.mark_all()


def test_a_new_producer_aborts_and_fences_the_old_one() -> None:
    coordinator = Coordinator()
    old = coordinator.begin()
    coordinator.add(old, HERE)
    assert coordinator.begin().verdict is Verdict.CONCURRENT
    assert coordinator.add(old, THERE) is Verdict.FENCED
    assert coordinator.end(old, commit=True) is Verdict.FENCED
    assert coordinator.begin().verdict is Verdict.CONCURRENT, "its marker is not written"
    assert coordinator.mark_all() == [(old.producer_id, old.epoch + 1, False)]
    new = coordinator.begin()
    assert (new.verdict, new.producer_id) == (Verdict.DONE, old.producer_id)
    assert new.epoch > old.epoch + 1
    assert coordinator.begin(old.producer_id, old.epoch).verdict is Verdict.FENCED
    assert coordinator.add(old, HERE) is Verdict.FENCED


def test_a_time_out_aborts_under_an_epoch_that_only_its_producer_can_ask_for() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin(timeout_ms=5000)
    coordinator.add(producer, HERE)
    assert coordinator.deadline_ms() == 6000
    coordinator.pass_time(4999)
    assert not list(coordinator.endings())
    coordinator.pass_time(1)
    assert coordinator.end(producer, commit=True) is Verdict.FENCED
    assert coordinator.begin(producer.producer_id, producer.epoch).verdict is Verdict.CONCURRENT
    assert coordinator.mark_all() == [(producer.producer_id, producer.epoch + 1, False)]
    again = coordinator.begin(producer.producer_id, producer.epoch)
    assert (again.verdict, again.epoch) == (Verdict.DONE, producer.epoch + 1)
    assert coordinator.begin(producer.producer_id, producer.epoch) == again, "an answer may be lost"


def test_a_producer_that_goes_on_gets_the_next_epoch_once() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin()
    next_one = coordinator.begin(producer.producer_id, producer.epoch)
    assert next_one.epoch == producer.epoch + 1
    assert coordinator.begin(producer.producer_id, producer.epoch) == next_one
    assert coordinator.add(next_one, HERE) is Verdict.DONE
    assert coordinator.begin(producer.producer_id, producer.epoch).verdict is Verdict.FENCED


def test_an_exhausted_epoch_means_another_producer_id() -> None:
    coordinator = Coordinator()
    producer = coordinator.begin()
    known = coordinator.plain(NAME)
    assert known is not None
    known.epoch = EPOCH_EXHAUSTED
    fresh = coordinator.begin()
    assert fresh.producer_id != producer.producer_id
    assert fresh.epoch == 0


# ---- joint ----


def test_a_commit_publishes_what_it_lists_and_aborts_the_rest() -> None:
    coordinator = Coordinator()
    winner, loser, earlier, later = (coordinator.open(number) for number in (4, 4, 3, 5))
    for attempt in (winner, loser, earlier, later):
        assert coordinator.enlist(attempt) is Verdict.DONE
    assert coordinator.commit(4, winner).verdict is Verdict.DONE
    assert {(each, commit) for each, _, commit in coordinator.mark_all()} == {
        (winner.producer_id, True),
        (loser.producer_id, False),
        (earlier.producer_id, False),
    }
    assert coordinator.enlist(later, THERE) is Verdict.DONE, "a later number goes on"
    for attempt in (winner, loser, earlier):
        assert coordinator.enlist(attempt, THERE) is Verdict.BAD_STATE
        assert coordinator.may_write(APP, attempt.producer_id, 0, HERE) is Verdict.BAD_PRODUCER
    assert coordinator.open(4).verdict is Verdict.ALREADY_IN
    assert coordinator.open(2).verdict is Verdict.ALREADY_IN


def test_a_repeated_number_is_already_in() -> None:
    coordinator = Coordinator()
    attempt = coordinator.open(4)
    coordinator.enlist(attempt)
    coordinator.commit(4, attempt)
    again = coordinator.commit(4, attempt)
    assert (again.verdict, again.last) == (Verdict.ALREADY_IN, 4)
    assert coordinator.abort(4) is Verdict.ALREADY_IN, "an abort never undoes a commit"
    another = coordinator.commit(3, run="run-2")
    assert another.verdict is Verdict.ALREADY_IN


def test_a_listed_part_that_timed_out_fails_the_whole_commit() -> None:
    coordinator = Coordinator()
    slow = coordinator.open(1, timeout_ms=5000)
    quick = coordinator.open(1)
    coordinator.enlist(slow)
    coordinator.enlist(quick)
    coordinator.pass_time(5000)
    refused = coordinator.commit(1, quick, slow)
    assert (refused.verdict, refused.producer_id) == (Verdict.PART_GONE, slow.producer_id)
    assert coordinator.mark_all() == [(slow.producer_id, 1, False)]
    assert coordinator.commit(1, quick).verdict is Verdict.DONE


def test_an_attempt_that_is_renewed_does_not_time_out() -> None:
    coordinator = Coordinator()
    slow = coordinator.open(1, timeout_ms=5000)
    coordinator.now_ms += 4000
    renewal = Renew(APP, "run-1", (slow.producer_id,), coordinator.now_ms)
    assert coordinator.apply(renewal).verdict is Verdict.DONE
    coordinator.pass_time(4000)
    assert coordinator.apply(renewal).verdict is Verdict.DONE
    coordinator.pass_time(5000)
    assert coordinator.apply(renewal).verdict is Verdict.PART_GONE


def test_between_seal_and_commit_nobody_adds_and_a_time_out_wins() -> None:
    coordinator = Coordinator()
    attempt = coordinator.open(1, timeout_ms=5000)
    coordinator.enlist(attempt)
    parts = (Part(attempt.producer_id, (HERE,)),)
    unsealed = coordinator.apply(CommitJoint(APP, 1, "run-1", parts, coordinator.now_ms))
    assert unsealed.verdict is Verdict.PART_GONE
    assert coordinator.apply(Seal(APP, 1, "run-1", parts, coordinator.now_ms)).verdict is Verdict.DONE
    assert coordinator.enlist(attempt, THERE) is Verdict.BAD_STATE
    assert coordinator.may_write(APP, attempt.producer_id, 0, HERE) is Verdict.BAD_STATE
    coordinator.pass_time(5000)
    late = coordinator.apply(CommitJoint(APP, 1, "run-1", parts, coordinator.now_ms))
    assert late.verdict is Verdict.PART_GONE


def test_what_an_attempt_wrote_elsewhere_is_not_published_under_another_name() -> None:
    coordinator = Coordinator()
    attempt = coordinator.open(1)
    coordinator.enlist(attempt, HERE)
    assert coordinator.commit(1, attempt, where=THERE).verdict is Verdict.PART_UNLISTED


def test_a_new_run_fences_all_earlier_ones() -> None:
    coordinator = Coordinator()
    old = coordinator.open(1, "run-1")
    coordinator.enlist(old)
    new = coordinator.open(1, "run-2")
    assert new.verdict is Verdict.DONE
    assert coordinator.mark_all() == [(old.producer_id, 1, False)]
    assert coordinator.open(2, "run-1").verdict is Verdict.RUN_FENCED
    assert coordinator.commit(1, old, run="run-1").verdict is Verdict.RUN_FENCED
    assert coordinator.abort(1, "run-1") is Verdict.RUN_FENCED
    assert coordinator.commit(1, old, run="run-2").verdict is Verdict.PART_GONE
    coordinator.enlist(new)
    assert coordinator.commit(1, new, run="run-2").verdict is Verdict.DONE


def test_a_number_that_was_given_up_is_for_the_next_run() -> None:
    coordinator = Coordinator()
    attempt = coordinator.open(1)
    coordinator.enlist(attempt)
    assert coordinator.abort(1) is Verdict.DONE
    assert coordinator.abort(1) is Verdict.DONE
    assert coordinator.mark_all() == [(attempt.producer_id, 1, False)]
    assert coordinator.open(1).verdict is Verdict.NUMBER_ABORTED
    assert coordinator.commit(1).verdict is Verdict.NUMBER_ABORTED
    assert coordinator.open(1, "run-2").verdict is Verdict.DONE


def test_a_number_is_given_up_before_its_first_attempt_is_opened() -> None:
    """Of a run that ends early, the abort may overtake an attempt: nobody else would end that one in time."""
    coordinator = Coordinator()
    assert coordinator.abort(1) is Verdict.DONE
    assert coordinator.open(1).verdict is Verdict.NUMBER_ABORTED
    assert coordinator.open(2).verdict is Verdict.DONE


def test_a_batch_of_nothing_is_a_number_like_any_other() -> None:
    coordinator = Coordinator()
    assert coordinator.commit(7).verdict is Verdict.DONE
    assert coordinator.commit(7).verdict is Verdict.ALREADY_IN


def test_there_are_only_so_many_apps_whatever_they_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_transactions, "PRODUCERS_COUNT_MAX", 1)
    coordinator = Coordinator()
    assert coordinator.apply(Seal("other", 0, "run", (), 1)).verdict is Verdict.DONE
    assert coordinator.commit(0).verdict is Verdict.TOO_MANY
    assert coordinator.abort(0) is Verdict.TOO_MANY
    assert coordinator.open(0).verdict is Verdict.TOO_MANY


def test_an_idle_app_is_forgotten_and_one_with_open_attempts_is_not() -> None:
    coordinator = Coordinator()
    coordinator.commit(7)
    coordinator.begin()
    coordinator.apply(Forget(coordinator.now_ms + 999, 1000, 1000))
    assert coordinator.app(APP) is not None
    coordinator.apply(Forget(coordinator.now_ms + 1000, 1000, 1000))
    assert coordinator.app(APP) is None
    assert coordinator.plain(NAME) is None
    coordinator.open(1)
    coordinator.apply(Forget(coordinator.now_ms + 10**9, 1000, 1000))
    assert coordinator.app(APP) is not None


# ---- as a machine ----


def test_a_restored_coordinator_goes_on_where_the_other_was() -> None:
    one = Coordinator()
    producer = one.begin()
    one.add(producer, HERE, THERE)
    one.end(producer, commit=True)
    attempt = one.open(3)
    one.enlist(attempt)
    other = Coordinator()
    other.restore(one.snapshot())
    assert other.snapshot() == one.snapshot()
    other.now_ms = one.now_ms
    assert sorted(other.mark_all()) == sorted(one.mark_all())
    assert other.commit(3, attempt) == one.commit(3, attempt)
    assert other.snapshot() == one.snapshot()


def test_what_a_command_came_to_is_known_by_its_offset() -> None:
    transactions = Transactions()
    payload = commands_batch([BeginProducer(NAME, 1, 1000, 77)])
    transactions.settle(Header(1, 5, 1, len(payload)), 0, payload)
    found = transactions.result(5)
    assert found is not None
    assert (found.producer_id, found.epoch) == (77, 0)
    assert transactions.result(4) is None
