"""Clients: they follow hints, never repeat what may have been written, and remember what they were told."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import pytest

from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.host.querying import Consistency
from quorate.sim.oracle import Fate, Oracle, Proposal
from quorate.sim.workload import ATTEMPTS_MAX, Client, Manners, Workload
from quorate.storage.frame import Frame

Answer = Callable[[Reply], None]


class Office:
    """A workplace whose nodes do nothing until the test answers for them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[tuple[int, list[bytes], Answer]] = []
        self.reads: list[tuple[int, ReadLevel, int, Answer]] = []
        self.shown = 99
        """Up to where every node shows what is settled."""
        self.down: set[int] = set()
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def after(self, seconds: float, function: Callable[[Any], None], argument: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + seconds, self._count, function, argument))

    def life(self, node: int) -> int:
        return 0 if node in self.down else 1

    def propose(self, node: int, partition: int, payloads: list[bytes], answer: Answer) -> bool:
        if node in self.down:
            return False
        self.requests.append((node, payloads, answer))
        return True

    def fetch(
        self,
        node: int,
        partition: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[Frame], int, int], None],
    ) -> bool:
        done([], self.shown, -1)
        return True

    def read(self, node: int, partition: int, level: ReadLevel, answer: Answer, offset: int = -1) -> bool:
        if node in self.down:
            return False
        self.reads.append((node, level, offset, answer))
        return True

    def query(
        self,
        node: int,
        partition: int,
        ask: Callable[[Any, Any], Any],
        answer: Callable[[Reply, Any], None],
        *,
        consistency: Consistency,
        offset: int = -1,
    ) -> bool:
        return False

    def applied(self, node: int, partition: int) -> int:
        return self.shown

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, function, argument = heappop(self._heap)
            function(argument)
        self.now = until


@pytest.fixture
def office() -> Office:
    return Office()


def hire(office: Office) -> tuple[Client, Oracle, Workload]:
    """One client that does only what it is told to."""
    oracle = Oracle(1)
    manners = Manners(clients_count=1, patience_s=1.0, pause_s=0.01)
    workload = Workload(7, office, oracle, manners, ((1, 2, 3),))
    return workload.clients[0], oracle, workload


def asked(office: Office, proposal: Proposal) -> tuple[int, Answer]:
    """Whom the client has asked, and the way to answer."""
    office.run(0.1)
    node, payloads, answer = office.requests.pop(0)
    assert tuple(payloads) == proposal.payloads
    return node, answer


def test_client_that_is_told_who_leads_asks_there(office: Office) -> None:
    client, _, _ = hire(office)
    proposal = client.propose(0)
    node, answer = asked(office, proposal)
    hint = 1 + node % 3
    answer(Reply(1, Outcome.NOT_LEADER, leader=hint))
    assert asked(office, proposal)[0] == hint


def test_settled_proposal_is_known_to_the_oracle(office: Office) -> None:
    client, oracle, _ = hire(office)
    proposal = client.propose(0)
    asked(office, proposal)[1](Reply(1, Outcome.SETTLED, offset=5))
    assert proposal.fate is Fate.ACKNOWLEDGED
    assert oracle.highest[0] == 5 + sum(proposal.counts) - 1


def test_promise_counts_though_the_client_has_stopped_waiting(office: Office) -> None:
    client, oracle, _ = hire(office)
    proposal = client.propose(0)
    _, answer = asked(office, proposal)
    office.run(2.0)
    fates = [proposal.fate]
    answer(Reply(1, Outcome.SETTLED, offset=5))
    fates.append(proposal.fate)
    assert fates == [Fate.UNKNOWN, Fate.ACKNOWLEDGED]
    assert oracle.acknowledged_count == 1


@pytest.mark.parametrize("answered", [True, False])
def test_unknown_proposal_is_never_made_again(office: Office, answered: bool) -> None:
    client, _, workload = hire(office)
    proposal = client.propose(0)
    _, answer = asked(office, proposal)
    if answered:
        answer(Reply(1, Outcome.UNKNOWN))
    workload.close()
    office.run(5.0)
    assert proposal.fate is Fate.UNKNOWN
    assert not office.requests


def test_proposal_that_nobody_takes_is_refused_in_the_end(office: Office) -> None:
    client, _, workload = hire(office)
    proposal = client.propose(0)
    for tries in range(1, ATTEMPTS_MAX + 1):
        _, answer = asked(office, proposal)
        if tries == ATTEMPTS_MAX:
            workload.close()
        answer(Reply(1, Outcome.BUSY))
        office.run(0.2)
    assert proposal.fate is Fate.REFUSED


def test_nodes_that_are_down_are_passed_over(office: Office) -> None:
    client, _, _ = hire(office)
    office.down = {1, 2}
    proposal = client.propose(0)
    office.run(0.5)
    assert [node for node, _, _ in office.requests] == [3]
    assert proposal.fate is Fate.OPEN


def test_request_that_a_living_node_never_answers_is_missed(office: Office) -> None:
    client, _, workload = hire(office)
    asked(office, client.propose(0))
    assert len(workload.unanswered()) == 1
    office.down = {1, 2, 3}
    assert workload.unanswered() == []
