"""A feed between a NATS client and a node that are both played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import nats.errors
import pytest
from nats.aio.msg import Msg

from quorate.batch import decode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.ingest import feed as feeding
from quorate.ingest.feed import Counts, Feed

PARTITION = Partition(bytes(20))
EPOCH = 7
TURNS_MAX = 1000


class FakeNode:
    """Leads until told otherwise, and decides what is proposed when the test says so."""

    def __init__(self) -> None:
        self.leads = True
        self.epoch = EPOCH
        self.said: list[str] = []
        self.why_failed = ""
        self.proposed: list[tuple[list[bytes], Callable[[Reply], None]]] = []

    def is_leader(self, partition: Partition) -> bool:
        return self.leads

    def leader_of(self, partition: Partition) -> tuple[int, int]:
        return 1, self.epoch

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def log(self, line: str) -> None:
        self.said.append(line)

    def fail(self, why: str) -> None:
        self.why_failed = why

    def propose(
        self, partition: Partition, payloads: Sequence[bytes], answer: Callable[[Reply], None]
    ) -> None:
        (payload,) = payloads
        self.proposed.append(([record.value or b"" for record in decode_records(payload)], answer))

    def decide(self, outcome: Outcome, offset: int = -1, why: str = "") -> list[bytes]:
        """The oldest proposal."""
        values, answer = self.proposed.pop(0)
        answer(Reply(1, outcome, offset, self.epoch, why=why))
        return values


class FakeClient:
    """Both ends of the server."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.is_closed = False
        self.heard: Callable[[Msg], Awaitable[None]]
        self.answers: dict[str, dict[str, Any]] = {}
        self.drained = False

    async def subscribe(
        self, subject: str, cb: Callable[[Msg], Awaitable[None]], **limits: int
    ) -> FakeClient:
        self.heard = cb
        return self

    async def drain(self) -> None:
        self.drained = True

    async def publish(self, subject: str, content: bytes) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        assert subject not in self.answers
        self.answers[subject] = json.loads(content)

    async def send(
        self, content: bytes, reply: str = "", headers: dict[str, str] | None = None, subject: str = "s"
    ) -> None:
        await self.heard(Msg(cast(Any, self), subject, reply, content, headers))


class Bench:
    def __init__(self, subject: str = "s") -> None:
        self.node = FakeNode()
        self.client = FakeClient()
        self.counts = Counts()
        self.feed = Feed(
            cast(Any, self.node),
            self.counts,
            topic="t",
            number=0,
            partition=PARTITION,
            epoch=EPOCH,
            subject=subject,
            batch_bytes_max=1000,
        )

    async def subscribe(self) -> None:
        await self.feed.subscribe(cast(Any, self.client))

    async def end(self) -> None:
        await self.feed.end(cast(Any, self.client))

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if holds():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("waited in vain")


def play(story: Callable[[Bench], Coroutine[Any, Any, None]], subject: str = "s") -> None:
    async def main() -> None:
        bench = Bench(subject)
        await bench.subscribe()
        await story(bench)
        bench.feed.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_what_came_while_a_batch_was_under_way_is_the_next_batch() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        await bench.client.send(b"2")
        await bench.client.send(b"3", "r3")
        assert bench.node.decide(Outcome.SETTLED, 10) == [b"1"]
        await bench.until(lambda: len(bench.node.proposed) == 1)
        assert bench.node.decide(Outcome.SETTLED, 11) == [b"2", b"3"]
        await bench.until(lambda: len(bench.client.answers) == 2)
        assert bench.client.answers == {
            "r1": {"topic": "t", "partition": 0, "offset": 10, "epoch": EPOCH},
            "r3": {"topic": "t", "partition": 0, "offset": 12, "epoch": EPOCH},
        }
        assert (bench.counts.waiting_bytes, bench.counts.written_count) == (0, 3)

    play(story)


def test_a_batch_is_never_larger_than_its_topic_takes() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"first")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        for _ in range(5):
            await bench.client.send(bytes(300))
        bench.node.decide(Outcome.SETTLED, 0)
        await bench.until(lambda: len(bench.node.proposed) == 1)
        assert len(bench.node.decide(Outcome.SETTLED, 1)) == 2
        await bench.client.send(bytes(1000), "large")
        assert bench.client.answers["large"] == {
            "error": "not written: a message of 1000 bytes is too large for max.message.bytes=1000"
        }

    play(story)


def test_a_subject_in_any_script_counts_in_a_batch_with_all_its_bytes() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"first", subject="s.first")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        for _ in range(5):
            await bench.client.send(b"", subject="s." + "\N{SNOWFLAKE}" * 80)
        bench.node.decide(Outcome.SETTLED, 0)
        for offset in range(1, 5, 2):
            await bench.until(lambda: len(bench.node.proposed) == 1)
            assert len(bench.node.decide(Outcome.SETTLED, offset)) == 2

    play(story, subject="s.*")


def test_what_no_room_is_left_for_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "WAITING_BYTES_MAX", 1000)

    async def story(bench: Bench) -> None:
        for number in range(3):
            await bench.client.send(bytes(200), f"r{number}")
        assert list(bench.client.answers) == ["r1", "r2"]
        assert "wait to be written" in bench.client.answers["r1"]["error"]
        assert bench.counts.refused_count == 2
        assert len(bench.node.said) == 1
        await bench.until(lambda: len(bench.node.proposed) == 1)
        bench.node.decide(Outcome.SETTLED, 0)
        await bench.until(lambda: bench.counts.waiting_bytes == 0)
        await bench.client.send(bytes(200))
        await bench.until(lambda: len(bench.node.proposed) == 1)

    play(story)


def test_a_busy_leader_is_tried_again_and_the_order_stays() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        await bench.client.send(b"2")
        for _ in range(2):
            assert bench.node.decide(Outcome.BUSY) == [b"1"]
            await bench.until(lambda: len(bench.node.proposed) == 1)
        assert bench.node.decide(Outcome.SETTLED, 0) == [b"1"]
        await bench.until(lambda: len(bench.node.proposed) == 1)
        assert bench.node.decide(Outcome.SETTLED, 1) == [b"2"]

    play(story)


def test_a_batch_whose_leadership_ended_is_unknown_and_what_waits_is_not_written_in_another_epoch() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        await bench.client.send(b"2", "r2")
        bench.node.epoch += 2  # It leads again, after somebody else who may have taken the second one, too.
        bench.node.decide(Outcome.UNKNOWN)
        await bench.until(lambda: len(bench.client.answers) == 2)
        assert bench.node.proposed == []
        assert "may be written, or not" in bench.client.answers["r1"]["error"]
        assert bench.client.answers["r2"] == {"error": feeding.LEFT}
        assert bench.counts.refused_count == 2

    play(story)


def test_an_ending_feed_answers_everybody_before_it_is_gone() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        await bench.client.send(b"2", "r2")
        bench.node.leads = False
        ending = asyncio.ensure_future(bench.end())
        await bench.until(lambda: bench.client.drained)
        assert not ending.done()
        bench.node.decide(Outcome.UNKNOWN)
        await ending
        assert list(bench.client.answers) == ["r1", "r2"]
        assert bench.counts.waiting_bytes == 0

    play(story)


def test_who_leads_no_more_does_not_say_that_a_message_is_not_written() -> None:
    """The next leader was perhaps subscribed when it came, and writes it; a publisher hears the first answer."""

    async def story(bench: Bench) -> None:
        bench.node.leads = False
        await bench.client.send(b"1", "r1")
        assert bench.client.answers["r1"] == {"error": feeding.LEFT}
        assert feeding.LEFT.startswith("unknown: ")
        assert (bench.counts.refused_count, bench.counts.waiting_bytes) == (1, 0)

    play(story)


@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.FULL, Outcome.NOT_LEADER])
def test_what_a_former_leader_could_not_write_is_unknown(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "RETRY_FOR_S", 0.0)

    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        bench.node.leads = False
        bench.node.decide(outcome)
        await bench.until(lambda: "r1" in bench.client.answers)
        assert bench.client.answers["r1"] == {"error": feeding.LEFT}

    play(story)


@pytest.mark.parametrize(
    ("outcome", "why", "said"),
    [
        (Outcome.BUSY, "1 in sync, and 2 needed", "not written: 1 in sync, and 2 needed"),
        (Outcome.BUSY, "", "not written: the leader is busy"),
        (Outcome.FULL, "", "not written: the leader's disk is full"),
        (Outcome.REFUSED, "", "not written: refused"),
    ],
)
def test_a_publisher_hears_the_leaders_own_reason(
    outcome: Outcome, why: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "RETRY_FOR_S", 0.0)

    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        bench.node.decide(outcome, why=why)
        await bench.until(lambda: "r1" in bench.client.answers)
        assert bench.client.answers["r1"] == {"error": said}

    play(story)


def test_what_comes_after_a_drain_that_gave_up_is_answered_and_takes_no_room() -> None:
    async def story(bench: Bench) -> None:
        async def give_up() -> None:
            raise nats.errors.FlushTimeoutError

        bench.client.drain = give_up  # type: ignore[method-assign]
        await bench.end()
        await bench.client.send(b"late", "r1")
        assert bench.client.answers["r1"] == {"error": feeding.LEFT}
        assert bench.counts.waiting_bytes == 0

    play(story)


def test_a_drain_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library's, when the connection is closed meanwhile."""
    monkeypatch.setattr(feeding, "DRAIN_FOR_S", 0.0)

    async def story(bench: Bench) -> None:
        async def hang() -> None:
            await asyncio.Event().wait()

        bench.client.drain = hang  # type: ignore[method-assign]
        await bench.end()

    play(story)


def test_what_is_settled_without_a_connection_is_answered_on_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "UNSENT_ANSWERS_MAX", 2)

    async def story(bench: Bench) -> None:
        for number in range(3):
            await bench.client.send(b"%d" % number, f"r{number}")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        bench.client.is_closed = True
        bench.node.decide(Outcome.SETTLED, 10)
        await bench.until(lambda: bench.counts.written_count == 3)
        bench.client = FakeClient()
        await bench.subscribe()
        answered = {reply: answer["offset"] for reply, answer in bench.client.answers.items()}
        assert answered == {"r1": 11, "r2": 12}  # The oldest was given up.

    play(story)


def test_a_feed_that_ends_after_its_connection_was_lost_answers_on_the_next() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        bench.client.is_closed = True
        bench.node.decide(Outcome.SETTLED, 10)
        await bench.until(lambda: bench.counts.written_count == 1)
        bench.client = FakeClient()
        await bench.end()
        assert bench.client.answers["r1"]["offset"] == 10

    play(story)


def test_a_reply_subject_that_the_library_chokes_on_stops_nobody() -> None:
    async def story(bench: Bench) -> None:
        async def choke(subject: str, content: bytes) -> None:
            raise ValueError(subject)

        publish, bench.client.publish = bench.client.publish, choke  # type: ignore[method-assign]
        await bench.client.send(bytes(1000), "bad")
        bench.client.publish = publish  # type: ignore[method-assign]
        await bench.client.send(bytes(1000), "good")
        assert list(bench.client.answers) == ["good"]
        assert bench.node.why_failed == ""

    play(story)


def test_strangers_cannot_fill_the_log_with_lines() -> None:
    async def story(bench: Bench) -> None:
        for size in range(1000, 1100):
            await bench.client.send(bytes(size))
        assert bench.counts.refused_count == 100
        assert len(bench.node.said) == 1

    play(story)


def test_messages_without_contents_fill_the_bound_by_what_they_take_in_memory() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"")
        assert bench.counts.waiting_bytes >= 512
        before = bench.counts.waiting_bytes
        await bench.client.send(b"", headers={"a": "", "b": ""})
        assert bench.counts.waiting_bytes - before >= 3 * 512

    play(story)


def test_a_feed_that_fails_fails_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stand still, and fill the bound that all feeds share."""

    async def story(bench: Bench) -> None:
        def broken(messages: Sequence[Msg]) -> bytes:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(bench.feed, "_batch", broken)
        await bench.client.send(b"1")
        await bench.until(lambda: bool(bench.node.why_failed))
        assert bench.node.why_failed == "NATS s: ZeroDivisionError: ours"
        assert "Traceback" in bench.node.said[0]

    play(story)
