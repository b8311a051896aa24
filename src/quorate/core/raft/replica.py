"""One raft replica: a keeper of a log (core/keeping.py) that elects and is elected.

The roles hold what differs between them (follower.py, prospect.py, candidate.py, leader.py). Here stands what all
of them share and other protocols do not: epochs and votes, and who counts.
"""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core import appending, effects, events, quorum
from quorate.core.entry import NOWHERE, Ceiling, Header, Member, Membership
from quorate.core.keeping import COMMON_HANDLERS, Keeper
from quorate.core.raft import messages
from quorate.core.raft.candidate import Candidate
from quorate.core.raft.config import Config, SavedState
from quorate.core.raft.follower import Follower
from quorate.core.raft.leader import Leader
from quorate.core.raft.prospect import Prospect
from quorate.core.raft.roles import Role


class Replica(Keeper):
    """The state machine of one copy of one partition."""

    config: Config
    role: Role
    resting = "follower"

    def __init__(self, config: Config, rng: Random) -> None:
        super().__init__(config, rng)
        self.vote: Member | None = None
        self.born = Membership(config.voters, config.learners)
        self.membership = self.born
        """In force: the newest one in this log, settled or not."""
        self.membership_at = -1
        """The offset of its entry, or of the snapshot that says so; -1: it is the one at birth."""
        self.voters = frozenset[Member]()
        self.is_voter = False
        self._voting_peers: tuple[int, ...] = ()
        self.times_asked = rng.getrandbits(32)
        """Rises whenever this replica asks whether others miss the leader, too. It does not begin with what it was
        in an earlier life: answers of then may still be under way, and say nothing about now."""
        self.promised_until = float("-inf")
        """A leader was heard: until then nobody else gets this vote."""
        self.leader_ended = False
        """Its process seems to be gone."""

    def describe(self) -> str:
        role = self.role.name if self.is_voter else "learner"
        quiet = " quiet" if self.role.deadline is None else ""
        owed = f" owes {self.owed}" if self.owed > self.log.head else ""
        return f"n{self.me.node} {role} e{self.epoch} log {self.log} commit {self.commit}{quiet}{owed}"

    def can_lead(self) -> bool:
        return (self.is_voter or self.is_leaving) and not self.faulty and not self.installing

    @property
    def is_leaving(self) -> bool:
        """Left out by a membership that is not known to be settled. Perhaps only those who go have its entry:
        one of them must be able to lead, without counting itself, until it is (Raft thesis §4.2.2)."""
        if self.is_voter or self.membership_at <= self.commit:
            return False
        counts = self.me in (self._stood.membership_of(self.generation) or self.born).voters
        for header in self.log.controls:
            if isinstance(header.control, Membership) and self._is_own(header):
                counts = self.me in header.control.voters or (counts and header.offset > self.commit)
        return counts

    def may_stand(self) -> bool:
        """Whether to try to lead without being asked to."""
        return self.config.tuning.priority > 0 and self.can_lead()

    @property
    def voting_peers(self) -> tuple[int, ...]:
        return self._voting_peers

    def has_quorum(self, members: set[Member]) -> bool:
        """Whether these are enough by the membership in force."""
        return quorum.can_commit(members, self.membership)

    def can_elect(self, members: set[Member]) -> bool:
        """Whether the votes of these make a leader."""
        return quorum.can_elect(members, self.membership)

    @property
    def ceiling(self) -> int:
        """The highest timestamp that any leader so far may have given out, as far as this log says."""
        newest = self.log.newest(Ceiling)
        in_log = newest.control.upto if newest is not None and isinstance(newest.control, Ceiling) else 0
        return max(in_log, self._stood.ceiling)

    # --- what must not be forgotten, and who counts by it ---

    def saved_state(self) -> SavedState:
        return SavedState(self.epoch, self.vote, self.owed)

    def controls_changed(self) -> None:
        """The membership in force has perhaps changed: an entry came, or was cut, or a snapshot took its place."""
        newest = self.log.newest(Membership)
        at, membership = -1, self.born
        if newest is not None and self._is_own(newest):
            assert isinstance(newest.control, Membership)
            at, membership = newest.offset, newest.control
        stood = self._stood.membership_of(self.generation)
        if stood is not None and at <= self._stood_at:
            at, membership = self._stood_at, stood
        self.membership_at = at
        if membership == self.membership and self.voters:
            return
        self.membership = membership
        self.voters = membership.voters
        self.is_voter = self.me in self.voters
        nodes = {member.node for member in membership.members} - {self.me.node}
        self.peers = self.repairing.peers = tuple(sorted(nodes))
        voting = {member.node for member in self.voters} - {self.me.node}
        self._voting_peers = tuple(sorted(voting))
        self.role.membership_changed()

    def _is_own(self, header: Header) -> bool:
        """Whether a Membership goes by here: not one from before the snapshot, nor of an earlier generation."""
        return header.offset > self._stood_at and self.begun is not None and header.offset > self.begun

    def release(self, effect: effects.Effect) -> None:
        """What waited for the disk is said if it is still so: something may have turned out to be damaged since."""
        if self.log.faulty and isinstance(effect, effects.Send):
            message = effect.message
            if type(message) is messages.AppendResponse and message.matched > self.log.intact_below():
                return
        self.emit(effect)

    # --- roles ---

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
        self.leader_ended = False
        self.verified = NOWHERE
        return self.save_state()

    # --- who leads ---

    def heard_leader(self, node: int) -> None:
        """The leader of this epoch spoke. For a while, nobody else gets this vote (YB-16, lease reads)."""
        self.leader = node
        self.leader_ended = False
        self.wait_for_leader()
        self.waiting.heard_leader()

    def wait_for_leader(self) -> None:
        """It has as long to speak again as if it had just been heard."""
        self.promised_until = self.now + self.config.tuning.election_timeout_s

    def _follows(self) -> bool:
        """A leader was heard within an election time-out; or at rest, where the failure detector watches it."""
        at_rest = self.leader and self.role.deadline is None and self.is_voter
        return bool(at_rest) or self.now < self.promised_until

    # --- facts that every role takes alike ---

    def _started(self, event: events.Started) -> None:
        recovered = event.recovered
        saved = recovered.state if recovered.state is not None else SavedState()
        assert isinstance(saved, SavedState)
        self.recover(recovered, epoch=saved.epoch, owed=saved.owed)
        self.vote = saved.vote if saved.epoch == self.epoch else None
        self.role = self.roles[self.resting](self)
        self.controls_changed()
        self.role.enter()
        is_new = not self.epoch or recovered.begins
        if not is_new:  # What this replica promised before it was restarted, it does not know.
            self.promised_until = self.now + self.config.tuning.election_timeout_s
        if self.config.preferred == self.me.node and is_new:
            # A new group need not wait for a leader that never was; only until its other replicas are there.
            self.role.deadline = self.now + self.config.tuning.heartbeat_s
        if recovered.begins:
            self.save_state()  # What it is from now on: with the cut that was ordered before it.
        self.publish()

    def _received(self, event: events.Received) -> None:
        message = event.message
        if type(message) is messages.WantEntries:
            return self.want_entries(event.sender, message)
        if type(message) is messages.HaveEntries:
            return self.have_entries(event.sender, message)
        if message.epoch < self.epoch:
            return self._refuse_stale(event.sender, message)
        if type(message) is messages.VoteRequest and not message.handed_over and self._follows():
            return None  # Who is heard leads on. To take the epoch would depose it, too.
        if message.epoch > self.epoch:
            self.adopt(message.epoch)
        if type(message) is messages.VoteRequest:
            return self._vote_request(event.sender, message)
        if type(message) is messages.GoneRequest:
            return self._gone_request(event.sender, message)
        self.role.receive(event.sender, message)
        return None

    def _refuse_stale(self, sender: Member, message: Any) -> None:
        """Tell a leader or candidate of the past which epoch it is (YB-10); drop its answers."""
        if type(message) is messages.VoteRequest:
            self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, False, self.faulty))
        elif type(message) is messages.GoneRequest:
            self.send_when_saved(sender.node, messages.GoneResponse(self.epoch, message.asked, False))
        elif type(message) in (messages.AppendEntries, messages.SnapshotChunk, messages.StillRequest):
            self.send_when_saved(
                sender.node, messages.AppendResponse(self.epoch, False, -1, -1, self.commit, theirs=NOWHERE)
            )

    def _vote_request(self, sender: Member, message: messages.VoteRequest) -> None:
        """One vote an epoch, for whoever has a log at least as far as ours (OR-6, YB-11).

        Whether it counts is for the candidate to know: it asks only those who do by its own log, which may know
        of a membership that ours does not have yet. It stands by that of its own that a learner is never asked
        (YB-5).
        """
        grant = (
            (self.vote is None or self.vote == sender)
            and message.last >= self.claim
            and not self.installing  # the head says nothing about what was promised then
        )
        if grant and self.vote is None:
            self.vote = sender
            self.save_state()
        if grant:
            self.role.granted_vote()
        self.send_when_saved(sender.node, messages.VoteResponse(self.epoch, grant, self.faulty))

    def _gone_request(self, sender: Member, message: messages.GoneRequest) -> None:
        """Somebody misses the leader (YB-16)."""
        if sender.node == self.leader and self.role.name != "leader":
            self.role.suspected(sender.node)  # We may be at rest: nobody else would ever wake us.
            self.leader = 0  # It asks whether it is gone itself: it does not lead any more.
            self.promised_until = self.now
        heard = self.role.name == "leader" or self._follows()
        gone = not heard and message.last >= self.claim and not self.installing
        self.role.was_asked_whether_gone(sender)
        self.send_when_saved(sender.node, messages.GoneResponse(self.epoch, message.asked, gone))

    # --- repair ---

    def want_entries(self, sender: Member, message: messages.WantEntries) -> None:
        if sender.node == self.leader and message.epoch == self.epoch:
            # Whoever has damage does not lead: it stood down. At rest, we would wait for it for ever.
            self.role.suspected(sender.node)
        super().want_entries(sender, message)

    def plan(self, message: messages.AppendEntries) -> appending.Plan:
        return appending.plan(self.log, message.prev, message.headers)


Replica.roles = {role.name: role for role in (Follower, Prospect, Candidate, Leader)}
Replica.transitions = frozenset(
    {
        ("follower", "follower"),  # a higher epoch, or a failed order
        ("follower", "prospect"),
        ("follower", "candidate"),  # the leader wants it
        ("prospect", "candidate"),
        ("prospect", "follower"),
        ("candidate", "prospect"),  # the vote was split
        ("candidate", "follower"),
        ("candidate", "leader"),
        ("leader", "follower"),
    }
)
Replica.handlers = COMMON_HANDLERS | {events.Started: Replica._started, events.Received: Replica._received}
