"""Which open transaction holds readers of committed records back, since when, and what is known of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from quorate.core.entry import partition_of
from quorate.machine.purpose import TRANSACTIONS
from quorate.machine.transaction_words import Verdict
from quorate.node import Node
from quorate.node.held_back import HeldBack, HoldsBack, OpenTransaction, coordinated_by
from tests.unit.machine.test_markers import ONE, OTHER, Log
from tests.unit.machine.test_transactions import APP, HERE, NAME, Coordinator

PARTITION = partition_of(bytes(16), 0)


def hosting(machine: Any, purpose: str = "topic") -> Node:
    hosted = SimpleNamespace(machine=machine, record=SimpleNamespace(purpose=purpose))
    host = SimpleNamespace(hosted={PARTITION: hosted})
    return cast(Node, SimpleNamespace(host=host, leads_with_all=lambda _: True))


def test_the_first_open_transaction_grows_old_and_what_comes_behind_it_does_not_matter() -> None:
    log = Log()
    held_back = HeldBack(hosting(log.producers))
    held_back.look(10.0)
    assert held_back.of(PARTITION, 10.0) is None
    log.write(ONE, 0, count=3)
    assert held_back.of(PARTITION, 10.0) is None, "nobody has looked yet"
    held_back.look(11.0)
    log.write(OTHER, 0)
    held_back.look(12.0)
    assert held_back.of(PARTITION, 31.0) == HoldsBack(ONE, 0, 20.0)
    log.mark(ONE, 1, commit=True)
    assert held_back.of(PARTITION, 32.0) is None, "that one is over"
    held_back.look(33.0)
    assert held_back.of(PARTITION, 34.0) == HoldsBack(OTHER, 3, 1.0)
    log.mark(OTHER, 1, commit=False)
    held_back.look(35.0)
    assert held_back.of(PARTITION, 36.0) is None


def test_the_next_transaction_of_the_same_producer_is_another() -> None:
    log = Log()
    held_back = HeldBack(hosting(log.producers))
    log.write(ONE, 0)
    held_back.look(1.0)
    log.mark(ONE, 1, commit=True)
    log.write(ONE, 1)
    assert held_back.of(PARTITION, 50.0) is None
    held_back.look(50.0)
    assert held_back.of(PARTITION, 51.0) == HoldsBack(ONE, 2, 1.0)


def test_a_coordinator_says_what_is_open_and_what_is_decided_and_not_over() -> None:
    machine = Coordinator()
    node = hosting(machine, TRANSACTIONS)
    producer = machine.begin(timeout_ms=9_000)
    assert coordinated_by(node) == (), "it has written nothing yet"
    assert machine.add(producer, HERE) is Verdict.DONE
    open_ = OpenTransaction(producer.producer_id, NAME, 1000, 9_000)
    machine.now_ms = 2000
    attempt = machine.open(41, timeout_ms=7_000)
    assert machine.enlist(attempt) is Verdict.DONE
    joint = OpenTransaction(attempt.producer_id, APP, 2000, 7_000, number=41)
    assert coordinated_by(node) == (open_, joint), "the oldest first"
    machine.end(producer, commit=True)
    assert coordinated_by(node)[0].decided == "committed"
    machine.commit(41, attempt)
    assert {each.decided for each in coordinated_by(node)} == {"committed"}
    assert {each.producer_id for each in coordinated_by(node)} == {producer.producer_id, attempt.producer_id}
    machine.mark_all()
    assert coordinated_by(node) == ()


def test_only_who_leads_a_home_speaks_of_it() -> None:
    machine = Coordinator()
    machine.add(machine.begin(), HERE)
    node = hosting(machine, TRANSACTIONS)
    cast(Any, node).leads_with_all = lambda _: False
    assert coordinated_by(node) == ()
