"""What a table's sink stages, and whose stages a driver forgets, against the machine that tables are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from quorate.client.errors import Refused, RunFenced, TransactionRefused
from quorate.kafka.tables import STAGING
from quorate.machine import table_snapshot
from quorate.spark import table_writing
from quorate.spark.options import parse_table_options
from quorate.spark.staging import Transaction
from quorate.spark.table_writing import (
    FENCED_RUNS_MAX,
    LATE_NUMBERS_COUNT,
    PART_OPERATIONS,
    WRITERS,
    Written,
    begin,
    commit,
    discard,
    stage_of,
    stage_parts,
    write_rows,
)
from quorate.tables import (
    OPERATIONS_COUNT_MAX,
    STAGED_PARTS_MAX,
    BadRead,
    Condition,
    CreateTable,
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
        self.staged_count = self.gets_count = self.executed_count = 0
        self.knows_staging = True
        self.meanwhile: list[Callable[[], None]] = []
        """What others do when a row has just been read."""

    def execute(self, *operations: Operation, conditions: tuple[Condition, ...]) -> None:
        self.executed_count += 1
        if not self.knows_staging and any(isinstance(operation, STAGING) for operation in operations):
            raise Refused("staging needs feature level 3, and the cluster is at 2")
        self.staged_count += sum(isinstance(operation, Stage) for operation in operations)
        done = self.group.do(*operations, when=tuple(conditions))
        if done.outcome is not Outcome.DONE:
            raise TransactionRefused(done.why)

    def get(self, table: str, key: tuple[str], _: Consistency) -> Row | None:
        self.gets_count += 1
        try:
            row = self.group.tables.get(table, key)
        except BadRead as error:
            raise Refused(str(error)) from error
        if self.meanwhile:
            self.meanwhile.pop()()
        return row

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
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0)
    monkeypatch.setattr(table_writing, "task_context", lambda: context)
    return made


def part(*numbers: int) -> bytes:
    return msgspec.msgpack.encode([Replace("accounts", (number, None, 0)) for number in numbers])


def staged(bank: Bank, transaction: Transaction, *numbers: int) -> Written:
    """By a task that has much."""
    stage = stage_of(transaction, "0 0")
    return Written(transaction, len(numbers), [], (stage, stage_parts(bank, stage, [part(*numbers)], 0)))  # type: ignore[arg-type]


def ran(transaction: Transaction, *numbers: int) -> Written:
    """By a task that has little, or nothing."""
    batch = pa.RecordBatch.from_pydict({"id": list(numbers), "balance": [0] * len(numbers)})
    return write_rows(OPTIONS, ACCOUNTS, transaction, iter([batch]))


def writer(bank: Bank, app: str = OLDER.app) -> tuple[object, ...] | None:
    try:
        row = bank.group.tables.get(WRITERS.name, (app,))
    except BadRead:
        return None
    return None if row is None else row.values


def test_of_two_drivers_the_older_is_fenced_though_it_has_never_committed(bank: Bank) -> None:
    """What they have read of the same batch is not the same: they are on a checkpoint and its copy."""
    older, newer = (Transaction("spark-query-a", 0, run) for run in ("older", "newer"))
    late = ran(older, 1, 2)
    commit(OPTIONS, [ran(newer, 1)])
    with pytest.raises(RunFenced):
        commit(OPTIONS, [late])
    with pytest.raises(RunFenced):
        ran(older, 1, 2)
    with pytest.raises(RunFenced):
        ran(older._replace(number=1), 3)
    commit(OPTIONS, [ran(newer._replace(number=1), 2)])
    assert bank.keys() == [1, 2]


def test_an_older_driver_is_fenced_as_soon_as_a_newer_ones_tasks_write(bank: Bank) -> None:
    late = ran(OLDER, 1, 2)
    mine = ran(OLDER._replace(run="newer"), 1)
    with pytest.raises(RunFenced):
        commit(OPTIONS, [late])
    assert bank.keys() == []
    commit(OPTIONS, [mine])
    assert bank.keys() == [1]


def test_a_run_begins_once_and_its_other_tasks_and_attempts_only_look(bank: Bank) -> None:
    written = [ran(OLDER, 1), ran(OLDER, 2)]
    assert writer(bank) == (OLDER.app, -1, "older", "")
    version = bank.group.tables.get(WRITERS.name, (OLDER.app,)).version  # type: ignore[union-attr]
    before = bank.gets_count
    ran(OLDER, 2)  # Again, or by a second attempt.
    assert bank.gets_count == before + 1
    assert bank.group.tables.get(WRITERS.name, (OLDER.app,)).version == version  # type: ignore[union-attr]
    commit(OPTIONS, written)
    assert bank.keys() == [1, 2]
    assert writer(bank) == (OLDER.app, 6, "older", "")


@pytest.mark.parametrize("is_first", [True, False])
def test_tasks_of_one_run_that_begin_it_together_all_go_on(bank: Bank, is_first: bool) -> None:
    if not is_first:
        commit(OPTIONS, [ran(OLDER, 1)])
    others: list[Written] = []
    bank.meanwhile = [lambda: others.append(ran(NEWER, 3)), lambda: others.append(ran(NEWER, 2))]
    mine = ran(NEWER, 4)
    assert writer(bank) == (OLDER.app, *((-1, "newer", "") if is_first else (6, "newer", "older")))
    commit(OPTIONS, [mine, *others])
    assert bank.keys() == [2, 3, 4] if is_first else [1, 2, 3, 4]


def test_a_run_that_is_overtaken_while_it_begins_comes_behind_the_other(bank: Bank) -> None:
    """Whoever wrote last began last."""
    bank.meanwhile = [lambda: begin(bank, NEWER)]  # type: ignore[arg-type]
    ran(OLDER, 1)
    with pytest.raises(RunFenced):
        ran(NEWER, 2)


def test_a_batch_without_rows_fences_and_takes_no_number(bank: Bank) -> None:
    """A copy of the query may have rows under it."""
    late = ran(OLDER, 1)
    nothing = ran(NEWER)
    assert writer(bank) == (OLDER.app, -1, "older", "")
    commit(OPTIONS, [nothing])
    assert writer(bank) == (OLDER.app, -1, "newer", "older")
    with pytest.raises(RunFenced):
        commit(OPTIONS, [late])
    with pytest.raises(RunFenced):
        commit(OPTIONS, [Written(OLDER, 0, [])])
    commit(OPTIONS, [])
    commit(OPTIONS, [None])


def test_a_batch_write_has_no_run_that_another_could_fence(bank: Bank) -> None:
    """Each has one of its own; its number says whether it is in."""
    first, second = (Transaction("spark-batch-a/accounts", 3, run) for run in ("one", "two"))
    mine = ran(first, 1)
    assert writer(bank, first.app) is None
    theirs = ran(second, 2)
    commit(OPTIONS, [ran(first._replace(run="empty"))])
    commit(OPTIONS, [mine])
    commit(OPTIONS, [theirs])
    assert bank.keys() == [1]


def test_what_a_version_before_this_has_noted_is_gone_on_from(bank: Bank) -> None:
    """It noted a run with its first commit only."""
    bank.execute(CreateTable(WRITERS), conditions=())
    runs = [f"run-{number}" for number in range(FENCED_RUNS_MAX)]
    bank.execute(Replace(WRITERS.name, (OLDER.app, 5, "older", " ".join(runs))), conditions=())
    mine = ran(OLDER, 1)
    commit(OPTIONS, [ran(NEWER._replace(number=5), 9)])
    assert bank.keys() == [], "5 is in"
    assert writer(bank) == (OLDER.app, 5, "newer", " ".join([*runs[1:], "older"]))
    with pytest.raises(RunFenced):
        commit(OPTIONS, [mine])


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


def test_what_is_staged_late_is_forgotten_by_a_later_batch_that_has_little(bank: Bank) -> None:
    commit(OPTIONS, [staged(bank, OLDER, 1)])
    staged(bank, OLDER, 1)  # By an attempt that has lost, and does not know it.
    before = bank.executed_count
    commit(OPTIONS, [Written(OLDER._replace(number=OLDER.number + LATE_NUMBERS_COUNT), 1, [part(2)])])
    assert bank.executed_count == before + 1
    assert bank.left() == []
    assert bank.keys() == [1, 2]


def test_a_batch_with_as_many_rows_as_an_entry_takes_is_one(bank: Bank) -> None:
    most, more = OPERATIONS_COUNT_MAX - 1, OPERATIONS_COUNT_MAX
    commit(OPTIONS, [Written(OLDER, most, [part(*range(most))])])
    assert len(bank.keys()) == most
    assert bank.staged_count == 0
    commit(OPTIONS, [Written(NEWER, more, [part(*range(more))])])
    assert len(bank.keys()) == more
    assert bank.staged_count > 0


def test_a_cluster_that_knows_no_staging_is_written_to_and_a_batch_that_is_in_is_skipped(
    bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    bank.knows_staging = False
    commit(OPTIONS, [ran(OLDER, 1)])
    commit(OPTIONS, [ran(OLDER, 1)])
    assert [record.getMessage() for record in caplog.records] == [
        "spark-query-a: number 6 is already in, and its 1 rows are not written again"
    ]
    commit(OPTIONS, [Written(Transaction("spark-write-a", 0, "run"), 1, [part(2)])])
    discard(OPTIONS, NEWER)
    assert bank.keys() == [1, 2]
    more = OPERATIONS_COUNT_MAX
    with pytest.raises(Refused, match="feature level"):
        commit(OPTIONS, [Written(NEWER, more, [part(*range(more))])])
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
