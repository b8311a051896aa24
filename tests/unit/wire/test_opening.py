"""Compressed batches come out as they went in, and never larger than they may."""

from __future__ import annotations

from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.batch import BATCH_MIN, BadBatch, encode_records, header_bytes, parse_batch_header
from quorate.wire.opening import TooLarge, opened

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def built(values: list[bytes], codec: int) -> bytes:
    builder: Any = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values):
        assert builder.append(number, 1000 + number, None, value, []) is not None
    return bytes(builder.build())


def with_records(records: bytes, codec: int) -> bytes:
    """A batch whose compressed part is anything."""
    header = parse_batch_header(encode_records([(None, b"")]))
    size = BATCH_MIN + len(records) - 12
    return header_bytes(header, attributes=codec, length=size) + records


@each_codec
@settings(max_examples=20)
@given(values=st.lists(st.binary(max_size=300), min_size=1, max_size=50))
def test_a_batch_comes_out_as_it_went_in(codec: int, values: list[bytes]) -> None:
    batch = opened(built(values, codec))
    header = parse_batch_header(batch)
    assert header.compression == 0
    assert header.max_timestamp == 1000 + len(values) - 1
    assert [record.value for record in DefaultRecordBatch(bytes(batch))] == values


def test_a_batch_that_is_not_compressed_stays_what_it_is() -> None:
    batch = encode_records([(None, b"value")])
    assert opened(batch) is batch


@each_codec
def test_a_batch_may_grow_much_but_not_beyond_its_bound(codec: int) -> None:
    values = [bytes(1000)] * 5000
    batch = built(values, codec)
    assert len(batch) < 1_000_000
    size = len(opened(batch))
    assert size > 5_000_000
    assert len(opened(batch, bytes_max=size)) == size
    with pytest.raises(TooLarge, match="more room than they may"):
        opened(batch, bytes_max=4_000_000)


def test_a_snappy_block_that_says_it_is_huge_is_refused_by_what_it_says() -> None:
    with pytest.raises(TooLarge):
        opened(with_records(b"\xff\xff\xff\xff\x0f" + bytes(10), 2))


def test_snappy_without_blocks_is_opened_too() -> None:
    content = cramjam.snappy.compress_raw(b"x" * 100)
    assert bytes(opened(with_records(bytes(content), 2)))[BATCH_MIN:] == b"x" * 100


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
@settings(max_examples=50)
@given(noise=st.binary(min_size=1, max_size=100))
def test_noise_is_refused_and_nothing_else(codec: int, noise: bytes) -> None:
    for content in (noise, b"\x82SNAPPY\0" + bytes(8) + noise):
        try:
            opened(with_records(content, codec))
        except (BadBatch, TooLarge):
            pass
