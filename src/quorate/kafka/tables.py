"""Tables, for clients of ours: transactions, reads at the level that is asked for, and who leads.

A group of tables is a topic of one partition whose log holds transactions (machine/table.py). A transaction is
checked as far as that needs no tables, proposed as one entry, and answered with what the tables made of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quorate.core import commands
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition, partition_of
from quorate.host.querying import Consistency
from quorate.kafka.call import Call
from quorate.machine.metadata import Topic
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.tables import Level, why_not
from quorate.wire import tables as wire

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

TIMEOUT_MS_MAX = 5 * 60_000
AGAIN = (Outcome.NOT_LEADER, Outcome.BUSY, Outcome.FULL, Outcome.TIMED_OUT)


def handle(broker: Broker, call: Call) -> None:
    """Raises BadMessage."""
    request = wire.decode_request(memoryview(call.frame)[call.head.body_at :])
    Asked(broker, call, request)


class Asked:
    """One request, until it is answered."""

    __slots__ = ("_broker", "_call", "_timer")

    def __init__(self, broker: Broker, call: Call, request: wire.Request) -> None:
        self._broker = broker
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        topic = broker.node.metadata.image.topics.get(request.group)
        if topic is None:
            self._answer(wire.Refused(f"there is no group of tables {request.group!r}"))
        elif not topic.is_tables:
            self._answer(wire.Refused(f"{request.group!r} is a topic of records, not a group of tables"))
        elif not broker.node.holds(partition_of(topic.id, 0)):
            leader, _ = broker.node.leader_of(partition_of(topic.id, 0))
            self._answer(wire.Again("this node has no copy of it", leader))
        elif isinstance(request, wire.Execute):
            self._execute(topic, request)
        elif isinstance(request, wire.Promote | wire.Demote):
            self._order(topic, request)
        else:
            self._read(topic, request)

    def _answer(self, answer: wire.Answer) -> None:
        if self._call.buffers is not None:
            return  # Too late: the client was told that the outcome is unknown.
        if self._timer is not None:
            self._timer.cancel()
        message = wire.encode_answer(answer, self._call.head.correlation)
        self._call.answer([message], len(message))

    # --- transactions ---

    def _execute(self, topic: Topic, request: wire.Execute) -> None:
        wrong = why_not(request.transaction)
        if wrong is not None:
            self._answer(wire.Refused(wrong))
            return
        partition = partition_of(topic.id, 0)
        timeout_s = min(max(request.timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        self._call.abandon = self._timer.cancel
        settled = partial(self._settled, partition, request.transaction.id)
        self._broker.node.propose(partition, [encode(request.transaction)], settled)

    def _expire(self) -> None:
        late = wire.Unknown("nothing was settled in time")
        self._broker.in_turn(lambda: self._answer(late))

    def _settled(self, partition: Partition, id_: bytes, reply: Reply) -> None:
        if self._call.buffers is not None:
            return
        if reply.outcome not in (Outcome.SETTLED, Outcome.FLUSHED):
            self._answer(_not_done(reply))
            return
        is_settled = reply.outcome is Outcome.SETTLED

        def looked(found: Reply, result: Any) -> None:
            if found.outcome is Outcome.SETTLED:
                self._answer(wire.Done(result, is_settled))
            else:
                self._answer(wire.Unknown(found.why))

        # Settled is not yet applied: only then the tables say what came of it.
        self._query(
            partition,
            lambda tables, level: tables.result(id_, level),
            looked,
            Consistency.COMMITTED if is_settled else Consistency.LOCAL,
            reply.offset,
        )

    # --- reading ---

    def _read(self, topic: Topic, request: wire.Get | wire.Scan | wire.AskResult | wire.AskTables) -> None:
        partition = partition_of(topic.id, 0)

        def looked(reply: Reply, found: Any) -> None:
            if reply.outcome is not Outcome.SETTLED:
                self._answer(_not_read(reply))
            elif isinstance(request, wire.AskTables):
                leader, epoch = self._broker.node.leader_of(partition)
                self._answer(wire.Described(found, topic.replication, leader, epoch))
            elif isinstance(request, wire.AskResult):
                self._answer(wire.Done(found))
            else:
                self._answer(wire.Rows(tuple(found), reply.offset))

        offset = -1 if isinstance(request, wire.AskResult) else request.offset
        consistency = Consistency(request.consistency.value)
        self._query(partition, _look(request), looked, consistency, offset)

    def _query(
        self,
        partition: Partition,
        ask: Callable[[Tables, Level], Any],
        answer: Callable[[Reply, Any], None],
        consistency: Consistency,
        offset: int,
    ) -> None:
        self._broker.node.query(partition, ask, answer, consistency=consistency, offset=offset)

    # --- who leads ---

    def _order(self, topic: Topic, request: wire.Promote | wire.Demote) -> None:
        if topic.replication != "confirm":
            how = f"copies of {topic.name!r} agree by {topic.replication}"
            self._answer(wire.Refused(f"{how}: only `confirm` has promote and demote"))
            return

        def make(number: int) -> commands.Command:
            if isinstance(request, wire.Demote):
                return commands.Demote(number)
            return commands.Promote(number, request.roll_back)

        def ordered(reply: Reply) -> None:
            if reply.outcome is Outcome.SETTLED:
                self._answer(wire.Ordered(reply.leader))
            else:
                self._answer(_not_done(reply))

        self._broker.node.command(partition_of(topic.id, 0), make, ordered)


def _look(
    request: wire.Get | wire.Scan | wire.AskResult | wire.AskTables,
) -> Callable[[Tables, Level], Any]:
    if isinstance(request, wire.Get):
        table, key = request.table, request.key

        def get(tables: Tables, level: Level) -> Any:
            row = tables.get(table, key, level)
            return () if row is None else (row,)

        return get
    if isinstance(request, wire.Scan):
        wanted = request.table, request.first, request.last, request.limit
        return lambda tables, level: tables.scan(*wanted, level)
    if isinstance(request, wire.AskResult):
        id_ = request.id
        return lambda tables, level: tables.result(id_, level)
    return lambda tables, level: tables.tables(level)


def _not_done(reply: Reply) -> wire.Answer:
    if reply.outcome in AGAIN:
        return wire.Again(reply.why or reply.outcome.name.lower().replace("_", " "), reply.leader)
    if reply.outcome is Outcome.UNKNOWN:
        return wire.Unknown(reply.why)
    if reply.outcome is Outcome.ROLLED_BACK:
        return wire.RolledBack(reply.why)
    return wire.Refused(reply.why or reply.outcome.name.lower())


def _not_read(reply: Reply) -> wire.Answer:
    """Nothing is changed by reading: whatever is not refused can be asked again."""
    if reply.outcome is Outcome.REFUSED:
        return wire.Refused(reply.why)
    return wire.Again(reply.why or "it cannot be read here now", reply.leader)
