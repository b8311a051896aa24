"""Values that are more than bytes: JSON with a schema, and Arrow streams.

JSON is read by Arrow, thousands of values at once. Each is put into an object on a line of its own, so that nothing
in one value can reach into the next: a line that is no JSON spoils the whole, and is found by halving. What cannot
be read is an error, or is kept in the column `badValue`, as chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from quorate.client.errors import BadAnswer

RAW, JSON, ARROW = "raw", "json", "arrow"
BAD_VALUE = "badValue"
VALUE = "value"
SAID_BYTES = 80


class BadValue(BadAnswer):
    def __init__(self, where: str, form: str, value: bytes) -> None:
        shown = value[:SAID_BYTES].decode("utf-8", "replace")
        super().__init__(
            f"{where}: a value is not {form} of the schema: {shown!r}; mend it, or set badRecords to column, "
            f"which keeps it apart"
        )


def raw_schema(schema: pa.Schema) -> pa.Schema:
    """What is asked of the log, where rows of this schema are wanted."""
    fields = [field for field in schema if field.name != BAD_VALUE]
    return pa.schema([pa.field(VALUE, pa.binary()) if field.name == VALUE else field for field in fields])


def typed(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, where: str
) -> Iterator[pa.RecordBatch]:
    """The same rows with their values read; of an Arrow stream, a row for each of its rows."""
    kind = schema.field(VALUE).type
    for batch in batches:
        raw = batch.column(VALUE)
        if form == JSON:
            values, bad = parse_json(raw, kind)
            rows = None
        else:
            values, bad, rows = parse_arrow(raw, kind)
        if bad.any() and BAD_VALUE not in schema.names:
            at = np.flatnonzero(bad)[0]
            raise BadValue(where, form, raw[int(at if rows is None else rows[at])].as_py())
        others = batch if rows is None else batch.take(pa.array(rows))
        columns = []
        for field in schema:
            if field.name == VALUE:
                columns.append(values)
            elif field.name == BAD_VALUE:
                columns.append(pc.if_else(pa.array(bad), others.column(VALUE), pa.scalar(None, pa.binary())))
            else:
                columns.append(others.column(field.name))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_json(raw: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The values, null where there is none or it is bad; and which are bad."""
    bad = np.zeros(len(raw), np.bool_)
    lines = pc.binary_join_element_wise(b'{"v":', raw.fill_null(b"null"), b"}\n", b"")
    return pa.concat_arrays(_read_lines(lines, 0, kind, bad)), bad


def parse_arrow(raw: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Any, Any]:
    """The rows of all streams, which of them stand for a value that is none, and the value that each row is of."""
    parts: list[pa.Array] = []
    counts: list[int] = []
    bad: list[bool] = []
    for value in raw:
        rows, is_bad = None, False
        if value.is_valid:
            try:
                table = pa.ipc.open_stream(value.as_buffer()).read_all()
                columns = [table.column(field.name).cast(field.type).combine_chunks() for field in kind]
                whole = [
                    each if isinstance(each, pa.Array) else pa.concat_arrays(each.chunks) for each in columns
                ]
                rows = pa.StructArray.from_arrays(whole, fields=list(kind))
            except (pa.ArrowException, KeyError, OSError):
                is_bad = True
        parts.append(pa.nulls(1, kind) if rows is None else rows)
        counts.append(len(parts[-1]))
        bad.append(is_bad)
    return pa.concat_arrays(parts), np.repeat(bad, counts), np.repeat(np.arange(len(raw)), counts)


def _read_lines(
    lines: pa.Array, first: int, kind: pa.DataType, bad: np.ndarray[Any, np.dtype[np.bool_]]
) -> list[pa.Array]:
    """A line each is a value each: none can hold what ends a line, so that as many values are these."""
    content = b"".join(lines.to_pylist())
    options = pa_json.ParseOptions(
        explicit_schema=pa.schema([("v", kind)]), unexpected_field_behavior="ignore"
    )
    try:
        found = pa_json.read_json(
            pa.BufferReader(content),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            parse_options=options,
        )
        if found.num_rows == len(lines):
            return list(found.column("v").chunks)
    except pa.ArrowNotImplementedError as error:
        raise BadAnswer(
            f"option 'valueSchema': {error}; read the value raw, and open it with Spark's from_json"
        ) from error
    except pa.ArrowInvalid:
        pass
    if len(lines) == 1:
        bad[first] = True
        return [pa.nulls(1, kind)]
    half = len(lines) // 2
    return [
        *_read_lines(lines[:half], first, kind, bad),
        *_read_lines(lines[half:], first + half, kind, bad),
    ]
