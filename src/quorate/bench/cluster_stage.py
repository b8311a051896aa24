"""What every part of `quorate bench cluster` is given: the cluster, whom to measure, and how long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec

from quorate.bench.cluster_kafka import KafkaCluster
from quorate.bench.report import Claim, Figure, Say


class Plan(msgspec.Struct, frozen=True):
    repetitions: int
    seconds: float
    """Of each measurement."""
    idle_partitions: int
    idle_seconds: float
    kills: int
    log_bytes: int
    moved_bytes: int


FULL = Plan(
    3,
    seconds=1.5,
    idle_partitions=1000,
    idle_seconds=15.0,
    kills=50,
    log_bytes=10 << 30,
    moved_bytes=256 << 20,
)
QUICK = Plan(
    1, seconds=0.5, idle_partitions=100, idle_seconds=10.0, kills=3, log_bytes=256 << 20, moved_bytes=32 << 20
)


class Stage(NamedTuple):
    """One cluster, with a topic of one partition for each protocol, named after it."""

    runner: asyncio.Runner
    cluster: KafkaCluster
    place: Path
    """An empty directory on the disk that is measured."""
    protocols: tuple[str, ...]
    plan: Plan
    say: Say


class Found(NamedTuple):
    figures: list[Figure]
    claims: list[Claim]
    notes: tuple[str, ...] = ()
