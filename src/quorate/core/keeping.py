"""What every protocol's replica does alike: it keeps a log.

Disk orders and their completions, what is settled and published, snapshots and repair are the same in every room,
and apart from leadership. A room's `Replica` is a `Keeper` with an epoch of its own making, its messages, and its
roles; the roles hold what differs between them. Legal transitions are in one place, `become`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

from quorate.core import effects, events
from quorate.core.effects import Effect
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span, Standing
from quorate.core.log import LogView
from quorate.core.mending import Mending, Serving
from quorate.core.ordering import Ordering
from quorate.core.repairing import (
    REPAIR_ENTRIES_MAX,
    HaveEntries,
    Repairing,
    WantEntries,
)
from quorate.core.staging import Staging
from quorate.core.waiting import Waiting

KEEP_ALL = 1 << 62
"""As `keep_behind`: this log is the data, and nothing of it goes because a snapshot covers it, but what expires."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A Barrier in a log: which entry it is, and of which turn."""

    entry: EntryId
    at: int


class Keeper(Mending):
    """One copy of one partition's log."""

    roles: ClassVar[Mapping[str, type[Any]]]
    transitions: ClassVar[frozenset[tuple[str, str]]]
    handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    resting: ClassVar[str]
    """The role of whoever does not lead, and does not try to."""

    is_voter = True
    """Whether it counts; where somebody oversees it, that one knows."""

    def __init__(self, config: Any, rng: Random) -> None:
        self.config = config
        self.me: Member = config.me
        self.rng = rng
        self.now = 0.0
        self.epoch = 0
        self.owed = NOWHERE
        """A head that was once promised and had to be given up to damage."""
        self.leader = 0
        self.commit = -1
        """The highest offset known to be settled."""
        self.published = -1
        """What of it was flushed here and handed to machines and readers."""
        self.verified = NOWHERE
        """Follower: the last entry known to agree with the leader of this epoch (OR-10)."""
        self.snapshot: Snapshot | None = None
        self.staging: Staging | None = None
        self.peers: tuple[int, ...] = ()
        """The other nodes that hold this log."""
        self.generation = 0
        """The turn that this replica's protocol began with; 0: it never had another."""
        self.voids = False
        """Settled records of this log may be void."""
        self.barrier: Ended | None = None
        """Where this protocol ends, if that stands in the log."""
        self.begun: int | None = -1
        """The offset of the Barrier behind which this generation's own controls begin; None: it is not here yet."""
        self.counted: tuple[Member, ...] = ()
        """Who is of the ensemble, by what the metadata group says; nobody where it was not heard of yet."""
        self.waiting = Waiting(self)
        self.repairing = Repairing((), config.tuning.repair_retry_s)
        self.log: LogView
        self.ordering: Ordering
        self.role: Any
        self._state_io = 0
        self._repairs: list[tuple[int, tuple[Header, ...]]] = []
        self._serving: dict[int, Serving] = {}
        self._tokens = 0
        self._expired = NOWHERE, 0
        """The last entry that need not be kept, as far as is known here, and the checksum of its frame."""
        self._agreed = -1
        """How far the newest generation of compaction reaches that everybody has, as far as is known here."""
        self._handed_out = -1
        """What machines and readers here were given in the generation before: that is never taken back (017)."""
        self._taking_snapshot = False
        self._stood = Standing()
        """What stood at the newest snapshot that was ever known here, and where that was: it may be lost."""
        self._stood_at = -1
        self._stood_last = NOWHERE
        self._effects: list[Effect] = []

    # --- the door ---

    def step(self, now: float, event: events.Event) -> list[Effect]:
        """Tell the replica a fact; carry out what it orders, in order."""
        assert not self._effects
        self.now = now
        self.handlers[type(event)](self, event)
        ordered, self._effects = self._effects, []
        return ordered

    def deadline(self) -> float | None:
        """When to be woken; None: not at all."""
        mine: float | None = self.role.deadline
        if not self.log.faulty and self.waiting.deadline is None:
            return mine
        repairing = None if self._is_filling else self.repairing.deadline(self.log)
        others = (mine, repairing, self.waiting.deadline)
        return min((due for due in others if due is not None), default=None)

    @property
    def durable(self) -> EntryId:
        return self.ordering.durable

    @property
    def leads_from(self) -> int | None:
        """The first offset of the epoch that this replica leads; None if it does not lead.

        Once that is settled, everything unsettled in its log was proposed to this very replica.
        """
        first: int | None = self.role.leads_from
        return first

    @property
    def faulty(self) -> bool:
        """This log misses something that was promised: counted when voting, never eligible to lead."""
        return bool(self.log.faulty) or self.owed > self.log.head or self.lacks_snapshot

    @property
    def lacks_snapshot(self) -> bool:
        """The log starts behind a snapshot that cannot be read, or has one that stands for what was compacted."""
        return self.snapshot is None and (self.log.base != NOWHERE or self.log.compacted >= 0)

    @property
    def wants_snapshot(self) -> int:
        """The offset that a snapshot has to cover; -1: none is needed."""
        return self.log.floor if self.lacks_snapshot else -1

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being put in the log's place."""
        return self.staging is not None and self.staging.install_io > 0

    @property
    def keeps_all(self) -> bool:
        """Whether a log starts where what has expired ends, whatever snapshots cover."""
        return bool(self.config.tuning.keep_behind >= KEEP_ALL)

    @property
    def _is_filling(self) -> bool:
        """A log may lack much: the next stretch is asked for when the one before is whole, and then at once.
        Asked before, it would be the same one again, and the next would wait for its time."""
        return bool(self._repairs)

    @property
    def claim(self) -> EntryId:
        """The head that this replica answers for: what it has, or what it owes."""
        return max(self.log.head, self.owed)

    # --- what a room adds ---

    def describe(self) -> str:
        """In one line, for people."""
        raise NotImplementedError

    def can_lead(self) -> bool:
        raise NotImplementedError

    @property
    def voting_peers(self) -> tuple[int, ...]:
        """The other nodes that count."""
        raise NotImplementedError

    def has_quorum(self, members: set[Member]) -> bool:
        """Whether these are enough to decide something."""
        raise NotImplementedError

    def saved_state(self) -> Any:
        """What must not be forgotten beside the log."""
        raise NotImplementedError

    def controls_changed(self) -> None:
        """Control entries came, or were cut, or a snapshot took their place."""

    def release(self, effect: Effect) -> None:
        """What waited for the disk may be said now."""
        self.emit(effect)

    def have_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._stood, self._stood_at, self._stood_last = snapshot.standing, snapshot.last.offset, snapshot.last

    # --- where a protocol ends ---

    def _controls_changed(self) -> None:
        self._look_for_barriers()
        self.controls_changed()

    def _look_for_barriers(self) -> None:
        """A log that starts behind a Barrier has it from the snapshot, which ends there: nothing above counts."""
        barriers = self.log.barriers()
        if not barriers and not self._stood.turned:
            self.barrier, self.begun = None, -1 if not self.generation else None
            return
        found = [Ended(header.id, at) for header, at in barriers]
        if self._stood.turned and all(ended.at < self._stood.turned for ended in found):
            found.append(Ended(self._stood_last, self._stood.turned))
            found.sort(key=lambda ended: ended.at)
        self.barrier = next((ended for ended in found if ended.at > self.generation), None)
        mine = (ended.entry.offset for ended in found if ended.at >= self.generation)
        self.begun = next(mine, None) if self.generation else -1

    # --- orders ---

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, to: int, message: Any, *, paced: bool = False) -> None:
        self._effects.append(effects.Send(to, message, paced))

    def send_when_saved(self, to: int, message: Any) -> None:
        """An answer that depends on the epoch or the vote waits until they are durable (YB-7)."""
        if self._state_io > self.ordering.persisted:
            self.ordering.hold(self.ordering.issued, effects.Send(to, message))
        else:
            self.send(to, message)

    def send_when_durable(self, to: int, message: Any) -> None:
        """An answer that names the head waits until everything that was ordered is flushed."""
        if self.ordering.idle:
            self.send(to, message)
        else:
            self.ordering.hold(self.ordering.issued, effects.Send(to, message))

    def append(self, headers: tuple[Header, ...]) -> None:
        controls_count = len(self.log.controls)
        self.log.append(headers)
        io = self.ordering.issue()
        self.ordering.appended(io, self.epoch, self.log.head)
        self.emit(effects.Append(io, headers))
        if len(self.log.controls) != controls_count:
            self._controls_changed()

    def cut(self, to: EntryId) -> None:
        assert to.offset >= self.commit, "what is settled is never cut"
        aside = self.sets_aside(to)
        self.log.cut(to)
        self.ordering.cut(to)
        self.emit(effects.Cut(self.ordering.issue(), to, aside))
        self._controls_changed()
        if aside:
            self.take_snapshot()

    def sets_aside(self, to: EntryId) -> bool:
        """Whether people may want to see what is about to be cut (`confirm`, TT-27)."""
        return False

    def give_up(self, span: Span) -> None:
        """The leader's log is not what was lost here: neither the span nor anything above it stands."""
        self.owe(self.log.head)
        self.cut(span.before)
        if self.verified.offset > span.before.offset:
            self.verified = span.before

    def save_state(self) -> int:
        self._state_io = self.ordering.issue()
        self.emit(effects.SaveState(self._state_io, self.saved_state()))
        return self._state_io

    def owe(self, head: EntryId) -> None:
        """Something that may have been promised is about to be given up: never forget that it was there."""
        if head > self.owed:
            self.owed = head
            self.save_state()

    def read(self, *, first: int, last: int, bytes_max: int, paced_for: int = 0, mends: bool = False) -> int:
        self._tokens += 1
        self.emit(effects.Read(self._tokens, first, last, bytes_max, paced_for, mends))
        return self._tokens

    def install(self, staging: Staging) -> None:
        """A log that holds the snapshot's end keeps what is above it; another is replaced as a whole, and
        what it held, which was perhaps promised to somebody, is owed. One that keeps all starts where it did, or at
        what has expired: the rest of it is asked of peers."""
        last = staging.snapshot.last
        if last.offset < self._agreed:  # Peers could not fill in what lies below: a newer one will come.
            self.staging = None
            return
        staging.keep = self.log.holds(last)
        if not staging.keep and self.log.head > last:
            self.owe(self.log.head)
        staging.install_io = self.ordering.issue()
        start, checksum = self._expired
        if self.keeps_all and (staging.keep or start.offset < last.offset):
            staging.start = self.log.base if staging.keep else start
            staging.compacted = self._agreed
        self.emit(
            effects.InstallSnapshot(
                staging.install_io,
                staging.snapshot,
                staging.keep,
                staging.start,
                checksum,
                staging.compacted,
            )
        )

    def take_snapshot(self) -> None:
        if not self._taking_snapshot:
            self._taking_snapshot = True
            self.emit(effects.TakeSnapshot())

    # --- roles ---

    def become(self, name: str) -> None:
        """The only place where a role ends and another begins."""
        assert (self.role.name, name) in self.transitions, (self.role.name, name)
        self.role.leave()
        self.role = self.roles[name](self)
        self.role.enter()

    def stand_down(self) -> None:
        """Give leadership or candidacy up within the epoch."""
        self.leader = 0
        self.become(self.resting)

    # --- what is settled ---

    def advance_commit(self, to: int) -> None:
        """Commit never falls, and passes neither the log's end nor a Barrier (017)."""
        if self.barrier is not None:
            to = min(to, self.barrier.entry.offset)
        if to <= self.commit:
            return
        assert to <= self.log.head.offset
        self.commit = to
        self.publish()

    def publish(self) -> None:
        """Machines and readers get what is settled and flushed here, so that no restart takes it back.

        What cannot be read may hold a ROLLBACK of what can be: with damage, nothing more is decided then than what
        was before.
        """
        if self.voids and self.log.faulty:
            to = self._handed_out
        else:
            to = self.log.decided(min(self.commit, self.ordering.durable.offset))
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
        if self._expired[0].offset > self.log.base.offset:
            self._remove_expired()

    def verify(self, verified: EntryId, commit: int) -> None:
        """Commit moves after the append, and only as far as the logs are known to agree (OR-9, OR-10).

        Where records may be void, the leader names a place that is decided by what it has sent up to there. If
        damage ends the comparison before that, a ROLLBACK may be in what cannot be read: it settles nothing then.
        """
        if verified.offset > self.verified.offset:
            self.verified = verified
        if self.voids and commit > self.verified.offset:
            return
        self.advance_commit(min(commit, self.verified.offset))

    def flushed_agreement(self) -> int:
        """What a follower may acknowledge: durable, verified with this leader, and readable."""
        offset = min(self.ordering.durable.offset, self.verified.offset)
        return min(offset, self.log.intact_below()) if self.log.faulty else offset

    def last_at_or_below(self, position: EntryId) -> EntryId:
        """Our last known position at or below `position` in offset and epoch."""
        found = self.log.epochs.last_shared(position, self.log.head)
        span = self.log.span_at(found.offset)
        return found if span is None or found == span.last else span.before

    # --- facts that every role takes alike ---

    def recover(self, recovered: events.Recovered, *, epoch: int, owed: EntryId) -> None:
        """What the disk says, and the epoch that was saved."""
        self.log = LogView(recovered)
        self.ordering = Ordering(recovered.head)
        self.generation = recovered.generation
        self.voids = self.voids or recovered.voids
        # An entry's epoch was adopted before the entry was written, whatever became of the saved state.
        self.epoch = max(epoch, recovered.head.epoch)
        self.owed = owed
        self.commit = max(recovered.commit, recovered.base.offset)
        self._expired = recovered.base, recovered.base_checksum
        self._agreed = recovered.compacted
        self._handed_out = recovered.published
        if recovered.snapshot is not None:
            self.have_snapshot(recovered.snapshot)
        self._look_for_barriers()

    def _proposed(self, event: events.Proposed) -> None:
        self.role.proposed(event)

    def _gathered(self, event: events.Gathered) -> None:
        self.role.gathered()

    def _read_asked(self, event: events.ReadAsked) -> None:
        if event.level is events.ReadLevel.AT_OFFSET:
            self.waiting.read(event.offset, event.request)
        else:
            self.role.asked_to_read(event)

    def _persisted(self, event: events.Persisted) -> None:
        for effect in self.ordering.complete(event.io):
            self.release(effect)
        while self._repairs and self._repairs[0][0] <= event.io:
            self.log.repaired(self._repairs.pop(0)[1])
            self._controls_changed()
        self.publish()
        if self.staging is not None and 0 < self.staging.install_io <= event.io:
            self._installed(self.staging)
        self.role.persisted()

    def _installed(self, staging: Staging) -> None:
        snapshot = staging.snapshot
        self.staging = None
        self.have_snapshot(snapshot)
        if not staging.keep:
            self.log.restart_after(snapshot.last)
            self.ordering.restarted_after(snapshot.last)
            self.verified = min(self.verified, snapshot.last, key=lambda entry: entry.offset)
            if staging.start is not None:
                self.log.reach_back(staging.start, compacted=staging.compacted)
        elif staging.start is None:
            self.log.remove_prefix(snapshot.last)
        self._controls_changed()
        self.role.installed(snapshot)
        self._remove_expired()

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
            self._controls_changed()
        elif span is not None and to != span.last:
            # Nothing of it was handed out: give up the whole span, and owe it.
            agreed = to = span.before
            self.owe(self.claim)
            self.ordering.cut(to)
        # Will be told again. (Looked up before a Rollback is forgotten with the rest.)
        self.commit = self.log.decided(min(self.commit, max(agreed.offset, self.published)))
        if self.log.head != to:
            self.log.cut(to)
            self._controls_changed()
        if self.verified.offset > agreed.offset:
            self.verified = agreed
        self.emit(effects.Cut(self.ordering.issue(), to))
        self.save_state()

    def _loaded(self, event: events.Loaded) -> None:
        serving = self._serving.pop(event.token, None)
        if serving is None:
            self.role.loaded(event)
            return
        message = serving.message
        headers = tuple(header for header in event.headers if header.last <= message.span.last.offset)
        self.send(serving.node, HaveEntries(self.epoch, message.span, headers[:REPAIR_ENTRIES_MAX]))

    def _snapshot_taken(self, event: events.SnapshotTaken) -> None:
        self._taking_snapshot = False
        covered = self.snapshot.last.offset if self.snapshot is not None else -1
        if self.installing or event.snapshot.last.offset <= covered:
            return  # One that came from the leader is newer.
        self.have_snapshot(event.snapshot)
        self.role.snapshot_taken()
        self._remove_expired()
        if self.keeps_all:
            return
        to = self.log.boundary_at_or_below(event.snapshot.last.offset - self.config.tuning.keep_behind)
        if to is None or to.offset <= self.log.base.offset or self.log.span_at(to.offset) is not None:
            return
        self.log.remove_prefix(to)
        self.emit(effects.RemovePrefix(self.ordering.issue(), to))

    def _has_expired(self, event: events.Expired) -> None:
        """Told again and again as long as the log starts below: the disk may have been full."""
        if event.to.offset >= self._expired[0].offset:
            self._expired = event.to, event.checksum
            self._remove_expired()

    def _remove_expired(self) -> None:
        """What need not be kept goes, once a snapshot stands for it: only then can a machine do without."""
        to, checksum = self._expired
        if not self.log.base.offset < to.offset <= self.log.head.offset or self.installing:
            return
        if self.snapshot is None or self.snapshot.last.offset < to.offset:
            if to.offset <= self.published:
                self.take_snapshot()
        elif self.log.span_at(to.offset) is not None or self.log.holds(to):
            self.log.remove_prefix(to)
            self.emit(effects.RemovePrefix(self.ordering.issue(), to, checksum))

    def _snapshot_lost(self, _: events.SnapshotLost) -> None:
        """The machine is whole, only its snapshot is not: take another; the leader has one if that fails."""
        self.snapshot = None
        self.take_snapshot()

    def _snapshot_failed(self, _: events.SnapshotFailed) -> None:
        self._taking_snapshot = False

    def _damaged(self, event: events.Damaged) -> None:
        """Unreadable bytes: mark them, ask the peers, and do not lead meanwhile."""
        self.log.mark_faulty(event.span)
        if self.log.faulty and self.role.needs_whole_log:
            self.stand_down()

    def _suspected(self, event: events.Suspected) -> None:
        if event.ended:
            self.role.ended(event.node)
        else:
            self.role.suspected(event.node)

    def _commanded(self, event: events.Commanded) -> None:
        self.role.commanded(event.command)

    def _time_passed(self, _: events.TimePassed) -> None:
        asked = None if self._is_filling else self.repairing.ask(self.now, self.log)
        if asked is not None:
            peer, span = asked
            self.send(peer, WantEntries(self.epoch, span, self.log.compacted))
        self.waiting.woke()
        if self.role.deadline is not None and self.now >= self.role.deadline:
            self.role.woke()


COMMON_HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    events.Proposed: Keeper._proposed,
    events.Gathered: Keeper._gathered,
    events.ReadAsked: Keeper._read_asked,
    events.Persisted: Keeper._persisted,
    events.Failed: Keeper._failed,
    events.Loaded: Keeper._loaded,
    events.SnapshotTaken: Keeper._snapshot_taken,
    events.SnapshotFailed: Keeper._snapshot_failed,
    events.SnapshotLost: Keeper._snapshot_lost,
    events.Damaged: Keeper._damaged,
    events.Expired: Keeper._has_expired,
    events.CompactionWanted: Keeper._compaction_wanted,
    events.CompactionAgreed: Keeper._compaction_agreed,
    events.Compacted: Keeper._compacted,
    events.CompactionUndone: Keeper._compaction_undone,
    events.Counted: Keeper._counted,
    events.Suspected: Keeper._suspected,
    events.Commanded: Keeper._commanded,
    events.TimePassed: Keeper._time_passed,
}
"""All but `Started` and `Received`, which are a room's own. A room that overrides another has to name it, too."""
