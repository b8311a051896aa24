"""Batches and frames for any content: what goes in comes out, and what was changed does not."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import assume, given
from hypothesis import strategies as st

from quorate import batch
from quorate.batch import BadBatch, Record
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, partition_of
from quorate.storage import frame as frames
from quorate.storage.frame import DamagedFrame, Frame

content = st.none() | st.binary(max_size=300)
records = st.builds(
    Record,
    content,
    content,
    st.integers(0, 1 << 50),
    st.lists(st.tuples(st.text(max_size=5), content), max_size=3).map(tuple),
    st.just(-1),
)
batches = st.lists(records, min_size=1, max_size=5)
HERE = partition_of(bytes(16), 0)


def chained(values: list[list[Record]], epochs: list[int]) -> list[Frame]:
    """A log of these batches, each in its epoch, as a leader would seal it."""
    log: list[Frame] = []
    prev, checksum = NOWHERE, 0
    for contents, epoch in zip(values, sorted(epochs), strict=False):
        payload = batch.stamp(batch.encode_records(contents, 5), offset=prev.offset + 1, epoch=epoch)
        crc = batch.parse_batch_header(payload).crc
        header = Header(epoch, prev.offset + 1, len(contents), len(payload), Kind.RECORDS, 0, crc)
        log.append(frames.build(HERE, header, payload, prev, checksum))
        prev, checksum = header.id, log[-1].checksum
    return log


def joined(log: list[Frame]) -> bytes:
    return b"".join(frame.head + bytes(frame.payload) for frame in log)


logs = st.builds(
    chained,
    st.lists(batches, min_size=1, max_size=4),
    st.lists(st.integers(1, 1 << 40), min_size=4, max_size=4),
)


@given(batches, st.integers(0, 1 << 50), st.integers(0, 1 << 60))
def test_records_survive_encoding_and_stamping(contents: list[Record], time: int, offset: int) -> None:
    stamped = batch.stamp(batch.encode_records(contents, time), offset=offset, epoch=9)
    decoded = batch.decode_records(stamped)
    assert [record._replace(offset=-1) for record in decoded] == contents
    assert [record.offset for record in decoded] == list(range(offset, offset + len(contents)))
    assert batch.verify(stamped).max_timestamp == max(time, *(record.timestamp for record in contents))


@given(st.integers(-(1 << 15), (1 << 15) - 1), st.binary(max_size=200))
def test_control_records_survive(record_type: int, value: bytes) -> None:
    assert batch.decode_control(batch.encode_control(record_type, value)) == (record_type, value)


@given(st.binary(max_size=200), st.binary(min_size=61, max_size=61))
def test_any_bytes_are_a_batch_or_a_bad_batch(tail: bytes, head: bytes) -> None:
    """Also those that look right at first: nothing else is raised, however they are made."""
    size = (len(head) + len(tail) - batch.LENGTH_EXCLUDES).to_bytes(4, "big")
    likely = head[:8] + size + head[12:16] + b"\x02" + head[17:21] + b"\0\0\0\0\0\x03" + head[27:57]
    likely += b"\0\0\0\x02" + tail
    likely = likely[:17] + crc32c(likely[21:]).to_bytes(4, "big") + likely[21:]
    for payload in (head + tail, likely):
        for decode in (batch.decode_records, batch.decode_control):
            try:
                decode(payload)
            except BadBatch:
                pass


@given(logs)
def test_a_log_parses_frame_by_frame_and_chains(log: list[Frame]) -> None:
    content, at = joined(log), 0
    prev, checksum = NOWHERE, 0
    for frame in log:
        parsed, at = frames.parse(content, at, HERE)
        assert parsed == frame
        assert (parsed.prev, parsed.prev_checksum) == (prev, checksum)
        prev, checksum = parsed.header.id, parsed.checksum
    assert at == len(content)


@given(logs, st.data())
def test_changed_bytes_are_never_read_as_a_frame(log: list[Frame], data: st.DataObject) -> None:
    content = bytearray(joined(log))
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.binary(min_size=1, max_size=40))[: len(content) - at]
    assume(bytes(content[at : at + len(change)]) != change)
    content[at : at + len(change)] = change
    start = 0
    for frame in log:
        untouched = content[start : start + frame.size] == frame.head + bytes(frame.payload)
        try:
            parsed, _ = frames.parse(content, start, HERE)
        except DamagedFrame:
            assert not untouched
        else:
            assert untouched
            assert parsed == frame
        start += frame.size


@given(logs)
def test_a_frame_at_another_place_of_the_log_does_not_fit_the_chain(log: list[Frame]) -> None:
    """Rule 1: frames are valid anywhere, but each fits behind one predecessor only."""
    ends: list[tuple[EntryId, int]] = [(NOWHERE, 0)] + [(frame.header.id, frame.checksum) for frame in log]
    for index, frame in enumerate(log):
        fits = [place for place, end in enumerate(ends) if (frame.prev, frame.prev_checksum) == end]
        assert fits == [index]


@given(st.binary(max_size=300))
def test_junk_is_never_a_frame(junk: bytes) -> None:
    for buffer in (junk, frames.FRAME_MAGIC + junk):
        with pytest.raises(DamagedFrame):
            frames.parse(buffer, 0, None, where="junk")
