"""A node's connection to NATS, and which subjects it is subscribed to: those of the partitions that it leads.

A lost connection is made anew, after pauses that grow. Meanwhile no message comes in: a NATS server keeps nothing
for somebody who is away. What was in a node already is written, and answered on the next connection; answers that
were on their way are lost with the old one.

The library's own reconnecting is not used: it says neither why nor how often it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import nats.errors

from quorate.core.entry import Partition
from quorate.ingest.complaints import Complaints
from quorate.ingest.connection import Connection, Unreadable
from quorate.ingest.feed import Counts, Feed
from quorate.ingest.subjects import SUBJECT
from quorate.ingest.tasks import start
from quorate.machine.metadata import METADATA, Topic
from quorate.node.requests import NatsStatus

if TYPE_CHECKING:
    from quorate.node import Node

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
CONNECT_TIMEOUT_S = 5
CLOSE_TIMEOUT_S = 5
PING_EVERY_S = 5
PINGS_UNANSWERED_MAX = 2
NOT_ALLOWED = "permissions violation for subscription"
"""A server that does not let us subscribe says so, with the subject in quotes, and goes on."""
DROPPED = "messages come faster than they can be taken, and are dropped"
ENDS = (nats.errors.StaleConnectionError, OSError)
"""Errors with which a connection ends; that it ended is told then."""
NO_SERVER = "no NATS server was named (--nats)"


class NotConnected(Exception):
    """Why a server could not be reached."""


class Wanted(NamedTuple):
    """A partition that takes its messages from a subject."""

    topic: Topic
    number: int
    subject: str


class Ingest:
    """One for each node."""

    def __init__(self, node: Node, batch_bytes_max: Callable[[Topic], int]) -> None:
        self._node = node
        self._batch_bytes_max = batch_bytes_max
        self._servers = [server for server in node.config.nats.split(",") if server]
        self._rng = Random()
        self._wanted: dict[Partition, Wanted] = {}
        """By the image of that version."""
        self._looked_at = -1
        self._feeds: dict[Partition, Feed] = {}
        self._ending: dict[asyncio.Task[None], Feed] = {}
        self._counts = Counts()
        self._complaints = Complaints(node.log)
        self._why_not = "not connected yet" if self._servers else NO_SERVER
        self._changed = asyncio.Event()
        """Another image, another leader, another connection."""
        node.watch_settled(self._noticed)
        node.when_over(self._over)
        node.forgive("nats")
        node.nats_status = self.status
        self._running = start(node, self._run(), "NATS")

    def status(self) -> NatsStatus | None:
        """None: nobody has asked for NATS here."""
        if not self._servers and not any(map(self._node.is_leader, self._wanted)):
            return None
        return NatsStatus(
            ",".join(map(without_password, self._servers)),
            self._why_not or next(filter(None, (feed.why_not for feed in self._feeds.values())), ""),
            tuple(feed.subject for feed in self._feeds.values()),
            self._counts.written_count,
            self._counts.refused_count,
        )

    def _over(self, *, failed: bool) -> None:
        self._running.cancel()
        for feed in (*self._feeds.values(), *self._ending.values()):
            feed.cancel()

    # --- what is led here ---

    def _noticed(self, partition: Partition) -> None:
        """Called in the middle of the node's work, and often."""
        if partition == METADATA:
            if self._node.metadata.image.version != self._looked_at:
                self._changed.set()
        elif partition in self._wanted and self._fed_in(partition) != self._led_in(partition):
            self._changed.set()

    def _led_in(self, partition: Partition) -> int:
        """The epoch; 0: not led here."""
        return self._node.leader_of(partition)[1] if self._node.is_leader(partition) else 0

    def _fed_in(self, partition: Partition) -> int:
        feed = self._feeds.get(partition)
        return feed.epoch if feed is not None else 0

    def _look(self) -> None:
        """Which subjects the image speaks of."""
        image = self._node.metadata.image
        if image.version != self._looked_at:
            self._looked_at = image.version
            self._wanted = {
                partition: Wanted(topic, number, topic.config[SUBJECT])
                for topic in image.topics.values()
                if SUBJECT in topic.config
                for number, partition in enumerate(topic.partitions())
            }
            for partition, feed in self._feeds.items():
                if partition in self._wanted:  # Its topic may have been altered.
                    feed.batch_bytes_max = self._batch_bytes_max(self._wanted[partition].topic)

    def _let_go(self, client: Connection) -> None:
        """Of what another node leads, or nobody wants any more."""
        for partition in tuple(self._feeds):
            if partition not in self._wanted or self._fed_in(partition) != self._led_in(partition):
                feed = self._feeds.pop(partition)
                ending = start(self._node, feed.end(client), f"end of NATS {feed.subject}")
                self._ending[ending] = feed
                ending.add_done_callback(self._ending.pop)

    async def _take_over(self, client: Connection) -> None:
        for partition, wanted in self._wanted.items():
            epoch = self._led_in(partition)
            if epoch and partition not in self._feeds:
                self._feeds[partition] = Feed(
                    self._node,
                    self._counts,
                    topic=wanted.topic.name,
                    number=wanted.number,
                    partition=partition,
                    epoch=epoch,
                    subject=wanted.subject,
                    batch_bytes_max=self._batch_bytes_max(wanted.topic),
                )
        for feed in self._feeds.values():
            if feed.client is not client:
                await feed.subscribe(client)

    # --- connections ---

    async def _run(self) -> None:
        if not self._servers:
            await self._complain()
        pause_s = PAUSE_FIRST_S
        while True:
            client = Connection()
            try:
                await self._connect(client)
                _end_if_cancelled()
                pause_s = PAUSE_FIRST_S
                await self._serve(client)
            except (NotConnected, nats.errors.Error, OSError) as error:
                self._lost(error)
            finally:
                with suppress(Exception):  # Whatever is left of it: the next one is another.
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await client.close()
            await asyncio.sleep(self._rng.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _connect(self, client: Connection) -> None:
        """Raises the reason why nobody could be reached."""
        last: Exception | None = None

        async def failed(error: Exception) -> None:
            nonlocal last
            if client.is_connected:
                self._heard_of(error)
            else:
                last = error

        async def closed() -> None:
            self._changed.set()

        try:
            await client.connect(
                list(self._servers),
                name=f"quorate node {self._node.id} of {self._node.config.cluster}",
                error_cb=failed,
                closed_cb=closed,
                no_echo=True,  # An answer of ours is no message to us, whatever a topic's wildcards match.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=PINGS_UNANSWERED_MAX,
            )
        except Exception as error:  # Whatever a stranger's answer makes of the library.
            raise NotConnected(_in_words(last or error)) from error
        self._why_not = ""
        where = client.connected_url
        self._node.log(f"NATS: connected to {where.hostname}:{where.port}" if where else "NATS: connected")

    def _heard_of(self, error: Exception) -> None:
        """While the connection stands; strangers can cause most of it."""
        words = _in_words(error)
        if isinstance(error, nats.errors.SlowConsumerError):
            words = DROPPED
        if isinstance(error, nats.errors.SlowConsumerError | Unreadable):
            self._counts.refused_count += 1
        if NOT_ALLOWED in words:
            for feed in self._feeds.values():
                if f'"{feed.subject.lower()}"' in words:  # The library makes small letters of it.
                    feed.why_not = words
        if not isinstance(error, ENDS):
            self._complaints.say(f"NATS: {words}")

    async def _serve(self, client: Connection) -> None:
        """Until the connection is lost."""
        while not client.is_closed:
            self._changed.clear()
            self._look()
            self._let_go(client)
            await self._take_over(client)
            # A library that hangs while it closes a connection has not said yet that it is closed.
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY_S):
                    await self._changed.wait()
        error = client.last_error
        raise NotConnected(_in_words(error) if error else "the server closed the connection")

    def _lost(self, error: Exception) -> None:
        why = _in_words(error)
        if why != self._why_not:
            self._why_not = why
            self._node.log(f"NATS: {why}; tried again until it is there")

    async def _complain(self) -> None:
        """Of subjects that nobody listens to, once each; until the node is over."""
        told: set[Partition] = set()
        while True:
            self._changed.clear()
            self._look()
            for partition, (topic, _, subject) in self._wanted.items():
                if partition not in told and self._node.is_leader(partition):
                    told.add(partition)
                    self._node.log(f"topic {topic.name}: NATS subject {subject} is not read: {NO_SERVER}")
            await self._changed.wait()


def _end_if_cancelled() -> None:
    """The library waits with `wait_for`; that of Python 3.11 forgets a cancellation where both come at once."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def without_password(server: str) -> str:
    return server.rpartition("@")[2] if "@" in server else urlsplit(server).netloc


def _in_words(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    words = words.removeprefix("nats: ").strip() or type(error).__name__
    return " ".join(words.split())
