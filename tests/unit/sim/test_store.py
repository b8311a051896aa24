"""The store of fast worlds: compare-and-set, and what silence leaves unknown."""

from __future__ import annotations

from typing import Any

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
from quorate.sim.store import MemoryStore
from quorate.sim.world import World
from tests.unit.sim.operator_bench import Bench

SHARD = Shard(0, Status.ELECTION, (Member(1, 1),))
LATER = Shard(1, Status.ELECTION, (Member(1, 1),))


def made() -> tuple[World, MemoryStore, list[Any]]:
    bench = Bench(watched=False)
    assert isinstance(bench.store, MemoryStore)
    bench.store.on_written = lambda shard, version, content: None
    return bench.world, bench.store, []


def test_only_whoever_has_seen_the_newest_version_writes() -> None:
    world, store, heard = made()
    for request in (ReadShard(1), WriteShard(2, 0, SHARD), WriteShard(3, 0, LATER), WriteShard(4, 1, LATER)):
        store.ask(101, 0, request, heard.append)
        world.run(world.now + 1.0)
    assert heard == [ShardRead(1, 0, None), ShardWritten(2, 1), WriteRefused(3), ShardWritten(4, 2)]
    assert store.newest(0) == LATER
    assert store.newest(1) is None


def test_silent_store_answers_nothing_true_and_does_some_writes_anyway() -> None:
    world, store, heard = made()
    store.fall_silent()
    for token in range(60):
        store.ask(101, token, WriteShard(token, 0, SHARD), heard.append)
    world.run(world.now + 1.0)
    done = [token for token in range(60) if store.newest(token) is not None]
    assert {type(event) for event in heard} == {StoreSilent}
    assert 0 < len(heard) < 60, "sometimes not even that is said"
    assert 0 < len(done) < 60


def test_slow_store_takes_its_time_and_recovers() -> None:
    world, store, heard = made()
    store.slow_down(1_000.0)
    store.ask(101, 0, ReadShard(1), heard.append)
    world.run(world.now + 0.5)
    assert not heard
    store.recover()
    store.ask(101, 0, ReadShard(2), heard.append)
    world.run(world.now + 0.5)
    assert heard == [ShardRead(2, 0, None)]
