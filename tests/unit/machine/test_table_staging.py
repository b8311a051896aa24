"""What is too large for one entry is staged in parts, seen by nobody, and committed by one entry."""

from __future__ import annotations

import pytest

from quorate.machine import table_stages
from quorate.machine.table import Tables
from quorate.tables import (
    PART_BYTES_MAX,
    STAGED_PARTS_MAX,
    CommitStaged,
    CreateTable,
    Delete,
    DiscardStaged,
    Insert,
    Level,
    Operation,
    Outcome,
    Replace,
    RowOperation,
    Stage,
    Transaction,
    encode_part,
    why_not,
)
from tests.unit.machine.table_support import ACCOUNTS, Group, id_of

ONE, TWO = b"app one " + b"stage  1", b"app one " + b"stage  2"
OTHER = b"another " + b"stage  1"


def staged(stage: bytes, part: int, *operations: RowOperation) -> Stage:
    return Stage(stage, part, encode_part(operations))


def row(number: int) -> Replace:
    return Replace("accounts", (number, None, number))


@pytest.fixture
def group() -> Group:
    return Group(ACCOUNTS)


def test_parts_are_seen_by_nobody_until_one_entry_shows_them_all(group: Group) -> None:
    group.do(Insert("accounts", (9, "Ann", 9)))
    group.do(staged(ONE, 0, row(1), row(2)))
    group.do(staged(ONE, 1, row(3), Delete("accounts", (9,))))
    assert group.local("accounts") == [(9, "Ann", 9)]
    done = group.do(CommitStaged(((ONE, 2),)))
    assert done.outcome is Outcome.DONE
    assert group.committed("accounts") == [(1, None, 1), (2, None, 2), (3, None, 3)]
    assert {row.version for row in group.tables.scan("accounts")} == {done.offset}
    assert group.do(CommitStaged(((ONE, 2),))).why, "it is done, and nothing is left of it"


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (CommitStaged(((ONE, 3),)), f"part 2 of stage {ONE.hex()} is gone, or was never there"),
        (CommitStaged(((ONE, 2), (TWO, 1))), f"part 0 of stage {TWO.hex()} is gone, or was never there"),
        (staged(ONE, 1, row(7)), f"part 1 of stage {ONE.hex()} is there already"),
        (Stage(ONE, 2, b"\x91\xc0"), "a part's operations cannot be read"),
    ],
)
def test_what_is_not_whole_is_refused_and_changes_nothing(
    group: Group, operation: Operation, why: str
) -> None:
    group.do(staged(ONE, 0, row(1)))
    group.do(staged(ONE, 1, row(2)))
    assert group.do(operation).why == why
    assert group.local("accounts") == []
    group.do(CommitStaged(((ONE, 2),)))
    assert len(group.committed("accounts")) == 2


def test_a_commit_that_is_refused_half_way_leaves_the_parts(group: Group) -> None:
    group.do(Insert("accounts", (2, "Ann", 1)))
    group.do(staged(ONE, 0, row(1), Insert("accounts", (2, None, 2))))
    assert group.do(CommitStaged(((ONE, 1),))).why == "accounts 2 is there already"
    assert group.committed("accounts") == [(2, "Ann", 1)]
    group.do(Delete("accounts", (2,)))
    assert group.do(CommitStaged(((ONE, 1),))).outcome is Outcome.DONE


def test_cut_and_rolled_back_parts_and_commits_never_were(group: Group) -> None:
    group.do(staged(ONE, 0, row(1)))
    settled = group.tables.settled
    group.append(staged(ONE, 1, row(2)))
    group.append(CommitStaged(((ONE, 2),)))
    assert len(group.local("accounts")) == 2
    assert group.committed("accounts") == []
    group.cut(settled + 1)
    assert group.local("accounts") == []
    committed = group.append(CommitStaged(((ONE, 2),)))
    rolled_back = group.roll_back(committed.offset)
    assert group.local("accounts") == []
    group.cut(rolled_back - 1)
    assert len(group.local("accounts")) == 2, "a ROLLBACK that is cut gives it back"
    group.roll_back(committed.offset)
    group.settle()
    assert group.do(CommitStaged(((ONE, 2),))).outcome is Outcome.DONE, "the parts are as they were"


def test_a_repetition_is_in_already(group: Group) -> None:
    group.append(staged(ONE, 0, row(1)), number=1)
    group.append(staged(ONE, 0, row(1)), number=1)
    first = group.append(CommitStaged(((ONE, 1),)), number=2)
    assert group.append(CommitStaged(((ONE, 1),)), number=2) == first
    group.settle()
    assert group.tables.result(id_of(2)) == first


def test_parts_are_in_snapshots(group: Group) -> None:
    group.do(staged(ONE, 0, row(1)))
    group.append(staged(ONE, 1, row(2)))  # Not settled.
    group.append(DiscardStaged(ONE))
    restored = Tables()
    restored.restore(group.tables.snapshot())
    assert restored.digest() == group.tables.digest()
    group.cut(group.tables.settled)
    assert group.do(CommitStaged(((ONE, 1),))).outcome is Outcome.DONE
    header, payload = group.log[-1]
    restored.settle(header, 0, payload)
    assert [row.values for row in restored.scan("accounts")] == [(1, None, 1)]
    assert restored.digest() == group.tables.digest()


def test_beyond_the_bound_the_oldest_stages_are_forgotten(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_stages, "STAGED_OPERATIONS_MAX", 4)
    group.do(staged(OTHER, 0, row(1), row(2)))
    group.do(staged(ONE, 0, row(3)))
    group.do(staged(TWO, 0, row(4), row(5)))
    assert "is gone" in group.do(CommitStaged(((OTHER, 1),))).why
    assert group.do(CommitStaged(((ONE, 1), (TWO, 1)))).outcome is Outcome.DONE
    assert "is too large" in group.do(staged(ONE, 0, *map(row, range(5)))).why
    assert group.do(staged(TWO, 0, row(1))).outcome is Outcome.DONE, "what was refused takes no room"


def test_what_begins_alike_is_discarded_together(group: Group) -> None:
    for stage in (ONE, TWO, OTHER):
        group.do(staged(stage, 0, row(1)))
    group.do(DiscardStaged(b"app one "))
    assert group.do(CommitStaged(((ONE, 1),))).why
    assert group.do(CommitStaged(((TWO, 1),))).why
    assert group.do(CommitStaged(((OTHER, 1),))).outcome is Outcome.DONE


def test_a_commit_goes_with_other_operations(group: Group) -> None:
    group.do(staged(ONE, 0, row(1)))
    group.do(CommitStaged(((ONE, 1),)), Insert("accounts", (2, None, 2)))
    assert len(group.committed("accounts")) == 2
    assert group.tables.is_synchronous(group.log[-1][1])
    assert group.tables.result(id_of(5), Level.LOCAL) is None


@pytest.mark.parametrize(
    "operation",
    [
        Stage(b"short", 0, encode_part([row(1)])),
        Stage(ONE, -1, encode_part([row(1)])),
        Stage(ONE, STAGED_PARTS_MAX, encode_part([row(1)])),
        Stage(ONE, 0, encode_part([])),
        Stage(ONE, 0, b"\xc1"),
        Stage(ONE, 0, bytes(PART_BYTES_MAX + 1)),
        Stage(ONE, 0, encode_part([Replace("a b", (1,))])),
        Stage(ONE, 0, encode_part([CreateTable(ACCOUNTS)])),  # type: ignore[list-item]
        CommitStaged(()),
        CommitStaged(((ONE, 0),)),
        CommitStaged(((ONE, 1), (ONE, 1))),
        DiscardStaged(b""),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_proposed(operation: Operation) -> None:
    assert why_not(Transaction(id_of(1), (operation,))) is not None
    assert why_not(Transaction(id_of(1), (staged(ONE, 0, row(1)),))) is None
