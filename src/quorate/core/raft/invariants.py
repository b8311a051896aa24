"""What must hold after every event of a raft group, beside what holds for every protocol.

`room.stepped` sees each step with the account that the simulator keeps of its replica (`shadow`), built
from orders and completions alone and never from what the replica says about itself.

| invariant | says | source |
| --- | --- | --- |
| vote-once | a member votes for one candidate an epoch, over all its lives | Raft figure 2, YB-11 |
| vote-unsaved | a granted vote is flushed before it is sent, a candidate's own too | YB-7 |
| epoch-unsaved | an answer's epoch is flushed before it is sent | YB-7 |
| ack-unflushed | a follower acknowledges only what was reported as flushed | YB-7, OR-20 |
| ack-unverified | what a follower acknowledges is what the leader of that epoch has | OR-10 |
| durable-early | a replica counts as flushed only what was reported as flushed | OR-18, OR-20 |
| learner-acts | who stands or leads counts by its own log; who votes counts by the candidate's | YB-5 |
| elected-minority | who leads has the votes of a majority; joint: of both | Raft §5.2, YB-12 |
| faulty-leads | a replica with damage neither leads nor acknowledges past it | reliability rule 3 |
| epoch-unelected | entries of an epoch come from its elected leader only | YB-17 |
| settled-by-follower | the leader settles first, followers hear of it | YB-2 |
| settled-old-epoch | a leader settles by counting only in its own epoch | YB-19, Raft §5.4.2 |
| settled-minority | what is settled is flushed on a majority of the voters; joint: of both | YB-3, YB-12 |
| change-unsafe | no step of a change leaves two quorums that need not meet | YB-12, Raft §6, D10 |
| config-uncut | in force is the newest membership of the log, none that was cut | Openraft, YB-12 |
| joiner-counts-early | who begins to count had caught up | YB-13, Raft thesis §4.2.1 |
| epoch-inflated | a new epoch is taken when a majority misses the leader, or when the leader wishes it | YB-16 |
| heir-behind | who is told to take over is a voter and has the leader's whole log | YB-15 |
| two-heirs | a leader lets nobody take over but the heir that it names | YB-15 |
| lease-overlap | nobody leads a later epoch while a lease lasts, within the clocks' bounds | Raft thesis §6.4.1 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.effects import Append, InstallSnapshot, Send
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Membership, Quorums
from quorate.core.events import Persisted, Received, Started
from quorate.core.invariant import Violated, settled_by
from quorate.core.raft.messages import (
    AppendResponse,
    GoneRequest,
    GoneResponse,
    SnapshotResponse,
    TakeOver,
    VoteRequest,
    VoteResponse,
)


class RaftInvariants:
    """One group per partition; all of them are watched by one of these."""

    def __init__(self) -> None:
        self._votes: dict[tuple[int, Member, int], int] = {}
        self._asked: dict[tuple[int, int, int], set[int]] = {}
        """By partition, candidate and epoch: the nodes that count by the candidate's log."""
        self._asking: dict[tuple[int, int], int] = {}
        """By partition and node: which time of asking whether the leader is gone is its newest."""
        self._gone: dict[tuple[int, int], set[Member]] = {}
        """Who has said so since it asked."""
        self._leased: dict[tuple[int, int], float] = {}
        """By partition and node: until when its lease lasted when it was looked at."""
        self._sent: dict[type, Callable[[Any, Any, Any, Send], None]] = {
            VoteRequest: self._vote_request,
            VoteResponse: self._vote_response,
            AppendResponse: self._append_response,
            SnapshotResponse: self._snapshot_response,
            GoneRequest: self._gone_request,
            GoneResponse: self._gone_response,
            TakeOver: self._take_over,
        }

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        if type(event) is Started:
            self._asking.pop((shadow.partition, shadow.node), None)
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                check = self._sent.get(type(effect.message))
                if check is not None:
                    check(world, shadow, replica, effect)
            elif kind is Append:
                self._append(world, shadow, replica, effect)
            elif kind is InstallSnapshot:
                self._install(world, shadow, effect)
        if type(event) is Persisted and replica.durable.offset > shadow.durable.offset:
            raise Violated(
                "durable-early",
                f"{shadow.name} counts {replica.durable} as flushed, which is {shadow.durable}",
            )
        self._config(world, shadow, replica)
        if replica.role.name != "follower":
            self._acts(world, shadow, replica, event)

    def _acts(self, world: Any, shadow: Any, replica: Any, event: Any) -> None:
        """It stands or leads."""
        role = replica.role.name
        membership, at = world.membership_at(shadow.partition, shadow.head)
        if replica.me not in membership.voters:
            # Whoever is left out may lead, without counting, until that is settled (Raft thesis §4.2.2).
            leads_on = role == "leader" and at.offset > replica.commit
            if not leads_on and not self._is_leaving(world, shadow.partition, replica, at):
                raise Violated("learner-acts", f"{shadow.name} is {role}, and {membership} counts")
        if replica.log.faulty:
            raise Violated("faulty-leads", f"{shadow.name} is {role} with {replica.log}")
        if role == "candidate" and replica.epoch != shadow.epoch:
            self._new_epoch(shadow, replica, event, membership)
        elif role == "leader":
            if shadow.role != "leader" or replica.epoch != shadow.epoch:
                self._elected(shadow, replica, membership)
            self._leases(world, shadow, replica)

    def _is_leaving(self, world: Any, partition: int, replica: Any, at: EntryId) -> bool:
        """Whether it counts by the last membership that it knows to be settled, or by any since."""
        while at.offset > replica.commit:
            membership, at = world.membership_at(partition, world.entry_before(partition, at))
            if replica.me in membership.voters:
                return True
        return False

    def _elected(self, shadow: Any, replica: Any, membership: Membership) -> None:
        epoch, node = replica.epoch, shadow.node
        votes = {
            member
            for member in membership.voters
            if self._votes.get((shadow.partition, member, epoch)) == node
        }
        if shadow.saved is not None and (shadow.saved.epoch, shadow.saved.vote) == (epoch, replica.me):
            votes.add(replica.me)
        if not enough(votes, membership, electing=True):
            names = ", ".join(f"n{member.node}" for member in sorted(votes)) or "nobody"
            raise Violated(
                "elected-minority", f"{shadow.name} leads e{epoch}, elected by {names} of {membership}"
            )

    # --- what is said ---

    def _vote_request(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        """Asking for votes is voting for oneself."""
        epoch = effect.message.epoch
        voters = world.membership_at(shadow.partition, shadow.head)[0].voters
        self._asked[shadow.partition, replica.me.node, epoch] = {member.node for member in voters}
        self._voted(shadow, replica, epoch, replica.me.node)

    def _vote_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        if effect.message.granted:
            self._voted(shadow, replica, effect.message.epoch, effect.to)
        else:
            self._epoch_saved(shadow, effect)

    def _voted(self, shadow: Any, replica: Any, epoch: int, candidate: int) -> None:
        # One that was just promoted may not know it yet; whoever asks does. And whoever has come back as another
        # may not know that it counts no more; whoever asked does: see `_elected`.
        asked = self._asked.get((shadow.partition, candidate, epoch), ())
        if candidate != shadow.node and shadow.node not in asked:
            raise Violated("learner-acts", f"{shadow.name} voted in e{epoch} for n{candidate}")
        earlier = self._votes.setdefault((shadow.partition, replica.me, epoch), candidate)
        if earlier != candidate:
            raise Violated(
                "vote-once", f"{shadow.name} voted in e{epoch} for n{earlier} and for n{candidate}"
            )
        saved = shadow.saved
        if saved is None or saved.epoch < epoch or (saved.epoch == epoch and saved.vote is None):
            raise Violated(
                "vote-unsaved", f"{shadow.name} voted in e{epoch} for n{candidate}; flushed: {saved}"
            )
        if saved.epoch == epoch and saved.vote.node != candidate:
            raise Violated("vote-once", f"{shadow.name} saved {saved} and voted for n{candidate}")

    def _epoch_saved(self, shadow: Any, effect: Send) -> None:
        epoch = effect.message.epoch
        if shadow.saved is not None and shadow.saved.epoch >= epoch:
            return
        if shadow.durable.epoch >= epoch:  # Recovery takes the epoch of the last entry, too.
            return
        raise Violated(
            "epoch-unsaved", f"{shadow.name} answered {effect.message} having flushed {shadow.saved}"
        )

    def _append_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        message = effect.message
        self._epoch_saved(shadow, effect)
        if not message.accepted:
            return
        matched = message.matched
        if matched > shadow.durable.offset:
            raise Violated(
                "ack-unflushed", f"{shadow.name} acknowledged {matched}, flushed: {shadow.durable}"
            )
        log = replica.log
        if log.faulty and matched > log.intact_below():
            raise Violated("faulty-leads", f"{shadow.name} acknowledged {matched} with {log}")
        leader = world.shadows.get((effect.to, shadow.partition))
        if leader is None or leader.role != "leader" or leader.epoch != message.epoch:
            return
        theirs = leader.replica.log
        if matched <= max(log.base.offset, theirs.base.offset):
            return
        if matched > theirs.head.offset or theirs.epoch_at(matched) != log.epoch_at(matched):
            raise Violated(
                "ack-unverified", f"{shadow.name} acknowledged {matched} of {log}, n{effect.to} has {theirs}"
            )

    def _gone_request(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        asker = (shadow.partition, shadow.node)
        if self._asking.get(asker) != effect.message.asked:
            self._asking[asker] = effect.message.asked
            self._gone[asker] = set()

    def _gone_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        self._epoch_saved(shadow, effect)
        asker = (shadow.partition, effect.to)
        if effect.message.gone and self._asking.get(asker) == effect.message.asked:
            self._gone[asker].add(replica.me)

    def _new_epoch(self, shadow: Any, replica: Any, event: Any, membership: Membership) -> None:
        """It stands in an epoch that nobody had before."""
        if type(event) is Received and type(event.message) is TakeOver:
            return
        asker = (shadow.partition, shadow.node)
        gone = {replica.me, *(self._gone[asker] if asker in self._asking else ())}
        if not enough(gone, membership, electing=True):
            names = ", ".join(f"n{member.node}" for member in sorted(gone))
            raise Violated(
                "epoch-inflated",
                f"{shadow.name} took e{replica.epoch}; who misses the leader: {names} of {membership}",
            )

    def _take_over(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        membership, _ = world.membership_at(shadow.partition, shadow.head)
        heirs = [
            self._account(world, shadow.partition, member)
            for member in membership.voters
            if member.node == effect.to
        ]
        if not heirs:
            raise Violated("heir-behind", f"{shadow.name} lets n{effect.to} take over, {membership} counts")
        current = any(
            heir is not None
            and (heir.damaged or heir.epoch > replica.epoch or heir.durable.offset >= shadow.head.offset)
            for heir in heirs
        )
        if replica.role.name != "leader":
            return
        if not current:
            raise Violated(
                "heir-behind",
                f"{shadow.name} lets n{effect.to} take over, which has not all up to {shadow.head}",
            )
        heir = replica.role.handing_over.heir
        if effect.to != heir:
            raise Violated("two-heirs", f"{shadow.name} lets n{effect.to} take over beside n{heir}")

    def _snapshot_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        self._epoch_saved(shadow, effect)

    # --- what is done ---

    def _append(self, world: Any, shadow: Any, replica: Any, effect: Append) -> None:
        leaders = world.leaders[shadow.partition]
        for header in effect.headers:
            leads = replica.role.name == "leader" and replica.epoch == header.epoch
            if header.epoch not in leaders and not leads:
                raise Violated(
                    "epoch-unelected", f"{shadow.name} appended {header}; nobody was elected in it"
                )
            if type(header.control) is Membership and leads:
                self._changed(world, shadow, replica, header, header.control)

    # --- who counts ---

    def _changed(self, world: Any, shadow: Any, replica: Any, header: Header, new: Membership) -> None:
        """A leader has taken a step."""
        before = world.entry_before(shadow.partition, header.id)
        old, at = world.membership_at(shadow.partition, before)
        said = f"{shadow.name} put {new} at {header.id} behind {old} at {at}"
        if sides(new) == sides(old):
            return  # Only who follows without counting is another.
        if old.outgoing:
            ends = not new.outgoing and sides(new)[0] in sides(old)
            goes_back = ends and sides(new)[0] == sides(old)[1]
        else:
            ends = bool(new.outgoing) and sides(new)[1] == sides(old)[0]
            goes_back = False
        for side, quorums in sides(new):
            if quorums is not None and not can_be_trusted(quorums, len(side)):
                raise Violated("change-unsafe", f"{said}: {quorums} need not meet (D10)")
        if not ends:
            raise Violated("change-unsafe", f"{said}: their quorums need not meet")
        if at.offset > replica.commit and not goes_back:
            raise Violated("change-unsafe", f"{said}, which is not settled: {replica.commit} is")
        if new.outgoing:
            self._joiners(world, shadow, replica, new)

    def _joiners(self, world: Any, shadow: Any, replica: Any, new: Membership) -> None:
        due = shadow.commit_before - replica.config.tuning.catch_up_max
        for member in new.ensemble:
            joiner = self._account(world, shadow.partition, member)
            if member in new.outgoing or (joiner is not None and joiner.damaged):
                continue  # What it had flushed may have been taken from it since.
            flushed = joiner.durable.offset if joiner is not None else -1
            if flushed < due:
                raise Violated(
                    "joiner-counts-early",
                    f"{shadow.name} lets n{member.node} count, which has {flushed}; {due} was needed",
                )

    def _config(self, world: Any, shadow: Any, replica: Any) -> None:
        """What the replica goes by is what its log says. What it cannot read, it cannot know."""
        if replica.faulty:
            return
        membership, at = world.membership_at(shadow.partition, shadow.head)
        if replica.membership != membership:
            raise Violated(
                "config-uncut",
                f"{shadow.name} with {replica.log} goes by {replica.membership}, not {membership} at {at}",
            )

    def _install(self, world: Any, shadow: Any, effect: InstallSnapshot) -> None:
        membership, at = world.membership_at(shadow.partition, effect.snapshot.last)
        stands = effect.snapshot.standing.membership
        if stands != membership and not (stands is None and at == NOWHERE):
            raise Violated(
                "config-uncut",
                f"{shadow.name} installs {effect.snapshot.last} with {stands}, not {membership} at {at}",
            )

    def _leases(self, world: Any, shadow: Any, replica: Any) -> None:
        """It has just been elected, or has another lease: nobody leads a later epoch while one lasts."""
        place = (shadow.partition, shadow.node)
        until = replica.role.reading.lease_until
        if shadow.role == "leader" and self._leased.get(place) == until:
            return
        self._leased[place] = until
        for (node, partition), other in world.shadows.items():
            if partition == shadow.partition and node != shadow.node:
                self._leads_beside(world, shadow, other)

    def _leads_beside(self, world: Any, one: Any, two: Any) -> None:
        if two.replica.role.name != "leader" or world.local(two.node) is None:
            return  # It is down, or a follower.
        if two.replica.generation != one.replica.generation:
            return  # With a Barrier in its log it answers nothing, whatever its lease says.
        earlier, later = (one, two) if one.replica.epoch < two.replica.epoch else (two, one)
        reading, now = earlier.replica.role.reading, world.local(earlier.node)
        if reading.may_lease and now is not None and now < reading.lease_until:
            raise Violated(
                "lease-overlap",
                f"{earlier.name} has a lease for {reading.lease_until - now:.6f}s more in"
                f" e{earlier.replica.epoch}, and {later.name} leads e{later.replica.epoch}",
            )

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        """Nobody had settled as far as `offset` before."""
        log = replica.log
        # Who is left out by what it settles stands down with that.
        led = shadow.role == "leader" and shadow.epoch == replica.epoch
        if replica.role.name != "leader" and not led:
            raise Violated("settled-by-follower", f"{shadow.name} settled {offset} before any leader did")
        offset = settled_by(replica, offset)
        if log.epoch_at(offset) != replica.epoch:
            raise Violated(
                "settled-old-epoch",
                f"{shadow.name} settled {log.position(offset)} while leading e{replica.epoch}",
            )
        entry = EntryId(replica.epoch, offset)
        membership, _ = world.membership_at(shadow.partition, shadow.head)
        holders = {
            member for member in membership.voters if self._has(world, shadow.partition, member, entry)
        }
        if enough(holders, membership):
            return
        if shadow.head is not shadow.head_before:
            # What was counted first and appended then was counted by what was in force before.
            earlier, _ = world.membership_at(shadow.partition, shadow.head_before)
            members = earlier.voters
            if enough({m for m in members if self._has(world, shadow.partition, m, entry)}, earlier):
                return
        names = ", ".join(f"n{member.node}" for member in sorted(holders)) or "nobody"
        raise Violated(
            "settled-minority", f"{shadow.name} settled {entry}, flushed on: {names} of {membership}"
        )

    def _has(self, world: Any, partition: int, member: Member, entry: EntryId) -> bool:
        """Whether the entry was flushed there; a disk that was wiped or damaged later counts as it was."""
        shadow = self._account(world, partition, member)
        if shadow is None or shadow.durable.offset < entry.offset:
            return False
        log = shadow.replica.log
        span = log.span_at(entry.offset)
        return span is not None or bool(log.holds(entry))

    def _account(self, world: Any, partition: int, member: Member) -> Any:
        """Of a member, as long as it was there; None if it never was."""
        shadow = world.shadows.get((member.node, partition))
        if shadow is None or shadow.replica.me != member:
            return world.buried.get((partition, member))
        return shadow


def enough(members: set[Member], membership: Membership, *, electing: bool = False) -> bool:
    """As many of each side that counts as it asks for, or more than half; said without the core's own words."""
    for side, quorums in sides(membership):
        have = len(members.intersection(side))
        if quorums is None and 2 * have <= len(side):
            return False
        if quorums is not None and have < (quorums.promote if electing else quorums.commit):
            return False
    return True


def sides(membership: Membership) -> list[tuple[tuple[Member, ...], Quorums | None]]:
    """Who counts, and how many of them are enough; while a change is joint, before it, too."""
    now = (membership.ensemble, membership.quorums)
    return [now, (membership.outgoing, membership.outgoing_quorums)] if membership.outgoing else [now]


def can_be_trusted(quorums: Quorums, count: int) -> bool:
    """Two elections share a voter, and every election somebody who has what was committed (D10)."""
    return 2 * quorums.promote > count and quorums.promote + quorums.commit > count
