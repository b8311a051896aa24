"""What Spark says when it fails: pages, of which a person is told one line."""

from __future__ import annotations

import pytest

from quorate.cli.sweep_command import check_master
from quorate.cli.wrong import WrongUsage
from quorate.spark.session import reason_of

OF_A_QUERY = """\
[STREAM_FAILED] Query [id = 7f, runId = 8e] terminated with exception: Job aborted. SQLSTATE: XXKST
Traceback (most recent call last):
  File "worker.py", line 1, in main
quorate.client.errors.Unreachable: no node answered within 60 s
=== Streaming Query ===
Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
"""
OF_JAVA = """\
An error occurred while calling o31.create.
: java.io.IOException: Mkdirs failed to create file:/x
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:521)
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (OF_A_QUERY, "no node answered within 60 s"),
        (OF_JAVA, "java.io.IOException: Mkdirs failed to create file:/x"),
        ("told to fail", "told to fail"),
        ("", "RuntimeError"),
    ],
)
def test_of_pages_the_line_that_tells(said: str, reason: str) -> None:
    assert reason_of(RuntimeError(said)) == reason


@pytest.mark.parametrize("master", ["local[0]", "local[2,0]", "locl", "spark://"])
def test_a_master_that_spark_has_not(master: str) -> None:
    with pytest.raises(WrongUsage, match="--master"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,1]", "local[10]", "spark://a:7077", "yarn"])
def test_a_master_that_spark_has(master: str) -> None:
    check_master(master)
