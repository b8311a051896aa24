"""Leader: aligns the log of each follower it is told, streams to it, and says what is committed (OX-10 to OX-24).

A follower is *aligned* once its head is known to be in the leader's log. Where it may not be, the leader asks for a
truncation, looks at the head that comes back, and asks again until both agree (D1). Until then a cursor has one
question open, which is repeated with every heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import events, quorum
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    AddFollowerRequest,
    AddFollowerResponse,
    SnapshotRequest,
    SnapshotResponse,
    TruncateRequest,
    TruncateResponse,
)
from quorate.core.coordinated.reconfiguring import Reconfiguring
from quorate.core.coordinated.roles import Role
from quorate.core.cursor import Cursor, Phase
from quorate.core.entry import NOWHERE, EntryId, Header, Member
from quorate.core.leading import Leading
from quorate.core.reading import Reading, StillResponse

if TYPE_CHECKING:
    from quorate.core.coordinated.replica import Replica


class Leader(Leading, Role):
    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.ensemble = replica.crown.ensemble
        self._elected = replica.log.head
        """The head it was chosen for."""
        self._questions: dict[int, AddEntryRequest | TruncateRequest] = {}
        """What a cursor that is not aligned waits to hear of."""
        self.reading = Reading(self)
        self.reconfiguring = Reconfiguring(self)

    def enter(self) -> None:
        replica = self.replica
        assert replica.can_lead()
        replica.leader = replica.me.node
        replica.tell(self.ensemble)
        self.begin_epoch()
        for member, head in replica.crown.followers:
            self.attach(member, head)
        self.deadline = replica.now + replica.config.tuning.heartbeat_s

    def leave(self) -> None:
        super().leave()
        self.reading.leave()

    def asked_to_read(self, event: events.ReadAsked) -> None:
        self.reading.ask(event)

    @property
    def voting_peers(self) -> tuple[int, ...]:
        return tuple(cursor.node for cursor in self.cursors.values() if cursor.member in self.ensemble)

    def has_quorum(self, members: set[Member]) -> bool:
        return quorum.has_majority(members, self.ensemble)

    # --- who follows ---

    def add_follower(self, operator: Member, message: AddFollowerRequest) -> None:
        """Somebody was fenced late (OX-13)."""
        follower = message.follower
        if follower not in self.ensemble or follower == self.reconfiguring.inactive:
            return
        cursor = self.cursors.get(follower.node)
        if cursor is None or cursor.member != follower:
            self.attach(follower, message.head)
        self.replica.send(operator.node, AddFollowerResponse(self.replica.epoch, follower))

    def attach(self, member: Member, head: EntryId) -> None:
        """A cursor for a follower whose log ends at `head`."""
        self.wake()
        cursor = self._new_cursor(member)
        if self._agrees(head) and head.epoch >= self._elected.epoch:
            self._align(cursor, head)
        else:
            self._truncate(cursor, head)

    def attach_somewhere(self, member: Member) -> None:
        """A cursor for one of whose log nothing is known: ask."""
        self.wake()
        self._ask(self._new_cursor(member), AddEntryRequest(self.replica.epoch, self.replica.log.head, -1))

    def _new_cursor(self, member: Member) -> Cursor:
        cursor = Cursor(member.node, member.incarnation, self.replica.log, self.replica.now)
        self.cursors[member.node] = cursor
        self._matched.pop(member, None)
        return cursor

    def detach(self, member: Member) -> None:
        """It does not count any more, whatever it still says."""
        cursor = self.cursors.get(member.node)
        if cursor is not None and cursor.member == member:
            del self.cursors[member.node]
            self._questions.pop(member.node, None)
        self._matched.pop(member, None)

    def _agrees(self, head: EntryId) -> bool:
        """Whether a log that ends there is the beginning of ours, as far as ours goes back."""
        log = self.replica.log
        return head.offset >= log.floor and log.holds(head)

    def _align(self, cursor: Cursor, head: EntryId) -> None:
        self._questions.pop(cursor.node, None)
        cursor.attach(head.offset)
        self._push(cursor)

    def _truncate(self, cursor: Cursor, head: EntryId) -> None:
        """Down to our last entry that is not of a later epoch than the follower's head (OX-15, OX-16)."""
        log = self.replica.log
        to = log.epochs.last_shared(EntryId(head.epoch, log.head.offset), log.head)
        if head.offset < log.floor or (to == log.base != NOWHERE and to.epoch > head.epoch):
            self.begin_snapshot(cursor)  # Where both logs part is no longer in ours.
            return
        known = log.base.offset <= cursor.commit <= log.head.offset
        settled = log.position(cursor.commit) if known else NOWHERE
        self._ask(cursor, TruncateRequest(self.replica.epoch, head, to, settled))

    def _ask(self, cursor: Cursor, question: AddEntryRequest | TruncateRequest) -> None:
        cursor.phase = Phase.SEARCHING
        self._questions[cursor.node] = question
        self.replica.send(cursor.node, question)

    # --- towards the followers ---

    def _push(self, cursor: Cursor) -> None:
        if cursor.phase is Phase.SEARCHING:
            question = self._questions[cursor.node]
            if isinstance(question, TruncateRequest):
                # By what we know now: our log may begin above that head.
                self._truncate(cursor, question.head)
            else:
                self.replica.send(cursor.node, question)
        elif cursor.phase is Phase.STREAMING:
            self.stream(cursor)
        else:
            assert cursor.snapshot is not None
            self.begin_snapshot(cursor)

    def counts(self, member: Member) -> bool:
        return member in self.ensemble

    def send_entries(self, cursor: Cursor, headers: tuple[Header, ...]) -> None:
        self._send(cursor, self.replica.log.position(headers[0].offset - 1), headers)

    def _send(self, cursor: Cursor, prev: EntryId, headers: tuple[Header, ...] = ()) -> None:
        replica = self.replica
        commit = self.commit_for(headers[-1].last if headers else prev.offset)
        replica.send(cursor.node, AddEntryRequest(replica.epoch, prev, commit, headers))

    def begin_snapshot(self, cursor: Cursor) -> None:
        replica = self.replica
        self._questions.pop(cursor.node, None)
        if replica.snapshot is None:
            replica.take_snapshot()
            cursor.phase = Phase.SEARCHING  # With the next heartbeat there is one, or it is asked for again.
            self._questions[cursor.node] = AddEntryRequest(replica.epoch, replica.log.head, -1)
            return
        cursor.begin_snapshot(replica.snapshot)
        replica.send(cursor.node, SnapshotRequest(replica.epoch, replica.snapshot, replica.me))

    # --- what the followers say ---

    def receive(self, sender: Member, message: Any) -> None:
        cursor = self.cursors.get(sender.node)
        if cursor is None or cursor.member != sender:
            return
        cursor.heard(self.replica.now)
        if type(message) is AddEntryResponse:
            self._add_entry_response(cursor, message)
        elif type(message) is TruncateResponse:
            self._truncate_response(cursor, message)
        elif type(message) is SnapshotResponse:
            self._snapshot_response(cursor, message)
        elif type(message) is StillResponse and sender in self.ensemble:
            self.reading.answered(sender, message)

    def _add_entry_response(self, cursor: Cursor, message: AddEntryResponse) -> None:
        log = self.replica.log
        cursor.commit = message.commit
        covering, faulty = message.wants_snapshot, message.faulty
        if faulty is not None and faulty.before.offset < log.base.offset:
            # What it lost is no longer in any log; a snapshot that ends inside of that would not mend it.
            covering = max(covering, min(faulty.last.offset, self.replica.published))
        if covering >= 0:
            self.offer_snapshot(cursor, covering=covering)
            return
        if faulty is not None and log.holds(faulty.before) and not log.holds(faulty.last):
            if type(self._questions.get(cursor.node)) is not TruncateRequest:
                self._truncate(cursor, message.head)  # It lost what we never had: nobody could give it back.
            return
        if not message.accepted:
            self._refused(cursor, message)
            return
        question = self._questions.get(cursor.node)
        if type(question) is AddEntryRequest and question.prev.offset == message.probe:
            self._align(cursor, question.prev)
        if cursor.phase is Phase.SEARCHING:  # It says what it has flushed, but not what it was asked.
            cursor.matched = max(cursor.matched, message.matched)
            self._count(cursor)
        elif cursor.accepted(log, probe=message.probe, matched=message.matched):
            self._count(cursor)
            self._push(cursor)

    def _count(self, cursor: Cursor) -> None:
        if cursor.member in self.ensemble:
            self._matched[cursor.member] = cursor.matched
            self._commit()

    def _refused(self, cursor: Cursor, message: AddEntryResponse) -> None:
        """A message was lost or overtaken, or it restarted: ask where both logs agree, once."""
        question = self._questions.get(cursor.node)
        if cursor.phase is Phase.SNAPSHOT or type(question) is TruncateRequest:
            return
        if isinstance(question, AddEntryRequest) and question.prev.offset != message.probe:
            return  # An answer to what was sent before the question.
        if message.head.offset < cursor.matched:  # What it had flushed was damaged, and given up.
            cursor.matched = cursor.agreed = message.head.offset
            self._matched.pop(cursor.member, None)
        if self._agrees(message.head):
            commit = self.commit_for(message.head.offset)
            self._ask(cursor, AddEntryRequest(self.replica.epoch, message.head, commit))
        else:
            self._truncate(cursor, message.head)

    def _truncate_response(self, cursor: Cursor, message: TruncateResponse) -> None:
        cursor.commit = message.commit
        question = self._questions.get(cursor.node)
        if not isinstance(question, TruncateRequest):
            return
        if self._agrees(message.head):
            self._align(cursor, message.head)
        elif message.head != question.head:
            self._truncate(cursor, message.head)  # Once is not always enough (D1).
        # Otherwise something has to be mended there first: it is asked again with the next heartbeat.

    def _snapshot_response(self, cursor: Cursor, message: SnapshotResponse) -> None:
        if cursor.phase is not Phase.SNAPSHOT:
            return
        if not message.installed:
            if self.replica.snapshot != cursor.snapshot:  # Else with the next heartbeat.
                self.begin_snapshot(cursor)
        elif self._agrees(message.head):
            self._align(cursor, message.head)
        else:
            self._truncate(cursor, message.head)

    # --- commit ---

    def persisted(self) -> None:
        self._commit()

    def _commit(self) -> None:
        """What a majority has flushed, if it is of this epoch; and with it everything before (OX-23, OX-24)."""
        replica = self.replica
        if replica.commit == replica.log.head.offset:
            return
        self._matched[replica.me] = replica.durable.offset
        reached = quorum.majority_offset(self._matched, self.ensemble)
        if reached <= replica.commit or reached < self._epoch_first:
            return
        assert replica.log.epoch_at(reached) == replica.epoch
        is_first = not self.has_settled
        self.settle(reached)
        if is_first:
            self.reading.settled()

    def may_end(self) -> bool:
        return not self.reconfiguring.is_open and super().may_end()

    def flushed_on(self, member: Member) -> int:
        """How much of this log it has said to have on its disk, whether it counts or not; -1: nothing."""
        cursor = self.cursors.get(member.node)
        return cursor.matched if cursor is not None and cursor.member == member else -1

    def reached_by(self, ensemble: tuple[Member, ...]) -> int:
        """What a majority of these has flushed."""
        return quorum.majority_offset(
            self._matched | {self.replica.me: self.replica.durable.offset}, ensemble
        )

    @property
    def knows_what_is_settled(self) -> bool:
        """Something is settled that it has appended itself, so nothing is that it does not know of.

        Before that, what earlier leaders have settled may reach up to the head that it was elected with.
        """
        return self.replica.commit > self._elected.offset

    # --- epochs ---

    def adopt(self, epoch: int) -> None:
        """The same leader in the next epoch (OX-27): a first entry of its own, or nothing would commit (D12)."""
        replica = self.replica
        replica.enter_epoch(epoch)
        replica.leader = replica.me.node
        self.entered_at = replica.now  # Reads that wait for this epoch's first entry wait from now on.
        self.begin_epoch()
        for node, question in list(self._questions.items()):  # Whoever has one open is asked in this epoch.
            cursor = self.cursors[node]
            if isinstance(question, TruncateRequest):
                self._truncate(cursor, question.head)
            else:
                commit = self.commit_for(question.prev.offset)
                self._ask(cursor, AddEntryRequest(epoch, question.prev, commit))
        self.appended()

    def snapshot_taken(self) -> None:
        self.reconfiguring.go_on()

    # --- time ---

    def woke(self) -> None:
        replica = self.replica
        self.deadline = replica.now + replica.config.tuning.heartbeat_s
        if self._everyone_is_current():
            self.deadline = None
            return
        self.reading.woke()
        self.reading.give_up(replica.config.tuning.read_wait_s)
        for cursor in self.cursors.values():
            if not cursor.is_due():
                continue
            self._push(cursor)
            if cursor.phase is not Phase.STREAMING or cursor.reading:
                continue
            if cursor.next <= replica.log.floor:  # No room to stream, and what it needs is gone.
                self.begin_snapshot(cursor)
            else:
                self._send(cursor, replica.log.position(cursor.next - 1))

    def _everyone_is_current(self) -> bool:
        replica = self.replica
        head = replica.log.head.offset
        return (
            replica.commit == head
            and replica.ordering.idle
            and not self.reading.is_waiting
            and all(
                cursor.phase is Phase.STREAMING and cursor.matched == head and cursor.commit == head
                for cursor in self.cursors.values()
            )
        )

    def suspected(self, node: int) -> None:
        """It may have restarted, and not know any more what is settled."""
        cursor = self.cursors.get(node)
        if cursor is not None:
            cursor.beats = 0
            cursor.commit = -1
            self.wake()
