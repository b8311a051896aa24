"""Found by itself, where Spark is not in this process: Spark Connect, and declarative pipelines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quorate.cli.demo_cluster import DemoCluster
from quorate.spark.java import find_java, java_home_for_spark
from tests.spark.conftest import Topic

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 300.0
CONNECTED = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"bootstrap": sys.argv[1], "subscribe": sys.argv[2]}
rows = spark.read.format("quorate").options(**options).load()
rows.select("value").write.format("quorate").options(bootstrap=sys.argv[1], topic=sys.argv[2]).mode("append").save()
print("rows:", spark.read.format("quorate").options(**options).load().count())
spark.stop()
"""


def run(words: list[str], directory: Path) -> str:
    environment = os.environ | {
        "JAVA_HOME": str(java_home_for_spark(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        words, cwd=directory, env=environment, check=False, text=True, capture_output=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_spark_connect_finds_it(make_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = make_topic(2)
    topic.produce([b"one", b"two", b"three"])
    assert "rows: 6" in run([sys.executable, "-c", CONNECTED, topic.bootstrap, topic.name], tmp_path)


def test_the_example_runs_as_a_declarative_pipeline(
    spark: SparkSession, cluster: DemoCluster, tmp_path: Path
) -> None:
    events, large = Topic(cluster.bootstrap, "events", 2), Topic(cluster.bootstrap, "large", 2)
    project = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", project)
    spec = project / "spark-pipeline.yml"
    written = spec.read_text(encoding="utf-8").replace("127.0.0.1:9092", f'"{cluster.bootstrap}"')
    spec.write_text(written.replace("/tmp/quorate-pipeline", str(tmp_path / "kept")), encoding="utf-8")
    events.produce([b'{"user": "ann", "amount": %d}' % amount for amount in (50, 100, 150)])
    said = run([str(Path(sys.executable).with_name("spark-pipelines")), "run"], project)
    assert "Run is COMPLETED" in said
    assert len(large.values(spark)) == 2
