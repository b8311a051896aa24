"""`format("quorate")`: topics as DataFrames, in batches and as streams.

Rows have the columns of Spark's Kafka source. The driver asks the cluster for offsets and plans ranges; each
task connects to the cluster by itself and reads its range, exactly, as Arrow batches. Nodes serve settled
data only, so that nothing read here can be taken back. A node that dies meanwhile does not fail a query: the
client asks whoever leads next, until its time is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorate.client.cluster import EARLIEST, LATEST, Cluster
from quorate.client.ranges import Range, batches_between
from quorate.client.records import arrow_batches
from quorate.spark.options import (
    EARLIEST_NAME,
    LATEST_NAME,
    Options,
    Positions,
    Where,
    WrongOption,
    parse_options,
)
from quorate.spark.planning import (
    StreamOffset,
    at_least,
    at_most,
    begin_of,
    cut_into_tasks,
    joined,
    limited,
    read_stream_offset,
)

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT_ID = "quorate-spark"
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class QuorateSource(DataSource):
    """Found by Spark through the module pyspark_quorate; nobody needs to register it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "quorate"

    def schema(self) -> StructType:
        return StructType([StructField(name, TYPES[name]) for name in self.parsed.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return BatchReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._check(schema)
        if self.parsed.ending != LATEST_NAME:
            raise WrongOption(
                "options 'endingOffsets' and 'endingTimestamp' are for batches; a stream has no end"
            )
        return StreamReader(self.parsed, schema)

    def _check(self, schema: StructType) -> None:
        ours = [(field.name, field.dataType) for field in self.schema()]
        if [(field.name, field.dataType) for field in schema] != ours:
            raise WrongOption(
                'format("quorate") has a schema of its own; leave .schema() out, and choose with the option '
                "'columns'"
            )


class RangePartition(InputPartition):
    """One task: a range of offsets, and the id of the topic that they were planned for."""

    def __init__(self, wanted: Range, topic_id: str) -> None:
        super().__init__(tuple(wanted))
        self.topic_id = topic_id

    @property
    def wanted(self) -> Range:
        return Range(*self.value)


def connected(options: Options) -> Cluster:
    return Cluster(
        options.bootstrap, client_id=CLIENT_ID, timeout_s=options.timeout_s, security=options.security
    )


def read_range(options: Options, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not isinstance(partition, RangePartition):
        return  # Spark plans one task without a value when there is nothing to read.
    wanted = partition.wanted
    with connected(options) as cluster:
        cluster.expect(wanted.topic, bytes.fromhex(partition.topic_id))
        batches = batches_between(cluster, wanted, missing_is_error=options.fail_on_data_loss)
        yield from arrow_batches(batches, wanted, to_arrow_schema(schema, timezone="UTC"))


# ---- batches ----


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.row_schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        with connected(options) as cluster:
            ids = topic_ids(cluster, options.topics)
            starting = EARLIEST_NAME if options.starting is None else options.starting
            begin = resolve(cluster, options.topics, starting, "startingOffsets")
            end = resolve(cluster, options.topics, options.ending, "endingOffsets")
        for topic, number, first, last in joined(begin, end):
            if first > last and isinstance(options.ending, dict):
                raise WrongOption(
                    f"{topic}-{number} would start at offset {first} and end at {last}, before it"
                )
        return plan(begin, end, ids, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, self.row_schema, partition)


# ---- streams ----


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver, as long as its query; only `read` runs elsewhere."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.row_schema = schema
        self._cluster: Cluster | None = None
        self._initial: StreamOffset | None = None
        self._target: Positions | None = None
        """Where a query ends that only wants what is there now."""
        self._seen: Positions = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            starting = LATEST_NAME if self.options.starting is None else self.options.starting
            ids = topic_ids(self.cluster, self.options.topics)
            positions = resolve(self.cluster, self.options.topics, starting, "startingOffsets")
            self._initial = StreamOffset(positions, ids, is_initial=True)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = read_stream_offset(start)
        ids = self._same_topics(begun)
        begin = begun.positions
        end = self._latest()
        if self._target is not None:
            end = at_most(end, self._target)
        end = at_least(end, begin)
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        if all(first >= last for _, _, first, last in joined(begin, end)):
            return start
        first_start = begin if begun.is_initial else None
        return StreamOffset(end, ids, first_start=first_start).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return StreamOffset(self._seen, {}).to_json() if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = read_stream_offset(start), read_stream_offset(end)
        return plan(begin_of(begun, ended), ended.positions, ended.ids, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, self.row_schema, partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            options = self.options
            self._cluster = connected(options)
        return self._cluster

    def _latest(self) -> Positions:
        """Never less than what was seen before, whoever answers."""
        latest = resolve(self.cluster, self.options.topics, LATEST_NAME, "endingOffsets")
        self._seen = at_least(latest, self._seen)
        return self._seen

    def _same_topics(self, begun: StreamOffset) -> dict[str, str]:
        for topic, topic_id in begun.ids.items():
            self.cluster.expect(topic, bytes.fromhex(topic_id))
        return topic_ids(self.cluster, self.options.topics)


# ---- asking the cluster ----


def topic_ids(cluster: Cluster, topics: Sequence[str]) -> dict[str, str]:
    return {name: topic.id.hex() for name, topic in cluster.topics(topics).items()}


def resolve(cluster: Cluster, topics: Sequence[str], where: Where, option: str) -> Positions:
    """Real offsets, for every partition of every topic."""
    found = cluster.topics(topics)
    if isinstance(where, dict):
        check_named(where, {name: len(topic.partitions) for name, topic in found.items()}, option)
    positions: Positions = {}
    for name, topic in found.items():
        numbers = [partition.number for partition in topic.partitions]
        bounds = cluster.offsets(name, dict.fromkeys(numbers, LATEST))
        latest = {number: offset or 0 for number, offset in bounds.items()}
        if where == LATEST_NAME:
            positions[name] = latest
        elif where == EARLIEST_NAME:
            positions[name] = _asked(cluster, name, dict.fromkeys(numbers, EARLIEST), latest)
        elif isinstance(where, int):
            # No record that young: from the end on.
            positions[name] = _asked(cluster, name, dict.fromkeys(numbers, where), latest)
        else:
            assert isinstance(where, dict)
            positions[name] = _given(cluster, name, where[name], latest, option)
    return positions


def _asked(
    cluster: Cluster, topic: str, wanted: Mapping[int, int], latest: Mapping[int, int]
) -> dict[int, int]:
    found = cluster.offsets(topic, wanted)
    return {number: latest[number] if offset is None else offset for number, offset in found.items()}


def _given(
    cluster: Cluster, topic: str, given: Mapping[int, int], latest: Mapping[int, int], option: str
) -> dict[int, int]:
    """Offsets as a person wrote them; -2 is the earliest and -1 the latest, as in Spark's Kafka source."""
    earliest = [number for number, offset in given.items() if offset == EARLIEST]
    named = _asked(cluster, topic, dict.fromkeys(earliest, EARLIEST), latest) if earliest else {}
    for number, offset in given.items():
        if offset > latest[number]:
            raise WrongOption(
                f"option {option!r}: {topic}-{number} ends at offset {latest[number]}, before {offset}"
            )
        if offset == LATEST:
            named[number] = latest[number]
        elif offset >= 0:
            named[number] = offset
    return named


def check_named(where: Positions, partitions_counts: Mapping[str, int], option: str) -> None:
    """Offsets name the partitions that there are: all of them and no other."""
    for topic in where:
        if topic not in partitions_counts:
            raise WrongOption(f"option {option!r} names topic {topic!r}, which is not subscribed")
    for topic, count in partitions_counts.items():
        named = set(where.get(topic, {}))
        if missing := sorted(set(range(count)) - named):
            raise WrongOption(f"option {option!r} does not name {topic}-{missing[0]}; name every partition")
        if unknown := sorted(named - set(range(count))):
            raise WrongOption(
                f"option {option!r}: topic {topic!r} has no partition {unknown[0]}; it has {count}"
            )


# ---- helpers ----


def plan(begin: Positions, end: Positions, ids: Mapping[str, str], options: Options) -> list[InputPartition]:
    return [
        RangePartition(wanted, ids[wanted.topic])
        for wanted in cut_into_tasks(begin, end, options.partitions_min)
    ]
