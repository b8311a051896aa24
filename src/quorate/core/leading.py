"""What a leader does alike in every protocol: takes proposals, streams its log to cursors, answers what is settled.

Entries go to the followers while they are still being flushed here; the leader counts itself like anybody else,
when its own flush is done. How a follower comes to be streamed to, and who counts, is each room's own.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from quorate.core import effects, events
from quorate.core.commands import Turn
from quorate.core.cursor import Cursor, Phase
from quorate.core.effects import Outcome
from quorate.core.entry import Barrier, Control, Header, Kind, Member, NoOp
from quorate.core.roles import Role


class Leading(Role):
    name = "leader"
    needs_whole_log = True

    def __init__(self, replica: Any) -> None:
        super().__init__(replica)
        self.cursors: dict[int, Cursor] = {}
        self._matched: dict[Member, int] = {}
        """What each of those who count has flushed of this log; only the right incarnations get in."""
        self._pending: deque[tuple[int, int, int, int]] = deque()
        """(last offset, first offset, request, timestamp) of proposals that wait for their commit."""
        self._readers: dict[int, int] = {}
        self._is_gathering = False
        """What was proposed is not sent yet: more of it is about to follow."""
        self._epoch_first = -1
        self._settled_epoch = 0
        """The newest epoch whose first entry is settled, or would be if no Barrier lay before it."""
        self._turning = 0
        """It was told to end its protocol, with that turn; 0: it was not."""
        self._turners: list[int] = []
        """Requests that wait for that."""
        self.entered_at: float = replica.now

    @property
    def leads_from(self) -> int:
        return self._epoch_first

    @property
    def has_settled(self) -> bool:
        """Something of the own epoch is settled: nothing that was settled before is unknown here."""
        replica = self.replica
        return bool(replica.commit >= self._epoch_first or self._settled_epoch == replica.epoch)

    def leave(self) -> None:
        """Whoever still waits hears *unknown*: the next leader may commit the entries yet (rule 9)."""
        for _, _, request, _ in self._pending:
            self.replica.emit(effects.Reply(request, Outcome.UNKNOWN))
        self._pending.clear()
        for request in self._turners:
            self.replica.emit(effects.Reply(request, Outcome.UNKNOWN))
        self._turners.clear()

    # --- what a room says ---

    def why_closed(self, event: events.Proposed) -> str:
        """Why this proposal is not taken just now; empty if it is."""
        if self.is_ending:
            return "its copies are about to agree in another way; try again"
        too_many = len(self._pending) >= self.replica.config.tuning.uncommitted_entries_max
        return "too much is unsettled" if too_many else ""

    def stamp(self, event: events.Proposed) -> int:
        """The timestamp of a proposal that is taken; 0 where none are given out."""
        return 0

    def send_entries(self, cursor: Cursor, headers: tuple[Header, ...]) -> None:
        raise NotImplementedError

    def begin_snapshot(self, cursor: Cursor) -> None:
        """What this follower needs is no longer in the log."""
        raise NotImplementedError

    # --- proposals ---

    def begin_epoch(self) -> None:
        """Once its first entry is settled, a leader knows of everything that is (YB-19, D12).

        In most rooms nothing of earlier epochs commits by counting, and that entry carries it.
        """
        replica = self.replica
        self._epoch_first = replica.log.head.offset + 1
        first = self.first_entry()
        replica.append((Header(replica.epoch, self._epoch_first, kind=Kind.CONTROL, control=first),))

    def first_entry(self) -> Control:
        return NoOp(self.replica.me.node)

    def proposed(self, event: events.Proposed) -> None:
        replica = self.replica
        why_closed = self.why_closed(event)
        if why_closed:
            replica.emit(effects.Reply(event.request, Outcome.BUSY, leader=replica.me.node, why=why_closed))
        else:
            self._take(event)
            self._is_gathering = True
        if not event.more:
            self.gathered()

    def _take(self, event: events.Proposed) -> None:
        replica = self.replica
        timestamp = self.stamp(event)
        offset = replica.log.head.offset + 1
        proposed = []
        for header in event.headers:
            proposed.append(
                Header(
                    replica.epoch, offset, header.count, header.size, header.kind, header.flags, header.crc
                )
            )
            offset += header.count
        headers = tuple(proposed)
        replica.append(headers)
        self.expect(event.request, headers, timestamp)

    def gathered(self) -> None:
        if self._is_gathering:
            self._is_gathering = False
            self.appended()

    def expect(self, request: int, headers: tuple[Header, ...], timestamp: int) -> None:
        """Somebody waits until these are settled."""
        self._pending.append((headers[-1].last, headers[0].offset, request, timestamp))

    def appended(self) -> None:
        """The log goes on: let everybody have it."""
        self.wake()
        for cursor in self.cursors.values():
            if cursor.phase is Phase.STREAMING:
                self.stream(cursor)

    def wake(self) -> None:
        """Something happened: the leader ticks again."""
        if self.deadline is None:
            self.deadline = self.replica.now + self.replica.config.tuning.heartbeat_s

    def settle(self, reached: int) -> None:
        """Everything up to there counts as settled: answer whoever waits for it."""
        replica = self.replica
        if reached >= self._epoch_first:
            self._settled_epoch = replica.epoch
        replica.advance_commit(reached)
        while self._pending and self._pending[0][0] <= replica.commit:
            _, first, request, timestamp = self._pending.popleft()
            settled = Outcome.SETTLED
            replica.emit(effects.Reply(request, settled, first, replica.epoch, timestamp=timestamp))
        if self._turning:
            self.go_on_turning()

    # --- the end of a protocol ---

    @property
    def is_ending(self) -> bool:
        """No proposals are taken any more: it was told so, or somebody who led before was (017)."""
        return self._turning > 0 or self.replica.barrier is not None

    def commanded(self, command: Any) -> None:
        if not isinstance(command, Turn):
            super().commanded(command)
        elif command.at <= self.replica.generation:
            why = "that turn is over"
            self.replica.emit(
                effects.Reply(command.request, Outcome.REFUSED, leader=self.replica.leader, why=why)
            )
        else:
            self._turning = max(self._turning, command.at)
            self._turners.append(command.request)
            self.go_on_turning()

    def go_on_turning(self) -> None:
        """With nothing undecided, the Barrier is the last entry. When it is settled, whoever waits hears of it."""
        replica = self.replica
        why_not = self.why_not_to_end() if self._turning and replica.barrier is None else ""
        if why_not:
            self._put_off(why_not)
        elif self._turning and replica.barrier is None and self.may_end():
            header = Header(
                replica.epoch, replica.log.head.offset + 1, kind=Kind.CONTROL, control=Barrier(self._turning)
            )
            replica.append((header,))
            self.appended()
        barrier = replica.barrier
        if self._turners and barrier is not None and replica.commit >= barrier.entry.offset:
            turners, self._turners = self._turners, []
            for request in turners:
                settled = Outcome.SETTLED
                replica.emit(effects.Reply(request, settled, barrier.entry.offset, replica.epoch))

    def _put_off(self, why: str) -> None:
        """As if it had not been told: it takes proposals again, and the turn can be called off."""
        self._turning = 0
        turners, self._turners = self._turners, []
        for request in turners:
            self.replica.emit(effects.Reply(request, Outcome.REFUSED, leader=self.replica.me.node, why=why))

    def why_not_to_end(self) -> str:
        """Why a Barrier would stop this partition for longer than a moment; empty: it would not.

        Where only a majority settles anything, there is nothing to stop without one.
        """
        return ""

    def may_end(self) -> bool:
        """Nothing waits to be settled, nor is about to."""
        return self.has_settled and bool(self.replica.commit == self.replica.log.head.offset)

    def whole_at(self, offset: int) -> tuple[Member, ...]:
        """Who is known to have flushed this log up to there; only those who may count."""
        flushed = {**self._matched, self.replica.me: self.replica.durable.offset}
        return tuple(sorted(member for member, reached in flushed.items() if reached >= offset))

    # --- streaming ---

    def commit_for(self, end: int) -> int:
        """What to call settled to a follower that will have everything up to `end`: see `LogView.decided`."""
        replica = self.replica
        return int(replica.log.decided(min(replica.commit, end)) if replica.voids else replica.commit)

    def stream(self, cursor: Cursor) -> None:
        replica = self.replica
        tuning = replica.config.tuning
        log = replica.log
        while cursor.next <= log.head.offset and cursor.has_room(
            bytes_max=tuning.inflight_bytes_max, messages_max=tuning.inflight_messages_max
        ):
            if cursor.next <= log.floor:
                self.begin_snapshot(cursor)
                return
            headers = log.headers_from(
                cursor.next, bytes_max=tuning.message_bytes_max, count_max=tuning.message_entries_max
            )
            if headers is None and self._snapshot_is_cheaper(cursor.next):
                self.begin_snapshot(cursor)
                return
            if headers is None or self.is_paced(cursor.member, headers):
                self.read_for(cursor)
                return
            self.drop_held(cursor)
            self.send_entries(cursor, headers)
            cursor.sent(headers)
        if cursor.next > log.head.offset:
            self.drop_held(cursor)

    def is_paced(self, member: Member, headers: tuple[Header, ...] = ()) -> bool:
        """Whether entries for this follower wait their turn: it does not count yet, and these are not the end."""
        replica = self.replica
        is_end = bool(headers) and headers[-1].last == replica.log.head.offset
        return not is_end and bool(replica.holds_back(member))

    def counted(self) -> None:
        """Whoever is read for need not wait any longer, perhaps. (Who fetches asks again by itself.)"""
        for cursor in self.cursors.values():
            if cursor.phase is Phase.STREAMING:
                self.stream(cursor)

    def _snapshot_is_cheaper(self, first: int) -> bool:
        """Whether the snapshot is smaller than the entries that it stands for, from `first` on.

        By the size of the newest.
        """
        replica = self.replica
        snapshot = replica.snapshot
        if not replica.config.tuning.prefer_snapshots or snapshot is None or replica.keeps_all:
            return False
        window = replica.log.window
        mean_bytes = sum(header.size for header in window) / max(1, sum(header.count for header in window))
        # What is agreed on is not always known to be flushed.
        behind = snapshot.last.offset - (first - 1)
        return bool(snapshot.size < behind * mean_bytes)

    def read_for(self, follower: Any) -> None:
        """The headers it needs are no longer in memory, or wait their turn: ask the disk, one read at a time.

        What waits its turn for one that counts by now is read at once.
        """
        replica = self.replica
        is_held = self.is_paced(follower.member)
        if follower.reading in self._readers and (is_held or not follower.is_held):
            return
        self._readers.pop(follower.reading, None)
        follower.is_held = is_held
        follower.reading = replica.read(
            first=follower.next,
            last=replica.log.head.offset,
            bytes_max=replica.config.tuning.message_bytes_max,
            paced_for=follower.node if is_held else 0,
        )
        self._readers[follower.reading] = follower.node

    def drop_held(self, follower: Any) -> None:
        """What waits its turn for it need not be read any more: it has that, or gets it at once.

        It may wait for as long as nobody changes the rate, and while something is read for a follower, it is not
        told what is settled.
        """
        if follower.is_held:
            self._readers.pop(follower.reading, None)
            follower.reading, follower.is_held = 0, False

    def loaded(self, event: events.Loaded) -> None:
        node = self._readers.pop(event.token, None)
        cursor = self.cursors.get(node) if node is not None else None
        if cursor is None or cursor.reading != event.token:
            return
        cursor.reading = 0
        if cursor.phase is not Phase.STREAMING:
            return
        headers = event.headers[: self.replica.config.tuning.message_entries_max]
        if headers and headers[0].offset <= cursor.next <= headers[0].last:
            if headers[0].offset > self.replica.log.floor:  # Otherwise removed while they were read.
                self.send_entries(cursor, headers)
                cursor.sent(headers)
            self.stream(cursor)

    def offer_snapshot(self, cursor: Cursor, *, covering: int) -> None:
        snapshot = self.replica.snapshot
        if snapshot is None or snapshot.last.offset < covering:
            self.replica.take_snapshot()
        elif cursor.phase is not Phase.SNAPSHOT:
            self.begin_snapshot(cursor)
