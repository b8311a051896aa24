"""Topics as Delta tables, by `deltalake`: what a table holds of a topic, and how more of it is committed.

A table is of one creation of one topic: its id stands in the table's description. How far it goes stands in the
commits themselves, as a transaction of each partition whose version is the next offset to be read. So rows and how
far they go are one commit, and of two writers that begin at the same place Delta refuses the second.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

PARTITION = "partition"
UNCOMMITTED_HOURS_MIN = 24
"""A younger file without a commit may be one that somebody is about to commit."""
OURS = re.compile(rf"{PARTITION}=\d+/([0-9a-f]{{32}}|part-[\w.-]+)\.parquet", re.ASCII)
"""What tasks and Delta's compaction call their files. Others are somebody else's."""
LOCAL = re.compile(r"file:(//)?(?=/)")
"""Spark writes places so, Hadoop with one slash; directories are made under their plain names."""
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
IN_FILES = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(HEADER)),
    ]
)
"""What a file holds. Which partition it is of, Delta says."""
OF_TABLES = Schema.from_arrow(pa.schema([*IN_FILES, (PARTITION, pa.int32())]))


class LakeTrouble(Exception):
    """One line: which table, what is wrong, what to do."""


class NotTiered(LakeTrouble):
    """It is of a kind that no table can hold: whoever asked is wrong, and nothing has happened."""


class File(NamedTuple):
    """A Parquet file with records of one partition, below its table's place."""

    path: str
    size: int
    partition: int
    rows: int
    first: int
    last: int
    """The lowest and highest offset in it."""


class Lake:
    """A place with one table for each topic. `options` are deltalake's storage options."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        if (scheme := LOCAL.match(uri)) is not None:
            uri = unquote(uri[scheme.end() :])
        # Executors of another machine, or another directory, must find the same place.
        self.uri = uri.rstrip("/") if "://" in uri else str(Path(uri).absolute())
        self.options = dict(options or {})

    def place(self, topic: str) -> str:
        return f"{self.uri}/{topic}"

    def files(self, topic: str) -> Any:
        """A file system whose root is the table's place, for Arrow."""
        from pyarrow import fs

        if "://" not in self.uri:
            Path(self.place(topic)).mkdir(parents=True, exist_ok=True)
        return fs.PyFileSystem(DeltaStorageHandler(self.place(topic), self.options))

    def table(self, topic: str, topic_id: str) -> Table | None:
        """The newest version; None: there is none yet. Raises LakeTrouble if it is of another topic."""
        try:
            delta = DeltaTable(self.place(topic), storage_options=self.options)
        except TableNotFoundError:
            return None
        except (OSError, DeltaError) as error:
            raise LakeTrouble(f"{self.place(topic)} cannot be read: {_first_line(error)}") from error
        said = _described(delta)
        if said.get("topic_id") != topic_id:
            whose = f"topic {said['topic']!r} with id {said['topic_id']}" if said else "something else"
            raise LakeTrouble(
                f"{self.place(topic)} is of {whose}, and topic {topic!r} has id {topic_id} now; "
                f"choose another place for it, or move that table away"
            )
        return Table(delta, topic_id, self.options)

    def left(self, topic: str) -> dict[int, int]:
        """Partition → the lowest offset in any file that lies at the topic's place, where there is no table.

        Files of a first job that was killed before its commit, or of a table whose log is lost.
        """
        import pyarrow.parquet as pq
        from pyarrow import fs

        if "://" not in self.uri and not Path(self.place(topic)).is_dir():
            return {}
        found: dict[int, int] = {}
        try:
            files = self.files(topic)
            for info in files.get_file_info(fs.FileSelector("", recursive=True)):
                if OURS.fullmatch(info.path.lstrip("/")) is None:
                    continue
                with files.open_input_file(info.path) as opened:
                    lowest = _lowest_offset(pq, opened)
                number = int(info.path.lstrip("/").split("/")[0].removeprefix(f"{PARTITION}="))
                if lowest is not None:
                    found[number] = min(lowest, found.get(number, lowest))
        except (OSError, DeltaError) as error:
            raise LakeTrouble(f"{self.place(topic)} cannot be read: {_first_line(error)}") from error
        return found

    def commit(
        self,
        topic: str,
        topic_id: str,
        table: Table | None,
        files: Sequence[File],
        ends: Mapping[int, int],
        begun: Mapping[int, int] | None = None,
    ) -> Table:
        """These files, and that everything before `ends` is in the table: both or neither. The table as it is then.
        `begun`: where partitions begin that nothing is known of yet.

        `table` is the one that the files were chosen by: raises LakeTrouble if somebody else has written since.
        """
        said = {"quorate.topic_id": topic_id, "quorate.next": json.dumps(dict(sorted(ends.items())))}
        marks = [Transaction(app_id(topic_id, number), end) for number, end in sorted(ends.items())]
        marks += [Transaction(begun_id(topic_id, number), at) for number, at in sorted((begun or {}).items())]
        properties = CommitProperties(custom_metadata=said, app_transactions=marks)
        adds = [_add(file) for file in files]
        try:
            if table is None:
                create_table_with_add_actions(
                    self.place(topic),
                    OF_TABLES,
                    adds,
                    partition_by=[PARTITION],
                    description=json.dumps({"topic": topic, "topic_id": topic_id}),
                    storage_options=self.options,
                    commit_properties=properties,
                )
            else:
                table.delta.create_write_transaction(
                    [*adds], "append", OF_TABLES, partition_by=[PARTITION], commit_properties=properties
                )
        except (CommitFailedError, FileExistsError) as error:
            raise taken(self, topic) from error
        except (OSError, DeltaError) as error:
            if table is None and self.table(topic, topic_id) is not None:
                raise taken(self, topic) from error
            raise LakeTrouble(f"{self.place(topic)} cannot be written: {_first_line(error)}") from error
        written = self.table(topic, topic_id)
        assert written is not None
        return written


class Table:
    """One version of a table: what it says does not change."""

    def __init__(self, delta: DeltaTable, topic_id: str, options: Mapping[str, str]) -> None:
        self.delta = delta
        self._topic_id = topic_id
        self._options = dict(options)

    @property
    def version(self) -> int:
        return self.delta.version()

    def next_offset(self, partition: int) -> int | None:
        """Everything of the partition before it is here; None: nothing was ever committed of it."""
        version = self.delta.transaction_version(app_id(self._topic_id, partition))
        return None if version is None else int(version)

    def begun(self, partition: int) -> int | None:
        """What is before it was never here; None: nobody has written that down."""
        version = self.delta.transaction_version(begun_id(self._topic_id, partition))
        return None if version is None else int(version)

    def files(self) -> list[File]:
        actions = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        return [
            File(
                row["path"],
                row["size_bytes"],
                int(row[f"partition.{PARTITION}"]),
                row["num_records"],
                row["min.offset"],
                row["max.offset"],
            )
            for row in actions
        ]

    def tidy(self, *, compact: bool, vacuum_hours: int | None) -> None:
        """Few large files instead of many small ones; and those removed that no version of so long ago needs.

        With them go those without a commit, of jobs that were killed.
        """
        try:
            if compact:
                self.delta.optimize.compact()
            if vacuum_hours is not None:
                self.delta.vacuum(vacuum_hours, dry_run=False, enforce_retention_duration=False)
                self._remove_uncommitted(max(vacuum_hours, UNCOMMITTED_HOURS_MIN))
        except (OSError, DeltaError) as error:
            raise LakeTrouble(f"{self.delta.table_uri} cannot be tidied: {_first_line(error)}") from error

    def _remove_uncommitted(self, hours: int) -> None:
        """By Delta's list of what no commit names, but only what is called as ours are: it would take any file."""
        from pyarrow import fs

        found = self.delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        ours = [path for path in found if OURS.fullmatch(path)]
        if ours:
            files = fs.PyFileSystem(DeltaStorageHandler(self.delta.table_uri, self._options))
            for path in ours:
                files.delete_file(path)


def taken(lake: Lake, topic: str) -> LakeTrouble:
    return LakeTrouble(
        f"{lake.place(topic)}: another job has written to it meanwhile; let one alone tier this topic"
    )


def app_id(topic_id: str, partition: int) -> str:
    return f"quorate/{topic_id}/{partition}"


def begun_id(topic_id: str, partition: int) -> str:
    return f"{app_id(topic_id, partition)}/begun"


def _lowest_offset(pq: Any, opened: Any) -> int | None:
    """None: it has no rows, or was never finished."""
    try:
        lowest = pc.min(pq.ParquetFile(opened).read(columns=["offset"]).column("offset")).as_py()
    except (pa.ArrowException, KeyError):
        return None
    return None if lowest is None else int(lowest)


def _add(file: File) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {"offset": file.first},
        "maxValues": {"offset": file.last},
        "nullCount": {"offset": 0},
    }
    now_ms = int(time.time() * 1000)
    return AddAction(file.path, file.size, {PARTITION: str(file.partition)}, now_ms, True, json.dumps(stats))


def _described(delta: DeltaTable) -> dict[str, str]:
    try:
        said = json.loads(delta.metadata().description or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) and {"topic", "topic_id"} <= said.keys() else {}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
