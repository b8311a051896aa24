"""What was promised to clients of one table group, and whether what they see is what the log says.

It has the transactions that were proposed, every valid entry of the settled log in its order, and dictionaries that
are built from these (table_model.py). It knows nothing of undo, of snapshots, or of who leads. The checks:

- table-read: rows or a result, read as committed, are not those of the settled log up to where the replica has
  applied it: so committed reads are serializable, in the order of the log; or, read locally, are not those of the
  replica's own log up to where its machine has come;
- table-went-back: a committed read sees less than an earlier one in the same life of the same replica;
- table-total: money came from nowhere, or went there: the sum over all accounts is not what was put in;
- table-torn: of a note that is always written as two rows, somebody sees one half, or two that differ;
- table-answer: a client hears that its transaction is settled where the log does not have it; that it is rolled
  back, and it is valid; that it is flushed, though it is synchronous; or two different results of one transaction;
- table-digest: in the end, a machine is not what one becomes that is fed the settled log, and nothing else.

That a linearizable read sees all that was acknowledged before it began is `read-stale` (oracle.py), and lost and
misplaced entries are found there, too: each attempt of a transaction is a proposal. An asynchronous transaction
that was flushed may be lost: a named choice (TT-34). Whether it is lost is counted, and it is never there by half.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.invariant import Violated
from quorate.machine.table_wire import encode
from quorate.sim.table_looks import Everything, Look, ResultOf
from quorate.sim.table_model import Model, State
from quorate.tables import Level, Transaction

ANOTHER_TIME = 1 << 24
"""Further than any number of a proposal."""


class Act(msgspec.Struct, eq=False):
    """One transaction of one client, over all its attempts."""

    number: int
    partition: int
    transaction: Transaction
    synchronous: bool
    told: Any = None
    """The result, as a client has heard it; None: nobody has."""
    flushed: bool = False
    """A client was told that it is flushed, which may be all that it ever hears."""
    tries: int = 0
    in_vain: int = 0
    """So often a client that insists has waited for an answer that did not come in time."""

    def __str__(self) -> str:
        return f"p{self.partition}: transaction {self.number}"


class TableOracle:
    """Of one table group."""

    def __init__(self, partition: int, *, flushes: bool) -> None:
        """`flushes`: asynchronous transactions are answered when they are flushed."""
        self.partition = partition
        self.model = Model()
        self.lost_count = 0
        """Attempts that were answered as flushed, and are not in the log."""
        self.looks_count = 0
        self.acts: list[Act] = []
        self.log: list[tuple[int, bytes]] = []
        """The valid entries of the settled log; control entries have no payload here."""
        self.flushes = flushes
        self._attempts: dict[int, tuple[Act, bytes]] = {}
        """By the CRC of what was proposed: every attempt has another."""
        self._places: dict[int, int] = {}
        """By CRC: where the settled log has it."""
        self._rolled_back: set[int] = set()
        self._flushed: set[int] = set()
        self._shown: dict[tuple[int, int], int] = {}
        """By node and life: up to where a committed read has seen."""

    # --- what clients do ---

    def proposed(self, act: Act, number: int) -> bytes:
        """One more attempt, the `number`th proposal of all: in a batch of a time of its own."""
        payload = encode(act.transaction, timestamp=number)
        crc = parse_batch_header(payload).crc
        while crc in self._attempts:  # In thousands of worlds, two batches with one CRC do occur.
            number += ANOTHER_TIME
            payload = encode(act.transaction, timestamp=number)
            crc = parse_batch_header(payload).crc
        if not act.tries:
            self.acts.append(act)
        act.tries += 1
        self._attempts[crc] = (act, payload)
        return payload

    def answered(self, crc: int, reply: Reply) -> None:
        act, _ = self._attempts[crc]
        place = self._places.get(crc)
        if reply.outcome is Outcome.SETTLED and place != reply.offset:
            where = f"at {place}" if place is not None else "nowhere"
            raise Violated("table-answer", f"{act} was settled at {reply.offset}, and the log has it {where}")
        if reply.outcome is Outcome.ROLLED_BACK:
            if place is not None:
                raise Violated("table-answer", f"{act} was rolled back, and {place} is valid")
            self._rolled_back.add(crc)
        if reply.outcome is Outcome.FLUSHED:
            if act.synchronous or not self.flushes:
                raise Violated("table-answer", f"{act} must be settled, and was answered when it was flushed")
            self._flushed.add(crc)

    def told(self, act: Act, result: Any) -> None:
        """A client hears what became of it; that never changes."""
        if act.told is not None and act.told != result:
            raise Violated("table-answer", f"{act} was told {act.told}, and later {result}")
        act.told = result

    # --- what the log says ---

    def settled(self, offset: int, crc: int) -> None:
        """Every valid entry of the settled log, once, in its order; control entries have no CRC."""
        if not crc:
            self.log.append((offset, b""))
            return
        if crc not in self._attempts:
            raise Violated("phantom", f"p{self.partition}: {offset} holds what nobody proposed")
        act, payload = self._attempts[crc]
        if crc in self._rolled_back:
            raise Violated("table-answer", f"{act} was rolled back, and {offset} is valid")
        self._places[crc] = offset
        self.log.append((offset, payload))
        self.model.settle(offset, act.transaction)

    def replayed(self, since: int, entries: Iterable[tuple[int, int]]) -> State:
        """The settled state at an offset, and behind it these entries, as (offset, CRC)."""
        state = self.model.at(since).copy()
        for offset, crc in entries:
            if crc:
                state.apply(offset, self._attempts[crc][0].transaction)
        return state

    # --- what readers see ---

    def committed(self, reader: tuple[int, int], applied: int, look: Look, seen: Any) -> None:
        """(Node, life) has shown this, as what is settled up to `applied`."""
        if applied < self._shown.get(reader, -1):
            node, life = reader
            raise Violated(
                "table-went-back",
                f"p{self.partition} n{node} shows {applied}; life {life} has shown {self._shown[reader]}",
            )
        self._shown[reader] = applied
        who = f"p{self.partition} n{reader[0]} at {applied}"
        self._compare(who, look, seen, self.model.at(applied))

    def local(self, node: int, state: State, look: Look, seen: Any) -> None:
        """A replica has shown what it has applied: `state`, if its log is replayed."""
        self._compare(f"p{self.partition} n{node} locally", look, seen, state)

    def _compare(self, who: str, look: Look, seen: Any, state: State) -> None:
        self.looks_count += 1
        flaw = look.flaw(seen)
        if flaw is not None:
            raise Violated(flaw[0], f"{who}: {look}: {flaw[1]}")
        expected = look.of_state(state)
        if seen != expected:
            raise Violated("table-read", f"{who}: {look} gave {seen}, and the log says {expected}")

    # --- in the end ---

    def finish(self, node: int, machine: Any, applied: int, fed: bytes) -> None:
        """A copy that has everything; `fed` is the snapshot of a machine that was fed the settled log."""
        state = self.model.at(applied)
        looks: list[Look] = [Everything(), *(ResultOf(act.transaction.id) for act in self.acts)]
        for look in looks:
            for level in Level:
                self._compare(
                    f"p{self.partition} n{node} in the end", look, look.of_machine(machine, level), state
                )
        if machine.snapshot() != fed:
            raise Violated(
                "table-digest", f"p{self.partition} n{node} is not what the settled log makes of it"
            )
        self.lost_count = len(self._flushed - self._places.keys())
