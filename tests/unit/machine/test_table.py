"""Tables as a machine: what is applied, what is settled, what is taken back; results by id; snapshots meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorate import batch
from quorate.core.entry import Header, Kind, NoOp, Promote, Rollback
from quorate.machine import table_snapshot
from quorate.machine.table import Tables
from quorate.machine.table_snapshot import DamagedSnapshot
from quorate.machine.table_wire import encode
from quorate.tables import (
    Add,
    BadRead,
    CannotApply,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Level,
    Operation,
    Outcome,
    Replace,
    Result,
    Transaction,
    Update,
    Upsert,
)
from tests.unit.machine.table_support import ACCOUNTS, EVENTS, Group, id_of

ANN, BOB = (1, "ann", 100), (2, "bob", 50)


@pytest.fixture
def group() -> Group:
    group = Group(ACCOUNTS, EVENTS)
    group.do(Insert("accounts", ANN), Insert("accounts", BOB))
    return group


def add(number: int, delta: int) -> Update:
    return Update("accounts", (number,), (Add("balance", delta),))


def balances(group: Group, level: Level) -> list[object]:
    return [row.values[2] for row in group.tables.scan("accounts", level=level)]


# --- undo ---


def test_readers_choose_between_what_is_settled_and_what_is_applied(group: Group) -> None:
    group.append(add(1, 1))
    group.append(add(1, 2), Delete("accounts", (2,)), Insert("accounts", (3, None, 7)))
    assert balances(group, Level.COMMITTED) == [100, 50]
    assert balances(group, Level.LOCAL) == [103, 7]
    assert group.tables.get("accounts", (3,)) is None
    assert group.tables.get("accounts", (2,), Level.LOCAL) is None
    group.settle(group.tables.appended - 1)
    assert balances(group, Level.COMMITTED) == [101, 50]
    group.settle()
    assert balances(group, Level.COMMITTED) == balances(group, Level.LOCAL) == [103, 7]


@pytest.mark.behaviour("TT-3", "TT-22")
def test_a_cut_takes_back_exactly_what_was_appended_above(group: Group) -> None:
    states = [group.tables.digest(Level.LOCAL)]
    group.append(add(1, 5), add(1, 5), Delete("accounts", (2,)))
    states.append(group.tables.digest(Level.LOCAL))
    group.append(Insert("accounts", (2, "again", 0)), DropTable("events"))
    states.append(group.tables.digest(Level.LOCAL))
    group.append(DropTable("accounts"), CreateTable(ACCOUNTS), Insert("accounts", (9, None, 9)))
    last = group.tables.appended
    for back, state in enumerate(reversed(states), 1):
        group.cut(last - back)
        assert group.tables.digest(Level.LOCAL) == state
    assert group.tables.digest() == states[0]


@pytest.mark.behaviour("TT-38")
def test_a_rollback_takes_back_everything_from_its_first_on_when_it_is_appended(group: Group) -> None:
    group.append(add(1, 1))
    first = group.append(add(1, 10)).offset
    group.append(add(2, 100))
    group.control(NoOp(1))
    group.append(Insert("accounts", (3, None, 0)))
    group.roll_back(first)
    assert balances(group, Level.LOCAL) == [101, 50]
    assert balances(group, Level.COMMITTED) == [100, 50]
    group.append(add(2, 1))
    group.settle()
    assert balances(group, Level.COMMITTED) == balances(group, Level.LOCAL) == [101, 51]


def test_a_rollback_that_is_cut_again_leaves_everything_as_it_was_before(group: Group) -> None:
    first = group.append(add(1, 10), number=1).offset
    group.append(add(1, -1000), add(7, 1), number=2)
    group.append(Delete("accounts", (2,)), number=3)
    before = group.tables.digest(Level.LOCAL)
    rollback = group.roll_back(first)
    assert group.tables.result(id_of(1), Level.LOCAL) is None
    group.append(add(2, 1), number=1)
    group.cut(rollback - 1)
    assert group.tables.digest(Level.LOCAL) == before
    assert [group.tables.result(id_of(n), Level.LOCAL) for n in (1, 2, 3)] == [
        Result(Outcome.DONE, first),
        Result(Outcome.REFUSED, first + 1, "accounts 7 is not there"),
        Result(Outcome.DONE, first + 2),
    ]
    group.settle()
    assert group.tables.digest() == before
    assert group.tables.digest(Level.LOCAL) == before


def test_what_was_left_out_when_something_above_was_settled_is_not_done_again(group: Group) -> None:
    """A copy turns while its machine is told piece by piece what is settled, and is taken back to there."""
    first = group.append(add(1, 10), number=1).offset
    control = group.control(NoOp(1))
    group.append(add(1, 100))
    rollback = group.roll_back(first)
    group.tables.settle(group.log[-3][0], 0, b"")
    assert group.tables.settled == control
    group.tables.cut(control)
    assert balances(group, Level.LOCAL) == balances(group, Level.COMMITTED) == [100, 50]
    assert group.tables.result(id_of(1), Level.LOCAL) is None
    group.tables.settle(group.log[-1][0], 0, b"")
    assert group.tables.settled == rollback
    group.append(add(1, 10), number=1)
    group.settle()
    assert balances(group, Level.COMMITTED) == [110, 50]


def test_rollbacks_may_name_what_is_rolled_back_already(group: Group) -> None:
    low = group.append(add(1, 1)).offset
    high = group.append(add(1, 10)).offset
    group.roll_back(high)
    group.append(add(1, 100))
    outer = group.roll_back(low)
    assert balances(group, Level.LOCAL) == [100, 50]
    group.cut(outer - 1)
    assert balances(group, Level.LOCAL) == [201, 50]
    group.roll_back(high)
    group.settle()
    assert balances(group, Level.COMMITTED) == [101, 50]


def test_tables_are_seen_by_committed_readers_once_they_are_settled(group: Group) -> None:
    group.append(DropTable("events"))
    assert group.tables.tables() == (ACCOUNTS, EVENTS)
    assert group.tables.tables(Level.LOCAL) == (ACCOUNTS,)
    group.tables.scan("events")
    with pytest.raises(BadRead, match="there is no table 'events'"):
        group.tables.scan("events", level=Level.LOCAL)


def test_what_was_written_to_a_table_before_it_was_dropped_still_settles(group: Group) -> None:
    wrote = group.append(add(1, 1)).offset
    group.append(DropTable("accounts"))
    group.settle(wrote)
    assert balances(group, Level.COMMITTED) == [101, 50]
    group.cut(wrote)
    assert balances(group, Level.LOCAL) == [101, 50]


def test_settling_alone_gives_the_same(group: Group) -> None:
    group.append(add(1, 1))
    group.control(Promote(1, 2))
    group.append(Insert("accounts", ANN))
    group.append(Upsert("accounts", (3, None, 0), ()))
    group.settle()
    other = Tables()
    for header, payload in group.log:
        other.settle(header, 0, payload)
        assert other.appended == other.settled == header.offset
    assert other.digest() == group.tables.digest()
    assert other.snapshot() == group.tables.snapshot()


def test_what_cannot_be_is_asserted(group: Group) -> None:
    tables, offset = group.tables, group.tables.appended
    payload = encode(Transaction(id_of(7), (add(1, 1),)))
    with pytest.raises(AssertionError, match="without a gap"):
        tables.append(Header(1, offset + 2), payload)
    with pytest.raises(AssertionError, match="nothing settled is cut"):
        tables.cut(offset - 1)
    with pytest.raises(AssertionError, match="once, in order"):
        tables.settle(Header(1, offset), 0, payload)
    with pytest.raises(AssertionError, match="nothing settled is rolled back"):
        tables.append(Header(1, offset + 1, kind=Kind.CONTROL, control=Rollback(offset)), b"")
    first = group.append(add(1, 1)).offset
    group.append(add(1, 1))
    with pytest.raises(AssertionError, match="only what was rolled back is left out"):
        tables.settle(Header(1, first + 1), 0, payload)


def test_an_entry_of_another_epoch_is_not_what_was_appended(group: Group) -> None:
    offset = group.append(add(1, 1)).offset
    with pytest.raises(AssertionError, match="what was appended is settled"):
        group.tables.settle(Header(2, offset), 0, b"")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 200,
        batch.encode_records([(None, b"no msgpack")]),
        batch.encode_records([(None, None)]),
        batch.encode_records([(None, b"\x93\xc4\x01x\x90\x90")]),
        batch.encode_records([(None, encode(Transaction(id_of(1), (add(1, 1),)))[67:-1])] * 2),
    ],
)
def test_what_is_no_transaction_cannot_be_applied(group: Group, payload: bytes) -> None:
    before = group.tables.digest()
    header = Header(1, group.tables.appended + 1)
    with pytest.raises(CannotApply):
        group.tables.append(header, payload)
    with pytest.raises(CannotApply):
        group.tables.settle(header, 0, payload)
    assert group.tables.digest() == before
    assert group.tables.appended == header.offset - 1


def test_a_transaction_is_an_entry_of_one_record(group: Group) -> None:
    with pytest.raises(CannotApply, match="has 2 records"):
        group.tables.append(Header(1, group.tables.appended + 1, 2), encode(Transaction(id_of(1), ())))


# --- synchrony ---


@pytest.mark.behaviour("TT-36")
def test_one_synchronous_table_makes_a_transaction_synchronous(group: Group) -> None:
    def is_synchronous(*operations: Operation) -> bool:
        return group.tables.is_synchronous(encode(Transaction(id_of(1), operations)))

    event = Insert("events", ("", 1, 1, None))
    assert not is_synchronous(event)
    assert is_synchronous(event, add(1, 1))
    assert is_synchronous(event, DropTable("events"))
    assert is_synchronous(CreateTable(EVENTS))
    assert is_synchronous(Insert("none", (1,))), "it may be on its way, ahead of this"
    group.append(DropTable("accounts"))
    assert is_synchronous(event, add(1, 1))
    assert not is_synchronous(event)


# --- results ---


def test_a_repetition_is_not_done_again_and_has_the_same_result(group: Group) -> None:
    first = group.append(add(1, 10), number=1)
    assert group.append(add(1, 10), number=1) == first
    group.settle()
    assert group.append(add(1, 10), number=1) == first
    group.settle()
    assert balances(group, Level.COMMITTED) == [110, 50]
    assert group.tables.result(id_of(1)) == first


def test_a_refusal_that_is_repeated_stays_one(group: Group) -> None:
    refused = group.append(Insert("accounts", (1, None, 0)), number=1)
    group.append(Delete("accounts", (1,)))
    assert group.append(Insert("accounts", (1, None, 0)), number=1) == refused


def test_a_result_is_committed_when_its_entry_is_settled(group: Group) -> None:
    result = group.append(add(1, 10), number=1)
    assert group.tables.result(id_of(1)) is None
    assert group.tables.result(id_of(1), Level.LOCAL) == result
    group.cut(group.tables.settled)
    assert group.tables.result(id_of(1), Level.LOCAL) is None


def test_a_repetition_that_is_rolled_back_leaves_its_original_done(group: Group) -> None:
    original = group.append(add(1, 10), number=1)
    group.settle()
    repetition = group.tables.appended + 1
    group.append(add(1, 10), number=1)
    group.roll_back(repetition)
    assert group.tables.result(id_of(1), Level.LOCAL) == original
    group.settle()
    assert group.tables.result(id_of(1)) == original
    assert balances(group, Level.COMMITTED) == [110, 50]


def test_what_was_rolled_back_can_be_done_again_under_its_id(group: Group) -> None:
    group.roll_back(group.append(add(1, 10), number=1).offset)
    again = group.append(add(1, 10), number=1)
    group.settle()
    assert group.tables.result(id_of(1)) == again
    assert balances(group, Level.COMMITTED) == [110, 50]


def test_only_the_last_results_are_remembered_counted_in_the_log() -> None:
    """Whether the ones between are settled must not matter: another copy decides later."""
    for is_settled in (True, False):
        group = Group(ACCOUNTS, remembered_max=3)
        group.append(Insert("accounts", ANN), number=1)
        for number in (2, 3):
            group.append(add(1, 1), number=number)
        group.settle()
        assert group.append(add(1, 1), number=1).offset == 1  # Known.
        group.append(add(1, 1), number=4)
        if is_settled:
            group.settle()
        again = group.append(add(1, 100), number=1)
        assert again.offset == group.tables.appended  # Forgotten: it is done.
        group.settle()
        assert group.tables.result(id_of(2)) is None
        assert balances(group, Level.COMMITTED) == [203]


# --- snapshots ---


def restored(data: bytes) -> Tables:
    tables = Tables()
    tables.restore(data)
    return tables


@pytest.mark.behaviour("TT-29")
def test_a_snapshot_has_what_is_settled_and_nothing_else(group: Group) -> None:
    settled = group.tables.digest()
    group.append(add(1, 1), number=7)
    copy = restored(group.tables.snapshot())
    assert copy.digest() == copy.digest(Level.LOCAL) == settled
    assert copy.settled == copy.appended == group.tables.settled
    assert copy.result(id_of(7)) is None
    assert copy.result(id_of(1000)) == Result(Outcome.DONE, 0)


@pytest.mark.behaviour("TT-29", "TT-30")
def test_a_snapshot_is_of_its_beginning_whatever_happens_meanwhile(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_snapshot, "PIECE_ROWS_MIN", 1)
    monkeypatch.setattr(table_snapshot, "PIECE_ROWS_MAX", 1)
    for number in range(10, 30):
        group.do(Insert("accounts", (number, None, number)))
    expected, settled = group.tables.digest(), group.tables.settled
    group.append(add(11, 1000))
    pieces = []
    for number, piece in enumerate(group.tables.snapshot_pieces()):
        pieces.append(piece)
        group.append(Delete("accounts", (29 - number,)), Replace("accounts", (9 + 2 * number, "new", 0)))
        if number % 3 == 0:
            group.settle()
        elif number % 3 == 1:
            group.roll_back(group.tables.appended)
        elif number == 5:
            group.append(DropTable("accounts"), CreateTable(ACCOUNTS))
    assert len(pieces) > 20
    copy = restored(b"".join(pieces))
    assert copy.digest() == expected
    assert copy.settled == settled
    group.settle()
    assert restored(group.tables.snapshot()).digest() == group.tables.digest() != expected


def test_a_snapshot_that_is_given_up_leaves_nothing_behind(group: Group) -> None:
    pieces = group.tables.snapshot_pieces()
    next(pieces)
    group.do(Delete("accounts", (1,)))
    pieces.close()
    group.tables.snapshot_pieces()
    group.do(Delete("accounts", (2,)))
    assert group.committed("accounts") == []
    assert restored(group.tables.snapshot()).digest() == group.tables.digest()


def test_restoring_forgets_everything_else(group: Group) -> None:
    data = group.tables.snapshot()
    expected = group.tables.digest()
    group.do(add(1, 1))
    group.append(DropTable("accounts"))
    group.tables.restore(data)
    assert group.tables.digest(Level.LOCAL) == group.tables.digest() == expected
    group.log = [one for one in group.log if one[0].offset <= group.tables.settled]
    group.do(add(1, 7))
    assert balances(group, Level.COMMITTED) == [107, 50]


def test_large_rows_come_in_small_pieces() -> None:
    group = Group(ACCOUNTS)
    for number in range(100):
        group.do(Insert("accounts", (number, "x" * 100_000, 0)))
    pieces = list(group.tables.snapshot_pieces())
    assert max(map(len, pieces[2:])) < 2 * table_snapshot.PIECE_BYTES
    assert restored(b"".join(pieces)).digest() == group.tables.digest()


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-1], lambda data: data[:-9], lambda data: b"", lambda data: data + b"x"]
)
def test_a_snapshot_that_is_not_whole_is_refused(group: Group, harm: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DamagedSnapshot):
        restored(harm(group.tables.snapshot()))


# --- reads ---


def test_a_bad_key_is_said_so(group: Group) -> None:
    with pytest.raises(BadRead, match="column id of accounts is int, not str"):
        group.tables.get("accounts", ("1",))
    with pytest.raises(BadRead, match="the key of accounts has 1 columns, not 2"):
        group.tables.get("accounts", (1, 2))
    with pytest.raises(BadRead, match="column day of events is int, not str"):
        group.tables.scan("events", ("1",))
    with pytest.raises(BadRead, match="the key of events has 2 columns, not 0"):
        group.tables.scan("events", ())
    nonsense: Any = object()
    with pytest.raises(BadRead, match="not object"):
        group.tables.get("accounts", (nonsense,))
    with pytest.raises(BadRead, match="too large"):
        group.tables.get("accounts", (1 << 70,))


def test_a_group_says_in_one_line_how_it_is(group: Group) -> None:
    group.append(add(1, 1))
    assert str(group.tables) == "2 tables, settled 1, appended 2"
