"""Transactions in a partition: what is open, what is stable, what was aborted, and which markers count."""

from __future__ import annotations

import pytest

from quorate.batch import CONTROL, TRANSACTIONAL, BadBatch, encode_control, encode_records, parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header
from quorate.host.producing import Desk, Leading
from quorate.machine.markers import Marker, encode_marker, marker_of
from quorate.machine.producers import Aborted, Numbered, Producers

ONE, OTHER = 5, 6


class Log:
    """A partition's settled log, grown entry by entry."""

    def __init__(self) -> None:
        self.producers = Producers(count_max=2)
        self.end = 0

    def settle(self, payload: bytes, count: int = 1) -> int:
        self.producers.settle(Header(1, self.end, count, len(payload)), 0, payload)
        self.end += count
        return self.end - count

    def write(self, producer_id: int, sequence: int, *, count: int = 1, epoch: int = 0) -> int:
        records = [(None, b"x")] * count
        return self.settle(
            encode_records(
                records,
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            ),
            count,
        )

    def mark(self, producer_id: int, number: int, *, commit: bool, epoch: int = 0) -> int:
        marker = Marker(producer_id, epoch, number, commit)
        return self.settle(encode_marker(marker, coordinator_epoch=3, now_ms=1))

    @property
    def stable(self) -> int:
        return self.producers.stable_end(self.end)


def test_a_marker_is_a_control_batch_that_says_of_which_transaction_it_is() -> None:
    marker = Marker(ONE, 3, 7, commit=True)
    payload = encode_marker(marker, coordinator_epoch=1 << 40, now_ms=5)
    header = parse_batch_header(payload)
    assert header.attributes == CONTROL | TRANSACTIONAL
    assert marker_of(payload) == marker
    with pytest.raises(BadBatch):
        marker_of(encode_control(0, b"12345678901234"))


def test_nothing_is_stable_from_the_first_open_transaction_on() -> None:
    log = Log()
    assert log.stable == 0
    log.write(ONE, 0, count=3)
    log.write(OTHER, 0)
    log.write(ONE, 3)
    assert log.stable == 0
    log.mark(ONE, 1, commit=True)
    assert log.stable == 3
    log.mark(OTHER, 1, commit=False)
    assert log.stable == log.end


def test_aborted_transactions_are_found_by_the_range_that_is_read() -> None:
    log = Log()
    log.write(ONE, 0)  # 0
    log.write(OTHER, 0)  # 1
    log.mark(ONE, 1, commit=False)  # 2
    log.write(ONE, 1)  # 3
    log.mark(OTHER, 1, commit=False)  # 4
    log.mark(ONE, 2, commit=True)  # 5
    log.write(ONE, 2)  # 6
    log.mark(ONE, 3, commit=False)  # 7
    found = log.producers.aborted(first=0, end=log.end)
    assert found == [Aborted(ONE, 0, 2, 1), Aborted(OTHER, 1, 4, 3), Aborted(ONE, 6, 7, 8)]
    assert log.producers.aborted(first=3, end=6) == [Aborted(OTHER, 1, 4, 3)]
    assert log.producers.aborted(first=0, end=1) == [Aborted(ONE, 0, 2, 1)]
    assert log.producers.aborted(first=5, end=6) == []
    log.producers.expire(4)
    assert log.producers.aborted(first=0, end=log.end) == [Aborted(ONE, 6, 7, 8)]


def test_all_of_it_survives_a_snapshot() -> None:
    log, other = Log(), Producers(count_max=2)
    log.write(ONE, 0)
    log.mark(ONE, 1, commit=False)
    log.write(OTHER, 0, count=2)
    other.restore(log.producers.snapshot())
    assert other.stable_end(log.end) == log.stable == 2
    assert other.aborted(first=0, end=9) == log.producers.aborted(first=0, end=9)
    assert other.snapshot() == log.producers.snapshot()


def test_an_open_transaction_is_not_forgotten() -> None:
    log = Log()
    log.write(ONE, 0)
    for producer_id in range(10, 20):
        log.mark(producer_id, 1, commit=True)
    assert log.producers.is_open(ONE)
    assert log.producers.get(ONE) is not None
    assert len(log.producers) == 3


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    log = Log()
    log.write(ONE, 0)
    log.mark(ONE, 1, commit=True)
    log.write(ONE, 1)
    log.mark(ONE, 1, commit=True)
    assert log.producers.is_open(ONE)


class Leader:
    """A leader's desk over a log; what it admits is settled when the test says so."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.desk = Desk(log.producers)
        self.replies: list[Reply] = []
        self.epoch = 1

    @property
    def leading(self) -> Leading:
        return Leading(1, self.epoch, first=0, applied=self.log.end)

    def vouch(self, batch: Numbered) -> bool:
        question = self.desk.vouching.ask(batch.producer_id, self.epoch)
        return self.desk.vouching.answered(batch, question, is_open=True)

    def offer(self, batch: Numbered | Marker) -> Outcome | None:
        """None: it is appended."""
        self.replies.clear()
        self.desk.admit(1, batch, self.replies.append, self.leading)
        return self.replies[0].outcome if self.replies else None


FIRST = Numbered(ONE, 0, 0, 0, is_transactional=True)
SECOND = Numbered(ONE, 0, 1, 1, is_transactional=True)


def started() -> Leader:
    log = Log()
    log.settle(encode_records([(None, b"x")]))
    return Leader(log)


def test_a_leader_takes_nothing_of_a_transaction_that_nobody_vouches_for() -> None:
    leader = started()
    assert leader.offer(FIRST) is Outcome.NOT_OPEN
    assert leader.vouch(FIRST)
    assert leader.offer(FIRST) is None
    assert leader.offer(SECOND) is None


def test_every_leader_asks_for_itself() -> None:
    leader = started()
    leader.vouch(FIRST)
    leader.log.write(ONE, 0)
    assert leader.offer(SECOND) is None
    leader.epoch = 2
    assert leader.offer(SECOND) is Outcome.NOT_OPEN


def test_a_marker_overtakes_the_answer_of_the_coordinator() -> None:
    leader = started()
    question = leader.desk.vouching.ask(ONE, leader.epoch)
    assert leader.offer(Marker(ONE, 0, 1, commit=True)) is None
    assert not leader.desk.vouching.answered(FIRST, question, is_open=True)
    assert leader.offer(FIRST) is Outcome.NOT_OPEN


def test_a_marker_that_is_settled_is_not_appended_again() -> None:
    leader = started()
    leader.log.write(ONE, 0)
    leader.log.mark(ONE, 1, commit=True)
    assert leader.offer(Marker(ONE, 0, 1, commit=True)) is Outcome.SETTLED
    assert leader.offer(Marker(ONE, 0, 2, commit=True)) is None


def test_an_abort_of_the_coordinator_fences_the_producer() -> None:
    leader = started()
    leader.log.write(ONE, 0)
    leader.log.mark(ONE, 1, commit=False, epoch=1)
    leader.vouch(SECOND)
    assert leader.offer(SECOND) is Outcome.FENCED
    again = Numbered(ONE, 1, 0, 0, is_transactional=True)
    leader.vouch(again)
    assert leader.offer(again) is None


def test_a_plain_batch_does_not_get_into_a_transaction() -> None:
    leader = started()
    leader.log.write(ONE, 0)
    assert leader.offer(Numbered(ONE, 0, 1, 1)) is Outcome.OUT_OF_ORDER


def test_what_is_counted_is_complete() -> None:
    leader = started()
    leader.vouch(FIRST)
    assert leader.desk.counted(ONE, leader.leading) == 0
    assert leader.offer(FIRST) is Outcome.NOT_OPEN, "whoever is counted is asked about again"
    leader.vouch(FIRST)
    assert leader.offer(FIRST) is None
    assert leader.desk.counted(ONE, leader.leading) is None, "it is under way"
