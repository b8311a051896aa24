"""The leader: appends proposals, drives one cursor per follower, and says what is committed.

Entries go to the followers while they are still being flushed here; the leader counts itself like anybody
else, when its own flush is done. An entry is committed when a majority has flushed it and it is of the
leader's own epoch; everything before it is committed with it (OX-23, YB-19, Raft figure 8).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from quorate.core import effects, events, quorum
from quorate.core.cursor import Cursor, Phase
from quorate.core.effects import Outcome
from quorate.core.entry import Header, Kind, Member, NoOp, Span
from quorate.core.raft.messages import AppendEntries, AppendResponse, SnapshotChunk, SnapshotResponse
from quorate.core.raft.roles import Role

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Leader(Role):
    name = "leader"

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.cursors: dict[int, Cursor] = {}
        self._matched: dict[Member, int] = {}
        """What each voter has flushed of this log; only voters of the right incarnation get in."""
        self._pending: deque[tuple[int, int, int]] = deque()
        """(last offset, first offset, request) of proposals that wait for their commit."""
        self._readers: dict[int, int] = {}
        self._epoch_first = 0

    @property
    def leads_from(self) -> int:
        return self._epoch_first

    def enter(self) -> None:
        replica = self.replica
        assert replica.can_lead()
        assert replica.vote == replica.me
        replica.leader = replica.me.node
        for member in replica.config.voters + replica.config.learners:
            if member != replica.me:
                self.cursors[member.node] = Cursor(member.node, member.incarnation, replica.log, replica.now)
        # Nothing of earlier epochs commits by counting: the first entry of the own epoch carries it (YB-19).
        self._epoch_first = replica.log.head.offset + 1
        noop = Header(replica.epoch, self._epoch_first, kind=Kind.CONTROL, control=NoOp(replica.me.node))
        replica.append((noop,))
        for cursor in self.cursors.values():
            self._probe(cursor)
        self.deadline = replica.now + replica.config.tuning.heartbeat_s

    def leave(self) -> None:
        """Whoever still waits hears *unknown*: the next leader may commit the entries yet (rule 9)."""
        for _, _, request in self._pending:
            self.replica.emit(effects.Reply(request, Outcome.UNKNOWN))
        self._pending.clear()

    # --- proposals ---

    def proposed(self, event: events.Proposed) -> None:
        replica = self.replica
        log = replica.log
        if len(self._pending) >= replica.config.tuning.uncommitted_entries_max:
            replica.emit(effects.Reply(event.request, Outcome.BUSY, leader=replica.me.node))
            return
        first = offset = log.head.offset + 1
        headers = []
        for header in event.headers:
            headers.append(
                Header(
                    replica.epoch, offset, header.count, header.size, header.kind, header.flags, header.crc
                )
            )
            offset += header.count
        replica.append(tuple(headers))
        self._pending.append((offset - 1, first, event.request))
        self._wake()
        for cursor in self.cursors.values():
            if cursor.phase is Phase.STREAMING:
                self._stream(cursor)

    def _wake(self) -> None:
        """Something happened: everybody ticks again."""
        if self.deadline is None:
            self.deadline = self.replica.now + self.replica.config.tuning.heartbeat_s
        for cursor in self.cursors.values():
            cursor.quiet = False

    # --- towards the followers ---

    def _push(self, cursor: Cursor) -> None:
        if cursor.phase is Phase.SEARCHING:
            self._probe(cursor)
        elif cursor.phase is Phase.STREAMING:
            self._stream(cursor)
        else:
            self._send_chunk(cursor)

    def _probe(self, cursor: Cursor) -> None:
        replica = self.replica
        if cursor.end <= replica.log.base.offset:
            self._begin_snapshot(cursor)
            return
        cursor.probe = max(cursor.probe, replica.log.base.offset)
        prev = replica.log.position(cursor.probe)
        replica.send(cursor.node, AppendEntries(replica.epoch, prev, replica.commit, search=True))

    def _stream(self, cursor: Cursor) -> None:
        replica = self.replica
        config = replica.config
        log = replica.log
        while cursor.next <= log.head.offset and cursor.has_room(
            bytes_max=config.tuning.inflight_bytes_max, messages_max=config.tuning.inflight_messages_max
        ):
            if cursor.next <= log.base.offset:
                self._begin_snapshot(cursor)
                return
            headers = log.headers_from(
                cursor.next,
                bytes_max=config.tuning.message_bytes_max,
                count_max=config.tuning.message_entries_max,
            )
            if headers is None:
                self._read_for(cursor)
                return
            self._send_entries(cursor, headers)

    def _send_entries(self, cursor: Cursor, headers: tuple[Header, ...]) -> None:
        replica = self.replica
        prev = replica.log.position(headers[0].offset - 1)
        replica.send(cursor.node, AppendEntries(replica.epoch, prev, replica.commit, headers))
        cursor.sent(headers)

    def _read_for(self, cursor: Cursor) -> None:
        """The headers it needs are no longer in memory: ask the disk, one read at a time."""
        replica = self.replica
        if cursor.reading in self._readers:
            return
        cursor.reading = replica.read(
            first=cursor.next,
            last=replica.log.head.offset,
            bytes_max=replica.config.tuning.message_bytes_max,
        )
        self._readers[cursor.reading] = cursor.node

    def loaded(self, event: events.Loaded) -> None:
        node = self._readers.pop(event.token, None)
        cursor = self.cursors[node] if node is not None else None
        if cursor is None or cursor.reading != event.token:
            return
        cursor.reading = 0
        if cursor.phase is not Phase.STREAMING:
            return
        headers = event.headers[: self.replica.config.tuning.message_entries_max]
        if headers and headers[0].offset <= cursor.next <= headers[0].last:
            if headers[0].offset > self.replica.log.base.offset:  # Otherwise removed while they were read.
                self._send_entries(cursor, headers)
            self._stream(cursor)

    def _offer_snapshot(self, cursor: Cursor, *, covering: int) -> None:
        snapshot = self.replica.snapshot
        if snapshot is None or snapshot.last.offset < covering:
            self.replica.take_snapshot()
        elif cursor.phase is not Phase.SNAPSHOT:
            self._begin_snapshot(cursor)

    def _begin_snapshot(self, cursor: Cursor) -> None:
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
        replica.send(cursor.node, SnapshotChunk(replica.epoch, replica.snapshot, at, length))

    # --- what the followers say ---

    def receive(self, sender: Member, message: Any) -> None:
        assert type(message) not in (AppendEntries, SnapshotChunk), "two leaders in one epoch"
        cursor = self.cursors.get(sender.node)
        if cursor is None:
            return
        if cursor.incarnation != sender.incarnation:
            # Another life of that disk: whatever its predecessor flushed is gone, and it does not count.
            self._matched.pop(Member(cursor.node, cursor.incarnation), None)
            cursor.incarnation = sender.incarnation
            cursor.search_anew(self.replica.log)
        cursor.last_heard = self.replica.now
        if type(message) is AppendResponse:
            self._append_response(sender, cursor, message)
        elif type(message) is SnapshotResponse:
            self._snapshot_response(cursor, message)

    def _append_response(self, sender: Member, cursor: Cursor, message: AppendResponse) -> None:
        log = self.replica.log
        cursor.commit = message.commit
        if self.deadline is None and not message.quiet:
            self._wake()  # Something old has woken it after we fell silent: let it rest again.
        cursor.quiet = message.quiet and message.matched == log.head.offset
        covering = message.wants_snapshot
        if message.faulty is not None and message.faulty.before.offset < log.base.offset:
            # What it lost is no longer in any log; one that ends inside of that would not mend it.
            covering = max(covering, min(message.faulty.last.offset, self.replica.published))
        if covering >= 0:
            self._offer_snapshot(cursor, covering=covering)
            return
        faulty = message.faulty
        if faulty is not None and log.holds(faulty.before) and not log.holds(faulty.last):
            self._contradict(cursor, faulty, message.commit)
            return
        if not message.accepted:
            assert message.theirs is not None
            if not cursor.refused(log, probe=message.probe, theirs=message.theirs):
                return
            if message.probe <= log.base.offset:
                self._begin_snapshot(cursor)
            else:
                self._probe(cursor)
            return
        if cursor.accepted(log, probe=message.probe, matched=message.matched):
            if sender in self.replica.config.voters:  # A learner is sent everything and never counts (YB-5).
                self._matched[sender] = cursor.matched
                self._commit()
            self._push(cursor)

    def _contradict(self, cursor: Cursor, faulty: Span, commit: int) -> None:
        """What this follower lost is not what we have, so nobody can give it back by its name (seed 201 of
        `damage`). Name our entry there, and it gives its own up; but first the end of what is settled, and it
        gets that back.
        """
        log = self.replica.log
        if cursor.contradicted == faulty:
            return  # Once a heartbeat: it may have ears for something else first.
        cursor.contradicted = faulty
        settled_inside = faulty.before.offset < commit < faulty.last.offset
        at = log.position(commit if settled_inside else min(faulty.last.offset, log.head.offset))
        self.replica.send(
            cursor.node, AppendEntries(self.replica.epoch, at, self.replica.commit, search=True)
        )

    def _snapshot_response(self, cursor: Cursor, message: SnapshotResponse) -> None:
        if cursor.phase is Phase.SNAPSHOT and message.snapshot == cursor.snapshot:
            cursor.snapshot_at = message.at
            self._send_chunk(cursor)

    # --- commit ---

    def persisted(self) -> None:
        self._commit()

    def _commit(self) -> None:
        replica = self.replica
        self._matched[replica.me] = replica.durable.offset
        reached = quorum.majority_offset(self._matched, replica.config.voters)
        if reached <= replica.commit or reached < self._epoch_first:
            return  # Only entries of the own epoch commit by counting (YB-19).
        assert replica.log.epoch_at(reached) == replica.epoch
        replica.advance_commit(reached)
        while self._pending and self._pending[0][0] <= reached:
            _, first, request = self._pending.popleft()
            replica.emit(effects.Reply(request, Outcome.SETTLED, offset=first, epoch=replica.epoch))

    # --- time ---

    def woke(self) -> None:
        replica = self.replica
        self.deadline = replica.now + replica.config.tuning.heartbeat_s
        current = self._everyone_is_current()
        if current and all(cursor.quiet for cursor in self.cursors.values()):
            self.deadline = None
            return
        for cursor in self.cursors.values():
            cursor.contradicted = None
            self._push(cursor)
            if cursor.phase is not Phase.STREAMING:
                continue
            if cursor.next <= replica.log.base.offset:  # No room to stream, and what it needs is gone.
                self._begin_snapshot(cursor)
                continue
            prev = replica.log.position(cursor.next - 1)
            searching = bool(cursor.reading)  # Until its headers are read, this may be inside an entry.
            beat = AppendEntries(replica.epoch, prev, replica.commit, search=searching, quiet=current)
            replica.send(cursor.node, beat)

    def _everyone_is_current(self) -> bool:
        replica = self.replica
        head = replica.log.head.offset
        return (
            replica.commit == head
            and replica.ordering.idle
            and all(
                cursor.phase is Phase.STREAMING and cursor.matched == head and cursor.commit == head
                for cursor in self.cursors.values()
            )
        )

    def suspected(self, node: int) -> None:
        cursor = self.cursors.get(node)
        if cursor is not None and self.deadline is None:
            self._wake()
