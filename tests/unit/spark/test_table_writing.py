"""What a table's sink stages, and whose stages a driver forgets, against the machine that tables are."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest

from quorate.client.errors import TransactionRefused
from quorate.machine import table_snapshot
from quorate.spark import table_writing
from quorate.spark.options import parse_table_options
from quorate.spark.staging import Transaction
from quorate.spark.table_writing import PART_OPERATIONS, Written, commit, discard, stage_of, stage_parts
from quorate.tables import (
    OPERATIONS_COUNT_MAX,
    STAGED_PARTS_MAX,
    Condition,
    Operation,
    Outcome,
    Replace,
    Row,
    Stage,
    Table,
)
from quorate.wire.tables import Consistency
from tests.unit.machine.table_support import ACCOUNTS, Group

OPTIONS = parse_table_options({"bootstrap": "127.0.0.1:1", "table": "bank/accounts"}, writes=True)
OLDER, NEWER = Transaction("spark-query-a", 6, "older"), Transaction("spark-query-a", 7, "newer")


class Bank:
    """What a sink asks of a client, answered by the machine itself."""

    def __init__(self) -> None:
        self.group = Group(ACCOUNTS)
        self.staged_count = 0

    def execute(self, *operations: Operation, conditions: tuple[Condition, ...]) -> None:
        self.staged_count += sum(isinstance(operation, Stage) for operation in operations)
        done = self.group.do(*operations, when=tuple(conditions))
        if done.outcome is not Outcome.DONE:
            raise TransactionRefused(done.why)

    def get(self, table: str, key: tuple[str], _: Consistency) -> Row | None:
        return self.group.tables.get(table, key)

    def tables(self, _: Consistency) -> tuple[Table, ...]:
        return self.group.tables.tables()

    def left(self) -> list[bytes]:
        """The stages that are there."""
        staged = table_snapshot.read(self.group.tables.snapshot()).staged
        return sorted({stage for stage, _ in staged})

    def keys(self) -> list[object]:
        return [values[0] for values in self.group.committed("accounts")]


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Bank:
    made = Bank()
    monkeypatch.setattr(table_writing, "open_group", lambda options: nullcontext(made))
    return made


def part(*numbers: int) -> bytes:
    return msgspec.msgpack.encode([Replace("accounts", (number, None, 0)) for number in numbers])


def staged(bank: Bank, transaction: Transaction, *numbers: int) -> Written:
    """By a task that has much."""
    stage = stage_of(transaction, "0 0")
    return Written(transaction, len(numbers), [], (stage, stage_parts(bank, stage, [part(*numbers)], 0)))  # type: ignore[arg-type]


def test_an_older_driver_that_gives_up_leaves_what_a_newer_one_has_staged(bank: Bank) -> None:
    mine = staged(bank, NEWER, 1, 2)
    discard(OPTIONS, OLDER)
    commit(OPTIONS, [mine])
    assert bank.keys() == [1, 2]


def test_a_copy_whose_batch_is_in_already_leaves_what_another_has_staged(bank: Bank) -> None:
    commit(OPTIONS, [Written(OLDER, 1, [part(1)])])
    mine = staged(bank, NEWER, 2)
    commit(OPTIONS, [staged(bank, OLDER._replace(run="copy"), 3)])
    commit(OPTIONS, [mine])
    assert bank.keys() == [1, 2]


def test_what_a_driver_has_left_is_forgotten_when_the_next_one_commits(bank: Bank) -> None:
    commit(OPTIONS, [staged(bank, OLDER, 1)])
    left = staged(bank, OLDER._replace(number=7), 2)
    commit(OPTIONS, [staged(bank, NEWER, 3)])
    assert bank.keys() == [1, 3]
    assert left.stage is not None
    stage_parts(bank, left.stage[0], [part(4)], 0)  # type: ignore[arg-type]


def test_what_a_driver_that_never_committed_has_left_is_forgotten_when_its_batch_is_committed(
    bank: Bank,
) -> None:
    """Nobody has ever heard of its run."""
    staged(bank, OLDER, 1, 2)
    commit(OPTIONS, [staged(bank, OLDER._replace(run="newer"), 1, 2)])
    assert bank.keys() == [1, 2]
    assert bank.left() == []


def test_what_is_staged_of_a_batch_that_is_in_is_forgotten_with_it_or_soon_after(bank: Bank) -> None:
    commit(OPTIONS, [staged(bank, OLDER, 1)])
    staged(bank, OLDER, 1)  # By an attempt that has lost, and does not know it.
    staged(bank, OLDER._replace(run="copy"), 1)
    assert len(bank.left()) == 2
    commit(OPTIONS, [staged(bank, NEWER, 2)])
    assert bank.left() == []
    staged(bank, NEWER._replace(run="copy"), 3)
    commit(OPTIONS, [staged(bank, NEWER._replace(run="another copy"), 3)])
    assert bank.left() == []
    assert bank.keys() == [1, 2]


def test_any_number_of_tasks_that_have_little_each_are_staged_together(bank: Bank) -> None:
    """A commit lists so many stages and no more."""
    tasks_count = STAGED_PARTS_MAX + 76
    rows_each = OPERATIONS_COUNT_MAX // tasks_count + 1
    tasks = [range(first * rows_each, (first + 1) * rows_each) for first in range(tasks_count)]
    commit(OPTIONS, [Written(NEWER, rows_each, [part(*rows)]) for rows in tasks])
    rows_count = tasks_count * rows_each
    assert rows_count > OPERATIONS_COUNT_MAX
    assert all(bank.group.tables.get("accounts", (number,)) for number in range(rows_count))
    assert bank.staged_count == -(-rows_count // PART_OPERATIONS)
