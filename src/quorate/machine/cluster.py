"""What holds for the whole cluster: its feature level, its settings, and where groups and transactions live.

A node's code knows all that is written up to some feature level, and the node registers with it. What is written
goes by the cluster's level, which everybody knows: a command that came later is not proposed before somebody has
raised it, and it is raised only where every registered node knows the new one. It never falls, and a node whose
code is older is not registered any more: it would take for nothing what the others act on.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import msgspec

FIRST_LEVEL = 1
LEVELS: dict[int, str] = {
    FIRST_LEVEL: "nodes, topics of raft, producer ids, changes of who copies what",
    2: (
        "topics of coordinated, isr and confirm, tables, altered topics, added partitions, retention, users, "
        "settings of the cluster, homes"
    ),
    3: "topics whose copies come to agree in another way, key compaction, staged transactions of tables",
}
KNOWN_LEVEL = max(LEVELS)
"""What this code knows."""

STAGING_LEVEL = 3
"""Of the operations of tables that stage: entries of a group's own log, and no commands."""

COMMAND_LEVELS: dict[str, int] = {
    "register node": 1,
    "create topic": 1,
    "delete topic": 1,
    "take producer ids": 1,
    "change ensemble": 1,
    "note reached": 1,
    "forget node": 1,
    "raise level": 1,
    "alter topic": 2,
    "add partitions": 2,
    "let start": 2,
    "write shard": 2,
    "put user": 2,
    "remove user": 2,
    "alter cluster": 2,
    "set home": 2,
    "turn topic": 3,
    "note barrier": 3,
    "let compact": 3,
    "note ready": 3,
}
"""The level that each command came with, by its tag. Only where everybody knows a level is it raised to that, so
that the command itself needs none."""

SETTINGS_COUNT_MAX = 1000


MOVING_RATE = "quorate.moving.rate"
"""The setting that says how many bytes a node may send in a second to copies that do not count yet."""


class AlterCluster(msgspec.Struct, frozen=True, tag="alter cluster"):
    """Let these settings of the cluster be what is said; None: as if nobody had given it."""

    settings: dict[str, str | None]


class RaiseLevel(msgspec.Struct, frozen=True, tag="raise level"):
    """Let everybody go by that feature level; done if it is higher, and every registered node knows it."""

    level: int


class SetHome(msgspec.Struct, frozen=True, tag="set home"):
    """Let a topic that was made for it be where groups, or transactions, live; done if they have no home yet.

    Such a topic is neither deleted nor given more partitions: by their count it is known who lives where.
    """

    kind: str
    id: bytes


class Cluster(msgspec.Struct):
    level: int = FIRST_LEVEL
    config: dict[str, str] = {}
    homes: dict[str, bytes] = {}
    """Of groups and of transactions: the topic's id."""


def change_cluster(
    cluster: Cluster, command: AlterCluster | RaiseLevel | SetHome, *, known: int, homes: Mapping[bytes, str]
) -> bool:
    """Whether it changed anything. `known` is the newest level of all nodes, `homes` says which topics were made to
    be one, and of what."""
    if isinstance(command, RaiseLevel):
        if not cluster.level < command.level <= known:
            return False
        cluster.level = command.level
        return True
    if isinstance(command, SetHome):
        if command.kind in cluster.homes or homes.get(command.id) != command.kind:
            return False
        cluster.homes[command.kind] = command.id
        return True
    merged = {**cluster.config, **command.settings}
    config = {name: value for name, value in merged.items() if value is not None}
    if config == cluster.config or len(config) > SETTINGS_COUNT_MAX:
        return False
    cluster.config = config
    return True


def drained_setting(node: int) -> str:
    """What is set while a node is to have no copies: to the registration epoch of the directory that is meant."""
    return f"quorate.node.{node}.drained"


def drained_nodes(config: Mapping[str, str], lives: Mapping[int, int]) -> list[int]:
    """Nodes that are to have no copies. One that was made anew since is somebody else."""
    return [node for node, life in sorted(lives.items()) if config.get(drained_setting(node)) == str(life)]


def moving_rate(config: Mapping[str, str]) -> int:
    """In bytes a second; -1: as fast as it goes."""
    return int(config.get(MOVING_RATE, "-1"))


def home_number(name: str, partitions_count: int) -> int:
    """Which partition of its home a group or a transaction lives in."""
    return crc32(name.encode()) % partitions_count
