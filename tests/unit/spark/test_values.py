"""Values with a schema: what is good is read, what is bad is found, whatever stands beside it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.spark.values import BadValue, parse_json, raw_schema, typed

KIND = pa.struct([("a", pa.int64()), ("b", pa.string())])
SCHEMA = pa.schema([("offset", pa.int64()), ("value", KIND), ("badValue", pa.binary())])


def batch(*values: bytes | None) -> pa.RecordBatch:
    columns = [pa.array(range(len(values)), pa.int64()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["offset", "value"])


def rows(form: str, *values: bytes | None) -> list[tuple[object, ...]]:
    (found,) = typed([batch(*values)], SCHEMA, form, "t-0")
    found.validate(full=True)
    return [(row["offset"], row["value"], row["badValue"]) for row in found.to_pylist()]


def test_of_no_values_there_are_none() -> None:
    values, bad = parse_json(pa.array([], pa.binary()), KIND)
    assert (values, len(bad)) == (pa.array([], KIND), 0)


def test_json_is_read_and_what_is_none_kept_apart() -> None:
    values = (
        b'{"a": 1, "b": "x", "c": []}',
        b"{}",
        b'{"a": "no"}',
        None,
        b"",
        b'{"a": 2}\n',
        b"null",
        b'{"a":',
    )
    assert rows("json", *values) == [
        (0, {"a": 1, "b": "x"}, None),
        (1, {"a": None, "b": None}, None),
        (2, None, b'{"a": "no"}'),
        (3, None, None),
        (4, None, b""),
        (5, {"a": 2, "b": None}, None),
        (6, None, None),
        (7, None, b'{"a":'),
    ]


@pytest.mark.parametrize(
    "values",
    [
        (b'{"a":1', b',"b":"x"}', b"{}{}"),
        (b'{"a":1}}{"v":{"a":2}', b'{"a":3}'),
        (b'{"b":"', b'"}', b'{"a":1}}\n{"v":{"a":9}'),
    ],
)
def test_no_value_reaches_into_another(values: tuple[bytes, ...]) -> None:
    for value, (_, found, bad) in zip(values, rows("json", *values), strict=True):
        try:
            assert found == {"a": None, "b": None, **json.loads(value)}
        except ValueError:
            assert (found, bad) == (None, value)


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":1},"w":2',
        b'null,"w":[1]',
        b'null,"w":{"v":null',
        b'{"b":"\xff"}',
        b'{"\xff":1}',
        b'{"a":1} {"a":2}',
        b'{"a":NaN}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"c":' + b"[" * 100_000,
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_json_only_with_something_around_it_is_none(value: bytes) -> None:
    assert rows("json", value) == [(0, None, value)]
    assert rows("json", b'{"a":7}', value, b"{}")[1] == (1, None, value)


numbers = st.integers(-(2**40), 2**40).map(lambda number: json.dumps({"a": number}).encode())


@settings(deadline=None, max_examples=50)
@given(st.lists(numbers | st.binary(max_size=6) | st.none(), min_size=1, max_size=20))
def test_each_value_is_read_as_if_it_were_alone(values: list[bytes | None]) -> None:
    together, bad = parse_json(pa.array(values, pa.binary()), KIND)
    alone = [parse_json(pa.array([value], pa.binary()), KIND) for value in values]
    assert together.to_pylist() == [found.to_pylist()[0] for found, _ in alone]
    assert bad.tolist() == [bool(is_bad[0]) for _, is_bad in alone]


def object_of(value: bytes) -> dict[str, object] | None:
    """As Python's own reader has it; raises ValueError where it is no JSON, or nothing that KIND has."""

    def no_number(text: str) -> None:
        raise ValueError(text)

    found = json.loads(value.decode(), parse_constant=no_number)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise ValueError(found)
    a, b = found.get("a"), found.get("b")
    if type(a) not in (int, type(None)) or type(b) not in (str, type(None)):
        raise ValueError(found)
    return {"a": a, "b": b}


pieces = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b'"a"',
        b'"b"',
        b'"v"',
        b"1",
        b"-2",
        b"null",
        b"\n",
        b" ",
        b"\xff",
    ]
    + [b"\xc3\xa9", b'{"a":1}', b'{"b":"x"}', b'"w":', b"\\"]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(pieces, max_size=8).map(b"".join), min_size=1, max_size=8))
def test_values_are_json_where_python_says_so_too(values: list[bytes]) -> None:
    found, bad = parse_json(pa.array(values, pa.binary()), KIND)
    for value, row, is_bad in zip(values, found.to_pylist(), bad, strict=True):
        try:
            expected = object_of(value)
        except ValueError:
            assert is_bad, value
            assert row is None
        else:
            assert (row, bool(is_bad)) == (expected, False), value


def test_what_is_bad_is_an_error_where_nobody_keeps_it() -> None:
    schema = pa.schema([("value", KIND)])
    assert raw_schema(schema) == pa.schema([("value", pa.binary())])
    with pytest.raises(BadValue, match=r"t-0: a value is not json of the schema: 'nonsense'") as raised:
        list(typed([batch(b"{}", b"nonsense")], schema, "json", "t-0"))
    assert "\n" not in str(raised.value)


def stream(*values: tuple[int, str]) -> bytes:
    table = pa.table({"b": [b for _, b in values], "a": [a for a, _ in values], "more": [0] * len(values)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_an_arrow_stream_is_as_many_rows_as_it_has() -> None:
    good = stream((1, "x"), (2, "y"))
    assert rows("arrow", good, None, b"nonsense", stream(), good[:40]) == [
        (0, {"a": 1, "b": "x"}, None),
        (0, {"a": 2, "b": "y"}, None),
        (1, None, None),
        (2, None, b"nonsense"),
        (4, None, good[:40]),
    ]


def test_an_arrow_stream_that_points_beyond_its_end_is_none() -> None:
    """Arrow believes it: rows of whatever lies there, or an end of the process, which no option helps against."""
    good = stream((1, "xx"), (2, "yy"))
    ends = np.array([0, 2, 4], np.int32).tobytes()
    assert good.count(ends) == 1
    beyond = good.replace(ends, np.array([0, 2, 64], np.int32).tobytes())
    backwards = good.replace(ends, np.array([0, 4, 2], np.int32).tobytes())
    no_text = good.replace(b"xxyy", b"xx\xff\xfe")
    assert rows("arrow", beyond, backwards, no_text) == [
        (0, None, beyond),
        (1, None, backwards),
        (2, None, no_text),
    ]


def test_what_nobody_asked_for_in_an_arrow_stream_spoils_nothing() -> None:
    assert rows("arrow", stream((1, "x")).replace(b"more", b"m\xff\xfee")) == [(0, {"a": 1, "b": "x"}, None)]


@pytest.mark.parametrize(
    ("streams_count", "rows_count"),
    [(3, 200_000), (40, 20_000), (700, 300), (100_000, 1), (40_000, 0)],
    ids=lambda count: f"{count:,}",
)
def test_rows_of_streams_come_some_ten_thousand_at_a_time(streams_count: int, rows_count: int) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": range(rows_count), "b": ["x"] * rows_count})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    many = batch(*[sink.getvalue().to_pybytes()] * streams_count)
    divided = [many.slice(first, 30_000) for first in range(0, streams_count, 30_000)]
    found = list(typed(divided, SCHEMA, "arrow", "t-0"))
    sizes = [each.num_rows for each in found]
    assert sum(sizes) == streams_count * rows_count
    assert all(8_000 <= size <= 64 << 10 for size in sizes[:-1]), sizes
    assert all(0 < size <= 64 << 10 for size in sizes), sizes
    if not found:
        return
    rows = pa.Table.from_batches(found)
    rows.validate(full=True)
    assert rows["badValue"].null_count == len(rows)
    numbers = rows["value"].combine_chunks().field("a").to_numpy()
    assert (numbers == np.arange(len(rows)) % rows_count).all()
