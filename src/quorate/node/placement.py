"""Which nodes copy which partition of a new topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorate.machine.metadata import Metadata, NodeInfo


def place(
    image: Metadata, partitions_count: int, replicas_count: int, *, heard: Collection[int]
) -> list[list[int]]:
    """Ensembles that lie in as many racks as they can, and even out how many replicas each node has; the first of
    each evens out how many it may lead.

    Nodes that are not among those `heard` of lately get copies only where there are no others left. Among nodes
    with the same load the one with the smaller number comes first, so the same image gives the same answer
    wherever the same nodes are heard.
    """
    assert 1 <= replicas_count <= len(image.nodes)
    racks = {node: rack_of(info) for node, info in image.nodes.items()}
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for topic in image.topics.values():
        for ensemble in topic.ensembles:
            held.update(member.node for member in ensemble)
            led[ensemble[0].node] += 1
    ensembles = []
    for _ in range(partitions_count):
        chosen = _chosen(racks, held, replicas_count, heard)
        chosen.sort(key=lambda node: (node not in heard, led[node], node))
        held.update(chosen)
        led[chosen[0]] += 1
        ensembles.append(chosen)
    return ensembles


def rack_of(info: NodeInfo) -> str:
    """A node that does not say where it is shares its fate with nobody."""
    return f"rack {info.rack}" if info.rack else f"node {info.node}"


def _chosen(
    racks: dict[int, str], held: Counter[int], replicas_count: int, heard: Collection[int]
) -> list[int]:
    """One after the other: who is in a rack that has the fewest of these copies, and of those, who holds least."""
    chosen: list[int] = []
    used: Counter[str] = Counter()
    for _ in range(replicas_count):
        node = min(
            (node for node in racks if node not in chosen),
            key=lambda node: (node not in heard, used[racks[node]], held[node], node),
        )
        chosen.append(node)
        used[racks[node]] += 1
    return chosen
