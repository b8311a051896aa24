"""What nodes count, as their pages of metrics say."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from urllib.request import urlopen

import msgspec

from quorate.bench.cluster_processes import Cluster, NodeProcess, free_ports

METRICS_TIMEOUT_S = 10.0

Told = TypeVar("Told", bound=Cluster)


def that_tells(cluster: Told) -> Told:
    """Its nodes have such a page once they are started; who joins later has none."""
    for process, port in zip(cluster.nodes.values(), free_ports(len(cluster.nodes)), strict=True):
        config = msgspec.json.decode(process.config.read_bytes()) | {"http": f"127.0.0.1:{port}"}
        process.config.write_bytes(msgspec.json.encode(config))
    return cluster


async def numbers_of(process: NodeProcess, *names: str) -> list[int]:
    http = msgspec.json.decode(process.config.read_bytes())["http"]
    page = await asyncio.to_thread(_page, f"http://{http}/metrics")
    told = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return [int(float(told[f"quorate_{name}"])) for name in names]


def _page(url: str) -> str:
    with urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
        return str(answer.read().decode())
