"""Tables, for clients of ours: transactions, reads at the level that is asked for, and who leads.

A group of tables is a topic of one partition whose log holds transactions (machine/table.py). A transaction is
checked as far as that needs no tables, proposed as one entry, and answered with what the tables made of it.

That there is no such group is said only by a node that has just heard what the metadata group has settled: the
group may have been created a moment ago, elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core import commands
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import partition_of
from quorate.host.querying import Consistency
from quorate.kafka.call import CROWDED, Call
from quorate.machine.cluster import STAGING_LEVEL
from quorate.machine.metadata import Topic
from quorate.machine.table import Tables
from quorate.machine.table_changes import Gone
from quorate.machine.table_wire import encode
from quorate.tables import CommitStaged, DiscardStaged, Level, Stage, why_not
from quorate.wire import tables as wire
from quorate.wire.cursor import BadMessage
from quorate.wire.tables import (
    CHANGES_PAGE_MAX,
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    TABLES_REQUEST_BYTES_MAX,
    TABLES_SCAN_API,
)

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

TIMEOUT_MS_MAX = 5 * 60_000
AGAIN = (Outcome.NOT_LEADER, Outcome.BUSY, Outcome.FULL, Outcome.TIMED_OUT)
STAGING = (Stage, CommitStaged, DiscardStaged)
TOO_EARLY = (
    f"staging needs feature level {STAGING_LEVEL}, and the cluster is at {{level}}; when every node runs a version "
    f"that knows it, `quorate cluster alter --feature-level {STAGING_LEVEL}`"
)
ONLY_CONFIRM = "copies of {name!r} agree by {how}: only `confirm` has promote and demote"
NOBODY_KNOWS = "there may be no group of tables {name!r}: nobody leads the metadata group"


def handle(broker: Broker, call: Call) -> None:
    """Raises BadMessage."""
    body = memoryview(call.frame)[call.head.body_at :]
    if len(body) > TABLES_REQUEST_BYTES_MAX:
        # Before anything is made of it: so many small things would hold up everybody.
        most = f"{TABLES_REQUEST_BYTES_MAX:,} are the most"
        _say(call, wire.Refused(f"{len(body):,} bytes are too many for a request about tables; {most}"))
        return
    request = wire.decode_request(body)
    if isinstance(request, wire.LARGE) != (call.head.api == TABLES_SCAN_API):
        raise BadMessage(
            f"scans, snapshots and changes, and nothing else, are asked for with api {TABLES_SCAN_API}"
        )
    topic = broker.node.metadata.image.topics.get(request.group)
    if topic is None or request.group_id not in (b"", topic.id):
        call.door.run(_look_again(broker, call, request))
    else:
        Asked(broker, call, topic, request)


async def _look_again(broker: Broker, call: Call, request: wire.Request) -> None:
    """There is no such group, or it is another one, as far as this node knows; perhaps that is not far."""
    is_sure = await broker.node.metadata.catch_up()
    broker.in_turn(lambda: _settle_which(broker, call, request, is_sure=is_sure))


def _settle_which(broker: Broker, call: Call, request: wire.Request, *, is_sure: bool) -> None:
    topic = broker.node.metadata.image.topics.get(request.group)
    if topic is not None and request.group_id in (b"", topic.id):
        Asked(broker, call, topic, request)
    elif is_sure:
        _say(call, wire.NoGroup(is_another=topic is not None))
    else:
        _say(call, wire.Again(NOBODY_KNOWS.format(name=request.group)))


def _say(call: Call, answer: wire.Answer) -> None:
    message = wire.encode_answer(answer, call.head.correlation)
    call.answer([message], len(message))


class Asked:
    """One request about a group that is there, until it is answered."""

    __slots__ = ("_broker", "_call", "_partition", "_timer", "_topic")

    def __init__(self, broker: Broker, call: Call, topic: Topic, request: wire.Request) -> None:
        self._broker = broker
        self._call = call
        self._topic = topic
        self._partition = partition_of(topic.id, 0)
        self._timer: asyncio.TimerHandle | None = None
        if not topic.is_tables:
            self._answer(wire.Refused(f"{topic.name!r} is a topic of records, not a group of tables"))
        elif not broker.node.holds(self._partition):
            self._answer(self._where())
        elif isinstance(request, wire.Execute):
            self._execute(request)
            self._expect_until(request.timeout_ms, wire.Unknown("nothing was settled in time"))
        elif isinstance(request, wire.Promote | wire.Demote):
            self._order(request)
        else:
            self._read(request)
            self._expect_until(request.timeout_ms, wire.Again("what is asked for is not settled here yet"))

    def _answer(self, answer: wire.Answer) -> None:
        if self._call.buffers is not None:
            return  # Too late: the client was told so.
        if self._timer is not None:
            self._timer.cancel()
        _say(self._call, answer)

    def _expect_until(self, timeout_ms: int, late: wire.Answer) -> None:
        """Most are answered by now. Of the others the client hears, rather than nothing."""
        if self._call.buffers is None:
            timeout_s = min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, late)
            self._call.abandon = self._timer.cancel

    def _expire(self, late: wire.Answer) -> None:
        self._broker.in_turn(lambda: self._answer(late))

    def _where(self) -> wire.Answer:
        node = self._broker.node
        leader, _ = node.leader_of(self._partition)
        copies = _copies(self._topic)
        if node.id in copies:
            return wire.Again("the copy of this node is not there yet", leader)
        return wire.Elsewhere(copies, leader)

    # --- transactions ---

    def _execute(self, request: wire.Execute) -> None:
        wrong = why_not(request.transaction)
        if wrong is not None:
            self._answer(wire.Refused(wrong))
            return
        level = self._broker.node.metadata.image.cluster.level
        if level < STAGING_LEVEL and any(
            isinstance(each, STAGING) for each in request.transaction.operations
        ):
            self._answer(wire.Refused(TOO_EARLY.format(level=level)))
            return
        if self._broker.is_crowded:
            self._answer(wire.Again(CROWDED))
            return
        settled = partial(self._settled, request.transaction.id)
        payload = encode(request.transaction, round(time() * 1000))
        self._broker.node.propose(self._partition, [payload], settled)

    def _settled(self, id_: bytes, reply: Reply) -> None:
        if self._call.buffers is not None:
            return
        if reply.outcome not in (Outcome.SETTLED, Outcome.FLUSHED):
            self._answer(_not_done(reply))
            return
        is_settled = reply.outcome is Outcome.SETTLED

        def looked(found: Reply, result: Any) -> None:
            if found.outcome is not Outcome.SETTLED:
                self._answer(wire.Unknown(found.why))
            elif result is None and not is_settled:  # Taken back already, or its tables are behind their log.
                self._answer(wire.Unknown("it was flushed, and is not in the tables"))
            else:
                self._answer(wire.Done(result, is_settled, self._topic.id))

        # Settled is not yet applied: only then the tables say what came of it.
        self._query(
            lambda tables, level: tables.result(id_, level),
            looked,
            Consistency.COMMITTED if is_settled else Consistency.LOCAL,
            reply.offset,
        )

    # --- reading ---

    def _read(
        self,
        request: wire.Get | wire.Scan | wire.AskResult | wire.AskTables | wire.AskPiece | wire.AskChanges,
    ) -> None:
        topic = self._topic

        def looked(reply: Reply, found: Any) -> None:
            if reply.outcome is not Outcome.SETTLED:
                self._answer(_not_read(reply))
            elif isinstance(request, wire.AskTables):
                leader, epoch = self._broker.node.leader_of(self._partition)
                copies = _copies(topic)
                described = wire.Described(
                    found, topic.replication, leader, epoch, copies, reply.offset, topic.id
                )
                self._answer(described)
            elif isinstance(request, wire.AskPiece | wire.AskChanges):
                self._answer(msgspec.structs.replace(found, group_id=topic.id))
            elif isinstance(request, wire.AskResult):
                self._answer(wire.Done(found, group_id=topic.id))
            else:
                rows, after = found
                self._answer(wire.Rows(tuple(rows), reply.offset, after, topic.id))

        offset = -1 if isinstance(request, wire.AskResult) else request.offset
        look = (
            partial(self._broker.snapshots.piece, self._partition, request)
            if isinstance(request, wire.AskPiece)
            else _look(request)
        )
        self._query(look, looked, Consistency(request.consistency.value), offset)

    def _query(
        self,
        ask: Callable[[Tables, Level], Any],
        answer: Callable[[Reply, Any], None],
        consistency: Consistency,
        offset: int,
    ) -> None:
        self._broker.node.query(self._partition, ask, answer, consistency=consistency, offset=offset)

    # --- who leads ---

    def _order(self, request: wire.Promote | wire.Demote) -> None:
        topic = self._topic
        if topic.replication != "confirm":
            self._answer(wire.Refused(ONLY_CONFIRM.format(name=topic.name, how=topic.replication)))
            return

        def make(number: int) -> commands.Command:
            if isinstance(request, wire.Demote):
                return commands.Demote(number)
            return commands.Promote(number, request.roll_back)

        def ordered(reply: Reply) -> None:
            if reply.outcome is Outcome.SETTLED:
                self._answer(wire.Ordered(reply.leader))
            elif reply.outcome is Outcome.TIMED_OUT:  # Given up: it is for whoever ordered it to try again.
                self._answer(wire.Refused(reply.why))
            else:
                self._answer(_not_done(reply))

        self._broker.node.command(self._partition, make, ordered)


def _copies(topic: Topic) -> tuple[int, ...]:
    return tuple(sorted({member.node for member in topic.holders(0)}))


def _look(
    request: wire.Get | wire.Scan | wire.AskResult | wire.AskTables | wire.AskChanges,
) -> Callable[[Tables, Level], Any]:
    if isinstance(request, wire.Get):
        table, key = request.table, request.key

        def get(tables: Tables, level: Level) -> Any:
            row = tables.get(table, key, level)
            return () if row is None else (row,), None

        return get
    if isinstance(request, wire.Scan):
        wanted = request.table, request.first, request.last

        def scan(tables: Tables, level: Level) -> Any:
            limit = min(max(request.limit, 1), PAGE_ROWS_MAX)
            return tables.page(
                *wanted, after=request.after, limit=limit, bytes_max=PAGE_BYTES_MAX, level=level
            )

        return scan
    if isinstance(request, wire.AskChanges):
        return partial(_changes, request)
    if isinstance(request, wire.AskResult):
        id_ = request.id
        return lambda tables, level: tables.result(id_, level)
    return lambda tables, level: tables.tables(level)


def _changes(request: wire.AskChanges, tables: Tables, _: Level) -> wire.Changes:
    """Settled ones only, at whatever level they are asked for."""
    try:
        page, kept_from = tables.changes(
            request.table,
            first=request.first,
            last=request.last,
            skip=max(request.skip, 0),
            limit=CHANGES_PAGE_MAX,
            bytes_max=PAGE_BYTES_MAX,
        )
    except Gone as gone:
        return wire.Changes((), gone.first)
    found = tuple(wire.Change(each.offset, each.timestamp, each.before, each.after) for each in page.changes)
    return wire.Changes(found, kept_from, page.resume)


def _not_done(reply: Reply) -> wire.Answer:
    if reply.outcome in AGAIN:
        return wire.Again(reply.why or reply.outcome.value, reply.leader)
    if reply.outcome is Outcome.UNKNOWN:
        return wire.Unknown(reply.why)
    if reply.outcome is Outcome.ROLLED_BACK:
        return wire.RolledBack(reply.why)
    return wire.Refused(reply.why or reply.outcome.value)


def _not_read(reply: Reply) -> wire.Answer:
    """Nothing is changed by reading: whatever is not refused can be asked again."""
    if reply.outcome is Outcome.REFUSED:
        return wire.Refused(reply.why)
    return wire.Again(reply.why or "it cannot be read here now", reply.leader)
