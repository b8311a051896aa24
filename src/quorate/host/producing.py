"""Batches of producers with ids: whether the one that arrives is the next, a repetition, or out of order.

What is known of a producer is what is settled (machine/producers.py), and behind that what this leader has
appended itself and not settled yet: its *flights*. Together they are complete once the leader's first entry
of its own epoch is settled and its machine has applied it. What an earlier leader left in the log is settled
then, too, and whatever is not has come through here. Until then a leader is busy. When its leadership ends,
everybody who waits hears *unknown*, and the flights are forgotten with it: whether a batch of theirs is
settled or cut is for the next leader to know, from its own log.

A batch is judged right before the replica is told of it, with nothing in between. If it were judged on
arrival, a later one could slip in after an earlier one was refused, and leave a hole.

Of a transaction, a leader takes batches only once its coordinator has said that it is open (vouching.py). A marker,
which ends it, is taken once; the same one again is answered when the first is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from quorate.core.effects import Outcome, Reply
from quorate.host.vouching import Vouching
from quorate.machine.markers import Marker
from quorate.machine.producers import Numbered, Producers

Answer = Callable[[Reply], None]
Written = Numbered | Marker

REPETITIONS_WAITING_MAX = 16
"""Requests with the same batch that wait for one flight; more are busy."""


class Leading(msgspec.Struct, frozen=True, gc=False):
    """A leader as the desk must know it."""

    node: int
    epoch: int
    first: int
    """The first offset of its epoch."""
    applied: int
    """Its machine knows everything up to here."""


class Flight:
    """A batch that this leader has appended, until the machine knows it."""

    __slots__ = ("answers", "batch", "offset")

    def __init__(self, batch: Written, request: int, answer: Answer) -> None:
        self.batch = batch
        self.offset = -1
        """Its first, once it is settled."""
        self.answers = [(request, answer)]


class Flights:
    """All flights of one leadership, in the order of the log."""

    __slots__ = ("_by_producer", "_epoch", "_order")

    def __init__(self) -> None:
        self._epoch = 0
        self._order: deque[Flight] = deque()
        self._by_producer: dict[int, list[Flight]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def of(self, producer_id: int) -> list[Flight]:
        """Oldest first."""
        return self._by_producer.get(producer_id, [])

    def begin(self, flight: Flight) -> None:
        self._order.append(flight)
        self._by_producer.setdefault(flight.batch.producer_id, []).append(flight)

    def rolled_back(self, flight: Flight) -> None:
        """It has not happened after all. Those behind it neither, and each of them is said by itself."""
        if flight in self._order:
            self._order.remove(flight)
            flights = self._by_producer[flight.batch.producer_id]
            flights.remove(flight)
            if not flights:
                del self._by_producer[flight.batch.producer_id]

    def refused(self, flight: Flight) -> None:
        """The replica did not append it after all; that is said at once, so it is the newest."""
        assert self._order[-1] is flight
        self._order.pop()
        flights = self._by_producer[flight.batch.producer_id]
        flights.pop()
        if not flights:
            del self._by_producer[flight.batch.producer_id]

    def applied(self, epoch: int, offset: int) -> None:
        """The leader of `epoch` has applied everything up to `offset`: its machine knows those flights."""
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch
        order = self._order
        while order and 0 <= order[0].offset <= offset:
            producer_id = order.popleft().batch.producer_id
            flights = self._by_producer[producer_id]
            del flights[0]
            if not flights:
                del self._by_producer[producer_id]

    def forget(self) -> None:
        """The leadership is over."""
        self._order.clear()
        self._by_producer.clear()


class Desk:
    """Judges the batches of producers for one replica."""

    __slots__ = ("_flights", "_known", "vouching")

    def __init__(self, known: Producers) -> None:
        self._known = known
        self._flights = Flights()
        self.vouching = Vouching()

    def admit(self, request: int, batch: Written, answer: Answer, leader: Leading) -> Answer | None:
        """For a batch that is to be appended, whom to tell what became of it. Any other is answered here."""
        if leader.applied < leader.first:
            answer(Reply(request, Outcome.BUSY, epoch=leader.epoch, leader=leader.node))
            return None
        self._flights.applied(leader.epoch, leader.applied)
        for flight in self._flights.of(batch.producer_id):
            if flight.batch == batch:
                self._join(flight, request, answer, leader)
                return None
        producer = self._known.get(batch.producer_id)
        refusal: Outcome | None = None
        if isinstance(batch, Marker):
            self.vouching.end(batch.producer_id)
            if producer is not None and batch.number <= producer.marked:
                refusal = Outcome.SETTLED
        else:
            offset = producer.offset_of(batch) if producer is not None else None
            if offset is not None:
                answer(Reply(request, Outcome.SETTLED, offset, leader.epoch, leader.node))
                return None
            refusal = self._refusal(batch)
            if refusal is None and batch.is_transactional and not self.vouching.vouches(batch, leader.epoch):
                refusal = Outcome.NOT_OPEN
        if refusal is not None:
            answer(Reply(request, refusal, epoch=leader.epoch, leader=leader.node))
            return None
        flight = Flight(batch, request, answer)
        self._flights.begin(flight)
        return lambda reply: self._landed(flight, reply)

    def _join(self, flight: Flight, request: int, answer: Answer, leader: Leading) -> None:
        """The same batch again: it hears what the first hears, when the first does."""
        if flight.offset >= 0:
            answer(Reply(request, Outcome.SETTLED, flight.offset, leader.epoch, leader.node))
        elif len(flight.answers) > REPETITIONS_WAITING_MAX:
            answer(Reply(request, Outcome.BUSY, epoch=leader.epoch, leader=leader.node))
        else:
            flight.answers.append((request, answer))

    def _refusal(self, batch: Numbered) -> Outcome | None:
        """Why this batch is not the next one of its producer; None if it is."""
        producer = self._known.get(batch.producer_id)
        place = self._place(batch.producer_id)
        if place is None:
            # A new producer starts with 0, too: its first batch may be on its way, refused here or lost with
            # an earlier leader. Only of one that was forgotten nobody knows where it is.
            anywhere = self._known.may_have_forgotten(batch.producer_id)
            return None if batch.first == 0 or anywhere else Outcome.OUT_OF_ORDER
        epoch, last = place
        if batch.epoch < epoch:
            return Outcome.FENCED
        if batch.epoch > epoch:
            return None if batch.first == 0 else Outcome.OUT_OF_ORDER
        if not batch.is_transactional and self._is_open(batch.producer_id):
            return Outcome.OUT_OF_ORDER
        if last is None or batch.follows(last):
            return None
        if producer is not None and producer.has_forgotten(batch):
            return Outcome.DUPLICATE
        return Outcome.OUT_OF_ORDER

    def _landed(self, flight: Flight, reply: Reply) -> None:
        """What became of a flight is said to everybody who waits for it.

        One that is settled stays until the machine has applied it. That may be later: others can settle an
        entry that is not flushed here yet.
        """
        if reply.outcome is Outcome.SETTLED:
            flight.offset = reply.offset
        elif reply.outcome is Outcome.UNKNOWN:
            self._flights.forget()
        elif reply.outcome is Outcome.ROLLED_BACK:
            self._flights.rolled_back(flight)
        else:
            self._flights.refused(flight)
        answers, flight.answers = flight.answers, []  # It may stay for long; who waited for it need not.
        for request, answer in answers:
            answer(reply if request == reply.request else msgspec.structs.replace(reply, request=request))

    def _place(self, producer_id: int) -> tuple[int, int | None] | None:
        """The epoch of a producer, and its last sequence if that is known, with its flights."""
        producer = self._known.get(producer_id)
        place: tuple[int, int | None] | None = None
        if producer is not None:
            place = (producer.epoch, None if producer.is_lost else producer.last)
        for flight in self._flights.of(producer_id):
            ahead = flight.batch
            if isinstance(ahead, Numbered):
                place = (ahead.epoch, ahead.last)
            elif place is None or ahead.epoch > place[0]:
                is_lost = place is None and self._known.may_have_forgotten(producer_id)
                place = (ahead.epoch, None if is_lost else -1)
        return place

    def _is_open(self, producer_id: int) -> bool:
        """Whether it has a transaction open here, with its flights."""
        flights = self._flights.of(producer_id)
        if not flights:
            return self._known.is_open(producer_id)
        newest = flights[-1].batch
        return isinstance(newest, Numbered) and newest.is_transactional

    def counted(self, producer_id: int, leader: Leading) -> int | None:
        """Records of a producer's open transaction, of which from here on there are no more: its coordinator must
        vouch for it again. None while some are under way."""
        if leader.applied < leader.first:
            return None
        self._flights.applied(leader.epoch, leader.applied)
        self.vouching.end(producer_id)
        if self._flights.of(producer_id):
            return None
        producer = self._known.get(producer_id)
        return producer.records if producer is not None else 0
