"""The invariants of a world whose partitions turn: one account for each generation, and what holds between them.

Within a generation everything holds that holds in a world of its protocol. A new one begins with what the old
one has settled, up to the barrier, as if nothing but that had ever been there. Between them:

- barrier-passed: nothing above a barrier is settled by the protocol that it ends (017).
- turned-twice: a copy is of one generation at a time, and never of an earlier one again.

That a leader of the new generation has everything up to the barrier is leader-completeness; that no entry has
another one's name is log-matching, for a copy that kept something of an earlier generation would show it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from quorate.core.confirm.invariants import ConfirmInvariants
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.entry import Barrier, EntryId, Member, Membership
from quorate.core.events import Recovered, Started
from quorate.core.invariant import Violated
from quorate.core.isr.invariants import IsrInvariants
from quorate.machine.turning import Turned
from quorate.sim.invariants import Invariants, Settled, Shadow

Room = Callable[[], Any]


class Generations:
    """What a run asks of `Invariants`, for all generations of all partitions."""

    def __init__(self, partitions_count: int, rooms: dict[str, Room], protocol: str) -> None:
        self._partitions_count = partitions_count
        self._rooms = rooms
        self.on_settled: Callable[[int, int, int], None] = lambda partition, offset, crc: None
        self._local: Callable[[int], float | None] = lambda node: None
        self.accounts: dict[tuple[int, int], Invariants] = {}
        """By partition and generation."""
        self.newest: dict[int, int] = {}
        """By partition: the generation that began last."""
        self._looked: dict[tuple[int, int], int] = {}
        self._ends: dict[tuple[int, int], int] = {}
        """Where the protocol of a generation has ended, by what it has settled itself."""
        self._of: dict[tuple[int, Member], int] = {}
        """By partition and member: the generation of its copy."""
        for partition in range(partitions_count):
            self._open(partition, 0, protocol)

    def _open(self, partition: int, generation: int, protocol: str) -> Invariants:
        account = Invariants(self._partitions_count, self._rooms[protocol])
        account.on_settled = self._tell_settled
        account.local = self._local
        self.accounts[partition, generation] = account
        self.newest[partition] = generation
        return account

    def _tell_settled(self, partition: int, offset: int, crc: int) -> None:
        self.on_settled(partition, offset, crc)

    # --- as others know invariants ---

    @property
    def local(self) -> Callable[[int], float | None]:
        return self._local

    @local.setter
    def local(self, local: Callable[[int], float | None]) -> None:
        self._local = local
        for account in self.accounts.values():
            account.local = local

    @property
    def elections(self) -> int:
        return sum(account.elections for account in self.accounts.values())

    @property
    def truncations(self) -> int:
        return sum(account.truncations for account in self.accounts.values())

    @property
    def truncated_count(self) -> int:
        return sum(account.truncated_count for account in self.accounts.values())

    @property
    def settled(self) -> list[Settled]:
        """Of each partition, by its newest generation."""
        return [self.account(partition).settled[partition] for partition in range(self._partitions_count)]

    def account(self, partition: int) -> Invariants:
        return self.accounts[partition, self.newest[partition]]

    def room(self, partition: int) -> Any:
        return self.account(partition).room

    def damaged(self, node: int) -> None:
        for account in self.accounts.values():
            account.damaged(node)

    def of(self, partition: int, generation: int) -> Invariants:
        return self.accounts[partition, generation]

    def applied(self, node: int, partition: int, offset: int, digest: Any) -> None:
        self.account(partition).applied(node, partition, offset, digest)

    def is_void(self, partition: int, offset: int) -> bool:
        return any(
            account.room.is_void(partition, offset)
            for (place, _), account in self.accounts.items()
            if place == partition and isinstance(account.room, ConfirmInvariants)
        )

    # --- steps ---

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        key = partition, replica.generation
        if replica.generation < self._of.get((partition, replica.me), 0):
            raise Violated(
                "turned-twice", f"p{partition} n{node} is of generation {replica.generation} again"
            )
        account = self.accounts[key]
        if type(event) is Started and event.recovered.begins:
            # As it is when it turns: since the store said so, it may have installed a snapshot, and lack what
            # that stands for.
            before = [
                earlier.shadows[node, partition]
                for (of, _), earlier in self.accounts.items()
                if of == partition and (node, partition) in earlier.shadows
            ]
            now = account.shadows[node, partition] = Shadow(node, partition, account.settled[partition])
            now.damaged = any(shadow.damaged for shadow in before)
            now.missing = max((shadow.missing for shadow in before), default=-1)
        if type(event) is Started:
            self._remember_damaged(partition, replica, event.recovered)
        account.stepped(node, partition, replica, event, effects)
        if replica.ordering.persisted:  # Its first order was what it is.
            self._of[partition, replica.me] = replica.generation
        self._look(key, node)

    def _look(self, key: tuple[int, int], node: int) -> None:
        partition, generation = key
        account = self.accounts[key]
        epochs = account.settled[partition].epochs
        first = self._looked.get(key, -1) + 1
        if first >= len(epochs):
            return
        self._looked[key] = len(epochs) - 1
        end = self._ends.get(key)
        if end is None:
            for entry in account.chain(partition, EntryId(epochs[-1], len(epochs) - 1), above=first - 1):
                if type(entry[4]) is Barrier and entry[4].at > generation:
                    end = self._ends[key] = entry[2]
                    break
        if end is not None and len(epochs) - 1 > end:
            said = f"p{partition} n{node} of generation {generation} settled {len(epochs) - 1}"
            raise Violated("barrier-passed", f"{said}; its protocol ends at {end}")

    def _remember_damaged(self, partition: int, replica: Any, recovered: Recovered) -> None:
        """Where the end of what is settled cannot be read, a copy is cut where the damage ends, for nobody knows
        where an entry does before that (host/turning.py). So its log may end with entries of an earlier generation
        that were never settled: names without entries, which this one only ever gives up. Those are taken over
        here, and nothing that can be read; when it turns, none of them may be the name of something else."""
        account, head = self.accounts[partition, replica.generation], recovered.head
        span = next((span for span in recovered.faulty if span.last == head), None)
        if span is None or (account.knows(partition, head) and not recovered.begins):
            return
        own = self._of.get((partition, replica.me))
        others = sorted((earlier for of, earlier in self.accounts if of == partition), reverse=True)
        for earlier in others if own is None else (own,):
            before = self.accounts[partition, earlier]
            if earlier < replica.generation and before.knows(partition, head):
                account.seed(partition, head, before, above=span.before.offset)
                return

    # --- turns ---

    def begin(self, partition: int, turned: Turned, voters: tuple[Member, ...]) -> None:
        """The store says that another generation begins: what was settled before is all that there is."""
        before = self.account(partition)
        barrier, old = turned.barrier, before.settled[partition]
        if old.commit != barrier.offset or old.epochs[barrier.offset] != barrier.epoch:
            said = f"p{partition}: {barrier} is noted as the end, and {old.commit} is settled"
            raise Violated("barrier-passed", said)
        now = self._open(partition, turned.generation, turned.protocol)
        now.expired = before.expired
        settled = now.settled[partition]
        settled.epochs = list(old.epochs)
        settled.rounds = [(turned.epoch, barrier.offset)]
        settled.digests = old.digests
        born = Membership(voters)
        now.seed(partition, barrier, before, born=born)
        now.leaders[partition] = {
            epoch: node for epoch, node in before.leaders[partition].items() if epoch <= turned.epoch
        }
        for place, shadow in before.shadows.items():
            if place[1] == partition:
                now.shadows[place] = copy(shadow)  # As it is until it turns, too.
        for (of, _), account in self.accounts.items():
            if of == partition and account is not now and isinstance(now.room, ConfirmInvariants):
                now.room.remember(partition, account.room)
        self._looked[partition, turned.generation] = barrier.offset

    def began_with(self, partition: int, version: int, state: Any) -> None:
        """What an overseer finds in the store when a generation begins."""
        room = self.room(partition)
        if isinstance(room, IsrInvariants):
            room.found(partition, version, state)
        elif isinstance(room, CoordinatedInvariants):
            room.operators.found(partition, version, state)
