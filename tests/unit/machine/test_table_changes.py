"""What has changed in a table, for whoever follows it; and the table as it was."""

from __future__ import annotations

import pytest

from quorate.machine.table import Tables
from quorate.machine.table_changes import Change, Gone
from quorate.machine.table_wire import encode
from quorate.tables import Add, BadRead, Delete, DropTable, Insert, Replace, Transaction, Update, Values
from quorate.wire.table_pieces import open_piece, values_of
from tests.unit.machine.table_support import ACCOUNTS, EVENTS, Group, id_of


def changes(tables: Tables, first: int = 0, **more: int) -> list[Change]:
    given = {"last": 1000, "skip": 0, "limit": 1000, "bytes_max": 1 << 20, **more}
    return tables.changes("accounts", first=first, **given)[0].changes


def told(found: list[Change]) -> list[tuple[int, Values | None, Values | None]]:
    def values(kept: bytes | None) -> Values | None:
        return values_of(kept) if kept else None

    return [(each.offset, values(each.before), values(each.after)) for each in found if each.key is not None]


def past(tables: Tables, at: int, after: Values | None = None) -> list[Values]:
    pieces = tables.past("accounts", at, after)
    return [values_of(kept) for piece in pieces for kept in open_piece(piece).rows]


@pytest.fixture
def group() -> Group:
    """0 makes the tables; then 1 inserts, 2 updates twice, 3 deletes and adds, and 4 changes another table."""
    made = Group(ACCOUNTS, EVENTS)
    made.do(Insert("accounts", (1, "Ann", 1)), Insert("accounts", (2, None, 2)))
    made.do(Update("accounts", (1,), (Add("balance", 1),)), Update("accounts", (1,), (Add("balance", 1),)))
    made.do(Delete("accounts", (2,)), Insert("accounts", (3, "Cid", 3)))
    made.do(Insert("events", ("x", 1, 1, None)))
    return made


def test_each_row_that_a_transaction_changes_is_told_once(group: Group) -> None:
    group.append(Delete("accounts", (1,)))  # Not settled.
    assert told(changes(group.tables)) == [
        (1, None, (1, "Ann", 1)),
        (1, None, (2, None, 2)),
        (2, (1, "Ann", 1), (1, "Ann", 3)),
        (3, (2, None, 2), None),
        (3, None, (3, "Cid", 3)),
    ]
    assert told(changes(group.tables, first=2, last=2)) == [(2, (1, "Ann", 1), (1, "Ann", 3))]


def test_what_comes_and_goes_in_one_transaction_was_never_there(group: Group) -> None:
    group.do(Insert("accounts", (7, None, 7)), Delete("accounts", (7,)))
    assert changes(group.tables, first=5) == []


def test_refused_and_repeated_transactions_change_nothing(group: Group) -> None:
    group.do(Replace("accounts", (8, None, 8)), Insert("accounts", (1, None, 1)))
    group.append(Replace("accounts", (9, None, 9)), number=1)
    group.append(Replace("accounts", (9, None, 9)), number=1)
    group.settle()
    assert told(changes(group.tables, first=5)) == [(6, None, (9, None, 9))]


def test_what_is_rolled_back_is_not_told(group: Group) -> None:
    done = group.append(Replace("accounts", (8, None, 8)))
    group.roll_back(done.offset)
    group.settle()
    group.do(Replace("accounts", (9, None, 9)))
    assert told(changes(group.tables, first=5)) == [(7, None, (9, None, 9))]


def test_a_page_ends_within_an_entry_and_the_next_goes_on_there(group: Group) -> None:
    found: list[Change] = []
    first, skip = 0, 0
    for _ in range(10):
        page, kept_from = group.tables.changes(
            "accounts", first=first, last=100, skip=skip, limit=1, bytes_max=1
        )
        assert kept_from == 0
        found += page.changes
        if page.resume is None:
            break
        first, skip = page.resume
    assert found == changes(group.tables)


def test_the_time_of_a_change_is_when_its_transaction_was_taken(group: Group) -> None:
    header = group.log[-1][0]
    payload = encode(Transaction(id_of(1), (Replace("accounts", (8, None, 8)),)), 1_700_000_000_000)
    header = type(header)(1, group.tables.appended + 1)
    group.tables.settle(header, 0, payload)
    assert [change.timestamp for change in changes(group.tables, first=3)] == [-1, -1, 1_700_000_000_000]


def test_below_the_oldest_that_is_kept_nothing_is_told() -> None:
    group = Group(ACCOUNTS, changes_bytes_max=1000)
    for number in range(100):
        group.do(Replace("accounts", (1, "x" * 100, number)))
    with pytest.raises(Gone) as gone:
        changes(group.tables)
    kept_from = gone.value.first
    assert 90 < kept_from < 100
    assert [each.offset for each in changes(group.tables, first=kept_from)] == list(range(kept_from, 101))
    with pytest.raises(Gone):
        past(group.tables, kept_from - 2)
    assert past(group.tables, kept_from - 1) == [(1, "x" * 100, kept_from - 2)]


def test_a_copy_that_began_with_a_snapshot_keeps_what_came_behind_it(group: Group) -> None:
    restored = Tables()
    restored.restore(group.tables.snapshot())
    with pytest.raises(Gone) as gone:
        changes(restored, first=4)
    assert gone.value.first == 5
    assert changes(restored, first=5) == []
    assert past(restored, 4) == past(group.tables, 4)


def test_a_table_is_shown_as_it_was_whatever_comes_meanwhile(group: Group) -> None:
    assert past(group.tables, 1) == [(1, "Ann", 1), (2, None, 2)]
    assert past(group.tables, 2) == [(1, "Ann", 3), (2, None, 2)]
    assert past(group.tables, 4) == [(1, "Ann", 3), (3, "Cid", 3)]
    assert past(group.tables, 1, after=(1,)) == [(2, None, 2)]
    pieces = group.tables.past("accounts", 2)
    group.do(Delete("accounts", (1,)), Replace("accounts", (2, "Bob", 0)))
    rows = [values_of(kept) for piece in pieces for kept in open_piece(piece).rows]
    assert rows == [(1, "Ann", 3), (2, None, 2)]
    with pytest.raises(BadRead):
        group.tables.past("accounts", 100)


def test_a_table_that_was_dropped_has_no_past(group: Group) -> None:
    group.do(DropTable("accounts"))
    with pytest.raises(BadRead):
        changes(group.tables)
    again = Group(ACCOUNTS)
    again.do(DropTable("accounts"))
    header, payload = again.log[0]
    payload = payload.replace(id_of(1000), id_of(77))
    again.tables.settle(type(header)(1, again.tables.appended + 1), 0, payload)
    with pytest.raises(Gone):
        past(again.tables, 0)
    marks = [(each.before, each.after) for each in changes(again.tables)]
    assert marks == [(None, b""), (b"", None), (None, b"")]
