"""Which nodes copy which partition of a new topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorate.machine.metadata import Metadata


def place(
    image: Metadata, partitions_count: int, replicas_count: int, *, heard: Collection[int]
) -> list[list[int]]:
    """Ensembles that even out how many replicas each node has; the first of each, how many it may lead.

    Nodes that are not among those `heard` of lately get copies only where there are no others left. Among nodes
    with the same load the one with the smaller number comes first, so the same image gives the same answer
    wherever the same nodes are heard.
    """
    assert 1 <= replicas_count <= len(image.nodes)
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for topic in image.topics.values():
        for ensemble in topic.ensembles:
            held.update(member.node for member in ensemble)
            led[ensemble[0].node] += 1
    ensembles = []
    for _ in range(partitions_count):
        chosen = sorted(image.nodes, key=lambda node: (node not in heard, held[node], node))[:replicas_count]
        chosen.sort(key=lambda node: (node not in heard, led[node], node))
        held.update(chosen)
        led[chosen[0]] += 1
        ensembles.append(chosen)
    return ensembles
