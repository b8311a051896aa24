"""Plans over any nodes, racks and copies: nothing stays where it must not, all is even, no copy moves for less."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.node.plans import (
    Layout,
    Nodes,
    NoPlace,
    differences,
    drained,
    moves_count,
    prefer_evenly,
    rebalanced,
    resized,
)

NODES_MAX = 7


@st.composite
def layouts(draw: st.DrawFn, nodes_count: int) -> Layout:
    """Any: of several topics, with different counts of copies, on any nodes."""
    layout: Layout = {}
    for number in range(draw(st.integers(0, 12))):
        copies = draw(st.permutations(range(1, nodes_count + 1)))
        count = draw(st.integers(1, min(4, nodes_count)))
        layout[draw(st.sampled_from("ab")), number] = list(copies[:count])
    return layout


@st.composite
def clusters(draw: st.DrawFn, *, with_racks: bool = True) -> tuple[Layout, Nodes]:
    nodes_count = draw(st.integers(1, NODES_MAX))
    names = st.sampled_from("xyz") if with_racks else st.nothing()
    racks = {node: draw(names) if with_racks else f"node {node}" for node in range(1, nodes_count + 1)}
    return draw(layouts(nodes_count)), Nodes(racks, list(racks))


def held(layout: Layout, nodes: Nodes) -> list[int]:
    counts = Counter(node for copies in layout.values() for node in copies)
    return [counts[node] for node in nodes.takes]


def crowd(copies: list[int], nodes: Nodes) -> int:
    counts = Counter(nodes.racks[node] for node in copies)
    return sum(count * (count - 1) // 2 for count in counts.values())


def least_crowd(count: int, nodes: Nodes) -> int:
    """By hand: one copy after the other into the rack with the fewest of them that has a node to spare."""
    room, used = Counter(nodes.racks[node] for node in nodes.takes), Counter[str]()
    for _ in range(count):
        rack = min((each for each in room if room[each] > used[each]), key=lambda each: used[each])
        used[rack] += 1
    return sum(each * (each - 1) // 2 for each in used.values())


def fewest_moves(layout: Layout, nodes: Nodes) -> int:
    """What nobody gets below: everybody who holds too many gives, everybody who holds too few takes."""
    loads = held(layout, nodes)
    low, more = divmod(sum(loads), len(loads))
    given_away = (
        sum(max(0, load - low - 1) for load in loads) if more else sum(max(0, n - low) for n in loads)
    )
    taken = sum(max(0, low - load) for load in loads)
    return max(given_away, taken)


def expect_sound(before: Layout, after: Layout) -> None:
    assert before.keys() == after.keys()
    for where, copies in after.items():
        assert len(set(copies)) == len(copies) == len(before[where])


@given(clusters(with_racks=False))
def test_without_racks_all_is_even_after_the_fewest_moves_there_are(cluster: tuple[Layout, Nodes]) -> None:
    layout, nodes = cluster
    plan = rebalanced(layout, nodes)
    expect_sound(layout, plan)
    loads = held(plan, nodes)
    assert max(loads) - min(loads) <= 1
    assert moves_count(layout, plan) == fewest_moves(layout, nodes)


@given(clusters())
def test_copies_lie_in_as_many_racks_as_they_can_and_a_plan_leaves_nothing_to_plan(
    cluster: tuple[Layout, Nodes],
) -> None:
    layout, nodes = cluster
    plan = rebalanced(layout, nodes)
    expect_sound(layout, plan)
    for copies in plan.values():
        assert crowd(copies, nodes) == least_crowd(len(copies), nodes)
    assert rebalanced(plan, nodes) == plan
    assert differences(plan, plan) == {}


@given(clusters(), st.data())
def test_carried_out_in_part_the_rest_is_planned_again_and_ends_as_even(
    cluster: tuple[Layout, Nodes], data: st.DataObject
) -> None:
    """As whoever was interrupted does it."""
    layout, nodes = cluster
    plan = rebalanced(layout, nodes)
    done = data.draw(st.sets(st.sampled_from(sorted(layout)))) if layout else set()
    halfway = {where: plan[where] if where in done else copies for where, copies in layout.items()}
    again = rebalanced(halfway, nodes)
    assert (
        max(held(again, nodes)) - min(held(again, nodes))
        <= max(held(plan, nodes)) - min(held(plan, nodes)) + 1
    )
    assert rebalanced(again, nodes) == again


@given(clusters())
def test_who_leads_is_as_even_as_the_copies_let_it_be(cluster: tuple[Layout, Nodes]) -> None:
    """Compared with every choice of leaders that could be, where there are not too many."""
    layout, nodes = cluster
    small = dict(list(layout.items())[:5])
    plan = {where: list(copies) for where, copies in small.items()}
    prefer_evenly(plan, nodes)
    assert {where: set(copies) for where, copies in plan.items()} == {w: set(c) for w, c in small.items()}

    def unevenness(leaders: list[int]) -> int:
        return sum(count * count for count in Counter(leaders).values())

    choices: list[list[int]] = [[]]
    for copies in small.values():
        choices = [[*choice, node] for choice in choices for node in copies]
    assert unevenness([copies[0] for copies in plan.values()]) == min(map(unevenness, choices))


@given(clusters(), st.data())
def test_a_drained_node_has_nothing_and_nobody_else_loses_anything(
    cluster: tuple[Layout, Nodes], data: st.DataObject
) -> None:
    layout, nodes = cluster
    node = data.draw(st.sampled_from(sorted(nodes.racks)))
    left = nodes._replace(takes=[each for each in nodes.takes if each != node], leaves=[node])
    full = [where for where, copies in layout.items() if node in copies and len(copies) == len(nodes.racks)]
    if full:
        with pytest.raises(NoPlace) as nowhere:
            drained(layout, left)
        assert nowhere.value.where in full
        return
    plan = drained(layout, left)
    expect_sound(layout, plan)
    for where, copies in plan.items():
        assert node not in copies
        assert [each for each in copies if each in layout[where]] == [
            each for each in layout[where] if each != node
        ]
    assert moves_count(layout, plan) == sum(node in copies for copies in layout.values())
    assert drained(plan, left) == plan


@given(clusters(), st.data())
def test_other_counts_of_copies_keep_those_that_are_there_and_the_preferred_leader(
    cluster: tuple[Layout, Nodes], data: st.DataObject
) -> None:
    layout, nodes = cluster
    count = data.draw(st.integers(1, len(nodes.racks)))
    wheres = [where for where in layout if where[0] == "a"]
    plan = resized(layout, wheres, count, nodes)
    for where, copies in plan.items():
        before = layout[where]
        assert len(set(copies)) == len(copies) == (count if where[0] == "a" else len(before))
        assert copies[0] == before[0]
        assert set(copies) <= set(before) or set(before) <= set(copies)
    assert resized(plan, wheres, count, nodes) == plan


@given(clusters(), st.data())
def test_nodes_that_do_not_answer_are_left_alone(cluster: tuple[Layout, Nodes], data: st.DataObject) -> None:
    layout, nodes = cluster
    silent = data.draw(st.sets(st.sampled_from(sorted(nodes.racks)), max_size=2))
    left = nodes._replace(takes=[node for node in nodes.takes if node not in silent])
    plan = rebalanced(layout, left)
    for where, copies in plan.items():
        assert silent.intersection(copies) == silent.intersection(layout[where])
