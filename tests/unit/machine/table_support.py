"""A group of tables and the log that it is told of, for tests."""

from __future__ import annotations

from quorate.core.entry import Control, Header, Kind, Rollback
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.tables import (
    Column,
    Condition,
    CreateTable,
    Level,
    Operation,
    Result,
    Table,
    Transaction,
    Type,
    Values,
)

ACCOUNTS = Table(
    "accounts",
    (Column("id", Type.INT), Column("owner", Type.STR, nullable=True), Column("balance", Type.INT)),
    ("id",),
)
EVENTS = Table(
    "events",
    (
        Column("text", Type.STR),
        Column("day", Type.INT),
        Column("number", Type.INT),
        Column("weight", Type.FLOAT, nullable=True),
    ),
    ("day", "number"),
    synchronous=False,
)


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Group:
    """Appends transactions under ids of their own, and settles what was appended."""

    def __init__(self, *tables: Table, **settings: int) -> None:
        self.tables = Tables(**settings)
        self.log: list[tuple[Header, bytes]] = []
        self.epoch = 1
        if tables:
            self.append(*map(CreateTable, tables))
            self.settle()

    def append(
        self, *operations: Operation, when: tuple[Condition, ...] = (), number: int | None = None
    ) -> Result:
        """The result as this copy knows it; `number` chooses the id."""
        id_ = id_of(1000 + len(self.log) if number is None else number)
        self._append(Header(self.epoch, self.tables.appended + 1), encode(Transaction(id_, operations, when)))
        result = self.tables.result(id_, Level.LOCAL)
        assert result is not None
        return result

    def do(self, *operations: Operation, when: tuple[Condition, ...] = ()) -> Result:
        """Appended and settled."""
        result = self.append(*operations, when=when)
        self.settle()
        return result

    def control(self, control: Control) -> int:
        """Its offset."""
        header = Header(self.epoch, self.tables.appended + 1, kind=Kind.CONTROL, control=control)
        self._append(header, b"")
        return header.offset

    def roll_back(self, first: int) -> int:
        return self.control(Rollback(first))

    def cut(self, to_offset: int) -> None:
        self.epoch += 1
        self.log = [(header, payload) for header, payload in self.log if header.offset <= to_offset]
        self.tables.cut(to_offset)

    def settle(self, upto: int | None = None) -> None:
        """Everything that was appended, but what a ROLLBACK up to there made void."""
        upto = self.tables.appended if upto is None else upto
        part = [one for one in self.log if self.tables.settled < one[0].offset <= upto]
        void: set[int] = set()
        for header, _ in part:
            if type(header.control) is Rollback:
                void |= set(range(header.control.first, header.offset))
        for header, payload in part:
            if header.kind == Kind.CONTROL or header.offset not in void:
                self.tables.settle(header, 0, payload)

    def local(self, table: str) -> list[Values]:
        return [row.values for row in self.tables.scan(table, level=Level.LOCAL)]

    def committed(self, table: str) -> list[Values]:
        return [row.values for row in self.tables.scan(table)]

    def _append(self, header: Header, payload: bytes) -> None:
        self.log.append((header, payload))
        self.tables.append(header, payload)
