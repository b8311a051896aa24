"""What Spark says when it fails: pages, of which a person is told one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quorate.cli.options import check_master
from quorate.cli.wrong import WrongUsage
from quorate.spark import session
from quorate.spark.session import environment_of, reason_of, settings_of

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


def test_spark_that_does_not_start_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Builder:
        def config(self, name: str, value: str) -> Builder:
            return self

        def getOrCreate(self) -> SparkSession:  # noqa: N802
            raise RuntimeError(OF_JAVA)

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(session, "_have_java", lambda wanted: None)
    with pytest.raises(session.NoSpark) as raised:
        session._start("test", "spark://10.0.0.5:7077", "off", {}, tmp_path)
    said = str(raised.value)
    assert said.startswith("Spark does not start on spark://10.0.0.5:7077; look whether it is there: ")
    assert said.endswith(": Mkdirs failed to create file:/x")
    assert "\n" not in said


OF_THIS_MACHINE = {
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.local.dir",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.warehouse.dir",
}


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2,1]",
        "local-cluster[2,1,1024]",
        "spark://127.0.0.1:7077",
        "spark://localhost:7077,127.0.0.2:7077",
        "spark://[::1]:7077",
    ],
)
def test_spark_on_this_machine_is_kept_to_it(master: str, tmp_path: Path) -> None:
    settings = settings_of(master, "off", tmp_path)
    assert settings.keys() >= OF_THIS_MACHINE
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert environment_of(master, {"PYSPARK_PYTHON": "other"}) == {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.parametrize(
    "master",
    ["spark://10.0.0.5:7077", "spark://127.0.0.1:7077,10.0.0.5:7077", "yarn", "k8s://127.0.0.1:6443"],
)
def test_executors_of_other_machines_find_the_driver_as_their_platform_says(
    master: str, tmp_path: Path
) -> None:
    """What is set here beats a person's own spark-defaults.conf."""
    settings = settings_of(master, "off", tmp_path)
    assert not settings.keys() & OF_THIS_MACHINE
    assert not [value for value in settings.values() if "127.0.0.1" in value]
    assert environment_of(master, {"PYSPARK_PYTHON": "other"}) == {"PYSPARK_DRIVER_PYTHON": sys.executable}
    assert environment_of(master, {})["PYSPARK_PYTHON"] == sys.executable
