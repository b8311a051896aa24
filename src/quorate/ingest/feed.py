"""One NATS subject into one partition, for as long as this node leads it in one epoch.

Whatever has come in while the last batch was being settled becomes the next one: one record batch, one entry. There
is one under way at a time, so that messages stand in the log in the order in which they came, even where the leader
was busy and a batch had to be tried again. Everything that waits has one bound over all feeds of a node; what comes
beyond it is refused.

From one server no message gets into the log twice. It hands a message to those who are subscribed when it
arrives, and a node subscribes after it has come to lead. So an earlier leader that takes the same message,
because it does not know of its end yet, has it in an epoch that is over for the later one: its entry is never
settled in one log with the other. That is why what waits in a feed is never written in another epoch, not even by
the same node.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.ingest.complaints import Complaints
from quorate.ingest.connection import Connection
from quorate.ingest.subjects import SUBJECT_HEADER, has_wildcard
from quorate.ingest.tasks import start

if TYPE_CHECKING:
    from quorate.node import Node

WAITING_BYTES_MAX = 32 << 20
"""Of messages that are not settled or refused yet, as they lie in memory, over all feeds of a node."""
OBJECT_BYTES = 512
"""What a message takes in memory beside its contents, and each of its headers again: measured, and rounded up."""
PENDING_MESSAGES_MAX = 1 << 16
PENDING_PAYLOADS_MAX = 8
"""Of the largest size that the server lets through. So much does the library hold until a feed looks at it."""
RECORD_ROOM = 64
"""What a record has in a batch beside its value and headers."""
HEADER_ROOM = 16
RETRY_EVERY_S = 0.05
RETRY_FOR_S = 5.0
"""A leader that is busy, or has no room, is tried again for so long; then the messages are refused."""
DRAIN_FOR_S = 5.0
UNSENT_ANSWERS_MAX = 1000
"""Of one feed, kept for the next connection; the oldest are given up."""

LEFT = "unknown: this node takes nothing more for the topic; another may have taken it"
"""Whoever leads now was perhaps subscribed, too, when the message came."""
UNSETTLED = "unknown: the leader changed; it may be written, or not"
_WHY_NOT: dict[Outcome, str] = {
    Outcome.BUSY: "the leader is busy",
    Outcome.FULL: "the leader's disk is full",
}
_encode = msgspec.json.Encoder().encode


class Written(msgspec.Struct, frozen=True, gc=False):
    """What a publisher hears whose message is settled."""

    topic: str
    partition: int
    offset: int
    epoch: int


class NotWritten(msgspec.Struct, frozen=True, gc=False):
    error: str


class Counts:
    """Of all feeds of a node."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.written_count = 0
        self.refused_count = 0


class Feed:
    def __init__(
        self,
        node: Node,
        counts: Counts,
        *,
        topic: str,
        number: int,
        partition: Partition,
        epoch: int,
        subject: str,
        batch_bytes_max: int,
    ) -> None:
        self.topic = topic
        self.subject = subject
        self.epoch = epoch
        self.client: Connection | None = None
        """The last one that it was subscribed with."""
        self.why_not = ""
        """The server does not let us subscribe, in words."""
        self._node = node
        self._counts = counts
        self._number = number
        self._partition = partition
        self.batch_bytes_max = batch_bytes_max
        """By what its topic is set to now."""
        self._keeps_subject = has_wildcard(subject)
        self._subscription: Subscription | None = None
        self._waiting: deque[Msg] = deque()
        self._some = asyncio.Event()
        """Something waits, or nothing will come any more."""
        self._is_ending = False
        self._unsent: deque[tuple[str, bytes]] = deque(maxlen=UNSENT_ANSWERS_MAX)
        self._complaints = Complaints(node.log)
        self._writing = start(node, self._write(), f"NATS {subject}")

    async def subscribe(self, client: Connection) -> None:
        """Raises what the client raises; after a lost connection, the next one goes on."""
        self.client = client
        self.why_not = ""
        self._subscription = await client.subscribe(
            self.subject,
            cb=self._heard,
            pending_msgs_limit=PENDING_MESSAGES_MAX,
            pending_bytes_limit=PENDING_PAYLOADS_MAX * client.max_payload,
        )
        await self._send_unsent()

    async def end(self, client: Connection) -> None:
        """This node does not lead any more: no message comes in, and those that are here hear why not."""
        self.client = client
        if self._subscription is not None:
            # The connection may be lost, too; the library does not always notice that while it drains.
            with suppress(nats.errors.Error, OSError):
                async with asyncio.timeout(DRAIN_FOR_S):
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
        self._is_ending = True
        self._some.set()
        await self._send_unsent()
        await self._writing

    def cancel(self) -> None:
        """The node is over: nobody hears anything any more."""
        self._writing.cancel()

    # --- coming in ---

    async def _heard(self, message: Msg) -> None:
        held = _held_by(message)
        why_not = self._why_not_taken(message, held)
        if why_not:
            self._refused(1, why_not)
            await self._answer(message, NotWritten(why_not))
        else:
            self._counts.waiting_bytes += held
            self._waiting.append(message)
            self._some.set()

    def _why_not_taken(self, message: Msg, held: int) -> str:
        if self._is_ending or not self._leads():
            return LEFT
        if _room_for(message) + batch.BATCH_MIN > self.batch_bytes_max:
            size, most = len(message.data), self.batch_bytes_max
            return f"not written: a message of {size} bytes is too large for max.message.bytes={most}"
        if self._counts.waiting_bytes + held > WAITING_BYTES_MAX:
            return f"not written: more than {WAITING_BYTES_MAX} bytes wait to be written"
        return ""

    def _leads(self) -> bool:
        """In the epoch that this is for."""
        node = self._node
        return node.is_leader(self._partition) and node.leader_of(self._partition)[1] == self.epoch

    def _refused(self, count: int, why: str) -> None:
        self._counts.refused_count += count
        self._complaints.say(f"topic {self.topic}: not every message from NATS is taken: {why}")

    # --- going on ---

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            taken = self._take()
            if taken:
                payload = self._batch(taken)
                await self._tell(taken, await self._settled(payload))
            elif self._is_ending:
                return
            else:
                self._some.clear()

    def _take(self) -> list[Msg]:
        """As many as one batch has room for; and one that was taken before the topic was altered in any case."""
        taken: list[Msg] = []
        left = self.batch_bytes_max - batch.BATCH_MIN
        while self._waiting:
            left -= _room_for(self._waiting[0])
            if left < 0 and taken:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _batch(self, messages: Sequence[Msg]) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        payload = batch.encode_records(
            (batch.Record(None, message.data, headers=self._headers(message)) for message in messages), now_ms
        )
        assert len(payload) <= self.batch_bytes_max or len(messages) == 1
        return payload

    def _headers(self, message: Msg) -> tuple[tuple[str, bytes | None], ...]:
        if message.headers is None and not self._keeps_subject:
            return ()
        headers: dict[str, bytes | None] = {
            name: value.encode() for name, value in (message.headers or {}).items()
        }
        if self._keeps_subject:
            headers[SUBJECT_HEADER] = message.subject.encode()
        return tuple(headers.items())

    async def _settled(self, payload: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_FOR_S
        while True:
            reply = await self._proposed(payload)
            if reply.outcome not in (Outcome.BUSY, Outcome.FULL) or loop.time() >= deadline:
                return reply
            await asyncio.sleep(RETRY_EVERY_S)

    async def _proposed(self, payload: bytes) -> Reply:
        node = self._node
        if not self._leads():
            return Reply(0, Outcome.NOT_LEADER)
        decided: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def hear(reply: Reply) -> None:
            if not decided.done():  # Else the node is over.
                decided.set_result(reply)

        node.begin_turn()
        try:
            node.propose(self._partition, [payload], hear)
        finally:
            node.end_turn()
        return await decided

    # --- and back ---

    async def _tell(self, messages: Sequence[Msg], reply: Reply) -> None:
        self._counts.waiting_bytes -= sum(map(_held_by, messages))
        if reply.outcome is Outcome.SETTLED:
            self._counts.written_count += len(messages)
            for place, message in enumerate(messages):
                if message.reply:
                    written = Written(self.topic, self._number, reply.offset + place, reply.epoch)
                    await self._answer(message, written)
            return
        why_not = self._why_not_written(reply)
        self._refused(len(messages), why_not)
        for message in messages:
            await self._answer(message, NotWritten(why_not))

    def _why_not_written(self, reply: Reply) -> str:
        if reply.outcome is Outcome.UNKNOWN:
            return UNSETTLED
        if reply.outcome is Outcome.NOT_LEADER or not self._leads():
            return LEFT
        return f"not written: {reply.why or _WHY_NOT.get(reply.outcome, reply.outcome)}"

    async def _answer(self, message: Msg, answer: Written | NotWritten) -> None:
        if message.reply:
            await self._send(message.reply, _encode(answer))

    async def _send(self, subject: str, content: bytes) -> None:
        assert self.client is not None, "a message came in"
        try:
            await self.client.publish(subject, content)
        except (nats.errors.ConnectionClosedError, OSError):
            self._unsent.append((subject, content))
        except Exception:  # Whatever a stranger's reply subject makes of the library.
            self._complaints.say(f"topic {self.topic}: a reply subject from NATS cannot be answered to")

    async def _send_unsent(self) -> None:
        unsent = tuple(self._unsent)
        self._unsent.clear()
        for subject, content in unsent:
            await self._send(subject, content)


def _held_by(message: Msg) -> int:
    """In memory, about."""
    return _room_for(message) + len(message.reply) + OBJECT_BYTES * (1 + len(message.headers or ()))


def _room_for(message: Msg) -> int:
    """In a batch, at most."""
    headers: dict[str, Any] = message.headers or {}
    # Letters of other scripts take up to four bytes each.
    letters = len(message.subject) + sum(len(name) + len(value) for name, value in headers.items())
    return RECORD_ROOM + len(message.data) + HEADER_ROOM * len(headers) + 4 * letters
