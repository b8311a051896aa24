"""Who must have it for it to count.

Pure leaves: members and numbers in, answers out. tests/properties holds a deliberately dumb twin of each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quorate.core.entry import Member, Membership, Quorums


def majority(count: int) -> int:
    """The smallest number of `count` members that meets every other such number."""
    assert count > 0
    return count // 2 + 1


def has_majority(yes: Collection[Member], ensemble: tuple[Member, ...]) -> bool:
    """Whether those who said yes are a majority of the ensemble. Outsiders never count (YB-5)."""
    return sum(member in yes for member in ensemble) >= majority(len(ensemble))


def majority_offset(offsets: Mapping[Member, int], ensemble: tuple[Member, ...]) -> int:
    """The highest offset that a majority of the ensemble has reached; -1 for those not in the map."""
    reached = [offsets.get(member, -1) for member in ensemble]
    reached.sort(reverse=True)
    return reached[majority(len(ensemble)) - 1]


def quorum_offset(offsets: Mapping[Member, int], membership: Membership) -> int:
    """The highest offset that enough have reached by this membership, and by the outgoing one while it is joint."""
    reached = _reached(offsets, membership.ensemble, membership.quorums)
    if not membership.outgoing:
        return reached
    return min(reached, _reached(offsets, membership.outgoing, membership.outgoing_quorums))


def _reached(offsets: Mapping[Member, int], ensemble: tuple[Member, ...], quorums: Quorums | None) -> int:
    if quorums is None:
        return majority_offset(offsets, ensemble)
    return sorted((offsets.get(member, -1) for member in ensemble), reverse=True)[quorums.commit - 1]


def can_commit(yes: Collection[Member], membership: Membership) -> bool:
    """Whether what these have is settled by that."""
    return all(
        _count(yes, ensemble) >= (majority(len(ensemble)) if quorums is None else quorums.commit)
        for ensemble, quorums in _sides(membership)
    )


def can_elect(yes: Collection[Member], membership: Membership) -> bool:
    """Whether these votes make a leader."""
    return all(
        _count(yes, ensemble) >= (majority(len(ensemble)) if quorums is None else quorums.promote)
        for ensemble, quorums in _sides(membership)
    )


def sizes(quorums: Quorums | None, count: int) -> tuple[int, int]:
    """How many of so many must have it, and how many must vote."""
    return (majority(count), majority(count)) if quorums is None else (quorums.commit, quorums.promote)


def _count(yes: Collection[Member], ensemble: tuple[Member, ...]) -> int:
    return sum(member in yes for member in ensemble)


def _sides(membership: Membership) -> list[tuple[tuple[Member, ...], Quorums | None]]:
    sides = [(membership.ensemble, membership.quorums)]
    return [*sides, (membership.outgoing, membership.outgoing_quorums)] if membership.outgoing else sides


def why_unsafe(quorums: Quorums, count: int) -> str:
    """Why these sizes must not be used with so many synchronous replicas; empty if they may (D10).

    Whoever is elected must have met somebody of every commit quorum; and two elections in one epoch must share a
    voter, who votes once, so promote quorums are majorities (decision 015).
    """
    said = f"with {count} synchronous replicas a commit quorum of {quorums.commit} and a promote quorum of"
    if not 1 <= quorums.commit <= count or not 1 <= quorums.promote <= count:
        return f"{said} {quorums.promote} cannot be had: each is between 1 and {count}"
    if quorums.promote < majority(count):
        return (
            f"{said} {quorums.promote} could elect two leaders at once: it must be {majority(count)} or more"
        )
    if quorums.commit + quorums.promote <= count:
        return f"{said} {quorums.promote} could lose what was confirmed: their sum must exceed {count}"
    return ""


def whole_set_offset(offsets: Mapping[Member, int], in_sync: tuple[Member, ...]) -> int:
    """The highest offset that every member of an in-sync set has reached (LB-10)."""
    assert in_sync
    return min(offsets.get(member, -1) for member in in_sync)
