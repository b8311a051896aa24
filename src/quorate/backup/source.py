"""What is to be saved, as the cluster's metadata has it."""

from __future__ import annotations

from typing import NamedTuple

from quorate.machine.metadata import Topic


class Source(NamedTuple):
    name: str
    id: bytes
    cluster: str
    replication: str
    replicas: int
    partitions: int
    config: dict[str, str]


def source_of(topic: Topic, cluster: str) -> Source:
    replicas = max(len(topic.wanted(number)) for number in range(len(topic.ensembles)))
    return Source(
        topic.name,
        topic.id,
        cluster,
        topic.replication,
        replicas,
        len(topic.ensembles),
        dict(sorted(topic.config.items())),
    )
