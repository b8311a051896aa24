"""What a producer hears of batches that come too early; whatever is refused, it keeps its numbers."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header, partition_of
from quorate.host.producing import Answer, Desk, Leading
from quorate.kafka import retrying
from quorate.kafka.retrying import Retrying
from quorate.machine.producers import SEQUENCES_COUNT, Numbered, Producers

PARTITION, OTHER = partition_of(bytes(16), 0), partition_of(bytes(16), 1)
PRODUCER = 9
AGAIN = (Outcome.NOT_LEADER, Outcome.UNKNOWN, Outcome.BUSY, Outcome.FULL, Outcome.ROLLED_BACK)


def numbers(first: int, last: int | None = None, *, epoch: int = 0) -> Numbered:
    return Numbered(PRODUCER, epoch, first, first if last is None else last)


def heard(memory: Retrying, first: int, outcome: Outcome = Outcome.OUT_OF_ORDER) -> Outcome:
    return memory.judged(PARTITION, numbers(first), outcome)


@pytest.mark.parametrize("outcome", AGAIN)
def test_what_is_behind_a_batch_that_must_come_again_comes_too_early(outcome: Outcome) -> None:
    memory = Retrying()
    assert heard(memory, 5) is Outcome.OUT_OF_ORDER
    assert heard(memory, 1, outcome) is outcome
    assert [heard(memory, sequence) for sequence in (0, 1, 2, 5)] == [
        Outcome.OUT_OF_ORDER,
        Outcome.OUT_OF_ORDER,
        Outcome.BUSY,
        Outcome.BUSY,
    ]
    assert memory.judged(OTHER, numbers(2), Outcome.OUT_OF_ORDER) is Outcome.OUT_OF_ORDER
    assert memory.judged(PARTITION, numbers(2, epoch=1), Outcome.OUT_OF_ORDER) is Outcome.OUT_OF_ORDER


@pytest.mark.parametrize("outcome", [Outcome.SETTLED, Outcome.DUPLICATE])
def test_a_batch_that_is_there_leaves_the_rest_to_come(outcome: Outcome) -> None:
    """The first came again before those behind it did."""
    memory = Retrying()
    for sequence in (1, 2, 3):
        heard(memory, sequence, Outcome.BUSY)
    assert heard(memory, 0, outcome) is outcome
    assert heard(memory, 2) is Outcome.BUSY, "an answer of an older one changes nothing"
    assert heard(memory, 1, outcome) is outcome
    assert heard(memory, 2) is Outcome.OUT_OF_ORDER, "it is next"
    assert heard(memory, 3) is Outcome.BUSY
    assert heard(memory, 3, outcome) is outcome
    assert heard(memory, 5) is Outcome.OUT_OF_ORDER, "nothing is left"


def test_whoever_came_too_early_must_come_again_itself() -> None:
    memory = Retrying()
    heard(memory, 1, Outcome.BUSY)
    assert heard(memory, 2) is Outcome.BUSY
    heard(memory, 1, Outcome.SETTLED)
    assert heard(memory, 3) is Outcome.BUSY


def test_sequences_go_round() -> None:
    memory = Retrying()
    end = SEQUENCES_COUNT - 1
    memory.judged(PARTITION, numbers(end - 1, 0), Outcome.BUSY)
    heard(memory, 1, Outcome.BUSY)
    assert heard(memory, 2) is Outcome.BUSY
    assert heard(memory, end - 2) is Outcome.OUT_OF_ORDER
    memory.judged(PARTITION, numbers(end - 1, 0), Outcome.SETTLED)
    assert heard(memory, 1) is Outcome.OUT_OF_ORDER
    assert heard(memory, 2) is Outcome.BUSY


def test_a_new_epoch_takes_the_place_of_the_old_one() -> None:
    memory = Retrying()
    heard(memory, 7, Outcome.BUSY)
    memory.judged(PARTITION, numbers(0, epoch=1), Outcome.SETTLED)
    assert heard(memory, 8) is Outcome.OUT_OF_ORDER


def test_whoever_was_remembered_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "REMEMBERED_COUNT_MAX", 1)
    memory = Retrying()
    memory.judged(OTHER, numbers(1), Outcome.BUSY)
    heard(memory, 1, Outcome.BUSY)
    assert memory.judged(OTHER, numbers(2), Outcome.OUT_OF_ORDER) is Outcome.OUT_OF_ORDER
    assert heard(memory, 2) is Outcome.BUSY


# ---- a producer, its connections, and a leader that refuses as it pleases ----

BATCHES_COUNT = 30
UNDER_WAY_MAX = 5


class Leader:
    """A desk and a log, in which one more batch settles now and then."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.epoch = 1
        self.known = Producers()
        self.desk = Desk(self.known)
        self.appended: deque[tuple[int, Answer]] = deque()
        self.settled: list[int] = []

    def propose(self, sequence: int, answer: Answer) -> None:
        chance = self.rng.random()
        if chance < 0.2:
            answer(Reply(0, self.rng.choice((Outcome.BUSY, Outcome.FULL, Outcome.NOT_LEADER))))
            return
        leading = Leading(1, self.epoch, first=0, applied=len(self.settled))
        land = self.desk.admit(0, numbers(sequence), answer, leading)
        if land is not None and chance < 0.3:
            land(Reply(0, Outcome.BUSY))
        elif land is not None:
            self.appended.append((sequence, land))

    def settle_one(self) -> None:
        if self.appended:
            sequence, land = self.appended.popleft()
            self._settle(sequence)
            land(Reply(0, Outcome.SETTLED, len(self.settled)))

    def begin_another_leadership(self) -> None:
        """Of the same node: what is under way is settled, up to some batch, and nobody is told so."""
        kept = self.rng.randint(0, len(self.appended))
        doubted = list(self.appended)
        self.appended.clear()
        for sequence, _ in doubted[:kept]:
            self._settle(sequence)
        for _, land in doubted:
            land(Reply(0, Outcome.UNKNOWN))
        self.epoch += 1

    def _settle(self, sequence: int) -> None:
        self.settled.append(sequence)
        content = encode_records(
            [(None, b"x")], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
        )
        self.known.settle(Header(self.epoch, len(self.settled), 1, len(content)), 0, content)


class Producer:
    """Several batches under way on one connection; any that must come again is sent again, oldest first."""

    def __init__(self, rng: Random, leader: Leader) -> None:
        self.rng = rng
        self.leader = leader
        self.unsent = deque(range(BATCHES_COUNT))
        self.connect()

    def connect(self) -> None:
        """Whatever was on its way on the last connection may still arrive, and its answers are for nobody."""
        self.line: deque[int] = deque()
        self.retrying = Retrying()
        self.under_way: list[int] = []

    def send(self) -> None:
        if self.unsent and len(self.under_way) < UNDER_WAY_MAX:
            sequence = self.unsent.popleft()
            self.under_way.append(sequence)
            self.line.append(sequence)

    def reconnect(self) -> None:
        self.unsent = deque(sorted({*self.unsent, *self.under_way}))
        self.connect()

    def arrive(self, line: deque[int], memory: Retrying) -> None:
        if not line:
            return
        sequence = line.popleft()

        def answered(reply: Reply) -> None:
            outcome = memory.judged(PARTITION, numbers(sequence), reply.outcome)
            assert outcome in (*AGAIN, Outcome.SETTLED, Outcome.DUPLICATE) or memory is not self.retrying
            if memory is self.retrying:
                self.under_way.remove(sequence)
                if outcome in AGAIN:
                    self.unsent = deque(sorted((*self.unsent, sequence)))

        self.leader.propose(sequence, answered)


@pytest.mark.parametrize("seed", range(300))
def test_a_producer_never_hears_that_it_is_out_of_order(seed: int) -> None:
    rng = Random(seed)
    leader = Leader(rng)
    producer = Producer(rng, leader)
    old_line, old_memory = producer.line, producer.retrying
    while producer.unsent or producer.under_way:
        chance = rng.random()
        if chance < 0.4:
            producer.send()
        elif chance < 0.7:
            producer.arrive(producer.line, producer.retrying)
        elif chance < 0.75:
            producer.arrive(old_line, old_memory)
        elif chance < 0.95:
            leader.settle_one()
        elif chance < 0.98:
            leader.begin_another_leadership()
        else:
            old_line, old_memory = producer.line, producer.retrying
            producer.reconnect()
    assert leader.settled == list(range(BATCHES_COUNT))
