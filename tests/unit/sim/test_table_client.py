"""A client of tables: it repeats what it is in doubt about under the same id, and asks what became of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, Header
from quorate.core.invariant import Violated
from quorate.host.querying import Consistency
from quorate.machine.table import Tables
from quorate.machine.table_wire import decode
from quorate.sim.invariants import Invariants
from quorate.sim.oracle import Oracle
from quorate.sim.setup import Setup
from quorate.sim.table_acts import CREATE
from quorate.sim.table_client import TRIES_MAX, Teller
from quorate.sim.table_group import TableGroup
from quorate.sim.tunables import Tunables
from quorate.sim.workload import Manners, Workload
from quorate.tables import Level
from tests.unit.sim.test_workload import Office

Answer = Callable[[Reply], None]


class Hosted:
    """As much of a replica as looks need."""

    def __init__(self) -> None:
        self.machine = Tables()
        self.applied = NOWHERE
        self.replica = SimpleNamespace(generation=0)


class Counter(Office):
    """An office whose nodes have tables."""

    def __init__(self) -> None:
        super().__init__()
        self.setup = Setup(1, Tunables(), ((1, 2, 3),), ((),), protocol="confirm", tables=(0,))
        self.copy = Hosted()
        self.looks: list[tuple[int, Consistency, int, Callable[[], None]]] = []

    def hosted(self, node: int, partition: int) -> Any:
        return self.copy

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
        def look() -> None:
            upto = self.copy.applied
            seen = ask(self.copy.machine, Level.COMMITTED)
            answer(Reply(1, Outcome.SETTLED, upto.offset, upto.epoch), seen)

        self.looks.append((node, consistency, offset, look))
        return node not in self.down


@pytest.fixture
def counter() -> Counter:
    return Counter()


def hire(counter: Counter) -> tuple[Teller, Workload]:
    invariants = Invariants(1)
    world: Any = counter
    group = TableGroup(world, invariants, 0)
    manners = Manners(clients_count=1, patience_s=1.0, pause_s=0.01)
    workload = Workload(7, counter, Oracle(1), manners, ((1, 2, 3),), {0: group})
    return workload.clients[0].tellers[0], workload


def taken(counter: Counter) -> tuple[int, bytes, Answer]:
    counter.run(0.1)
    node, payloads, answer = counter.requests.pop(0)
    return node, payloads[0], answer


def settle(counter: Counter, teller: Teller, payload: bytes, offset: int) -> None:
    teller.group.oracle.settled(offset, parse_batch_header(payload).crc)
    header = Header(1, offset, size=len(payload))
    counter.copy.machine.settle(header, 0, payload)
    counter.copy.applied = header.id


def test_whoever_was_refused_tries_again_with_the_same_id_and_other_bytes(counter: Counter) -> None:
    teller, _ = hire(counter)
    teller.propose(CREATE)
    node, first, answer = taken(counter)
    answer(Reply(1, Outcome.NOT_LEADER, leader=1 + node % 3))
    another, second, _ = taken(counter)
    assert another == 1 + node % 3
    assert first != second
    assert decode(first) == decode(second)


def test_what_became_of_a_settled_transaction_is_asked_where_it_was_settled(counter: Counter) -> None:
    teller, _ = hire(counter)
    act = teller.propose(CREATE)
    node, payload, answer = taken(counter)
    settle(counter, teller, payload, 0)
    answer(Reply(1, Outcome.SETTLED, 0))
    assert teller.doubtful == [act]
    asked, how, offset, look = counter.looks.pop(0)
    assert (asked, how, offset) == (node, Consistency.COMMITTED, 0)
    look()
    assert act.told == (0, 0)
    assert teller.doubtful == []
    assert teller.under_way == 0


def test_transaction_that_nobody_takes_is_given_up(counter: Counter) -> None:
    teller, _ = hire(counter)
    act = teller.propose(CREATE)
    for _ in range(TRIES_MAX):
        taken(counter)[2](Reply(1, Outcome.BUSY))
    counter.run(1.0)
    assert act.tries == TRIES_MAX
    assert teller.under_way == 0
    assert teller.doubtful == [act]


def test_flushed_is_an_answer(counter: Counter) -> None:
    teller, _ = hire(counter)
    note = teller.group.bank.note(teller.client.rng)
    teller.propose(note)
    taken(counter)[2](Reply(1, Outcome.FLUSHED, 3))
    counter.run(5.0)
    assert not counter.requests
    assert teller.doubtful == []
    assert teller.under_way == 0


def test_in_the_end_whoever_is_in_doubt_insists(counter: Counter) -> None:
    teller, workload = hire(counter)
    act = teller.propose(CREATE)
    taken(counter)[2](Reply(1, Outcome.UNKNOWN))
    workload.close()
    counter.run(1.0)
    counter.requests.clear()
    left = workload.insist(0.5)
    assert left() == ["1 transactions of a client on p0"]
    _, payload, answer = taken(counter)
    settle(counter, teller, payload, 0)
    answer(Reply(1, Outcome.SETTLED, 0))
    counter.looks.pop(0)[3]()
    assert act.told == (0, 0)
    assert left() == []


def test_looks_are_of_every_consistency_and_all_are_compared(counter: Counter) -> None:
    teller, workload = hire(counter)
    seen = set()
    for _ in range(40):
        teller.look(teller.group.bank.look(teller.client.rng))
        counter.run(0.1)
        _, how, _, look = counter.looks.pop(0)
        seen.add(how)
        look()
    assert seen == set(Consistency)
    assert teller.group.oracle.looks_count == 40
    assert workload.unanswered() == []


def test_linearizable_look_that_misses_what_was_acknowledged_is_noticed(counter: Counter) -> None:
    teller, _ = hire(counter)
    teller.propose(CREATE)
    _, payload, answer = taken(counter)
    teller.group.oracle.settled(0, parse_batch_header(payload).crc)
    answer(Reply(1, Outcome.SETTLED, 0))
    counter.looks.clear()
    with pytest.raises(Violated, match="read-stale"):
        for _ in range(40):
            teller.look(teller.group.bank.look(teller.client.rng))
            counter.run(0.1)
            counter.looks.pop(0)[3]()
