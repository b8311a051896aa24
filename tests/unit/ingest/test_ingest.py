"""Which subjects a node is subscribed to, over connections that end; node and server are played by the test."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest

from quorate.core.effects import Outcome
from quorate.core.entry import Partition
from quorate.ingest import feed as feeding
from quorate.ingest import ingest as ingesting
from quorate.ingest.connection import Connection, Unreadable
from quorate.ingest.ingest import Ingest
from quorate.ingest.subjects import SUBJECT
from quorate.machine.metadata import METADATA
from quorate.node.requests import NatsStatus
from tests.unit.ingest.fake_server import TLS_HANDSHAKE, FakeServer, until
from tests.unit.ingest.test_feed import FakeNode


class FakeTopic:
    def __init__(self, number: int, subject: str) -> None:
        self.name = f"t{number}"
        self.config = {SUBJECT: subject}
        self.partition = Partition(bytes([number]) * 20)

    def partitions(self) -> tuple[Partition, ...]:
        return (self.partition,)


class Leader(FakeNode):
    """Leads every topic until told otherwise, in one epoch."""

    def __init__(self, servers: str, *subjects: str) -> None:
        super().__init__()
        self.id = 1
        self.config = SimpleNamespace(nats=servers, cluster="c")
        self.topics = [FakeTopic(number, subject) for number, subject in enumerate(subjects, 1)]
        self.metadata = SimpleNamespace(image=SimpleNamespace(version=1, topics=dict(enumerate(self.topics))))
        self.nats_status: Callable[[], NatsStatus | None] = lambda: None
        self.led = {topic.partition for topic in self.topics}
        self.over: Callable[..., None]
        self._watch: Callable[[Partition], None]

    def is_leader(self, partition: Partition) -> bool:
        return partition in self.led

    def watch_settled(self, callback: Callable[[Partition], None]) -> None:
        self._watch = callback

    def when_over(self, callback: Callable[..., None]) -> None:
        self.over = callback

    def forgive(self, package: str) -> None: ...

    def notice(self) -> None:
        for topic in self.topics:
            self._watch(topic.partition)

    def let_go(self, number: int) -> None:
        self.led.discard(self.topics[number].partition)
        self.notice()

    @property
    def status(self) -> NatsStatus:
        status = self.nats_status()
        assert status is not None
        return status


def ingest_of(node: Leader) -> Ingest:
    ingest: Ingest = cast(Any, node.nats_status).__self__
    return ingest


def client_of(node: Leader) -> Connection:
    (client,) = {feed.client for feed in ingest_of(node)._feeds.values()}
    assert client is not None
    return client


async def over(node: Leader) -> None:
    """With all sockets closed."""
    node.over(failed=False)
    await asyncio.gather(ingest_of(node)._running, return_exceptions=True)


def play(story: Callable[[FakeServer, Leader], Coroutine[Any, Any, None]], *subjects: str) -> None:
    """The node is connected, and subscribed to all of them but what is forbidden."""

    async def main() -> None:
        async with FakeServer() as server:
            server.forbidden = "forbidden"
            node = Leader(f"nats://{server.address}", *subjects)
            Ingest(cast(Any, node), lambda _: 1 << 20)
            allowed = sorted(set(subjects) - {server.forbidden})
            await until(lambda: sorted(server.subscriptions.values()) == allowed, "to be subscribed")
            await story(server, node)
            await over(node)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_lost_connection_is_told_and_made_anew_with_every_subscription() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        assert node.status.why_not == ""
        server.hang_up()
        await until(lambda: node.status.why_not != "", "the loss to be told")
        await until(lambda: len(server.connects) == 2, "another connection")
        await until(lambda: sorted(server.subscriptions.values()) == ["a", "b"], "subscriptions")
        await until(lambda: node.status.why_not == "", "the connection to be told")
        server.deliver("a", b"1", "r1")
        await until(lambda: len(node.proposed) == 1, "a proposal")
        node.decide(Outcome.SETTLED, 5)
        await until(lambda: len(server.published) == 1, "an answer")
        assert server.published[0][0] == "r1"

    play(story, "a", "b")


def test_a_connection_that_the_library_never_finishes_closing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingesting, "PING_EVERY_S", 0.01)
    monkeypatch.setattr(ingesting, "PINGS_UNANSWERED_MAX", 1 << 20)

    async def story(server: FakeServer, node: Leader) -> None:
        client = client_of(node)
        client._status = Connection.CLOSED
        await until(lambda: node.status.why_not != "", "the loss to be told")
        client._status = Connection.CONNECTED
        await client.close()

    play(story, "a")


def test_the_subject_of_what_another_node_leads_is_left_and_the_others_stay() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        node.let_go(0)
        await until(lambda: list(server.subscriptions.values()) == ["b"], "one subscription")
        assert node.status.subjects == ("b",)
        assert len(server.connects) == 1

    play(story, "a", "b")


def test_leading_again_in_another_epoch_is_another_subscription_and_what_waited_is_not_written() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        (first,) = server.subscriptions
        server.deliver("a", b"1", "r1")
        await until(lambda: len(node.proposed) == 1, "a proposal")
        server.deliver("a", b"2", "r2")
        (feed,) = ingest_of(node)._feeds.values()
        await until(lambda: len(feed._waiting) == 1, "the second message to wait")
        node.epoch += 2
        node.notice()
        await until(lambda: len(server.subscriptions) == 1 and first not in server.subscriptions, "to move")
        node.decide(Outcome.UNKNOWN)
        await until(lambda: len(server.published) == 2, "both answers")
        assert [(reply, json.loads(answer)) for reply, answer in server.published] == [
            ("r1", {"error": feeding.UNSETTLED}),
            ("r2", {"error": feeding.LEFT}),
        ]
        server.deliver("a", b"3", "r3")
        await until(lambda: len(node.proposed) == 1, "a proposal")
        assert node.decide(Outcome.SETTLED, 9) == [b"3"]
        await until(lambda: len(server.published) == 3, "the third answer")
        assert json.loads(server.published[2][1])["epoch"] == node.epoch

    play(story, "a")


def test_what_is_no_longer_led_when_a_connection_comes_back_is_not_subscribed_again() -> None:
    """Not even for a moment: whoever leads now would be answered over."""

    async def story(server: FakeServer, node: Leader) -> None:
        subscribed: list[str] = []
        subscribe = Connection.subscribe

        async def noted(self: Connection, subject: str, **more: Any) -> Any:
            subscribed.append(subject)
            return await subscribe(self, subject, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "subscribe", noted)
            server.hang_up()
            await until(lambda: node.status.why_not != "", "the loss to be told")
            node.let_go(0)
            await until(lambda: list(server.subscriptions.values()) == ["b"], "the other")
        assert subscribed == ["b"]

    play(story, "a", "b")


def test_a_subject_that_may_not_be_read_is_told_for_as_long_as_it_is_led() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        await until(lambda: node.status.why_not != "", "the refusal to be told")
        assert node.status.why_not == 'permissions violation for subscription to "forbidden"'
        node.let_go(1)
        await until(lambda: node.status.why_not == "", "all to be well")

    play(story, "a", "forbidden")


def test_an_answer_that_may_not_be_published_does_not_look_like_a_lost_connection() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        said_count = len(node.said)
        for reply in (b"a", b"b", b"c"):  # A stranger may well ask for an answer to the topic's own subject.
            server.say(b"-ERR 'Permissions Violation for Publish to \"%s\"'\r\n" % reply)
        server.deliver("a", b"1")
        await until(lambda: len(node.proposed) == 1, "a proposal")
        assert node.status.why_not == ""
        assert node.said[said_count:] == ['NATS: permissions violation for publish to "a"']

    play(story, "a")


def test_what_the_library_drops_is_counted_and_its_errors_are_not_kept() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        client = client_of(node)
        kept = []
        for _ in range(100):
            for error in (nats.errors.SlowConsumerError("a", "", 1, cast(Any, None)), Unreadable()):
                kept.append(weakref.ref(error))
                await client._error_cb(error)
            del error
        gc.collect()
        assert not any(reference() for reference in kept)
        assert node.status.refused_count == 200
        assert node.status.why_not == ""

    play(story, "a")


def test_own_answers_do_not_come_back() -> None:
    async def story(server: FakeServer, node: Leader) -> None:
        assert server.connects[0]["echo"] is False

    play(story, ">")


def test_a_connection_that_fails_to_close_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    really_close = Connection.close

    async def close(self: Connection) -> None:
        await really_close(self)
        raise OSError("broken")

    monkeypatch.setattr(Connection, "close", close)

    async def story(server: FakeServer, node: Leader) -> None:
        server.hang_up()
        await until(lambda: len(server.connects) == 2, "another connection")
        assert node.why_failed == ""

    play(story, "a")


def test_a_node_that_is_over_while_the_library_connects_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library swallows that it was cancelled."""
    really_connect = Connection.connect
    connected: list[Connection] = []

    async def connect(self: Connection, *servers: Any, **given: Any) -> None:
        await really_connect(self, *servers, **given)
        connected.append(self)
        if len(connected) > 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    monkeypatch.setattr(Connection, "connect", connect)

    async def story(server: FakeServer, node: Leader) -> None:
        server.hang_up()
        await until(lambda: len(connected) == 2, "another connection")

    play(story, "a")


def test_tls_begins_where_it_is_offered_and_is_tried_again_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failed handshake the library's closing never ends."""
    monkeypatch.setattr(ingesting, "CLOSE_TIMEOUT_S", 0.01)

    async def main() -> None:
        async with FakeServer(tls_available=True) as server:
            node = Leader(f"tls://user:secret@{server.address}", "a")
            Ingest(cast(Any, node), lambda _: 1 << 20)
            await until(lambda: len(server.first_bytes) >= 2, "another try")
            assert set(server.first_bytes) == {TLS_HANDSHAKE}
            await over(node)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_bug_of_ours_fails_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on to say that it is connected."""

    async def story(server: FakeServer, node: Leader) -> None:
        def broken(self: Ingest) -> None:
            raise ZeroDivisionError("ours")

        with monkeypatch.context() as patch:
            patch.setattr(Ingest, "_look", broken)
            node.metadata.image.version += 1
            node._watch(METADATA)
            await until(lambda: node.why_failed != "", "the node to fail")
        assert node.why_failed == "NATS: ZeroDivisionError: ours"

    play(story, "a")


def test_a_topic_that_was_altered_takes_messages_by_what_it_is_set_to_now() -> None:
    limits = {"t1": 1 << 20}

    async def main() -> None:
        async with FakeServer() as server:
            node = Leader(f"nats://{server.address}", "a")
            Ingest(cast(Any, node), lambda topic: limits[topic.name])
            await until(lambda: list(server.subscriptions.values()) == ["a"], "to be subscribed")
            server.deliver("a", b"x" * 5000, "r1")
            await until(lambda: len(node.proposed) == 1, "a proposal")
            server.deliver("a", b"y" * 5000, "r2")
            (feed,) = ingest_of(node)._feeds.values()
            await until(lambda: len(feed._waiting) == 1, "the second message to wait")
            limits["t1"] = 2000
            node.metadata.image.version += 1
            node._watch(METADATA)
            await until(lambda: feed.batch_bytes_max == 2000, "the limit to be noticed")
            node.decide(Outcome.SETTLED, 5)
            await until(lambda: len(node.proposed) == 1, "what was taken before to be written")
            node.decide(Outcome.SETTLED, 6)
            server.deliver("a", b"z" * 5000, "r3")
            await until(lambda: len(server.published) == 3, "all answers")
            answers = {reply: json.loads(answer) for reply, answer in server.published}
            assert "error" not in answers["r2"]
            assert "too large for max.message.bytes=2000" in answers["r3"]["error"]
            await over(node)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_password_is_not_shown() -> None:
    async def main() -> None:
        node = Leader("nats://user:secret@127.0.0.1:1,tls://token@127.0.0.1:2", "a")
        Ingest(cast(Any, node), lambda _: 1 << 20)
        await until(lambda: node.status.why_not not in ("", "not connected yet"), "a refused connection")
        assert node.status.servers == "127.0.0.1:1,127.0.0.1:2"
        assert "secret" not in "".join([node.status.why_not, *node.said])
        await over(node)

    asyncio.run(main())
