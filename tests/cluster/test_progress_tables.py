"""`quorate table promote` and `demote` say what they wait for, and end at Ctrl-C with what to type next; it is so.

Each is held up by nodes that stand still, watched and interrupted; then they go on, and so does what was ordered.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorate.client import AsyncTableGroup, OutcomeUnknown, Unreachable, create_group
from quorate.core.entry import Partition, partition_of
from quorate.node.client import Client
from quorate.tables import CreateTable, Insert
from tests.cluster.growing import held_by
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import expect_no_traceback, run
from tests.cluster.table_support import COUNTERS, GROUP, TIMEOUT_S, paused
from tests.cluster.watched import Watched, advised

pytestmark = pytest.mark.cluster

BY_ORDER = {"automatic": False, "election_timeout_s": 8.0, "heartbeat_s": 0.2}
"""Nobody leads unless somebody says so, and whoever is held up waits for longer than a person types."""
MAY_STAND = "the order may be given already; it goes on by itself then; "


async def until_demoting(cluster: ProxiedCluster, leader: int) -> None:
    """The order is there: the leader takes no more writes, and says why."""
    address = str(cluster.nodes[leader].address)

    async def so() -> bool | None:
        async with AsyncTableGroup(address, GROUP, timeout_s=1.0) as hasty:
            with pytest.raises((OutcomeUnknown, Unreachable)) as refused:
                await hasty.execute(Insert("counters", (2, 0)))
        return "the leader is being demoted" in str(refused.value) or None

    await cluster.until(so, "the leader to be on its way down")


async def until_stands(cluster: ProxiedCluster, client: Client, partition: Partition, node: int) -> None:
    async def so() -> bool | None:
        answers = await cluster.answers(client, but=[each for each in cluster.nodes if each != node])
        return held_by(answers, partition)[node].role == "candidate" or None

    await cluster.until(so, f"node {node} to stand")


async def until_led_by(cluster: ProxiedCluster, client: Client, partition: Partition, wanted: int) -> None:
    """As both copies know; by 0: by nobody."""

    async def so() -> bool | None:
        held = held_by(await cluster.answers(client), partition)
        return (len(held) == 2 and {each.leader for each in held.values()} == {wanted}) or None

    await cluster.until(so, f"node {wanted} to lead")


@pytest.mark.proof
def test_orders_to_lead_or_not_say_what_they_wait_for_and_how_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with ProxiedCluster(tmp_path, confirm=BY_ORDER) as cluster, cluster.client() as client:
            cluster.start()
            await cluster.until_registered(client)
            # Of two copies each is needed. The third node is heard: one that hears nobody sends clients away.
            await asyncio.to_thread(
                create_group, cluster.bootstrap, GROUP, replication="confirm", replicas_count=2
            )
            person = Operator(cluster.bootstrap)
            async with (
                AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=TIMEOUT_S) as bank,
                AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=4 * TIMEOUT_S) as writer,
            ):
                (group,) = (await client.image(1, (GROUP,))).topics
                partition = partition_of(group.id, 0)
                leads, follows = (member.node for member in group.ensembles[0])
                await asyncio.to_thread(person.brings_about, f"table promote {GROUP} --node {leads}")
                await bank.execute(CreateTable(COUNTERS), Insert("counters", (0, 0)))

                async with paused(cluster, follows):
                    writing = asyncio.create_task(writer.execute(Insert("counters", (1, 0))))
                    demoting = Watched(f"table demote {GROUP}", cluster.bootstrap)
                    what = f"{GROUP}: whoever leads is to settle everything, and to lead no more"
                    await demoting.until_says(f"{what}; so far node {leads} leads")
                    await until_demoting(cluster, leads)
                    said = await demoting.interrupted()
                    assert demoting.said[0] == what
                    assert said == f"{MAY_STAND}`quorate table describe {GROUP}` says who leads"
                    assert (await bank.describe(node=leads)).leader == leads, "what waits is settled first"
                    assert not writing.done()
                await until_led_by(cluster, client, partition, 0)

                line = f"table promote {GROUP} --node {leads}"
                async with paused(cluster, follows):
                    promoting = Watched(line, cluster.bootstrap)
                    what = f"{GROUP}: node {leads} is to lead"
                    await promoting.until_says(f"{what}; so far nobody leads")
                    await until_stands(cluster, client, partition, leads)
                    said = await promoting.interrupted()
                    assert promoting.said[0] == what
                    assert said.startswith(MAY_STAND)
                    assert advised(said) == [line], said
                    again = Watched(line, cluster.bootstrap)
                    await again.until_says(f"{what}; so far nobody leads")
                assert await again.ends() == 0, again.said
                await until_led_by(cluster, client, partition, leads)
                assert (await writing).settled
            expect_no_traceback(*cluster.nodes.values())

    run(main())
