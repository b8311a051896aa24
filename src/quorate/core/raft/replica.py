"""One raft replica: one door (`step`), three roles, and what they share.

The roles hold what differs between them (follower.py, candidate.py, leader.py). Here stands what every role
does alike: epochs and votes, disk orders and their completions, commit, snapshots, repair. Legal transitions
are in one place, `become`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import appending, effects, events
from quorate.core.effects import Effect
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span
from quorate.core.log import LogView
from quorate.core.ordering import Ordering
from quorate.core.raft import messages
from quorate.core.raft.candidate import Candidate
from quorate.core.raft.config import Config, SavedState
from quorate.core.raft.follower import Follower
from quorate.core.raft.leader import Leader
from quorate.core.raft.roles import Role
from quorate.core.raft.staging import Staging
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
        self.is_voter = config.me in config.voters
        peers = {member.node for member in config.voters + config.learners} - {config.me.node}
        self.peers = tuple(sorted(peers))
        self.repairing = Repairing(self.peers, config.tuning.repair_retry_s)
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
        repair = self.repairing.deadline(self.log)
        if mine is None or repair is None:
            return repair if mine is None else mine
        return min(mine, repair)

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
        return self.is_voter and not self.faulty and not self.installing

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
        self.log.append(headers)
        io = self.ordering.issue()
        self.ordering.appended(io, self.epoch, self.log.head)
        self.emit(effects.Append(io, headers))

    def cut(self, to: EntryId) -> None:
        assert to.offset >= self.commit, "what is settled is never cut"
        self.log.cut(to)
        self.ordering.cut(to)
        self.emit(effects.Cut(self.ordering.issue(), to))

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
        self.log.settle(to)
        self._publish()

    def _publish(self) -> None:
        """Machines and readers get what is settled and flushed here, so that no restart takes it back."""
        to = min(self.commit, self.ordering.durable.offset)
        if to <= self.published:
            return
        self.published = to
        self.emit(effects.Commit(to))
        every = self.config.tuning.snapshot_every
        covered = self.snapshot.last.offset if self.snapshot is not None else -1
        if every and to - covered >= every:
            self.take_snapshot()

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
        self.snapshot = recovered.snapshot
        self.role = Follower(self)
        self.role.enter()
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
        if message.epoch > self.epoch:
            self.adopt(message.epoch)
        elif message.epoch < self.epoch:
            return self._refuse_stale(event.sender, message)
        if type(message) is messages.VoteRequest:
            return self._vote_request(event.sender, message)
        self.role.receive(event.sender, message)
        return None

    def _refuse_stale(self, sender: Member, message: Any) -> None:
        """Tell a leader or candidate of the past which epoch it is (YB-10); drop its answers."""
        if type(message) is messages.VoteRequest:
            self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, False, self.faulty))
        elif type(message) in (messages.AppendEntries, messages.SnapshotChunk):
            self.send_when_saved(
                sender.node, messages.AppendResponse(self.epoch, False, -1, -1, self.commit, theirs=NOWHERE)
            )

    def _vote_request(self, sender: Member, message: messages.VoteRequest) -> None:
        """One vote an epoch, for a voter whose log is at least as far as ours (OR-6, YB-11)."""
        grant = (
            self.is_voter
            and sender in self.config.voters
            and (self.vote is None or self.vote == sender)
            and message.last >= self.claim
            and not self.installing  # the head says nothing about what was promised then
        )
        if grant and self.vote is None:
            self.vote = sender
            self.save_state()
        if grant:
            self.role.granted_vote()
        self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, grant, self.faulty))

    def _proposed(self, event: events.Proposed) -> None:
        self.role.proposed(event)

    def _persisted(self, event: events.Persisted) -> None:
        for effect in self.ordering.complete(event.io):
            self.emit(effect)
        while self._repairs and self._repairs[0][0] <= event.io:
            self.log.repaired(self._repairs.pop(0)[1])
        self._publish()
        if self.staging is not None and 0 < self.staging.install_io <= event.io:
            self._installed(self.staging)
        self.role.persisted()

    def _installed(self, staging: Staging) -> None:
        snapshot = staging.snapshot
        self.staging = None
        self.snapshot = snapshot
        if staging.keep:
            self.log.remove_prefix(snapshot.last)
        else:
            self.log.restart_after(snapshot.last)
            self.ordering.restarted_after(snapshot.last)
        self.role.installed(snapshot)

    def _failed(self, event: events.Failed) -> None:
        """The disk refused an order (it is full): the log ends where it is durable, and is said anew."""
        self.ordering.fail(event.io)
        self._repairs.clear()
        self.staging = None
        self.stand_down()
        to = self.ordering.durable
        span = self.log.span_at(to.offset)
        if span is not None and to != span.last:
            # The place to cut at is itself unreadable: give up the whole span, and owe it.
            to = span.before
            self.owe(self.claim)
            self.ordering.cut(to)
        if self.log.head != to:
            self.log.cut(to)
        if self.verified.offset > to.offset:
            self.verified = to
        self.commit = min(self.commit, to.offset)  # Will be told again.
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
        self.snapshot = event.snapshot
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
        raise AssertionError(f"raft has no command {event.command}")

    def _time_passed(self, _: events.TimePassed) -> None:
        asked = self.repairing.ask(self.now, self.log)
        if asked is not None:
            peer, span = asked
            self.send(peer, messages.WantEntries(self.epoch, span))
        if self.role.deadline is not None and self.now >= self.role.deadline:
            self.role.woke()

    # --- repair ---

    def _want_entries(self, sender: Member, message: messages.WantEntries) -> None:
        if sender.node == self.leader and message.epoch == self.epoch:
            # Whoever has damage does not lead: it stood down, and we may be at rest (seed 10121).
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


ROLES: dict[str, type[Role]] = {role.name: role for role in (Follower, Candidate, Leader)}

TRANSITIONS = {
    ("follower", "follower"),  # a higher epoch, or a failed order
    ("follower", "candidate"),
    ("candidate", "candidate"),  # the vote was split
    ("candidate", "follower"),
    ("candidate", "leader"),
    ("leader", "follower"),
}

_HANDLERS: dict[type, Callable[[Replica, Any], None]] = {
    events.Started: Replica._started,
    events.Received: Replica._received,
    events.Proposed: Replica._proposed,
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
