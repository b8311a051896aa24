"""A client with a producer id on one partition: batches in sequence, several under way, each tried until settled.

It does what an idempotent Kafka producer does, and is less careful than one. Whatever a node answers, and if
none does, the same batch is proposed again with the same numbers, here or elsewhere, beside whatever became of
the attempts before. Later batches are on their way meanwhile. Some that are settled arrive once more. A client
whose patience is at its end goes on with the producer's next epoch and new values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.sim.oracle import Fate, Proposal

if TYPE_CHECKING:
    from quorate.sim.workload import Attempt, Client

UNDER_WAY_MAX = 5
TRIES_MAX = 12
RETRY_SHARE = 0.2
"""Of a client's patience: how long it waits before it tries again, at most, and some times that later on."""
REPEATED_SHARE = 0.1
"""Of the proposals: those that are of a batch which is settled already."""
REPEATED_FROM = 9
"""So many settled batches are kept to be repeated: more than anybody remembers."""
PRODUCERS_PER_CLIENT = 100


class Sent(msgspec.Struct):
    """A batch that is to be settled."""

    proposal: Proposal
    tries: int = 1
    over: bool = False
    """Settled, or given up."""


class Pipeline:
    def __init__(self, client: Client, number: int, partition: int) -> None:
        self.client = client
        self.partition = partition
        self.producer_id = number * PRODUCERS_PER_CLIENT + partition
        self.epoch = 0
        self.sequence = 0
        self.under_way: list[Sent] = []
        self._settled: list[Sent] = []
        self._insisting = False

    def __str__(self) -> str:
        return f"{len(self.under_way)} of producer {self.producer_id} on p{self.partition}"

    def propose(self) -> None:
        """The next batch, or one that was settled before."""
        rng = self.client.rng
        if self._settled and rng.random() < REPEATED_SHARE:
            self._send(rng.choice(self._settled))
        elif len(self.under_way) < UNDER_WAY_MAX:
            count = rng.choice((1, 1, 2, 3))
            workload = self.client.workload
            workload.proposals_count += 1
            number = workload.proposals_count
            payload = encode_records(
                self.client.records(number, 0, count),
                timestamp=number,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence,
            )
            self.sequence += count
            sent = Sent(self.client.oracle.proposed(number, self.partition, [payload], [count]))
            self.under_way.append(sent)
            self._send(sent)

    def insist(self, pause_s: float) -> None:
        """Whatever is under way, the oldest first, until it is settled."""
        self._insisting = True
        if self.under_way:
            self._send(self.under_way[0])
            self.client.world.after(pause_s, self.insist, pause_s)

    # --- one attempt ---

    def _send(self, sent: Sent) -> None:
        client = self.client
        attempt = client.make_attempt(sent.proposal, sent.tries)
        sent.proposal.attempts_open += 1
        client.world.after(client.travel_s(), self._arrive, (sent, attempt))
        client.world.after(client.manners.patience_s, self._give_up, (sent, attempt))

    def _arrive(self, sending: tuple[Sent, Attempt]) -> None:
        """Even if its sender has stopped waiting for it."""
        sent, attempt = sending
        client = self.client
        closed = not client.workload.open and not self._insisting
        if closed or not client.hand_over(attempt, lambda reply: self._answered(sent, attempt, reply)):
            sent.proposal.attempts_open -= 1  # Nobody took it.
            client.leaders[self.partition] = 0
            self._again(sent, attempt)

    def _answered(self, sent: Sent, attempt: Attempt, reply: Reply) -> None:
        client, proposal, outcome = self.client, sent.proposal, reply.outcome
        if outcome is Outcome.SETTLED:
            client.oracle.acknowledged(proposal, reply.offset)
            if reply.timestamp:
                client.oracle.stamped(self.partition, reply.offset, reply.epoch, reply.timestamp)
            client.leaders[self.partition] = attempt.node
            self._done(sent)
        elif outcome is Outcome.UNKNOWN:
            client.doubt(self.partition)
        else:
            proposal.attempts_open -= 1
            client.oracle.refused(proposal, outcome)
            if outcome is Outcome.NOT_LEADER:
                client.leaders[self.partition] = reply.leader
            elif outcome is Outcome.DUPLICATE:
                self._done(sent)
            else:
                client.doubt(self.partition)
        self._again(sent, attempt)

    def _give_up(self, sending: tuple[Sent, Attempt]) -> None:
        sent, attempt = sending
        if not attempt.given_up:
            self.client.doubt(self.partition)
            self._again(sent, attempt)

    def _again(self, sent: Sent, attempt: Attempt) -> None:
        """This attempt is over, as far as the client waits for it: the next one follows."""
        proposal = sent.proposal
        if proposal.fate is Fate.OPEN:
            proposal.fate = Fate.UNKNOWN
        if sent.over and not proposal.attempts_open and proposal.fate is Fate.UNKNOWN:
            proposal.fate = Fate.REFUSED
        if not attempt.given_up:
            attempt.given_up = True
            pause = self.client.manners.patience_s * RETRY_SHARE * self.client.rng.random()
            self.client.world.after(pause * min(sent.tries, 4), self._retry, sent)

    def _retry(self, sent: Sent) -> None:
        if sent.over or self._insisting or not self.client.workload.open:
            return
        if sent.tries >= TRIES_MAX:
            self._next_epoch()
            return
        sent.tries += 1
        self._send(sent)

    # --- what comes of it ---

    def _done(self, sent: Sent) -> None:
        if sent.over:
            return
        sent.over = True
        self.under_way.remove(sent)
        self._settled.append(sent)
        del self._settled[:-REPEATED_FROM]
        if self._insisting and self.under_way:
            self._send(self.under_way[0])

    def _next_epoch(self) -> None:
        """Too many tries: nobody will ever know, and what is under way behind it is pointless."""
        self.epoch += 1
        self.sequence = 0
        for sent in self.under_way:
            sent.over = True
            if not sent.proposal.attempts_open:
                sent.proposal.fate = Fate.REFUSED
        self.under_way.clear()
