"""`format("quorate")` as a sink: each batch is in once for whoever reads what is committed.

A streaming query's batch is the joint transaction (query id, batch id): Spark gives a batch that it repeats after a
restart the same two, and the cluster knows what is in. Tasks stage their rows (`staging`), the driver commits those
of the attempts that Spark has chosen. One run of a query is one run of the app, so that an older driver is fenced.

A batch write is the transaction (txnAppId, txnVersion), or one under a name that nobody else has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from logging import getLogger
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorate.client.cluster import Cluster
from quorate.spark.options import WriteOptions, WrongOption
from quorate.spark.staging import CLIENT_ID, Staged, Transaction, joint_for, stage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

LOG = getLogger("quorate.spark")
QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""Local properties that Spark gives the tasks of a streaming query."""
QUERY_APP = "spark-query-"
"""What the names of queries begin with, whose runs are those of their drivers."""
NUMBERLESS = "spark-write-"
"""What the names of those begin with who write once, and nobody repeats it."""
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(), LongType(), ShortType()),
    "timestamp": (TimestampType(),),
    "headers": (HEADERS,),
}


def check_schema(options: WriteOptions, schema: StructType) -> None:
    """Raises WrongOption."""
    if "value" not in schema.names:
        raise WrongOption("what is written to a topic needs a column 'value', binary or string")
    if options.topic is None and "topic" not in schema.names:
        raise WrongOption(
            "it is not said which topic to write to; give the option 'topic' or a column 'topic'"
        )
    for field in schema:
        if field.name not in TYPES:
            raise WrongOption(
                f"column {field.name!r} has no place in a topic, which has: {', '.join(TYPES)}; "
                f"put it into the value, for example with to_json(struct(*))"
            )
        wanted = TYPES[field.name]
        kind = field.dataType.simpleString()  # Whatever may be null in it.
        if kind not in [each.simpleString() for each in wanted]:
            names = " or ".join(each.simpleString() for each in wanted)
            raise WrongOption(f"column {field.name!r} is {kind}, and must be {names}")


def check_topic(options: WriteOptions) -> None:
    """Once, before tasks begin: each would find it out by itself. Raises UnknownTopic, and what Cluster raises.

    Streams are not asked for: what they write to may be made, or back, before there is anything to be written.
    """
    if options.topic is None:
        return
    with Cluster(
        options.bootstrap, client_id=CLIENT_ID, timeout_s=options.timeout_s, security=options.security
    ) as cluster:
        cluster.topics([options.topic])


def check_stream(app: str | None) -> None:
    """Raises WrongOption."""
    if app is not None:
        raise WrongOption("options 'txnAppId' and 'txnVersion' are for batches; a stream numbers its own")


def task_context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def transaction_of(context: TaskContext) -> Transaction:
    """Of the micro-batch that a task writes."""
    query, batch, run = (context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    if not query or not batch or not run:
        raise RuntimeError("Spark does not tell its tasks which query and batch they are of")
    return Transaction(f"{QUERY_APP}{query}", int(batch), run)


def batch_of(app: str | None, version: int | None, target: str) -> Transaction:
    """Of a batch write. Versions are counted for each target, as Delta's are for each table: what is written to two
    under one version is in both. No topic and no table has a slash in its name.
    """
    run = uuid4().hex
    if app is None:
        return Transaction(f"{NUMBERLESS}{run}", 0, run)
    assert version is not None
    return Transaction(f"spark-batch-{app}/{target}", version, run)


def is_run(transaction: Transaction) -> bool:
    """Whether a query's run writes it. A batch write has a run of its own each time: none is older or newer."""
    return transaction.app.startswith(QUERY_APP)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(options, schema)
        check_stream(options.app)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = task_context()
        task, attempt = context.partitionId(), context.taskAttemptId()
        return stage(self.options, transaction_of(context), iterator, task=task, attempt=attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Where no task has said anything, nobody knows here which query it is: its next run fences this one."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            abort(self.options, staged[0].transaction)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(options, schema)
        check_topic(options)
        self.options = options
        self.transaction = batch_of(options.app, options.version, options.topic or "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = task_context()
        task, attempt = context.partitionId(), context.taskAttemptId()
        return stage(self.options, self.transaction, iterator, task=task, attempt=attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort(self.options, self.transaction)


def commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks staged, all of it or nothing; raises CommitFailed and RunFenced."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    transaction = staged[0].transaction
    if not any(message.rows_count for message in staged):  # No number is taken.
        if is_run(transaction):
            with joint_for(options, transaction) as joint:
                joint.begin(transaction.number)
        return
    parts = [message.part for message in staged if message.part is not None]
    is_in = any(message.already_in for message in staged)
    if not is_in:
        with joint_for(options, transaction) as joint:
            is_in = joint.commit(transaction.number, parts).already_in
    if is_in:
        rows_count = sum(message.rows_count for message in staged)
        LOG.warning(
            "%s: number %d is already in, and its %d rows are not written again",
            transaction.app,
            transaction.number,
            rows_count,
        )


def abort(options: WriteOptions, transaction: Transaction) -> None:
    """Give up what tasks staged, or stage yet. What is in already stays in, whatever Spark thinks became of it."""
    with joint_for(options, transaction) as joint:
        if not joint.abort(transaction.number):
            LOG.warning("%s: number %d is in, and is not undone", transaction.app, transaction.number)
