"""The metadata group as a store: linearizable, and as unknown as any other when nobody answers."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.coordinated import Shard, Status
from quorate.core.entry import Member
from quorate.core.metadata import (
    ReadShard,
    ShardRead,
    ShardWritten,
    StoreSilent,
    WriteRefused,
    WriteShard,
)
from tests.unit.sim.operator_bench import Bench

SHARD = Shard(0, Status.ELECTION, (Member(1, 1),))
LATER = Shard(1, Status.ELECTION, (Member(1, 1),))


class Whole(Bench):
    def __init__(self) -> None:
        super().__init__(whole=True, watched=False)
        self.heard: list[Any] = []
        self.until(lambda: bool(self.world.leaders(1)))

    def ask(self, request: ReadShard | WriteShard) -> Any:
        self.store.ask(101, 0, request, self.heard.append)
        count = len(self.heard)
        self.until(lambda: len(self.heard) > count)
        return self.heard[-1]


@pytest.fixture
def bench() -> Whole:
    return Whole()


@pytest.mark.behaviour("OX-2", "OX-3")
def test_only_whoever_has_seen_the_newest_version_writes(bench: Whole) -> None:
    assert bench.ask(ReadShard(1)) == ShardRead(1, 0, None)
    assert bench.ask(WriteShard(2, 0, SHARD)) == ShardWritten(2, 1)
    assert bench.ask(WriteShard(3, 0, LATER)) == WriteRefused(3)
    assert bench.ask(WriteShard(4, 1, LATER)) == ShardWritten(4, 2)
    assert bench.ask(ReadShard(5)) == ShardRead(5, 2, LATER)
    assert bench.written == [(1, SHARD), (2, LATER)]
    assert bench.stored == LATER


def test_what_was_written_outlives_whoever_led_the_group(bench: Whole) -> None:
    assert bench.ask(WriteShard(1, 0, SHARD)) == ShardWritten(1, 1)
    bench.world.crash(bench.world.leaders(1)[0])
    while type(answer := bench.ask(ReadShard(2))) is StoreSilent:
        bench.run(0.2)
    assert answer == ShardRead(2, 1, SHARD)


def test_nobody_knows_what_became_of_a_write_without_a_majority(bench: Whole) -> None:
    leader = bench.world.leaders(1)[0]
    others = [node for node in (1, 2, 3) if node != leader]
    assert bench.ask(ReadShard(1)) == ShardRead(1, 0, None)
    bench.world.network.cut([(leader, other) for other in others])
    assert bench.ask(WriteShard(2, 0, SHARD)) == StoreSilent(2)


def test_operators_elect_through_the_group(bench: Whole) -> None:
    stored = bench.elect()
    assert stored.leader is not None
    assert bench.world.leaders(0) == [stored.leader.node]


@pytest.mark.behaviour("OX-3")
def test_write_that_was_done_is_never_refused_though_others_have_written_since(bench: Whole) -> None:
    unsure = []
    for version in range(0, 40, 2):
        contents = [Shard(version + more, Status.ELECTION, (Member(1, 1),)) for more in range(2)]
        bench.heard.clear()
        for more, content in enumerate(
            contents
        ):  # The second one knows of the first one as soon as it is done.
            bench.store.ask(101 + more, 0, WriteShard(more, version + more, content), bench.heard.append)
        bench.until(lambda: len(bench.heard) == 2)
        done = [content for _, content in bench.written]
        for answer in bench.heard:
            assert type(answer) is not WriteRefused or contents[answer.token] not in done
            unsure += [answer] if type(answer) is StoreSilent and contents[answer.token] in done else []
        while len(bench.written) < version + 2:  # The second one was too early: once more.
            bench.ask(WriteShard(9, len(bench.written), contents[1]))
    assert unsure, "it never came to that"
