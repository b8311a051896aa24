"""What must hold after every event of a coordinated group, beside what holds for every protocol.

`room.stepped` sees each step of a node with the account that the simulator keeps of it (`shadow`), built from
orders and completions alone. What operators write and say is looked at in operator_invariants.py.

Of Oxia's TLA+ specification (OxiaReplication.tla), under its own names:

| invariant | says | source |
| --- | --- | --- |
| no-log-divergence | what a member knows to be settled is what the stored leader has there | NoLogDivergence |
| no-loss-of-confirmed-write | whoever leads has all that was settled in earlier epochs | NoLossOfConfirmedWrite |

The other two, valid-messages and legal-leader-and-ensemble, are about operators. Ours:

| invariant | says | source |
| --- | --- | --- |
| leader-unchosen | a leader leads an epoch because an operator chose it for that epoch | OX-10, OX-29 |
| epoch-unopened | a leader's first step in an epoch appends an entry of it | D12 |
| epoch-unelected | entries of an epoch come from its leader only | OX-8 |
| epoch-unsaved | an answer's epoch is flushed before it is sent | OX-7 |
| fence-unflushed | the head that a fenced node answers with is flushed | OX-7 |
| fenced-replicates | a fenced node neither appends nor acknowledges anything of an earlier epoch | OX-7 |
| ack-unflushed | a node acknowledges only what was reported as flushed | OX-23 |
| ack-unverified | what a follower acknowledges is what the leader of that epoch has | D1, Oxia #1239 |
| ack-other-epoch | a follower acknowledges in its own epoch, and counts only there | D2 |
| durable-early | a replica counts as flushed only what was reported as flushed | OX-23 |
| faulty-leads | a replica with damage neither leads nor acknowledges past it | reliability rule 3 |
| settled-by-follower | the leader settles first, followers hear of it | OX-23 |
| settled-old-epoch | a leader settles by counting only in its own epoch | OX-23, OX-24 |
| settled-minority | what is settled is flushed on a majority; whoever is to go does not count | OX-23, D12 |
| contract-unsafe | who is removed leaves all that is settled on a majority of those that stay | OX-34 |
| redundancy-fell | who is taken in leaves nothing settled that a majority of the new ensemble could miss | OX-30 |

That commit never falls, through reconfigurations too (D2), and that nothing is applied above it (OX-25) holds for
every protocol: sim/invariants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AbortReconfigurationResponse,
    AddEntryRequest,
    AddEntryResponse,
    BecomeLeaderRequest,
    CommitReconfigurationResponse,
    FenceResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
    SnapshotResponse,
    TruncateResponse,
)
from quorate.core.coordinated.operator_invariants import OperatorInvariants
from quorate.core.coordinated.shard import Kind, Reconfiguration, Shard
from quorate.core.effects import Append, Send
from quorate.core.entry import EntryId, Member
from quorate.core.events import Persisted, Received
from quorate.core.invariant import Violated, settled_by

TAKE_ALONG = (PrepareReconfigurationRequest, AbortReconfigurationRequest)
"""By these a leader goes on in the next epoch."""


class Counting(msgspec.Struct, gc=False):
    """Who counts for the leader of an epoch, as the world has seen it being told."""

    ensemble: tuple[Member, ...]
    change: Reconfiguration | None = None
    """Being prepared: its old node counts no more."""
    before: tuple[Member, ...] = ()
    """The ensemble before the step that is looked at, where that changed it."""

    def enough(self, holders: set[Member]) -> bool:
        """Said without the core's own words."""
        old = self.change.old if self.change is not None else None
        return any(
            2 * sum(member in holders and member != old for member in ensemble) > len(ensemble)
            for ensemble in (self.ensemble, self.before)
        )


class CoordinatedInvariants:
    """One group per partition; all of them, and their operators, are watched by one of these."""

    def __init__(self) -> None:
        self.operators = OperatorInvariants()
        self._fenced: dict[tuple[int, Member], int] = {}
        """By partition and member: the highest epoch in which it said that it was fenced."""
        self._counting: dict[tuple[int, int], Counting] = {}
        """By partition and epoch."""
        self._settled_to: int | None = None
        """What nobody had settled before this step; judged when all of the step is known."""
        self._sent: dict[type, Callable[[Any, Any, Any, Any, Any], None]] = {
            FenceResponse: self._fence_response,
            AddEntryResponse: self._add_entry_response,
            TruncateResponse: self._holds_head,
            SnapshotResponse: self._snapshot_response,
            PrepareReconfigurationResponse: self._prepare_response,
            CommitReconfigurationResponse: self._commit_response,
            AbortReconfigurationResponse: self._abort_response,
        }

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        leads = replica.role.name == "leader"
        if leads and (shadow.role != "leader" or shadow.epoch != replica.epoch):
            self._leads_anew(shadow, replica, event)
        for effect in effects:
            if type(effect) is Send:
                self.operators.sent_by_node(shadow, effect)
                check = self._sent.get(type(effect.message))
                if check is not None:
                    check(world, shadow, replica, effect, event)
            elif type(effect) is Append:
                self._append(world, shadow, replica, effect, event)
        if leads and type(event) is Received and type(event.message) is AbortReconfigurationRequest:
            counting = self._counting.get((shadow.partition, replica.epoch))
            if counting is not None and event.message.epoch == replica.epoch:
                counting.change = None  # The old node counts again from here on.
        if type(event) is Persisted and replica.durable.offset > shadow.durable.offset:
            raise Violated(
                "durable-early",
                f"{shadow.name} counts {replica.durable} as flushed, which is {shadow.durable}",
            )
        if leads and replica.log.faulty:
            raise Violated("faulty-leads", f"{shadow.name} leads with {replica.log}")
        if self._settled_to is not None:
            self._settles(world, shadow, replica, self._settled_to)
            self._settled_to = None
        if shadow.commit != shadow.commit_before:
            self._counted(shadow, replica, event)
            self.no_log_divergence(world, shadow)
        if leads:
            self._counting[shadow.partition, replica.epoch].before = ()

    # --- who leads ---

    def _leads_anew(self, shadow: Any, replica: Any, event: Any) -> None:
        """It leads an epoch for the first time: elected in it, or taken along by a reconfiguration."""
        epoch = replica.epoch
        message: Any = event.message if type(event) is Received else None
        place = (shadow.partition, epoch)
        if type(message) is BecomeLeaderRequest and message.epoch == epoch:
            chosen = self.operators.chosen.get(place) == replica.me
            self._counting[place] = Counting(message.ensemble)
        elif type(message) in TAKE_ALONG and message.epoch == epoch and shadow.role == "leader":
            chosen = self.operators.prepared.get(place) == replica.me
            is_prepared = type(message) is PrepareReconfigurationRequest
            change = message.reconfiguration if is_prepared else None
            self._counting[place] = Counting(self._counting[shadow.partition, shadow.epoch].ensemble, change)
        else:
            chosen = False
        if not chosen:
            raise Violated("leader-unchosen", f"{shadow.name} leads e{epoch}, and nobody chose it: {event}")
        if shadow.head.epoch != epoch:
            raise Violated(
                "epoch-unopened", f"{shadow.name} leads e{epoch}, and its log ends at {shadow.head}"
            )

    def _append(self, world: Any, shadow: Any, replica: Any, effect: Append, event: Any) -> None:
        leaders = world.leaders[shadow.partition]
        for header in effect.headers:
            leads = replica.role.name == "leader" and replica.epoch == header.epoch
            if header.epoch not in leaders and not leads:
                raise Violated("epoch-unelected", f"{shadow.name} appended {header}; nobody leads that epoch")
        if type(event) is Received and type(event.message) is AddEntryRequest:
            self._not_fenced(shadow, replica, event.message.epoch, "appended")

    def _not_fenced(self, shadow: Any, replica: Any, epoch: int, did: str) -> None:
        fenced = self._fenced.get((shadow.partition, replica.me), 0)
        if epoch < fenced:
            raise Violated("fenced-replicates", f"{shadow.name} {did} in e{epoch}, fenced in e{fenced}")

    # --- what is said ---

    def _epoch_saved(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        epoch = effect.message.epoch
        if shadow.saved is not None and shadow.saved.epoch >= epoch:
            return
        if shadow.durable.epoch >= epoch:  # Recovery takes the epoch of the last entry, too.
            return
        raise Violated(
            "epoch-unsaved", f"{shadow.name} answered {effect.message} having flushed {shadow.saved}"
        )

    def _fence_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        self._epoch_saved(world, shadow, replica, effect, event)
        message = effect.message
        place = (shadow.partition, replica.me)
        self._fenced[place] = max(self._fenced.get(place, 0), message.epoch)
        if not message.faulty and (replica.role.name == "fenced" and message.head != shadow.durable):
            raise Violated(
                "fence-unflushed", f"{shadow.name} is fenced with {message.head}, flushed: {shadow.durable}"
            )

    def _holds_head(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        """The leader's cursor starts there, and what it starts with counts."""
        self._epoch_saved(world, shadow, replica, effect, event)
        head = effect.message.head
        if head.offset > shadow.durable.offset:
            raise Violated("ack-unflushed", f"{shadow.name} said {effect.message}, flushed: {shadow.durable}")

    def _snapshot_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        if effect.message.installed:
            self._holds_head(world, shadow, replica, effect, event)

    def _add_entry_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        message = effect.message
        self._epoch_saved(world, shadow, replica, effect, event)
        if not message.accepted:
            return
        self._not_fenced(shadow, replica, message.epoch, "acknowledged")
        if message.epoch != replica.epoch:
            raise Violated("ack-other-epoch", f"{shadow.name} in e{replica.epoch} acknowledged {message}")
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

    # --- who counts ---

    def _prepare_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        if effect.message.prepared:
            self._epoch_saved(world, shadow, replica, effect, event)

    def _commit_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        """From here on the new ensemble counts; a contraction's only once it is done."""
        if not effect.message.leads:
            return  # A refusal promises nothing, and names the epoch that it was asked in.
        self._epoch_saved(world, shadow, replica, effect, event)
        counting = self._counting.get((shadow.partition, effect.message.epoch))
        if counting is None or counting.change is None:
            return  # It was done before.
        if counting.change.kind is Kind.CONTRACT and not effect.message.done:
            return
        change = counting.change
        counting.before, counting.ensemble = counting.ensemble, change.applied_to(counting.ensemble)
        counting.change = None
        # What was settled in this very step was counted before or after.
        entry = replica.log.position(shadow.commit_before)
        if shadow.commit_before <= replica.log.base.offset:
            return  # Only by snapshots can that be known; and it was, by whoever made them.
        holders = self._holders(world, shadow.partition, counting.ensemble, entry)
        size = len(counting.ensemble)
        said = f"{shadow.name} did {change}; {entry} is settled, and flushed on {_names(holders)} of {size}"
        if change.kind is Kind.CONTRACT and 2 * len(holders) <= size:
            raise Violated("contract-unsafe", said)
        if size - len(holders) > size // 2:
            raise Violated("redundancy-fell", said)

    def _abort_response(self, world: Any, shadow: Any, replica: Any, effect: Send, event: Any) -> None:
        if not effect.message.leads:
            return
        self._epoch_saved(world, shadow, replica, effect, event)
        self._counting[shadow.partition, effect.message.epoch].change = None

    def _counted(self, shadow: Any, replica: Any, event: Any) -> None:
        """Something is settled by this step: not because of an acknowledgement of another epoch."""
        message = event.message if type(event) is Received else None
        if type(message) is AddEntryResponse and message.epoch != replica.epoch:
            raise Violated("ack-other-epoch", f"{shadow.name} in e{replica.epoch} settled by {message}")

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        """Nobody had settled as far as `offset` before."""
        self._settled_to = offset

    def _settles(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        log = replica.log
        if replica.role.name != "leader":
            raise Violated("settled-by-follower", f"{shadow.name} settled {offset} before any leader did")
        offset = settled_by(replica, offset)
        if log.epoch_at(offset) != replica.epoch:
            raise Violated(
                "settled-old-epoch",
                f"{shadow.name} settled {log.position(offset)} while leading e{replica.epoch}",
            )
        entry = EntryId(replica.epoch, offset)
        counting = self._counting[shadow.partition, replica.epoch]
        members = (*counting.ensemble, *counting.before)
        holders = self._holders(world, shadow.partition, members, entry)
        if not counting.enough(holders):
            raise Violated(
                "settled-minority",
                f"{shadow.name} settled {entry}, flushed on: {_names(holders)} of {_names(set(members))}"
                + (f", {counting.change}" if counting.change is not None else ""),
            )
        self._known_to_successors(world, shadow, entry)

    def _known_to_successors(self, world: Any, shadow: Any, entry: EntryId) -> None:
        """A fenced majority lets nothing be settled that the leader whom they elected does not have."""
        for (_, partition), other in world.shadows.items():
            later = other.replica.epoch > entry.epoch and other.replica.role.name == "leader"
            if partition != shadow.partition or not later:
                continue
            log = other.replica.log
            if entry.offset > log.base.offset and not log.holds(entry):
                raise Violated(
                    "no-loss-of-confirmed-write",
                    f"{shadow.name} settled {entry}, and {other.name} leads e{other.replica.epoch} with {log}",
                )

    def _holders(
        self, world: Any, partition: int, members: tuple[Member, ...], entry: EntryId
    ) -> set[Member]:
        return {member for member in members if self._has(world, partition, member, entry)}

    def _has(self, world: Any, partition: int, member: Member, entry: EntryId) -> bool:
        """Whether the entry was flushed there; a disk that was wiped or damaged later counts as it was."""
        shadow = self._account(world, partition, member)
        if shadow is None or shadow.durable.offset < entry.offset:
            return False
        log = shadow.replica.log
        if entry.offset <= log.base.offset:
            return True  # A snapshot stands for it.
        return log.span_at(entry.offset) is not None or bool(log.holds(entry))

    def _account(self, world: Any, partition: int, member: Member) -> Any:
        """Of a member, as long as it was there; None if it never was."""
        shadow = world.shadows.get((member.node, partition))
        if shadow is None or shadow.replica.me != member:
            return world.buried.get((partition, member))
        return shadow

    # --- what the store says ---

    def operated(self, world: Any, operator: int, partition: int, effects: list[Any]) -> None:
        self.operators.operated(operator, partition, effects)

    def wrote(self, world: Any, partition: int, version: int, shard: Shard) -> None:
        self.operators.wrote(world, partition, version, shard)
        for member in shard.ensemble:
            account = self._account(world, partition, member)
            if shard.leader is not None and account is not None:
                self.no_log_divergence(world, account)

    def no_log_divergence(self, world: Any, shadow: Any) -> None:
        """By induction over the entries it is enough to compare where the member's commit is."""
        shard = self.operators.shard(shadow.partition)
        if shard is None or shard.leader is None or shadow.replica.me not in shard.ensemble:
            return
        leader = self._account(world, shadow.partition, shard.leader)
        if leader is None or leader.replica.role.name != "leader" or leader.replica.epoch != shard.epoch:
            return  # It was, or is not yet.
        mine, theirs = shadow.replica.log, leader.replica.log
        commit = min(shadow.commit, theirs.head.offset)
        if commit <= max(mine.base.offset, theirs.base.offset) or mine.span_at(commit) is not None:
            return
        if mine.epoch_at(commit) != theirs.epoch_at(commit):
            raise Violated(
                "no-log-divergence",
                f"{shadow.name} has {mine}, settled up to {commit}, and {leader.name} leads with {theirs}",
            )


def _names(members: set[Member]) -> str:
    return ", ".join(f"n{member.node}" for member in sorted(members)) or "nobody"
