"""What clients do with tables: whole transactions keep the total, and the model agrees with the machine."""

from __future__ import annotations

from random import Random

import pytest

from quorate.core.entry import Header
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.sim.table_acts import CREATE, FUND, Bank
from quorate.sim.table_looks import ACCOUNTS, BANK, TOTAL, Everything, ResultOf, Row
from quorate.sim.table_model import Model
from quorate.tables import At, Level, Outcome, why_not

ENTRIES_COUNT = 400


@pytest.fixture
def ready() -> Bank:
    bank = Bank()
    for number, wanted in enumerate((CREATE, FUND)):
        bank.learned(wanted.as_transaction(number))
    return bank


def test_tables_come_first_then_the_money() -> None:
    bank, rng = Bank(), Random(1)
    assert bank.next(rng) == CREATE
    bank.learned(CREATE.as_transaction(1))
    assert bank.next(rng) == FUND
    bank.learned(FUND.as_transaction(2))
    assert bank.next(rng) not in (CREATE, FUND)


def test_which_transactions_are_synchronous(ready: Bank) -> None:
    rng = Random(1)
    assert CREATE.synchronous
    assert ready.move(rng).synchronous
    assert not ready.note(rng).synchronous
    assert ready.both(rng).synchronous


def test_what_was_seen_is_compared_with_once(ready: Bank) -> None:
    rng = Random(1)
    ready.saw(Row(ACCOUNTS, ("owner 3",)), (17, ("owner 3", 40, 1)))
    assert ready.close(rng).conditions == (At(ACCOUNTS, ("owner 3",), 17),)
    assert not any(isinstance(condition, At) for condition in ready.close(rng).conditions)


@pytest.mark.behaviour("TT-3")
@pytest.mark.parametrize("seed", range(5))
def test_model_and_machine_agree_on_whatever_clients_want(seed: int) -> None:
    rng = Random(seed)
    bank, model, machine = Bank(), Model(), Tables()
    outcomes = set()
    for offset in range(ENTRIES_COUNT):
        transaction = bank.next(rng).as_transaction(offset if rng.random() < 0.9 else rng.randint(0, offset))
        assert why_not(transaction) is None
        payload = encode(transaction)
        model.settle(offset, transaction)
        machine.settle(Header(1, offset, size=len(payload)), 0, payload)
        bank.learned(transaction)
        state = model.at(offset)
        for look in (Everything(), ResultOf(transaction.id), bank.look(rng)):
            seen = look.of_machine(machine, Level.COMMITTED)
            assert seen == look.of_state(state)
            assert look.flaw(seen) is None
            bank.saw(look, seen)
        result = ResultOf(transaction.id).of_machine(machine, Level.LOCAL)
        outcomes.add(result[0])
    assert outcomes == {Outcome.DONE, Outcome.REFUSED}
    assert model.at(1).tables[ACCOUNTS] == {(BANK,): (1, (BANK, TOTAL, 0))}
