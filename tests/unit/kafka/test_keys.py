"""Compacted topics take no record without a key, however it is packed, and keep the order of what they take."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.kafka.keys import AT_ONCE_BYTES_MAX, why_not_keyed
from quorate.wire.messages import Api, decode_response
from quorate.wire.opening import CODECS, OPENED_BYTES_MAX, TooLarge, compressed
from tests.unit.kafka.harness import Served, produce_values, serve

VERSION = 9

Records = list[tuple[bytes | None, bytes | None]]

KEYED: Records = [(b"a", b"1"), (b"", b"2"), (b"c", None)]
"""An empty key is one; a tombstone has one."""
KEYLESS: Records = [(b"a", b"1"), (None, b"2")]


def packed(records: Records, codec: str = "none", **numbers: int) -> bytes:
    plain = batch.encode_records(records, 1000, **numbers)
    content = bytes(compressed(plain[batch.BATCH_MIN :], CODECS[codec]))
    fields = batch.parse_batch_header(plain)
    changes = {
        "attributes": fields.attributes | CODECS[codec],
        "length": batch.BATCH_MIN + len(content) - batch.LENGTH_EXCLUDES,
    }
    crc = crc32c((batch.header_bytes(fields, **changes) + content)[batch.HEAD_BYTES :])
    return batch.header_bytes(fields, **changes, crc=crc) + content


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_key_is_found_in_every_compression(codec: str) -> None:
    assert why_not_keyed(packed(KEYED, codec)) == ""
    assert why_not_keyed(packed(KEYLESS, codec)) == (
        "record 1 of the batch has no key, and the topic is compacted"
    )


def test_what_cannot_be_read_is_not_taken_and_what_is_too_large_not_opened() -> None:
    broken = packed(KEYED, "gzip")
    assert "cannot be read" in why_not_keyed(broken[: batch.BATCH_MIN] + bytes(len(broken) - batch.BATCH_MIN))
    bomb = packed([(b"k", bytes(OPENED_BYTES_MAX))], "zstd")
    assert len(bomb) < AT_ONCE_BYTES_MAX
    for most in (AT_ONCE_BYTES_MAX, None):
        with pytest.raises(TooLarge):
            why_not_keyed(bomb, most)


@pytest.mark.parametrize("codec", CODECS)
def test_spoiled_records_are_judged_and_break_nothing(codec: str) -> None:
    """Whoever writes them can give them a checksum that fits."""
    rng = Random(codec)
    whole = packed([(b"key %d" % number, b"value") for number in range(20)], codec)
    judged = set()
    for _ in range(2000):
        spoiled = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            spoiled[rng.randrange(batch.BATCH_MIN, len(spoiled))] = rng.randrange(256)
        judged.add(why_not_keyed(bytes(spoiled)) == "")
    assert judged == {False, True} or codec in ("gzip", "zstd", "lz4")


@pytest.mark.parametrize("size", [10, AT_ONCE_BYTES_MAX])
def test_a_compacted_topic_refuses_keyless_records_and_other_topics_do_not(tmp_path: Path, size: int) -> None:
    """Looked into at once, and in a thread."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("compacted", cleanup_policy="compact")
            await connection.create("other")
            keyed, keyless = (packed([(key, bytes(size))]) for key in (b"k", None))
            refused = await connection.produce("compacted", keyless)
            assert refused.error_code == ErrorCode.invalid_record
            assert "no key" in refused.error_message
            assert (await connection.produce("compacted", keyed)).error_code == 0
            assert (await connection.produce("other", keyless)).error_code == 0
            assert (await connection.fetch("compacted", 1)).high_watermark == 1 + 1

    serve(tmp_path, test)


def test_what_comes_behind_a_large_batch_waits_for_it(tmp_path: Path) -> None:
    """One producer's batches, all under way at once: each is its next one when it is judged."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("compacted", cleanup_policy="compact")
            sizes = (AT_ONCE_BYTES_MAX, 1, 2 * AT_ONCE_BYTES_MAX, 1, 1)
            batches = [
                packed([(b"k", bytes(size))], producer_id=7, producer_epoch=0, base_sequence=number)
                for number, size in enumerate(sizes)
            ]
            requests = [
                connection.request(Api.PRODUCE, produce_values("compacted", each), VERSION)
                for each in batches
            ]
            await connection.send(b"".join(requests))
            answers = [decode_response(Api.PRODUCE, VERSION, await connection.receive()) for _ in batches]
            parts = [body.responses[0].partition_responses[0] for _, body in answers]
            assert [part.error_code for part in parts] == [0] * len(batches)
            assert [part.base_offset for part in parts] == [1, 2, 3, 4, 5]

    serve(tmp_path, test)
