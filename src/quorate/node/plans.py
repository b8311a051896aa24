"""Where copies are to be instead: off a node, onto a new one, more of them or fewer. Nothing here orders anything.

A plan is made from what is wanted, not from what is: so whoever was interrupted plans again, and what was ordered
before is in there. The same input gives the same plan, and a plan that was carried out leaves nothing to plan.

What matters, in this order: no copy stays where none may be; a partition's copies lie in as many racks as they can;
nodes hold equally many; and are preferred as leaders equally often. No copy moves for less.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

Where = tuple[str, int]
"""A topic's name and the number of a partition."""
Layout = dict[Where, list[int]]
"""The nodes that copy each partition, the preferred leader first."""


class NoPlace(Exception):
    """A copy that must go, and no node that could have it."""

    def __init__(self, where: Where, node: int) -> None:
        super().__init__(where, node)
        self.where, self.node = where, node


class Nodes(NamedTuple):
    """What is known of the nodes. Those that neither take nor leave are left alone: they do not answer, say."""

    racks: Mapping[int, str]
    """Of everybody (see `rack_of`)."""
    takes: Collection[int]
    """Who may be given copies."""
    leaves: Collection[int] = ()
    """Who must have none in the end."""


def drained(layout: Layout, nodes: Nodes) -> Layout:
    """Every copy off the nodes that are to have none, each to where it is missed most; raises NoPlace."""
    plan = _copied(layout)
    held = _held(plan)
    for where, copies in sorted(plan.items()):
        for old in [node for node in copies if node in nodes.leaves]:
            new = _best(copies, nodes, held, without=old)
            if new is None:
                raise NoPlace(where, old)
            _swap(copies, held, old, new)
    return plan


def rebalanced(layout: Layout, nodes: Nodes, *, chosen: Collection[Where] = ()) -> Layout:
    """As even as single moves make it, by the fewest of them; raises NoPlace.

    `chosen` are partitions whose leaders are chosen by somebody else: who is preferred there does not matter.
    """
    plan = drained(layout, nodes)
    held = _held(plan)
    _spread_over_racks(plan, nodes, held)
    _even_out(plan, layout, nodes, held)
    prefer_evenly({where: copies for where, copies in plan.items() if where not in chosen}, nodes)
    return plan


def resized(layout: Layout, wheres: Iterable[Where], count: int, nodes: Nodes) -> Layout:
    """So many copies of each of these: added where they are missed most, or removed where they are least.

    The preferred leader stays. Raises NoPlace.
    """
    plan = _copied(layout)
    held = _held(plan)
    for where in sorted(wheres):
        copies = plan[where]
        while len(copies) < count:
            new = _best(copies, nodes, held)
            if new is None:
                raise NoPlace(where, 0)
            copies.append(new)
            held[new] += 1
        while len(copies) > count:
            old = _least_missed(copies, nodes, held)
            copies.remove(old)
            held[old] -= 1
    return plan


def differences(before: Layout, after: Layout) -> Layout:
    """What has to be ordered."""
    return {where: nodes for where, nodes in sorted(after.items()) if nodes != before[where]}


def moves_count(before: Layout, after: Layout) -> int:
    """Copies that have to be made."""
    return sum(len(set(nodes).difference(before[where])) for where, nodes in after.items())


# --- copies ---


def _copied(layout: Layout) -> Layout:
    return {where: list(nodes) for where, nodes in layout.items()}


def _held(layout: Layout) -> Counter[int]:
    return Counter(node for nodes in layout.values() for node in nodes)


def _swap(copies: list[int], held: Counter[int], old: int, new: int) -> None:
    copies[copies.index(old)] = new
    held[old] -= 1
    held[new] += 1


def _crowd(copies: Iterable[int], nodes: Nodes) -> int:
    """How badly copies are spread over racks: pairs of them that share one."""
    used = Counter(nodes.racks.get(node, f"node {node}") for node in copies)
    return sum(count * (count - 1) // 2 for count in used.values())


def _best(copies: list[int], nodes: Nodes, held: Counter[int], *, without: int = 0) -> int | None:
    """Who is to have one more, or one in place of another."""
    left = [node for node in copies if node != without]
    could = [node for node in sorted(nodes.takes) if node not in copies and node not in nodes.leaves]
    return min(could, key=lambda node: (_crowd([*left, node], nodes), held[node], node), default=None)


def _least_missed(copies: list[int], nodes: Nodes, held: Counter[int]) -> int:
    """Rather a node that does not answer, then one whose rack has another copy; never the preferred leader."""

    def badness(node: int) -> tuple[bool, int, int, int]:
        left = [each for each in copies if each != node]
        return (node in nodes.takes, _crowd(left, nodes), -held[node], -node)

    return min(copies[1:], key=badness)


def _spread_over_racks(plan: Layout, nodes: Nodes, held: Counter[int]) -> None:
    for _, copies in sorted(plan.items()):
        while True:
            here = _crowd(copies, nodes)
            better = [
                (
                    _crowd([*(each for each in copies if each != old), new], nodes),
                    -held[old],
                    held[new],
                    old,
                    new,
                )
                for old in copies
                if old in nodes.takes
                for new in sorted(nodes.takes)
                if new not in copies
            ]
            if not better or min(better)[0] >= here:
                break
            *_, old, new = min(better)
            _swap(copies, held, old, new)


def _even_out(plan: Layout, before: Layout, nodes: Nodes, held: Counter[int]) -> None:
    """From who holds most to who holds least, as long as that makes them more alike.

    Somebody who holds more always has a copy that the other has not, so without racks each move goes straight
    from too many to too few: there is no shorter way.
    """
    by_node: dict[int, set[Where]] = {node: set() for node in nodes.takes}
    for where, copies in plan.items():
        for node in copies:
            if node in by_node:
                by_node[node].add(where)
    while (move := _next_move(plan, before, nodes, held, by_node)) is not None:
        where, old, new = move
        _swap(plan[where], held, old, new)
        by_node[old].remove(where)
        by_node[new].add(where)


def _next_move(
    plan: Layout, before: Layout, nodes: Nodes, held: Counter[int], by_node: dict[int, set[Where]]
) -> tuple[Where, int, int] | None:
    givers = sorted(by_node, key=lambda node: (-held[node], node))
    takers = sorted(by_node, key=lambda node: (held[node], node))
    pairs = [(held[old] - held[new], old, new) for old in givers for new in takers]
    for difference, old, new in sorted(pairs, key=lambda pair: -pair[0]):
        if difference < 2:
            return None
        found = [
            # One that moves anyway costs nothing more; and whoever leads had rather stay.
            (old in before[where], new not in before[where], plan[where][0] == old, where)
            for where in by_node[old] - by_node[new]
            if _crowd([new if node == old else node for node in plan[where]], nodes)
            <= _crowd(plan[where], nodes)
        ]
        if found:
            return min(found)[-1], old, new
    return None


# --- leaders ---


def prefer_evenly(plan: Layout, nodes: Nodes) -> None:
    """Let nodes be preferred as leaders equally often, by the fewest changes; in place.

    Where somebody is preferred two times more often than another, there may be a chain of partitions from the one
    to the other along which each hands one on. The shortest is taken, until there is none.
    """
    led = Counter(copies[0] for copies in plan.values())
    while (chain := _chain(plan, nodes, led)) is not None:
        for where, new in chain:
            copies = plan[where]
            led[copies[0]] -= 1
            led[new] += 1
            copies.remove(new)
            copies.insert(0, new)


def _chain(plan: Layout, nodes: Nodes, led: Counter[int]) -> list[tuple[Where, int]] | None:
    handed_on: dict[int, dict[int, Where]] = {}
    for where, copies in sorted(plan.items()):
        for other in copies[1:]:
            if other in nodes.takes:
                handed_on.setdefault(copies[0], {}).setdefault(other, where)
    for first in sorted((node for node in led if node in nodes.takes), key=lambda node: (-led[node], node)):
        chain = _shortest(first, handed_on, led)
        if chain is not None:
            return chain
    return None


def _shortest(
    first: int, handed_on: dict[int, dict[int, Where]], led: Counter[int]
) -> list[tuple[Where, int]] | None:
    """From that node to one that leads at least two fewer."""
    came_from: dict[int, tuple[int, Where]] = {}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        if led[first] - led[node] >= 2:
            chain = []
            while node != first:
                before, where = came_from[node]
                chain.append((where, node))
                node = before
            return chain
        for other, where in sorted(handed_on.get(node, {}).items()):
            if other != first and other not in came_from:
                came_from[other] = (node, where)
                queue.append(other)
    return None
