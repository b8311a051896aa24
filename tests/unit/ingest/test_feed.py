"""A feed between a NATS client and a node that are both played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

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
        self.proposed: list[tuple[list[bytes], Callable[[Reply], None]]] = []

    def is_leader(self, partition: Partition) -> bool:
        return self.leads

    def leader_of(self, partition: Partition) -> tuple[int, int]:
        return 1, self.epoch

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def log_offence(self, line: str) -> None:
        self.said.append(line)

    def propose(
        self, partition: Partition, payloads: Sequence[bytes], answer: Callable[[Reply], None]
    ) -> None:
        (payload,) = payloads
        self.proposed.append(([record.value or b"" for record in decode_records(payload)], answer))

    def decide(self, outcome: Outcome, offset: int = -1) -> list[bytes]:
        """The oldest proposal."""
        values, answer = self.proposed.pop(0)
        answer(Reply(1, outcome, offset, self.epoch))
        return values


class FakeClient:
    """Both ends of the server."""

    def __init__(self) -> None:
        self.heard: Callable[[Msg], Awaitable[None]]
        self.answers: dict[str, dict[str, Any]] = {}
        self.drained = False

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> FakeClient:
        self.heard = cb
        return self

    async def drain(self) -> None:
        self.drained = True

    async def publish(self, subject: str, content: bytes) -> None:
        assert subject not in self.answers
        self.answers[subject] = json.loads(content)

    async def send(self, content: bytes, reply: str = "") -> None:
        await self.heard(Msg(cast(Any, self), "s", reply, content))


class Bench:
    def __init__(self) -> None:
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
            subject="s",
            batch_bytes_max=1000,
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if holds():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("waited in vain")


def play(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.feed.subscribe(cast(Any, bench.client))
        await story(bench)
        bench.feed.cancel()

    asyncio.run(main())


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
            "error": "not written: a message of 1000 bytes is too large for the topic"
        }

    play(story)


def test_what_no_room_is_left_for_is_refused_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(feeding, "WAITING_BYTES_MAX", 500)

    async def story(bench: Bench) -> None:
        for number in range(3):
            await bench.client.send(bytes(200), f"r{number}")
        assert list(bench.client.answers) == ["r1", "r2"]
        assert "wait to be written" in bench.client.answers["r1"]["error"]
        assert bench.counts.refused_count == 2
        assert len(bench.node.said) == 2
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
        assert bench.client.answers["r2"] == {"error": "not written: another node leads now"}
        assert bench.counts.refused_count == 2

    play(story)


def test_an_ending_feed_answers_everybody_before_it_is_gone() -> None:
    async def story(bench: Bench) -> None:
        await bench.client.send(b"1", "r1")
        await bench.until(lambda: len(bench.node.proposed) == 1)
        await bench.client.send(b"2", "r2")
        bench.node.leads = False
        ending = asyncio.ensure_future(bench.feed.end())
        await bench.until(lambda: bench.client.drained)
        assert not ending.done()
        bench.node.decide(Outcome.UNKNOWN)
        await ending
        assert list(bench.client.answers) == ["r1", "r2"]
        assert bench.counts.waiting_bytes == 0

    play(story)
