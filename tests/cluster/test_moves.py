"""Copies of all four protocols move while they are written to, and whoever has to do with it is killed meanwhile.

`quorate cluster drain|decommission|rebalance|stop-moves` and `quorate topic alter --replicas|elect|cancel`, as a
person types them. Whatever was acknowledged is there once in the end, on every copy, byte for byte.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.machine.cluster import drained_nodes
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from tests.cluster.counted import that_tells
from tests.cluster.fault_support import Load, go_on, kill_amid_writes, transferred_in, written_to
from tests.cluster.moving_stages import STAGES, is_seen
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import TRIES_MAX, run, until_caught
from tests.cluster.test_faults import killed, leading

pytestmark = pytest.mark.cluster

VALUE_BYTES = 6_000
"""So that no log is moved by one message: that one would not be held up."""
FEW_COUNT, FEW_VALUE_BYTES = 50, 60_000
"""The same with fewer records: the last MiB of a log goes as one message (`message_bytes_max`), at any rate."""
DONE_BEFORE = ("has no copy of anything, and no vote", "has the disk that it had")
"""What `quorate cluster replace` says when it was done before: of another node, and of a node with a new disk."""
SLOW_S = 0.06
"""What one of the first nodes says takes so long to another: each step of a change is then seen."""
HOLD_BACK = "cluster alter --config quorate.moving.rate=0"
RELEASE = "cluster alter --config quorate.moving.rate=off"


class Moving:
    """A cluster of four, every topic on three of them, and a person."""

    def __init__(self, cluster: ProxiedCluster, client: Client, loads: Sequence[Load]) -> None:
        self.cluster, self.client, self.loads = cluster, client, loads
        self.person = Operator(cluster.bootstrap)
        self._released: asyncio.Task[object] | None = None

    async def types(self, line: str) -> str:
        return await asyncio.to_thread(self.person.brings_about, line)

    async def types_again(self, line: str) -> None:
        """What was done meanwhile by itself is said to be done."""
        deadline = monotonic() + START_TIMEOUT_S
        while (done := await asyncio.to_thread(self.person.types, line)).returncode == 1:
            assert monotonic() < deadline, done.stderr
        was_done = any(said in done.stderr for said in DONE_BEFORE)
        assert done.returncode == 0 or was_done, f"{line}: {done.stderr}"

    def begins(self, line: str) -> subprocess.Popen[bytes]:
        """A command that is not waited for."""
        command = [sys.executable, "-m", "quorate", *line.split(), "--bootstrap", self.cluster.bootstrap]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def shows(self, line: str) -> Any:
        return await asyncio.to_thread(self.person.shows, line)

    async def held(self) -> dict[int, int]:
        """How many partitions each node is to hold."""
        image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
        counts = dict.fromkeys(self.cluster.nodes, 0)
        for topic in image.topics:
            for number in range(len(topic.ensembles)):
                for member in topic.wanted(number):
                    counts[member.node] += 1
        return counts

    async def drained(self) -> list[int]:
        """Nodes that are to have no copies."""
        image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
        return drained_nodes(image.cluster.config, image.lives)

    async def changing(self) -> set[str]:
        """Topics with a partition that is not yet where it is to be."""
        image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
        return {topic.name for topic in image.topics if topic.changes}

    async def leader_of(self, topic: str) -> int:
        """Of its first partition."""
        image = await self.client.image(next(iter(self.cluster.nodes)), (topic,), current=True)
        return await self.cluster.leader(self.client, image.topics[0].partitions()[0])

    async def before(self, stage: str, target: int) -> None:
        """Nothing moves that is ordered now; and where it is to go no further, who is to have copies hears no other
        node. (Whoever orders is answered.)"""
        await self.holds_back(True)
        if stage == STAGES[0]:
            self.cluster.cut_off(target, of=False)

    async def begins_all(self, order: Order, stage: str, more: str = "") -> list[subprocess.Popen[bytes]]:
        """The same, and it is ordered. Who gets a vote first hears of that, and then of nothing."""
        if stage != STAGES[0] or not order.voters:
            await self.before(stage, order.target)
            return [self.begins(line + more) for line in order.lines]
        await self.holds_back(True)
        for node in (1, 2, 3):
            self.cluster.slow_down(node, SLOW_S)
        begun = [self.begins(line + more) for line in order.lines]
        await self.cluster.until_voters(self.client, order.voters)
        self.cluster.cut_off(order.target, of=False)
        return begun

    async def is_seen(self, operator: int, stage: str, target: int = 0) -> bool:
        """What was ordered while nothing moves, as it is so far. Links are slow then where that helps to see it, or
        the target, if one is named, has not heard of it: until somebody is killed."""
        if stage != STAGES[0]:
            assert await is_seen(self.cluster, self.client, operator, STAGES[1])
            await self.go_on()  # And it stays so.
        is_held = stage == STAGES[1] or (stage == STAGES[0] and target)
        if not is_held:
            for node in (1, 2, 3):
                self.cluster.slow_down(node, SLOW_S)
        if stage == STAGES[2]:
            # Copies do not wait for its end, which it may not reach: the node that it asks may be killed.
            release = asyncio.to_thread(self.person.types, RELEASE)
            self._released = asyncio.create_task(release)
        return await is_seen(self.cluster, self.client, operator, stage)

    async def kill(self, node: int) -> None:
        await kill_amid_writes(self.cluster.nodes[node], self.loads)

    async def killed(self, node: int) -> None:
        await self.kill(node)
        self.cluster.heal()
        await self.go_on()
        self.cluster.nodes[node].start()

    async def lets_go(self) -> None:
        """Everything moves again, whatever became of it."""
        self.cluster.heal()
        if self._released is not None:
            await self._released
            self._released = None
        await self.holds_back(False)

    async def until_still(self) -> None:
        async def still() -> bool | None:
            return not await self.changing() or None

        await self.cluster.until(still, "all copies to be where they are to be")

    async def holds_back(self, nothing_moves: bool) -> None:
        await self.types(HOLD_BACK if nothing_moves else RELEASE)

    async def go_on(self) -> None:
        await go_on(self.loads)

    async def struck(self, node: int) -> None:
        """Killed, and started at once: what it holds may be needed for a majority."""
        await self.kill(node)
        self.cluster.heal()
        self.cluster.nodes[node].start()
        await self.go_on()
        await self.cluster.until_registered(self.client)


@asynccontextmanager
async def four_nodes(directory: Path) -> AsyncIterator[Moving]:
    cluster = that_tells(ProxiedCluster(directory, later=(4,)))
    async with (
        written_to(directory, cluster, value_bytes=VALUE_BYTES) as (_, writers),
        cluster.client() as client,
    ):
        cluster.join(4, client)
        await cluster.until_registered(client)
        for _ in range(2):
            await go_on(writers)
        yield Moving(cluster, client, writers)
        await Moving(cluster, client, writers).types("cluster alter --reset quorate.moving.rate")


@asynccontextmanager
async def four_nodes_with_tables(directory: Path) -> AsyncIterator[Moving]:
    """The same with groups of tables, whose logs are as long."""
    async with (
        transferred_in(directory, ProxiedCluster(directory, later=(4,))) as (cluster, banks),
        cluster.client() as client,
    ):
        await asyncio.gather(*(bank.fill(FEW_COUNT, FEW_VALUE_BYTES) for bank in banks))
        cluster.join(4, client)
        await cluster.until_registered(client)
        yield Moving(cluster, client, banks)
        await Moving(cluster, client, banks).types("cluster alter --reset quorate.moving.rate")


def test_copies_move_though_the_operators_node_is_killed(tmp_path: Path) -> None:
    """A sample of what follows: all four protocols, one kill while copies are made."""

    async def main() -> None:
        async with (
            written_to(tmp_path, value_bytes=FEW_VALUE_BYTES, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            cluster.join(4, client)
            await cluster.until_registered(client)
            moving = Moving(cluster, client, writers)
            await moving.holds_back(True)
            await moving.types("cluster replace 3 --with 4 --no-wait")
            assert await moving.changing() == set(REPLICATIONS)
            await moving.struck(await leading(cluster, client))
            await moving.holds_back(False)
            await moving.until_still()
            assert await moving.held() == {1: 8, 2: 8, 3: 0, 4: 8}

    run(main())


@pytest.mark.proof
def test_a_node_is_added_and_gets_its_share_and_is_drained_and_decommissioned(tmp_path: Path) -> None:
    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            plan = await moving.shows("cluster rebalance --dry-run")
            assert plan["copies_moved"] == 6, "of eight partitions with three copies each"
            assert await moving.held() == {1: 8, 2: 8, 3: 8, 4: 0}
            await moving.types("cluster rebalance --throttle 200MiB/s")
            assert await moving.held() == dict.fromkeys((1, 2, 3, 4), 6)
            await moving.go_on()
            assert (await moving.types("cluster rebalance")).startswith("all is even already")
            status = await moving.types("cluster status")
            assert "copies are made with at most 200 MiB/s from each node" in status
            assert (await moving.types("cluster drain 2")).startswith("node 2 has no copies")
            assert (await moving.held())[2] == 0
            assert (await moving.types("cluster drain 2")) == "node 2 has no copies\n"
            await moving.types("topic create elsewhere --partitions 4 --replicas 3")
            assert (await moving.held())[2] == 0
            await moving.types("topic delete elsewhere")
            await moving.go_on()
            done = await moving.types("cluster decommission 2")
            assert done == "node 2 has no copies and no vote, and is forgotten\n"
            view = await moving.shows("cluster status")
            assert [node["node"] for node in view["nodes"]] == [1, 3, 4]
            assert view["metadata"]["voters"] == [1, 3, 4]
            assert "quorate.node.2.drained" not in view["config"]
            refused = await asyncio.to_thread(moving.person.is_refused, "cluster drain 3")
            assert "no other node that answers may have one; add a node" in refused
            gone = moving.cluster.nodes.pop(2)
            gone.stop()

    run(main())


class Order(NamedTuple):
    """What a person wants of a cluster whose node 4 has no copies, and how all becomes as it was."""

    lines: Sequence[str]
    undone: Sequence[str]
    source: int | None = 3
    """Who gives its copies away; None: nobody does, and whoever leads has what is copied."""
    target: int = 4
    """0: any of the others."""
    copies_count: int = 24
    """Of eight partitions, when it is done."""
    voters: Sequence[int] = ()
    """Who votes by the time that the first copy is ordered, if that changes."""


def _of_each(line: str) -> tuple[str, ...]:
    return tuple(line.format(kind=kind) for kind in REPLICATIONS)


EMPTIED = ("cluster drain 4", "cluster drain 4 --undo")
ORDERS = {
    "drain": Order(["cluster drain 3"], ["cluster drain 3 --undo", *EMPTIED]),
    "rebalance": Order(["cluster rebalance"], EMPTIED),
    "more copies": Order(
        _of_each("topic alter {kind} --replicas 4"),
        _of_each("topic alter {kind} --replicas 3"),
        source=None,
        copies_count=32,
    ),
    "replace": Order(["cluster replace 3 --with 4"], ["cluster replace 4 --with 3"], voters=(1, 2, 4)),
    "a copy more": Order(
        _of_each("topic add {kind} --node 4"),
        _of_each("topic remove {kind} --node 4"),
        source=None,
        copies_count=32,
    ),
    "a copy elsewhere": Order(
        _of_each("topic replace {kind} --node 3 --with 4"), _of_each("topic replace {kind} --node 4 --with 3")
    ),
}
VICTIMS = ("operator", "source", "target")


@pytest.mark.proof
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ORDERS)
def test_whoever_is_killed_it_goes_on(tmp_path: Path, name: str, stage: str) -> None:
    """Who leads the metadata group, a node that gives copies away or has them, and the one that gets them."""
    at = list(ORDERS).index(name)

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            await strike_each(moving, name, ORDERS[name], stage, [*REPLICATIONS, *REPLICATIONS][at % 4 :])

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_while_accounts_move_transfers_are_whole_and_done_once(
    tmp_path: Path, stage: str
) -> None:
    """Groups of tables of all four protocols, each of one partition."""
    name = "drain"

    async def main() -> None:
        async with four_nodes_with_tables(tmp_path) as moving:
            order = ORDERS[name]._replace(copies_count=12)
            await strike_each(moving, name, order, stage, REPLICATIONS[1:])

    run(main())


async def strike_each(moving: Moving, name: str, order: Order, stage: str, kinds: Sequence[str]) -> None:
    for victim, kind in zip(VICTIMS, kinds, strict=False):
        await until_caught(
            f"{name}: {victim} was never killed {stage} ({kind})",
            partial(caught_moving, moving, order, victim, stage, kind),
        )
        await moving.go_on()


async def caught_moving(moving: Moving, order: Order, victim: str, stage: str, kind: str) -> bool:
    """Whether one was killed when all of it was so far; in any case it comes to its end, and is undone."""
    operator = await leading(moving.cluster, moving.client)
    source = order.source or await moving.leader_of(kind)
    hit = {"operator": operator, "source": source, "target": order.target}[victim]
    for process in await moving.begins_all(order, stage, " --no-wait"):
        await asyncio.to_thread(process.wait)  # Nodes talk through proxies of this loop.
    is_caught = await moving.is_seen(operator, stage, order.target)
    if is_caught:
        await moving.killed(hit)
    await moving.cluster.until_registered(moving.client)
    await moving.lets_go()
    for line in order.lines:
        await moving.types_again(line)
    await moving.until_still()
    assert sum((await moving.held()).values()) == order.copies_count
    for line in order.undone:
        await moving.types(line)
        assert await moving.changing() == set()
    return is_caught


@pytest.mark.proof
@pytest.mark.parametrize("name", ORDERS)
def test_a_command_that_is_killed_goes_on_when_it_is_typed_again(tmp_path: Path, name: str) -> None:
    """As it orders, while it waits, and as it is about to be done."""
    order = ORDERS[name]

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for stage in STAGES:
                await until_caught(
                    f"{name}: never killed {stage}", partial(caught_and_undone, moving, order, stage)
                )

    run(main())


async def caught_and_undone(moving: Moving, order: Order, stage: str) -> bool:
    is_caught = await caught_commands(moving, order, stage)
    assert sum((await moving.held()).values()) == order.copies_count
    await moving.go_on()
    for line in order.undone:
        await moving.types(line)
    return is_caught


async def caught_commands(moving: Moving, order: Order, stage: str) -> bool:
    """Whether they were killed when it was so far; what they were to do is done in any case, by the same again."""
    operator = await leading(moving.cluster, moving.client)
    typed = await moving.begins_all(order, stage)
    is_caught = await moving.is_seen(operator, stage, order.target)
    is_caught = is_caught and any(process.poll() is None for process in typed)
    for process in typed:
        process.kill()
        process.wait()
    await moving.lets_go()
    for line in order.lines:
        await moving.types_again(line)
    assert await moving.changing() == set()
    return is_caught


@pytest.mark.proof
def test_a_decommission_that_is_killed_goes_on_when_it_is_typed_again(tmp_path: Path) -> None:
    """A node with its share of copies goes, and one that is new comes in its place, for each stage."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            stages = list(STAGES)
            for leaving in range(4, 4 + len(STAGES) * TRIES_MAX):
                await moving.types("cluster rebalance")
                assert (await moving.held())[leaving] == 6
                leaves = Order([f"cluster decommission {leaving}"], (), target=0)
                if await caught_commands(moving, leaves, stages[0]):
                    stages.pop(0)
                await replaced_by_another(moving, leaving, is_last=not stages)
                if not stages:
                    break
            assert stages == []

    run(main())


async def replaced_by_another(moving: Moving, leaving: int, *, is_last: bool) -> None:
    gone = moving.cluster.nodes.pop(leaving)
    gone.kill()  # It may have ended: who was killed and is forgotten by the time it is started is not let in.
    await moving.cluster.until_registered(moving.client)
    assert sum((await moving.held()).values()) == 24
    await moving.go_on()
    if not is_last:
        moving.cluster.join(leaving + 1, moving.client)
        await moving.cluster.until_registered(moving.client)


@pytest.mark.proof
@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_while_a_node_is_decommissioned_it_goes_on(tmp_path: Path, stage: str) -> None:
    """A node with its share of copies goes, and one that is new comes in its place, three times."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            victims = list(VICTIMS)
            for leaving in range(4, 4 + len(VICTIMS) * TRIES_MAX):
                await moving.types("cluster rebalance")
                assert (await moving.held())[leaving] == 6
                if await caught_leaving(moving, leaving, victims[0], stage):
                    victims.pop(0)
                await replaced_by_another(moving, leaving, is_last=not victims)
                if not victims:
                    break
            assert victims == []

    run(main())


async def caught_leaving(moving: Moving, leaving: int, victim: str, stage: str) -> bool:
    leader = await leading(moving.cluster, moving.client)
    target = next(node for node in (1, 2, 3) if node != leader)
    hit = {"operator": leader, "source": leaving, "target": target}[victim]
    await moving.holds_back(True)
    leaves = asyncio.create_task(moving.types(f"cluster decommission {leaving}"))
    is_caught = await moving.is_seen(leader, stage)
    if is_caught:
        await moving.killed(hit)
    await moving.lets_go()
    await leaves
    return is_caught


@pytest.mark.proof
def test_what_moves_can_be_called_off_and_slowed_down_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            before = await moving.held()
            await moving.types("cluster drain 1 --no-wait --throttle 0")
            await moving.go_on()
            assert await moving.changing() == set(REPLICATIONS)
            assert await moving.types("topic cancel raft") == "called off: 2 partitions\n"
            assert await moving.changing() == set(REPLICATIONS) - {"raft"}
            await killed(moving.cluster, moving.loads, await leading(moving.cluster, moving.client))
            await moving.cluster.until_registered(moving.client)
            assert await moving.drained() == [1], "what is left of it goes on"
            assert await moving.types("cluster stop-moves") == (
                "called off: 6 partitions\nnode 1 may be given copies again\n"
            )
            assert await moving.drained() == []
            assert await moving.changing() == set()
            assert await moving.types("cluster stop-moves") == "nothing is to be called off\n"
            assert await moving.held() == before
            await moving.go_on()

    run(main())


@pytest.mark.proof
def test_topics_get_more_copies_and_fewer_and_their_preferred_leaders_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for kind in REPLICATIONS:
                said = await moving.types(f"topic alter {kind} --replicas 4")
                assert said == f"topic {kind}: each partition has 4 copies\n"
            await killed(moving.cluster, moving.loads, 4)
            await moving.cluster.until_registered(moving.client)
            for kind in REPLICATIONS:
                await moving.types(f"topic alter {kind} --replicas 3")
            assert sum((await moving.held()).values()) == 24
            refused = await asyncio.to_thread(moving.person.is_refused, "topic alter raft --replicas 5")
            assert "5 copies of each partition; 4 nodes answer and may have copies" in refused
            for kind in ("raft", "isr", "confirm"):
                await moving.types(f"topic elect {kind}")
                image = await moving.client.image(1, (kind,), current=True)
                view = await moving.shows(f"topic describe {kind}")
                preferred = [ensemble[0].node for ensemble in image.topics[0].ensembles]
                assert [partition["leader"] for partition in view["partitions"]] == preferred
            assert "an operator chooses" in await asyncio.to_thread(
                moving.person.is_refused, "topic elect coordinated"
            )

    run(main())
