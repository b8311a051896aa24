"""Producers of a partition: what is remembered of them, how sequences go round, and who is forgotten."""

from __future__ import annotations

import pytest

from quorate.batch import encode_records, parse_batch_header, stamp
from quorate.core.entry import Header, Kind, NoOp
from quorate.machine.producers import (
    BATCHES_REMEMBERED,
    SEQUENCES_COUNT,
    Numbered,
    Producers,
    numbered,
)
from quorate.storage.frame import control_payload


def settle(
    producers: Producers, offset: int, producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1
) -> None:
    payload = encode_records(
        [(None, b"x")] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    header = Header(1, offset, count, len(payload))
    producers.settle(header, 0, memoryview(stamp(payload, offset=offset, epoch=1)))


def test_a_settled_batch_is_found_by_its_exact_sequences() -> None:
    producers = Producers()
    settle(producers, 7, 5, 0, count=3)
    known = producers.get(5)
    assert known is not None
    assert known.offset_of(Numbered(5, 0, 0, 2)) == 7
    assert known.offset_of(Numbered(5, 0, 0, 1)) is None
    assert known.offset_of(Numbered(5, 1, 0, 2)) is None
    assert known.last == 2


def test_entries_without_a_producer_leave_nothing() -> None:
    producers = Producers()
    plain = encode_records([(None, b"x")])
    producers.settle(Header(1, 0, 1, len(plain)), 0, plain)
    noop = Header(1, 1, kind=Kind.CONTROL, control=NoOp(1))
    producers.settle(noop, 0, control_payload(noop))
    assert len(producers) == 0


def test_only_the_last_few_batches_are_remembered() -> None:
    producers = Producers()
    for sequence in range(BATCHES_REMEMBERED + 2):
        settle(producers, 10 + sequence, 5, sequence)
    known = producers.get(5)
    assert known is not None
    offsets = [known.offset_of(Numbered(5, 0, sequence, sequence)) for sequence in range(4)]
    assert offsets == [None, None, 12, 13]
    assert known.has_forgotten(Numbered(5, 0, 1, 1))
    assert not known.has_forgotten(Numbered(5, 0, 1, 2)), "half of it is remembered: no batch of ours"
    assert not known.has_forgotten(Numbered(5, 0, 9, 9)), "that is to come"


def test_nothing_is_said_to_be_forgotten_while_everything_is_remembered() -> None:
    """A producer that was unknown may have begun anywhere: nobody has ever seen what is below."""
    producers = Producers()
    for sequence in range(100, 100 + BATCHES_REMEMBERED - 1):
        settle(producers, sequence, 5, sequence)
    known = producers.get(5)
    assert known is not None
    assert not known.has_forgotten(Numbered(5, 0, 40, 40))


def test_a_newer_epoch_starts_with_a_clean_slate() -> None:
    producers = Producers()
    settle(producers, 0, 5, 0)
    settle(producers, 1, 5, 1)
    settle(producers, 2, 5, 0, epoch=1)
    known = producers.get(5)
    assert known is not None
    assert (known.epoch, known.batches) == (1, [(0, 0, 2)])


def test_sequences_go_round() -> None:
    producers = Producers()
    top = SEQUENCES_COUNT - 1
    settle(producers, 0, 5, top - 1, count=4)
    known = producers.get(5)
    assert known is not None
    assert known.last == 1
    assert Numbered(5, 0, 2, 2).follows(known.last)
    assert Numbered(5, 0, 0, 0).follows(top)
    assert Numbered(5, 0, top - 1, 1).count == 4
    assert Numbered(5, 0, top, top).is_before(0)
    assert not Numbered(5, 0, 0, 0).is_before(top)


def test_numbers_are_read_from_a_batch_and_senseless_ones_are_refused() -> None:
    def read(epoch: int, sequence: int) -> Numbered | None:
        payload = encode_records(
            [(None, b"x")] * 3, producer_id=5, producer_epoch=epoch, base_sequence=sequence
        )
        return numbered(parse_batch_header(payload))

    assert read(2, SEQUENCES_COUNT - 2) == Numbered(5, 2, SEQUENCES_COUNT - 2, 0)
    assert read(-1, 0) is None
    assert read(0, -1) is None


def test_whoever_settled_nothing_for_the_longest_time_is_forgotten_first() -> None:
    producers = Producers(count_max=2)
    settle(producers, 0, 5, 0)
    settle(producers, 1, 6, 0)
    settle(producers, 2, 5, 1)
    settle(producers, 3, 7, 0)
    assert [producers.get(number) is not None for number in (5, 6, 7)] == [True, False, True]
    assert [producers.may_have_forgotten(number) for number in (3, 5, 6, 7, 8)] == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("count_max", [2, 100])
def test_a_restored_machine_goes_on_as_the_one_that_was_saved(count_max: int) -> None:
    one, other = Producers(count_max), Producers(count_max)
    for offset, producer_id in enumerate((5, 6, 5, 7, 5)):
        settle(one, offset, producer_id, offset)
    other.restore(one.snapshot())
    for machine in (one, other):
        settle(machine, 5, 8, 0)
        settle(machine, 6, 5, 5)
    assert other.snapshot() == one.snapshot()
    assert other.get(5) == one.get(5)
    assert other.may_have_forgotten(6) == one.may_have_forgotten(6) == (count_max == 2)
