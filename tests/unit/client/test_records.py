"""Record batches as Arrow columns, compared with what went in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from quorate.batch import LOG_APPEND_TIME, Record, encode_control, encode_records, stamp
from quorate.client import BadAnswer, OffsetsMissing
from quorate.client import records as records_module
from quorate.client.ranges import Range
from quorate.client.records import COLUMN_NAMES, arrow_batches

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def placed(payload: bytes, offset: int) -> memoryview:
    return memoryview(bytes(stamp(payload, offset=offset, epoch=1)))


def rows(batches: list[memoryview], wanted: Range, *columns: str) -> list[dict[str, object]]:
    schema = pa.schema([SCHEMA.field(name) for name in columns or COLUMN_NAMES])
    found = list(arrow_batches(batches, wanted, schema))
    assert all(batch.schema.equals(schema) for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def test_every_column_of_a_record() -> None:
    batch = encode_records(
        [
            Record(b"k", b"v", 1_500, (("a", b"1"), ("b", None))),
            Record(None, None),
            Record(b"", b"", 2_500),
        ],
        timestamp=1_000,
    )
    found = rows([placed(batch, 7)], Range("events", 3, 7, 10))
    usual = {"topic": "events", "partition": 3, "timestampType": 0}
    assert found == [
        {
            **usual,
            "key": b"k",
            "value": b"v",
            "offset": 7,
            "timestamp": EPOCH + timedelta(milliseconds=1_500),
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        },
        {
            **usual,
            "key": None,
            "value": None,
            "offset": 8,
            "timestamp": EPOCH + timedelta(milliseconds=1_000),
            "headers": None,
        },
        {
            **usual,
            "key": b"",
            "value": b"",
            "offset": 9,
            "timestamp": EPOCH + timedelta(milliseconds=2_500),
            "headers": None,
        },
    ]


def test_records_without_a_time_have_none() -> None:
    found = rows([placed(encode_records([(None, b"v")]), 0)], Range("t", 0, 0, 1), "timestamp")
    assert found == [{"timestamp": None}]


def test_time_of_the_log_is_told_apart() -> None:
    batches = [
        placed(encode_records([(None, b"a")], timestamp=5), 0),
        placed(encode_records([(None, b"b"), (None, b"c")], timestamp=6, attributes=LOG_APPEND_TIME), 1),
    ]
    found = rows(batches, Range("t", 0, 0, 3), "timestampType", "offset")
    assert found == [
        {"timestampType": 0, "offset": 0},
        {"timestampType": 1, "offset": 1},
        {"timestampType": 1, "offset": 2},
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_opened(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for number in range(50):
        builder.append(number, 1_000 + number, b"k", b"value %d" % number, [])
    found = rows([placed(bytes(builder.build()), 100)], Range("t", 0, 100, 150), "offset", "value")
    assert found == [{"offset": 100 + number, "value": b"value %d" % number} for number in range(50)]


def test_a_batch_that_would_become_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "OPENED_BYTES_MAX", 1 << 20)
    builder = DefaultRecordBatchBuilder(2, 4, 0, -1, -1, -1, 1 << 30)
    builder.append(0, 0, None, bytes(2 << 20), [])
    with pytest.raises(BadAnswer, match="take more room than they may"):
        rows([placed(bytes(builder.build()), 0)], Range("events", 0, 0, 1), "value")


@pytest.mark.parametrize("time_ms", [1 << 62, -(1 << 63), (1 << 63) - 1])
def test_a_time_that_no_timestamp_can_hold_is_null(time_ms: int) -> None:
    batch = placed(encode_records([(None, b"far")], time_ms), 0)
    assert rows([batch], Range("t", 0, 0, 1), "timestamp") == [{"timestamp": None}]


POISON = (
    "0000000000000000000000760000000002825a77180000000000030000000000000000ffffffffffffffffffffffffffffffffff"
    "ffffffffff00000004ffffffff0f00c801c801020efeffffffffffffffff010933ceffffffff0f000ec801feffffffffffffffff"
    "013700018080808080808080800180808080808080808001a759"
)
"""Its checksum is right, and a record in it says that it is 2^62 bytes long."""


def test_a_batch_that_nobody_can_read_is_named() -> None:
    with pytest.raises(BadAnswer, match="cannot be opened"):
        rows([memoryview(bytes.fromhex(POISON))], Range("t", 0, 0, 4), "value")


def test_both_ends_of_a_range_may_lie_inside_a_batch() -> None:
    batches = [placed(encode_records([(None, b"%d" % n) for n in range(10)]), base) for base in (0, 10)]
    found = rows(batches, Range("t", 0, 4, 13), "offset", "value")
    assert [row["offset"] for row in found] == list(range(4, 13))
    assert [row["value"] for row in found] == [b"%d" % (n % 10) for n in range(4, 13)]


@pytest.mark.parametrize("columns", [("offset",), ("value",), ("partition", "timestampType")])
def test_ends_inside_a_batch_count_for_every_choice_of_columns(columns: tuple[str, ...]) -> None:
    batch = placed(encode_records([(None, b"%d" % n) for n in range(10)]), 0)
    assert len(rows([batch], Range("t", 0, 2, 5), *columns)) == 3


def test_control_batches_take_offsets_and_give_no_rows() -> None:
    batches = [placed(encode_control(9, b"x"), 0), placed(encode_records([(None, b"a")]), 1)]
    assert rows(batches, Range("t", 0, 0, 2), "offset", "value") == [{"offset": 1, "value": b"a"}]
    assert rows(batches[:1], Range("t", 0, 0, 1)) == []


def test_batches_with_removed_records_keep_their_offsets() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in (0, 3, 4, 9):
        builder.append(number, 1_000, None, b"%d" % number, [])
    payload = bytes(builder.build())
    found = rows([placed(payload, 20)], Range("t", 0, 20, 30), "offset", "value")
    assert [(row["offset"], row["value"]) for row in found] == [
        (20, b"0"),
        (23, b"3"),
        (24, b"4"),
        (29, b"9"),
    ]


def test_rows_come_in_batches_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "ROWS_TARGET", 25)
    batches = [placed(encode_records([(None, b"v")] * 10), base) for base in range(0, 100, 10)]
    found = list(arrow_batches(batches, Range("t", 0, 0, 100), pa.schema([SCHEMA.field("offset")])))
    assert [batch.num_rows for batch in found] == [30, 30, 30, 10]
    assert [row for batch in found for row in batch["offset"].to_pylist()] == list(range(100))


def test_a_large_record_batch_comes_in_pieces_of_one_size() -> None:
    batch = placed(encode_records([(None, b"v")] * 70_001), 0)
    found = list(arrow_batches([batch], Range("t", 0, 0, 70_001), pa.schema([SCHEMA.field("offset")])))
    assert [piece.num_rows for piece in found] == [35_001, 35_000]


def test_what_lies_before_missing_offsets_comes_before_the_error() -> None:
    def batches() -> Iterator[memoryview]:
        yield placed(encode_records([(None, b"v")] * 3), 0)
        raise OffsetsMissing("t", 0, first=3, end=8)

    found = arrow_batches(batches(), Range("t", 0, 0, 20), pa.schema([SCHEMA.field("offset")]))
    assert next(found).num_rows == 3
    with pytest.raises(OffsetsMissing) as missing:
        next(found)
    assert missing.value.end == 8


def test_a_batch_that_lies_about_its_records_is_refused() -> None:
    builder = DefaultRecordBatchBuilder(2, 4, 0, -1, -1, -1, 1 << 20)
    builder.append(0, 1_000, None, b"v" * 100, [])
    payload = bytearray(builder.build())
    payload[70:80] = bytes(10)
    with pytest.raises(BadAnswer, match=r"batch at offset 5 .* cannot be opened"):
        rows([placed(bytes(payload), 5)], Range("t", 0, 5, 6), "value")
