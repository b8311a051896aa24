"""Records opened by passes over arrays, beside the plain decoder that opens one after the other."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.batch import BATCH_MIN, Record, decode_records, encode_records, stamp
from quorate.client import BadAnswer
from quorate.client.ranges import Range
from quorate.client.records import arrow_batches

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
BASE_MS = 1_700_000_000_000

contents = st.none() | st.binary(max_size=4) | st.integers(0, 9_000).map(bytes)
records = st.builds(
    Record,
    contents,
    contents,
    st.integers(BASE_MS - 100, BASE_MS + 1_000_000),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)
alike = st.builds(lambda record, count: [record] * count, records, st.integers(1, 100))
"""Where one is like the other, many are taken in one step."""
batches = st.lists(st.lists(records, min_size=1, max_size=5) | alike, min_size=1, max_size=4)


def placed(groups: list[list[Record]]) -> list[memoryview]:
    made, offset = [], 0
    for group in groups:
        made.append(memoryview(bytes(stamp(encode_records(group, BASE_MS), offset=offset, epoch=1))))
        offset += len(group)
    return made


def read(payloads: list[memoryview], wanted: Range) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for batch in arrow_batches(payloads, wanted, SCHEMA):
        batch.validate(full=True)
        columns = [batch.column(name) for name in ("key", "value", "offset", "headers")]
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        found += zip(*(column.to_pylist() for column in columns), times, strict=True)
    return found


@settings(deadline=None, max_examples=60)
@given(groups=batches, first=st.integers(0, 20), behind=st.integers(0, 20))
def test_the_same_records_as_one_by_one(groups: list[list[Record]], first: int, behind: int) -> None:
    payloads = placed(groups)
    end = sum(map(len, groups)) - behind
    expected = [
        (
            record.key,
            record.value,
            record.offset,
            [{"key": name, "value": content} for name, content in record.headers] or None,
            record.timestamp * 1_000,
        )
        for payload in payloads
        for record in decode_records(payload)
        if first <= record.offset < end
    ]
    assert read(payloads, Range("t", 0, first, end)) == expected


@settings(deadline=None, max_examples=60)
@given(
    groups=batches,
    harm=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=5),
)
def test_whatever_is_in_the_records_nothing_else_is_raised(
    groups: list[list[Record]], harm: list[tuple[int, int]]
) -> None:
    payload = bytearray(placed(groups)[0])
    for at, byte in harm:
        payload[BATCH_MIN + at % (len(payload) - BATCH_MIN)] = byte
    try:
        rows = read([memoryview(bytes(payload))], Range("t", 0, 0, len(groups[0])))
    except BadAnswer:
        return
    assert len(rows) == len(groups[0])
