"""What a client of tables remembers: it never sees less than it has seen, and pages follow each other."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.client.errors import Refused
from quorate.client.table_calls import Call
from quorate.client.table_session import Pages, Session
from quorate.tables import Insert, Outcome, Result, Row
from quorate.wire import tables as wire
from quorate.wire.tables import Consistency

COMMITTED, LOCAL, LINEARIZABLE = Consistency.COMMITTED, Consistency.LOCAL, Consistency.LINEARIZABLE
GROUP_ID = b"g" * 16


def session() -> Session:
    made = Session("a:1", "bank", 30.0)
    made.nodes.addresses = {1: ("a", 1)}
    return made


def answered(call: Call[Any], answer: wire.Answer) -> Any:
    call.next(0.0)
    call.answered(answer)
    assert call.is_over
    return call.found


def asked(call: Call[Any]) -> Any:
    call.next(0.0)
    return call.request()


def test_a_client_sees_what_it_has_written_and_what_it_has_seen() -> None:
    tables = session()
    assert asked(tables.get("t", (1,), COMMITTED, 0)).offset == -1
    done = wire.Done(Result(Outcome.DONE, 7), group_id=GROUP_ID)
    executed = answered(tables.execute([Insert("t", (1,))], (), None), done)
    assert (executed.offset, executed.settled) == (7, True)
    later = asked(tables.get("t", (1,), COMMITTED, 2))
    assert (later.offset, later.group_id) == (7, GROUP_ID)
    answered(tables.get("t", (1,), LINEARIZABLE, 0), wire.Rows((), 9))
    assert asked(tables.describe(COMMITTED, 0)).offset == 9


def test_what_may_be_taken_back_is_not_waited_for() -> None:
    tables = session()
    flushed = wire.Done(Result(Outcome.DONE, 7), settled=False)
    assert not answered(tables.execute([Insert("t", (1,))], (), None), flushed).settled
    answered(tables.get("t", (1,), LOCAL, 0), wire.Rows((), 9))
    assert tables.offset == -1


def test_a_transaction_keeps_its_id() -> None:
    request = asked(session().execute([Insert("t", (1,))], (), b"i" * 16))
    assert request.transaction.id == b"i" * 16
    ids = {asked(session().execute([Insert("t", (1,))], (), None)).transaction.id for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize("key", [1, "ab", (), (object(),), (1 << 64,)])
def test_what_is_no_key_is_refused_before_it_is_sent(key: Any) -> None:
    with pytest.raises(Refused):
        session().get("t", key, COMMITTED, 0)


def test_what_is_no_transaction_is_refused_before_it_is_sent() -> None:
    with pytest.raises(Refused, match="at least one operation"):
        session().execute([], (), None)
    with pytest.raises(Refused, match="16 bytes, not 3"):
        session().execute([Insert("t", (1,))], (), b"abc")


def test_linearizable_reads_are_not_for_one_copy() -> None:
    with pytest.raises(Refused, match="by whoever leads"):
        session().get("t", (1,), LINEARIZABLE, 2)


# ---- pages ----


def pages_of(limit: int | None) -> Pages:
    return Pages(session(), "t", (0,), (9,), limit=limit, consistency=COMMITTED, node=0)


def rows(*numbers: int) -> tuple[Row, ...]:
    return tuple(Row(1, (number,)) for number in numbers)


def test_pages_follow_each_other_until_there_are_no_more() -> None:
    pages = pages_of(None)
    first = pages.next()
    assert first is not None
    request = asked(first)
    assert (request.first, request.last, request.after) == ((0,), (9,), None)
    assert answered(first, wire.Rows(rows(0, 1), 5, (1,))) == rows(0, 1)
    second = pages.next()
    assert second is not None
    request = asked(second)
    assert (request.last, request.after, request.offset) == ((9,), (1,), 5)
    assert answered(second, wire.Rows(rows(2), 6)) == rows(2)
    assert pages.next() is None


def test_pages_end_with_the_limit() -> None:
    pages = pages_of(3)
    first = pages.next()
    assert first is not None
    assert asked(first).limit == 3
    answered(first, wire.Rows(rows(0, 1), 5, (1,)))
    second = pages.next()
    assert second is not None
    assert asked(second).limit == 1
    answered(second, wire.Rows(rows(2), 5, (2,)))
    assert pages.next() is None


def test_a_limit_of_nothing_asks_nobody() -> None:
    assert pages_of(0).next() is None
