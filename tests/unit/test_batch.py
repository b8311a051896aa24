"""Record batches: what Kafka's clients send is read as they mean it, and nothing else is."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c

from quorate import batch
from quorate.batch import BadBatch, Record


def patched(payload: bytes, at: int, content: bytes) -> bytes:
    return payload[:at] + content + payload[at + len(content) :]


def with_crc(payload: bytes) -> bytes:
    """The payload with a checksum that fits, as a malicious or mistaken producer would send it."""
    return patched(payload, 17, crc32c(payload[batch.HEAD_BYTES :]).to_bytes(4, "big"))


def test_a_batch_is_laid_out_as_kafka_lays_it_out() -> None:
    # Written down by hand after Kafka's protocol guide ("Record Batch"), one record k=v at time 1000.
    payload = batch.encode_records([(b"k", b"v")], 1000)
    assert (
        payload
        == bytes.fromhex(
            "0000000000000000"  # base offset
            "0000003a"  # length
            "00000000"  # leader epoch
            "02"  # magic
            f"{crc32c(payload[21:]):08x}"
            "0000"  # attributes
            "00000000"  # last offset delta
            "00000000000003e8"  # base timestamp
            "00000000000003e8"  # max timestamp
            "ffffffffffffffff"  # producer id
            "ffff"  # producer epoch
            "ffffffff"  # base sequence
            "00000001"  # records
            "10"  # length of the record: 8
            "00"  # attributes
            "00"  # timestamp delta
            "00"  # offset delta
            "026b"  # key
            "0276"  # value
            "00"  # headers
        )
    )


def test_header_tells_what_a_log_needs_to_know() -> None:
    records = [Record(b"a", b"1", 50), Record(b"b", None, 70), Record(None, b"3", 60)]
    payload = batch.encode_records(
        records, 50, attributes=batch.TRANSACTIONAL, producer_id=9, producer_epoch=2, base_sequence=40
    )
    header = batch.verify(payload)
    assert header.size == len(payload)
    assert (header.record_count, header.offsets_count) == (3, 3)
    assert (header.base_timestamp, header.max_timestamp) == (50, 70)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    assert header.is_transactional
    assert not header.is_control
    assert header.compression == 0


def test_stamping_fills_in_the_place_and_keeps_the_checksum() -> None:
    payload = batch.encode_records([(b"k", b"v"), (b"l", b"w")], 5)
    stamped = batch.stamp(payload, offset=1 << 40, epoch=(1 << 31) + 7)
    header = batch.verify(stamped)
    assert header.base_offset == 1 << 40
    assert header.leader_epoch == 7  # 31 bits of it
    assert [record.offset for record in batch.decode_records(stamped)] == [1 << 40, (1 << 40) + 1]
    in_place = bytearray(payload)
    assert batch.stamp(in_place, offset=1 << 40, epoch=(1 << 31) + 7) is in_place
    assert in_place == stamped != payload


def test_a_view_into_a_request_is_as_good_as_bytes() -> None:
    payload = batch.encode_records([(b"k", b"v")], 5)
    request = memoryview(b"before" + payload + b"after")
    view = request[6 : 6 + len(payload)]
    assert batch.verify(view) == batch.verify(payload)
    assert batch.stamp(view, offset=3, epoch=1) == batch.stamp(payload, offset=3, epoch=1)
    assert batch.decode_records(view) == batch.decode_records(payload)


def test_control_batches_carry_type_and_value_in_one_offset() -> None:
    payload = batch.encode_control(0x5155, b"what")
    header = batch.verify(payload)
    assert header.is_control
    assert header.offsets_count == 1
    assert batch.decode_control(batch.stamp(payload, offset=7, epoch=3)) == (0x5155, b"what")
    assert batch.encode_control(0x5155, b"what") == payload


def test_an_ordinary_batch_is_not_a_control_batch() -> None:
    with pytest.raises(BadBatch, match="not a control batch"):
        batch.decode_control(batch.encode_records([(b"\0\0\0\0", b"")], 5))


@pytest.mark.parametrize(
    ("at", "content", "why"),
    [
        (16, b"\x01", "format 1 is not supported"),
        (8, b"\x7f\xff\xff\xff", "are there"),
        (8, b"\xff\xff\xff\xff", "are there"),
        (23, b"\xff\xff\xff\xff", "negative"),
        (57, b"\xff\xff\xff\xff", "cannot take"),
        (57, b"\x00\x00\x00\x02", "cannot take"),
        (60, b"\x00\x12", "left behind the last record"),
        (61, b"\x7f", "a record says"),
        (64, b"\x02", "offset delta 1 is outside"),
        (65, b"\x7e", "says 63 bytes"),
        (65, b"\x03", "says -2 bytes"),
        (69, b"\x40", "32 headers cannot be"),
        (69, b"\x01", "-1 headers cannot be"),
        (61, b"\xff" * 9, "ends inside a record"),
    ],
)
def test_counts_and_lengths_are_bounded_before_they_are_used(at: int, content: bytes, why: str) -> None:
    payload = patched(batch.encode_records([(b"k", b"v")], 5), at, content)
    with pytest.raises(BadBatch, match=why):
        batch.decode_records(with_crc(payload))


def test_more_records_than_bytes_are_refused_unless_compressed() -> None:
    payload = batch.encode_records([(b"k", b"v")] * 3, 5)
    many = patched(patched(payload, 57, (1 << 20).to_bytes(4, "big")), 23, (1 << 20).to_bytes(4, "big"))
    with pytest.raises(BadBatch, match="cannot be in"):
        batch.verify(with_crc(many))
    compressed = with_crc(patched(many, 21, b"\x00\x01"))
    assert batch.verify(compressed).compression == 1
    with pytest.raises(BadBatch, match="compressed"):
        batch.decode_records(compressed)


def test_too_few_bytes_are_no_batch() -> None:
    with pytest.raises(BadBatch, match="too few"):
        batch.parse_batch_header(batch.encode_records([(b"k", b"v")], 5)[:60])
    with pytest.raises(BadBatch, match="covers no offset"):
        batch.encode_records([])


def test_a_flipped_bit_in_the_records_is_seen() -> None:
    payload = bytearray(batch.encode_records([(b"k", b"v")], 5))
    payload[-1] ^= 1
    with pytest.raises(BadBatch, match="checksum"):
        batch.verify(payload)


def test_a_blank_batch_covers_offsets_and_holds_nothing() -> None:
    blank = batch.encode_blank(first=7, last=11)
    header = batch.verify(blank)
    assert (header.base_offset, header.offsets_count, header.record_count) == (7, 5, 0)
    assert batch.decode_records(blank) == []
    assert list(DefaultRecordBatch(blank)) == []
    assert DefaultRecordBatch(blank).next_offset == 12
