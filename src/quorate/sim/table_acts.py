"""What clients want of tables: accounts between which money moves, and notes of two halves.

All money comes from one account, the bank's, and goes back there when an account is closed. So the sum over all
accounts is the same in every state that is the work of whole transactions. A note's two halves are always written
together, and say the same.

`accounts` is synchronous and `notes` is not. A transaction with both is.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from quorate.sim.table_looks import ACCOUNTS, BANK, HALVES, NOTES, TOTAL, Everything, Look, Range, Row
from quorate.tables import (
    Absent,
    Add,
    At,
    Column,
    Condition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Replace,
    RowOperation,
    Set,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
)

OWNERS_COUNT = 8
NOTES_COUNT = 6
OPENING = 100
ACCOUNTS_TABLE = Table(
    ACCOUNTS, (Column("owner", Type.STR), Column("balance", Type.INT), Column("moves", Type.INT)), ("owner",)
)
NOTES_TABLE = Table(
    NOTES,
    (Column("text", Type.STR, nullable=True), Column("number", Type.INT), Column("half", Type.STR)),
    ("number", "half"),
    synchronous=False,
)


class Wanted(msgspec.Struct, frozen=True):
    """What a client wants to be done."""

    operations: tuple[Operation, ...]
    conditions: tuple[Condition, ...] = ()

    @property
    def synchronous(self) -> bool:
        return any(
            not isinstance(operation, RowOperation) or operation.table == ACCOUNTS
            for operation in self.operations
        )

    def as_transaction(self, number: int) -> Transaction:
        return Transaction(number.to_bytes(16, "big"), self.operations, self.conditions)


CREATE = Wanted((CreateTable(ACCOUNTS_TABLE), CreateTable(NOTES_TABLE)))
FUND = Wanted((Insert(ACCOUNTS, (BANK, TOTAL, 0)),))


class Bank:
    """What clients of a group have learned together, and what they make of it."""

    def __init__(self) -> None:
        self._created = False
        self._funded = False
        self._owners: set[str] = set()
        """Who has an account, as far as anybody knows."""
        self._seen: dict[str, tuple[int, int]] = {}
        """By owner: a version of the account, and its balance then."""
        self._texts = 0

    def learned(self, transaction: Transaction) -> None:
        """Somebody knows what became of it: then it has its effect, or another has had it before."""
        if transaction.operations == CREATE.operations:
            self._created = True
        elif transaction.operations == FUND.operations:
            self._funded = True

    def saw(self, look: Look, seen: Any) -> None:
        """An account with its version is something to compare and set."""
        if isinstance(look, Row) and seen is None:
            self._owners.discard(str(look.key[0]))
        elif isinstance(look, Row):
            self._know([seen])
        elif isinstance(look, Everything) and ACCOUNTS in seen:
            self._owners.clear()
            self._know(seen[ACCOUNTS])

    def _know(self, accounts: list[tuple[int, tuple[str, int, int]]]) -> None:
        for version, (owner, balance, _) in accounts:
            self._owners.add(owner)
            self._seen[owner] = (version, balance)

    # --- what to do next ---

    def next(self, rng: Random) -> Wanted:
        if not self._created:
            return CREATE
        if not self._funded:
            return FUND
        make = rng.choice(_ACTS)
        return make(self, rng)

    def look(self, rng: Random) -> Look:
        kind = rng.randrange(4)
        if kind == 0:
            return Row(ACCOUNTS, (_owner(rng),))
        if kind == 1:
            first, last = sorted((_owner(rng), _owner(rng)))
            return Range(ACCOUNTS, (first,), (last,), rng.choice((1, 3, 100)))
        if kind == 2:
            low, high = sorted((rng.randrange(NOTES_COUNT), rng.randrange(NOTES_COUNT)))
            return Range(NOTES, (low, HALVES[0]), (high, HALVES[1]), rng.choice((1, 3, 100)))
        return Everything()

    def move(self, rng: Random) -> Wanted:
        known = sorted(self._owners)
        few = len(known) < 2 or rng.random() < 0.1
        source, target = rng.sample((BANK, *OWNERS) if few else known, 2)
        return Wanted(_moved(source, target, rng.randint(1, 20)))

    def compare_and_move(self, rng: Random) -> Wanted:
        """Only if nobody has moved anything since it was looked at."""
        if not self._seen:
            return self.move(rng)
        source = rng.choice(sorted(self._seen))
        version, balance = self._seen.pop(source)
        target = rng.choice([owner for owner in sorted(self._owners | {BANK, OWNERS[0]}) if owner != source])
        return Wanted(_moved(source, target, max(1, balance // 2)), (At(ACCOUNTS, (source,), version),))

    def open(self, rng: Random) -> Wanted:
        strangers = [owner for owner in OWNERS if owner not in self._owners]
        owner = rng.choice(strangers if strangers and rng.random() < 0.8 else OWNERS)
        insert = Insert(ACCOUNTS, (owner, OPENING, 0))
        conditions = (Absent(ACCOUNTS, (owner,)),) if rng.random() < 0.5 else ()
        return Wanted((_moved(BANK, owner, OPENING)[0], insert), conditions)

    def close(self, rng: Random) -> Wanted:
        """With all that is in it, which is known only if it is as it was seen."""
        seen = [owner for owner in sorted(self._seen) if owner != BANK]
        if not seen:
            return self.open(rng)
        owner = rng.choice(seen)
        version, balance = self._seen.pop(owner)
        back = Update(ACCOUNTS, (BANK,), (Add("balance", balance), Add("moves", 1)))
        return Wanted((Delete(ACCOUNTS, (owner,)), back), (At(ACCOUNTS, (owner,), version),))

    def note(self, rng: Random) -> Wanted:
        number = rng.randrange(NOTES_COUNT)
        self._texts += 1
        text = f"text {self._texts}"
        kind = rng.randrange(5)
        if kind == 0:
            return Wanted(tuple(Delete(NOTES, (number, half)) for half in HALVES))
        if kind == 1:
            return Wanted(tuple(Insert(NOTES, (text, number, half)) for half in HALVES))
        if kind == 2:
            changes = (Set("text", None if rng.random() < 0.2 else text),)
            return Wanted(tuple(Update(NOTES, (number, half), changes) for half in HALVES))
        if kind == 3:
            return Wanted(tuple(Upsert(NOTES, (text, number, half), (Set("text", text),)) for half in HALVES))
        return Wanted(tuple(Replace(NOTES, (text, number, half)) for half in HALVES))

    def both(self, rng: Random) -> Wanted:
        """A note on a move, or several moves at once."""
        parts = (self.move(rng), self.note(rng) if rng.random() < 0.7 else self.move(rng))
        return Wanted(parts[0].operations + parts[1].operations)

    def refused(self, rng: Random) -> Wanted:
        """The first part of it could be done."""
        wanted = self.move(rng) if rng.random() < 0.5 else self.note(rng)
        impossible = rng.choice(
            (Insert(ACCOUNTS, (BANK, 1, 0)), Replace("nowhere", (1,)), CreateTable(ACCOUNTS_TABLE))
        )
        return Wanted((*wanted.operations, impossible))

    def remake(self, rng: Random) -> Wanted:
        """All notes are thrown away; or where there are none, they have a place again."""
        drop, create = DropTable(NOTES), CreateTable(NOTES_TABLE)
        return Wanted(rng.choice(((drop,), (create,), (create,), (drop, create))))


OWNERS = tuple(f"owner {number}" for number in range(OWNERS_COUNT))


def _owner(rng: Random) -> str:
    return rng.choice(OWNERS) if rng.random() < 0.8 else BANK


def _moved(source: str, target: str, amount: int) -> tuple[Operation, Operation]:
    return (
        Update(ACCOUNTS, (source,), (Add("balance", -amount), Add("moves", 1))),
        Update(ACCOUNTS, (target,), (Add("balance", amount), Add("moves", 1))),
    )


_ACTS = (
    *(Bank.move,) * 6,
    *(Bank.compare_and_move,) * 4,
    *(Bank.open,) * 4,
    *(Bank.close,) * 2,
    *(Bank.note,) * 6,
    *(Bank.both,) * 2,
    Bank.refused,
    Bank.remake,
)
