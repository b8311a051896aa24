"""The follower: stores what the leader of its epoch sends, and stands for election when none is heard.

A learner is a follower that never votes and never stands (YB-5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import effects
from quorate.core.appending import contradicts
from quorate.core.entry import EntryId, Member, Snapshot
from quorate.core.raft.candidate import Candidate
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    SnapshotChunk,
    SnapshotResponse,
    StillRequest,
    StillResponse,
    TakeOver,
)
from quorate.core.raft.roles import Role
from quorate.core.staging import Staging

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Follower(Role):
    name = "follower"

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._acknowledge = False
        """Entries were ordered whose flush the leader waits to hear of."""
        self._answered = -1
        self._idle = False
        """Does not count, and waits for nobody."""

    @property
    def is_loose(self) -> bool:
        """`confirm`: it follows without counting for now (D9)."""
        return False

    def enter(self) -> None:
        self.restart_clock()

    def restart_clock(self, patience: float = 1.0) -> None:
        timeout = self.replica.config.tuning.election_timeout_s
        self.deadline = self.replica.now + timeout * (patience + self.replica.rng.random())

    def granted_vote(self) -> None:
        self.restart_clock()

    def beyond_repair(self) -> None:
        """A leader that is at rest has to be told what is missing, or the damage would stay for ever."""
        if self.replica.leader:
            self._answer(accepted=True, probe=self.replica.verified.offset)

    def suspected(self, node: int) -> None:
        if self.deadline is None and node == self.replica.leader:
            self.restart_clock()

    def ended(self, node: int) -> None:
        """Stand as soon as votes are free again, one after the other: two at once would split them."""
        replica = self.replica
        if node != replica.leader or not replica.is_voter:
            self.suspected(node)
            return
        replica.leader_ended = True
        turn = sum(peer < replica.me.node for peer in replica.voting_peers if peer != node)
        wait_s = replica.config.tuning.heartbeat_s * (0.5 + 2.0 * turn)
        due = max(replica.now, replica.promised_until) + wait_s
        if self.deadline is None or due < self.deadline:
            self.deadline = due

    def was_asked_whether_gone(self, sender: Member) -> None:
        """At rest we vouch for a leader that may be gone: what put us to rest was late, perhaps. Let it speak."""
        if self.deadline is None and self.replica.leader and self.replica.is_voter:
            self.replica.wait_for_leader()
            self.restart_clock()
            self._answer(accepted=True, probe=self.replica.verified.offset)

    def woke(self) -> None:
        if self.replica.can_lead():
            self.replica.become("prospect")
        else:
            self.replica.leader = 0
            self.deadline = None  # Whoever leads will be heard of; a learner has nothing to do meanwhile.
            self._idle = not self.replica.is_voter and not self.replica.is_leaving
            if not self._idle:
                self.restart_clock()

    def membership_changed(self) -> None:
        """One that was idle may turn out to count: the entry that says so was damaged, and is mended."""
        if self._idle and self.deadline is None and self.replica.is_voter:
            self._idle = False
            self.restart_clock()

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is AppendEntries:
            self._append_entries(sender, message)
        elif type(message) is SnapshotChunk:
            self._snapshot_chunk(sender, message)
        elif type(message) is StillRequest:
            self._follow(sender)
            promised_s = self.replica.config.tuning.election_timeout_s
            self.replica.send_when_saved(sender.node, StillResponse(message.epoch, message.round, promised_s))
        elif type(message) is TakeOver:
            self._take_over(sender)

    # --- entries ---

    def _append_entries(self, sender: Member, message: AppendEntries) -> None:
        replica = self.replica
        self._follow(sender)
        if message.heir and message.heir != replica.me.node:
            self.restart_clock(patience=2.0)  # It is somebody else's turn (YB-15).
        if replica.installing:
            return
        if replica.log.faulty:
            self._compare_damage(message.prev)
        if not replica.log.holds(message.prev):
            self._answer(accepted=False, probe=message.prev.offset, theirs=message.prev)
            return
        replica.staging = None
        if not message.headers:
            if not message.search:
                self.replica.verify(message.prev, message.commit)
            self._answer(accepted=True, probe=message.prev.offset, quiet=self._may_rest(message))
            return
        plan = replica.plan(message)
        if plan.repair:
            replica.repair(plan.repair)
        if plan.gives_up is not None:
            if plan.gives_up.before.offset < replica.commit:
                self._answer(accepted=True, probe=message.prev.offset)
                return  # Part of it is settled, and never cut: the leader will name where that ends.
            replica.give_up(plan.gives_up)
        if plan.cut_to is not None:
            replica.cut(plan.cut_to)
        if plan.append:
            replica.append(plan.append)
        self.replica.verify(plan.verified, message.commit)
        if plan.append and replica.durable.offset < replica.log.head.offset:
            self._acknowledge = True  # Said once, when it is flushed: see persisted().
        else:
            self._answer(accepted=True, probe=message.prev.offset)

    def _compare_damage(self, prev: EntryId) -> None:
        """Use the one entry that the leader names inside of what is damaged here; see its `_contradict`."""
        replica = self.replica
        span = replica.log.span_at(prev.offset)
        if span is None:
            return
        if prev.offset == replica.commit < span.last.offset:  # Settled: it is the same in every log.
            replica.repairing.settled = prev
        elif replica.commit <= span.before.offset and contradicts(prev, span):
            replica.give_up(span)

    def _follow(self, sender: Member) -> None:
        replica = self.replica
        assert replica.leader in (0, sender.node), "two leaders in one epoch"
        replica.heard_leader(sender.node)
        self.restart_clock()

    def _take_over(self, sender: Member) -> None:
        """The leader wants us in its place (YB-15). One that was left out asks whoever has most, not all."""
        replica = self.replica
        self._follow(sender)
        if replica.can_lead():
            replica.become("candidate")
            candidate = replica.role
            assert isinstance(candidate, Candidate)
            candidate.handed_over = True

    def _may_rest(self, message: AppendEntries) -> bool:
        replica = self.replica
        rest = (
            message.quiet
            and message.prev == replica.log.head
            and replica.commit == replica.log.head.offset
            and replica.ordering.idle
            and not replica.faulty
        )
        if rest:
            self.deadline = None  # The failure detector of the leader's node wakes us.
        return rest

    def _answer(
        self, *, accepted: bool, probe: int, theirs: EntryId | None = None, quiet: bool = False
    ) -> None:
        replica = self.replica
        matched = replica.flushed_agreement()
        self._answered = matched
        response = AppendResponse(
            replica.epoch,
            accepted,
            probe,
            matched,
            replica.commit,
            theirs=None if theirs is None else replica.last_at_or_below(theirs),
            faulty=replica.repairing.wanted(replica.log),
            wants_snapshot=replica.wants_snapshot,
            quiet=quiet,
            priority=replica.config.tuning.priority,
            loose=self.is_loose,
        )
        replica.send_when_saved(replica.leader, response)

    def persisted(self) -> None:
        replica = self.replica
        staging = replica.staging
        if staging is not None and 0 < staging.io <= replica.ordering.persisted and not staging.install_io:
            staging.io = 0
            if replica.leader:
                self._ask_for_chunk(staging)
        if self._acknowledge and replica.leader:
            matched = replica.flushed_agreement()
            if matched > self._answered:
                self._answer(accepted=True, probe=matched)
            self._acknowledge = replica.durable.offset < replica.log.head.offset

    # --- snapshots ---

    def _snapshot_chunk(self, sender: Member, message: SnapshotChunk) -> None:
        replica = self.replica
        self._follow(sender)
        snapshot = message.snapshot
        if replica.installing:
            return
        if snapshot.last.offset < replica.log.floor:  # An old one, of no use: the leader must hear that.
            self.replica.verify(snapshot.last, snapshot.last.offset)
            self._answer(accepted=True, probe=snapshot.last.offset)
            return
        if snapshot.last.offset < replica.commit and not replica.log.holds(snapshot.last):
            return  # It ends inside of what is damaged here: wait for one that covers all that is settled.
        if snapshot.last.offset <= replica.commit and not self._needs(snapshot):
            self.replica.verify(snapshot.last, snapshot.last.offset)
            self._answer(accepted=True, probe=snapshot.last.offset)
            return
        staging = replica.staging
        if staging is None or staging.snapshot != snapshot:
            staging = replica.staging = Staging(snapshot)
        if (
            staging.at != message.at
        ):  # Out of turn: say where to go on, unless a chunk is still being written.
            if staging.io <= replica.ordering.persisted:
                self._ask_for_chunk(staging)
            return
        staging.io = replica.ordering.issue()
        replica.emit(effects.StageChunk(staging.io, message.at))
        staging.at += message.length
        if staging.at == snapshot.size:
            replica.install(staging)

    def _needs(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot of what is already settled here would mend damage."""
        faulty = self.replica.log.faulty
        damage = bool(faulty) and faulty[0].before.offset < snapshot.last.offset
        return damage or self.replica.lacks_snapshot

    def _ask_for_chunk(self, staging: Staging) -> None:
        replica = self.replica
        response = SnapshotResponse(replica.epoch, staging.snapshot, staging.at)
        replica.send_when_saved(replica.leader, response)

    def installed(self, snapshot: Snapshot) -> None:
        """The snapshot has taken the log's place, whoever leads now."""
        self.replica.verify(snapshot.last, snapshot.last.offset)
        if self.replica.leader:
            self._answer(accepted=True, probe=snapshot.last.offset)
