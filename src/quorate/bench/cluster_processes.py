"""Real nodes as real processes: made, started, killed, restarted and stopped by their process ids."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from quorate.core.entry import Partition, partition_of
from quorate.node.client import Client, OutcomeUnknown, Unreachable
from quorate.node.config import Address
from quorate.node.requests import ReplicaStatus, Status

TOPIC = bytes(range(16))
POLL_S = 0.02
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORTS = range(20_000, 32_000)
"""Below the ports that systems hand out by themselves, so that no outgoing connection sits on one."""


Found = TypeVar("Found")


class ClusterFailed(Exception):
    """The cluster did not do what it must; the text says what, and what the nodes said last."""


class NodeProcess:
    """One node: its directory, its configuration and, while it runs, its process."""

    def __init__(self, directory: Path, node: int, port: int, config: dict[str, Any]) -> None:
        self.node = node
        self.address = Address("127.0.0.1", port)
        self.directory = directory / f"n{node}"
        self.config = directory / f"n{node}.json"
        self.output = directory / f"n{node}.log"
        self.config.write_bytes(msgspec.json.encode(config))
        self.command: Sequence[str] = (sys.executable, "-m", "quorate.node")
        self.process: subprocess.Popen[bytes] | None = None

    def format(self, *, replaces: bool = False) -> None:
        arguments = [*self.command, "--config", str(self.config), "--format"]
        done = subprocess.run(
            arguments + ["--replaces"] * replaces, capture_output=True, check=False, timeout=START_TIMEOUT_S
        )
        if done.returncode:
            raise ClusterFailed(f"node {self.node}: {done.stderr.decode().strip()}")

    def start(self) -> None:
        assert self.process is None
        with self.output.open("ab") as output:
            self.process = self._spawn(output)

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, "--config", str(self.config), "--stop-with-stdin"],
            stdin=subprocess.PIPE,  # Held until the node has ended, or we have.
            stdout=output,
            stderr=output,
        )

    def kill(self) -> None:
        """As a power switch for the process: nothing in it runs any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As a person would; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait(STOP_TIMEOUT_S)
            raise ClusterFailed(
                f"node {self.node} did not stop in {STOP_TIMEOUT_S} s: {self.said()}"
            ) from None

    def wait(self, timeout_s: float) -> int:
        """The exit status of a process that ends by itself."""
        assert self.process is not None
        status = self.process.wait(timeout_s)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process = None
        return status

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def said(self) -> str:
        """Its last words."""
        if not self.output.exists():
            return "(nothing)"
        return self.output.read_text(encoding="utf-8", errors="replace")[-2000:].strip() or "(nothing)"


class Cluster:
    """Nodes 1 … n below one directory. Use it in a `with`: whatever runs is ended."""

    def __init__(
        self, directory: Path, *, nodes: int = 3, partitions: int = 100, raft: dict[str, Any] | None = None
    ) -> None:
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
                "topics": [topic],
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
    """Ports that nobody listens on now."""
    chance = Random()
    found: list[int] = []
    for _ in range(1000):
        port = chance.choice(PORTS)
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterFailed(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
