"""The oracle of tables: what the log says, what clients see, and what they were told."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header, Rollback
from quorate.core.invariant import Violated
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.sim.invariants import Entry, valid
from quorate.sim.table_acts import CREATE, FUND, Wanted
from quorate.sim.table_looks import ACCOUNTS, BANK, HALVES, NOTES, Everything, Range, ResultOf, Row
from quorate.sim.table_oracle import Act, TableOracle
from quorate.tables import Add, Delete, Insert, Level, Replace, Update

NODE_ONE = (1, 1)
OPEN = Wanted((Update(ACCOUNTS, (BANK,), (Add("balance", -100),)), Insert(ACCOUNTS, ("owner 1", 100, 0))))
NOTE = Wanted(tuple(Replace(NOTES, ("text", 1, half)) for half in HALVES))


class Log:
    """A log that settles whatever is proposed, and the machine of one replica."""

    def __init__(self, *, flushes: bool = False) -> None:
        self.oracle = TableOracle(0, flushes=flushes)
        self.machine = Tables()
        self.end = -1
        self._count = 0

    def propose(self, wanted: Wanted, act: Act | None = None) -> tuple[Act, bytes]:
        self._count += 1
        if act is None:
            act = Act(self._count, 0, wanted.as_transaction(self._count), wanted.synchronous)
        return act, self.oracle.proposed(act, self._count)

    def settle(self, wanted: Wanted, act: Act | None = None, *, applied: bool = True) -> tuple[Act, bytes]:
        act, payload = self.propose(wanted, act)
        self.end += 1
        self.oracle.settled(self.end, crc(payload))
        if applied:
            self.apply(payload)
        return act, payload

    def apply(self, payload: bytes) -> None:
        self.machine.settle(Header(1, self.machine.settled + 1, size=len(payload)), 0, payload)

    def look(self, look: Any, applied: int | None = None) -> Any:
        at = self.machine.settled if applied is None else applied
        seen = look.of_machine(self.machine, Level.COMMITTED)
        self.oracle.committed(NODE_ONE, at, look, seen)
        return seen


def crc(payload: bytes) -> int:
    return parse_batch_header(payload).crc


def violated(name: str) -> Any:
    return pytest.raises(Violated, match=f"^{name}: ")


@pytest.fixture
def log() -> Log:
    log = Log()
    for wanted in (CREATE, FUND, OPEN, NOTE):
        log.settle(wanted)
    return log


def test_what_the_settled_log_says_is_seen(log: Log) -> None:
    assert log.look(Row(ACCOUNTS, (BANK,))) == (2, (BANK, 9_900, 0))
    assert log.look(Range(ACCOUNTS, (BANK,), ("owner 9",), 1)) == [(2, (BANK, 9_900, 0))]
    assert [len(rows) for rows in log.look(Everything()).values()] == [2, 2]
    assert log.look(ResultOf(b"\0" * 15 + b"\3")) == (0, 2)
    assert log.look(Row("nowhere", (1,))) is None


def test_read_of_another_prefix_than_the_replica_has_applied(log: Log) -> None:
    log.settle(OPEN, applied=False)
    log.look(Row(ACCOUNTS, (BANK,)))
    log.settle(Wanted((Update(ACCOUNTS, (BANK,), (Add("moves", 1),)),)), applied=False)
    with violated("table-read"):
        log.look(Row(ACCOUNTS, (BANK,)), applied=log.end)


def test_read_that_sees_less_than_one_before(log: Log) -> None:
    log.look(Everything())
    with violated("table-went-back"):
        log.look(Everything(), applied=2)
    seen = Everything().of_machine(log.machine, Level.COMMITTED)
    log.oracle.committed((1, 2), 3, Everything(), seen)  # Another life may begin with less.


def test_money_from_nowhere(log: Log) -> None:
    log.settle(Wanted((Update(ACCOUNTS, (BANK,), (Add("balance", 1),)),)))
    with violated("table-total"):
        log.look(Everything())


def test_half_a_note(log: Log) -> None:
    log.settle(Wanted((Delete(NOTES, (1, HALVES[0])),)))
    with violated("table-torn"):
        log.look(Everything())


def test_refused_transaction_changes_nothing_and_is_told(log: Log) -> None:
    act, _ = log.settle(OPEN)
    result = log.look(ResultOf(act.transaction.id))
    log.oracle.told(act, result)
    assert result == (1, 4)
    log.look(Everything())


def test_repetition_is_done_once(log: Log) -> None:
    move = Wanted((Update(ACCOUNTS, (BANK,), (Add("moves", 1),)),))
    act, payload = log.settle(move)
    _, again = log.settle(move, act)
    assert payload != again
    assert log.look(Row(ACCOUNTS, (BANK,))) == (4, (BANK, 9_900, 1))
    assert log.look(ResultOf(act.transaction.id)) == (0, 4)


def test_two_results_of_one_transaction(log: Log) -> None:
    act, _ = log.settle(NOTE)
    log.oracle.told(act, (0, 4))
    log.oracle.told(act, (0, 4))
    with violated("table-answer"):
        log.oracle.told(act, (1, 4))


@pytest.mark.parametrize("offset", [3, 5])
def test_settled_elsewhere_than_the_client_hears(log: Log, offset: int) -> None:
    _, payload = log.settle(NOTE)
    log.oracle.answered(crc(payload), Reply(1, Outcome.SETTLED, 4))
    with violated("table-answer"):
        log.oracle.answered(crc(payload), Reply(1, Outcome.SETTLED, offset))


def test_settled_nowhere(log: Log) -> None:
    _, payload = log.propose(NOTE)
    with violated("table-answer"):
        log.oracle.answered(crc(payload), Reply(1, Outcome.SETTLED, 4))


def test_rolled_back_and_valid(log: Log) -> None:
    _, before = log.settle(NOTE)
    with violated("table-answer"):
        log.oracle.answered(crc(before), Reply(1, Outcome.ROLLED_BACK))
    _, later = log.propose(NOTE)
    log.oracle.answered(crc(later), Reply(1, Outcome.ROLLED_BACK))
    with violated("table-answer"):
        log.oracle.settled(5, crc(later))


def test_only_asynchronous_transactions_are_answered_when_they_are_flushed() -> None:
    flushing = Log(flushes=True)
    _, note = flushing.propose(NOTE)
    flushing.oracle.answered(crc(note), Reply(1, Outcome.FLUSHED, 4))
    _, moved = flushing.propose(OPEN)
    with violated("table-answer"):
        flushing.oracle.answered(crc(moved), Reply(1, Outcome.FLUSHED, 4))


def test_nobody_flushes_where_everything_is_settled(log: Log) -> None:
    _, note = log.propose(NOTE)
    with violated("table-answer"):
        log.oracle.answered(crc(note), Reply(1, Outcome.FLUSHED, 4))


def test_phantom(log: Log) -> None:
    with violated("phantom"):
        log.oracle.settled(4, 12345)


def test_copies_are_what_the_log_makes_of_them(log: Log) -> None:
    fed = Tables()
    for offset, payload in log.oracle.log:
        fed.settle(Header(1, offset, size=len(payload)), 0, payload)
    log.oracle.finish(1, log.machine, log.end, fed.snapshot())
    with violated("table-digest"):
        log.oracle.finish(1, log.machine, log.end, b"something else")


def test_flushed_and_lost_is_counted() -> None:
    log = Log(flushes=True)
    for wanted in (CREATE, FUND):
        log.settle(wanted)
    _, lost = log.propose(NOTE)
    log.oracle.answered(crc(lost), Reply(1, Outcome.FLUSHED, 2))
    log.oracle.finish(1, log.machine, log.end, log.machine.snapshot())
    assert log.oracle.lost_count == 1


# --- what a replica has applied and not settled ---


def entry(offset: int, content: bytes | Rollback) -> Entry:
    control, number = (None, crc(content)) if isinstance(content, bytes) else (content, 0)
    return (1, offset - 1, offset, number, control)


def test_local_reads_see_the_replicas_own_log(log: Log) -> None:
    _, moved = log.propose(Wanted((Update(ACCOUNTS, (BANK,), (Add("moves", 1),)),)))
    log.machine.append(Header(1, 4, size=len(moved)), moved)
    entries = [entry(4, moved)]
    assert local(log, entries) == (4, (BANK, 9_900, 1))
    assert log.look(Row(ACCOUNTS, (BANK,))) == (2, (BANK, 9_900, 0))
    with violated("table-read"):
        local(log, [])


def test_local_reads_do_not_see_what_was_rolled_back(log: Log) -> None:
    _, moved = log.propose(Wanted((Update(ACCOUNTS, (BANK,), (Add("moves", 1),)),)))
    log.machine.append(Header(1, 4, size=len(moved)), moved)
    entries = [entry(4, moved), entry(5, Rollback(4))]
    with violated("table-read"):
        local(log, entries)
    log.machine.append(Header(1, 5, kind=1, control=Rollback(4)), b"")
    assert local(log, entries) == (2, (BANK, 9_900, 0))


def local(log: Log, entries: list[Entry]) -> Any:
    state = log.oracle.replayed(3, [(entry[2], entry[3]) for entry in valid(entries)])
    look = Row(ACCOUNTS, (BANK,))
    seen = look.of_machine(log.machine, Level.LOCAL)
    log.oracle.local(1, state, look, seen)
    return seen


def test_rollbacks_leave_control_entries_and_what_came_before() -> None:
    records = encode(CREATE.as_transaction(1))
    content = [entry(0, records), entry(1, records), entry(2, Rollback(2)), entry(3, Rollback(1))]
    assert [found[2] for found in valid([*content, entry(4, records)])] == [0, 2, 3, 4]
