"""Follower: asks its leader for what comes behind its own log, again and again (LB-7).

A request names the end of the log and how much of it is flushed; only the latter is an acknowledgement (LB-9).
The leader sends what is new while the last is still being flushed, as far as it may go ahead; when that is
flushed, it is said with the next request.

One request is open at a time. It is repeated until it is answered; the leader may answer it again when there is
something new. A follower that has everything, and was told to *rest*, is silent until then; the failure detector
of the leader's node wakes it.

**Truncation.** If its log ends with what the leader does not have, the answer names the leader's last entry that
is not of a later epoch: nothing above that is shared. The follower asks again from its own last position at or
below, until both agree (LB-22, D1), and only then cuts its log, there. What it knows to be settled has no part in
this: it may know too little (LB-24, KIP-101).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import effects
from quorate.core.entry import NOWHERE, EntryId, Member, Snapshot
from quorate.core.isr.messages import FetchRequest, FetchResponse, ReportLeader
from quorate.core.isr.roles import Role

if TYPE_CHECKING:
    from quorate.core.isr.replica import Replica


class Follower(Role):
    name = "follower"

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        assert replica.told is not None
        self._leader: Member = replica.told.leader
        self._session = replica.next_session()
        self._asked: FetchRequest | None = None
        """The newest request."""
        self._probe: EntryId | None = None
        """Where both logs may part, while that is searched for."""
        self._loses = False
        """The place lies in what is damaged here: with what is above the probe goes what both may have had."""
        self._ask_at = 0.0
        self._suspect_at = 0.0
        self._silence_s = 0.0
        """How long a leader may be silent; drawn, so that not all report it at once."""
        self._retry_s = 0.0
        self._is_resting = False
        self._is_stranded = False
        """What is settled here is not in the leader's log: nothing can be done but to wipe it."""

    def enter(self) -> None:
        self.replica.leader = self._leader.node
        self._draw_silence()
        self.heard_leader()
        self.deadline = self._ask_at = self.replica.now  # Not in the middle of what made it follow.

    def heard_leader(self) -> None:
        self._suspect_at = self.replica.now + self._silence_s
        self._retry_s = self.replica.config.tuning.heartbeat_s

    def _draw_silence(self) -> None:
        self._silence_s = self.replica.config.tuning.suspect_s * (1.0 + self.replica.rng.random())

    # --- asking ---

    def _ask(self) -> None:
        """What comes next? Not while a snapshot comes: that has its own questions, and the log is in suspense."""
        replica = self.replica
        if self._is_resting:
            self.heard_leader()  # It owed us nothing so far.
        self._is_resting = False
        if replica.staging is None and not self._is_stranded:
            number = self._asked.number + 1 if self._asked is not None else 1
            self._asked = FetchRequest(
                replica.epoch,
                self._session,
                number,
                self._prev,
                replica.flushed_agreement(),
                replica.commit,
                faulty=replica.repairing.wanted(replica.log),
                wants_snapshot=replica.wants_snapshot,
            )
            replica.send_when_saved(self._leader.node, self._asked)
        self._ask_at = replica.now + self._retry_s
        self._look_ahead()

    def _look_ahead(self) -> None:
        awake = not self._is_resting and not self._is_stranded
        self.deadline = min(self._ask_at, self._suspect_at) if awake else None

    @property
    def _prev(self) -> EntryId:
        return self._probe if self._probe is not None else self.replica.log.head

    def _has_news(self) -> bool:
        """Whether another request would say something else than the last one."""
        replica, asked = self.replica, self._asked
        assert asked is not None
        return (
            asked.prev != self._prev
            or asked.flushed != replica.flushed_agreement()
            or asked.commit != replica.commit
        )

    def persisted(self) -> None:
        if self._asked is not None and self._has_news():
            self._ask()

    def fetched(self, installed: bool) -> None:
        if installed:
            self._ask()
        else:  # The leader has another one by now, or will have.
            self._ask_at = self.replica.now + self._retry_s
            self._look_ahead()

    def installed(self, snapshot: Snapshot) -> None:
        self._probe = None
        super().installed(snapshot)
        if self._asked is None or self._has_news():
            self._ask()

    def beyond_repair(self) -> None:
        """A leader that is at rest has to be told what is missing, or the damage would stay for ever."""
        self._ask()

    def suspected(self, node: int) -> None:
        """It may be gone, or have restarted: only an answer to what is asked from now on shows that it leads."""
        if node == self._leader.node:
            self._ask()

    def woke(self) -> None:
        replica = self.replica
        if replica.now >= self._suspect_at:
            assert replica.told is not None
            replica.tell_controllers(ReportLeader(replica.epoch, replica.told.epoch))
            self._draw_silence()
            self._suspect_at = replica.now + self._silence_s
        if replica.now >= self._ask_at:
            self._retry_s = min(2 * self._retry_s, replica.config.tuning.suspect_s)
            self._ask()
        self._look_ahead()

    # --- answers ---

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is FetchResponse and sender == self._leader:
            self.heard_leader()
            self._answered(message)
            self._look_ahead()

    def _answered(self, message: FetchResponse) -> None:
        replica, asked = self.replica, self._asked
        if replica.staging is not None:
            return
        # A leader's log only grows, so an answer about this position stays true, whichever request it is for.
        if asked is None or message.session != self._session or message.prev != self._prev:
            if self._is_resting:
                self._ask()  # The leader waits for an answer of ours, and believes to have another question.
            return
        if message.later:
            self._ask_at = replica.now + self._retry_s
        elif message.snapshot is not None and self._is_contradicted_by(message.snapshot):
            self._contradicted(NOWHERE)
        elif message.snapshot is not None:
            leader = self._leader.node
            replica.fetching.order(asker=leader, source=leader, snapshot=message.snapshot)
        elif message.diverging is not None:
            self._diverge(message)
        else:
            self._agree(message)

    def _agree(self, message: FetchResponse) -> None:
        """Both logs agree up to `prev`; here is what comes behind it, and what is settled (LB-8)."""
        replica = self.replica
        if self._probe is not None:
            span = replica.log.span_at(self._probe.offset)
            if span is not None and self._probe != span.last:  # Found since it was asked for.
                self._probe = None
                self._ask()
                return
            self._cut(self._probe)
        if message.headers:
            replica.append(message.headers)
        replica.verify(replica.log.head, message.commit)
        if message.headers and not replica.ordering.idle:
            self._is_resting = False  # It is asked for more as soon as these are flushed.
            self._ask_at = replica.now + self._retry_s
        elif self._has_news() or self._is_resting:
            self._ask()
        elif message.rest and self._may_rest(message.number):
            self._is_resting = True
        else:
            self._ask_at = replica.now + self._retry_s

    def _may_rest(self, number: int) -> bool:
        """The leader knows of no other request, and this replica has nothing more to say."""
        replica, asked = self.replica, self._asked
        return asked is not None and asked.number == number and replica.ordering.idle and not replica.faulty

    # --- truncation ---

    def _diverge(self, message: FetchResponse) -> None:
        """Go on searching at our last position that the leader may have, too."""
        replica = self.replica
        log = replica.log
        assert message.diverging is not None
        target = replica.last_at_or_below(message.diverging)
        is_shared = target.epoch <= message.diverging.epoch and target.offset <= message.diverging.offset
        if target.offset < replica.commit or not is_shared:  # Otherwise they part below our snapshot.
            self._contradicted(message.settled)
        elif target.offset < message.prev.offset:
            self._probe = target
            self._loses = target.offset < log.epochs.last_shared(message.diverging, log.head).offset
            self._ask()
        else:
            self._ask_at = replica.now + self._retry_s  # Something has to be mended first.

    def _is_contradicted_by(self, snapshot: Snapshot) -> bool:
        """It ends inside of what is settled here, and not with what we have there: it would never be of use."""
        log, last = self.replica.log, snapshot.last
        if last.offset < log.base.offset:
            return (
                last.epoch > log.base.epoch
            )  # Epochs never fall along a log: theirs has another one at our base.
        is_known = last.offset <= self.replica.commit and log.span_at(last.offset) is None
        return is_known and not log.holds(last)

    def _contradicted(self, settled: EntryId) -> None:
        """What is settled is never cut."""
        replica = self.replica
        self._ask_at = replica.now + self._retry_s
        if replica.log.faulty:  # It lies inside of damage: by the leader's name others can give it back.
            if settled.offset == replica.commit:
                replica.repairing.settled = settled
        elif not self._is_stranded:
            # Whoever leads has what is settled, unless a person has let somebody lead who has not.
            self._is_stranded = True
            why = "what is settled here is not in the log of its leader, which was elected uncleanly: wipe it"
            replica.emit(effects.Report(why, member=replica.me))

    def _cut(self, to: EntryId) -> None:
        """Above this nothing is shared; what is shared ends with an entry, in both logs."""
        replica = self.replica
        self._probe = None
        if self._loses:
            replica.owe(replica.claim)  # It may have been promised what is cut with the damage.
        replica.cut(to)
        if replica.verified.offset > to.offset:
            replica.verified = to
