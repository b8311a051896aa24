"""Changing who counts, by joint consensus (YB-12): the leader's part.

    at rest  →  learning  →  joint  →  at rest

*Learning*: those who are new follow as learners until they have caught up, so that the group never waits for a
copy that is being made. *Joint*: the new ensemble and the old one must both agree, on entries and on leaders, so
that no moment exists in which two majorities need not meet. Any number may come and go at once, the ensemble may
grow and shrink (YB-13), and the leader may be among those who go: it leads, without counting itself, until the
new ensemble is settled.

Every step is an entry, in force as soon as it is in a log, and taken back if that is cut. What is wanted stands
in it, so that a new leader goes on where the old one ended. A step that changes a quorum is taken only when the
one before it is settled, and only by a leader that has settled something of its own epoch (a leader that has not
may know a membership that nobody else will ever see).

While a change is joint another one is refused, with one exception: back to where it came from. That is safe,
since every majority of the old ensemble meets every majority of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects, quorum
from quorate.core.commands import ChangeMembership
from quorate.core.cursor import Phase
from quorate.core.effects import Outcome
from quorate.core.entry import Header, Kind, Member, Membership, Quorums, Wanted

if TYPE_CHECKING:
    from quorate.core.raft.leader import Leader

ANOTHER_OPEN = "another change is joint; wait for its end, or order the former ensemble again"
OUTDATED = "a newer change was ordered before"
REPLACED = "another change was ordered in its place"


def senseless(wanted: Wanted) -> str:
    """Why nobody could want that; empty if somebody could."""
    nodes = [member.node for member in wanted.ensemble + wanted.learners]
    if not wanted.ensemble:
        return "an ensemble needs at least one member"
    if len(set(nodes)) < len(nodes):
        return "a node can be in an ensemble once"
    return quorum.why_unsafe(wanted.quorums, len(wanted.ensemble)) if wanted.quorums is not None else ""


def learning(now: Membership, wanted: Wanted) -> Membership:
    """The first step: everybody who is to count follows at least."""
    everybody = {*now.learners, *wanted.ensemble, *wanted.learners}.difference(now.ensemble)
    return Membership(
        now.ensemble,
        tuple(sorted(everybody)),
        wanted=wanted,
        version=wanted.version,
        quorums=now.quorums,
    )


def joint(now: Membership, wanted: Wanted) -> Membership:
    """The second: both ensembles count."""
    followers = {*now.learners, *wanted.learners}.difference(wanted.ensemble, now.ensemble)
    return Membership(
        wanted.ensemble,
        tuple(sorted(followers)),
        now.ensemble,
        wanted=wanted,
        version=wanted.version,
        quorums=wanted.quorums,
        outgoing_quorums=now.quorums,
    )


def at_rest(wanted: Wanted) -> Membership:
    """The last."""
    return Membership(wanted.ensemble, wanted.learners, version=wanted.version, quorums=wanted.quorums)


def _meant(now: Membership, ensemble: tuple[Member, ...], named: Quorums | None) -> Quorums | None:
    """Which quorums an order means: those of where an open change came from, if it is to go back there; and whoever
    names none keeps those that were wanted last."""
    if now.is_joint and ensemble == now.outgoing:
        count = len(ensemble)
        if named is None and ensemble != now.ensemble:
            return now.outgoing_quorums
        if named is not None and quorum.sizes(named, count) == quorum.sizes(now.outgoing_quorums, count):
            return now.outgoing_quorums
    return named or (now.wanted.quorums if now.wanted is not None else now.quorums)


class Changing:
    """The change that is open while one leader leads, and who waits for it."""

    __slots__ = ("_asked", "_leader")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._asked: list[tuple[int, Wanted]] = []

    @property
    def is_open(self) -> bool:
        return self._leader.replica.membership.wanted is not None

    def order(self, command: ChangeMembership) -> None:
        replica = self._leader.replica
        now = replica.membership
        ensemble = tuple(sorted(command.ensemble))
        quorums = _meant(now, ensemble, command.quorums)
        wanted = Wanted(ensemble, tuple(sorted(command.learners)), command.version, quorums)
        why_not = OUTDATED if wanted.version < now.version else senseless(wanted)
        former = (now.outgoing, now.outgoing_quorums)
        back = now.is_joint and (wanted.ensemble, wanted.quorums) == former
        if not why_not and now.is_joint and wanted != now.wanted and not back:
            why_not = ANOTHER_OPEN
        if why_not:
            replica.emit(effects.Reply(command.request, Outcome.REFUSED, leader=replica.leader, why=why_not))
            return
        unfinished = now.wanted is None and replica.membership_at > replica.commit and now != at_rest(wanted)
        # Too early; or its successor's business; or the change before is all but done; or this protocol is.
        if not self._leader.has_settled or not replica.is_voter or unfinished or self._leader.is_ending:
            replica.emit(effects.Reply(command.request, Outcome.BUSY, leader=replica.leader))
            return
        self._asked.append((command.request, wanted))
        if wanted != now.wanted and now != at_rest(wanted):
            counts_alike = (wanted.ensemble, wanted.quorums) == (now.ensemble, now.quorums)
            if back or (not now.is_joint and counts_alike):
                self._append(at_rest(wanted))
            else:
                self._append(learning(now, wanted))
        self.go_on()

    def go_on(self) -> None:
        """Take the next step, if it is time for it."""
        replica = self._leader.replica
        now = replica.membership
        if self._asked:
            self._answer(now)
        if now.wanted is None or replica.membership_at > replica.commit or not self._leader.has_settled:
            return
        if now.is_joint:
            self._append(at_rest(now.wanted))
        elif all(map(self._has_caught_up, set(now.wanted.ensemble).difference(now.ensemble))):
            self._append(joint(now, now.wanted))

    def _has_caught_up(self, member: Member) -> bool:
        """It has what lets it follow, so it lives; and is near enough to what is settled to keep nobody waiting."""
        replica = self._leader.replica
        cursor = self._leader.cursors.get(member.node)
        return (
            cursor is not None
            and cursor.incarnation == member.incarnation
            and cursor.phase is Phase.STREAMING
            and cursor.matched >= replica.membership_at
            and cursor.matched + replica.config.tuning.catch_up_max >= replica.commit
        )

    def _append(self, membership: Membership) -> None:
        replica = self._leader.replica
        header = Header(replica.epoch, replica.log.head.offset + 1, kind=Kind.CONTROL, control=membership)
        replica.append((header,))
        self._leader.appended()

    def _answer(self, now: Membership) -> None:
        """Whoever waits for what is now, and settled, has got it; whoever waits for something else never will."""
        replica = self._leader.replica
        waiting = []
        for request, wanted in self._asked:
            if now.wanted == wanted or (now == at_rest(wanted) and replica.membership_at > replica.commit):
                waiting.append((request, wanted))
            elif now == at_rest(wanted):
                at = max(replica.membership_at, 0)
                replica.emit(effects.Reply(request, Outcome.SETTLED, offset=at, epoch=replica.epoch))
            else:
                replica.emit(effects.Reply(request, Outcome.REFUSED, leader=replica.leader, why=REPLACED))
        self._asked = waiting

    def leave(self) -> None:
        """The next leader goes on with it, if it has it."""
        for request, _ in self._asked:
            self._leader.replica.emit(effects.Reply(request, Outcome.UNKNOWN))
        self._asked.clear()
