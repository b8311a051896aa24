"""Joint transactions for clients of ours: opening attempts, and the one commit that publishes those it lists.

A commit is sealed, counted and then decided (machine/joint_transactions.py): in between the leaders of all
partitions in which its parts have written are asked how much of them is settled. Where that is less than is listed,
or more, nothing is published.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition, partition_of
from quorate.host.querying import Consistency
from quorate.kafka.call import Call
from quorate.machine.purpose import TRANSACTIONS
from quorate.machine.transaction_words import (
    AbortJoint,
    Command,
    CommitJoint,
    OpenAttempt,
    Part,
    Renew,
    Result,
    Seal,
    Verdict,
)
from quorate.machine.transactions import Transactions
from quorate.node.client import BadRequest, NotDone, OutcomeUnknown
from quorate.node.homes import NoHome
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata
from quorate.node.requests import CountRecords
from quorate.node.transactions import wall_ms
from quorate.wire import joint as wire

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

COUNTING_MAX = 64
"""Partitions that are asked at a time, for one commit."""
COMMIT_TIMEOUT_S_MAX = 3600.0
SOON_S = 2.0
"""Whoever asks for a commit hears by then how far it is: a client that hears nothing takes the node for dead."""
KEPT_S = 5.0
"""What became of a commit is kept so long for whoever asks for it again."""
COMMITS_MAX = 64
"""That are under way, or kept, at one node."""
ATTEMPT_TIMEOUT_MS_MAX = 24 * 3600 * 1000
NUMBER_MAX = (1 << 62) - 1


def handle(broker: Broker, call: Call) -> None:
    """Raises BadMessage."""
    body = memoryview(call.frame)[call.head.body_at :]
    if len(body) > wire.JOINT_REQUEST_BYTES_MAX:
        most = f"{wire.JOINT_REQUEST_BYTES_MAX:,} are the most"
        _say(call, wire.Refused(f"{len(body):,} bytes are too many for a request; {most}"))
        return
    call.door.run(_answer(broker, call, wire.decode_request(body)))


async def _answer(broker: Broker, call: Call, request: wire.Request) -> None:
    wrong = _why_not(request)
    answer = wire.Refused(wrong) if wrong else await _asked(broker, request)
    broker.in_turn(lambda: _say(call, answer))


def _say(call: Call, answer: wire.Answer) -> None:
    message = wire.encode_answer(answer, call.head.correlation)
    call.answer([message], len(message))


def _why_not(request: wire.Request) -> str:
    if not 0 <= getattr(request, "number", 0) <= NUMBER_MAX:
        return "a number is from 0 on, and below 2^62"
    if isinstance(request, wire.Open) and not 0 < request.timeout_ms <= ATTEMPT_TIMEOUT_MS_MAX:
        return f"the time-out of an attempt is from 1 to {ATTEMPT_TIMEOUT_MS_MAX} ms"
    if isinstance(request, wire.Commit):
        if len(request.parts) > wire.PARTS_COUNT_MAX:
            return f"{len(request.parts)} parts in one commit; {wire.PARTS_COUNT_MAX} are the most"
        if any(len(each.topic_id) != TOPIC_ID_BYTES for part in request.parts for each in part.written):
            return f"the id of a topic is {TOPIC_ID_BYTES} bytes"
        if any(not 0 <= each.partition < 1 << 31 for part in request.parts for each in part.written):
            return "a partition has a number from 0 on"
    return ""


async def _asked(broker: Broker, request: wire.Request) -> wire.Answer:
    node = broker.node
    home = node.homes.partition_of(TRANSACTIONS, request.app)
    if home is None:
        try:
            await node.homes.ensure(TRANSACTIONS)
        except NoHome as none:
            return wire.Again(f"transactions have no home yet: {none}")
        home = node.homes.partition_of(TRANSACTIONS, request.app)
    if home is None or not node.leads_with_all(home):
        leader = node.leader_of(home)[0] if home is not None else 0
        why = f"node {node.id} does not coordinate it"
        return wire.Again(why, leader if leader != node.id else 0)
    if isinstance(request, wire.Commit):
        return await broker.commits.answer(home, request)
    if isinstance(request, wire.AskLast):
        return await _last(broker, home, request)
    return await _commanded(broker, home, request)


async def _commanded(
    broker: Broker, home: Partition, request: wire.Open | wire.Abort | wire.Renew
) -> wire.Answer:
    command: Command
    now_ms = wall_ms()
    if isinstance(request, wire.Open):
        try:
            fresh_id = await broker.node.metadata.next_producer_id()
        except NoMetadata as none:
            return wire.Again(str(none))
        command = OpenAttempt(
            request.app,
            request.number,
            request.run,
            request.task,
            request.attempt,
            request.timeout_ms,
            fresh_id,
            now_ms,
        )
    elif isinstance(request, wire.Abort):
        command = AbortJoint(request.app, request.number, request.run, now_ms)
    else:
        command = Renew(request.app, request.run, request.producer_ids, now_ms)
    result = await _proposed(broker, home, command)
    if isinstance(result, wire.Again):
        return result
    if result.verdict is not Verdict.DONE:
        if isinstance(request, wire.Abort) and result.verdict is Verdict.ALREADY_IN:
            return wire.Aborted(result.last, already_in=True)
        return _refused(result)
    if isinstance(request, wire.Open):
        return wire.Opened(result.producer_id, result.epoch)
    return wire.Aborted(result.last) if isinstance(request, wire.Abort) else wire.Renewed()


async def _last(broker: Broker, home: Partition, request: wire.AskLast) -> wire.Answer:
    future: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()

    def looked(reply: Reply, found: wire.Last | None) -> None:
        if not future.done():
            future.set_result(found or wire.Again(reply.why or reply.outcome.value, reply.leader))

    def ask(machine: Transactions, _: Any) -> wire.Last:
        app = machine.app(request.app)
        return wire.Last(app.last, app.run) if app is not None else wire.Last(-1)

    broker.in_turn(lambda: broker.node.query(home, ask, looked, consistency=Consistency.LINEARIZABLE))
    return await future


async def _proposed(broker: Broker, home: Partition, command: Command) -> Result | wire.Again:
    future: asyncio.Future[Result | wire.Again] = asyncio.get_running_loop().create_future()

    def settled(reply: Reply, results: Any) -> None:
        if future.done():
            return
        if reply.outcome is Outcome.SETTLED and results and results[0] is not None:
            future.set_result(results[0])
        else:
            leader = reply.leader if reply.leader != broker.node.id else 0
            future.set_result(wire.Again(reply.why or reply.outcome.value, leader))

    broker.in_turn(lambda: broker.node.homes.propose(home, [command], settled))
    return await future


def _refused(result: Result) -> wire.Answer:
    if result.verdict is Verdict.RUN_FENCED:
        return wire.Fenced(result.verdict.value)
    if result.verdict is Verdict.ALREADY_IN:
        return wire.Committed(result.last, already_in=True)
    which = f" (producer id {result.producer_id})" if result.producer_id >= 0 else ""
    if result.verdict in (Verdict.PART_GONE, Verdict.PART_UNLISTED):
        return wire.Failed(result.verdict.value + which)
    return wire.Refused(result.verdict.value + which)


class Commits:
    """Those under way at a node. Clients ask again, and on other connections: they join what they began."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way: dict[tuple[str, int, str], Committing] = {}

    def close(self) -> None:
        for committing in self._under_way.values():
            committing.task.cancel()
        self._under_way.clear()

    async def answer(self, home: Partition, request: wire.Commit) -> wire.Answer:
        key = request.app, request.number, request.run
        committing = self._under_way.get(key)
        if committing is not None and committing.task.done() and not committing.is_of(home, request):
            committing = None
        if committing is None:
            if len(self._under_way) >= COMMITS_MAX:
                return wire.Again(f"{COMMITS_MAX} commits are under way here, which are the most")
            committing = self._under_way[key] = Committing(self._broker, home, request)
            loop = asyncio.get_running_loop()
            committing.task.add_done_callback(
                lambda _: loop.call_later(KEPT_S, self._forget, key, committing)
            )
        elif not committing.is_of(home, request):
            return wire.Again(f"another commit of number {request.number} is under way")
        await asyncio.wait([committing.task], timeout=min(SOON_S, request.timeout_ms / 4000))
        if not committing.task.done():
            return wire.Again(committing.how_far())
        self._forget(key, committing)
        return wire.Again("the node stops") if committing.task.cancelled() else committing.task.result()

    def _forget(self, key: tuple[str, int, str], committing: Committing) -> None:
        if self._under_way.get(key) is committing:
            del self._under_way[key]


class Committing:
    """One commit, from its seal to its decision."""

    def __init__(self, broker: Broker, home: Partition, request: wire.Commit) -> None:
        self._broker = broker
        self._home = home
        self._request = request
        self._listed = {
            (part.producer_id, bytes(partition_of(each.topic_id, each.partition))): each
            for part in request.parts
            for each in part.written
            if each.count > 0
        }
        parts: dict[int, list[bytes]] = {part.producer_id: [] for part in request.parts}
        for producer_id, partition in self._listed:
            parts[producer_id].append(partition)
        self._parts = tuple(Part(producer_id, tuple(where)) for producer_id, where in parts.items())
        self._uncounted: dict[tuple[int, Partition], str] = {}
        """What leaders of partitions have been asked and have not answered, with the names of the topics."""
        self._timeout_s = min(max(request.timeout_ms, 1) / 1000, COMMIT_TIMEOUT_S_MAX)
        self._deadline = monotonic() + self._timeout_s
        self.task = asyncio.get_running_loop().create_task(self._in_time())

    def is_of(self, home: Partition, request: wire.Commit) -> bool:
        return self._home == home and self._request.parts == request.parts

    def how_far(self) -> str:
        if not self._uncounted:
            return "its decision is not settled yet"
        name = next(iter(self._uncounted.values()))
        return (
            f"the leaders of {len(self._uncounted)} partitions, one of them of {name}, have not answered yet"
        )

    async def _in_time(self) -> wire.Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._run()
        except TimeoutError:
            why = f"not decided within {self._timeout_s:g} s: {self.how_far()}"
            self._broker.node.log(f"{self._request.app}: number {self._request.number}: {why}", level=WARNING)
            return wire.Again(why)

    async def _run(self) -> wire.Answer:
        request = self._request
        names = request.app, request.number, request.run
        sealed = await _proposed(self._broker, self._home, Seal(*names, self._parts, wall_ms()))
        if isinstance(sealed, wire.Again):
            return sealed
        if sealed.verdict is Verdict.DONE:
            trouble = await self._count()
            if trouble is not None:
                return trouble
            decided = await _proposed(self._broker, self._home, CommitJoint(*names, self._parts, wall_ms()))
            if isinstance(decided, wire.Again):
                return decided
            if decided.verdict is Verdict.DONE:
                return wire.Committed(decided.last)
            sealed = decided
        if sealed.verdict is Verdict.ALREADY_IN:
            node = self._broker.node
            node.metrics.joint_repeated += 1
            node.log(f"{request.app}: number {request.number} is already in (the last is {sealed.last})")
        return _refused(sealed)

    async def _count(self) -> wire.Answer | None:
        """What keeps it from being committed; None: all is there that is listed, and nothing else."""
        hosted = self._broker.node.host.hosted.get(self._home)
        if hosted is None:
            return wire.Again("its coordinator is elsewhere now")
        machine = cast(Transactions, hosted.machine)
        asked = [
            (part.producer_id, partition)
            for part in self._parts
            for partition in dict.fromkeys(
                (*part.partitions, *machine.partitions_of(self._request.app, part.producer_id))
            )
        ]
        room = asyncio.Semaphore(COUNTING_MAX)

        async def counted(producer_id: int, partition: bytes) -> wire.Answer | None:
            async with room:
                return await self._count_one(producer_id, Partition(partition))

        counting = [asyncio.create_task(counted(*each)) for each in asked]
        found = None
        try:
            for each in asyncio.as_completed(counting):
                trouble = await each
                found = found or trouble
                if isinstance(trouble, wire.Failed):
                    return trouble  # Whatever the others say, and whenever.
        finally:
            for task in counting:
                task.cancel()
        return found

    async def _count_one(self, producer_id: int, partition: Partition) -> wire.Answer | None:
        node = self._broker.node
        listed = self._listed.get((producer_id, bytes(partition)))
        name = listed.topic if listed is not None else partition[:TOPIC_ID_BYTES].hex()
        if node.metadata.image.is_deleted(partition[:TOPIC_ID_BYTES]):
            if listed is None:
                return None
            return wire.Failed(f"topic {name!r} was deleted, or created anew, since it was written to")
        self._uncounted[producer_id, partition] = name
        try:
            # As long as the caller waits: whoever is asked anew counts anew.
            left_s = self._deadline - monotonic()
            answered = await node.metadata.order(
                partition, CountRecords(partition, producer_id), timeout_s=left_s
            )
            del self._uncounted[producer_id, partition]
        except (NotDone, OutcomeUnknown, BadRequest) as error:
            node.log(f"{self._request.app}: {name}: not counted: {error}", level=WARNING)
            return wire.Again(f"the leader of {name} does not answer: {error}")
        expected = listed.count if listed is not None else 0
        if answered.offset == expected:
            return None
        return wire.Failed(
            f"producer id {producer_id} has {answered.offset} settled records in {name}, and {expected} are listed"
        )
