"""Values that are more than bytes: JSON with a schema, and Arrow streams.

JSON is read by Arrow, thousands of values at once, each in an object on a line of its own. Whether each is one JSON
value is asked before, of each alone: Arrow would also take what only is one together with what stands around it. A
value that is JSON and not of the schema spoils the whole, and is found by halving. What cannot be read is an error,
or is kept in the column `badValue`, as chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from quorate.client.errors import BadAnswer
from quorate.client.parts import Numbers
from quorate.client.records import ROWS_TARGET, divided

Flags = np.ndarray[Any, np.dtype[np.bool_]]

RAW, JSON, ARROW = "raw", "json", "arrow"
BAD_VALUE = "badValue"
VALUE = "value"
SAID_BYTES = 80
_JSON = msgspec.json.Decoder(msgspec.Raw)
"""Of Raw nothing is made: a value is only gone through to its end."""


class BadValue(BadAnswer):
    def __init__(self, wrong: str, value: bytes) -> None:
        shown = value[:SAID_BYTES].decode("utf-8", "replace")
        super().__init__(
            f"{wrong} of the schema: {shown!r}; mend it, or set badRecords to column, which keeps it apart"
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
    if form == JSON:
        for batch in batches:
            values, bad = parse_json(batch.column(VALUE), kind)
            yield _opened(batch, None, values, bad, schema, f"{where}: a value is not {form}")
    else:
        yield from _evened(
            _opened(batch, rows, values, bad, schema, f"{where}: a value is not {form}")
            for batch in batches
            for values, bad, rows in parse_arrow(batch.column(VALUE), kind)
        )


def _opened(
    batch: pa.RecordBatch, rows: Numbers | None, values: pa.Array, bad: Flags, schema: pa.Schema, wrong: str
) -> pa.RecordBatch:
    """With such values; `rows`: which row of the batch each is of, where that is not the same one.

    Only bad values are taken as they came: as often as they have rows, the others may be more than memory holds.
    """
    raw = batch.column(VALUE)
    of = np.arange(batch.num_rows) if rows is None else rows
    if bad.any() and BAD_VALUE not in schema.names:
        raise BadValue(wrong, raw[int(of[np.flatnonzero(bad)[0]])].as_py())
    columns = []
    for field in schema:
        if field.name == VALUE:
            columns.append(values)
        elif field.name == BAD_VALUE:
            columns.append(raw.take(pa.array(of, mask=~bad)))
        else:
            column = batch.column(field.name)
            columns.append(column if rows is None else column.take(pa.array(rows)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _evened(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, some ten thousand at a time, however many a value has."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(each.num_rows for each in gathered) >= ROWS_TARGET:
            yield from divided(pa.concat_batches(gathered))
            gathered = []
    if gathered:
        yield from divided(pa.concat_batches(gathered))


def parse_json(raw: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags]:
    """The values, null where there is none or it is bad; and which are bad."""
    bad = np.fromiter(
        (value is not None and not _is_json(value) for value in raw.to_pylist()), np.bool_, len(raw)
    )
    good = pc.if_else(pa.array(bad), pa.scalar(None, raw.type), raw)
    lines = pc.binary_join_element_wise(b'{"v":', good.fill_null(b"null"), b"}\n", b"")
    return pa.concat_arrays(_read_lines(lines, 0, kind, bad)), bad


def _is_json(value: bytes) -> bool:
    """One value, from its first byte to its last, in UTF-8."""
    try:
        _JSON.decode(value)
        return value.isascii() or bool(value.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def parse_arrow(raw: pa.Array, kind: pa.DataType) -> Iterator[tuple[pa.Array, Flags, Numbers]]:
    """The rows of all streams, which of them stand for a value that is none, and the value that each row is of.

    As soon as there are many, so that no more are in memory than a value has.
    """
    parts: list[pa.Array] = []
    bad: list[bool] = []
    first = rows_count = 0
    for at, value in enumerate(raw, start=1):
        rows = _rows_of(value, kind) if value.is_valid else None
        parts.append(pa.nulls(1, kind) if rows is None else rows)
        bad.append(rows is None and value.is_valid)
        rows_count += len(parts[-1])
        if rows_count >= ROWS_TARGET or at == len(raw):
            counts = [len(part) for part in parts]
            yield pa.concat_arrays(parts), np.repeat(bad, counts), np.repeat(np.arange(first, at), counts)
            parts, bad, first, rows_count = [], [], at, 0


def _rows_of(value: pa.Scalar, kind: pa.DataType) -> pa.Array | None:
    """None: it is no stream of such rows."""
    try:
        table = pa.ipc.open_stream(value.as_buffer()).read_all()
        found = [table.column(field.name) for field in kind]
        for column in found:
            # Arrow believes lengths and indices as they stand, wherever they point to.
            column.validate(full=True)
        columns = [
            column.cast(field.type).combine_chunks() for column, field in zip(found, kind, strict=True)
        ]
        whole = [each if isinstance(each, pa.Array) else pa.concat_arrays(each.chunks) for each in columns]
        return pa.StructArray.from_arrays(whole, fields=list(kind))
    except (pa.ArrowException, KeyError, OSError):
        return None


def _read_lines(lines: pa.Array, first: int, kind: pa.DataType, bad: Flags) -> list[pa.Array]:
    """A line each is a value each, as each is one JSON value."""
    if not len(lines):
        return [pa.nulls(0, kind)]
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
