"""A cluster that grows and shrinks while it is written to: three nodes at first, others that nobody was told of."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from quorate.bench.cluster_load import Ledger
from quorate.bench.cluster_processes import Cluster, NodeProcess, free_ports
from quorate.core.entry import Member, Partition
from quorate.machine.metadata import METADATA, Command, CreateTopic, Topic, command_batch
from quorate.node.client import Client, NotInTime, Unreachable
from quorate.node.requests import ReplicaStatus, Status
from tests.cluster.support import QUICK_RAFT

FIRST = (1, 2, 3)
STATUS_TIMEOUT_S = 1.0


class GrowingCluster(Cluster):
    """Nodes 1, 2 and 3 are the first voters of the metadata group, and serve Kafka clients, too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, partitions=0, metadata_voters=3, raft=QUICK_RAFT)
        self._directory = directory
        for node in self.nodes.values():
            node.command = (sys.executable, "-m", "quorate.kafka")

    @property
    def bootstrap(self) -> str:
        return ",".join(str(node.address) for node in self.nodes.values() if node.process is not None)

    def join(self, node: int, client: Client, *, contacts: Sequence[int] = FIRST) -> NodeProcess:
        """One more node, that knows some of the others, and that they do not know yet."""
        (port,) = free_ports(1)
        config = {
            "cluster": self.name,
            "node": node,
            "directory": f"n{node}",
            "listen": f"127.0.0.1:{port}",
            "peers": {str(peer): str(self.nodes[peer].address) for peer in sorted({*FIRST, *contacts})},
            "voters": FIRST,
            "raft": QUICK_RAFT,
        }
        made = self.nodes[node] = NodeProcess(self._directory, node, port, config)
        made.command = (sys.executable, "-m", "quorate.kafka")
        made.format()
        made.start()
        client.know(node, made.address)
        return made

    async def topic(
        self,
        client: Client,
        name: str,
        nodes: Iterable[int],
        *,
        partitions: int = 1,
        replication: str = "raft",
        config: dict[str, str] | None = None,
    ) -> Topic:
        (asked, *_) = [node for node, process in self.nodes.items() if process.process is not None]
        lives = {info.node: info.incarnation for info in (await client.image(asked, ())).nodes}
        ensemble = tuple(Member(node, lives[node]) for node in nodes)
        topic = Topic(name, os.urandom(16), replication, (ensemble,) * partitions, config=config or {})
        await self.settle(client, CreateTopic(topic))
        for partition in topic.partitions():
            await self.leader(client, partition)
        return topic

    async def settle(self, client: Client, command: Command) -> None:
        """Every command can be repeated: what is unknown is tried again."""

        async def settled() -> bool | None:
            return await client.propose(METADATA, [command_batch(command)]) is not None

        await self.until(settled, f"{command} to be settled")

    async def hand_over(self, client: Client, partition: Partition, to: int) -> None:
        """Ordered until it is so: an heir that gets no processor for an election time-out does not take over."""

        async def done() -> bool | None:
            try:
                await client.transfer(partition, to)
            except NotInTime:
                return None
            return True

        await self.until(done, f"node {to} to lead {partition.hex()}")

    # --- waiting ---

    async def answers(self, client: Client, *, but: Sequence[int] = ()) -> dict[int, Status]:
        """Of the nodes that run and are not paused. `but` are not asked: who is paused is waited for."""
        found = {}
        for node, process in self.nodes.items():
            if process.process is not None and node not in but:
                try:
                    found[node] = await asyncio.wait_for(client.status(node), STATUS_TIMEOUT_S)
                except (Unreachable, TimeoutError):
                    continue
        return found

    async def until_registered(self, client: Client) -> None:
        async def all_known() -> bool | None:
            found = await self.answers(client)
            running = [node for node, process in self.nodes.items() if process.process is not None]
            known = [status.registered for status in found.values()]
            return (
                len(found) == len(running) and all(set(each) >= set(self.nodes) for each in known)
            ) or None

        await self.until(all_known, "every node to be registered")

    async def leader(self, client: Client, partition: Partition, *, among: Iterable[int] = ()) -> int:
        """Who leads, of these or of all, as it says itself and its followers agree."""

        async def led() -> int | None:
            held = held_by(await self.answers(client), partition)
            leaders = [node for node, replica in held.items() if replica.role == "leader"]
            wanted = tuple(among) or tuple(self.nodes)
            return leaders[0] if len(leaders) == 1 and leaders[0] in wanted else None

        return await self.until(led, f"a leader among {tuple(among)}")

    async def until_on(self, client: Client, partition: Partition, nodes: Iterable[int]) -> None:
        """These count, and no other node that answers holds anything of it."""
        wanted = set(nodes)

        async def so() -> bool | None:
            answers = await self.answers(client)
            held = held_by(answers, partition)
            members = {replica.me for replica in held.values()}
            at_rest = all(
                replica.membership.wanted is None
                and {member.node for member in replica.membership.ensemble} == wanted
                and members <= set(replica.membership.ensemble)
                for replica in held.values()
            )
            return (set(held) == wanted & set(answers) and len(held) > len(wanted) // 2 and at_rest) or None

        await self.until(so, f"{sorted(wanted)} to copy {partition.hex()}")

    async def until_noted(self, client: Client, topic: Topic) -> None:
        """No change of it is open, as the nodes that run know."""

        async def so() -> bool | None:
            running = [node for node, process in self.nodes.items() if process.process is not None]
            images = [await client.image(node, (topic.name,)) for node in running]
            return all(not image.topics[0].changes for image in images) or None

        await self.until(so, f"the changes of {topic.name} to be noted as reached")

    async def until_voters(self, client: Client, nodes: Iterable[int]) -> None:
        """These vote in the metadata group, as its leader says, and everybody else follows."""
        wanted = set(nodes)

        async def so() -> bool | None:
            for replica in held_by(await self.answers(client), METADATA).values():
                membership = replica.membership
                if replica.role == "leader" and membership.wanted is None:
                    voters = {member.node for member in membership.ensemble}
                    learners = {member.node for member in membership.learners}
                    return (voters == wanted and voters | learners == set(self.nodes)) or None
            return None

        await self.until(so, f"{sorted(wanted)} to vote in the metadata group")


def held_by(statuses: dict[int, Status], partition: Partition) -> dict[int, ReplicaStatus]:
    return {
        node: replica
        for node, status in statuses.items()
        for replica in status.replicas
        if replica.partition == partition
    }


async def expect_all_on(ledger: Ledger, nodes: Iterable[int]) -> None:
    for node in nodes:
        found = await ledger.compare(node)
        assert found.lost == ()
        assert found.foreign == ()
        assert found.acknowledged_count > 0
