"""Each operation and each condition: what it does, and what it refuses, in one line."""

from __future__ import annotations

import pytest

from quorate.tables import (
    INT_MAX,
    KEY_LENGTH_MAX,
    OPERATIONS_COUNT_MAX,
    ROW_BYTES_MAX,
    TABLES_COUNT_MAX,
    Absent,
    Add,
    At,
    BadRead,
    Column,
    Condition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Outcome,
    Replace,
    Set,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    why_not,
)
from tests.unit.machine.table_support import ACCOUNTS, EVENTS, Group

ANN = (1, "ann", 100)
BOB = (2, None, 50)


@pytest.fixture
def group() -> Group:
    group = Group(ACCOUNTS, EVENTS)
    group.do(Insert("accounts", ANN), Insert("accounts", BOB))
    return group


def test_insert_adds_a_row_at_the_version_of_its_entry(group: Group) -> None:
    result = group.do(Insert("accounts", (3, "cid", 0)))
    assert result.outcome == Outcome.DONE
    row = group.tables.get("accounts", (3,))
    assert row is not None
    assert (row.version, row.values) == (result.offset, (3, "cid", 0))


def test_replace_puts_a_row_in_place_of_whatever_was_there(group: Group) -> None:
    group.do(Replace("accounts", (1, "amy", 7)), Replace("accounts", (9, "new", 1)))
    assert group.committed("accounts") == [(1, "amy", 7), BOB, (9, "new", 1)]


def test_update_sets_and_adds(group: Group) -> None:
    group.do(Update("accounts", (1,), (Set("owner", None), Add("balance", -30), Add("balance", 1))))
    assert group.committed("accounts") == [(1, None, 71), BOB]


def test_a_transfer_is_two_updates(group: Group) -> None:
    group.do(
        Update("accounts", (1,), (Add("balance", -30),)),
        Update("accounts", (2,), (Add("balance", 30),)),
    )
    assert [values[2] for values in group.committed("accounts")] == [70, 80]


def test_upsert_inserts_or_changes(group: Group) -> None:
    more = (Add("balance", 5),)
    group.do(Upsert("accounts", (3, "cid", 1), more), Upsert("accounts", (1, "zoe", 1), more))
    assert group.committed("accounts") == [(1, "ann", 105), BOB, (3, "cid", 1)]


def test_delete_removes_a_row_and_does_not_mind_if_there_is_none(group: Group) -> None:
    assert group.do(Delete("accounts", (1,)), Delete("accounts", (7,))).outcome == Outcome.DONE
    assert group.committed("accounts") == [BOB]


def test_tables_are_created_and_dropped_through_the_log(group: Group) -> None:
    other = Table("other", (Column("k", Type.STR),), ("k",))
    group.do(CreateTable(other), Insert("other", ("x",)), DropTable("accounts"))
    assert [table.name for table in group.tables.tables()] == ["events", "other"]
    assert group.committed("other") == [("x",)]


def test_a_table_that_comes_again_is_empty(group: Group) -> None:
    group.do(DropTable("accounts"), CreateTable(ACCOUNTS))
    assert group.committed("accounts") == []


def test_integers_fit_a_column_of_floats(group: Group) -> None:
    group.do(Insert("events", ("x", 1, 1, 2)), Insert("events", ("y", 1, 2, None)))
    (first, second) = group.committed("events")
    assert (first[3], type(first[3]), second[3]) == (2.0, float, None)


def test_rows_are_read_in_the_order_of_their_keys(group: Group) -> None:
    for day, number in [(2, 1), (1, 2), (10, 0), (1, 10), (1, 1)]:
        group.do(Insert("events", ("", day, number, None)))

    def keys(first: tuple[int, ...] | None, last: tuple[int, ...] | None, limit: int = 100) -> list[object]:
        return [row.values[1:3] for row in group.tables.scan("events", first, last, limit)]

    assert keys(None, None) == [(1, 1), (1, 2), (1, 10), (2, 1), (10, 0)]
    assert keys((1, 2), (2, 1)) == [(1, 2), (1, 10), (2, 1)]
    assert keys((1,), (1,)) == [(1, 1), (1, 2), (1, 10)]
    assert keys((2,), None) == [(2, 1), (10, 0)]
    assert keys(None, None, 2) == [(1, 1), (1, 2)]
    assert keys((3,), (2,)) == keys(None, None, -1) == []


REFUSALS: list[tuple[Operation, str]] = [
    (Insert("accounts", ANN), "accounts 1 is there already"),
    (Insert("none", ANN), "there is no table 'none'"),
    (Insert("accounts", (1, "x")), "a row of accounts has 3 columns, not 2"),
    (Insert("accounts", ("1", "x", 1)), "column id of accounts is int, not str"),
    (Insert("accounts", (True, "x", 1)), "column id of accounts is int, not bool"),
    (Insert("accounts", (3, b"x", 1)), "column owner of accounts is str or null, not bytes"),
    (Insert("accounts", (3, "x", None)), "column balance of accounts is int, not null"),
    (
        Insert("accounts", (3, "x", INT_MAX + 1)),
        "column balance of accounts is int, not int that is too large",
    ),
    (
        Insert("events", ("", 1, 1, float("nan"))),
        "column weight of events is float or null, not float that is",
    ),
    (Insert("accounts", (3, "x" * ROW_BYTES_MAX, 1)), "a row of accounts has 1,048,576 bytes at most"),
    (Update("accounts", (3,), ()), "accounts 3 is not there"),
    (Update("accounts", (1, 2), ()), "the key of accounts has 1 columns, not 2"),
    (Update("accounts", ("1",), ()), "column id of accounts is int, not str"),
    (Update("accounts", (1,), (Set("id", 2),)), "column id is part of the key of accounts"),
    (Update("accounts", (1,), (Set("size", 2),)), "accounts has no column 'size'"),
    (Update("accounts", (1,), (Set("balance", "2"),)), "column balance of accounts is int, not str"),
    (Update("accounts", (1,), (Add("balance", 0.5),)), "column balance of accounts is int, not float"),
    (Update("accounts", (1,), (Add("balance", INT_MAX),)), "column balance of accounts would be too large"),
    (Update("accounts", (1,), (Add("balance", 0),) * 129), "129 changes of one row are too many"),
    (
        Update("accounts", (1,), (Set("owner", "x" * (ROW_BYTES_MAX + 1)),)),
        "column owner of accounts is str or null",
    ),
    (Upsert("accounts", (1, None, None), ()), "column balance of accounts is int, not null"),
    (Delete("accounts", ()), "the key of accounts has 1 columns, not 0"),
    (CreateTable(ACCOUNTS), "there is a table accounts already"),
    (CreateTable(Table("t", (), ())), "a table has 1 to 64 columns, not 0"),
    (DropTable("none"), "there is no table 'none'"),
]


@pytest.mark.parametrize(("operation", "why"), REFUSALS)
def test_a_refused_transaction_changes_nothing_and_says_why(
    group: Group, operation: Operation, why: str
) -> None:
    before = group.tables.digest()
    result = group.do(Replace("accounts", (1, "x", 1)), Delete("accounts", (2,)), operation)
    assert result.outcome == Outcome.REFUSED
    assert result.why.startswith(why)
    assert "\n" not in result.why
    assert group.tables.digest() == before


def test_nothing_is_added_to_text_or_to_null(group: Group) -> None:
    group.do(Insert("events", ("x", 1, 1, None)))
    for column in ("text", "weight"):
        result = group.do(Update("events", (1, 1), (Add(column, 1),)))
        assert result.outcome == Outcome.REFUSED


def test_a_sum_that_is_no_finite_number_is_refused(group: Group) -> None:
    group.do(Insert("events", ("x", 1, 1, 1.7e308)))
    result = group.do(Update("events", (1, 1), (Add("weight", 1.7e308),)))
    assert result.why == "column weight of events would be too large"


def test_a_row_cannot_grow_beyond_its_bound_by_updates() -> None:
    wide = Table("wide", tuple(Column(name, Type.STR) for name in "kabc"), ("k",))
    group = Group(wide)
    group.do(Insert("wide", ("x", "", "", "")))
    half = "y" * (ROW_BYTES_MAX // 2)
    assert group.do(Update("wide", ("x",), (Set("a", half),))).outcome == Outcome.DONE
    assert group.do(Update("wide", ("x",), (Set("b", half),))).outcome == Outcome.REFUSED


def test_keys_are_short() -> None:
    group = Group(Table("t", (Column("k", Type.BYTES),), ("k",)))
    assert group.do(Insert("t", (b"x" * KEY_LENGTH_MAX,))).outcome == Outcome.DONE
    result = group.do(Insert("t", (b"x" * (KEY_LENGTH_MAX + 1),)))
    assert result.why == "column k of t is bytes, not bytes that is too large"


def test_counts_are_bounded_when_applied(group: Group) -> None:
    result = group.do(*[Delete("accounts", (1,))] * (OPERATIONS_COUNT_MAX + 1))
    assert result.why == "10,001 operations are too many; 10,000 are the most"
    assert group.do().why == "a transaction has at least one operation"


def test_a_group_has_so_many_tables_at_most() -> None:
    group = Group()
    tables = [Table(f"t{number}", (Column("k", Type.INT),), ("k",)) for number in range(TABLES_COUNT_MAX + 1)]
    assert group.do(*map(CreateTable, tables[:-1])).outcome == Outcome.DONE
    assert group.do(CreateTable(tables[-1])).why == "a group has 1,000 tables at most"


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (Absent("accounts", (3,)), ""),
        (Absent("accounts", (1,)), "accounts 1 is there, at version 1"),
        (Absent("accounts", ("1",)), "column id of accounts is int, not str"),
        (Absent("none", (1,)), "there is no table 'none'"),
        (At("accounts", (1,), 1), ""),
        (At("accounts", (1,), 0), "accounts 1 is at version 1, not 0"),
        (At("accounts", (3,), 1), "accounts 3 is not there, and not at version 1"),
    ],
)
def test_conditions(group: Group, condition: Condition, why: str) -> None:
    result = group.do(Replace("accounts", (5, None, 0)), when=(condition,))
    assert result.why == why
    assert (group.tables.get("accounts", (5,)) is None) == bool(why)


def test_conditions_hold_before_the_transaction_not_within_it(group: Group) -> None:
    done = group.do(Insert("accounts", (5, None, 0)), when=(Absent("accounts", (5,)),))
    assert done.outcome == Outcome.DONE


def test_compare_and_set_has_one_winner(group: Group) -> None:
    row = group.tables.get("accounts", (1,))
    assert row is not None
    seen = (At("accounts", (1,), row.version),)
    outcomes = [
        group.append(Update("accounts", (1,), (Add("balance", 1),)), when=seen).outcome for _ in range(3)
    ]
    assert outcomes == [Outcome.DONE, Outcome.REFUSED, Outcome.REFUSED]


@pytest.mark.parametrize(
    "transaction",
    [
        Transaction(b"i" * 16, (Delete("accounts", 1),)),  # type: ignore[arg-type]
        Transaction(b"i" * 16, (Update("accounts", (1,), Add("balance", 1)),)),  # type: ignore[arg-type]
        Transaction(b"i" * 16, Delete("accounts", (1,))),  # type: ignore[arg-type]
        Transaction(b"i" * 16, (CreateTable(Table("t", (Column("id", int),), ("id",))),)),  # type: ignore[arg-type]
        Transaction(b"i" * 16, (CreateTable(Table("t", (Column("i", Type.INT),), "i")),)),  # type: ignore[arg-type]
        Transaction("i" * 16, (Delete("accounts", (1,)),)),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_the_wrong_type_is_refused_in_one_line(transaction: Transaction) -> None:
    wrong = why_not(transaction)
    assert wrong is not None
    assert "wrong types" in wrong
    assert "\n" not in wrong


def test_a_key_that_is_no_tuple_is_a_bad_read(group: Group) -> None:
    with pytest.raises(BadRead, match=r"a key is a tuple of values, as in \(1,\), not 77"):
        group.tables.get("accounts", 77)  # type: ignore[arg-type]
