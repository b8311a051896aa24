"""What a driver says of a batch that is in already: it is skipped, and how many rows that leaves out."""

from __future__ import annotations

import pytest

from quorate.spark.options import parse_write_options
from quorate.spark.staging import Staged, Transaction
from quorate.spark.writing import commit

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
    commit(NOWHERE, [Staged(BATCH, 0), None])
    commit(NOWHERE, [])
