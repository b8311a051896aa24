"""Machines of commands: results by offset, and snapshots that hold the state alone."""

from __future__ import annotations

import msgspec

from quorate.batch import encode_records
from quorate.core.entry import Header
from quorate.machine.commanded import RESULTS_KEPT_MAX, Commanded, commands_batch


class Add(msgspec.Struct, frozen=True, tag="add"):
    number: int


class Take(msgspec.Struct, frozen=True, tag="take"):
    number: int


class Sum(Commanded):
    def __init__(self) -> None:
        super().__init__(Add | Take, int)
        self.total = 0

    def apply(self, command: Add | Take) -> int:
        self.total += command.number if isinstance(command, Add) else -command.number
        return self.total

    def state(self) -> int:
        return self.total

    def become(self, state: int) -> None:
        self.total = state


def settle(machine: Commanded, offset: int, payload: bytes, count: int = 1) -> None:
    machine.settle(Header(1, offset, count, size=len(payload)), 0, payload)


def test_every_command_of_a_batch_has_a_result_at_its_own_offset() -> None:
    machine = Sum()
    settle(machine, 7, commands_batch([Add(2), Take(1), Add(5)]), 3)
    assert [machine.result(offset) for offset in (6, 7, 8, 9, 10)] == [None, 2, 1, 6, None]


def test_what_cannot_be_read_changes_nothing_and_has_no_result() -> None:
    machine = Sum()
    settle(
        machine, 0, encode_records([(None, b"\xc1"), (None, None), (None, msgspec.msgpack.encode(Add(1)))]), 3
    )
    settle(machine, 3, b"no batch")
    assert [machine.result(offset) for offset in range(4)] == [None, None, 1, None]
    assert machine.total == 1


def test_a_snapshot_is_the_state_without_results() -> None:
    machine, other = Sum(), Sum()
    settle(machine, 0, commands_batch([Add(4)]))
    settle(other, 0, commands_batch([Add(9)]))
    other.restore(machine.snapshot())
    assert (other.total, other.result(0)) == (4, None)


def test_results_are_kept_of_the_newest_commands_only() -> None:
    machine = Sum()
    for offset in range(0, RESULTS_KEPT_MAX + 100, 100):
        settle(machine, offset, commands_batch([Add(1)] * 100), 100)
    assert machine.result(0) is None
    assert machine.result(RESULTS_KEPT_MAX) is not None
