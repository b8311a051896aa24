"""What a driver says of a batch that is in already: it is skipped, and how many rows that leaves out."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from quorate.spark import table_writing, writing
from quorate.spark.options import parse_table_options, parse_write_options
from quorate.spark.staging import Staged, Transaction
from quorate.spark.table_writing import TableBatchWriter
from quorate.spark.writing import BatchWriter, commit
from quorate.tables import Column, Table, Type

NOWHERE = parse_write_options({"bootstrap": "127.0.0.1:1", "topic": "events", "timeoutSeconds": "1"})
BATCH = Transaction("spark-query-a", 3, "run")


def test_a_batch_that_is_in_is_skipped_with_its_rows_counted(caplog: pytest.LogCaptureFixture) -> None:
    commit(NOWHERE, [Staged(BATCH, 5, already_in=True), None, Staged(BATCH, 2, already_in=True)])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (
        record.getMessage() == "spark-query-a: number 3 is already in, and its 7 rows are not written again"
    )


def test_a_batch_without_rows_is_no_transaction() -> None:
    """Nobody is asked, though nobody is there."""
    commit(NOWHERE, [Staged(BATCH._replace(app="spark-batch-a/events"), 0), None])
    commit(NOWHERE, [])


def test_a_query_that_has_no_rows_has_begun_none_the_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is older, and does not know it, would write what this one writes with its next number."""
    begun: list[int] = []

    class Coordinator:
        def begin(self, number: int) -> None:
            begun.append(number)

    monkeypatch.setattr(writing, "joint_for", lambda options, transaction: nullcontext(Coordinator()))
    commit(NOWHERE, [Staged(BATCH, 0), None])
    assert begun == [3]


def test_what_is_staged_and_not_committed_is_given_up_after_a_quarter_of_an_hour() -> None:
    assert NOWHERE.transaction_timeout_s == 15 * 60


@pytest.mark.parametrize("is_in", [True, False])
def test_an_abort_leaves_what_is_in_and_says_so(
    is_in: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark aborts a batch whose commit was durable, and raised: the cluster says that there is nothing to undo."""
    asked: list[int] = []

    class Coordinator:
        def abort(self, number: int) -> bool:
            asked.append(number)
            return not is_in

    monkeypatch.setattr(writing, "joint_for", lambda options, transaction: nullcontext(Coordinator()))
    writing.abort(NOWHERE, BATCH)
    assert asked == [3]
    said = [record.getMessage() for record in caplog.records]
    assert said == (["spark-query-a: number 3 is in, and is not undone"] if is_in else [])


def test_versions_are_counted_for_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Delta counts them for each table: what one function writes to two places is in both."""
    monkeypatch.setattr(writing, "check_topic", lambda options: None)
    schema = StructType([StructField("value", BinaryType()), StructField("topic", StringType())])

    def written(**to: str) -> Transaction:
        given = {"bootstrap": "127.0.0.1:1", "txnAppId": "totals", "txnVersion": "7", **to}
        return BatchWriter(parse_write_options(given), schema).transaction

    first, again, other, column = (
        written(topic="a"),
        written(topic="a"),
        written(topic="b"),
        written(),
    )
    assert first[:2] == again[:2]
    assert first.run != again.run
    assert len({first.app, other.app, column.app}) == 3
    assert {first.number, other.number, column.number} == {7}


def test_versions_are_counted_for_each_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        table_writing, "describe", lambda options: Table(options.table, (Column("id", Type.INT),), ("id",))
    )
    schema = StructType([StructField("id", LongType())])

    def written(table: str) -> Transaction:
        given = {"bootstrap": "127.0.0.1:1", "table": table, "txnAppId": "totals", "txnVersion": "7"}
        return TableBatchWriter(parse_table_options(given, writes=True), schema).transaction

    assert written("bank/a")[:2] == written("bank/a")[:2]
    assert written("bank/a").app != written("bank/b").app
