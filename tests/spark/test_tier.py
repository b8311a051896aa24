"""Topics in Delta tables: every record once, wherever the job ended before; read with the log, without a hole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from quorate.cli.demo_cluster import DemoCluster
from quorate.cli.entry import run
from quorate.client.cluster import Cluster
from quorate.spark import lake as lakes
from quorate.spark.lake import File, Lake, LakeTrouble
from quorate.spark.options import Positions
from quorate.spark.tier import Tiering
from tests.spark.conftest import TIMEOUT_S, Topic
from tests.spark.copying_driver import end_with_all
from tests.unit.backup.object_store import BUCKET, CREDENTIALS, object_store

pytestmark = pytest.mark.cluster

COMMAND_S = 180.0
POLL_S = 0.2
LOOK_S = 0.01
"""A file waits so long for its commit, and longer."""
ROUND_COUNT = 20
MakeTopic = Callable[..., Topic]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


class Job:
    """`quorate tier` of one topic, in the session that is there."""

    def __init__(self, spark: SparkSession, topic: Topic, lake: Lake) -> None:
        self.spark, self.topic, self.lake = spark, topic, lake

    def run(self, *, batch_offsets: int = 1_000_000, **more: Any) -> Tiering:
        options = {"kafka.bootstrap.servers": self.topic.bootstrap}
        tiering = Tiering(self.lake, options, (self.topic.name,), **more)
        with Cluster(self.topic.bootstrap) as cluster:
            start = tiering.begin(cluster)
        tiering.run(self.spark, start, batch_offsets=batch_offsets)
        return tiering

    def rows(self) -> list[tuple[int, int, bytes]]:
        """What is in the table, from its own files."""
        import pyarrow as pa

        (topic_id,) = self._ids()
        table = self.lake.table(self.topic.name, topic_id)
        assert table is not None
        held = pa.table(table.delta.to_pyarrow_table())
        columns = (held[name].to_pylist() for name in ("partition", "offset", "value"))
        return sorted(zip(*columns, strict=True))

    def _ids(self) -> list[str]:
        with Cluster(self.topic.bootstrap) as cluster:
            return [topic.id.hex() for topic in cluster.topics([self.topic.name]).values()]

    def files(self) -> list[File]:
        (topic_id,) = self._ids()
        table = self.lake.table(self.topic.name, topic_id)
        return table.files() if table is not None else []

    def tiered(self, **more: str) -> DataFrame:
        options = {f"lake.{name}": value for name, value in self.lake.options.items()}
        return self.topic.read(self.spark, tiered="true", lake=self.lake.uri, **options, **more)

    def values(self, **more: str) -> list[bytes]:
        return sorted(bytes(row[0]) for row in self.tiered(columns="value", **more).collect())


@pytest.fixture
def job(spark: SparkSession, make_topic: MakeTopic, tmp_path: Path) -> Job:
    return Job(spark, make_topic(2), Lake(str(tmp_path / "lake")))


def test_every_record_is_in_the_table_once_and_read_with_the_log(job: Job) -> None:
    job.topic.produce(numbered(300))
    first = job.run(batch_offsets=100)
    assert first.rows_count == 300
    assert first.commits_count >= 3
    job.topic.produce(numbered(100, 300), compression="zstd")
    assert job.values() == numbered(400), "the table, and the log behind it"
    assert job.run().rows_count == 100
    assert job.run().commits_count == 0, "nothing new"
    held = job.rows()
    assert sorted(value for _, _, value in held) == numbered(400)
    assert len({(partition, offset) for partition, offset, _ in held}) == 400
    rows = job.tiered(includeHeaders="true").orderBy("partition", "offset").collect()
    plain = job.topic.read(job.spark, includeHeaders="true").orderBy("partition", "offset").collect()
    assert rows == plain, "all columns are those of the log"


def test_values_with_a_schema_are_columns_in_the_table_and_behind_it(job: Job) -> None:
    job.topic.produce([b'{"user": "ann"}', b"nonsense"])
    job.run()
    job.topic.produce([b'{"user": "bob"}'])
    options = {"valueFormat": "json", "valueSchema": "user string"}
    rows = job.tiered(**options, badRecords="column", columns="value,offset").select("value.user", "badValue")
    assert {tuple(row) for row in rows.collect()} == {("ann", None), (None, b"nonsense"), ("bob", None)}
    with pytest.raises(PySparkException, match="a value is not json of the schema: 'nonsense'"):
        job.tiered(**options).collect()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("files half written", marks=pytest.mark.proof),
        pytest.param("before the commit", marks=pytest.mark.proof),
        "after the commit",
    ],
)
def test_whatever_ends_a_batch_the_next_run_goes_on_from_the_lake(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.topic.produce(numbered(200))
    job.run()
    job.topic.produce(numbered(200, 200))

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"the end: {step}")

    with monkeypatch.context() as patch:
        if step == "files half written":
            original = Tiering.keep

            def half(self: Tiering, rows: DataFrame, ends: Positions) -> None:
                monkeypatch.setattr(self.lake, "commit", fails, raising=False)
                original(self, rows.limit(1), ends)

            patch.setattr(Tiering, "keep", half)
        elif step == "before the commit":
            patch.setattr(Lake, "commit", fails)
        else:
            committed = Lake.commit

            def and_then(self: Lake, *given: Any) -> None:
                committed(self, *given)
                fails()

            patch.setattr(Lake, "commit", and_then)
        with pytest.raises(LakeTrouble, match=f"the end: {step}"):
            job.run()
    job.lake = Lake(job.lake.uri)
    again = job.run()
    assert again.rows_count == (0 if step == "after the commit" else 200)
    assert sorted(value for _, _, value in job.rows()) == numbered(400)
    assert job.values() == numbered(400)


def test_of_two_jobs_at_one_place_the_second_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.topic.produce(numbered(100))
    job.run()
    job.topic.produce(numbered(100, 100))
    commit = Lake.commit

    def as_another(self: Lake, *given: Any) -> Any:
        """The very same, by somebody who was quicker."""
        commit(self, *given)
        return commit(self, *given)

    monkeypatch.setattr(Lake, "commit", as_another)
    with pytest.raises(LakeTrouble, match="another job has written"):
        job.run()
    monkeypatch.undo()
    assert sorted(value for _, _, value in job.rows()) == numbered(200)


def test_a_job_that_cannot_write_ends_with_one_line(job: Job, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file, where directories are to be made", encoding="utf-8")
    job.topic.produce(numbered(10))
    with pytest.raises(LakeTrouble, match="the job failed: ") as raised:
        job.run()
    assert "\n" not in str(raised.value)


def test_a_job_that_began_where_another_has_been_since_adds_nothing(job: Job) -> None:
    job.topic.produce(numbered(100))
    late = Tiering(job.lake, {"kafka.bootstrap.servers": job.topic.bootstrap}, (job.topic.name,))
    with Cluster(job.topic.bootstrap) as cluster:
        start = late.begin(cluster)
    job.run()
    job.topic.produce(numbered(100, 100))
    with pytest.raises(LakeTrouble, match="another job has written"):
        late.run(job.spark, start)
    assert sorted(value for _, _, value in job.rows()) == numbered(100)
    assert job.run().rows_count == 100
    assert sorted(value for _, _, value in job.rows()) == numbered(200)


def test_a_partition_that_comes_as_a_job_begins_is_kept_from_its_beginning(job: Job) -> None:
    job.topic.produce(numbered(100))
    tiering = Tiering(job.lake, {"kafka.bootstrap.servers": job.topic.bootstrap}, (job.topic.name,))
    with Cluster(job.topic.bootstrap) as cluster:
        start = tiering.begin(cluster)
    admin = AdminClient({"bootstrap.servers": job.topic.bootstrap})
    admin.create_partitions([NewPartitions(job.topic.name, 3)])[job.topic.name].result(TIMEOUT_S)
    job.topic.send([{"value": value, "partition": 2} for value in numbered(50, 100)])
    tiering.run(job.spark, start)
    assert sorted(value for _, _, value in job.rows()) == numbered(150)
    assert job.run().rows_count == 0
    assert job.values() == numbered(150)


def test_compacted_topics_are_not_tiered(spark: SparkSession, cluster: DemoCluster, tmp_path: Path) -> None:
    name = f"compacted-{tmp_path.name}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(name, 1, 3, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted])[name].result(TIMEOUT_S)
    tiering = Tiering(Lake(str(tmp_path)), {"kafka.bootstrap.servers": cluster.bootstrap}, (name,))
    with Cluster(cluster.bootstrap) as asked, pytest.raises(LakeTrouble, match="is compacted"):
        tiering.begin(asked)
    words = ["tier", name, "--lake", str(tmp_path), "--bootstrap", cluster.bootstrap]
    assert run(words) == 2, "as with a topic that is not there"


def test_small_files_are_joined_and_what_nobody_needs_is_removed(job: Job) -> None:
    job.topic.produce(numbered(300))
    job.run(batch_offsets=60)
    files = list(Path(job.lake.place(job.topic.name)).rglob("*.parquet"))
    assert len(files) > 4
    job.topic.produce(numbered(1, 300))
    job.run(compact=True, vacuum_hours=0)
    left = [
        path for path in Path(job.lake.place(job.topic.name)).rglob("*.parquet") if "_delta" not in str(path)
    ]
    assert len(left) == 2, "one a partition"
    assert job.values() == numbered(301)


def delete_before(topic: Topic, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    for future in admin.delete_records([TopicPartition(topic.name, 0, offset)]).values():
        future.result(TIMEOUT_S)


def test_what_the_log_forgets_is_read_from_the_lake_and_a_hole_is_an_error(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    job = Job(spark, make_topic(), Lake(str(tmp_path / "lake")))
    job.topic.produce(numbered(100))
    job.run()
    middle = sorted(row.offset for row in job.topic.read(spark, columns="offset").collect())[50]
    delete_before(job.topic, middle)
    assert len(job.topic.values(spark)) == 50
    assert job.values() == numbered(100)
    at = f'{{"{job.topic.name}": {{"0": {middle - 10}}}}}'
    assert job.values(startingOffsets=at) == numbered(60, 40)
    assert job.values(
        startingOffsets=at, endingOffsets=at.replace(str(middle - 10), str(middle))
    ) == numbered(10, 40)
    job.topic.produce(numbered(20, 100))
    beyond = sorted(row.offset for row in job.topic.read(spark, columns="offset").collect())[-5]
    delete_before(job.topic, beyond)
    with pytest.raises(PySparkException, match="what lies between is in neither"):
        job.values()
    with pytest.raises(LakeTrouble, match="what lies between is lost"):
        job.run()


def test_what_is_read_with_the_log_is_one_version_of_the_table_whatever_comes_later(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """What is planned once is read, though by then it is all in the table, and the log has let go of some."""
    job = Job(spark, make_topic(), Lake(str(tmp_path / "lake")))
    job.topic.produce(numbered(100))
    job.run()
    job.topic.produce(numbered(50, 100))
    frame = job.tiered(columns="value,offset")
    assert frame.count() == 150, "Spark plans a frame once"
    first_of_log = sorted(row.offset for row in frame.collect())[100]
    job.topic.produce(numbered(30, 150))
    assert job.run().rows_count == 80
    delete_before(job.topic, first_of_log)
    assert sorted(bytes(row.value) for row in frame.collect()) == numbered(150)
    assert job.values() == numbered(180)
    delete_before(job.topic, first_of_log + 10)
    with pytest.raises(PySparkException, match="are not in the log"):
        frame.collect()
    assert job.values() == numbered(180), "planned anew, it is there"


def test_a_topic_that_was_created_anew_is_not_mixed_with_the_old_one(job: Job, cluster: DemoCluster) -> None:
    job.topic.produce(numbered(10))
    job.run()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([job.topic.name])[job.topic.name].result(TIMEOUT_S)
    Topic(cluster.bootstrap, job.topic.name, 2).produce(numbered(10))
    with pytest.raises(LakeTrouble, match="choose another place"):
        job.run()
    with pytest.raises(PySparkException, match="choose another place"):
        job.values()


def test_a_topic_that_is_created_anew_while_it_is_tiered_is_not_mixed_either(
    job: Job, cluster: DemoCluster
) -> None:
    job.topic.produce(numbered(10))
    tiering = Tiering(job.lake, {"kafka.bootstrap.servers": job.topic.bootstrap}, (job.topic.name,))
    with Cluster(job.topic.bootstrap) as asked:
        start = tiering.begin(asked)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([job.topic.name])[job.topic.name].result(TIMEOUT_S)
    Topic(cluster.bootstrap, job.topic.name, 2).produce(numbered(20))
    with pytest.raises(LakeTrouble, match="was created anew"):
        tiering.run(job.spark, start)
    assert not list(Path(job.lake.uri).rglob("_delta_log")), "nothing was committed"


def test_options_of_tiered_reading_are_checked(job: Job) -> None:
    with pytest.raises(PySparkException, match="needs 'lake'"):
        job.topic.read(job.spark, tiered="true").collect()
    with pytest.raises(PySparkException, match="is for batches"):
        stream = (
            job.spark.readStream.format("quorate")
            .options(**job.topic.options(tiered="true", lake="x"))
            .load()
        )
        stream.writeStream.format("noop").start().processAllAvailable()
    with pytest.raises(PySparkException, match="times are the log's alone"):
        job.tiered(startingTimestamp="5").collect()


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with object_store() as where:
        yield CREDENTIALS | {"AWS_ENDPOINT_URL": where, "AWS_ALLOW_HTTP": "true"}


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")
def test_a_lake_in_an_object_store(spark: SparkSession, make_topic: MakeTopic, s3: dict[str, str]) -> None:
    job = Job(spark, make_topic(), Lake(f"s3://{BUCKET}/lake", s3))
    job.topic.produce(numbered(50))
    assert job.run().rows_count == 50
    job.topic.produce(numbered(50, 50))
    assert job.run().rows_count == 50
    job.topic.produce(numbered(5, 100))
    assert job.values() == numbered(105)


@pytest.mark.proof
def test_the_newest_version_is_what_is_asked_for(job: Job) -> None:
    """A version that was looked at does not change, whatever is committed later."""
    job.topic.produce(numbered(10))
    job.run()
    (topic_id,) = job._ids()
    table = job.lake.table(job.topic.name, topic_id)
    assert table is not None
    before = table.files(), table.next_offset(0)
    job.topic.produce(numbered(10, 10))
    job.run()
    assert (table.files(), table.next_offset(0)) == before
    assert isinstance(table, lakes.Table)


# ---- the command ----


def tier_command(topic: Topic, lake: str, *words: str) -> list[str]:
    given = ("--lake", lake, "--bootstrap", topic.bootstrap, "--master", "local[2]", *words)
    return [sys.executable, "-m", "quorate", "tier", topic.name, *given]


@contextmanager
def written_meanwhile(topic: Topic) -> Iterator[list[bytes]]:
    """What is acknowledged, and grows until the end of the block."""
    sent: list[bytes] = []
    over = Event()

    def send() -> None:
        while not over.wait(POLL_S):
            more = numbered(ROUND_COUNT, len(sent))
            topic.produce(more)
            sent.extend(more)

    sending = Thread(target=send)
    sending.start()
    try:
        yield sent
    finally:
        over.set()
        sending.join()


def uncommitted(job: Job) -> set[str]:
    """Files that lie in the table's place, and no commit has named."""
    place = Path(job.lake.place(job.topic.name))
    lying = {str(path.relative_to(place)) for path in place.glob("partition=*/*.parquet")}
    return lying - {file.path for file in job.files()}


def killed_when(holds: Callable[[], bool], job: Job, directory: Path) -> None:
    """`quorate tier`, on and on, with everything that it has started."""
    said = directory / "said"
    with said.open("wb") as output:
        tiering = subprocess.Popen(
            tier_command(job.topic, job.lake.uri, "--every", "1s"),
            stdout=output,
            stderr=output,
            env=os.environ | {"TMPDIR": str(directory)},
        )
    try:
        deadline = monotonic() + COMMAND_S
        while not holds():
            assert monotonic() < deadline, said.read_text(encoding="utf-8")
            assert tiering.poll() is None, said.read_text(encoding="utf-8")
            sleep(LOOK_S)
    finally:
        if tiering.poll() is None:
            end_with_all(tiering.pid)  # Its Java has a process group of its own.
            tiering.wait()
    assert tiering.returncode == -signal.SIGKILL


@pytest.mark.proof
def test_the_command_that_is_killed_between_commits_goes_on_from_the_lake_with_every_record_once(
    job: Job, tmp_path: Path
) -> None:
    """First right behind a commit, then as soon as a file lies there that no commit has named."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with written_meanwhile(job.topic) as sent:
        killed_when(lambda: bool(job.files()), job, scratch)
        kept, left = job.files(), uncommitted(job)
        killed_when(lambda: job.files() != kept and uncommitted(job) > left, job, scratch)
    done = subprocess.run(
        tier_command(job.topic, job.lake.uri, "--json"),
        check=False,
        text=True,
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(value for _, _, value in job.rows()) == sent
    assert job.values() == sent


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")
def test_the_command_keeps_a_topic_in_a_place_that_options_reach(
    spark: SparkSession, make_topic: MakeTopic, s3: dict[str, str]
) -> None:
    job = Job(spark, make_topic(2), Lake(f"s3://{BUCKET}/commanded", s3))
    job.topic.produce(numbered(60))
    storage = [word for name, value in s3.items() for word in ("--storage", f"{name}={value}")]
    done = subprocess.run(
        tier_command(job.topic, job.lake.uri, *storage, "--json"),
        check=False,
        text=True,
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["records"], said["commits"]) == (60, 1)
    assert said["bytes"] > 0
    assert sorted(value for _, _, value in job.rows()) == numbered(60)


@pytest.mark.proof
@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")
def test_the_command_joins_and_removes_files_of_an_object_store_and_runs_on_executors_elsewhere(
    spark: SparkSession, make_topic: MakeTopic, s3: dict[str, str]
) -> None:
    job = Job(spark, make_topic(2), Lake(f"s3://{BUCKET}/tidied", s3))
    job.topic.produce(numbered(60))
    job.run(batch_offsets=20)
    assert len(job.files()) > 2
    job.topic.produce(numbered(1, 60))
    words = [word for name, value in s3.items() for word in ("--storage", f"{name}={value}")]
    words += ["--compact", "--vacuum", "0", "--master", "local-cluster[2,1,1024]"]
    done = subprocess.run(
        tier_command(job.topic, job.lake.uri, *words),
        check=False,
        text=True,
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stderr
    assert len(job.files()) == 2, "one a partition"
    assert sorted(value for _, _, value in job.rows()) == sorted(numbered(61))


def test_the_command_goes_on_and_says_in_one_line_why_it_ends(
    job: Job, cluster: DemoCluster, tmp_path: Path
) -> None:
    job.topic.produce(numbered(20))
    said = tmp_path / "said"
    with said.open("wb") as output:
        command = tier_command(job.topic, job.lake.uri, "--every", "1 s")
        tiering = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for sent in (20, 40):
            if sent > 20:
                job.topic.produce(numbered(20, 20))
            deadline = monotonic() + COMMAND_S
            while sum(file.rows for file in job.files()) < sent:
                assert monotonic() < deadline, said.read_text(encoding="utf-8")
                assert tiering.poll() is None, said.read_text(encoding="utf-8")
                sleep(POLL_S)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics([job.topic.name])[job.topic.name].result(TIMEOUT_S)
        assert tiering.wait(COMMAND_S) == 1
    finally:
        tiering.kill()
        tiering.wait()
    text = said.read_text(encoding="utf-8")
    for noise in ("Traceback", "Exception", "at org.apache", "=== Streaming Query"):
        assert noise not in text, text
    assert f"topic '{job.topic.name}'" in text.splitlines()[-1]
