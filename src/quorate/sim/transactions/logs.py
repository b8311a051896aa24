"""Replicated logs as whoever builds on them may rely on: settled entries stay, and one leader at a time settles.

A leader that was replaced goes on believing for a while: it judges, appends, and hears in the end that all of it is
unknown. Of what it had appended before, a part may be settled by its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header, Kind, NoOp, Partition, partition_of
from quorate.core.invariant import Violated
from quorate.host.producing import Desk, Leading
from quorate.machine.markers import marker_of
from quorate.machine.producers import Producers, numbered
from quorate.machine.transactions import Transactions
from quorate.sim.transactions.world import NODES, World
from quorate.storage.frame import control_payload

Answer = Callable[[Reply], None]


class Entry(msgspec.Struct, frozen=True):
    header: Header
    payload: bytes


class Waiting(msgspec.Struct):
    entry: Entry
    answer: Answer
    request: int


class Replica:
    """One node's copy."""

    def __init__(self, log: Log, node: int) -> None:
        self.log = log
        self.node = node
        self.believes = 0
        """The epoch in which it leads, as far as it knows; 0: it does not."""
        self.first = 0
        """The first offset of that."""
        self.saved: tuple[bytes, int] | None = None
        self.applied = 0
        """Settled entries that its machine has."""
        self.begin()

    def begin(self) -> None:
        """A process begins with what is on its disk."""
        self.machine: Producers | Transactions = Transactions() if self.log.is_home else Producers()
        self.desk = Desk(self.machine) if isinstance(self.machine, Producers) else None
        self.waiting: list[Waiting] = []
        """What this leader has appended, and not heard of since."""
        self.requests = 0
        self.believes = 0
        self.applied = 0
        if self.saved is not None:
            self.machine.restore(self.saved[0])
            self.applied = self.saved[1]

    @property
    def end(self) -> int:
        """The offset behind what its machine has."""
        return self.log.settled[self.applied - 1].header.last + 1 if self.applied else 0

    def catch_up(self, count: int | None = None) -> None:
        for entry in self.log.settled[self.applied : count]:
            self.machine.settle(entry.header, 0, entry.payload)
            self.applied += 1

    def save(self) -> None:
        self.saved = self.machine.snapshot(), self.applied

    @property
    def leading(self) -> Leading:
        return Leading(self.node, self.believes, self.first, self.end - 1)

    @property
    def leads_with_all(self) -> bool:
        return self.believes > 0 and self.end > self.first


class Log:
    def __init__(self, world: World, number: int, *, is_home: bool) -> None:
        self.world = world
        self.number = number
        self.is_home = is_home
        self.partition = Partition(partition_of(bytes(15) + (b"h" if is_home else b"t"), number))
        self.settled: list[Entry] = []
        self.epoch = 0
        self.leader = 0
        self.replicas = {node: Replica(self, node) for node in NODES}
        self.elections = 0
        self.cuts = 0

    # --- who leads ---

    def elect(self, node: int) -> None:
        """That node leads from now on; of what the one before had appended, a front part is settled with it."""
        world, old = self.world, self.replicas.get(self.leader)
        if old is not None and old.believes == self.epoch:
            kept = world.rng.randint(0, len(old.waiting)) if old.waiting else 0
            for waiting in old.waiting[:kept]:
                self._settle(waiting.entry)
            self.cuts += kept < len(old.waiting)
            if node != old.node:
                world.after(world.rng.uniform(0.0, 2.0), lambda e=self.epoch: self._learn(old, e))  # type: ignore[misc]
            else:
                self._learn(old, self.epoch)
        self.epoch += 1
        self.elections += 1
        self.leader = node
        new = self.replicas[node]
        if new.believes:
            self._learn(new, new.believes)
        new.believes = self.epoch
        new.first = self.end
        new.catch_up(world.rng.randint(new.applied, len(self.settled)))
        world.tell(node, "leads", f"epoch {self.epoch} from {new.first}", self.number)
        noop = Header(self.epoch, self.end, kind=Kind.CONTROL, control=NoOp(node))
        self._append(new, Entry(noop, bytes(control_payload(noop))), lambda _: None, 0)

    def _learn(self, replica: Replica, epoch: int) -> None:
        """It hears that its leadership is over: whoever waits is in doubt."""
        if replica.believes != epoch:
            return
        replica.believes = 0
        waiting, replica.waiting = replica.waiting, []
        for each in waiting:
            each.answer(Reply(each.request, Outcome.UNKNOWN))

    @property
    def end(self) -> int:
        return self.settled[-1].header.last + 1 if self.settled else 0

    # --- writing ---

    def propose(self, node: int, payload: bytes, answer: Answer) -> None:
        """At a node: as the host does it, the desk judges right before it is appended."""
        replica = self.replicas[node]
        if not replica.believes:
            answer(Reply(0, Outcome.NOT_LEADER, leader=self.leader))
            return
        header = parse_batch_header(payload)
        replica.requests += 1
        request = replica.requests
        if replica.desk is not None and header.producer_id >= 0:
            batch = marker_of(payload) if header.is_control else numbered(header)
            assert batch is not None
            told = replica.desk.admit(request, batch, answer, replica.leading)
            if told is None:
                return
            answer = told
        offset = replica.waiting[-1].entry.header.last + 1 if replica.waiting else None
        if offset is None:
            offset = self.end if replica.believes == self.epoch else replica.end
        made = Header(replica.believes, offset, header.offsets_count, len(payload))
        self._append(replica, Entry(made, payload), answer, request)

    def _append(self, replica: Replica, entry: Entry, answer: Answer, request: int) -> None:
        waiting = Waiting(entry, answer, request)
        replica.waiting.append(waiting)
        delay = self.world.rng.expovariate(1 / 0.01)
        self.world.after(delay, lambda: self._try_to_settle(replica, waiting, replica.believes))

    def _try_to_settle(self, replica: Replica, waiting: Waiting, epoch: int) -> None:
        if epoch != self.epoch or replica.believes != epoch or not self.world.up[replica.node]:
            return
        while waiting in replica.waiting:  # All that was appended before it is settled with it.
            each = replica.waiting.pop(0)
            self._settle(each.entry)
            reply = Reply(each.request, Outcome.SETTLED, each.entry.header.offset, epoch, replica.node)
            each.answer(reply)
        count = len(self.settled)
        self.world.after(self.world.rng.uniform(0.0, 0.02), lambda: self._apply(replica, count, epoch))

    def _apply(self, replica: Replica, count: int, epoch: int) -> None:
        if replica.believes == epoch and self.world.up[replica.node]:
            replica.catch_up(count)
            if self.world.rng.random() < 0.05:
                replica.save()

    def _settle(self, entry: Entry) -> None:
        if entry.header.offset != self.end:
            raise Violated("assertion", f"an entry at {entry.header.offset} in a log that ends at {self.end}")
        self.settled.append(entry)

    # --- reading ---

    def read(self, node: int, answer: Callable[[Any], None]) -> None:
        """A linearizable look: the machine, with all that was settled when it was asked; None: it does not lead."""
        replica = self.replicas[node]
        epoch, count = replica.believes, len(self.settled)

        def confirmed() -> None:
            leads = epoch and epoch == self.epoch and replica.believes == epoch and self.world.up[node]
            if not leads or self.end <= replica.first:
                answer(None)
                return
            replica.catch_up(max(count, replica.applied))
            answer(replica.machine)

        self.world.after(self.world.rng.expovariate(1 / 0.005), confirmed)

    def committed(self, node: int, first: int) -> tuple[list[Entry], list[tuple[int, int]], int]:
        """What a reader of committed records gets at that node: entries, what was aborted, and where to go on."""
        replica = self.replicas[node]
        machine = replica.machine
        assert isinstance(machine, Producers)
        end = max(machine.stable_end(replica.end), first)
        entries = [each for each in self.settled[: replica.applied] if first <= each.header.offset < end]
        aborted = [(each.producer_id, each.first) for each in machine.aborted(first=first, end=end)]
        return entries, aborted, end


def filtered(entries: Sequence[Entry], aborted: Sequence[tuple[int, int]]) -> list[Entry]:
    """As Kafka's consumers do it: they know whose records from where on are none, and see when that ends."""
    left = sorted(aborted, key=lambda each: each[1])
    ignored: set[int] = set()
    seen = []
    for entry in entries:
        if entry.header.kind == Kind.CONTROL:
            continue
        while left and left[0][1] <= entry.header.last:
            ignored.add(left.pop(0)[0])
        header = parse_batch_header(entry.payload)
        if header.is_control:
            if not marker_of(entry.payload).commit:
                ignored.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ignored):
            seen.append(entry)
    return seen
