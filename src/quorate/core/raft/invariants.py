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
| learner-acts | a learner neither votes nor stands nor leads | YB-5 |
| faulty-leads | a replica with damage neither leads nor acknowledges past it | reliability rule 3 |
| epoch-unelected | entries of an epoch come from its elected leader only | YB-17 |
| settled-by-follower | the leader settles first, followers hear of it | YB-2 |
| settled-old-epoch | a leader settles by counting only in its own epoch | YB-19, Raft §5.4.2 |
| settled-minority | what is settled is flushed on a majority of the voters | YB-3, rule 8 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.effects import Append, Send
from quorate.core.entry import EntryId, Member
from quorate.core.events import Persisted
from quorate.core.invariant import Violated
from quorate.core.raft.messages import AppendResponse, SnapshotResponse, VoteRequest, VoteResponse


class RaftInvariants:
    """One group per partition; all of them are watched by one of these."""

    def __init__(self) -> None:
        self._votes: dict[tuple[int, Member, int], int] = {}
        self._sent: dict[type, Callable[[Any, Any, Any, Send], None]] = {
            VoteRequest: self._vote_request,
            VoteResponse: self._vote_response,
            AppendResponse: self._append_response,
            SnapshotResponse: self._snapshot_response,
        }

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                check = self._sent.get(type(effect.message))
                if check is not None:
                    check(world, shadow, replica, effect)
            elif kind is Append:
                self._append(world, shadow, replica, effect)
        if type(event) is Persisted and replica.durable.offset > shadow.durable.offset:
            raise Violated(
                "durable-early",
                f"{shadow.name} counts {replica.durable} as flushed, which is {shadow.durable}",
            )
        if replica.role.name != "follower":
            if not replica.is_voter:
                raise Violated("learner-acts", f"{shadow.name} became {replica.role.name}")
            if replica.log.faulty:
                raise Violated("faulty-leads", f"{shadow.name} is {replica.role.name} with {replica.log}")

    # --- what is said ---

    def _vote_request(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        """Asking for votes is voting for oneself."""
        self._voted(shadow, replica, effect.message.epoch, replica.me.node)

    def _vote_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        if effect.message.granted:
            self._voted(shadow, replica, effect.message.epoch, effect.to)
        else:
            self._epoch_saved(shadow, effect)

    def _voted(self, shadow: Any, replica: Any, epoch: int, candidate: int) -> None:
        if not replica.is_voter:
            raise Violated("learner-acts", f"{shadow.name} voted in e{epoch}")
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

    def _snapshot_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        self._epoch_saved(shadow, effect)

    # --- what is done ---

    def _append(self, world: Any, shadow: Any, replica: Any, effect: Append) -> None:
        leaders = world.leaders[shadow.partition]
        for header in effect.headers:
            if header.epoch not in leaders and not (
                replica.role.name == "leader" and replica.epoch == header.epoch
            ):
                raise Violated(
                    "epoch-unelected", f"{shadow.name} appended {header}; nobody was elected in it"
                )

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        """Nobody had settled as far as `offset` before."""
        log = replica.log
        if replica.role.name != "leader":
            raise Violated("settled-by-follower", f"{shadow.name} settled {offset} before any leader did")
        if log.epoch_at(offset) != replica.epoch:
            raise Violated(
                "settled-old-epoch",
                f"{shadow.name} settled {log.position(offset)} while leading e{replica.epoch}",
            )
        entry = EntryId(replica.epoch, offset)
        voters = replica.config.voters
        holders = [member for member in voters if self._has(world, shadow.partition, member, entry)]
        if 2 * len(holders) <= len(voters):
            names = ", ".join(f"n{member.node}" for member in holders) or "nobody"
            raise Violated("settled-minority", f"{shadow.name} settled {entry}, flushed on: {names}")

    def _has(self, world: Any, partition: int, member: Member, entry: EntryId) -> bool:
        """Whether the entry was flushed there; a disk that was wiped or damaged later counts as it was."""
        shadow = world.shadows.get((member.node, partition))
        if shadow is None or shadow.replica.me != member:
            shadow = world.buried.get((partition, member))
            if shadow is None:
                return False
        log = shadow.replica.log
        if shadow.durable.offset < entry.offset:
            return False
        span = log.span_at(entry.offset)
        return span is not None or bool(log.holds(entry))
