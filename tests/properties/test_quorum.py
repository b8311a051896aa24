"""Quorum maths against a deliberately dumb twin: count every subset, try every offset."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from quorate.core import quorum
from quorate.core.entry import Member

members = st.builds(Member, st.integers(1, 9), st.integers(1, 2))
ensembles = st.sets(members, min_size=1, max_size=7).map(lambda found: tuple(sorted(found)))
offsets = st.dictionaries(members, st.integers(-1, 12))


def dumb_majorities(ensemble: tuple[Member, ...]) -> list[set[Member]]:
    """Every subset that is more than half."""
    return [
        set(chosen)
        for size in range(len(ensemble) + 1)
        for chosen in combinations(ensemble, size)
        if 2 * size > len(ensemble)
    ]


def dumb_offset(reached: dict[Member, int], ensemble: tuple[Member, ...]) -> int:
    """The highest offset that every member of some majority has."""
    return max(min(reached.get(member, -1) for member in majority) for majority in dumb_majorities(ensemble))


@given(st.sets(members), ensembles)
def test_a_majority_is_a_subset_of_more_than_half(yes: set[Member], ensemble: tuple[Member, ...]) -> None:
    assert quorum.has_majority(yes, ensemble) == any(
        majority <= yes for majority in dumb_majorities(ensemble)
    )


@given(st.sets(members), ensembles, ensembles | st.just(()))
def test_a_joint_majority_is_both(
    yes: set[Member], incoming: tuple[Member, ...], outgoing: tuple[Member, ...]
) -> None:
    dumb = any(majority <= yes for majority in dumb_majorities(incoming)) and (
        not outgoing or any(majority <= yes for majority in dumb_majorities(outgoing))
    )
    assert quorum.has_joint_majority(yes, incoming=incoming, outgoing=outgoing) == dumb


@given(offsets, ensembles)
def test_the_majority_offset_is_the_best_that_some_majority_has(
    reached: dict[Member, int], ensemble: tuple[Member, ...]
) -> None:
    assert quorum.majority_offset(reached, ensemble) == dumb_offset(reached, ensemble)


@given(offsets, ensembles, ensembles | st.just(()))
def test_the_joint_offset_is_the_lower_of_the_two(
    reached: dict[Member, int], incoming: tuple[Member, ...], outgoing: tuple[Member, ...]
) -> None:
    dumb = dumb_offset(reached, incoming)
    if outgoing:
        dumb = min(dumb, dumb_offset(reached, outgoing))
    assert quorum.joint_offset(reached, incoming=incoming, outgoing=outgoing) == dumb


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
