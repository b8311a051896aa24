"""A client's dealings with one table group: it moves money, writes notes, repeats itself, asks, and looks.

A transaction that it is in doubt about it may propose again with the same id, as often as it likes: it is done
once. Or it asks what became of it. Each attempt has bytes of its own, so that every entry says whose it is
(oracle.py); several are under way at once. Whatever a node answers goes to the oracles at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.host.querying import Consistency
from quorate.sim.oracle import Asked, Fate
from quorate.sim.table_acts import Wanted
from quorate.sim.table_looks import Look, ResultOf
from quorate.sim.table_oracle import Act

if TYPE_CHECKING:
    from quorate.sim.table_group import TableGroup
    from quorate.sim.workload import Attempt, Client

UNDER_WAY_MAX = 3
REMEMBERED_MAX = 9
"""Transactions that a client may propose or ask about once more."""
QUESTIONS_SHARE = 0.08
REPEATED_SHARE = 0.08
LOOKS_SHARE = 0.3
RETRIED_SHARE = 0.6
"""Of those that it is in doubt about: what it soon tries again."""
TRIES_MAX = 8


class Teller:
    def __init__(self, client: Client, group: TableGroup) -> None:
        self.client = client
        self.group = group
        self.partition = group.partition
        self.under_way = 0
        """Transactions that it has not given up yet."""
        self._remembered: list[Act] = []
        self._insisting = False

    def __str__(self) -> str:
        return f"{len(self.doubtful)} transactions of a client on p{self.partition}"

    @property
    def doubtful(self) -> list[Act]:
        """What is remembered, and nobody has said what became of it."""
        return [act for act in self._remembered if act.told is None and not act.flushed]

    def act(self) -> None:
        rng = self.client.rng
        roll = rng.random()
        if self._remembered and roll < QUESTIONS_SHARE:
            self.look(ResultOf(rng.choice(self._remembered).transaction.id))
        elif self._remembered and roll < QUESTIONS_SHARE + REPEATED_SHARE:
            self.under_way += 1
            self._send(rng.choice(self._remembered))
        elif roll > 1 - LOOKS_SHARE:
            self.look(self.group.bank.look(rng))
        elif self.under_way < UNDER_WAY_MAX:
            self.propose(self.group.bank.next(rng))

    def propose(self, wanted: Wanted) -> Act:
        act = self.group.begin(wanted)
        self.under_way += 1
        self._remembered.append(act)
        del self._remembered[:-REMEMBERED_MAX]
        self._send(act)
        return act

    def insist(self, pause_s: float) -> None:
        """Whatever it is in doubt about, the oldest first, until somebody says what became of it.

        The more often it waited in vain, the longer the pause: each try is an entry of its own, and where settling
        takes longer than the pause, tries would come faster than the group can settle them, for ever (seed 964).
        """
        self._insisting = True
        if self.doubtful:
            act = self.doubtful[0]
            self.under_way += 1
            self._send(act)
            self.client.world.after(pause_s * (1 + act.in_vain), self.insist, pause_s)

    # --- one attempt ---

    def _send(self, act: Act) -> None:
        client, workload = self.client, self.client.workload
        workload.proposals_count += 1
        payload = self.group.oracle.proposed(act, workload.proposals_count)
        proposal = client.oracle.proposed(workload.proposals_count, self.partition, [payload], [1])
        attempt = client.make_attempt(proposal, act.tries)
        client.world.after(client.travel_s(), self._arrive, (act, attempt))
        client.world.after(client.manners.patience_s, self._give_up, (act, attempt))

    def _arrive(self, sending: tuple[Act, Attempt]) -> None:
        """Even if its sender has stopped waiting for it."""
        act, attempt = sending
        client = self.client
        closed = not client.workload.open and not self._insisting
        if closed or not client.hand_over(attempt, lambda reply: self._answered(act, attempt, reply)):
            attempt.proposal.fate = Fate.REFUSED  # Nobody took it.
            client.leaders[self.partition] = 0
            self._over(act, attempt)

    def _answered(self, act: Act, attempt: Attempt, reply: Reply) -> None:
        client, proposal, outcome = self.client, attempt.proposal, reply.outcome
        self.group.oracle.answered(parse_batch_header(proposal.payloads[0]).crc, reply)
        if outcome is Outcome.SETTLED:
            client.oracle.acknowledged(proposal, reply.offset)
            if reply.timestamp:
                client.oracle.stamped(self.partition, reply.offset, reply.epoch, reply.timestamp)
            client.leaders[self.partition] = attempt.node
            self._ask_result(act, attempt.node, reply.offset)
        elif outcome is Outcome.FLUSHED:
            act.flushed = True
            proposal.fate = Fate.UNKNOWN
        elif outcome is Outcome.UNKNOWN:
            client.doubt(self.partition)
            proposal.fate = Fate.UNKNOWN
        else:
            proposal.fate = Fate.REFUSED
            if outcome is Outcome.NOT_LEADER:
                client.leaders[self.partition] = reply.leader
            else:
                client.doubt(self.partition)
        self._over(act, attempt)

    def _give_up(self, sending: tuple[Act, Attempt]) -> None:
        act, attempt = sending
        if not attempt.given_up:
            act.in_vain += self._insisting
            if attempt.proposal.fate is Fate.OPEN:
                attempt.proposal.fate = Fate.UNKNOWN
            self.client.doubt(self.partition)
            self._over(act, attempt)

    def _over(self, act: Act, attempt: Attempt) -> None:
        """The client waits for this attempt no longer."""
        if attempt.given_up:
            return
        attempt.given_up = True
        fate, rng = attempt.proposal.fate, self.client.rng
        settled = fate is Fate.ACKNOWLEDGED or act.told is not None or act.flushed
        if settled or (fate is Fate.UNKNOWN and rng.random() > RETRIED_SHARE):
            self.under_way -= 1
        else:
            pause = self.client.manners.pause_s * (0.5 + rng.random()) * act.tries
            self.client.world.after(pause, self._retry, act)

    def _retry(self, act: Act) -> None:
        if act.told is None and act.tries < TRIES_MAX and self.client.workload.open and not self._insisting:
            self._send(act)
        else:
            self.under_way -= 1

    # --- looking ---

    def look(self, look: Look) -> None:
        """Locally, or as committed, anywhere; or linearizable, at whoever leads."""
        client, rng = self.client, self.client.rng
        how = rng.choice(tuple(Consistency))
        node = rng.choice(client.workload.holders[self.partition])
        if how is Consistency.LINEARIZABLE:
            node = client.leaders[self.partition] or node
        asked = client.oracle.asked(self.partition, ReadLevel.LINEARIZABLE)
        client.world.after(client.travel_s(), self._arrive_look, (look, asked, node, how))

    def _arrive_look(self, looking: tuple[Look, Asked, int, Consistency]) -> None:
        look, asked, node, how = looking

        def told(reply: Reply, seen: Any) -> None:
            if how is Consistency.LINEARIZABLE:
                self.client.oracle.told(asked, reply.offset, applied=reply.offset)

        if self.client.workload.open:
            self._query(node, look, how, told)

    def _ask_result(self, act: Act, node: int, offset: int) -> None:
        """Settled is not yet applied there: only then the tables say what came of it."""

        def told(_: Reply, seen: Any) -> None:
            self.group.told(act, seen)

        self._query(node, ResultOf(act.transaction.id), Consistency.COMMITTED, told, offset)

    def _query(
        self,
        node: int,
        look: Look,
        how: Consistency,
        told: Callable[[Reply, Any], None],
        offset: int = -1,
    ) -> None:
        world, workload = self.client.world, self.client.workload
        workload.requests_count += 1
        number = workload.requests_count
        workload.waiting[number] = (node, world.life(node), f"a look ({how}) at p{self.partition}")

        def answer(reply: Reply, seen: Any) -> None:
            if workload.waiting.pop(number, None) is not None and reply.outcome is Outcome.SETTLED:
                self.group.saw(node, look, how, reply, seen)
                told(reply, seen)

        if not world.query(node, self.partition, look.of_machine, answer, consistency=how, offset=offset):
            workload.waiting.pop(number, None)
