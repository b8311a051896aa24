"""Arrow rows as record batches, opened by the plain decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.batch import decode_records, stamp
from quorate.client import encoding
from quorate.client.encoding import Rows, WrongHeader, WrongPartition, encode, partitions_for
from quorate.client.partitioning import murmur2
from quorate.wire.opening import CODECS, opened

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

contents = st.none() | st.binary(max_size=5) | st.integers(60, 200).map(bytes)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
    max_size=2,
)
times = st.none() | st.integers(0, NOW_MS * 2_000)
partitions = st.none() | st.integers(0, 3)
tables = st.lists(st.tuples(contents, contents, partitions, times, headers), min_size=1, max_size=60)


def rows_of(table: list[tuple[Any, ...]]) -> Rows:
    key, value, partition, time_us, header_lists = zip(*table, strict=True)
    return Rows(
        pa.array(value, pa.binary()),
        pa.array(key, pa.binary()),
        pa.array(partition, pa.int32()),
        pa.array(time_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array(header_lists, HEADERS),
    )


@settings(deadline=None, max_examples=100)
@given(table=tables, spare=st.integers(0, 9), bytes_target=st.sampled_from([1, 300, 1 << 20]))
def test_every_row_is_a_record_of_its_partition_in_order(
    table: list[tuple[Any, ...]], spare: int, bytes_target: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BATCH_BYTES_TARGET", bytes_target)
        # A slice, as what Spark hands over may be one.
        rows = Rows(*(pa.concat_arrays([column, column])[len(table) :] for column in rows_of(table)))
        made = encode(rows, partitions_for(rows, 4, spare), now_ms=NOW_MS)
    found: dict[int, list[tuple[Any, ...]]] = {}
    for batch in made:
        records = decode_records(bytes(stamp(batch.payload, offset=0, epoch=1)))
        assert [record.offset for record in records] == list(range(batch.records_count))
        found.setdefault(batch.partition, []).extend(tuple(record[:4]) for record in records)
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for key, value, partition, time_us, header_list in table:
        by_key = spare if key is None else murmur2(key) & 0x7FFF_FFFF
        time_ms = NOW_MS if time_us is None else time_us // 1000
        heads = tuple((each["key"], each["value"]) for each in header_list or ())
        where = by_key % 4 if partition is None else partition
        expected.setdefault(where, []).append((key, value, time_ms, heads))
    assert found == expected


def test_only_values_in_batches_of_bounded_size() -> None:
    rows = Rows(pa.array([bytes(100)] * 20_000, pa.binary()))
    made = encode(rows, partitions_for(rows, 3, 1), now_ms=NOW_MS)
    assert {batch.partition for batch in made} == {1}
    assert sum(batch.records_count for batch in made) == 20_000
    assert max(len(batch.payload) for batch in made) <= encoding.BATCH_BYTES_TARGET


@pytest.mark.parametrize("name", CODECS)
def test_compressed_is_opened_again(name: str) -> None:
    rows = Rows(pa.array([b"%d" % number * 50 for number in range(100)], pa.binary()))
    (made,) = encode(rows, np.zeros(100, np.int64), now_ms=NOW_MS, codec=CODECS[name])
    plain = encode(rows, np.zeros(100, np.int64), now_ms=NOW_MS)[0].payload
    assert bytes(opened(made.payload))[61:] == plain[61:]
    assert name == "none" or len(made.payload) < len(plain)


def test_a_partition_that_is_not_there_is_named() -> None:
    rows = rows_of([(None, b"v", 7, None, None)])
    with pytest.raises(WrongPartition, match="a row is for partition 7; there are 4"):
        partitions_for(rows, 4, 0)


@pytest.mark.parametrize("headers", [[{"key": None, "value": b"1"}], [{"key": "a", "value": None}, None]])
def test_a_header_needs_a_key(headers: list[dict[str, object] | None]) -> None:
    rows = Rows(pa.array([b"v", b"w"]), headers=pa.array([None, headers], HEADERS))
    with pytest.raises(WrongHeader, match="a header without a key"):
        encode(rows, np.zeros(2, np.int64), now_ms=0)
