"""Joint transactions for clients of ours: opening attempts, and the one commit that publishes those it lists.

A commit is sealed, counted and then decided (machine/joint_transactions.py): in between the leaders of all
partitions in which its parts have written are asked how much of them is settled. Where that is less than is listed,
or more, nothing is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
    from quorate.kafka.door import Door

COUNTING_MAX = 64
"""Partitions that are asked at a time, for one commit."""
COMMIT_TIMEOUT_S_MAX = 3600.0
SOON_S = 2.0
"""Whoever asks for a commit hears by then how far it is: a client that hears nothing takes the node for dead."""
KEPT_S = 5.0
"""What became of a commit is kept so long for whoever asks for it again."""
UNASKED_S_MAX = 30.0
"""A commit that nobody has asked for during so long is given up: clients ask every few seconds."""
LOOK_EVERY_S = 0.5
"""How late it may be noticed that a commit is in vain."""
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
    answer = wire.Refused(wrong) if wrong else await _asked(broker, call.door, request)
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


async def _asked(broker: Broker, door: Door, request: wire.Request) -> wire.Answer:
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
        return await broker.commits.answer(home, door, request)
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
        self._known: dict[tuple[str, int, str], Committing] = {}

    def close(self) -> None:
        for committing in tuple(self._known.values()):
            committing.end(wire.Again("the node stops"))
        self._known.clear()

    async def answer(self, home: Partition, door: Door, request: wire.Commit) -> wire.Answer:
        key = request.app, request.number, request.run
        committing = self._known.get(key)
        if committing is not None and not committing.answers(home, door, request):
            committing = None
        if committing is None:
            self._make_room()
            if len(self._known) >= COMMITS_MAX:
                return wire.Again(f"{COMMITS_MAX} commits are under way here, which are the most")
            committing = self._known[key] = Committing(self._broker, home, request)
            committing.said.add_done_callback(lambda _: self._over(key, committing))
        elif not committing.is_of(home, request):
            return wire.Again(f"another commit of number {request.number} is under way")
        committing.asked_at = monotonic()
        await asyncio.wait([committing.said], timeout=min(SOON_S, request.timeout_ms / 4000))
        if not committing.said.done():
            return wire.Again(committing.how_far())
        committing.heard_by = door
        return committing.said.result()

    def _over(self, key: tuple[str, int, str], committing: Committing) -> None:
        if isinstance(committing.said.result(), wire.Again):  # Whoever asks again wants it to begin anew.
            self._forget(key, committing)
        else:
            asyncio.get_running_loop().call_later(KEPT_S, self._forget, key, committing)

    def _forget(self, key: tuple[str, int, str], committing: Committing) -> None:
        if self._known.get(key) is committing:
            del self._known[key]

    def _make_room(self) -> None:
        if len(self._known) >= COMMITS_MAX:
            self._known = {key: each for key, each in self._known.items() if not each.said.done()}


class Committing:
    """The life of one commit: it is sealed, counted and decided, or ends before, where that is in vain."""

    def __init__(self, broker: Broker, home: Partition, request: wire.Commit) -> None:
        self._broker = broker
        self._home = home
        self._request = request
        self._topics = {
            each.topic_id: each.topic for part in request.parts for each in part.written if each.count > 0
        }
        self._listed = {
            (part.producer_id, partition_of(each.topic_id, each.partition)): each
            for part in request.parts
            for each in part.written
            if each.count > 0
        }
        parts: dict[int, list[bytes]] = {part.producer_id: [] for part in request.parts}
        for producer_id, partition in self._listed:
            parts[producer_id].append(bytes(partition))
        self._parts = tuple(Part(producer_id, tuple(where)) for producer_id, where in parts.items())
        self._uncounted: dict[tuple[int, Partition], asyncio.Task[wire.Answer | None]] = {}
        """What leaders are asked, or will be; nothing except while it is counted."""
        self._timeout_s = min(max(request.timeout_ms, 1) / 1000, COMMIT_TIMEOUT_S_MAX)
        self._deadline = monotonic() + self._timeout_s
        self.asked_at = monotonic()
        self.said: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self.heard_by: Door | None = None
        self._tasks: list[asyncio.Task[wire.Answer | None]] = []
        self._start(self._run())
        self._start(self._watch())

    def is_of(self, home: Partition, request: wire.Commit) -> bool:
        return self._home == home and self._request.parts == request.parts

    def answers(self, home: Partition, door: Door, request: wire.Commit) -> bool:
        """Whoever has heard what became of it, and asks once more there, means another one; whoever asks at another
        door has lost its connection."""
        return not self.said.done() or (self.is_of(home, request) and self.heard_by is not door)

    def how_far(self) -> str:
        if not self._uncounted:
            return "its decision is not settled yet"
        count, name = len(self._uncounted), self._name_of(*next(iter(self._uncounted)))
        return f"the leaders of {count} partitions, one of them of {name}, have not answered yet"

    def end(self, answer: wire.Answer) -> None:
        """What was said first is it."""
        if not self.said.done():
            self.said.set_result(answer)
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, wire.Answer | None]) -> asyncio.Task[wire.Answer | None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        """A bug costs this commit and no more, except where an assertion does not hold (as in Door)."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, AssertionError):
            context = {"message": "a commit failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        else:
            self._broker.node.log_bug(error)
        self.end(wire.Again(f"the node failed at it: {type(error).__name__}"))

    # --- what ends it ---

    async def _watch(self) -> None:
        node, request = self._broker.node, self._request
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if why := self._why_in_vain():
                node.log(f"{request.app}: number {request.number}: {why}", level=WARNING)
                self.end(wire.Again(why))
            elif self._uncounted:
                self._look_at_topics()

    def _why_in_vain(self) -> str:
        if monotonic() >= self._deadline:
            return f"not decided within {self._timeout_s:g} s: {self.how_far()}"
        if monotonic() - self.asked_at >= UNASKED_S_MAX:
            return f"nobody has asked for it for {UNASKED_S_MAX:g} s: {self.how_far()}"
        if not self._broker.node.leads_with_all(self._home):
            return "its coordinator is elsewhere now"
        if self._uncounted:
            app = self._machine().app(self._request.app)
            if app is None or any(part.producer_id not in app.attempts for part in self._parts):
                return "an attempt that it lists is not open any more"  # Whoever asks again hears why.
        return ""

    def _look_at_topics(self) -> None:
        """Nobody leads what was deleted, and nobody would ever answer."""
        is_deleted = self._broker.node.metadata.image.is_deleted
        for topic_id, name in self._topics.items():
            if is_deleted(topic_id):
                self.end(wire.Failed(f"topic {name!r} was deleted, or created anew, since it was written to"))
                return
        for each in [each for each in self._uncounted if is_deleted(each[1][:TOPIC_ID_BYTES])]:
            self._uncounted.pop(each).cancel()

    # --- its way ---

    async def _run(self) -> None:
        self.end(await self._decided())

    async def _decided(self) -> wire.Answer:
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
        if not self._broker.node.leads_with_all(self._home):
            return wire.Again("its coordinator is elsewhere now")
        machine = self._machine()
        asked = {
            (part.producer_id, Partition(partition)): None
            for part in self._parts
            for partition in (
                *part.partitions,
                *machine.partitions_of(self._request.app, part.producer_id),
            )
        }
        room = asyncio.Semaphore(COUNTING_MAX)
        counting = {each: self._start(self._count_one(room, *each)) for each in asked}
        self._uncounted = dict(counting)
        self._look_at_topics()
        await asyncio.gather(*counting.values(), return_exceptions=True)
        is_deleted = self._broker.node.metadata.image.is_deleted
        for each, task in counting.items():
            if not task.cancelled():
                if (trouble := task.result()) is not None:
                    return trouble
            elif each in self._listed or not is_deleted(each[1][:TOPIC_ID_BYTES]):
                return wire.Again(f"the count of {self._name_of(*each)} was given up")
        return None

    async def _count_one(
        self, room: asyncio.Semaphore, producer_id: int, partition: Partition
    ) -> wire.Answer | None:
        node = self._broker.node
        listed = self._listed.get((producer_id, partition))
        name = self._name_of(producer_id, partition)
        async with room:
            try:
                # Whoever is asked anew counts anew: it is `_watch` that says how long.
                answered = await node.metadata.order(
                    partition, CountRecords(partition, producer_id), timeout_s=COMMIT_TIMEOUT_S_MAX
                )
            except (NotDone, OutcomeUnknown, BadRequest) as error:
                node.log(f"{self._request.app}: {name}: not counted: {error}", level=WARNING)
                return wire.Again(f"the leader of {name} does not answer: {error}")
        self._uncounted.pop((producer_id, partition), None)
        expected = listed.count if listed is not None else 0
        if answered.offset == expected:
            return None
        failed = wire.Failed(
            f"producer id {producer_id} has {answered.offset} settled records in {name}, and {expected} are listed"
        )
        self.end(failed)  # Whatever the others say, and whenever.
        return failed

    def _machine(self) -> Transactions:
        return cast(Transactions, self._broker.node.host.hosted[self._home].machine)

    def _name_of(self, producer_id: int, partition: Partition) -> str:
        listed = self._listed.get((producer_id, partition))
        return listed.topic if listed is not None else partition[:TOPIC_ID_BYTES].hex()
