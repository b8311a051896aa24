"""Leader: answers its followers' requests, counts with everybody who may be in sync, asks for changes of the ISR.

**Who counts.** The *maximal ISR*: the ISR that is agreed, and whoever is in one that was asked for and of which
nothing is known yet (LB-10). So a shrink counts once it is agreed, an expansion from the asking: whomever a
controller believes to be in sync when it chooses the next leader, this leader has waited for. What became of a
request is known as soon as any newer state is: a request is good for one epoch of the partition only.

**What is settled.** What all of them have flushed, be it of this epoch or of an earlier one, provided that enough
are in sync by what is agreed. See README.md for why neither needs an entry of the own epoch, and what does. Whoever
keeps up and is not in sync yet is waited for, too, so that it can come in: nobody reaches the end of a log that
goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import events, quorum
from quorate.core.entry import NOWHERE, EntryId, Header, Member
from quorate.core.isr.fetcher import Fetcher
from quorate.core.isr.messages import AlterIsr, FetchRequest, FetchResponse
from quorate.core.isr.roles import Role
from quorate.core.isr.state import PartitionState
from quorate.core.leading import Leading
from quorate.core.reading import Reading, StillResponse

if TYPE_CHECKING:
    from quorate.core.isr.replica import Replica

AHEAD_COUNT_MAX = 8
"""So many messages with entries a follower may be sent before it asks for more."""


class Leader(Leading, Role):
    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.followers: dict[int, Fetcher] = {}
        """By node: everybody else who holds the partition."""
        self.asked: AlterIsr | None = None
        """A change of the ISR of which nothing is known yet."""
        self._listens_until = replica.now
        """It has stood still: nobody is judged before what was said meanwhile is heard."""
        self.reading = Reading(self)

    def enter(self) -> None:
        replica = self.replica
        assert replica.can_lead()
        replica.leader = replica.me.node
        self.begin_epoch()
        self._gather()
        self.wake()

    def leave(self) -> None:
        super().leave()
        self.reading.leave()

    def asked_to_read(self, event: events.ReadAsked) -> None:
        self.reading.ask(event)
        self.wake()  # It may have to be given up.

    def why_closed(self, event: events.Proposed) -> str:
        """Below the minimum nothing is taken that could not be settled (LB-21)."""
        state = self.state
        if not state.may_settle:
            return f"{len(state.isr)} in sync, and {state.min_isr} needed: try again later"
        return super().why_closed(event)

    def why_not_to_end(self) -> str:
        """Few in sync may settle a Barrier, and only a majority that has it lets anything begin above it (017)."""
        state = self.state
        in_sync = [member for member in state.isr if not self._is_suspected(member)]
        if quorum.has_majority(in_sync, state.replicas):
            return ""
        return f"{len(in_sync)} of {len(state.replicas)} copies in sync and there: a majority has to be"

    def _is_suspected(self, member: Member) -> bool:
        return member != self.replica.me and self.followers[member.node].is_suspected

    # --- who counts ---

    @property
    def state(self) -> PartitionState:
        assert self.replica.told is not None
        return self.replica.told

    @property
    def maximal_isr(self) -> tuple[Member, ...]:
        """The agreed ISR, and one that was asked for and may be agreed by now."""
        if self.asked is None:
            return self.state.isr
        return tuple(sorted({*self.state.isr, *self.asked.isr}))

    @property
    def _waited_for(self) -> tuple[Member, ...]:
        """The maximal ISR, and who is about to join it: it can, once it has all that is settled (LB-23)."""
        now, lag_s = self.replica.now, self.replica.config.tuning.lag_s
        coming = [
            follower.member
            for follower in self.followers.values()
            if follower.flushed >= self._epoch_first and follower.is_coming(now, lag_s)
        ]
        return tuple(sorted({*self.maximal_isr, *coming}))

    def counts(self, member: Member) -> bool:
        return member in self._waited_for

    @property
    def _electable(self) -> tuple[Member, ...]:
        """Everybody who may be chosen to lead next: while too few are in sync, those who left are, too."""
        return tuple(sorted({*self.maximal_isr, *self.state.elr}))

    @property
    def voting_peers(self) -> tuple[int, ...]:
        return tuple(member.node for member in self._electable if member != self.replica.me)

    def has_quorum(self, members: set[Member]) -> bool:
        return members.issuperset(self._electable)

    def altered(self) -> None:
        """The store has another state, and we still lead."""
        if self.asked is not None and self.state.epoch > self.asked.partition_epoch:
            self.asked = None  # It was agreed, or never will be.
        self._gather()
        self.persisted()
        self._judge()
        self.wake()

    def _gather(self) -> None:
        """A place for everybody who holds the partition, and for nobody else."""
        now = self.replica.now
        followers = {}
        for member in self.state.replicas:
            known = self.followers.get(member.node)
            if member != self.replica.me:
                is_known = known is not None and known.member == member
                followers[member.node] = known if known is not None and is_known else Fetcher(member, now)
        self.followers = followers
        self._matched = {member: at for member, at in self._matched.items() if member in self.state.replicas}

    # --- requests ---

    def receive(self, sender: Member, message: Any) -> None:
        follower = self.followers.get(sender.node)
        if follower is None or follower.member != sender:
            if type(message) is FetchRequest:
                self.replica.pass_on(sender)  # The partition is not kept there any more, or not yet.
        elif type(message) is FetchRequest:
            self._fetch(follower, message)
        elif type(message) is StillResponse:
            self.reading.answered(sender, message)

    def _fetch(self, follower: Fetcher, request: FetchRequest) -> None:
        replica = self.replica
        if not follower.asked(request, end=replica.log.head.offset, now=replica.now):
            return
        self._matched[follower.member] = request.flushed
        self._learn_what_is_settled(request)
        self.persisted()
        self._judge()
        self._answer(follower)
        self.wake()

    def _learn_what_is_settled(self, request: FetchRequest) -> None:
        """It may know more of it, from an earlier leader. One that is damaged can be given only what is known to be
        settled, and acknowledges nothing before.
        """
        replica = self.replica
        known = min(request.commit, request.prev.offset, replica.durable.offset)
        if known > replica.commit and replica.log.holds(request.prev):
            self.settle(known)

    # --- answers ---

    def _answer(self, follower: Fetcher) -> None:
        """The newest request of this follower, by what there is now."""
        replica = self.replica
        log, request = replica.log, follower.request
        if request is None:
            return
        covering = request.wants_snapshot
        if request.faulty is not None and request.faulty.before.offset < log.base.offset:
            # What it lost is no longer in any log; a snapshot that ends inside of that would not mend it.
            covering = max(covering, min(request.faulty.last.offset, replica.published))
        if covering >= 0:
            self._answer_with_snapshot(follower, covering)
        elif request.prev.offset < log.floor:
            self._answer_with_snapshot(follower, log.floor)
        elif not log.holds(request.prev):
            self._answer_diverging(follower, request)
        elif follower.end.offset < log.head.offset:
            self._answer_with_entries(follower)
        else:
            self._answer_with_nothing(follower, request)

    def _send(self, follower: Fetcher, **more: Any) -> None:
        replica, request = self.replica, follower.request
        assert request is not None
        follower.is_waiting = follower.says_more = False
        headers: tuple[Header, ...] = more.get("headers", ())
        commit = self.commit_for(headers[-1].last if headers else follower.end.offset)
        answer = FetchResponse(replica.epoch, request.session, request.number, follower.end, commit, **more)
        replica.send(follower.node, answer)

    def _answer_with_snapshot(self, follower: Fetcher, covering: int) -> None:
        snapshot = self.replica.snapshot
        if snapshot is None or snapshot.last.offset < covering:
            self.replica.take_snapshot()
            self._send(follower, later=True)
        else:
            self._send(follower, snapshot=snapshot)

    def _answer_diverging(self, follower: Fetcher, request: FetchRequest) -> None:
        """Our last entry that is not of a later epoch than its head: where that epoch ends, for us (LB-22)."""
        log = self.replica.log
        end = log.epochs.last_shared(EntryId(request.prev.epoch, log.head.offset), log.head)
        if end == log.base != NOWHERE and end.epoch > request.prev.epoch:
            self._answer_with_snapshot(follower, end.offset)  # Where both logs part is no longer in ours.
            return
        known = log.base.offset <= request.commit <= log.head.offset
        settled = log.position(request.commit) if known else NOWHERE
        self._send(follower, diverging=end, settled=settled)

    def _answer_with_entries(self, follower: Fetcher) -> None:
        """What comes behind all that it was sent: not more than a few messages go ahead of its requests."""
        replica = self.replica
        tuning = replica.config.tuning
        if follower.ahead_count >= AHEAD_COUNT_MAX:
            return
        headers = replica.log.headers_from(
            follower.next, bytes_max=tuning.message_bytes_max, count_max=tuning.message_entries_max
        )
        if headers is not None and not self.is_paced(follower.member, headers):
            self.drop_held(follower)
            self._send_entries(follower, headers)
        elif headers is None and self._snapshot_is_cheaper(follower.next):
            self._send(follower, snapshot=replica.snapshot)
        else:
            self.read_for(follower)

    def _send_entries(self, follower: Fetcher, headers: tuple[Header, ...]) -> None:
        assert follower.request is not None
        self._send(follower, headers=headers)
        follower.given = follower.request.session, headers[-1].id
        follower.ahead_count += 1

    def loaded(self, event: events.Loaded) -> None:
        node = self._readers.pop(event.token, None)
        follower = self.followers.get(node) if node is not None else None
        if follower is None or follower.reading != event.token:
            return
        follower.reading = 0
        headers: tuple[Header, ...] = event.headers[: self.replica.config.tuning.message_entries_max]
        log = self.replica.log
        fits = bool(headers) and headers[0].offset == follower.next and log.holds(follower.end)
        if fits and headers[0].offset > log.floor:  # Otherwise removed while they were read.
            self._send_entries(follower, headers)
        # Otherwise it has asked for something else since, and asks again.

    def _answer_with_nothing(self, follower: Fetcher, request: FetchRequest) -> None:
        """It has our whole log. It may rest if it has flushed that, and knows that all of it is settled.

        One that only says that it has got, or flushed, what it was sent waits for news: an answer would say
        nothing. It asks again after a while, and is answered then.
        """
        replica = self.replica
        end = replica.log.head.offset
        rest = follower.is_whole and request.flushed == request.commit == replica.commit == end
        if rest or not follower.says_more or follower.given[0] != request.session:
            self._send(follower, rest=rest and not follower.is_suspected)
        follower.says_more = False
        follower.is_waiting = True
        follower.is_resting = follower.is_resting or rest

    def appended(self) -> None:
        for follower in self.followers.values():
            follower.appended(self.replica.now)
        self._tell_news()
        self.wake()

    def _tell_news(self) -> None:
        """There is more in the log: whoever waits for that hears of it. What is settled is said with what comes
        next, or with the next heartbeat: nobody but readers of that copy waits for it.
        """
        for follower in self.followers.values():
            if (follower.is_waiting or follower.ahead_count) and follower.end != self.replica.log.head:
                self._answer(follower)

    def _has_news_for(self, follower: Fetcher) -> bool:
        replica, request = self.replica, follower.request
        assert request is not None
        return request.prev != replica.log.head or request.commit < replica.commit

    # --- commit ---

    def persisted(self) -> None:
        """What the maximal ISR has flushed, if enough are in sync (LB-10, LB-21)."""
        replica = self.replica
        if not self.state.may_settle:
            return  # By what is agreed: who was asked for may never be in, and whoever left may lead.
        self._matched[replica.me] = replica.durable.offset
        reached = quorum.whole_set_offset(self._matched, self._waited_for)
        if reached <= replica.commit:
            return
        had_settled = self.has_settled
        self.settle(reached)
        if self.has_settled and not had_settled:
            self.reading.settled()
        self.wake()  # The followers are to hear of it.

    # --- who is in sync ---

    def _judge(self) -> None:
        """Ask whoever lags out, and whoever has caught up in; one question at a time (LB-20, LB-23)."""
        self._notice_a_pause()
        if self.asked is not None or self.replica.now < self._listens_until:
            return
        state, replica = self.state, self.replica
        isr = tuple(member for member in state.replicas if self._is_in_sync(member))
        if isr != state.isr:
            self.asked = AlterIsr(replica.epoch, state.epoch, isr)
            replica.tell_controllers(self.asked)
            self.wake()

    def _notice_a_pause(self) -> None:
        """What followers have said while this leader stood still is not heard yet, and they seem to lag.

        One that is always late has to judge, too: it listens once in `lag_s`.
        """
        now, tuning = self.replica.now, self.replica.config.tuning
        is_late = self.deadline is not None and now - self.deadline > tuning.heartbeat_s
        if is_late and now - self._listens_until > tuning.lag_s:
            self._listens_until = now + tuning.heartbeat_s

    def _is_in_sync(self, member: Member) -> bool:
        replica = self.replica
        if member == replica.me:
            return True
        follower = self.followers[member.node]
        if follower.lags(replica.now, replica.config.tuning.lag_s):
            return False
        # One that comes in must have all that is settled: by this leader, and by any before it, which is at most
        # what this log had when the epoch began.
        is_caught_up = follower.is_whole and follower.flushed >= max(replica.commit, self._epoch_first)
        return member in self.state.isr or is_caught_up

    def suspected(self, node: int) -> None:
        """It may be gone, or have restarted: let it show that it still has everything."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.suspected(self.replica.now)
            self.wake()

    def ended(self, node: int) -> None:
        """Nobody needs to wait until it lags: nothing more of what it was sent is flushed there."""
        self.suspected(node)
        follower = self.followers.get(node)
        if follower is not None:
            follower.ended()
            self._judge()

    # --- time ---

    def woke(self) -> None:
        replica = self.replica
        if self.asked is not None:
            replica.tell_controllers(self.asked)
        self.persisted()  # Whoever was about to join may have stopped.
        self._judge()
        self.deadline = None
        self.reading.woke()
        self.reading.give_up(replica.config.tuning.read_wait_s)
        for follower in self.followers.values():
            if self._is_to_be_woken(follower) and follower.is_due():
                follower.forget_given()  # Whoever rests does not ask again by itself.
                self._answer(follower)
            elif self._is_to_be_told(follower):
                self._answer(follower)
        if self._is_waiting_for_something():
            self.deadline = replica.now + replica.config.tuning.heartbeat_s

    def _is_to_be_woken(self, follower: Fetcher) -> bool:
        return follower.is_resting and (follower.is_suspected or self._has_news_for(follower))

    def _is_to_be_told(self, follower: Fetcher) -> bool:
        """It waits, and more is settled than it knows."""
        return follower.is_waiting and not follower.is_resting and self._has_news_for(follower)

    def _is_waiting_for_something(self) -> bool:
        return (
            self.asked is not None
            or self.reading.is_waiting
            or any(map(self._is_to_be_woken, self.followers.values()))
            or any(map(self._is_to_be_told, self.followers.values()))
            or any(
                self.followers[member.node].behind_since is not None
                for member in self._waited_for
                if member != self.replica.me
            )
        )
