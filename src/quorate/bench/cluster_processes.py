"""Real nodes as real processes: made, started, killed, restarted and stopped by their process ids."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from quorate.core.entry import Partition, partition_of
from quorate.node.child import ChildFailed, NodeChild
from quorate.node.client import Client, OutcomeUnknown, Unreachable
from quorate.node.config import Address
from quorate.node.ports import NoFreePorts, keep_row
from quorate.node.requests import ReplicaStatus, Status

TOPIC = bytes(range(16))
POLL_S = 0.02
START_TIMEOUT_S = 30.0

Found = TypeVar("Found")


class ClusterFailed(ChildFailed):
    """The cluster did not do what it must; the text says what, and what the nodes said last."""


class NodeProcess(NodeChild):
    """One node whose directory, configuration and output lie side by side below one directory."""

    def __init__(self, directory: Path, node: int, port: int, config: dict[str, Any]) -> None:
        super().__init__(
            node,
            Address("127.0.0.1", port),
            config=directory / f"n{node}.json",
            output=directory / f"n{node}.log",
            module="quorate.node",
        )
        self.directory = directory / f"n{node}"
        self.http = str(config.get("http", ""))
        self.config.write_bytes(msgspec.json.encode(config))

    def format(self, *, replaces: bool = False) -> None:
        arguments = [*self.command, "--config", str(self.config), "--format"]
        done = subprocess.run(
            arguments + ["--replaces"] * replaces, capture_output=True, check=False, timeout=START_TIMEOUT_S
        )
        if done.returncode:
            raise ClusterFailed(f"node {self.node}: {done.stderr.decode().strip()}")


class Cluster:
    """Nodes 1 … n below one directory. Use it in a `with`: whatever runs is ended."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        partitions: int = 100,
        metadata_voters: int = 0,
        raft: dict[str, Any] | None = None,
    ) -> None:
        """A topic of so many partitions is there from the start, and a metadata group of so many voters."""
        self.name = f"cluster-{os.getpid()}"
        numbers = range(1, nodes + 1)
        ports = dict(zip(numbers, free_ports(nodes), strict=True))
        topic = {"id": TOPIC.hex(), "partitions": partitions, "voters": list(numbers)}
        self.partitions: list[Partition] = [partition_of(TOPIC, number) for number in range(partitions)]
        self.nodes: dict[int, NodeProcess] = {}
        for node in numbers:
            config = {
                "cluster": self.name,
                "node": node,
                "directory": f"n{node}",
                "listen": f"127.0.0.1:{ports[node]}",
                "peers": {str(peer): f"127.0.0.1:{ports[peer]}" for peer in numbers if peer != node},
                "topics": [topic] if partitions else [],
                "voters": list(numbers[:metadata_voters]),
                "raft": raft or {},
            }
            self.nodes[node] = NodeProcess(directory, node, ports[node], config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.kill()

    def start(self) -> None:
        """Make every node's directory, and start it."""
        for node in self.nodes.values():
            node.format()
            node.start()

    def client(self) -> Client:
        return Client(self.name, {node.node: node.address for node in self.nodes.values()})

    async def leaders(self, client: Client) -> dict[Partition, int]:
        """Who leads what, once every partition has a leader that its followers know."""

        async def known() -> dict[Partition, int] | None:
            found = await self.statuses(client)
            leaders = {
                replica.partition: status.node
                for status in found
                for replica in status.replicas
                if replica.role == "leader"
            }
            agreed = all(
                leaders.get(replica.partition) == replica.leader
                for status in found
                for replica in status.replicas
            )
            return (
                {Partition(key): node for key, node in leaders.items()}
                if agreed and len(leaders) == len(self.partitions)
                else None
            )

        return await self.until(known, "a leader for every partition")

    async def converged(self, client: Client) -> None:
        """Every running node has settled the same, and nothing is left to settle."""

        async def same() -> bool | None:
            by_partition: dict[bytes, list[ReplicaStatus]] = {}
            for status in await self.statuses(client):
                for replica in status.replicas:
                    by_partition.setdefault(replica.partition, []).append(replica)
            return all(_agree(replicas) for replicas in by_partition.values()) or None

        await self.until(same, "every replica to have settled the same")

    async def statuses(self, client: Client) -> list[Status]:
        return [await client.status(node.node) for node in self.nodes.values() if node.process is not None]

    async def until(
        self, ask: Callable[[], Awaitable[Found | None]], what: str, timeout_s: float = START_TIMEOUT_S
    ) -> Found:
        """Ask again and again until there is an answer."""
        deadline = time.monotonic() + timeout_s
        why = ""
        while time.monotonic() < deadline:
            try:
                found = await ask()
            except (Unreachable, OutcomeUnknown) as error:
                found, why = None, f" ({error})"
            if found is not None:
                return found
            self._expect_running()
            await asyncio.sleep(POLL_S)
        said = "\n".join(f"node {node.node} said: {node.said()}" for node in self.nodes.values())
        raise ClusterFailed(f"waited {timeout_s} s for {what}{why}\n{said}")

    def _expect_running(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and not node.is_running:
                raise ClusterFailed(f"node {node.node} ended by itself, saying: {node.said()}")


def _agree(replicas: list[ReplicaStatus]) -> bool:
    first = replicas[0]
    return all(
        replica.head == first.head and replica.commit == first.head.offset and replica.digest == first.digest
        for replica in replicas
    )


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, and that are this process's until it ends."""
    try:
        return [keep_row(1) for _ in range(count)]
    except NoFreePorts as none:
        raise ClusterFailed(str(none)) from none
