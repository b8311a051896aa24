"""The leader: raft's, with a limbo, and with CONFIRM and ROLLBACK in the log.

What is on a quorum is settled, and a CONFIRM says so in the log (TT-5, TT-6). The latch between the two decisions
is the log itself: as soon as a ROLLBACK is appended, nothing from its first offset on can be confirmed by counting
(`LogView.decided`), and while it is not settled no transaction is taken. It is settled by being on a quorum itself;
only then does anybody hear of it (D8). Should leadership end before that, whoever comes next decides: with the
ROLLBACK in its log it is carried out, without it the transactions are confirmed.

A leader takes writes when its PROMOTE is settled, and with it all that former leaders left (TT-20, TT-23, D6).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorate.core import commands, effects, events
from quorate.core.confirm.limbo import Limbo
from quorate.core.effects import Outcome
from quorate.core.entry import Confirm, Control, EntryId, Header, Kind, Member, Promote, Rollback
from quorate.core.raft import follower, leader

if TYPE_CHECKING:
    from quorate.core.confirm.messages import AppendResponse
    from quorate.core.confirm.replica import Replica
    from quorate.core.cursor import Cursor

CONFIRMS_OPEN_MAX = 8
"""Unsettled CONFIRMs: one for each of many transactions would be as much to replicate as they are."""
DEMOTED_PATIENCE = 3.0
"""Election time-outs that a demoted leader leaves to others."""


class Leader(leader.Leader):
    replica: Replica

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        unsettled = (header for header in replica.log.window if header.last > replica.commit)
        self.limbo = Limbo(unsettled)
        self.reading.may_lease = False  # Somebody may be promoted while a lease would last.
        self._read_only = False
        self._alone_since: float | None = None
        self._rolling_back: list[int] = []
        """Requests that wait for the open rollback."""
        self._demoting: list[int] = []
        self._demoted_by = 0.0
        """When whoever is behind is waited for no longer."""
        self._to_confirm: EntryId | None = None
        """The end of what is settled and wants its CONFIRM. It may be gone from the log by then (TT-31)."""
        self._confirms: deque[int] = deque()
        """Where CONFIRMs stand that are not settled."""
        self._former = 0
        """Who led before, as far as that is known."""

    def enter(self) -> None:
        super().enter()
        replica = self.replica
        if replica.promotion is not None and replica.promotion.roll_back:
            self._append_rollback(above=max(replica.commit, replica.settled_elsewhere), forced=True)

    def leave(self) -> None:
        for waiting in self.limbo.drain():
            self._answer(waiting.request, Outcome.UNKNOWN)
        for request in self._rolling_back + self._demoting:
            self._answer(request, Outcome.UNKNOWN)
        super().leave()

    def first_entry(self) -> Control:
        self._former = self.replica.voting.newest.leader
        return Promote(self.replica.me.node, self._former)

    def _answer(self, request: int, outcome: Outcome, *, offset: int = -1, why: str = "") -> None:
        replica = self.replica
        replica.emit(effects.Reply(request, outcome, offset, replica.epoch, replica.leader, why=why))

    # --- transactions ---

    def why_closed(self, event: events.Proposed) -> str:
        if not self.has_settled:
            return "what former leaders left is not settled yet"
        if self._alone_since is not None:
            return "incomplete quorum: too few replicas follow"
        if self.rolls_back:
            return "a rollback is not settled yet"
        if self._read_only:
            return "this group was set read-only"
        if self._demoting:
            return "the leader is being demoted"
        if len(self.limbo) >= self.replica.config.tuning.uncommitted_entries_max:
            return "too many transactions wait for their quorum"
        return super().why_closed(event)

    def expect(self, request: int, headers: tuple[Header, ...], timestamp: int) -> None:
        self.limbo.add(request, headers)

    def persisted(self) -> None:
        super().persisted()
        if self.replica.role is self:
            self._answer_flushed()

    def _answer_flushed(self) -> None:
        """The asynchronous ones that wait for nothing any more."""
        flushed, rollback = self.replica.durable.offset, self._open_rollback()
        if rollback is not None:  # What is being taken back is not acknowledged any more.
            assert isinstance(rollback.control, Rollback)
            flushed = min(flushed, rollback.control.first - 1)
        for waiting in self.limbo.flushed(flushed):
            self._answer(waiting.request, Outcome.FLUSHED, offset=waiting.first)

    def settle(self, reached: int) -> None:
        replica = self.replica
        began = not self.has_settled
        if reached >= self._epoch_first:
            self._settled_epoch = replica.epoch
        rollback = self._open_rollback()
        replica.advance_commit(reached)
        reached = min(reached, replica.commit)
        answered, synchronous = self.limbo.settled(reached)
        for waiting in answered:
            void = replica.log.is_void(waiting.first)
            self._answer(
                waiting.request, Outcome.ROLLED_BACK if void else Outcome.SETTLED, offset=waiting.first
            )
        if rollback is not None and rollback.offset <= reached:
            self._rolled_back()
        valid = [end for end in synchronous if not replica.log.is_void(end)]
        if valid:  # What is not synchronous needs no CONFIRM (TT-39).
            self._to_confirm = replica.log.position(valid[-1])
        if synchronous:
            self._answer_flushed()  # Whoever was queued behind them (TT-37).
        if began or self._demoting or self._turning:
            self._confirm_now()
        if began:
            replica.took_over(self._former)
        if self._turning:
            self.go_on_turning()
        if self._demoting:
            self._go_on_demoting()

    def _take(self, event: events.Proposed) -> None:
        if self._to_confirm is not None:
            self._confirm()  # It goes with what comes next: one message, one flush.
        super()._take(event)

    def _confirm(self) -> None:
        """Nobody waits for a CONFIRM, so it waits for company, until the next heartbeat at most.

        Also while many are on their way; it says all that was settled meanwhile.
        """
        while self._confirms and self._confirms[0] <= self.replica.commit:
            self._confirms.popleft()
        if self._to_confirm is not None and len(self._confirms) < CONFIRMS_OPEN_MAX:
            upto, self._to_confirm = self._to_confirm, None
            self._confirms.append(self._append(Confirm(upto)))

    def _confirm_now(self) -> None:
        if self._to_confirm is not None:
            self._confirm()
            self.appended()

    def _append(self, control: Control) -> int:
        """To be sent by whoever orders it, with what else there is."""
        replica = self.replica
        offset = replica.log.head.offset + 1
        replica.append((Header(replica.epoch, offset, kind=Kind.CONTROL, control=control),))
        return offset

    def may_end(self) -> bool:
        """With an empty limbo only: what is in there is neither valid nor void yet."""
        return not len(self.limbo) and self._to_confirm is None and super().may_end()

    # --- rollback ---

    def _open_rollback(self) -> Header | None:
        """The ROLLBACK that is in the log, and not settled. There is one at most: no transaction is taken then."""
        newest = self.replica.log.newest(Rollback)
        return newest if newest is not None and newest.offset > self.replica.commit else None

    @property
    def rolls_back(self) -> bool:
        return self._open_rollback() is not None

    def _roll_back(self, request: int) -> None:
        if not self.has_settled:
            self._answer(request, Outcome.BUSY, why="what former leaders left is not settled yet")
            return
        self._rolling_back.append(request)
        if not self.rolls_back:
            self._append_rollback(above=self.limbo.begun(self.replica.commit), forced=False)
        if not self.rolls_back:
            self._rolled_back()  # Nothing was there to be taken back.

    def _append_rollback(self, *, above: int, forced: bool) -> None:
        replica = self.replica
        waiting = [
            header.offset
            for header in replica.log.window
            if header.offset > above and header.kind == Kind.RECORDS
        ]
        first = waiting[0] if waiting else -1
        window = replica.log.window
        if window and window[0].offset > above + 1:
            # Damage that was mended, or a restart, has left the headers below on the disk: they are not spared.
            first = above + 1
        if first >= 0:
            assert first > replica.commit
            self._append(Rollback(first, forced))
            self.appended()

    def _rolled_back(self) -> None:
        requests, self._rolling_back = self._rolling_back, []
        for request in requests:
            self._answer(request, Outcome.SETTLED, offset=self.replica.commit)

    # --- orders ---

    def commanded(self, command: commands.Command) -> None:
        self._confirm_now()
        if isinstance(command, commands.RollBack):
            self._roll_back(command.request)
        elif isinstance(command, commands.Demote):
            self._demote(command.request)
        elif isinstance(command, commands.SetReadOnly):
            self._read_only = command.read_only
            self._answer(command.request, Outcome.SETTLED, offset=self.replica.commit)
        else:
            super().commanded(command)

    def _demote(self, request: int) -> None:
        replica = self.replica
        if not self._demoting:
            self._demoted_by = replica.now + replica.config.tuning.election_timeout_s
        self._demoting.append(request)
        self._go_on_demoting()
        if self._demoting and self.deadline is None:
            self.wake()  # Whoever waits must come to see that it has waited long enough.

    def _go_on_demoting(self) -> None:
        """Nothing may wait any more: then leadership can be given back safely (TT-21).

        Where nobody leads nobody sends anything: one that lacks an entry then would hear NAY whenever it is
        promoted. So those who keep up get all of it first.
        """
        replica = self.replica
        if replica.commit < replica.log.head.offset or not self.has_settled:
            return
        if replica.now < self._demoted_by and self._somebody_is_behind():
            return
        requests, self._demoting = self._demoting, []
        replica.stand_down()
        replica.gave_up_leadership()
        for request in requests:
            self._answer(request, Outcome.SETTLED, offset=replica.commit)
        assert isinstance(replica.role, follower.Follower)
        replica.role.restart_clock(patience=DEMOTED_PATIENCE)

    def _somebody_is_behind(self) -> bool:
        """One that may be promoted, and was heard of since it had something to say."""
        replica = self.replica
        long_ago = replica.now - replica.config.tuning.election_timeout_s
        return any(
            cursor.matched < replica.log.head.offset and max(cursor.last_heard, self._awake_since) >= long_ago
            for cursor in self.cursors.values()
            if self.counts(cursor.member) and not cursor.loose
        )

    def _append_response(self, sender: Member, cursor: Cursor, message: AppendResponse) -> None:
        super()._append_response(sender, cursor, message)
        if self._demoting and self.replica.role is self:
            self._go_on_demoting()

    # --- time ---

    def leads_on_alone(self) -> bool:
        """Too few follow: no more writes (TT-9); and, after a while, somebody else may try.

        Where nobody tries unasked, it leads on; but one whose PROMOTE is not settled has never led, and gives it
        up, as a nominee does (TT-18): else it would wait without end, and lead whenever a quorum comes back.
        """
        replica = self.replica
        tuning = replica.config.tuning
        if self._alone_since is None:
            self._alone_since = replica.now
            why = f"incomplete quorum: too few of {replica.membership} follow; writes are refused"
            replica.emit(effects.Report(why, member=replica.me))
        if replica.now < self._alone_since + tuning.alone_timeouts * tuning.election_timeout_s:
            return True
        if tuning.automatic:
            return False
        self._stop_waiting("incomplete quorum: too few replicas follow")
        return self.has_settled

    def _stop_waiting(self, why: str) -> None:
        """Whoever ordered something hears why it does not come to an end, instead of nothing."""
        demoting, self._demoting = self._demoting, []
        for request in demoting:
            self._answer(request, Outcome.TIMED_OUT, why=why)
        rolling_back, self._rolling_back = self._rolling_back, []
        for request in rolling_back:  # Its ROLLBACK is in the log, and may be settled yet.
            self._answer(request, Outcome.UNKNOWN, why=why)
        self.replica.answer_promotion(Outcome.UNKNOWN, why)  # So is its PROMOTE.

    def woke(self) -> None:
        if self._is_followed():
            self._alone_since = None
        self._confirm_now()
        super().woke()
        if self._demoting and self.replica.role is self:
            self._go_on_demoting()
        if self.replica.role is self:  # One that leads on alone would keep readers waiting for ever.
            self.reading.give_up(self.replica.config.tuning.read_wait_s)
        if self.deadline is None:
            self._alone_since = None  # At rest everybody is current: whoever asks for something wakes us.
