"""What became of transactions, told from the batches and markers of a backup alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.backup.batches import Batch
from quorate.backup.checking import check
from quorate.backup.errors import Damaged
from quorate.backup.manifest import Gap, PartitionSaved
from quorate.backup.outcomes import Outcomes
from quorate.backup.place import Directory
from quorate.batch import (
    CONTROL,
    TRANSACTIONAL,
    encode_blank,
    parse_batch_header,
    stamp,
    verify,
    with_producer,
)
from quorate.machine.markers import Marker, encode_marker
from tests.unit.backup.making import batch_at, control_at, data_file, manifest_of

ONE, TWO = 7, 8


def in_transaction(offset: int, producer: int, *values: bytes, sequence: int = 0) -> bytes:
    return batch_at(
        offset,
        *(values or (b"v",)),
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )


def marker_at(offset: int, producer: int, number: int, *, commit: bool) -> bytes:
    made = encode_marker(Marker(producer, 0, number, commit), coordinator_epoch=1, now_ms=5)
    return bytes(stamp(made, offset=offset, epoch=1))


def committed(marker: int, producer: int, number: int = 0) -> bytes:
    return marker_at(marker, producer, number, commit=True)


def aborted(marker: int, producer: int, number: int = 0) -> bytes:
    return marker_at(marker, producer, number, commit=False)


def left_out(*contents: bytes) -> list[int]:
    """First offsets of the batches that are not restored."""
    batches = [Batch(parse_batch_header(content), memoryview(content)) for content in contents]
    outcomes = Outcomes()
    for batch in batches:
        outcomes.add(batch, "here")
    uncommitted = outcomes.uncommitted()
    return [batch.first for batch in batches if batch.has_records and uncommitted.holds(batch)]


def test_what_has_an_abort_or_no_end_at_all_is_left_out() -> None:
    assert left_out() == []
    assert left_out(in_transaction(0, ONE), committed(1, ONE)) == []
    assert left_out(in_transaction(0, ONE), aborted(1, ONE)) == [0]
    assert left_out(control_at(0), in_transaction(1, ONE), batch_at(2, b"plain")) == [1]


def test_transactions_of_several_producers_take_turns() -> None:
    log = [
        in_transaction(0, ONE, b"a", b"b"),
        in_transaction(2, TWO),
        in_transaction(3, ONE, sequence=2),
        aborted(4, ONE, 0),
        in_transaction(5, ONE, sequence=3),
        in_transaction(6, TWO, sequence=1),
        committed(7, TWO),
        committed(8, ONE, 1),
        in_transaction(9, ONE, sequence=4),
    ]
    assert left_out(*log) == [0, 3, 9]


def test_a_marker_that_comes_again_ends_nothing() -> None:
    log = [in_transaction(0, ONE), committed(1, ONE, 3), in_transaction(2, ONE, sequence=1)]
    assert left_out(*log, committed(3, ONE, 3), aborted(4, ONE, 4)) == [2]


def test_a_marker_behind_a_gap_may_be_of_another_transaction() -> None:
    # Between 2 and 9 the first may have been aborted, and another begun.
    log = [in_transaction(0, TWO), committed(1, TWO), in_transaction(2, ONE)]
    assert left_out(*log, in_transaction(9, ONE, sequence=5), committed(10, ONE, 1)) == [2]
    assert left_out(*log, batch_at(9, b"plain"), aborted(10, TWO, 1)) == [2]


def test_what_is_void_or_compacted_says_nothing() -> None:
    log = [in_transaction(0, ONE), encode_blank(first=1, last=5), committed(6, ONE)]
    assert left_out(*log) == []
    # Of which a part was saved before it was compacted, and the whole again behind that.
    assert left_out(*log, encode_blank(first=4, last=9), in_transaction(10, ONE)) == [10]


def test_a_transaction_that_began_before_the_first_offset_is_what_its_marker_says() -> None:
    assert left_out(in_transaction(5, ONE, sequence=9), aborted(6, ONE, 4), committed(7, TWO, 9)) == [5]


def test_a_batch_of_a_transaction_comes_back_as_one_of_none() -> None:
    content = in_transaction(3, ONE, b"a", b"b")
    batch = Batch(parse_batch_header(content), memoryview(content))
    header = verify(with_producer(batch.plain, producer_id=1, epoch=0, sequence=0))
    assert not header.is_transactional
    assert header.record_count == 2
    assert content == in_transaction(3, ONE, b"a", b"b")


def test_every_partition_is_told_by_itself(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    first, second = in_transaction(0, ONE), in_transaction(9, ONE, sequence=1)
    files = [data_file(place, "orders", 0, first), data_file(place, "orders", 0, second, committed(10, ONE))]
    other = data_file(place, "orders", 1, first, committed(1, ONE))
    made = manifest_of(
        "orders", PartitionSaved(0, 11, tuple(files), (Gap(1, 9),)), PartitionSaved(0, 2, (other,))
    )
    zero, one = check(place, made)
    early, late = (Batch(parse_batch_header(each), memoryview(each)) for each in (first, second))
    assert (zero.holds(early), zero.holds(late), one.holds(early)) == (True, False, False)


def test_a_marker_that_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    odd = batch_at(0, b"v", attributes=TRANSACTIONAL | CONTROL, producer_id=ONE, producer_epoch=0)
    file = data_file(place, "orders", 0, odd)
    with pytest.raises(Damaged, match=r"orders/0, offset 0: a control record has a key") as raised:
        check(place, manifest_of("orders", PartitionSaved(0, 1, (file,))))
    assert "\n" not in str(raised.value)
