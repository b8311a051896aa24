"""One raft replica: one door (`step`), four roles, and what they share.

The roles hold what differs between them (follower.py, prospect.py, candidate.py, leader.py). Here stands what
every role does alike: epochs and votes, disk orders and their completions, commit, snapshots, repair. Legal
transitions are in one place, `become`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import appending, effects, events, quorum
from quorate.core.commands import Command
from quorate.core.effects import Effect
from quorate.core.entry import NOWHERE, Ceiling, EntryId, Header, Member, Membership, Snapshot, Span, Standing
from quorate.core.log import LogView
from quorate.core.ordering import Ordering
from quorate.core.raft import messages
from quorate.core.raft.candidate import Candidate
from quorate.core.raft.config import Config, SavedState
from quorate.core.raft.follower import Follower
from quorate.core.raft.leader import Leader
from quorate.core.raft.prospect import Prospect
from quorate.core.raft.roles import Role
from quorate.core.raft.staging import Staging
from quorate.core.raft.waiting import Waiting
from quorate.core.repairing import REMOVED, REPAIR_BYTES_MAX, REPAIR_ENTRIES_MAX, Repairing, why_not


class Replica:
    """The state machine of one copy of one partition."""

    def __init__(self, config: Config, rng: Random) -> None:
        self.config = config
        self.me = config.me
        self.rng = rng
        self.now = 0.0
        self.epoch = 0
        self.vote: Member | None = None
        self.owed = NOWHERE
        self.leader = 0
        self.commit = -1
        """The highest offset known to be settled."""
        self.published = -1
        """What of it was flushed here and handed to machines and readers."""
        self.verified = NOWHERE
        """Follower: the last entry known to agree with the leader of this epoch (OR-10)."""
        self.snapshot: Snapshot | None = None
        self.staging: Staging | None = None
        self.born = Membership(config.voters, config.learners)
        self.membership = self.born
        """In force: the newest one in this log, settled or not."""
        self.membership_at = -1
        """The offset of its entry, or of the snapshot that says so; -1: it is the one at birth."""
        self.voters = frozenset[Member]()
        self.is_voter = False
        self.peers: tuple[int, ...] = ()
        """The other nodes that hold this log,"""
        self.voting_peers: tuple[int, ...] = ()
        """and those of them that count."""
        self._stood = Standing()
        """What stood at the newest snapshot that was ever known here, and where that was: it may be lost."""
        self._stood_at = -1
        self.times_asked = rng.getrandbits(32)
        """Rises whenever this replica asks whether others miss the leader, too. It does not begin with what it was
        in an earlier life: answers of then may still be under way, and say nothing about now."""
        self._promised_until = float("-inf")
        """A leader was heard: until then nobody else gets this vote."""
        self.waiting = Waiting(self)
        self.repairing = Repairing((), config.tuning.repair_retry_s)
        self.log: LogView
        self.ordering: Ordering
        self.role: Role
        self._state_io = 0
        self._repairs: list[tuple[int, tuple[Header, ...]]] = []
        self._serving: dict[int, tuple[int, messages.WantEntries]] = {}
        self._tokens = 0
        self._taking_snapshot = False
        self._effects: list[Effect] = []

    # --- the door ---

    def step(self, now: float, event: events.Event) -> list[Effect]:
        """Tell the replica a fact; carry out what it orders, in order."""
        assert not self._effects
        self.now = now
        _HANDLERS[type(event)](self, event)
        ordered, self._effects = self._effects, []
        return ordered

    def deadline(self) -> float | None:
        """When to be woken; None: not at all."""
        mine = self.role.deadline
        if not self.log.faulty and self.waiting.deadline is None:
            return mine
        others = (mine, self.repairing.deadline(self.log), self.waiting.deadline)
        return min((due for due in others if due is not None), default=None)

    def describe(self) -> str:
        role = self.role.name if self.is_voter else "learner"
        quiet = " quiet" if self.role.deadline is None else ""
        owed = f" owes {self.owed}" if self.owed > self.log.head else ""
        return f"n{self.me.node} {role} e{self.epoch} log {self.log} commit {self.commit}{quiet}{owed}"

    @property
    def durable(self) -> EntryId:
        return self.ordering.durable

    @property
    def leads_from(self) -> int | None:
        """The first offset of the epoch that this replica leads; None if it does not lead.

        Once that is settled, everything unsettled in its log was proposed to this very replica.
        """
        return self.role.leads_from

    @property
    def faulty(self) -> bool:
        """This log misses something that was promised: counted when voting, never eligible to lead."""
        return bool(self.log.faulty) or self.owed > self.log.head or self.lacks_snapshot

    @property
    def lacks_snapshot(self) -> bool:
        """The log starts behind a snapshot that cannot be read."""
        return self.snapshot is None and self.log.base != NOWHERE

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being put in the log's place."""
        return self.staging is not None and self.staging.install_io > 0

    @property
    def claim(self) -> EntryId:
        """The head that this replica votes with: what it has, or what it owes."""
        return max(self.log.head, self.owed)

    def can_lead(self) -> bool:
        return (self.is_voter or self.is_leaving) and not self.faulty and not self.installing

    @property
    def is_leaving(self) -> bool:
        """Left out by a membership that is not known to be settled. Perhaps only those who go have its entry:
        one of them must be able to lead, without counting itself, until it is (Raft thesis §4.2.2)."""
        if self.is_voter or self.membership_at <= self.commit:
            return False
        counts = self.me in (self._stood.membership or self.born).voters
        for header in self.log.controls:
            if isinstance(header.control, Membership) and header.offset > self._stood_at:
                counts = self.me in header.control.voters or (counts and header.offset > self.commit)
        return counts

    def may_stand(self) -> bool:
        """Whether to try to lead without being asked to."""
        return self.config.tuning.priority > 0 and self.can_lead()

    def has_quorum(self, members: set[Member]) -> bool:
        """Whether these are enough by the membership in force."""
        membership = self.membership
        return quorum.has_joint_majority(members, incoming=membership.ensemble, outgoing=membership.outgoing)

    @property
    def ceiling(self) -> int:
        """The highest timestamp that any leader so far may have given out, as far as this log says."""
        newest = self.log.newest(Ceiling)
        in_log = newest.control.upto if newest is not None and isinstance(newest.control, Ceiling) else 0
        return max(in_log, self._stood.ceiling)

    # --- orders ---

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, to: int, message: messages.Message) -> None:
        self._effects.append(effects.Send(to, message))

    def send_when_saved(self, to: int, message: messages.Message) -> None:
        """An answer that depends on the epoch or the vote waits until they are durable (YB-7)."""
        if self._state_io > self.ordering.persisted:
            self.ordering.hold(self.ordering.issued, effects.Send(to, message))
        else:
            self.send(to, message)

    def append(self, headers: tuple[Header, ...]) -> None:
        controls_count = len(self.log.controls)
        self.log.append(headers)
        io = self.ordering.issue()
        self.ordering.appended(io, self.epoch, self.log.head)
        self.emit(effects.Append(io, headers))
        if len(self.log.controls) != controls_count:
            self._see_who_counts()

    def cut(self, to: EntryId) -> None:
        assert to.offset >= self.commit, "what is settled is never cut"
        self.log.cut(to)
        self.ordering.cut(to)
        self.emit(effects.Cut(self.ordering.issue(), to))
        self._see_who_counts()

    def _have_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._stood, self._stood_at = snapshot.standing, snapshot.last.offset

    def _see_who_counts(self) -> None:
        """The membership in force has perhaps changed: an entry came, or was cut, or a snapshot took its place."""
        newest = self.log.newest(Membership)
        at, membership = -1, self.born
        if newest is not None:
            assert isinstance(newest.control, Membership)
            at, membership = newest.offset, newest.control
        if self._stood.membership is not None and at <= self._stood_at:
            at, membership = self._stood_at, self._stood.membership
        self.membership_at = at
        if membership == self.membership and self.voters:
            return
        self.membership = membership
        self.voters = membership.voters
        self.is_voter = self.me in self.voters
        nodes = {member.node for member in membership.members} - {self.me.node}
        self.peers = self.repairing.peers = tuple(sorted(nodes))
        voting = {member.node for member in self.voters} - {self.me.node}
        self.voting_peers = tuple(sorted(voting))
        self.role.membership_changed()

    def give_up(self, span: Span) -> None:
        """The leader's log is not what was lost here: neither the span nor anything above it stands."""
        self.owe(self.log.head)
        self.cut(span.before)
        if self.verified.offset > span.before.offset:
            self.verified = span.before

    def save_state(self) -> int:
        self._state_io = self.ordering.issue()
        self.emit(effects.SaveState(self._state_io, SavedState(self.epoch, self.vote, self.owed)))
        return self._state_io

    def owe(self, head: EntryId) -> None:
        """Something that may have been promised is about to be given up: never forget that it was there."""
        if head > self.owed:
            self.owed = head
            self.save_state()

    def read(self, *, first: int, last: int, bytes_max: int) -> int:
        self._tokens += 1
        self.emit(effects.Read(self._tokens, first, last, bytes_max))
        return self._tokens

    # --- roles ---

    def become(self, name: str) -> None:
        """The only place where a role ends and another begins."""
        assert (self.role.name, name) in TRANSITIONS, (self.role.name, name)
        self.role.leave()
        self.role = ROLES[name](self)
        self.role.enter()

    def adopt(self, epoch: int) -> None:
        """A higher epoch was seen: step down and take it (YB-18)."""
        self.enter_epoch(epoch, vote=None)
        self.become("follower")

    def enter_epoch(self, epoch: int, *, vote: Member | None) -> int:
        """The one place where the epoch changes. Nothing is verified with its leader yet."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.vote = vote
        self.leader = 0
        self.verified = NOWHERE
        return self.save_state()

    def stand_down(self) -> None:
        """Give leadership or candidacy up within the epoch."""
        self.leader = 0
        self.become("follower")

    def advance_commit(self, to: int) -> None:
        """Commit never falls, and never passes the log's end."""
        if to <= self.commit:
            return
        assert to <= self.log.head.offset
        self.commit = to
        self._publish()

    def _publish(self) -> None:
        """Machines and readers get what is settled and flushed here, so that no restart takes it back."""
        to = min(self.commit, self.ordering.durable.offset)
        if to <= self.published:
            return
        self.published = to
        self.log.settle(to)  # Not before it is flushed: a full disk may yet take it from this log.
        self.emit(effects.Commit(to))
        self.waiting.published()
        every = self.config.tuning.snapshot_every
        covered = self.snapshot.last.offset if self.snapshot is not None else -1
        if every and to - covered >= every:
            self.take_snapshot()

    # --- who leads ---

    def heard_leader(self, node: int) -> None:
        """The leader of this epoch spoke. For a while, nobody else gets this vote (YB-16, lease reads)."""
        self.leader = node
        self._promised_until = self.now + self.config.tuning.election_timeout_s
        self.waiting.heard_leader()

    def _follows(self) -> bool:
        """A leader was heard within an election time-out; or at rest, where the failure detector watches it."""
        at_rest = self.leader and self.role.deadline is None and self.is_voter
        return bool(at_rest) or self.now < self._promised_until

    def take_snapshot(self) -> None:
        if not self._taking_snapshot:
            self._taking_snapshot = True
            self.emit(effects.TakeSnapshot())

    # --- facts that every role takes alike ---

    def _started(self, event: events.Started) -> None:
        recovered = event.recovered
        self.log = LogView(recovered)
        self.ordering = Ordering(recovered.head)
        saved = recovered.state if recovered.state is not None else SavedState()
        assert isinstance(saved, SavedState)
        # An entry's epoch was adopted before the entry was written, whatever became of the saved state.
        self.epoch = max(saved.epoch, recovered.head.epoch)
        self.vote = saved.vote if saved.epoch == self.epoch else None
        self.owed = saved.owed
        self.commit = max(recovered.commit, recovered.base.offset)
        if recovered.snapshot is not None:
            self._have_snapshot(recovered.snapshot)
        self.role = Follower(self)
        self._see_who_counts()
        self.role.enter()
        if self.epoch:  # What this replica promised before it was restarted, it does not know.
            self._promised_until = self.now + self.config.tuning.election_timeout_s
        if self.config.preferred == self.me.node and not self.epoch:
            # A new group need not wait for a leader that never was; only until its other replicas are there.
            self.role.deadline = self.now + self.config.tuning.heartbeat_s
        self._publish()

    def _received(self, event: events.Received) -> None:
        message = event.message
        if type(message) is messages.WantEntries:
            return self._want_entries(event.sender, message)
        if type(message) is messages.HaveEntries:
            return self._have_entries(event.sender, message)
        if message.epoch < self.epoch:
            return self._refuse_stale(event.sender, message)
        if type(message) is messages.VoteRequest and not message.handed_over and self._follows():
            return None  # Who is heard leads on. To take the epoch would depose it, too.
        if message.epoch > self.epoch:
            self.adopt(message.epoch)
        if type(message) is messages.VoteRequest:
            return self._vote_request(event.sender, message)
        if type(message) is messages.GoneRequest:
            return self._gone_request(event.sender, message)
        self.role.receive(event.sender, message)
        return None

    def _refuse_stale(self, sender: Member, message: Any) -> None:
        """Tell a leader or candidate of the past which epoch it is (YB-10); drop its answers."""
        if type(message) is messages.VoteRequest:
            self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, False, self.faulty))
        elif type(message) is messages.GoneRequest:
            self.send_when_saved(sender.node, messages.GoneResponse(self.epoch, message.asked, False))
        elif type(message) in (messages.AppendEntries, messages.SnapshotChunk, messages.StillRequest):
            self.send_when_saved(
                sender.node, messages.AppendResponse(self.epoch, False, -1, -1, self.commit, theirs=NOWHERE)
            )

    def _vote_request(self, sender: Member, message: messages.VoteRequest) -> None:
        """One vote an epoch, for whoever has a log at least as far as ours (OR-6, YB-11).

        Whether it counts is for the candidate to know: it asks only those who do by its own log, which may know
        of a membership that ours does not have yet. It stands by that of its own that a learner is never asked
        (YB-5).
        """
        grant = (
            (self.vote is None or self.vote == sender)
            and message.last >= self.claim
            and not self.installing  # the head says nothing about what was promised then
        )
        if grant and self.vote is None:
            self.vote = sender
            self.save_state()
        if grant:
            self.role.granted_vote()
        self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, grant, self.faulty))

    def _gone_request(self, sender: Member, message: messages.GoneRequest) -> None:
        """Somebody misses the leader (YB-16)."""
        if sender.node == self.leader and self.role.name != "leader":
            self.role.suspected(sender.node)  # We may be at rest: nobody else would ever wake us.
            self.leader = 0  # It asks whether it is gone itself: it does not lead any more.
            self._promised_until = self.now
        heard = self.role.name == "leader" or self._follows()
        gone = not heard and message.last >= self.claim and not self.installing
        self.role.was_asked_whether_gone(sender)
        self.send_when_saved(sender.node, messages.GoneResponse(self.epoch, message.asked, gone))

    def _proposed(self, event: events.Proposed) -> None:
        self.role.proposed(event)

    def _read_asked(self, event: events.ReadAsked) -> None:
        if event.level is events.ReadLevel.AT_OFFSET:
            self.waiting.read(event.offset, event.request)
        else:
            self.role.asked_to_read(event)

    def _persisted(self, event: events.Persisted) -> None:
        for effect in self.ordering.complete(event.io):
            self.emit(effect)
        while self._repairs and self._repairs[0][0] <= event.io:
            self.log.repaired(self._repairs.pop(0)[1])
            self._see_who_counts()
        self._publish()
        if self.staging is not None and 0 < self.staging.install_io <= event.io:
            self._installed(self.staging)
        self.role.persisted()

    def _installed(self, staging: Staging) -> None:
        snapshot = staging.snapshot
        self.staging = None
        self._have_snapshot(snapshot)
        if staging.keep:
            self.log.remove_prefix(snapshot.last)
        else:
            self.log.restart_after(snapshot.last)
            self.ordering.restarted_after(snapshot.last)
        self._see_who_counts()
        self.role.installed(snapshot)

    def _failed(self, event: events.Failed) -> None:
        """The disk refused an order (it is full): the log ends where it is durable, and is said anew."""
        self.ordering.fail(event.io)
        self._repairs.clear()
        self.staging = None
        self.stand_down()
        to = self.ordering.durable
        span = self.log.span_at(to.offset)
        agreed = to
        if span is not None and to != span.last and span.before.offset < self.published:
            # The place to cut at is unreadable, and with it something that was handed out: that is never given
            # up. So the disk has what it had, and what is settled of it will be mended.
            agreed, to = span.before, event.head
            self.log.fall_back(agreed, to)
            self.ordering.durable = to
            self._see_who_counts()
        elif span is not None and to != span.last:
            # Nothing of it was handed out: give up the whole span, and owe it.
            agreed = to = span.before
            self.owe(self.claim)
            self.ordering.cut(to)
        if self.log.head != to:
            self.log.cut(to)
            self._see_who_counts()
        if self.verified.offset > agreed.offset:
            self.verified = agreed
        self.commit = min(self.commit, max(agreed.offset, self.published))  # Will be told again.
        self.emit(effects.Cut(self.ordering.issue(), to))
        self.save_state()

    def _loaded(self, event: events.Loaded) -> None:
        wanted = self._serving.pop(event.token, None)
        if wanted is None:
            return self.role.loaded(event)
        node, message = wanted
        headers = tuple(header for header in event.headers if header.last <= message.span.last.offset)
        self.send(node, messages.HaveEntries(self.epoch, message.span, headers[:REPAIR_ENTRIES_MAX]))
        return None

    def _snapshot_taken(self, event: events.SnapshotTaken) -> None:
        self._taking_snapshot = False
        covered = self.snapshot.last.offset if self.snapshot is not None else -1
        if self.installing or event.snapshot.last.offset <= covered:
            return  # One that came from the leader is newer.
        self._have_snapshot(event.snapshot)
        to = self.log.boundary_at_or_below(event.snapshot.last.offset - self.config.tuning.keep_behind)
        if to is None or to.offset <= self.log.base.offset or self.log.span_at(to.offset) is not None:
            return
        self.log.remove_prefix(to)
        self.emit(effects.RemovePrefix(self.ordering.issue(), to))

    def _snapshot_lost(self, _: events.SnapshotLost) -> None:
        """The machine is whole, only its snapshot is not: take another; the leader has one if that fails."""
        self.snapshot = None
        self.take_snapshot()

    def _snapshot_failed(self, _: events.SnapshotFailed) -> None:
        self._taking_snapshot = False

    def _damaged(self, event: events.Damaged) -> None:
        """Unreadable bytes: mark them, ask the peers, and do not lead meanwhile."""
        self.log.mark_faulty(event.span)
        if self.log.faulty and self.role.name != "follower":
            self.stand_down()

    def _suspected(self, event: events.Suspected) -> None:
        self.role.suspected(event.node)

    def _commanded(self, event: events.Commanded) -> None:
        command: Command = event.command
        self.role.commanded(command)

    def _time_passed(self, _: events.TimePassed) -> None:
        asked = self.repairing.ask(self.now, self.log)
        if asked is not None:
            peer, span = asked
            self.send(peer, messages.WantEntries(self.epoch, span))
        self.waiting.woke()
        if self.role.deadline is not None and self.now >= self.role.deadline:
            self.role.woke()

    # --- repair ---

    def _want_entries(self, sender: Member, message: messages.WantEntries) -> None:
        if sender.node == self.leader and message.epoch == self.epoch:
            # Whoever has damage does not lead: it stood down. At rest, we would wait for it for ever.
            self.role.suspected(sender.node)
        reason = why_not(self.log, message.span)
        if reason:
            self.send(sender.node, messages.HaveEntries(self.epoch, message.span, why_not=reason))
            return
        span = message.span
        token = self.read(first=span.first_offset, last=span.last.offset, bytes_max=REPAIR_BYTES_MAX)
        self._serving[token] = (sender.node, message)

    def _have_entries(self, sender: Member, message: messages.HaveEntries) -> None:
        if message.why_not:
            if self.repairing.answered(self.log, peer=sender.node, span=message.span, reason=message.why_not):
                self.emit(effects.Report("every copy of these entries is damaged", message.span, self.me))
            if message.why_not == REMOVED:
                self.role.beyond_repair()
            return
        self.repair(self.repairing.usable(self.log, message.span, message.headers))

    def repair(self, headers: tuple[Header, ...]) -> None:
        if headers and not self._repairs:  # One at a time: the span moves when it is durable.
            io = self.ordering.issue()
            self._repairs.append((io, headers))
            self.emit(effects.Repair(io, headers))

    # --- shared by followers and their answers ---

    def flushed_agreement(self) -> int:
        """What a follower may acknowledge: durable, verified with this leader, and readable."""
        offset = min(self.ordering.durable.offset, self.verified.offset)
        return min(offset, self.log.intact_below()) if self.log.faulty else offset

    def last_at_or_below(self, position: EntryId) -> EntryId:
        """Our last known position at or below `position` in offset and epoch."""
        found = self.log.epochs.last_shared(position, self.log.head)
        span = self.log.span_at(found.offset)
        return found if span is None or found == span.last else span.before

    def plan(self, message: messages.AppendEntries) -> appending.Plan:
        return appending.plan(self.log, message.prev, message.headers)


ROLES: dict[str, type[Role]] = {role.name: role for role in (Follower, Prospect, Candidate, Leader)}

TRANSITIONS = {
    ("follower", "follower"),  # a higher epoch, or a failed order
    ("follower", "prospect"),
    ("follower", "candidate"),  # the leader wants it
    ("prospect", "candidate"),
    ("prospect", "follower"),
    ("candidate", "prospect"),  # the vote was split
    ("candidate", "follower"),
    ("candidate", "leader"),
    ("leader", "follower"),
}

_HANDLERS: dict[type, Callable[[Replica, Any], None]] = {
    events.Started: Replica._started,
    events.Received: Replica._received,
    events.Proposed: Replica._proposed,
    events.ReadAsked: Replica._read_asked,
    events.Persisted: Replica._persisted,
    events.Failed: Replica._failed,
    events.Loaded: Replica._loaded,
    events.SnapshotTaken: Replica._snapshot_taken,
    events.SnapshotFailed: Replica._snapshot_failed,
    events.SnapshotLost: Replica._snapshot_lost,
    events.Damaged: Replica._damaged,
    events.Suspected: Replica._suspected,
    events.Commanded: Replica._commanded,
    events.TimePassed: Replica._time_passed,
}
