"""Whom bad luck may hit: whose copies may be lost for good, and who is wanted as a leader."""

from __future__ import annotations

from quorate.sim.chance import stream
from quorate.sim.setup import Setup


def choose_unlucky(seed: int, setup: Setup) -> tuple[int, ...]:
    rng = stream(seed, "unlucky")
    unlucky: list[int] = []
    for node in rng.sample(setup.nodes, len(setup.nodes)):
        lost = {*unlucky, node}
        if all(2 * len(lost.intersection(voters)) < len(voters) for voters in setup.voters):
            unlucky.append(node)
    return tuple(sorted(unlucky))


def choose_priorities(
    seed: int, nodes: tuple[int, ...], unlucky: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Mostly everybody is wanted alike. Those who never stand are among the unlucky ones: the others are a
    majority, and one of them has everything that is settled."""
    rng = stream(seed, "priorities")
    if rng.random() < 0.6:
        return ()
    return tuple((node, rng.choice((0, 1, 2) if node in unlucky else (1, 1, 2, 3))) for node in nodes)
