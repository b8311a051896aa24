"""Quorum maths against a deliberately dumb twin: count every subset, try every offset."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import quorum
from quorate.core.entry import Member, Membership, Quorums

members = st.builds(Member, st.integers(1, 9), st.integers(1, 2))
ensembles = st.sets(members, min_size=1, max_size=7).map(lambda found: tuple(sorted(found)))
offsets = st.dictionaries(members, st.integers(-1, 12))
COUNT_MAX = 7

Side = tuple[tuple[Member, ...], Quorums | None]


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """An ensemble with quorums of some safe size, or with majorities."""
    ensemble = draw(ensembles)
    safe = [None, *safe_sizes(len(ensemble))]
    return ensemble, draw(st.sampled_from(safe))


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    """At rest, or joint; with quorums of safe sizes, or with majorities."""
    ensemble, quorums = draw(sides())
    if draw(st.booleans()):
        return Membership(ensemble, quorums=quorums)
    outgoing, outgoing_quorums = draw(sides())
    return Membership(ensemble, outgoing=outgoing, quorums=quorums, outgoing_quorums=outgoing_quorums)


def safe_sizes(count: int) -> list[Quorums]:
    sizes = [Quorums(commit, promote) for commit in range(1, count + 1) for promote in range(1, count + 1)]
    return [size for size in sizes if not quorum.why_unsafe(size, count)]


def subsets(ensemble: tuple[Member, ...], size: int) -> list[set[Member]]:
    """Every subset of so many."""
    return [set(chosen) for chosen in combinations(ensemble, size)]


def dumb_majorities(ensemble: tuple[Member, ...]) -> list[set[Member]]:
    """Every subset that is more than half."""
    return [
        chosen
        for size in range(len(ensemble) + 1)
        for chosen in subsets(ensemble, size)
        if 2 * size > len(ensemble)
    ]


def dumb_sides(membership: Membership) -> list[Side]:
    """Who must agree: the ensemble, and the outgoing one, if there is one."""
    both: list[Side] = [
        (membership.ensemble, membership.quorums),
        (membership.outgoing, membership.outgoing_quorums),
    ]
    return [side for side in both if side[0]]


def dumb_commits(ensemble: tuple[Member, ...], quorums: Quorums | None) -> list[set[Member]]:
    return dumb_majorities(ensemble) if quorums is None else subsets(ensemble, quorums.commit)


def dumb_promotes(ensemble: tuple[Member, ...], quorums: Quorums | None) -> list[set[Member]]:
    return dumb_majorities(ensemble) if quorums is None else subsets(ensemble, quorums.promote)


def dumb_offset(reached: dict[Member, int], quorums: list[set[Member]]) -> int:
    """The highest offset that every member of some quorum has."""
    return max(min(reached.get(member, -1) for member in chosen) for chosen in quorums)


@given(st.sets(members), ensembles)
def test_a_majority_is_a_subset_of_more_than_half(yes: set[Member], ensemble: tuple[Member, ...]) -> None:
    assert quorum.has_majority(yes, ensemble) == any(
        majority <= yes for majority in dumb_majorities(ensemble)
    )


@given(st.sets(members), memberships())
def test_what_is_settled_is_on_a_commit_quorum_of_each_side(yes: set[Member], membership: Membership) -> None:
    dumb = all(any(chosen <= yes for chosen in dumb_commits(*side)) for side in dumb_sides(membership))
    assert quorum.can_commit(yes, membership) == dumb


@given(st.sets(members), memberships())
def test_a_leader_has_the_votes_of_a_promote_quorum_of_each_side(
    yes: set[Member], membership: Membership
) -> None:
    dumb = all(any(chosen <= yes for chosen in dumb_promotes(*side)) for side in dumb_sides(membership))
    assert quorum.can_elect(yes, membership) == dumb


@given(offsets, ensembles)
def test_the_majority_offset_is_the_best_that_some_majority_has(
    reached: dict[Member, int], ensemble: tuple[Member, ...]
) -> None:
    assert quorum.majority_offset(reached, ensemble) == dumb_offset(reached, dumb_majorities(ensemble))


@given(offsets, memberships())
def test_the_quorum_offset_is_the_lowest_of_what_each_side_has(
    reached: dict[Member, int], membership: Membership
) -> None:
    dumb = min(dumb_offset(reached, dumb_commits(*side)) for side in dumb_sides(membership))
    assert quorum.quorum_offset(reached, membership) == dumb


@given(offsets, memberships())
def test_exactly_what_the_quorum_offset_says_can_be_settled(
    reached: dict[Member, int], membership: Membership
) -> None:
    best = quorum.quorum_offset(reached, membership)
    assert quorum.can_commit({m for m in membership.voters if reached.get(m, -1) >= best}, membership)
    assert not quorum.can_commit({m for m in membership.voters if reached.get(m, -1) > best}, membership)


@pytest.mark.behaviour("D10", "TT-40")
@pytest.mark.parametrize("count", range(1, COUNT_MAX + 1))
def test_safe_sizes_are_those_whose_quorums_always_meet(count: int) -> None:
    """A new leader meets everybody's quorum, and two nominees of an epoch share a voter: those and no others."""
    ensemble = tuple(Member(node, 1) for node in range(1, count + 1))
    for commit in range(count + 2):
        for promote in range(count + 2):
            had = 1 <= commit <= count and 1 <= promote <= count
            commits, promotes = subsets(ensemble, commit), subsets(ensemble, promote)
            meet = all(one & other for one in commits for other in promotes)
            one_leader = all(one & other for one in promotes for other in promotes)
            safe = had and meet and one_leader
            why = quorum.why_unsafe(Quorums(commit, promote), count)
            assert (why == "") == safe, (commit, promote, why)


@pytest.mark.behaviour("D10", "TT-40")
@given(memberships(), st.data())
def test_what_was_settled_is_known_to_every_leader_while_sizes_change(
    membership: Membership, data: st.DataObject
) -> None:
    """A commit by both sides meets an election by both, by the old side alone, and by the new one alone."""
    commit = {m for side in dumb_sides(membership) for m in data.draw(st.sampled_from(dumb_commits(*side)))}
    assert quorum.can_commit(commit, membership)
    for ensemble, quorums in dumb_sides(membership):
        alone = Membership(ensemble, quorums=quorums)
        votes = data.draw(st.sampled_from(dumb_promotes(ensemble, quorums)))
        assert quorum.can_elect(votes, alone)
        assert votes & commit


@given(offsets, ensembles)
def test_an_in_sync_set_is_waited_for_as_a_whole(
    reached: dict[Member, int], in_sync: tuple[Member, ...]
) -> None:
    everyone = [offset for offset in range(-1, 13) if all(reached.get(m, -1) >= offset for m in in_sync)]
    assert quorum.whole_set_offset(reached, in_sync) == max(everyone)


@given(ensembles)
def test_any_two_majorities_meet(ensemble: tuple[Member, ...]) -> None:
    smallest = [m for m in dumb_majorities(ensemble) if len(m) == quorum.majority(len(ensemble))]
    assert all(one & other for one in smallest for other in smallest)
