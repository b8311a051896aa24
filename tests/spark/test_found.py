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


def run(words: list[str], directory: Path, **settings: str) -> str:
    environment = (
        os.environ
        | settings
        | {
            "JAVA_HOME": str(java_home_for_spark(find_java())),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT / "src"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
    )
    done = subprocess.run(
        words, cwd=directory, env=environment, check=False, text=True, capture_output=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_spark_connect_finds_it(make_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = make_topic(2)
    topic.produce([b"one", b"two", b"three"])
    assert "rows: 6" in run([sys.executable, "-c", CONNECTED, topic.bootstrap, topic.name], tmp_path)


def test_the_example_runs_as_a_declarative_pipeline_twice_and_anew(
    spark: SparkSession, cluster: DemoCluster, tmp_path: Path
) -> None:
    events, large = Topic(cluster.bootstrap, "events", 2), Topic(cluster.bootstrap, "large", 2)
    project = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", project)
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        text = (project / name).read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:9092", f'"{cluster.bootstrap}"')
        text = text.replace("/tmp/quorate-pipeline", str(tmp_path / "kept"))
        (project / name).write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    found: list[int] = []
    for amounts, more in (((50, 100, 150), []), ((200,), []), ((), ["--full-refresh-all"])):
        events.produce([b'{"user": "ann", "amount": %d}' % amount for amount in amounts])
        assert "Run is COMPLETED" in run([*command, *more], project, SPARK_CONF_DIR="conf")
        found.append(len(large.values(spark)))
    assert found == [2, 3, 6], "the second goes on; anew, a topic gets all of it once more"
