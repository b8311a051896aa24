"""The nodes of a world of transactions: what is asked of them, and what they do by themselves.

Each handler stands for one of node/transactions.py, kafka/transactions.py, kafka/vouching.py and kafka/joint.py, in
the same order of steps: those are the glue between sockets and the code that is tried here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.host.coordinating import Chaser, Order
from quorate.machine.commanded import commands_batch
from quorate.machine.markers import encode_marker
from quorate.machine.producers import numbered
from quorate.machine.transaction_words import (
    CommitJoint,
    Enlist,
    Marked,
    Part,
    Result,
    Seal,
    TimeOut,
    Verdict,
)
from quorate.machine.transactions import Transactions
from quorate.sim.transactions.logs import Log
from quorate.sim.transactions.world import NODES, World

Tell = Callable[[Any], None]
ASK_S = 1.0


class Listed(msgspec.Struct, frozen=True):
    """A part of a joint commit, as a client lists it: records by partition."""

    producer_id: int
    counts: dict[bytes, int]


class Cluster:
    """All nodes, and the logs that they hold."""

    def __init__(self, world: World, *, partitions: int, homes: int) -> None:
        self.world = world
        self.topics = [Log(world, number, is_home=False) for number in range(partitions)]
        self.homes = [Log(world, number, is_home=True) for number in range(homes)]
        self.by_partition = {log.partition: log for log in (*self.topics, *self.homes)}
        self._chasers: dict[tuple[int, int], tuple[int, Chaser]] = {}
        self._fresh_id = 1000
        for log in self.by_partition.values():
            log.elect(world.rng.choice(NODES))
        for node in NODES:
            self._tend(node)

    def fresh_id(self) -> int:
        self._fresh_id += 1
        return self._fresh_id

    def home_of(self, name: str) -> Log:
        return self.homes[sum(name.encode()) % len(self.homes)]

    def guess(self, log: Log) -> int:
        """Whom a client asks: mostly whoever leads, sometimes somebody who did, or never."""
        return log.leader if self.world.rng.random() < 0.9 else self.world.rng.choice(NODES)

    # --- homes ---

    def command(self, log: Log, command: Any, node: int, answer: Tell) -> None:
        """Answered with the result, or None: nobody knows."""

        def settled(reply: Reply) -> None:
            if reply.outcome is not Outcome.SETTLED:
                answer(None)
                return
            replica = log.replicas[node]
            machine = replica.machine
            assert isinstance(machine, Transactions)
            count = next(i for i, each in enumerate(log.settled, 1) if each.header.offset == reply.offset)
            replica.catch_up(max(count, replica.applied))
            result = machine.result(reply.offset)
            self.world.tell(node, "decided", f"{stamped} -> {result}", log.number)
            answer(result)

        stamped = self._stamped(command, node)
        log.propose(node, commands_batch([stamped]), settled)

    def _stamped(self, command: Any, node: int) -> Any:
        """Time and fresh ids are those of the node that is asked, whatever a client has written there."""
        stamps = {"now_ms": self.world.wall_ms(node), "fresh_id": self.fresh_id()}
        return msgspec.structs.replace(
            command, **{name: value for name, value in stamps.items() if hasattr(command, name)}
        )

    def may_write(self, log: Log, name: str, batch: Any, partition: bytes, node: int, answer: Tell) -> None:
        """Answered with a verdict, or None."""

        def looked(machine: Transactions | None) -> None:
            if machine is None:
                answer(None)
                return
            verdict = machine.may_write(name, batch.producer_id, batch.epoch, partition)
            if verdict is not Verdict.PART_GONE:
                answer(verdict)
                return
            command = Enlist(name, batch.producer_id, batch.epoch, partition, self.world.wall_ms(node))
            self.command(log, command, node, lambda result: answer(result.verdict if result else None))

        log.read(node, looked)

    # --- partitions ---

    def produce(self, log: Log, name: str, payload: bytes, node: int, answer: Tell) -> None:
        """Answered with an outcome or, of a transaction that is not open, a verdict."""
        replica = log.replicas[node]
        batch = numbered(parse_batch_header(payload))
        assert batch is not None
        assert replica.desk is not None

        def propose() -> None:
            log.propose(node, payload, lambda reply: answer(reply.outcome))

        self.world.tell(node, "produced", f"{name} {batch}", log.number)
        if not replica.believes or replica.desk.vouching.vouches(batch, replica.believes):
            propose()
            return
        question = replica.desk.vouching.ask(batch.producer_id, replica.believes)
        life = self.world.lives[node]

        def vouched(verdict: Verdict | None) -> None:
            if self.world.lives[node] != life or replica.desk is None:
                return
            is_open = verdict is Verdict.DONE
            if replica.desk.vouching.answered(batch, question, is_open=is_open):
                propose()
            else:
                answer(verdict if verdict is not None and not is_open else Outcome.BUSY)

        home = self.home_of(name)
        self.world.ask(self.guess(home), partial(self.may_write, home, name, batch, log.partition), vouched)

    def mark(self, log: Log, order: Order, epoch: int, node: int, answer: Tell) -> None:
        self.world.tell(node, "marked", str(order.marker), log.number)
        payload = encode_marker(order.marker, coordinator_epoch=epoch, now_ms=self.world.wall_ms(node))
        log.propose(node, payload, lambda reply: answer(reply.outcome is Outcome.SETTLED))

    def count(self, log: Log, producer_id: int, node: int, answer: Tell) -> None:
        """Answered with how many records are settled, or None."""

        def looked(machine: Any) -> None:
            replica = log.replicas[node]
            if machine is None or replica.desk is None:
                answer(None)
            else:
                answer(replica.desk.counted(producer_id, replica.leading))

        log.read(node, looked)

    # --- joint commits ---

    def commit(
        self, app: str, number: int, run: str, parts: tuple[Listed, ...], node: int, answer: Tell
    ) -> None:
        """Sealed, counted, decided. Answered with a result, `False` where something is missing, or None."""
        log = self.home_of(app)
        named = tuple(Part(part.producer_id, tuple(part.counts)) for part in parts)
        now_ms = self.world.wall_ms(node)
        life = self.world.lives[node]

        def sealed(result: Result | None) -> None:
            if result is None or result.verdict is not Verdict.DONE:
                answer(result)
                return
            machine = log.replicas[node].machine
            assert isinstance(machine, Transactions)
            wanted = {
                (part.producer_id, partition): part.counts.get(partition, 0)
                for part in parts
                for partition in {*part.counts, *machine.partitions_of(app, part.producer_id)}
            }
            self._count_all(sorted(wanted.items()), [], counted)

        def counted(all_there: bool | None) -> None:
            if self.world.lives[node] != life:
                return
            if not all_there:
                answer(all_there)
                return
            self.command(log, CommitJoint(app, number, run, named, now_ms), node, answer)

        self.command(log, Seal(app, number, run, named, now_ms), node, sealed)

    def _count_all(
        self,
        wanted: list[tuple[tuple[int, bytes], int]],
        missing: list[bool],
        done: Callable[[bool | None], None],
    ) -> None:
        """One after the other; a leader that does not answer leaves it open."""
        if not wanted:
            done(not missing)
            return
        (producer_id, partition), count = wanted[0]
        log = self.by_partition[partition]  # type: ignore[index]
        heard = False

        def got(found: int | None) -> None:
            nonlocal heard
            if heard:
                return
            heard = True
            if found is None:
                done(None)
            else:
                self._count_all(wanted[1:], missing if found == count else [*missing, True], done)

        self.world.ask(self.guess(log), partial(self.count, log, producer_id), got)
        self.world.after(ASK_S, lambda: got(None))

    # --- what nodes do by themselves ---

    def _tend(self, node: int) -> None:
        """Again and again: markers are chased, and the clock is looked at."""
        world = self.world
        world.after(world.rng.uniform(0.05, 0.3), lambda: self._tend(node))
        if not world.up[node] or world.paused_until[node] > world.now:
            return
        for log in self.homes:
            replica = log.replicas[node]
            machine = replica.machine
            if not replica.leads_with_all or not isinstance(machine, Transactions):
                continue
            known, chaser = self._chasers.get((node, log.number), (0, Chaser()))
            if known != replica.believes:
                chaser = Chaser()
                self._chasers[node, log.number] = replica.believes, chaser
            for order in chaser.due(world.now, machine):
                self._send_marker(chaser, order, replica.believes)
            marks = chaser.news()
            if marks:
                heard = partial(self._told, chaser, marks)
                self.command(log, Marked(marks), node, heard)
            deadline_ms = machine.deadline_ms()
            if deadline_ms is not None and deadline_ms <= world.wall_ms(node):
                self.command(log, TimeOut(world.wall_ms(node)), node, lambda _: None)

    def _told(self, chaser: Chaser, marks: Any, result: Result | None) -> None:
        if result is not None:
            chaser.heard(marks)

    def _send_marker(self, chaser: Chaser, order: Order, epoch: int) -> None:
        log = self.by_partition[order.partition]
        over = False

        def got(written: bool | None) -> None:
            nonlocal over
            if over:
                return
            over = True
            if written:
                chaser.written(order)
            else:
                chaser.failed(self.world.now, order)

        self.world.ask(self.guess(log), partial(self.mark, log, order, epoch), got)
        self.world.after(ASK_S, lambda: got(None))

    # --- crashes ---

    def crash(self, node: int) -> None:
        """A process ends: what was not settled is in doubt, what was in memory is gone."""
        world = self.world
        world.tell(node, "crashed")
        world.up[node] = False
        world.lives[node] += 1
        for log in self.by_partition.values():
            if log.leader == node:
                others = [each for each in NODES if world.up[each]]
                if others:
                    log.elect(world.rng.choice(others))
            log.replicas[node].begin()

    def restart(self, node: int) -> None:
        self.world.up[node] = True
        self.world.tell(node, "restarted")
        for log in self.by_partition.values():
            if not self.world.up.get(log.leader, False):
                log.elect(node)
