"""Connections that others make to this node: the first letter says whether a peer or a client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import FORMAT_VERSION, Member, Partition
from quorate.machine.metadata import METADATA, Topic
from quorate.node import orders, requests, transactions
from quorate.node.codec import (
    GREETING_TIMEOUT_S,
    OTHER_CLUSTER,
    Greeting,
    Hello,
    Refused,
    Welcome,
    decode_greeting,
    decode_parcel,
    encode_greeting,
)
from quorate.node.ensembles import settled_membership
from quorate.node.keepalive import keep_alive
from quorate.node.letters import LETTER_BYTES_MAX, BadLetter, Letters
from quorate.node.requests import (
    Answered,
    AskImage,
    AskStatus,
    Change,
    CountRecords,
    Fetch,
    Fetched,
    Forget,
    Image,
    MarkEnd,
    MayWrite,
    Propose,
    Read,
    Rejected,
    Request,
    Transfer,
)
from quorate.storage.disk import Buffer
from quorate.storage.frame import FRAME_PAYLOAD_MAX, Frame

if TYPE_CHECKING:
    from quorate.node.node import Node

CLIENTS_COUNT_MAX = 500
"""Clients beyond this many are turned away: descriptors are needed for files, too."""
DOORS_COUNT_MAX = CLIENTS_COUNT_MAX + 100
"""Room beyond that is for peers, and for those who have not said who they are yet; these have little time."""
RECEIVING_BYTES_MAX = 512 << 20
"""Of clients' letters that are not all there, over all connections; whoever sends more then is turned away."""
FETCH_BYTES_MAX = 4 << 20
UNANSWERED_COUNT_MAX = 10_000
"""A client with more requests under way than this is not listened to until some are answered."""
UNANSWERED_BYTES_MAX = 64 << 20
WRITE_BUFFER_HIGH_BYTES = 8 << 20


class Door(Letters):
    """One accepted connection."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.begin_turn, node.end_turn)
        self.visitor = "somebody"
        self.is_client = False
        self.hello: Hello | None = None
        self.heard_at = 0.0
        """When the peer at the other end last said something."""
        self._node = node
        self._take: Callable[[Buffer], None] = self._greet
        self._peer = 0
        self._unanswered_count = 0
        self._unanswered_bytes = 0
        self._receiving_bytes = 0
        """Counted among those of all connections."""
        self._held_back = False
        self._write_full = False
        self._patience: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        keep_alive(self._transport)
        self._node.doors.append(self)
        if len(self._node.doors) > DOORS_COUNT_MAX:
            self.abort("too many connections")
            return
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(GREETING_TIMEOUT_S, self.abort, "no greeting")

    def closed(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for task in self._tasks:
            task.cancel()
        self._node.doors.remove(self)
        self._count_received()
        if self.offence:
            self._node.log_offence(f"connection of {self.visitor}: {self.offence}")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._count_received()
        if self._node.receiving_bytes > RECEIVING_BYTES_MAX and self._receiving_bytes:
            self.offence = f"more than {RECEIVING_BYTES_MAX} bytes of unfinished letters are here already"
            self.abort(self.offence)

    def _count_received(self) -> None:
        """Of clients: nodes are few."""
        unfinished = self.unfinished_bytes if self.is_client else 0
        self._node.receiving_bytes += unfinished - self._receiving_bytes
        self._receiving_bytes = unfinished

    def letter_received(self, letter: Buffer) -> None:
        self._take(letter)

    # --- who is there ---

    def _greet(self, letter: Buffer) -> None:
        greeting = decode_greeting(letter)
        if self._patience is not None:
            self._patience.cancel()
        why_not = self._why_not(greeting)
        if why_not:
            self._write(encode_greeting(Refused(why_not)))
            raise BadLetter(why_not)
        assert isinstance(greeting, Hello)
        self._peer = greeting.node
        self.hello = greeting
        self.visitor = f"node {greeting.node}" if greeting.node else "a client"
        self._take = self._take_parcel if greeting.node else self._take_request
        self.is_client = not greeting.node
        self.letter_bytes_max = LETTER_BYTES_MAX
        if greeting.node:
            self.heard_at = monotonic()
            self._node.peer_connected(self, greeting.node)
        unknown = "" if greeting.cluster else self._node.config.cluster
        self._write(encode_greeting(Welcome(self._node.id, cluster=unknown)))

    def _why_not(self, greeting: Greeting) -> str:
        if not isinstance(greeting, Hello):
            return "say hello first"
        if greeting.version != FORMAT_VERSION:
            return f"format {greeting.version} is unknown here; this is format {FORMAT_VERSION}"
        is_asking = not greeting.cluster and not greeting.node
        if greeting.cluster != self._node.config.cluster and not is_asking:
            return f"{OTHER_CLUSTER} {self._node.config.cluster!r}, not {greeting.cluster!r}"
        if greeting.to not in (0, self._node.id):
            return f"this is node {self._node.id}, not {greeting.to}"
        clients_count = sum(door.is_client for door in self._node.doors)
        if not greeting.node and clients_count >= CLIENTS_COUNT_MAX:
            return f"node {self._node.id} has {clients_count} clients already; try another node, or later"
        why_unwanted = self._node.unwanted.why(greeting)
        if why_unwanted:
            return why_unwanted
        if greeting.node and greeting.node not in self._node.peers:
            return f"node {greeting.node} is not known to node {self._node.id}"
        return ""

    @property
    def peer(self) -> int:
        """The node at the other end; 0 where it is a client, or not known yet."""
        return self._peer

    def _write(self, *buffers: Buffer) -> None:
        self.put(buffers, sum(map(len, buffers)))
        self._node.unflushed(self)

    # --- a peer ---

    def _take_parcel(self, letter: Buffer) -> None:
        parcel = decode_parcel(letter)
        if abs(parcel.sender.node) != self._peer:  # With a minus: whoever oversees partitions there.
            raise BadLetter(f"node {self._peer} speaks in the name of node {parcel.sender.node}")
        self.heard_at = monotonic()
        self._node.receive(parcel)

    # --- a client ---

    def _take_request(self, letter: Buffer) -> None:
        """What goes wrong with one request costs its connection and no more, but for an assertion of ours."""
        number, request, attachment = requests.decode_request(letter)
        try:
            self._do(number, request, attachment)
        except (BadLetter, AssertionError):
            raise
        except Exception as error:
            self._node.log_bug(error)
            raise BadLetter(f"a request failed: {type(error).__name__}") from error

    def _do(self, number: int, request: Request, attachment: memoryview) -> None:
        if type(request) is Propose:
            self._propose(number, request, attachment)
        elif type(request) is Fetch:
            self._fetch(number, request)
        elif type(request) is AskStatus:
            self._write(requests.encode_answer(number, self._node.status()))
        elif type(request) is AskImage:
            self._ask_image(number, request)
        else:
            self._order(number, request)

    def _propose(self, number: int, request: Propose, attachment: memoryview) -> None:
        payloads = requests.attached_batches(request, attachment)
        partition = Partition(request.partition)
        held = self._node.holds(partition)
        if not held and self._node.is_elsewhere(partition):
            leader, epoch = self._node.leader_of(partition)
            elsewhere = Answered(Outcome.NOT_LEADER, -1, epoch, leader)
            self._write(requests.encode_answer(number, elsewhere))
            return
        why_not = _why_not_proposed(payloads) if held else _unknown(partition)
        if why_not:
            self._write(requests.encode_answer(number, Rejected(why_not)))
            return
        self._waits(1, len(attachment))
        self._node.propose(partition, payloads, partial(self._settled, number, len(attachment)))

    def _settled(self, number: int, bytes_count: int, reply: Reply) -> None:
        self._waits(-1, -bytes_count)
        answered = Answered(reply.outcome, reply.offset, reply.epoch, reply.leader, timestamp=reply.timestamp)
        self._write(requests.encode_answer(number, answered))

    def _order(self, number: int, request: Request) -> None:
        answer = partial(self._ordered, number)
        self._waits(1, 0)
        if type(request) is Read:
            orders.read(self._node, request, answer)
        elif type(request) is Transfer:
            orders.transfer(self._node, request, answer)
        elif type(request) is Forget:
            orders.forget(self._node, request, answer, self._run)
        elif type(request) is MayWrite:
            transactions.may_write(self._node, request, answer)
        elif type(request) is MarkEnd:
            transactions.mark_end(self._node, request, answer)
        elif type(request) is CountRecords:
            transactions.count_records(self._node, request, answer)
        else:
            assert type(request) is Change
            orders.change(self._node, request, answer, self._run)

    def _ordered(self, number: int, answered: Answered) -> None:
        self._waits(-1, 0)
        self._write(requests.encode_answer(number, answered))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """An order that takes several turns: forgotten when the client goes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "an order failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        self.flush()

    def _ask_image(self, number: int, request: AskImage) -> None:
        if not self._node.config.voters:
            self._write(requests.encode_answer(number, Rejected("there is no metadata group here")))
        elif request.current:
            self._waits(1, 0)
            self._run(self._answer_current_image(number, request))
        else:
            self._write(requests.encode_answer(number, self._image(request, is_current=False)))

    async def _answer_current_image(self, number: int, request: AskImage) -> None:
        is_current = await self._node.metadata.catch_up()
        self._waits(-1, 0)
        self._write(requests.encode_answer(number, self._image(request, is_current=is_current)))

    def _image(self, request: AskImage, *, is_current: bool) -> Image:
        image = self._node.metadata.image
        names = sorted(image.topics) if request.topics is None else request.topics
        topics = tuple(image.topics[name] for name in names if name in image.topics)
        nodes = tuple(info for _, info in sorted(image.nodes.items()))

        def lost(members: Callable[[Topic, int], tuple[Member, ...]]) -> tuple[tuple[str, int, int], ...]:
            return tuple(
                (topic.name, number, member.node)
                for topic in topics
                for number in range(len(topic.ensembles))
                for member in members(topic, number)
                if not image.is_of_this_life(member)
            )

        return Image(
            self._node.id,
            image.version,
            nodes,
            topics,
            lost(Topic.wanted),
            settled_membership(self._node.host.hosted[METADATA]),
            is_current,
            lost(lambda topic, number: topic.ensembles[number]),
            {
                partition: stored
                for topic in topics
                for number, partition in enumerate(topic.partitions())
                if topic.is_overseen(number) and (stored := image.shard(partition)) is not None
            },
            tuple(sorted(image.users)),
            image.cluster,
            {info.node: image.life_of(info.node) for info in nodes},
        )

    def _fetch(self, number: int, request: Fetch) -> None:
        partition = Partition(request.partition)
        if not self._node.holds(partition):
            self._write(requests.encode_answer(number, Rejected(_unknown(partition))))
            return
        bytes_max = min(max(request.bytes_max, 1), FETCH_BYTES_MAX)
        self._waits(1, bytes_max)
        done = partial(self._fetched, number, bytes_max, self._node.log_base(partition))
        self._node.fetch(partition, max(request.offset, 0), bytes_max, done)

    def _fetched(self, number: int, bytes_max: int, base: int, frames: list[Frame], commit: int) -> None:
        self._waits(-1, -bytes_max)
        buffers: list[Buffer] = []
        for frame in frames:
            buffers += (frame.head, frame.payload)
        attachment_bytes = sum(map(len, buffers))
        answer = requests.encode_answer(number, Fetched(commit, base, len(frames)), attachment_bytes)
        self._write(answer, *buffers)

    # --- a client that asks faster than it is answered ---

    def pause_writing(self) -> None:
        self._write_full = True
        self._listen_or_not()

    def resume_writing(self) -> None:
        self._write_full = False
        self._listen_or_not()

    def _waits(self, count: int, bytes_count: int) -> None:
        self._unanswered_count += count
        self._unanswered_bytes += bytes_count
        self._listen_or_not()

    def _listen_or_not(self) -> None:
        too_much = (
            self._unanswered_count > UNANSWERED_COUNT_MAX
            or self._unanswered_bytes > UNANSWERED_BYTES_MAX
            or (self._write_full and not self._peer)
        )
        if too_much != self._held_back and self._transport is not None:
            self._held_back = too_much
            if too_much:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


def _why_not_proposed(payloads: list[memoryview]) -> str:
    for payload in payloads:
        if len(payload) > FRAME_PAYLOAD_MAX:
            return f"a batch of {len(payload)} bytes; at most {FRAME_PAYLOAD_MAX} are taken"
        try:
            header = batch.verify(payload)
        except batch.BadBatch as bad:
            return str(bad)
        if header.is_control:
            return "control batches are the log's own"
    return ""


def _unknown(partition: Partition) -> str:
    return f"no replica of partition {partition.hex()} is held here"
