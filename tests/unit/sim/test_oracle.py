"""The oracle: every lie that a store could tell its clients is caught, and the truth is not."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from quorate.batch import encode_records, stamp
from quorate.core.effects import Outcome
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, NoOp, partition_of
from quorate.core.events import ReadLevel
from quorate.core.invariant import Violated
from quorate.sim.oracle import Fate, Oracle, Proposal
from quorate.storage.frame import Frame, build, control_payload

PARTITION = partition_of(bytes(16), 0)
NODE_ONE = (1, 1, 0)
"""Node 1, its first life, partition 0."""


def payload(number: int, count: int = 1) -> bytes:
    return encode_records([(None, b"value %d.%d" % (number, place)) for place in range(count)])


def propose(oracle: Oracle, number: int, count: int = 1) -> Proposal:
    return oracle.proposed(number, 0, [payload(number, count)], [count])


def produce(oracle: Oracle, sequence: int, *, epoch: int = 0, count: int = 1) -> Proposal:
    """The batch of a producer with the id 5."""
    records = [(None, b"%d/%d.%d" % (epoch, sequence, place)) for place in range(count)]
    batch = encode_records(records, producer_id=5, producer_epoch=epoch, base_sequence=sequence)
    return oracle.proposed(1 + 100 * epoch + sequence, 0, [batch], [count])


def settle(oracle: Oracle, proposal: Proposal, offset: int) -> None:
    oracle.settled(0, offset, int.from_bytes(proposal.payloads[0][17:21], "big"))


def frame(batch: bytes, offset: int, count: int = 1, epoch: int = 1) -> Frame:
    stamped = stamp(batch, offset=offset, epoch=epoch)
    crc = int.from_bytes(batch[17:21], "big")
    header = Header(epoch, offset, count, len(batch), Kind.RECORDS, 0, crc)
    prev = EntryId(epoch, offset - 1) if offset else NOWHERE
    return build(PARTITION, header, stamped, prev, 0)


def control(offset: int) -> Frame:
    header = Header(1, offset, kind=Kind.CONTROL, control=NoOp(1))
    return build(PARTITION, header, control_payload(header), EntryId(1, offset - 1) if offset else NOWHERE, 0)


def fetch(oracle: Oracle, frames: list[Frame], *, first: int = 0, commit: int = 99, base: int = -1) -> int:
    return oracle.fetched(NODE_ONE, first, frames, commit, base)


def expect(invariant: str) -> AbstractContextManager[object]:
    return pytest.raises(Violated, match=f"^{invariant}: ")


def test_acknowledged_entry_read_where_it_was_acknowledged_is_fine() -> None:
    oracle = Oracle(1)
    oracle.acknowledged(propose(oracle, 1, 2), 0)
    assert fetch(oracle, [frame(payload(1, 2), 0, 2)]) == 2
    assert oracle.highest == [1]


def test_another_entry_in_the_place_of_an_acknowledged_one_is_a_loss() -> None:
    oracle = Oracle(1)
    oracle.acknowledged(propose(oracle, 1), 4)
    propose(oracle, 2)
    with expect("acknowledged-lost"):
        fetch(oracle, [frame(payload(2), 4)], first=4)


def test_control_entry_in_the_place_of_an_acknowledged_one_is_a_loss() -> None:
    oracle = Oracle(1)
    oracle.acknowledged(propose(oracle, 1), 4)
    with expect("acknowledged-lost"):
        fetch(oracle, [control(4)], first=4)


def test_log_that_ends_below_what_was_acknowledged_is_a_loss() -> None:
    oracle = Oracle(1)
    oracle.acknowledged(propose(oracle, 1), 4)
    oracle.lost_below(0, 4, "n1")
    with expect("acknowledged-lost"):
        oracle.lost_below(0, 3, "n1")


def test_settled_entry_that_was_read_must_stay_though_nobody_was_told_of_it() -> None:
    oracle = Oracle(1)
    propose(oracle, 1)
    propose(oracle, 2)
    fetch(oracle, [frame(payload(1), 4)], first=4)
    with expect("read-changed"):
        fetch(oracle, [frame(payload(2), 4)], first=4)


def test_one_entry_at_two_offsets_was_written_twice() -> None:
    oracle = Oracle(1)
    propose(oracle, 1)
    fetch(oracle, [frame(payload(1), 4)], first=4)
    with expect("placed-twice"):
        fetch(oracle, [frame(payload(1), 6)], first=6)


def test_entry_proposed_after_an_acknowledgement_stands_above_it() -> None:
    oracle = Oracle(1)
    late = propose(oracle, 1)
    oracle.acknowledged(propose(oracle, 2), 4)
    oracle.acknowledged(late, 3)  # Proposed at the same time: either order is right.
    with expect("order"):
        oracle.acknowledged(propose(oracle, 3), 2)


def test_bytes_that_nobody_proposed_are_a_phantom() -> None:
    oracle = Oracle(1)
    with expect("phantom"):
        fetch(oracle, [frame(payload(1), 0)])


def test_entry_that_every_node_refused_is_a_phantom() -> None:
    oracle = Oracle(1)
    propose(oracle, 1).fate = Fate.REFUSED
    with expect("phantom"):
        fetch(oracle, [frame(payload(1), 0)])


def test_entry_of_another_partition_is_a_phantom() -> None:
    oracle = Oracle(2)
    oracle.proposed(1, 1, [payload(1)], [1])
    with expect("phantom"):
        fetch(oracle, [frame(payload(1), 0)])


def test_read_shows_nothing_above_commit() -> None:
    oracle = Oracle(1)
    propose(oracle, 1, 2)
    with expect("read-unsettled"):
        fetch(oracle, [frame(payload(1, 2), 0, 2)], commit=0)


def test_read_starts_with_the_entry_that_holds_the_offset_and_leaves_nothing_out() -> None:
    oracle = Oracle(1)
    propose(oracle, 1, 3)
    propose(oracle, 2)
    assert fetch(oracle, [frame(payload(1, 3), 0, 3)], first=1) == 3
    with expect("read-gap"):
        fetch(oracle, [frame(payload(1, 3), 0, 3), frame(payload(2), 4)])


def test_read_below_the_kept_log_starts_behind_its_base() -> None:
    oracle = Oracle(1)
    propose(oracle, 1)
    assert fetch(oracle, [frame(payload(1), 5)], first=0, base=4) == 6


def test_commit_of_one_life_never_falls() -> None:
    oracle = Oracle(1)
    fetch(oracle, [], commit=5)
    oracle.fetched((1, 2, 0), 0, [], 3, -1, oracle.known_commit((1, 2, 0)))
    fetch(oracle, [], commit=4)  # It began before the other one.
    with expect("read-regressed"):
        oracle.fetched(NODE_ONE, 0, [], 4, -1, oracle.known_commit(NODE_ONE))


# ---- producers with ids ----


def test_batches_of_a_producer_in_sequence_are_fine_whatever_lies_between_them() -> None:
    oracle = Oracle(1)
    first, second, third = produce(oracle, 0, count=2), produce(oracle, 2), produce(oracle, 0, epoch=1)
    settle(oracle, first, 4)
    settle(oracle, propose(oracle, 99), 6)
    settle(oracle, second, 7)
    settle(oracle, third, 8)
    for proposal, offset in ((second, 7), (first, 4), (first, 4)):
        oracle.acknowledged(proposal, offset)
    assert oracle.acknowledged_count == 2


def test_a_batch_that_is_settled_twice_was_appended_twice() -> None:
    oracle = Oracle(1)
    proposal = produce(oracle, 0)
    settle(oracle, proposal, 4)
    with expect("producer-repeated"):
        settle(oracle, proposal, 5)


def test_a_batch_without_the_one_before_it_leaves_a_hole() -> None:
    oracle = Oracle(1)
    settle(oracle, produce(oracle, 0, count=2), 0)
    with expect("producer-order"):
        settle(oracle, produce(oracle, 3), 2)


def test_the_first_batch_of_an_epoch_has_the_sequence_zero() -> None:
    oracle = Oracle(1)
    with expect("producer-order"):
        settle(oracle, produce(oracle, 1), 0)
    settle(oracle, produce(oracle, 0), 1)
    with expect("producer-order"):
        settle(oracle, produce(oracle, 7, epoch=1), 2)


def test_an_old_epoch_does_not_come_behind_a_new_one() -> None:
    oracle = Oracle(1)
    old = produce(oracle, 0)
    settle(oracle, produce(oracle, 0, epoch=1), 4)
    with expect("producer-order"):
        settle(oracle, old, 5)


def test_a_batch_is_acknowledged_where_it_is_and_nowhere_else() -> None:
    oracle = Oracle(1)
    settled, unsettled = produce(oracle, 0), produce(oracle, 1)
    settle(oracle, settled, 4)
    with expect("producer-answer"):
        oracle.acknowledged(settled, 5)
    with expect("producer-answer"):
        oracle.acknowledged(unsettled, 5)


def test_a_producer_is_not_told_what_is_not_true() -> None:
    oracle = Oracle(1)
    settled, unsettled = produce(oracle, 0), produce(oracle, 1)
    settle(oracle, settled, 4)
    oracle.refused(settled, Outcome.DUPLICATE)
    oracle.refused(unsettled, Outcome.OUT_OF_ORDER)
    with expect("producer-answer"):
        oracle.refused(unsettled, Outcome.DUPLICATE)
    with expect("producer-answer"):
        oracle.refused(unsettled, Outcome.FENCED)
    produce(oracle, 0, epoch=1)
    oracle.refused(unsettled, Outcome.FENCED)


# ---- up to where readers may read ----

LINEAR, LEASE, AT_OFFSET = ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.AT_OFFSET


def told(oracle: Oracle, level: ReadLevel, end: int, *, applied: int = 99, offset: int = -1) -> None:
    """A read that begins and ends now."""
    oracle.told(oracle.asked(0, level, offset), end, applied=applied)


@pytest.mark.parametrize("level", [LINEAR, LEASE])
def test_read_sees_what_was_acknowledged_before_it_began(level: ReadLevel) -> None:
    oracle = Oracle(1)
    early = oracle.asked(0, level)
    oracle.acknowledged(propose(oracle, 1), 4)
    oracle.told(early, 3, applied=9)  # Both at the same time: either order is right.
    with expect("read-stale"):
        told(oracle, level, 3)


@pytest.mark.parametrize("level", [LINEAR, LEASE])
def test_read_sees_what_a_read_before_it_has_seen(level: ReadLevel) -> None:
    oracle = Oracle(1)
    early = oracle.asked(0, level)
    told(oracle, LINEAR, 7)
    oracle.told(early, 6, applied=9)
    with expect("read-stale"):
        told(oracle, level, 6)


def test_read_from_a_lease_may_be_stale_where_clocks_keep_no_bounds() -> None:
    oracle = Oracle(1)
    oracle.leases_hold = False
    oracle.acknowledged(propose(oracle, 1), 4)
    told(oracle, LEASE, 3)
    told(oracle, LEASE, 9)
    told(oracle, LINEAR, 4)  # What a lease said without bounds binds nobody.
    with expect("read-stale"):
        told(oracle, LINEAR, 3)


def test_entry_proposed_after_a_read_stands_above_what_that_has_seen() -> None:
    oracle = Oracle(1)
    early = propose(oracle, 1)
    told(oracle, LINEAR, 5)
    late = propose(oracle, 2)
    oracle.acknowledged(early, 4)
    with expect("read-future"):
        oracle.acknowledged(late, 5)


def test_read_of_what_is_not_settled_yet() -> None:
    oracle = Oracle(1)
    oracle.settled_end = lambda partition: 5
    told(oracle, AT_OFFSET, 5)
    for level in (LINEAR, LEASE, AT_OFFSET):
        with expect("read-future"):
            told(oracle, level, 6)


def test_read_of_what_its_node_cannot_show() -> None:
    oracle = Oracle(1)
    told(oracle, AT_OFFSET, 5, applied=5)
    for level in (LINEAR, LEASE, AT_OFFSET):
        with expect("read-not-applied"):
            told(oracle, level, 5, applied=4)


def test_read_at_an_offset_reaches_as_far_as_was_asked_and_need_not_be_new() -> None:
    oracle = Oracle(1)
    oracle.acknowledged(propose(oracle, 1), 8)
    told(oracle, AT_OFFSET, 3, offset=3)
    with expect("read-stale"):
        told(oracle, AT_OFFSET, 3, offset=4)


# ---- timestamps ----


@pytest.mark.behaviour("YB-14")
def test_timestamps_rise_with_the_log_whatever_is_heard_first() -> None:
    oracle = Oracle(1)
    for offset, epoch, timestamp in ((4, 1, 1000), (9, 2, 2000), (6, 1, 1500), (4, 1, 1000)):
        oracle.stamped(0, offset, epoch, timestamp)


@pytest.mark.behaviour("YB-14")
@pytest.mark.parametrize("timestamp", [999, 2001, 1000, 2000])
def test_timestamp_of_a_leader_falls_among_those_of_another(timestamp: int) -> None:
    oracle = Oracle(1)
    oracle.stamped(0, 4, 1, 1000)
    oracle.stamped(0, 9, 3, 2000)
    with expect("timestamp-overlap"):
        oracle.stamped(0, 6, 2, timestamp)
