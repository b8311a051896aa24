"""A table group of a world, as its clients share it: its bank, its oracle, and what its replicas show.

See table_client.py for what clients do, table_acts.py for the transactions they make up, table_oracle.py for what
is checked, and table_model.py for tables as plain dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorate.core.effects import Reply
from quorate.core.entry import EntryId, Header, Kind
from quorate.host.querying import Consistency
from quorate.machine.table import Tables
from quorate.sim.invariants import Invariants, valid
from quorate.sim.table_acts import CREATE, Bank, Wanted
from quorate.sim.table_looks import Look
from quorate.sim.table_model import State
from quorate.sim.table_oracle import Act, TableOracle

if TYPE_CHECKING:
    from quorate.sim.world import World

FLUSHING = ("confirm",)
"""Protocols that answer asynchronous transactions when they are flushed."""


class TableGroup:
    def __init__(self, world: World, invariants: Invariants, partition: int) -> None:
        self.partition = partition
        self.bank = Bank()
        self.oracle = TableOracle(partition, flushes=world.setup.protocol in FLUSHING)
        self._world = world
        self._invariants = invariants
        self._acts_count = 0

    def begin(self, wanted: Wanted) -> Act:
        """A new transaction, that a client wants to be done."""
        self._acts_count += 1
        transaction = wanted.as_transaction(self._acts_count)
        return Act(self._acts_count, self.partition, transaction, wanted.synchronous)

    def fresh(self, number: int) -> bytes:
        """A synchronous transaction like no other, to see whether anything is settled at all."""
        return self.oracle.proposed(self.begin(CREATE), number)

    def told(self, act: Act, result: Any) -> None:
        self.oracle.told(act, result)
        if result is not None:
            self.bank.learned(act.transaction)

    # --- looking ---

    def saw(self, node: int, look: Look, consistency: Consistency, reply: Reply, seen: Any) -> None:
        """A node has shown something, just now: what it has up to the reply's entry."""
        if consistency is Consistency.LOCAL:
            self.oracle.local(node, self._replayed(node, EntryId(reply.epoch, reply.offset)), look, seen)
        else:
            self.oracle.committed((node, self._world.life(node)), reply.offset, look, seen)
        self.bank.saw(look, seen)

    def _replayed(self, node: int, last: EntryId) -> State:
        """The settled log as far as it is applied there, and behind that the node's own up to `last`: of whatever
        generation it is, for it may not have turned yet, and its tail is known to no other."""
        hosted = self._world.hosted(node, self.partition)
        assert hosted is not None
        applied = hosted.applied.offset
        account = self._invariants.of(self.partition, hosted.replica.generation)
        entries = valid(account.chain(self.partition, last, above=applied))
        return self.oracle.replayed(applied, [(entry[2], entry[3]) for entry in entries])

    # --- in the end ---

    def finish(self, copies: list[tuple[int, Any]]) -> None:
        """(Node, hosted) of every copy; all of them have everything."""
        fed = Tables()
        epochs = self._invariants.settled[self.partition].epochs
        for offset, payload in self.oracle.log:
            kind = Kind.RECORDS if payload else Kind.CONTROL
            fed.settle(Header(epochs[offset], offset, size=len(payload), kind=kind), 0, payload)
        snapshot = fed.snapshot()
        for node, hosted in copies:
            self.oracle.finish(node, hosted.machine, hosted.applied.offset, snapshot)


def listen(
    groups: dict[int, TableGroup], others: Callable[[int, int, int], None]
) -> Callable[[int, int, int], None]:
    """Tells every table group of what is settled in its log, and then the `others` of everything."""

    def settled(partition: int, offset: int, crc: int) -> None:
        group = groups.get(partition)
        if group is not None:
            group.oracle.settled(offset, crc)
        others(partition, offset, crc)

    return settled
