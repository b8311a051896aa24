"""Batches of producers with ids, from the proposal to the answer: none twice, none out of order, no holes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from quorate.batch import encode_records, stamp
from quorate.core import raft
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header, Member
from quorate.host import Host, HostSettings, Parcel, ReplicaRecord
from quorate.host.producing import REPETITIONS_WAITING_MAX, Desk, Leading
from quorate.machine.producers import BATCHES_REMEMBERED, Numbered, Producers
from quorate.sim.disk import SimDisk
from quorate.storage.settings import TINY
from tests.unit.host.test_host import PARTITIONS, VOTERS, Trio

PARTITION = PARTITIONS[0]
PRODUCER = 5


def batch(sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    records = [(None, b"%d/%d.%d" % (epoch, sequence, number)) for number in range(count)]
    return encode_records(records, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)


class Producing(Trio):
    """Three nodes and one partition; a node can be cut off, and a leader takes one proposal at a time."""

    def __init__(self) -> None:
        self.cut_off: set[int] = set()
        super().__init__()

    def start(self, node: int) -> Host:
        disk = SimDisk(Random(node), lambda _, finish: self.waiting.append(finish))
        settings = HostSettings(store=TINY, raft=raft.Tuning(uncommitted_entries_max=2))

        def send(target: int, parcel: Parcel) -> None:
            if not {node, target} & self.cut_off:
                self.send(target, parcel)

        host = Host(node, disk, settings, send=send, rng=Random(node))
        host.open(self.now)
        host.add(self.now, PARTITION, ReplicaRecord("raft", Member(node, 1), VOTERS))
        return host

    def ask(self, node: int, payload: bytes) -> list[Reply]:
        """Propose, and let nothing happen; the list gets the answer."""
        replies: list[Reply] = []
        self.hosts[node].propose(self.now, PARTITION, [payload], replies.append)
        return replies

    def tell(self, node: int, payload: bytes) -> tuple[Outcome, int]:
        replies = self.ask(node, payload)
        self.settle()
        (reply,) = replies
        return reply.outcome, reply.offset

    def led_by(self, *nodes: int) -> int:
        """Wait for one of these to lead, with an entry of its own epoch settled and applied."""

        def ready(node: int) -> bool:
            hosted = self.hosts[node].hosted[PARTITION]
            first = hosted.replica.leads_from
            return first is not None and hosted.applied.offset >= first

        self.run(lambda: any(map(ready, nodes)))
        return next(filter(ready, nodes))


@pytest.fixture
def trio() -> Producing:
    return Producing()


@pytest.fixture
def leader(trio: Producing) -> int:
    return trio.led_by(1, 2, 3)


def test_batches_in_sequence_are_settled_one_behind_the_other(trio: Producing, leader: int) -> None:
    answers = [trio.tell(leader, batch(0, count=2)), trio.tell(leader, batch(2)), trio.tell(leader, batch(3))]
    assert answers == [(Outcome.SETTLED, 1), (Outcome.SETTLED, 3), (Outcome.SETTLED, 4)]


def test_a_settled_batch_that_comes_again_has_the_offset_that_it_has(trio: Producing, leader: int) -> None:
    for sequence in range(3):
        trio.tell(leader, batch(sequence))
    assert trio.tell(leader, batch(1)) == (Outcome.SETTLED, 2)
    assert trio.tell(leader, batch(3)) == (Outcome.SETTLED, 4)
    assert trio.read(leader, PARTITION) == [b"0/0.0", b"0/1.0", b"0/2.0", b"0/3.0"]


def test_a_batch_under_way_that_comes_again_is_answered_with_the_first(trio: Producing, leader: int) -> None:
    first, again = trio.ask(leader, batch(0)), trio.ask(leader, batch(0))
    assert (first, again) == ([], [])
    trio.settle()
    assert [reply.outcome for reply in first + again] == [Outcome.SETTLED] * 2
    assert [reply.offset for reply in first + again] == [1, 1]
    assert first[0].request != again[0].request
    assert trio.read(leader, PARTITION) == [b"0/0.0"]


def test_a_repetition_right_behind_the_first_does_not_hold_that_up(trio: Producing, leader: int) -> None:
    """What is told within one turn goes out together; the repetition itself never gets as far."""
    host = trio.hosts[leader]
    host.begin_turn(trio.now)
    first, again = trio.ask(leader, batch(0)), trio.ask(leader, batch(0))
    host.end_turn()
    trio.settle()
    assert [reply.outcome for reply in first + again] == [Outcome.SETTLED] * 2


@pytest.mark.parametrize(
    ("sequence", "epoch", "count", "outcome"),
    [
        (8, 2, 1, Outcome.SETTLED),
        (9, 2, 1, Outcome.OUT_OF_ORDER),
        (7, 2, 2, Outcome.OUT_OF_ORDER),
        (0, 2, 1, Outcome.DUPLICATE),
        (8, 1, 1, Outcome.FENCED),
        (1, 3, 1, Outcome.OUT_OF_ORDER),
        (0, 3, 1, Outcome.SETTLED),
        (-1, 2, 1, Outcome.OUT_OF_ORDER),
    ],
)
def test_a_batch_is_judged_by_what_is_settled(
    trio: Producing, leader: int, sequence: int, epoch: int, count: int, outcome: Outcome
) -> None:
    """The producer is in its epoch 2 and has sent the sequences 0 to 7, one by one."""
    for earlier in range(8):
        trio.tell(leader, batch(earlier, epoch=2))
    log = trio.hosts[leader].hosted[PARTITION].replica.log
    before = log.head.offset
    assert trio.tell(leader, batch(sequence, epoch=epoch, count=count))[0] is outcome
    assert (log.head.offset > before) == (outcome is Outcome.SETTLED)


def test_a_batch_is_judged_by_what_is_under_way(trio: Producing, leader: int) -> None:
    trio.ask(leader, batch(0, count=2))
    gap, following = trio.ask(leader, batch(3)), trio.ask(leader, batch(2))
    trio.settle()
    assert [reply.outcome for reply in gap] == [Outcome.OUT_OF_ORDER]
    assert [(reply.outcome, reply.offset) for reply in following] == [(Outcome.SETTLED, 3)]


def test_nothing_comes_behind_a_batch_that_was_refused_in_the_same_turn(trio: Producing, leader: int) -> None:
    """There is no room for batch 0; then there is, and batch 1 must not take its place."""
    host = trio.hosts[leader]
    plain = [trio.ask(leader, encode_records([(None, b"%d" % number)])) for number in range(2)]
    held: list[Callable[[], None]] = []
    receive = host.receive
    host.receive = lambda now, parcel: held.append(lambda: receive(now, parcel))  # type: ignore[method-assign]
    trio.settle()
    assert plain == [[], []]
    host.begin_turn(trio.now)
    first = trio.ask(leader, batch(0))
    for arrive in held:
        arrive()
    second = trio.ask(leader, batch(1))
    host.end_turn()
    assert [reply.outcome for replies in plain for reply in replies] == [Outcome.SETTLED] * 2
    assert [reply.outcome for reply in first + second] == [Outcome.BUSY, Outcome.OUT_OF_ORDER]
    host.receive = receive  # type: ignore[method-assign]
    assert trio.tell(leader, batch(0)) == (Outcome.SETTLED, 3)


def test_several_batches_in_one_proposal_are_refused(trio: Producing, leader: int) -> None:
    replies: list[Reply] = []
    trio.hosts[leader].propose(trio.now, PARTITION, [batch(0), batch(1)], replies.append)
    assert [reply.outcome for reply in replies] == [Outcome.OUT_OF_ORDER]


def test_a_leader_is_busy_until_an_entry_of_its_own_epoch_is_settled(trio: Producing) -> None:
    trio.settle()
    trio.hosts[1].tick(10.0)
    replica = trio.hosts[1].hosted[PARTITION].replica
    while replica.leads_from is None:
        trio.waiting.pop(0)()
    (early,) = trio.ask(1, batch(0))
    assert (early.outcome, early.leader) == (Outcome.BUSY, 1)
    trio.settle()
    assert trio.tell(1, batch(0)) == (Outcome.SETTLED, 1)


def test_a_batch_that_was_cut_is_settled_once_when_it_comes_again(trio: Producing, leader: int) -> None:
    assert trio.tell(leader, batch(0)) == (Outcome.SETTLED, 1)
    trio.cut_off = {leader}
    lost, again = trio.ask(leader, batch(1)), trio.ask(leader, batch(1))
    other = trio.led_by(*(node for node in trio.hosts if node != leader))
    outcome, offset = trio.tell(other, batch(1))
    assert outcome is Outcome.SETTLED
    assert trio.tell(other, batch(0)) == (Outcome.SETTLED, 1), "what another leader has settled is known here"
    trio.cut_off = set()
    trio.run(lambda: trio.hosts[leader].hosted[PARTITION].commit >= offset)
    assert [reply.outcome for reply in lost + again] == [Outcome.UNKNOWN] * 2
    trio.cut_off = {other}
    back = trio.led_by(leader, *(node for node in trio.hosts if node not in (leader, other)))
    assert trio.tell(back, batch(1)) == (Outcome.SETTLED, offset)
    assert trio.tell(back, batch(2))[0] is Outcome.SETTLED
    assert trio.read(back, PARTITION) == [b"0/0.0", b"0/1.0", b"0/2.0"]


# ---- the desk alone ----


class Answers(list[Reply]):
    def last(self) -> tuple[Outcome, int]:
        return self[-1].outcome, self[-1].offset


def leading(applied: int, *, epoch: int = 1) -> Leading:
    return Leading(1, epoch, first=0, applied=applied)


def settle(known: Producers, offset: int, sequence: int) -> None:
    payload = batch(sequence)
    known.settle(Header(1, offset, 1, len(payload)), 0, stamp(payload, offset=offset, epoch=1))


def test_a_new_producer_starts_with_zero_unless_it_may_have_been_forgotten() -> None:
    """Otherwise a first batch that was refused would be overtaken by the second, and be missing for ever."""
    known, answers = Producers(count_max=1), Answers()
    desk = Desk(known)
    assert desk.admit(1, Numbered(9, 0, 3, 3), answers.append, leading(0)) is None
    assert answers.last() == (Outcome.OUT_OF_ORDER, -1)
    settle(known, 1, 0)
    another = encode_records([(None, b"x")], producer_id=PRODUCER + 1, producer_epoch=0, base_sequence=0)
    known.settle(Header(1, 2, 1, len(another)), 0, another)
    assert known.may_have_forgotten(PRODUCER)
    assert desk.admit(2, Numbered(PRODUCER, 0, 3, 3), answers.append, leading(2)) is not None


def test_a_settled_batch_stays_under_way_until_the_machine_has_applied_it() -> None:
    """A majority can settle what the leader itself has not flushed; its machine is fed later."""
    known, answers = Producers(), Answers()
    desk = Desk(known)
    land = desk.admit(1, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(0))
    assert land is not None
    land(Reply(1, Outcome.SETTLED, offset=1, epoch=1))
    assert desk.admit(2, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(0)) is None
    assert answers.last() == (Outcome.SETTLED, 1)
    assert desk.admit(3, Numbered(PRODUCER, 0, 1, 1), answers.append, leading(0)) is not None
    settle(known, 1, 0)
    assert desk.admit(4, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(1)) is None
    assert answers.last() == (Outcome.SETTLED, 1)


def test_a_batch_of_a_lost_leadership_is_unknown_to_the_next() -> None:
    answers = Answers()
    desk = Desk(Producers())
    land = desk.admit(1, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(0))
    assert land is not None
    land(Reply(1, Outcome.UNKNOWN))
    later = leading(3, epoch=4)
    assert desk.admit(2, Numbered(PRODUCER, 0, 1, 1), answers.append, later) is None
    assert answers.last() == (Outcome.OUT_OF_ORDER, -1)
    assert desk.admit(3, Numbered(PRODUCER, 0, 0, 0), answers.append, later) is not None


def test_not_everybody_can_wait_for_one_batch() -> None:
    answers = Answers()
    desk = Desk(Producers())
    land = desk.admit(0, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(0))
    for request in range(1, REPETITIONS_WAITING_MAX + 2):
        assert desk.admit(request, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(0)) is None
    assert [reply.outcome for reply in answers] == [Outcome.BUSY]
    assert land is not None
    land(Reply(0, Outcome.SETTLED, offset=1))
    assert [reply.request for reply in answers[1:]] == list(range(REPETITIONS_WAITING_MAX + 1))


def test_a_full_memory_says_duplicate_and_a_short_one_does_not() -> None:
    known, answers = Producers(), Answers()
    desk = Desk(known)
    for sequence in range(BATCHES_REMEMBERED + 1):
        settle(known, sequence, sequence)
    desk.admit(1, Numbered(PRODUCER, 0, 0, 0), answers.append, leading(9))
    desk.admit(2, Numbered(PRODUCER, 0, 1, 2), answers.append, leading(9))
    assert [reply.outcome for reply in answers] == [Outcome.DUPLICATE, Outcome.OUT_OF_ORDER]
