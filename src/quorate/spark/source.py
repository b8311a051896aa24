"""`format("quorate")`: topics as DataFrames, in batches and as streams.

Rows have the columns of Spark's Kafka source. The driver asks the cluster for offsets and plans ranges; each
task connects to the cluster by itself and reads its range, exactly, as Arrow batches. Nodes serve settled
data only, so that nothing read here can be taken back. A node that dies meanwhile does not fail a query: the
client asks whoever leads next, until its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from logging import getLogger
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
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

from quorate.client.cluster import Cluster
from quorate.client.errors import (
    ClientError,
    OffsetsMissing,
    PartitionsGone,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
)
from quorate.client.groups import set_positions
from quorate.client.ranges import Range, batches_between
from quorate.client.records import arrow_batches
from quorate.spark.asking import Found, check_order, earliest, find, resolve, selects
from quorate.spark.options import (
    EARLIEST_NAME,
    LATEST_NAME,
    Options,
    Positions,
    TableOptions,
    WrongOption,
    names_table,
    parse_options,
    parse_table_options,
    parse_write_options,
)
from quorate.spark.planning import (
    StreamOffset,
    at_least,
    at_most,
    begin_of,
    count_between,
    cut_into_tasks,
    limited,
    read_stream_offset,
    with_others,
)
from quorate.spark.values import BAD_VALUE, RAW, raw_schema, typed

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT_ID = "quorate-spark"
REPORT_S, REPORT_LAST_S, REPORT_AGAIN_S = 1.5, 10.0, 30.0
"""How long a micro-batch may wait for a group to hear how far the query is; how long the end of a query may, that
only wanted what was there; how soon after a failure it is told again. Only whoever watches lag wants to know."""
LOG = getLogger("quorate.spark")
"""What it says goes to the log of the driver or executor."""
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    BAD_VALUE: BinaryType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class QuorateSource(DataSource):
    """Found by Spark through the module pyspark_quorate; nobody needs to register it.

    A streaming query starts a process of its own to be asked for offsets: it loads what it uses, and no more.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @property
    def parsed(self) -> Options:
        """For reading; what is written has options of its own."""
        return parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        return "quorate"

    def schema(self) -> StructType | str:
        """As text where values have a schema: only Spark reads such."""
        if names_table(self.options):
            from quorate.spark.tables import schema_of

            return schema_of(parse_table_options(self.options, writes=False))
        options = self.parsed
        if options.value_format == RAW:
            return StructType([StructField(name, TYPES[name]) for name in options.columns])
        kinds = {name: TYPES[name].simpleString() for name in options.columns}
        kinds["value"] = f"struct<{options.value_schema}>"
        return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        if names_table(self.options):
            from quorate.spark.tables import TableReader

            return TableReader(self._table_options(schema), schema)
        self._check(schema)
        if self.parsed.lake:
            from quorate.spark.tiered import TieredReader

            return TieredReader(self.parsed, schema)
        return BatchReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            return self._stream_reader(schema)
        except (WrongOption, ClientError) as wrong:
            return RefusedReader(wrong)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if names_table(self.options):
            from quorate.spark.tables import TableStreamReader

            return TableStreamReader(self._table_options(schema), schema)
        self._check(schema)
        if self.parsed.ending != LATEST_NAME:
            raise WrongOption("options 'ending…' are for batches; a stream has no end")
        if self.parsed.lake:
            raise WrongOption("option 'tiered' is for batches; a stream reads the log")
        return StreamReader(self.parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise WrongOption('rows are added, or put in by key; write with .mode("append")')
        if names_table(self.options):
            from quorate.spark.table_writing import TableBatchWriter

            return TableBatchWriter(parse_table_options(self.options, writes=True), schema)
        from quorate.spark.writing import BatchWriter

        return BatchWriter(parse_write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """`overwrite` is said in complete mode: each batch's whole result is then appended, as by Kafka's sink."""
        if names_table(self.options):
            from quorate.spark.table_writing import TableStreamWriter

            return TableStreamWriter(parse_table_options(self.options, writes=True), schema)
        from quorate.spark.writing import StreamWriter

        return StreamWriter(parse_write_options(self.options), schema)

    def _table_options(self, schema: StructType) -> TableOptions:
        from quorate.spark.tables import check_schema

        options = parse_table_options(self.options, writes=False)
        check_schema(options, schema)
        return options

    def _check(self, schema: StructType) -> None:
        options = self.parsed
        typed_value = options.value_format != RAW
        ours = [(name, None if typed_value and name == "value" else TYPES[name]) for name in options.columns]
        given = [
            (each.name, None if typed_value and each.name == "value" else each.dataType) for each in schema
        ]
        if given != ours:
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


def connected(options: Options, timeout_max_s: float = inf) -> Cluster:
    timeout_s = min(options.timeout_s, timeout_max_s)
    return Cluster(options.bootstrap, client_id=CLIENT_ID, timeout_s=timeout_s, security=options.security)


def read_range(options: Options, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not isinstance(partition, RangePartition):
        return  # Spark plans one task without a value when there is nothing to read.
    rows = to_arrow_schema(schema, timezone="UTC")
    if options.value_format == RAW:
        yield from read_records(options, rows, partition)
    else:
        raw = read_records(options, raw_schema(rows), partition)
        yield from typed(raw, rows, options.value_format, str(partition.wanted))


def read_records(options: Options, rows: pa.Schema, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    """The records of a range, exactly, with these columns."""
    wanted = partition.wanted
    with connected(options) as cluster:
        cluster.expect(wanted.topic, bytes.fromhex(partition.topic_id))
        while wanted.first < wanted.end:
            try:
                yield from arrow_batches(batches_between(cluster, wanted, committed=True), wanted, rows)
                return
            except OffsetsMissing as missing:
                if options.fail_on_data_loss:
                    raise
                say_lost(missing)
                # What is lost may end inside a batch: nothing before that place is handed on.
                wanted = wanted._replace(first=missing.end)
            except (TopicReplaced, UnknownPartition, UnknownTopic) as error:
                if options.fail_on_data_loss:
                    raise
                say_lost(f"what was not read of {wanted}: {error}")
                return


def say_lost(what: object) -> None:
    LOG.warning("data loss, as failOnDataLoss is false: %s", what)


# ---- batches ----


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.row_schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        with connected(options) as cluster:
            found = find(cluster, options.selection)
            starting = EARLIEST_NAME if options.starting is None else options.starting
            begin = resolve(cluster, found, starting, "startingOffsets", unnamed=EARLIEST_NAME)
            end = resolve(cluster, found, options.ending, "endingOffsets", unnamed=LATEST_NAME)
        if isinstance(options.ending, dict):
            check_order(begin, end)
        return plan(begin, end, found.ids, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, self.row_schema, partition)


# ---- streams ----


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says what is wrong when it is asked first. What is said before that, Spark 4.3 buries under an error of its
    own: it stops a reader that it does not have.
    """

    def __init__(self, wrong: Exception) -> None:
        self.wrong = wrong

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self.wrong

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self.wrong

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self.wrong

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self.wrong

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.wrong


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver, as long as its query; only `read` runs elsewhere."""

    unnamed = LATEST_NAME
    """Where a query begins that is not told, and partitions that its JSON does not name."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.row_schema = schema
        self._cluster: Cluster | None = None
        self._initial: StreamOffset | None = None
        self._target: Positions | None = None
        """Where a query ends that only wants what is there now,"""
        self._target_ids: Mapping[str, str] = {}
        """… and of which topics these are the offsets."""
        self._seen: Positions = {}
        self._missed: list[str] = []
        """Topics that were read, are gone, and that has been said: nobody waits for them again."""
        self._planned_at = -inf
        self._reported: Positions = {}
        self._report_from = -inf

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            starting = self.unnamed if self.options.starting is None else self.options.starting
            found = find(self.cluster, self.options.selection)
            positions = resolve(self.cluster, found, starting, "startingOffsets", unnamed=self.unnamed)
            self._initial = StreamOffset(positions, found.ids, is_initial=True)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = read_stream_offset(start)
        found = self._found(begun)
        self._report(begun, found)
        fresh = self._fresh(begun, found)
        begin = begin_of(begun._replace(is_initial=False), StreamOffset({}, found.ids, first_start=fresh))
        end = self._latest(found)
        if self._target is not None:
            end = at_most(end, self._target)
        end = with_others(at_least(end, begin), begin)
        if not (available := count_between(begin, end)) or self._waits_for_more(available, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        self._planned_at = monotonic()
        first_start = begin if begun.is_initial else fresh
        return StreamOffset(end, found.ids, first_start=first_start or None).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        least, most = self.options.offsets_per_trigger_min, self.options.offsets_per_trigger_max
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        found = find(self.cluster, self.options.selection, self._gone())
        self._target, self._target_ids = dict(self._latest(found)), found.ids

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

    def _report(self, begun: StreamOffset, found: Found) -> None:
        """How far the query is, for whoever watches its group; nothing is read from there.

        Spark asks for the next batch when the one before is done. Its `commit` would not hear of the last one.
        """
        group, positions = self.options.group, begun.positions
        if not group or begun.is_initial or positions == self._reported:
            return
        is_last = positions == self._target
        if monotonic() < self._report_from and not is_last:
            return
        there = {(topic, number) for topic, numbers in found.numbers.items() for number in numbers}
        every = {(topic, number): at for topic, parts in positions.items() for number, at in parts.items()}
        flat = {each: at for each, at in every.items() if each in there}
        try:
            with connected(self.options, REPORT_LAST_S if is_last else REPORT_S) as hurried:
                set_positions(hurried, group, flat)
            self._reported = positions
        except ClientError as error:
            self._report_from = monotonic() + REPORT_AGAIN_S
            LOG.warning("the positions of group %r are not written: %s", group, error)

    def _found(self, begun: StreamOffset) -> Found:
        """What there is to read now. What was read and is no more is data loss, unless nobody wants it any more.

        Where loss is accepted, its id is among those found, so that the offset keeps its place: what comes back is
        read on from there, and not again.
        """
        for topic, topic_id in begun.ids.items():
            self.cluster.expect(topic, bytes.fromhex(topic_id))
        known = {
            topic: self._wanted(topic, parts)
            for topic, parts in begun.positions.items()
            if selects(self.options.selection, topic)
        }
        looked_for = {topic: numbers for topic, numbers in known.items() if topic not in self._missed}
        found = find(self.cluster, self.options.selection, self._gone(), looked_for)
        self._missed = [topic for topic in known if topic not in found.ids]
        for topic, numbers in known.items():
            there = found.numbers.get(topic, ())
            lost = [number for number in numbers if number not in there]
            if lost and found.ids.get(topic) == begun.ids[topic]:
                if self.options.fail_on_data_loss:
                    raise PartitionsGone(topic, lost)
                say_lost(PartitionsGone(topic, lost))
        found = found._replace(ids={topic: begun.ids[topic] for topic in self._missed} | found.ids)
        for topic in begun.positions:
            if begun.ids.get(topic) != found.ids.get(topic):
                # Offsets of another topic say nothing about this one.
                self._seen.pop(topic, None)
                if self._target is not None and self._target_ids.get(topic) != found.ids.get(topic):
                    self._target.pop(topic, None)
        return found

    def _wanted(self, topic: str, parts: Mapping[int, int]) -> list[int]:
        assigned = dict(self.options.selection.partitions).get(topic)
        return sorted(number for number in parts if assigned is None or number in assigned)

    def _gone(self) -> Callable[[str], None] | None:
        return None if self.options.fail_on_data_loss else say_lost

    def _fresh(self, begun: StreamOffset, found: Found) -> Positions:
        """Where partitions begin that this query has not seen: at the first offset that is kept."""
        fresh: Positions = {}
        for topic, numbers in found.numbers.items():
            known = begun.positions.get(topic, {}) if begun.ids.get(topic) == found.ids[topic] else {}
            if new := [number for number in numbers if number not in known]:
                fresh[topic] = earliest(self.cluster, topic, new)
        return fresh

    def _waits_for_more(self, available: int, limit: ReadLimit) -> bool:
        least = self.options.offsets_per_trigger_min
        if least is None or available >= least:
            return False
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return monotonic() - self._planned_at < self.options.trigger_delay_max_s

    def _latest(self, found: Found) -> Positions:
        """Never less than what was seen before, whoever answers."""
        latest = resolve(self.cluster, found, LATEST_NAME, "endingOffsets", unnamed=LATEST_NAME)
        self._seen = at_least(latest, self._seen)
        return self._seen


# ---- helpers ----


def plan(begin: Positions, end: Positions, ids: Mapping[str, str], options: Options) -> list[InputPartition]:
    return [
        RangePartition(wanted, ids[wanted.topic])
        for wanted in cut_into_tasks(begin, end, options.partitions_min, options.task_records_max)
    ]
