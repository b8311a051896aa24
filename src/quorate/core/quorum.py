"""Who must have it for it to count.

Pure leaves: members and numbers in, answers out. tests/properties holds a deliberately dumb twin of each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quorate.core.entry import Member


def majority(count: int) -> int:
    """The smallest number of `count` members that meets every other such number."""
    assert count > 0
    return count // 2 + 1


def has_majority(yes: Collection[Member], ensemble: tuple[Member, ...]) -> bool:
    """Whether those who said yes are a majority of the ensemble. Outsiders never count (YB-5)."""
    return sum(member in yes for member in ensemble) >= majority(len(ensemble))


def has_joint_majority(
    yes: Collection[Member], *, incoming: tuple[Member, ...], outgoing: tuple[Member, ...]
) -> bool:
    """While a change is joint both ensembles must agree (YB-12); `outgoing` is empty when none is open."""
    return has_majority(yes, incoming) and (not outgoing or has_majority(yes, outgoing))


def majority_offset(offsets: Mapping[Member, int], ensemble: tuple[Member, ...]) -> int:
    """The highest offset that a majority of the ensemble has reached; -1 for those not in the map."""
    reached = [offsets.get(member, -1) for member in ensemble]
    reached.sort(reverse=True)
    return reached[majority(len(ensemble)) - 1]


def joint_offset(
    offsets: Mapping[Member, int], *, incoming: tuple[Member, ...], outgoing: tuple[Member, ...]
) -> int:
    """The highest offset that both ensembles' majorities have reached."""
    reached = majority_offset(offsets, incoming)
    return min(reached, majority_offset(offsets, outgoing)) if outgoing else reached


def whole_set_offset(offsets: Mapping[Member, int], in_sync: tuple[Member, ...]) -> int:
    """The highest offset that every member of an in-sync set has reached (LB-10)."""
    assert in_sync
    return min(offsets.get(member, -1) for member in in_sync)
