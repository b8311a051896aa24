"""What the log says of consumer groups: members as of their last round, positions, and what is pending."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.entry import Header
from quorate.machine import groups
from quorate.machine.commanded import commands_batch
from quorate.machine.groups import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DropOffsets,
    EndOffsets,
    Expire,
    Groups,
    Member,
    Position,
    Positions,
    PutGroup,
    Result,
)

ONE, TWO = bytes(15) + b"1", bytes(15) + b"2"
ANNA = Member("anna-1", None, "anna", "/here", 10_000, 60_000, (("range", b"\1"),), b"\2")


def at(offset: int, *, topic_id: bytes = ONE, at_ms: int = 0) -> Position:
    return Position(offset, 3, "note", topic_id, at_ms)


class Log:
    """Feeds a machine as a host does."""

    def __init__(self) -> None:
        self.machine = Groups()
        self.offset = 0

    def settle(self, command: Command) -> Any:
        payload = commands_batch([command])
        self.machine.settle(Header(1, self.offset, size=len(payload)), 0, payload)
        self.offset += 1
        return self.machine.result(self.offset - 1)

    def put(self, generation: int, *members: Member, group: str = "g", at_ms: int = 0) -> Any:
        leader = members[0].id if members else ""
        return self.settle(PutGroup(group, "consumer", generation, "range", leader, members, at_ms))

    def commit(self, group: str = "g", topic: str = "t", partition: int = 0, **position: Any) -> Any:
        return self.settle(CommitOffsets(group, {topic: {partition: at(**position)}}))

    def positions(self, group: str = "g") -> Positions:
        return self.machine.groups[group].positions


@pytest.fixture
def log() -> Log:
    return Log()


def test_members_are_those_of_the_last_round(log: Log) -> None:
    assert log.put(1, ANNA) is Result.DONE
    other = msgspec.structs.replace(ANNA, id="bert-1", instance="bert")
    assert log.put(2, other) is Result.DONE
    group = log.machine.groups["g"]
    assert (group.generation, group.leader, list(group.members)) == (2, "bert-1", ["bert-1"])
    assert group.members["bert-1"] == other


def test_a_generation_never_falls(log: Log) -> None:
    log.put(2, ANNA)
    assert log.put(1) is Result.FENCED
    assert list(log.machine.groups["g"].members) == ["anna-1"]
    assert log.put(2) is Result.DONE, "somebody came back, or went, within it"


def test_positions_are_kept_with_everything_that_was_said(log: Log) -> None:
    log.commit(offset=5)
    log.commit(offset=9, partition=1)
    log.commit(offset=7)
    assert log.positions() == {"t": {0: at(7), 1: at(9)}}


def test_positions_outlive_members(log: Log) -> None:
    log.put(1, ANNA)
    log.commit(offset=5)
    log.put(2)
    assert log.positions() == {"t": {0: at(5)}}


def test_only_a_group_without_members_is_deleted(log: Log) -> None:
    assert log.settle(DeleteGroup("g")) is Result.NO_GROUP
    log.put(1, ANNA)
    assert log.settle(DeleteGroup("g")) is Result.NOT_EMPTY
    log.put(2)
    assert log.settle(DeleteGroup("g")) is Result.DONE
    assert log.machine.groups == {}


def test_single_positions_are_dropped(log: Log) -> None:
    assert log.settle(DropOffsets("g", {"t": (0,)})) is Result.NO_GROUP
    log.commit(offset=5)
    log.commit(offset=6, partition=1)
    assert log.settle(DropOffsets("g", {"t": (0, 9), "other": (1,)})) is Result.DONE
    assert log.positions() == {"t": {1: at(6)}}
    log.settle(DropOffsets("g", {"t": (1,)}))
    assert log.positions() == {}


# ---- transactions ----


def test_positions_of_a_transaction_stand_when_it_is_committed(log: Log) -> None:
    log.commit(offset=1)
    log.settle(CommitOffsets("g", {"t": {0: at(5)}}, producer_id=7, producer_epoch=0))
    group = log.machine.groups["g"]
    assert group.positions == {"t": {0: at(1)}}
    assert group.is_pending("t", 0)
    assert not group.is_pending("t", 1)
    log.settle(EndOffsets(7, 0, is_commit=True))
    assert group.positions == {"t": {0: at(5)}}
    assert not group.is_pending("t", 0)


def test_positions_of_a_transaction_never_were_when_it_is_aborted(log: Log) -> None:
    log.settle(CommitOffsets("g", {"t": {0: at(5)}}, producer_id=7, producer_epoch=0))
    log.settle(CommitOffsets("h", {"t": {0: at(6)}}, producer_id=7, producer_epoch=0))
    log.settle(EndOffsets(7, 1, is_commit=False))
    assert [log.machine.groups[name].positions for name in "gh"] == [{}, {}]
    assert [log.machine.groups[name].pending for name in "gh"] == [{}, {}]


def test_a_producer_that_was_fenced_leaves_nothing_pending(log: Log) -> None:
    log.settle(CommitOffsets("g", {"t": {0: at(5)}}, producer_id=7, producer_epoch=2))
    assert log.settle(CommitOffsets("g", {"t": {0: at(9)}}, producer_id=7, producer_epoch=1)) is Result.FENCED
    log.settle(EndOffsets(7, 1, is_commit=True))
    assert log.machine.groups["g"].is_pending("t", 0), "that was the end of another transaction"
    log.settle(CommitOffsets("g", {"t": {1: at(8)}}, producer_id=7, producer_epoch=3))
    log.settle(EndOffsets(7, 3, is_commit=True))
    assert log.positions() == {"t": {1: at(8)}}


# ---- what is too old ----


def test_old_positions_go_where_nobody_is(log: Log) -> None:
    log.put(1, ANNA, group="full", at_ms=10)
    log.put(1, group="left", at_ms=10)
    for name in ("full", "left", "alone"):
        log.commit(group=name, offset=1, at_ms=10)
        log.commit(group=name, offset=1, partition=1, at_ms=30)
    assert not log.machine.has_older(10)
    assert log.machine.has_older(20)
    log.settle(Expire(20))
    assert {name: list(group.positions["t"]) for name, group in log.machine.groups.items()} == {
        "full": [0, 1],
        "left": [1],
        "alone": [1],
    }
    log.settle(Expire(40))
    assert list(log.machine.groups) == ["full"]
    assert not log.machine.has_older(40)


def test_a_group_is_not_left_before_its_members_have_been_gone_for_as_long(log: Log) -> None:
    log.commit(offset=1, at_ms=10)
    log.put(1, at_ms=100)
    log.settle(Expire(50))
    assert log.positions() == {"t": {0: at(1, at_ms=10)}}


def test_positions_in_deleted_topics_go_wherever_they_are(log: Log) -> None:
    log.put(1, ANNA)
    log.commit(offset=1)
    log.commit(offset=1, partition=1, topic_id=TWO)
    log.settle(Expire(-1, (ONE,)))
    assert list(log.positions()["t"]) == [1]


def test_a_group_with_an_open_transaction_stays(log: Log) -> None:
    log.settle(CommitOffsets("g", {"t": {0: at(5)}}, producer_id=7, producer_epoch=0))
    log.settle(Expire(1_000))
    log.settle(EndOffsets(7, 0, is_commit=True))
    assert log.positions() == {"t": {0: at(5)}}


# ---- limits ----


def test_there_are_only_so_many_groups(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_COUNT_MAX", 2)
    assert [log.commit(group=name, offset=1) for name in "abc"] == [Result.DONE, Result.DONE, Result.TOO_MANY]
    assert log.put(1, group="d") is Result.TOO_MANY
    assert log.commit(group="a", offset=2) is Result.DONE


def test_a_group_has_only_so_many_positions(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "POSITIONS_COUNT_MAX", 3)
    assert log.settle(CommitOffsets("new", {"t": dict.fromkeys(range(4), at(1))})) is Result.TOO_MANY
    assert log.machine.groups == {}
    assert log.settle(CommitOffsets("g", {"t": dict.fromkeys(range(3), at(1))})) is Result.DONE
    assert log.settle(CommitOffsets("g", {"t": dict.fromkeys(range(3), at(2))})) is Result.DONE
    assert log.settle(CommitOffsets("g", {"t": {2: at(3), 3: at(3)}})) is Result.TOO_MANY
    assert log.positions() == {"t": dict.fromkeys(range(3), at(2))}


def test_all_groups_together_have_only_so_many(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ALL_POSITIONS_COUNT_MAX", 3)
    assert log.settle(CommitOffsets("g", {"t": dict.fromkeys(range(2), at(1))})) is Result.DONE
    assert log.commit(group="h", offset=1) is Result.DONE
    assert log.commit(group="i", offset=1) is Result.TOO_MANY
    assert log.commit(group="h", offset=2) is Result.DONE, "one that is there"
    log.settle(DropOffsets("g", {"t": (0,)}))
    assert log.commit(group="i", offset=1) is Result.DONE
    log.settle(DeleteGroup("i"))
    other = Groups()
    other.restore(log.machine.snapshot())
    log.machine = other
    assert [log.commit(group=name, offset=1) for name in "ij"] == [Result.DONE, Result.TOO_MANY]


# ---- against a model ----

_names = st.sampled_from(("g", "h"))
_partitions = st.integers(0, 2)
_positions = st.builds(
    lambda partition, offset: {"t": {partition: at(offset)}}, _partitions, st.integers(0, 99)
)
_producers = st.sampled_from((1, 2))
_commands = st.one_of(
    st.builds(CommitOffsets, _names, _positions),
    st.builds(CommitOffsets, _names, _positions, _producers, st.just(0)),
    st.builds(EndOffsets, _producers, st.just(0), st.booleans()),
    st.builds(lambda group, number: DropOffsets(group, {"t": (number,)}), _names, _partitions),
)


@given(st.lists(_commands, max_size=40), st.integers(0, 40))
def test_positions_are_what_a_simple_book_says_with_a_snapshot_in_between(
    commands: list[Any], snapshot_at: int
) -> None:
    log = Log()
    stands: dict[tuple[str, int], int] = {}
    pending: list[tuple[int, str, int, int]] = []
    for number, command in enumerate(commands):
        if number == snapshot_at:
            other = Groups()
            other.restore(log.machine.snapshot())
            log.machine = other
        log.settle(command)
        if isinstance(command, EndOffsets):
            ended = [each for each in pending if each[0] == command.producer_id]
            pending = [each for each in pending if each[0] != command.producer_id]
            if command.is_commit:
                stands.update({(group, partition): offset for _, group, partition, offset in ended})
        elif isinstance(command, DropOffsets):
            stands.pop((command.group, command.partitions["t"][0]), None)
        else:
            ((partition, position),) = command.positions["t"].items()
            if command.producer_id < 0:
                stands[command.group, partition] = position.offset
            else:
                pending.append((command.producer_id, command.group, partition, position.offset))
    assert log.machine._count == sum(each.positions_count() for each in log.machine.groups.values())
    found = {
        (name, partition): position.offset
        for name, group in log.machine.groups.items()
        for partition, position in group.positions.get("t", {}).items()
    }
    assert found == stands
    waiting = {
        (name, partition)
        for name, group in log.machine.groups.items()
        for partition in range(3)
        if group.is_pending("t", partition)
    }
    assert waiting == {(group, partition) for _, group, partition, _ in pending}
