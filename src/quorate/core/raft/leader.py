"""The leader: drives one cursor per follower, and says what is committed.

An entry is committed when a majority has flushed it and it is of the leader's own epoch; everything before it is
committed with it (OX-23, YB-19, Raft figure 8). Proposals and streaming are as in every protocol (core/leading.py).

What else a leader does stands beside this file: changing.py (who counts), reading.py, handing_over.py and
stamping.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import effects, events, quorum
from quorate.core.commands import ChangeMembership, Command, TransferLeadership, Turn
from quorate.core.cursor import Cursor, Phase
from quorate.core.effects import Outcome
from quorate.core.entry import EntryId, Header, Member, Span
from quorate.core.leading import Leading
from quorate.core.raft.changing import Changing
from quorate.core.raft.handing_over import HandingOver
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    SnapshotChunk,
    SnapshotResponse,
    StillResponse,
    TakeOver,
)
from quorate.core.raft.reading import Reading
from quorate.core.raft.roles import Role
from quorate.core.raft.stamping import Stamping

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Leader(Leading, Role):
    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._awake_since = replica.now
        self.changing = Changing(self)
        self.reading = Reading(self)
        self.handing_over = HandingOver(self)
        self.stamping = Stamping(replica)

    def enter(self) -> None:
        replica = self.replica
        assert replica.can_lead()
        assert replica.vote == replica.me
        replica.leader = replica.me.node
        self.membership_changed()
        self.begin_epoch()
        for cursor in self.cursors.values():
            self._probe(cursor)
        self.deadline = replica.now + replica.config.tuning.heartbeat_s

    def leave(self) -> None:
        super().leave()
        self.changing.leave()
        self.reading.leave()
        self.handing_over.leave()

    # --- proposals ---

    def why_closed(self, event: events.Proposed) -> str:
        if self.handing_over.heir:
            return f"leadership is being handed over to node {self.handing_over.heir}"
        if self.stamping.must_wait(event.wall_ms):
            return "a former leader's timestamps reach into the future"
        return super().why_closed(event)

    def stamp(self, event: events.Proposed) -> int:
        return self.stamping.stamp(event.wall_ms)

    def wake(self) -> None:
        """Something happened: everybody ticks again."""
        if self.deadline is None:
            self._awake_since = self.replica.now
        super().wake()
        for cursor in self.cursors.values():
            cursor.quiet = False

    def asked_to_read(self, event: events.ReadAsked) -> None:
        self.reading.ask(event)

    def commanded(self, command: Command) -> None:
        if isinstance(command, ChangeMembership):
            self.changing.order(command)
        elif isinstance(command, TransferLeadership):
            self.handing_over.order(command)
        elif isinstance(command, Turn):
            super().commanded(command)
        else:
            why = "the copies of this log do not agree in a way that knows such an order"
            self.replica.emit(
                effects.Reply(command.request, Outcome.REFUSED, leader=self.replica.leader, why=why)
            )

    # --- who follows ---

    def membership_changed(self) -> None:
        """Everybody who is in gets a cursor. Who is out keeps one until that is settled, to hear of it."""
        replica = self.replica
        members = replica.membership.members
        for member in sorted(members):
            cursor = self.cursors.get(member.node)
            if member.node == replica.me.node or (cursor is not None and cursor.member in members):
                continue
            self._matched.pop(member, None)
            self.cursors[member.node] = Cursor(member.node, member.incarnation, replica.log, replica.now)
            if self._epoch_first >= 0:
                self._probe(self.cursors[member.node])

    def _forget_who_left(self) -> None:
        nodes = {member.node for member in self.replica.membership.members}
        for node in [node for node in self.cursors if node not in nodes]:
            cursor = self.cursors.pop(node)
            self._matched.pop(cursor.member, None)
            if cursor.phase is Phase.STREAMING and cursor.next > self.replica.log.floor:
                # That it is settled: who knows that it is out need not miss us.
                self._send(cursor, self.replica.log.position(cursor.next - 1), search=bool(cursor.reading))

    # --- towards the followers ---

    def _push(self, cursor: Cursor) -> None:
        if cursor.phase is Phase.SEARCHING:
            self._probe(cursor)
        elif cursor.phase is Phase.STREAMING:
            self.stream(cursor)
        else:
            self._send_chunk(cursor)

    def _probe(self, cursor: Cursor) -> None:
        replica = self.replica
        if cursor.end <= replica.log.floor:
            self.begin_snapshot(cursor)
            return
        cursor.probe = max(cursor.probe, replica.log.floor)
        self._send(cursor, replica.log.position(cursor.probe), search=True)

    def _send(
        self,
        cursor: Cursor,
        prev: EntryId,
        headers: tuple[Header, ...] = (),
        *,
        search: bool = False,
        quiet: bool = False,
    ) -> None:
        replica = self.replica
        heir = self.handing_over.heir
        # Up to the end of what the follower will have verified then: see `LogView.decided`.
        end = headers[-1].last if headers else prev.offset
        commit = replica.log.decided(min(replica.commit, end))
        message = AppendEntries(replica.epoch, prev, commit, headers, search, quiet, heir)
        replica.send(cursor.node, message)

    def send_entries(self, cursor: Cursor, headers: tuple[Header, ...]) -> None:
        self._send(cursor, self.replica.log.position(headers[0].offset - 1), headers)

    def begin_snapshot(self, cursor: Cursor) -> None:
        replica = self.replica
        if replica.snapshot is None:  # It was damaged, and another is being taken.
            replica.take_snapshot()
            return
        cursor.begin_snapshot(replica.snapshot)
        self._send_chunk(cursor)

    def _send_chunk(self, cursor: Cursor) -> None:
        replica = self.replica
        if replica.snapshot is None:
            return
        if cursor.snapshot != replica.snapshot:  # A newer one took its place: start over with that.
            cursor.begin_snapshot(replica.snapshot)
        at = cursor.snapshot_at
        length = min(replica.config.tuning.chunk_bytes, replica.snapshot.size - at)
        chunk = SnapshotChunk(replica.epoch, replica.snapshot, at, length)
        replica.send(cursor.node, chunk, paced=replica.holds_back(cursor.member))

    # --- what the followers say ---

    def receive(self, sender: Member, message: Any) -> None:
        assert type(message) not in (AppendEntries, SnapshotChunk), "two leaders in one epoch"
        cursor = self.cursors.get(sender.node)
        if cursor is None:
            return
        if cursor.incarnation != sender.incarnation:
            # Another life of that disk: whatever its predecessor flushed is gone, and it does not count.
            self._matched.pop(cursor.member, None)
            cursor.incarnation = sender.incarnation
            cursor.search_anew(self.replica.log)
        cursor.heard(self.replica.now)
        if type(message) is AppendResponse:
            self._append_response(sender, cursor, message)
        elif type(message) is StillResponse:
            self.reading.answered(sender, message)
        elif type(message) is SnapshotResponse:
            self._snapshot_response(cursor, message)

    def _append_response(self, sender: Member, cursor: Cursor, message: AppendResponse) -> None:
        log = self.replica.log
        cursor.commit = message.commit
        cursor.priority = message.priority
        counts_again = cursor.loose and not message.loose
        cursor.loose = message.loose
        if message.loose:  # Whatever it had before, it may have given up.
            self._matched.pop(sender, None)
            cursor.matched = min(cursor.matched, message.matched)
        if self.deadline is None and not message.quiet:
            self.wake()  # Something old has woken it after we fell silent: let it rest again.
        cursor.quiet = message.quiet and message.matched == log.head.offset
        covering = message.wants_snapshot
        if message.faulty is not None and message.faulty.before.offset < log.base.offset:
            # What it lost is no longer in any log; one that ends inside of that would not mend it.
            covering = max(covering, min(message.faulty.last.offset, self.replica.published))
        if covering >= 0:
            self.offer_snapshot(cursor, covering=covering)
            return
        faulty = message.faulty
        if faulty is not None and log.holds(faulty.before) and not log.holds(faulty.last):
            self._contradict(cursor, faulty, message.commit)
            return
        if not message.accepted:
            assert message.theirs is not None
            if not cursor.refused(log, probe=message.probe, theirs=message.theirs):
                return
            if message.probe <= log.floor:
                self.begin_snapshot(cursor)
            else:
                self._probe(cursor)
            return
        if cursor.accepted(log, probe=message.probe, matched=message.matched) or counts_again:
            if (
                sender in self.replica.voters and not message.loose
            ):  # A learner is sent everything and never counts (YB-5).
                self._matched[sender] = cursor.matched
                self._commit()
            if self.replica.role is not self:
                return  # What was settled has ended this leadership.
            self._push(cursor)
            if self.handing_over.heir == cursor.node:
                self.handing_over.go_on()
            if self.changing.is_open:
                self.changing.go_on()

    def _contradict(self, cursor: Cursor, faulty: Span, commit: int) -> None:
        """What this follower lost is not what we have, so nobody can give it back by its name, and it would ask
        for ever. Name our entry there, and it gives its own up; but first the end of what is settled, and it
        gets that back.
        """
        log = self.replica.log
        if cursor.contradicted == faulty:
            return  # Once a heartbeat: it may have ears for something else first.
        cursor.contradicted = faulty
        settled_inside = faulty.before.offset < commit < faulty.last.offset
        at = log.position(commit if settled_inside else min(faulty.last.offset, log.head.offset))
        self._send(cursor, at, search=True)

    def _snapshot_response(self, cursor: Cursor, message: SnapshotResponse) -> None:
        if cursor.phase is Phase.SNAPSHOT and message.snapshot == cursor.snapshot:
            cursor.snapshot_at = message.at
            self._send_chunk(cursor)

    # --- commit ---

    def persisted(self) -> None:
        self._commit()

    def _commit(self) -> None:
        replica = self.replica
        if replica.commit == replica.log.head.offset:
            return  # Nothing is left to commit: a late follower, or our own flush behind those of the others.
        self._matched[replica.me] = replica.durable.offset
        # Between a Rollback and what it takes back nothing can be settled by counting (`confirm`, D8).
        reached = replica.log.decided(quorum.quorum_offset(self._matched, replica.membership))
        if reached <= replica.commit or reached < self._epoch_first:
            return  # Only entries of the own epoch commit by counting (YB-19).
        assert replica.log.epoch_at(reached) == replica.epoch
        before, is_first = replica.commit, not self.has_settled
        self.settle(reached)
        if replica.role is not self:
            return  # A leader that was to be demoted has nothing left to settle.
        if is_first:
            self.reading.settled()
        if before < replica.membership_at or is_first:
            self._membership_settled()

    def may_end(self) -> bool:
        return not self.changing.is_open and super().may_end()

    def _membership_settled(self) -> None:
        """Perhaps the newest one is, perhaps a change can go on."""
        replica = self.replica
        self.changing.go_on()
        membership = replica.membership
        if membership.wanted is not None or replica.membership_at > replica.commit:
            return
        self._forget_who_left()
        if not replica.is_voter:  # The new ensemble is settled, and its leader is not in it.
            self._name_successor()
            replica.stand_down()

    def _name_successor(self) -> None:
        """So that the others need not wait until they miss us."""
        replica = self.replica
        followers = [
            cursor for cursor in self.cursors.values() if cursor.member in replica.membership.ensemble
        ]
        heir = self.handing_over.heir  # Who was told to take over is not deserted for another (YB-15).
        nearest = max(
            followers, key=lambda cursor: (cursor.node == heir, cursor.matched, cursor.node), default=None
        )
        if nearest is not None:
            replica.send(nearest.node, TakeOver(replica.epoch))

    # --- time ---

    def woke(self) -> None:
        replica = self.replica
        self.deadline = replica.now + replica.config.tuning.heartbeat_s
        current = self._everyone_is_current()
        if current and all(cursor.quiet for cursor in self.cursors.values()):
            self.deadline = None
            return
        if not self._is_followed() and not self.leads_on_alone():
            # Nobody can be told that anything is settled: let somebody lead who is heard (check-quorum).
            replica.stand_down()
            return
        self.reading.woke()
        self.handing_over.woke()
        self.beat(quiet=current)
        if self.changing.is_open:
            self.changing.go_on()

    def beat(self, *, quiet: bool = False) -> None:
        """To everybody, whatever else is under way: somebody leads."""
        replica = self.replica
        for cursor in self.cursors.values():
            cursor.contradicted = None
            if not cursor.is_due():
                continue
            self._push(cursor)
            if cursor.phase is not Phase.STREAMING:
                continue
            if cursor.next <= replica.log.floor:  # No room to stream, and what it needs is gone.
                self.begin_snapshot(cursor)
                continue
            searching = bool(cursor.reading)  # Until its headers are read, this may be inside an entry.
            self._send(cursor, replica.log.position(cursor.next - 1), search=searching, quiet=quiet)

    def leads_on_alone(self) -> bool:
        """Whether to go on though too few follow."""
        return False

    def _is_followed(self) -> bool:
        """Whether a majority was heard of within an election time-out, since there was something to say."""
        replica = self.replica
        long_ago = replica.now - replica.config.tuning.election_timeout_s
        if self._awake_since > long_ago:
            return True
        heard = {
            cursor.member
            for cursor in self.cursors.values()
            if cursor.last_heard >= long_ago and not cursor.loose
        }
        heard.add(replica.me)
        return replica.has_quorum(heard)

    def _everyone_is_current(self) -> bool:
        replica = self.replica
        head = replica.log.head.offset
        return (
            replica.commit == head
            and replica.ordering.idle
            and not self.reading.is_waiting
            and not self.handing_over.is_wanted
            and not self.changing.is_open
            and all(
                cursor.phase is Phase.STREAMING and cursor.matched == head and cursor.commit == head
                for cursor in self.cursors.values()
            )
        )

    def was_asked_whether_gone(self, sender: Member) -> None:
        """Somebody does not hear us, or has just come back."""
        cursor = self.cursors.get(sender.node)
        if cursor is not None:
            cursor.beats = 0
            self.wake()
            self._push(cursor)

    def suspected(self, node: int) -> None:
        cursor = self.cursors.get(node)
        if cursor is not None and self.deadline is None:
            self.wake()
