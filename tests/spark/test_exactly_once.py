"""What a stream writes is in once, whoever ends in the middle of it: drivers, executors, leaders, coordinators.

Each story copies one topic into another, or into a table, by a driver in a process of its own (`copying_driver`),
and compares with what was sent: what librdkafka reads of the copy, committed only; or a table's rows, and all that
has ever changed in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import Cluster, TableGroup, create_group
from quorate.client.groups import FIND_VERSION
from quorate.machine import table_snapshot
from quorate.spark.java import find_java, java_home_for_spark
from quorate.tables import Column, CreateTable, Insert, Table, Type
from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class
from quorate.wire.table_pieces import values_of
from quorate.wire.tables import Consistency
from tests.spark.conftest import TIMEOUT_S, Topic
from tests.spark.copying_driver import STEPS, TABLE_STEPS
from tests.spark.test_batch import numbered
from tests.spark.test_streaming import leader_of, wait_until
from tests.spark.test_writing import consumed

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]
ROOT = Path(__file__).resolve().parents[2]
RUN_S = 240.0
PARTITIONS = 2
NUMBERS_COUNT = 1200
"""More than any story sends."""
COPIED = Table("copied", (Column("id", Type.INT), Column("text", Type.STR)), ("id",))
LITTLE = 8
"""Of its rows so many are not staged."""
NODE_STEPS = ("staging", "committing", "deciding", "committed")
TRANSACTION = 1
"""The type of key, for whoever asks for a coordinator."""
WORKERS = ("127.0.0.2", "127.0.0.3")
"""Spark never speculates on a host that has an attempt already; addresses are hosts to it."""
COPY = "copy"
SKIPPED = re.compile(r"number (\d+) is already in, and its (\d+) rows are not written again")
LATE = r"late goes on\n([^\n]+\n)*"
LOSER = r"task (?P<task>\d+) attempt [1-9]\d* ended\n([^\n]+\n)*reached committed\n" + LATE
LOSER_OF_TOPIC = LOSER + r"task (?P=task) attempt 0 raised AttemptOver [^\n]+this attempt is over \(\w+\)"
LOSER_OF_TABLE = LOSER + r"parts staged"
"""What executors and driver note, in this order."""


class TopicSink:
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.options = {"topic": topic.name}
        self.loser = LOSER_OF_TOPIC

    def expect_copied(self, count: int, why: Callable[[], str]) -> None:
        found = consumed(self.topic, PARTITIONS)
        assert found == numbered(count), f"{len(found)} of {count}\n{why()}"

    def leader(self) -> int:
        return leader_of(self.topic)


class TableSink:
    """Has a row for every number already. Each that comes replaces its row, and every fifth takes it out."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.options = {"table": f"{name}/{COPIED.name}"}
        self.loser = LOSER_OF_TABLE
        create_group(bootstrap, name)
        with self.opened() as group:
            group.execute(CreateTable(COPIED))
            self.filled_at = group.execute(
                *(Insert(COPIED.name, (number, "")) for number in range(NUMBERS_COUNT))
            ).offset

    def opened(self) -> TableGroup:
        return TableGroup(self.bootstrap, self.name, timeout_s=TIMEOUT_S)

    def expect_copied(self, count: int, why: Callable[[], str]) -> None:
        texts = ["" if number >= count else f"{number:08d}" * 1000 for number in range(NUMBERS_COUNT)]
        with self.opened() as group:
            end = group.describe(Consistency.LINEARIZABLE).offset
            found = [row.values for row in group.iterate(COPIED.name)]
            pages = group.changes(COPIED.name, first=self.filled_at + 1, last=end)
            changed = [values_of(change.before or b"")[:1] for page in pages for change in page]
        left = self.left()
        expected = [(number, text) for number, text in enumerate(texts) if number >= count or number % 5]
        assert found == expected, f"{len(found)} of {len(expected)}\n{why()}"
        assert sorted(changed) == [(number,) for number in range(count)], f"each of them once\n{why()}"
        assert not left, f"{len(left)} staged parts are left over\n{why()}"

    def left(self) -> Sequence[object]:
        """The parts that are staged."""
        with self.opened() as group:
            return list(table_snapshot.read(b"".join(group.snapshot(self.leader()))).staged)

    def leader(self) -> int:
        with self.opened() as group:
            return group.describe(Consistency.LINEARIZABLE).leader


class Story:
    def __init__(self, source: Topic, sink: TopicSink | TableSink, directory: Path) -> None:
        self.source, self.sink, self.directory = source, sink, directory
        self.notes = directory / "notes"
        self.notes.touch()

    def run(
        self,
        *,
        master: str = "local[2]",
        at: str = "",
        does: str = "driver",
        process: int = 0,
        settings: dict[str, str] | None = None,
        awaits: str = "",
        checkpoint: str = "checkpoint",
    ) -> int:
        """One driver until all that is there is copied, and this is noted, or until it dies; its exit code."""
        with self.started(
            master=master,
            at=at,
            does=does,
            process=process,
            settings=settings,
            awaits=awaits,
            checkpoint=checkpoint,
        ) as driver:
            return driver.wait(RUN_S)

    @contextmanager
    def started(
        self,
        *,
        said: str = "said",
        master: str = "local[2]",
        at: str = "",
        does: str = "driver",
        process: int = 0,
        settings: dict[str, str] | None = None,
        awaits: str = "",
        checkpoint: str = "checkpoint",
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A driver that is gone at the end of the block. What it says goes to a file of this name."""
        given = {
            "master": master,
            "settings": settings or {},
            "bootstrap": self.source.bootstrap,
            "source": self.source.name,
            "target": self.sink.options,
            "checkpoint": str(self.directory / checkpoint),
            "notes": str(self.notes),
            "flag": str(self.directory / "flag"),
            "at": at,
            "does": does,
            "process": process,
            "awaits": awaits,
        }
        environment = os.environ | {
            "COPYING_DRIVER": json.dumps(given),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }
        with (self.directory / said).open("ab") as heard:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.copying_driver"],
                cwd=ROOT,
                env=environment,
                stdout=heard,
                stderr=heard,
                start_new_session=True,
            )
        try:
            yield driver
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()

    def send(self, count: int, first: int = 0) -> None:
        """Evenly over the partitions, so that every task has something to do."""
        self.source.send(
            [
                {"value": value, "partition": number % PARTITIONS}
                for number, value in enumerate(numbered(count, first))
            ]
        )

    def copy_checkpoint(self) -> None:
        shutil.copytree(self.directory / "checkpoint", self.directory / COPY)

    def skipped(self) -> list[tuple[int, int]]:
        """Which batches drivers said to be in already, and how many rows they had."""
        return [(int(number), int(rows)) for number, rows in SKIPPED.findall(self.said())]

    def noted(self) -> str:
        return self.notes.read_text(encoding="utf-8")

    def said(self, name: str = "said") -> str:
        return (self.directory / name).read_text(encoding="utf-8")

    def expect_copied(self, count: int) -> None:
        self.sink.expect_copied(count, lambda: f"{self.noted()}\n{self.said()}")


TO_TABLE = pytest.param("table", marks=pytest.mark.proof)
to_both = pytest.mark.parametrize("story", ["topic", TO_TABLE], indirect=True)


@pytest.fixture
def story(request: pytest.FixtureRequest, make_topic: MakeTopic, tmp_path: Path) -> Story:
    source = make_topic(PARTITIONS)
    if getattr(request, "param", "topic") == "table":
        return Story(source, TableSink(source.bootstrap, f"copies-of-{source.name}"), tmp_path)
    return Story(source, TopicSink(make_topic(PARTITIONS)), tmp_path)


@pytest.mark.parametrize(
    ("story", "step"),
    [
        pytest.param(sink, step, marks=() if (sink, step) == ("topic", "committed") else pytest.mark.proof)
        for sink, steps in (("topic", STEPS), ("table", TABLE_STEPS))
        for step in steps
    ],
    indirect=["story"],
)
def test_a_driver_that_is_killed_at_any_step_has_written_everything_once_when_it_is_back(
    story: Story, step: str
) -> None:
    story.send(400)
    if step == "between":  # Said of a batch when the next one is planned.
        assert story.run() == 0, story.said()
        story.send(400, 400)
        count = 800
    else:
        count = 400
    assert story.run(at=step) == -signal.SIGKILL, story.said()
    assert f"driver {step}" in story.noted()
    assert story.run() == 0, story.said()
    story.expect_copied(count)


@pytest.mark.proof
@pytest.mark.parametrize("step", ["committing", "deciding"])
def test_a_driver_that_is_killed_while_its_workers_live_on_has_written_everything_once_when_it_is_back(
    story: Story, tmp_path: Path, step: str
) -> None:
    story.send(400)
    with standalone(tmp_path) as master:
        settings = for_executors() | {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
        assert story.run(master=master, at=step, settings=settings) == -signal.SIGKILL, story.said()
        assert f"driver {step}" in story.noted()
        assert story.run(master=master, settings=settings) == 0, story.said()
        story.expect_copied(400)
        story.send(400, 400)
        assert story.run(master=master, settings=settings) == 0, story.said()
    story.expect_copied(800)


@pytest.mark.proof
@to_both
@pytest.mark.parametrize("step", ["staging", "committing"])
def test_of_two_drivers_on_one_checkpoint_the_older_is_fenced_and_everything_is_there_once(
    story: Story, step: str
) -> None:
    """The older stands still in the middle of its batch; the newer writes the same one; then the older goes on."""
    story.send(400)
    with story.started(said="older", at=step, does="late") as older:
        older_stands_still(story, older, step)
        assert story.run() == 0, story.said()
        assert older.wait(RUN_S) not in (0, -signal.SIGKILL), story.noted()
    assert "a newer run has begun; stop this one" in story.said("older")
    story.expect_copied(400)
    story.send(400, 400)
    assert story.run() == 0, story.said()
    story.expect_copied(800)


def older_stands_still(story: Story, older: subprocess.Popen[bytes], step: str) -> None:
    """Its Spark starts before that, which takes long on a machine that is busy."""
    wait_until(
        lambda: f"late {step}" in story.noted() or older.poll() is not None,
        "the older driver",
        within_s=RUN_S,
    )
    assert older.poll() is None, story.said("older")


@pytest.mark.proof
@to_both
def test_a_query_from_a_copied_checkpoint_writes_what_the_other_has_not(story: Story) -> None:
    """By turns: batches that the other wrote are skipped, each with a warning that says how many rows it had."""
    story.send(400)
    assert story.run() == 0, story.said()
    story.copy_checkpoint()
    story.send(400, 400)
    assert story.run() == 0, story.said()
    assert story.skipped() == []
    assert story.run(checkpoint=COPY) == 0, story.said()
    assert story.skipped() == [(1, 400)]
    story.expect_copied(800)
    story.send(200, 800)
    assert story.run(checkpoint=COPY) == 0, story.said()
    assert story.skipped() == [(1, 400)]
    story.expect_copied(1000)
    assert story.run() == 0, story.said()
    assert story.skipped() == [(1, 400), (2, 200)]
    story.expect_copied(1000)


@pytest.mark.proof
@to_both
def test_of_two_drivers_on_a_checkpoint_and_its_copy_the_older_is_fenced_and_everything_is_there_once(
    story: Story,
) -> None:
    story.send(400)
    assert story.run() == 0, story.said()
    story.copy_checkpoint()
    story.send(400, 400)
    with story.started(said="older", at="committing", does="late") as older:
        older_stands_still(story, older, "committing")
        assert story.run(checkpoint=COPY) == 0, story.said()
        assert older.wait(RUN_S) not in (0, -signal.SIGKILL), story.noted()
    assert "a newer run has begun; stop this one" in story.said("older")
    story.expect_copied(800)
    assert story.skipped() == []
    assert story.run() == 0, story.said()
    assert story.skipped() == [(1, 400)], "what it could not commit, and the other did"
    story.expect_copied(800)


@pytest.mark.proof
@to_both
@pytest.mark.parametrize("step", ["reading", "staging", "staged"])
def test_an_executor_that_is_killed_is_replaced_and_nothing_is_there_twice(story: Story, step: str) -> None:
    story.send(400)
    code = story.run(master="local-cluster[2,1,1024]", at=step, does="executor", settings=for_executors())
    assert code == 0, story.said()
    assert f"executor {step}" in story.noted()
    assert re.search(r"attempt [1-9]\d* ended", story.noted()), story.noted()
    story.expect_copied(400)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("story", "whom", "step"),
    [
        *(("topic", whom, step) for whom in ("leader", "coordinator") for step in NODE_STEPS),
        *(("table", "leader", step) for step in NODE_STEPS),
    ],
    indirect=["story"],
)
def test_a_node_that_is_killed_in_the_middle_of_a_batch_costs_nothing(
    story: Story, cluster: DemoCluster, whom: str, step: str
) -> None:
    story.send(400)
    assert story.run() == 0, story.said()
    story.send(400, 400)
    node = story.sink.leader() if whom == "leader" else coordinator_of(story)
    assert story.run(at=step, does="node", process=cluster.node_pid(node)) == 0, story.said()
    assert f"node {step}" in story.noted()
    wait_until(lambda: cluster.is_back(node), "the node to be back")
    story.expect_copied(800)


@pytest.mark.proof
@to_both
def test_a_speculative_loser_that_writes_late_has_written_nothing(story: Story, tmp_path: Path) -> None:
    """Its producer was opened before, and its rows come when the winner's are committed: the node refuses them.

    A table's are staged, and forgotten with the next batch, though it has so little that nothing of it is staged.
    """
    story.send(400)
    with standalone(tmp_path) as master:
        code = story.run(
            master=master,
            at="staging",
            does="late",
            awaits=story.sink.loser,
            settings=for_executors()
            | {
                "spark.speculation": "true",
                "spark.speculation.interval": "50ms",
                "spark.speculation.quantile": "0.4",
                "spark.speculation.multiplier": "1.1",
                "spark.speculation.minTaskRuntime": "100ms",
                "spark.executor.cores": "1",
                "spark.executor.memory": "512m",
                # Long enough for a loser to go on: usually Spark ends its worker after two seconds.
                "spark.python.task.killTimeout": "60s",
            },
        )
        assert code == 0, story.said()
    assert "late staging" in story.noted()
    assert re.search(story.sink.loser, story.noted()), story.noted()
    if isinstance(story.sink, TableSink):
        assert story.sink.left(), "it was late"
        staged_count = story.noted().count("parts staged")
        story.send(LITTLE, 400)
        assert story.run() == 0, story.said()
        assert story.noted().count("parts staged") == staged_count, story.noted()
        story.expect_copied(400 + LITTLE)
    else:
        story.expect_copied(400)


def coordinator_of(story: Story) -> int:
    """Whoever decides the query's transactions."""
    metadata = json.loads((story.directory / "checkpoint" / "metadata").read_text(encoding="utf-8"))
    wanted = {"key_type": TRANSACTION, "coordinator_keys": [f"spark-query-{metadata['id']}"]}
    body = make(request_class(Api.FIND_COORDINATOR, FIND_VERSION), wanted)
    with Cluster(story.source.bootstrap) as cluster:
        answer = cluster.ask_anybody(Api.FIND_COORDINATOR, FIND_VERSION, body, monotonic() + TIMEOUT_S)
    (found,) = answer.coordinators
    return int(found.node_id)


def for_executors() -> dict[str, str]:
    return {
        "spark.executorEnv.PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "spark.executorEnv.JAVA_HOME": str(java_home_for_spark(find_java())),
        "spark.pyspark.python": sys.executable,
    }


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers at different addresses; the master's."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAVA_HOME": str(java_home_for_spark(find_java())),
        "SPARK_HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        said = (directory / name).open("wb")
        stack.enter_context(said)
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        stack.callback(end, process)
        return process

    def end(process: subprocess.Popen[Any]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def has(name: str, words: str) -> bool:
        return words in (directory / name).read_text(encoding="utf-8", errors="replace")

    with ExitStack() as stack:
        start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        wait_until(lambda: has("master", "I have been elected leader"), "the master")
        for number, host in enumerate(WORKERS):
            place = str(directory / f"work-{number}")
            start(
                f"worker-{number}", "worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1",
                "--memory", "1g", "--work-dir", place, f"spark://127.0.0.1:{port}",
            )  # fmt: skip
        for number in range(len(WORKERS)):
            wait_until(partial(has, f"worker-{number}", "Successfully registered"), "a worker to register")
        yield f"spark://127.0.0.1:{port}"
