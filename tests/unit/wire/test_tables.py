"""Requests about tables and their answers, in bytes and back."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.tables import (
    OPERATIONS_COUNT_MAX,
    Absent,
    At,
    Column,
    CreateTable,
    Delete,
    Insert,
    Outcome,
    Result,
    Row,
    Set,
    Table,
    Transaction,
    Type,
    Update,
)
from quorate.wire import tables as wire
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import read_head

TABLE = Table("t", (Column("a", Type.BYTES), Column("b", Type.FLOAT, nullable=True)), ("a",), False)
VALUES = (1, 1.5, "é", b"\xff\0", True, None, -(1 << 63), (1 << 63) - 1)
TRANSACTION = Transaction(
    bytes(range(16)),
    (CreateTable(TABLE), Insert("t", VALUES), Update("t", (b"",), (Set("b", 2.0),)), Delete("t", (b"k",))),
    (At("t", (b"x",), 7), Absent("t", ("y",))),
)
REQUESTS: list[Any] = [
    wire.Execute("g", TRANSACTION, 5, b"g" * 16),
    wire.Get("g", "t", VALUES, wire.Consistency.LOCAL, 5),
    wire.Scan("g", "t", VALUES, None, (b"after",), 7, wire.Consistency.LINEARIZABLE, 5),
    wire.AskResult("g", bytes(16)),
    wire.AskTables("g"),
    wire.Promote("g", True),
    wire.Demote("g"),
]
ANSWERS: list[Any] = [
    wire.Done(Result(Outcome.REFUSED, 5, "no"), False, b"g" * 16),
    wire.Done(None),
    wire.Rows((Row(7, VALUES),), 9, (b"k",)),
    wire.Described((TABLE,), "confirm", 1, 2, (1, 2, 3), 9),
    wire.Ordered(2),
    wire.Again("not leader", 3),
    wire.Unknown("why"),
    wire.RolledBack(),
    wire.Refused("no"),
    wire.NoGroup(True),
    wire.Elsewhere((1, 2)),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_come_back_as_they_were(request_: Any) -> None:
    message = wire.encode_request(request_, 77, "me")
    assert int.from_bytes(message[:4], "big") == len(message) - 4
    head = read_head(message[4:])
    scans = isinstance(request_, wire.Scan)
    assert (head.api, head.version) == (wire.TABLES_SCAN_API if scans else wire.TABLES_API, 0)
    assert (head.correlation, head.client_id) == (77, "me")
    assert wire.decode_request(message[4 + head.body_at :]) == request_


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_come_back_as_they_were(answer: Any) -> None:
    message = wire.encode_answer(answer, 77)
    assert wire.decode_answer(message[4:]) == (77, answer)


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa7nothing", b"\x91" * 100_000])
def test_what_is_no_message_is_said_to_be_so(junk: bytes) -> None:
    with pytest.raises(BadMessage):
        wire.decode_request(junk)
    with pytest.raises(BadMessage):
        wire.decode_answer(bytes(4) + junk)
    with pytest.raises(BadMessage):
        wire.decode_answer(junk[:3])


def test_time_is_told_to_whoever_may_let_us_wait() -> None:
    for request in REQUESTS:
        told = wire.within(request, 1.5)
        if isinstance(request, wire.Promote | wire.Demote):
            assert told is request
        else:
            assert told.timeout_ms == 1500  # type: ignore[union-attr]


def test_millions_of_small_things_are_refused_before_they_are_made() -> None:
    many = Transaction(bytes(16), (Delete("t", (1,)),) * (OPERATIONS_COUNT_MAX + 1))
    with pytest.raises(BadMessage, match="length <= 10000"):
        wire.decode_request(_body(wire.Execute("g", many)))
    long = Transaction(bytes(16), (Delete("t", (1,) * 65),))
    with pytest.raises(BadMessage, match="length <= 64"):
        wire.decode_request(_body(wire.Execute("g", long)))


def _body(request: wire.Request) -> bytes:
    message = wire.encode_request(request, 1, "")
    return message[4 + read_head(message[4:]).body_at :]
