"""Files of a lake, as a task of `quorate tier` writes them: Parquet, in the order of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from quorate.spark.lake import IN_FILES, PARTITION, File, Lake

FILE_BYTES_TARGET = 1 << 30
"""A task whose file has so many begins another."""
GROUP_BYTES_TARGET = 64 << 20
"""Rows are held until there are so many bytes of them, and are then a row group."""
PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    # Keys come again and again, values hardly ever: a dictionary of them costs time and is then given up.
    "use_dictionary": ["key", "timestampType", "headers.list.element.key"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
}


def write_files(batches: Iterator[pa.RecordBatch], lake: Lake, topic: str, partition: int) -> Iterator[File]:
    """Rows of one partition, in the order of their offsets: one file, as a rule; none if there are no rows."""
    writing: _Writing | None = None
    for batch in batches:
        if writing is None:
            writing = _Writing(lake, topic, partition)
        writing.add(batch)
        if writing.bytes_count >= FILE_BYTES_TARGET:
            yield writing.close()
            writing = None
    if writing is not None:
        yield writing.close()


class _Writing:
    """One file on its way; its name is nobody else's."""

    def __init__(self, lake: Lake, topic: str, partition: int) -> None:
        self._files = lake.files(topic)
        self._partition = partition
        self._path = f"{PARTITION}={partition}/{uuid4().hex}.parquet"
        self._stream = self._files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._stream, IN_FILES, **PARQUET)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows_count = 0
        self._first = -1
        self._last = -1

    @property
    def bytes_count(self) -> int:
        return int(self._stream.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        assert rows.num_rows
        offsets = rows.column("offset")
        if self._first < 0:
            self._first = offsets[0].as_py()
        assert offsets[0].as_py() > self._last, "a log is read in the order of its offsets"
        self._last = offsets[-1].as_py()
        self._rows_count += rows.num_rows
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES_TARGET:
            self._write()

    def _write(self) -> None:
        if self._held:
            group = pa.Table.from_batches(self._held)
            self._writer.write_table(group, row_group_size=group.num_rows)
        self._held = []
        self._held_bytes = 0

    def close(self) -> File:
        self._write()
        self._writer.close()
        size = self.bytes_count
        self._stream.close()
        return File(self._path, size, self._partition, self._rows_count, self._first, self._last)
