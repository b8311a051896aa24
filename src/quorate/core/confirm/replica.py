"""One confirm replica: raft's, with `_voting`, promotion by order, and replicas that do not count for a while.

What a leader settles, and how, stands in leader.py; `_voting` in voting.py. Quorum sizes come with the membership
(core/quorum.py), and undo is the host's and the machine's (host/, machine/table.py): a cut takes back what the
entries had changed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from quorate.core import commands, effects, events
from quorate.core.confirm.candidate import Candidate
from quorate.core.confirm.config import CUTTING_LOOSE, TOO_NEW, Config, SavedState
from quorate.core.confirm.follower import Follower
from quorate.core.confirm.leader import Leader
from quorate.core.confirm.voting import Row, Says, Voting
from quorate.core.effects import Outcome
from quorate.core.entry import Confirm, EntryId, Header, Kind, Member, Membership, Promote, Rollback
from quorate.core.keeping import COMMON_HANDLERS
from quorate.core.raft import replica as raft
from quorate.core.raft.messages import AppendEntries, GoneRequest
from quorate.core.raft.prospect import Prospect
from quorate.core.staging import Staging


class Replica(raft.Replica):
    """The state machine of one copy of one partition or table group."""

    config: Config
    orders: ClassVar[dict[type, Callable[[Any, Any], None]]]
    """Those that a replica takes in any role."""

    def __init__(self, config: Config, rng: Random) -> None:
        super().__init__(config, rng)
        self.born = self.membership = Membership(config.voters, config.learners, quorums=config.quorums)
        self.voids = True
        self.voting = Voting()
        self.row = Row()
        self.led = 0
        self.loose = False
        self.detached = False
        """An entry could not be applied here: it follows, and does not count, until a person says so (TT-8)."""
        self.promotion: commands.Promote | None = None
        """The order by which it stands or leads, until that is answered."""
        self._done_when_saved: list[int] = []
        """Orders that were carried out, and are answered once that is durable."""
        self.settled_elsewhere = -1
        """The furthest that one of its voters knew to be settled."""

    def describe(self) -> str:
        return super().describe() + (" loose" if self.loose else "") + (" detached" if self.detached else "")

    @property
    def knows_loose(self) -> bool:
        """Whether every node knows of replicas that do not count, of quorum sizes and of forced rollbacks."""
        return self.config.tuning.feature_level >= CUTTING_LOOSE

    @property
    def counts(self) -> bool:
        """Whether what this replica has may be counted on."""
        return not self.loose and not self.detached

    def can_lead(self) -> bool:
        return self.counts and super().can_lead()

    def may_stand(self) -> bool:
        return self.config.tuning.automatic and super().may_stand()

    def saved_state(self) -> SavedState:
        return SavedState(self.epoch, self.vote, self.owed, self.row, self.led, self.loose)

    def sets_aside(self, to: EntryId) -> bool:
        """What this replica itself had taken as a leader is kept beside the log, for people (TT-26, TT-27)."""
        return self.led > 0 and any(
            header.epoch == self.led and header.offset > to.offset and header.kind == Kind.RECORDS
            for header in self.log.window
        )

    def install(self, staging: Staging) -> None:
        """A full rejoin. What this replica had taken as a leader is kept then, too (TT-27, TT-28)."""
        if not self.log.faulty and not self.log.holds(staging.snapshot.last):
            settled = self.log.position(self.commit)
            if self.sets_aside(settled):
                self.owe(self.log.head)
                self.cut(settled)
                self.verified = min(self.verified, settled, key=lambda entry: entry.offset)
        super().install(staging)

    def advance_commit(self, to: int) -> None:
        newest = self.log.newest(Promote)
        before = self.commit
        super().advance_commit(to)
        if newest is not None and before < newest.offset <= self.commit:
            self._saw_promote(newest)

    def adopt(self, epoch: int) -> None:
        """Whoever waits for its turn to stand waits no longer for that: nominees who are ordered to stand ask
        nobody before they take an epoch, and one that is ordered again and again would keep all others from it.
        A vote, or a leader that is heard, starts the clock anew (Raft §5.2)."""
        due = None if self.role.name == "leader" else self.role.deadline
        super().adopt(epoch)
        if due is not None and self.role.deadline is not None:
            self.role.deadline = min(self.role.deadline, due)

    # --- _voting ---

    def _saw_promote(self, header: Header) -> None:
        """It is settled. Whoever was away when its leader said so reads it in the log (TT-13)."""
        control, epoch = header.control, header.epoch
        assert isinstance(control, Promote)
        if self.role.name != "leader" and epoch > self.voting.newest.since:
            self._heard(
                control.leader, Row(epoch, control.leader, True, control.leader, control.former, epoch)
            )

    def _write(self, nominee: int, *, aye: bool, leader: int | None = None, former: int = 0) -> None:
        """Write this node's row. Who leads stays what is known, unless it says otherwise."""
        newest = self.voting.newest
        if leader is None:
            self.row = Row(self.epoch, nominee, aye, newest.leader, newest.former, newest.since)
        else:
            self.row = Row(self.epoch, nominee, aye, leader, former, self.epoch)
        self.voting.take(self.me.node, self.row)
        self.save_state()

    def _heard(self, node: int, row: Row) -> None:
        """Somebody's row. Who leads by it, if that is news, stands in the own row from now on, over restarts."""
        self.voting.take(node, row)
        newest, mine = self.voting.newest, self.row
        if (newest.leader, newest.former, newest.since) != (mine.leader, mine.former, mine.since):
            self.row = Row(mine.epoch, mine.nominee, mine.aye, newest.leader, newest.former, newest.since)
            self.voting.take(self.me.node, self.row)
            self.save_state()

    def _say(self, *, stands: bool = False, ordered: bool = False, nominee: int = 0) -> None:
        """Let everybody have this node's row, once it is saved; a nominee, too, that this log does not know yet."""
        settled = self.commit if self.knows_loose else None
        says = Says(self.epoch, self.row, self.log.head, stands, ordered, self.faulty, settled)
        for node in self.peers if not nominee or nominee in self.peers else (*self.peers, nominee):
            self.send_when_saved(node, says)

    def stand(self, *, ordered: bool) -> None:
        """Nominate this node (TT-15)."""
        self._write(self.me.node, aye=True)
        self._say(stands=True, ordered=ordered)

    def withdrew(self) -> None:
        self._write(0, aye=False)
        self._say()

    def took_over(self, former: int) -> None:
        """PROMOTE is settled: read-write begins, and everybody hears of it (TT-17)."""
        self.led = self.epoch
        self._write(self.me.node, aye=True, leader=self.me.node, former=former)
        self._say()
        self.answer_promotion(Outcome.SETTLED)

    def gave_up_leadership(self) -> None:
        """FORMER is this node, CURRENT is nobody (TT-21)."""
        self._write(0, aye=False, leader=0, former=self.me.node)
        self._say()

    def answer_promotion(self, outcome: Outcome, why: str = "") -> None:
        if self.promotion is not None:
            request, self.promotion = self.promotion.request, None
            self.emit(effects.Reply(request, outcome, self.commit, self.epoch, leader=self.leader, why=why))

    def become(self, name: str) -> None:
        super().become(name)
        if name not in ("candidate", "leader"):
            self.answer_promotion(Outcome.UNKNOWN, "another epoch began")

    # --- facts ---

    def recover(self, recovered: events.Recovered, *, epoch: int, owed: EntryId) -> None:
        """What is settled is only a hint on the disk, and may be older than the snapshot, which is of nothing else:
        no forced rollback may reach below that, for the machine begins with it."""
        super().recover(recovered, epoch=epoch, owed=owed)
        if self.snapshot is not None:
            self.commit = max(self.commit, self.snapshot.last.offset)

    def _started(self, event: events.Started) -> None:
        saved = event.recovered.state
        if saved is not None:
            assert isinstance(saved, SavedState)
            self.row, self.led, self.loose = saved.row, saved.led, saved.loose
            self.voting.take(self.me.node, self.row)
        super()._started(event)
        for header in event.recovered.controls:
            # It was written when what it names was on a quorum, whatever becomes of the entry itself (TT-22).
            if type(header.control) is Confirm and header.offset > self.log.base.offset:
                self.advance_commit(header.control.upto.offset)

    def _persisted(self, event: events.Persisted) -> None:
        super()._persisted(event)
        if self._done_when_saved and self._state_io <= self.ordering.persisted:
            done, self._done_when_saved = self._done_when_saved, []
            for request in done:
                self.emit(effects.Reply(request, Outcome.SETTLED, self.commit, self.epoch, self.leader))

    def _received(self, event: events.Received) -> None:
        message = event.message
        if type(message) is AppendEntries and self._is_taken_back(message):
            return None
        if type(message) is not Says:
            return super()._received(event)
        sender, row = event.sender, message.row
        self._heard(sender.node, row)
        stands = message.stands
        if message.epoch < self.epoch:
            if stands:
                self._answer_nominee(sender, aye=False)
            return None
        if stands and not message.ordered and self._follows():
            return None  # Who is heard leads on. To take the epoch would depose it, too.
        if message.epoch > self.epoch:
            self.adopt(message.epoch)
        if stands:
            self._nominated(sender, message)
        elif self.leader == sender.node and row.since == self.epoch and not row.leader:
            self._was_deserted(sender.node)
        else:
            self.role.receive(sender, message)
        return None

    def _is_taken_back(self, message: AppendEntries) -> bool:
        """A forced ROLLBACK can reach what is settled here, where nobody who voted knew of it: a person's act, and
        so is what becomes of this replica. It must not go on as if nothing had been said (D8)."""
        if message.epoch < self.epoch:
            return False
        for header in message.headers:
            control = header.control
            if type(control) is not Rollback or control.first > self.commit:
                continue
            is_damaged = self.log.span_at(header.offset) is not None  # It may be the very one that is here.
            if not is_damaged and not self.log.holds(header.id):
                self._detach(
                    f"a forced rollback takes back offset {control.first}, settled here: wipe this replica"
                )
                return True
        return False

    def _detach(self, why: str) -> None:
        if not self.detached:
            self.detached = True
            self.emit(effects.Report(why, member=self.me))
        if self.role.needs_whole_log:
            self.stand_down()

    def _was_deserted(self, node: int) -> None:
        """The leader was demoted: whoever is at rest would wait for it for ever."""
        self.role.suspected(node)
        self.leader = 0
        self.promised_until = self.now

    def _nominated(self, sender: Member, message: Says) -> None:
        """One durable AYE an epoch, to whoever's log reaches as far as ours (TT-16, D6)."""
        aye = (
            (self.vote is None or self.vote == sender)
            and message.last >= self.claim
            and not self.installing
            and not self.loose
        )
        if aye and self.vote is None:
            self.vote = sender
            self._write(sender.node, aye=True)
        if aye:
            self.role.granted_vote()
        self._answer_nominee(sender, aye=aye)

    def _answer_nominee(self, sender: Member, *, aye: bool) -> None:
        """A NAY is said to the nominee alone; an AYE is a row, and everybody's business."""
        if aye:
            self._say(nominee=sender.node)
            return
        cannot = self.faulty or not self.counts  # It is no better leader: its NAY ends nothing.
        row = Row(self.epoch, sender.node)
        self.send_when_saved(sender.node, Says(self.epoch, row, self.log.head, faulty=cannot))

    def _gone_request(self, sender: Member, message: Any) -> None:
        if not self.loose:
            super()._gone_request(sender, message)

    def _apply_failed(self, event: events.ApplyFailed) -> None:
        self._detach(
            f"offset {event.offset} could not be applied here: {event.reason}; look at it, then join it again"
        )

    # --- orders for whoever is asked ---

    def _commanded(self, event: events.Commanded) -> None:
        command = event.command
        order = self.orders.get(type(command))
        too_new = (
            isinstance(command, commands.CutLoose)
            or (isinstance(command, commands.Promote) and command.roll_back)
            or (isinstance(command, commands.ChangeMembership) and command.quorums is not None)
        )
        if too_new and not self.knows_loose:
            self.emit(effects.Reply(command.request, Outcome.REFUSED, leader=self.leader, why=TOO_NEW))
        elif order is None:
            super()._commanded(event)
        else:
            order(self, command)

    def _promote(self, command: commands.Promote) -> None:
        if self.role.name == "leader" and not command.roll_back:
            outcome = Outcome.SETTLED if self.commit >= (self.leads_from or 0) else Outcome.BUSY
            self.emit(effects.Reply(command.request, outcome, self.commit, self.epoch, self.me.node))
            return
        if self.promotion is not None:
            why = "it is being promoted already"
            self.emit(effects.Reply(command.request, Outcome.BUSY, leader=self.leader, why=why))
            return
        why_not = self._why_not_promoted()
        if not why_not and command.roll_back and self.barrier is not None:
            why_not = (
                "its copies are about to agree in another way, and nothing was undecided when that began"
            )
        if why_not:
            self.emit(effects.Reply(command.request, Outcome.REFUSED, leader=self.leader, why=why_not))
            return
        if self.role.name in ("leader", "candidate"):
            self.stand_down()
        self.promotion = command
        self.become("candidate")
        assert isinstance(self.role, Candidate)
        self.role.handed_over = True

    def _why_not_promoted(self) -> str:
        if not self.counts:
            return "this replica does not count until it is joined again"
        if not self.is_voter and not self.is_leaving:
            return f"this replica is asynchronous: {self.membership}"
        return "" if self.can_lead() else "its log has damage, or a snapshot is being put in its place"

    def _cut_loose(self, command: commands.CutLoose) -> None:
        """With the leader gone: keep what is known to be settled, and nothing else (TT-32, D9)."""
        if self.role.name == "leader" or self.faulty or self.installing:
            why = "a leader is demoted instead" if self.role.name == "leader" else "its log has damage"
            self.emit(effects.Reply(command.request, Outcome.REFUSED, leader=self.leader, why=why))
            return
        self.stand_down()  # Also a follower: what it has acknowledged is gone.
        self.loose = True
        self.ordering.forget_held()  # Neither a vote nor an acknowledgement leaves it from now on (D9).
        if self.log.head.offset > self.commit:
            to = self.log.position(self.commit)
            self.owe(self.log.head)  # It votes, should it ever again, as if it still had it.
            self.cut(to)
            if self.verified.offset > to.offset:
                self.verified = to
        self.take_snapshot()
        self.save_state()
        self._done_when_saved.append(command.request)

    def _join_again(self, command: commands.JoinAgain) -> None:
        if not self.leader:
            why = "no leader is heard: there is nothing to join"
            self.emit(effects.Reply(command.request, Outcome.REFUSED, why=why))
            self._let_leader_speak()
            return
        self.loose = self.detached = False
        self.save_state()
        self._done_when_saved.append(command.request)

    def _let_leader_speak(self) -> None:
        """At rest it says nothing, and does not know that we have stopped to listen: so ask for it."""
        self.times_asked += 1
        for node in self.peers:
            self.send_when_saved(node, GoneRequest(self.epoch, self.log.head, self.times_asked))


Replica.orders = {
    commands.Promote: Replica._promote,
    commands.CutLoose: Replica._cut_loose,
    commands.JoinAgain: Replica._join_again,
}
Replica.roles = {role.name: role for role in (Follower, Prospect, Candidate, Leader)}
Replica.transitions = raft.Replica.transitions
Replica.handlers = COMMON_HANDLERS | {
    events.Started: Replica._started,
    events.Received: Replica._received,
    events.Persisted: Replica._persisted,
    events.Commanded: Replica._commanded,
    events.ApplyFailed: Replica._apply_failed,
}
