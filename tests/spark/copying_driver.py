"""A driver that copies a topic into another, or into a table, and breaks where `test_exactly_once` tells it to.

What it does to itself is said in the environment, as JSON: at which step of a micro-batch (`at`), and what happens
there (`does`). It happens once, for the first who gets there; a file remembers that.

- `driver`: every process of the driver's session ends at once, its Java, Python workers and executors too.
- `executor`: the Java of the executor that runs this task ends at once.
- `node`: a process of the cluster, whose number is said, ends at once.
- `late`: whoever is there stands still until somebody else's has been committed, and goes on then.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quorate.client.connection import Connection
from quorate.client.joint import Joint
from quorate.client.tables import TableGroup
from quorate.spark import table_writing
from quorate.spark.options import names_table, parse_options, parse_table_options, parse_write_options
from quorate.spark.session import local_session
from quorate.spark.source import QuorateSource, StreamReader
from quorate.spark.table_writing import WRITERS, TableStreamWriter
from quorate.spark.tables import CHANGE_TYPE, DELETE
from quorate.spark.writing import StreamWriter
from quorate.tables import Operation, Replace

STEPS = (
    "planning",
    "planned",
    "reading",
    "staging",
    "staged",
    "committing",
    "deciding",
    "committed",
    "between",
)
"""Of a micro-batch, in the order in which they come. Deciding: the commit is sent, and its answer not taken."""
TABLE_STEPS = ("staging", "staged", "committing", "deciding", "committed")
"""Where it matters for a table: a task has staged a part; all of its parts; the driver begins to commit; its
transaction is on the way; it is through, and Spark has not written that down."""
ON_THE_WAY_S = 0.003
TEXT = "repeat(cast(value as string), 1000)"
"""Large enough for a task to stage several parts."""
TABLE_ROWS = (
    "cast(cast(value as string) as bigint) as id",
    f"{TEXT} as text",
    f"if(cast(value as string) % 5 = 0, '{DELETE}', 'upsert') as {CHANGE_TYPE}",
)
LATE_S = 120.0
POLL_S = 0.02
PROCESS = "COPYING_DRIVER_PROCESS"
"""Which one the driver is: its Java, and the workers that Java starts, find it in their environment, too."""
GIVEN: dict[str, Any] = json.loads(os.environ.get("COPYING_DRIVER", "{}"))
"""This file is a driver's main module: Spark gives it to workers by value, and this with it."""


def note(*words: object) -> None:
    """One line for the test to read; short enough to be written in one piece."""
    with Path(GIVEN["notes"]).open("a", encoding="utf-8") as notes:
        notes.write(" ".join(map(str, words)) + "\n")


def reached(step: str) -> None:
    note("reached", step)
    if GIVEN.get("at") != step:
        return
    try:
        Path(GIVEN["flag"]).touch(exist_ok=False)
    except FileExistsError:
        return
    note(GIVEN["does"], step)
    {"driver": end_driver, "executor": end_executor, "node": end_node, "late": stand_still}[GIVEN["does"]]()


def end_driver() -> None:
    """The driver first, and then whatever it has started: its Java, and the workers of that, maybe ourselves."""
    end_with_all(int(os.environ[PROCESS]))


def end_with_all(process: int) -> None:
    """A process and whatever it has started; ourselves last, if we are one of them."""
    parents = {each: parent_of(each) for each in processes()}
    ended = [process]
    for one in ended:
        ended += [each for each, parent in parents.items() if parent == one]
    for one in sorted(ended, key=os.getpid().__eq__):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def parent_of(process: int) -> int:
    """0: it has ended just now."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(told.rpartition(")")[2].split()[1])


def end_executor() -> None:
    """A worker's parent is Spark's daemon of workers, and that one's the executor."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)


def end_node() -> None:
    os.kill(GIVEN["process"], signal.SIGKILL)


def stand_still() -> None:
    begun = len(Path(GIVEN["notes"]).read_text(encoding="utf-8"))
    wait_for("reached committed", behind=begun)
    note("late goes on")


def wait_for(words: str, *, behind: int = 0) -> None:
    """Until somebody notes what matches, behind so many characters: batches before this one were committed, too."""
    deadline = time.monotonic() + LATE_S
    while not re.search(words, (noted := Path(GIVEN["notes"]).read_text(encoding="utf-8"))[behind:]):
        assert time.monotonic() < deadline, f"nobody noted {words!r}: {noted}"
        time.sleep(POLL_S)


class BreakingReader(StreamReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        latest = super().latestOffset(start, limit)
        if latest != start:
            reached("planning")
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        reached("planned")
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            reached("reading")

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says so while it plans the next batch: this one is in its own log by then."""
        reached("between")
        super().commit(end)


class Breaking:
    """What both sinks do where they break."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        who = f"task {context.partitionId()} attempt {context.attemptNumber()}"
        note(who, "began")
        try:
            with self.breaking_within():
                message: WriterCommitMessage = super().write(self.rows(iterator))  # type: ignore[misc]
        except BaseException as error:
            note(who, "raised", type(error).__name__, error)
            raise
        reached("staged")
        note(who, "ended")
        return message

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    def breaking_within(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reached("committing")
        with self.breaking_within():
            super().commit(messages, batchId)  # type: ignore[misc]
        reached("committed")


class BreakingWriter(Breaking, StreamWriter):
    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if half:
                reached("staging")
            yield batch.slice(half)

    def breaking_within(self) -> AbstractContextManager[Any]:
        commit, answer = Joint.commit, Connection._answer

        def answering(connection: Connection, deadline: float) -> bytearray:
            time.sleep(ON_THE_WAY_S)
            reached("deciding")
            return answer(connection, deadline)

        def deciding(joint: Joint, *given: Any) -> Any:
            joint.last()  # Whoever decides is found by that: the first who is asked now is the right one.
            with patch.object(Connection, "_answer", answering):
                return commit(joint, *given)

        return patch.object(Joint, "commit", deciding)


class BreakingTableWriter(Breaking, TableStreamWriter):
    def breaking_within(self) -> AbstractContextManager[Any]:
        kept, stage, execute = ExitStack(), table_writing.stage_parts, TableGroup.execute

        def staging(*given: Any) -> int:
            count = stage(*given)
            note("parts staged", count)
            reached("staging")
            return count

        def deciding(group: TableGroup, *operations: Operation, **given: Any) -> Any:
            # Alone it says that a run has begun.
            if len(operations) > 1 and any(
                isinstance(each, Replace) and each.table == WRITERS.name for each in operations
            ):
                Timer(ON_THE_WAY_S, reached, ["deciding"]).start()
            return execute(group, *operations, **given)

        kept.enter_context(patch.object(table_writing, "stage_parts", staging))
        kept.enter_context(patch.object(TableGroup, "execute", deciding))
        return kept


class BreakingSource(QuorateSource):
    @classmethod
    def name(cls) -> str:
        return "breaking"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return BreakingReader(parse_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if names_table(self.options):
            return BreakingTableWriter(parse_table_options(self.options, writes=True), schema)
        return BreakingWriter(parse_write_options(self.options), schema)


def main() -> None:
    os.environ[PROCESS] = str(os.getpid())
    with local_session("copying", master=GIVEN["master"], settings=GIVEN["settings"]) as spark:
        spark.dataSource.register(BreakingSource)
        read = {"bootstrap": GIVEN["bootstrap"], "subscribe": GIVEN["source"], "columns": "key,value"}
        frame = spark.readStream.format("breaking").options(startingOffsets="earliest", **read).load()
        if "table" in GIVEN["target"]:
            frame = frame.selectExpr(*TABLE_ROWS)
        writer = frame.writeStream.format("breaking").option("bootstrap", GIVEN["bootstrap"])
        writer = writer.options(**GIVEN["target"]).option("checkpointLocation", GIVEN["checkpoint"])
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        # With the session the executors end, and whoever is late there.
        wait_for(GIVEN["awaits"])


if __name__ == "__main__":
    main()
