"""What must hold after every event of an isr group, beside what holds for every protocol.

`room.stepped` sees each step of a replica with the account that the simulator keeps of it (`shadow`), built from
orders and completions alone; `room.wrote` sees everything that controllers store, at the moment when it is stored.

| invariant | says | source |
| --- | --- | --- |
| isr-missing | what is settled is flushed on everybody who is in sync, or asked to be, or may lead | LB-10 |
| leader-outside | a leader had everything (that it is in the ISR its type says) | LB-16, Liftbridge #354 |
| watermark-invalid | nobody is told a high watermark above the leader's own, or above the end of its log | LB-7 |
| settled-by-follower | the leader settles first, followers hear of it | LB-11 |
| settled-below-minimum | nothing is settled while fewer than the minimum are agreed to be in sync | LB-21 |
| leader-unchosen | a leader leads an epoch because that is stored | LB-2, LB-13 |
| led-twice | who has led an epoch, and given something out, leads another one after a restart | LB-18 |
| epoch-unopened | a leader's first step in an epoch appends an entry of it | LB-3 |
| epoch-unelected | entries of an epoch come from its leader only | LB-3 |
| epoch-unsaved | what is said in an epoch is said when that epoch is flushed | LB-8 |
| ack-unflushed | a replica acknowledges only what was reported as flushed | LB-9 |
| ack-unverified | what a follower acknowledges is what the leader of that epoch has | LB-22, LB-24, D1 |
| durable-early | a replica counts as flushed only what was reported as flushed | LB-9 |
| faulty-leads | a replica with damage neither leads nor acknowledges past it | reliability rule 3 |
| state-skipped | each state follows the one before; the leader epoch rises by one with each leader | LB-2, LB-18 |
| isr-unasked | the ISR changes as its leader asked for that very state; or by who leaves or leads | LB-20, LB-23 |
| eligible-lost | while too few are in sync, whoever had everything may still lead, unless it is removed | KIP-966 |
| told-unstored | controllers tell what is stored | LB-13, LB-19 |

That the high watermark never falls and stays inside the log holds for every protocol (commit-regressed and
commit-above-log in sim/invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quorate.core.effects import Append, Send
from quorate.core.entry import EntryId, Member
from quorate.core.events import Persisted
from quorate.core.invariant import Violated
from quorate.core.isr.messages import (
    AlterIsr,
    FetchRequest,
    FetchResponse,
    PartitionHeard,
    PartitionTold,
    ReportLeader,
)
from quorate.core.isr.state import PartitionState


class IsrInvariants:
    """One group per partition; all of them, and their controllers, are watched by one of these."""

    def __init__(self) -> None:
        self.shrinks = 0
        self.expands = 0
        self.reports = 0
        self._stored: dict[int, tuple[int, PartitionState]] = {}
        """By partition: the newest version, and what it says."""
        self._history: dict[tuple[int, int], PartitionState] = {}
        """By partition and epoch of the partition."""
        self._chosen: dict[tuple[int, int], Member] = {}
        """By partition and leader epoch."""
        self._led: dict[tuple[int, int], Any] = {}
        """By partition and leader epoch: the replica, in the life in which it led and said so."""
        self._asked: dict[tuple[int, int, int], set[tuple[Member, ...]]] = {}
        """By partition, leader epoch and epoch of the partition: who a leader wanted to be in sync."""
        self._settled_to: int | None = None
        """What nobody had settled before this step; judged when all of the step is known."""
        self._sent: dict[type, Callable[[Any, Any, Any, Any], None]] = {
            FetchRequest: self._fetch_request,
            FetchResponse: self._fetch_response,
            PartitionHeard: self._epoch_saved,
            AlterIsr: self._alter_isr,
            ReportLeader: self._epoch_saved,
        }

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        leads = replica.role.name == "leader"
        if leads and (shadow.role != "leader" or shadow.epoch != replica.epoch):
            self._leads_anew(shadow, replica)
        for effect in effects:
            if type(effect) is Send:
                check = self._sent.get(type(effect.message))
                if check is not None:
                    check(world, shadow, replica, effect)
            elif type(effect) is Append:
                self._append(world, shadow, replica, effect)
        self.reports += any(type(e) is Send and type(e.message) is ReportLeader for e in effects)
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

    # --- who leads ---

    def _leads_anew(self, shadow: Any, replica: Any) -> None:
        place = (shadow.partition, replica.epoch)
        if self._chosen.get(place) != replica.me:
            chosen = self._chosen.get(place)
            raise Violated("leader-unchosen", f"{shadow.name} leads e{replica.epoch}; stored: {chosen}")
        if self._led.get(place, replica) is not replica:
            raise Violated("led-twice", f"{shadow.name} leads e{replica.epoch} again, after a restart")
        if shadow.head.epoch != replica.epoch:
            raise Violated(
                "epoch-unopened", f"{shadow.name} leads e{replica.epoch}, and its log ends at {shadow.head}"
            )

    def _append(self, world: Any, shadow: Any, replica: Any, effect: Append) -> None:
        leaders = world.leaders[shadow.partition]
        for header in effect.headers:
            leads = replica.role.name == "leader" and replica.epoch == header.epoch
            if header.epoch not in leaders and not leads:
                raise Violated("epoch-unelected", f"{shadow.name} appended {header}; nobody leads that epoch")

    # --- what replicas say ---

    def _epoch_saved(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        epoch = effect.message.epoch
        if shadow.saved is not None and shadow.saved.epoch >= epoch:
            return
        if shadow.durable.epoch >= epoch:  # Recovery takes the epoch of the last entry, too.
            return
        raise Violated("epoch-unsaved", f"{shadow.name} said {effect.message} having flushed {shadow.saved}")

    def _fetch_request(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        """Of its two positions, `flushed` is a promise."""
        self._epoch_saved(world, shadow, replica, effect)
        message, log = effect.message, replica.log
        flushed = message.flushed
        if flushed > shadow.durable.offset:
            raise Violated("ack-unflushed", f"{shadow.name} said {message}, flushed: {shadow.durable}")
        if log.faulty and flushed > log.intact_below():
            raise Violated("faulty-leads", f"{shadow.name} acknowledged {flushed} with {log}")
        leader = world.shadows.get((effect.to, shadow.partition))
        if leader is None or leader.role != "leader" or leader.epoch != message.epoch:
            return
        theirs = leader.replica.log
        if flushed <= max(log.base.offset, theirs.base.offset):
            return
        if flushed > theirs.head.offset or theirs.epoch_at(flushed) != log.epoch_at(flushed):
            raise Violated(
                "ack-unverified", f"{shadow.name} acknowledged {flushed} of {log}, n{effect.to} has {theirs}"
            )

    def _fetch_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        self._epoch_saved(world, shadow, replica, effect)
        self._led[shadow.partition, effect.message.epoch] = replica
        said = effect.message.commit
        if said > shadow.commit or said > shadow.head.offset:
            raise Violated(
                "watermark-invalid",
                f"{shadow.name} says {said}; it has settled {shadow.commit}, its log ends at {shadow.head}",
            )

    def _alter_isr(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        self._epoch_saved(world, shadow, replica, effect)
        message = effect.message
        if replica.role.name == "leader" and replica.epoch == message.epoch:
            place = (shadow.partition, message.epoch, message.partition_epoch)
            self._asked.setdefault(place, set()).add(message.isr)

    # --- what is settled ---

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        """Nobody had settled as far as `offset` before."""
        self._settled_to = offset

    def _settles(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        if replica.role.name != "leader":
            raise Violated("settled-by-follower", f"{shadow.name} settled {offset} before any leader did")
        told = replica.told
        if len(told.isr) < told.min_isr:
            raise Violated("settled-below-minimum", f"{shadow.name} settled {offset} with {told}")
        _, state = self._stored[shadow.partition]
        asked = self._asked.get((shadow.partition, replica.epoch, state.epoch), set())
        members = {*state.may_lead, *(member for isr in asked for member in isr)}
        entry = replica.log.position(offset)
        self._all_have(world, shadow.partition, members, entry, f"{shadow.name} settled {entry}")

    def _all_have(
        self, world: Any, partition: int, members: Iterable[Member], entry: EntryId, said: str
    ) -> None:
        missing = [member for member in sorted(members) if not _has(world, partition, member, entry)]
        if missing:
            stored = self._stored[partition][1]
            raise Violated("isr-missing", f"{said}, and {names(missing)} do not have it; stored: {stored}")

    # --- what controllers say and store ---

    def operated(self, world: Any, operator: int, partition: int, effects: list[Any]) -> None:
        for effect in effects:
            if type(effect) is Send and type(effect.message) is PartitionTold:
                state = effect.message.state
                if self._history.get((partition, state.epoch)) != state:
                    raise Violated("told-unstored", f"p{partition} controller {operator} tells {state}")

    def wrote(self, world: Any, partition: int, version: int, state: PartitionState) -> None:
        earlier_version, earlier = self._stored.get(partition, (0, None))
        said = f"p{partition} v{version} {state}, after v{earlier_version} {earlier}"
        if version != earlier_version + 1:
            raise Violated("state-skipped", said)
        if earlier is None:
            if state.isr != state.replicas or (state.epoch, state.leader_epoch) != (1, 1):
                raise Violated("state-skipped", said)
        elif state.unclean == earlier.unclean:
            self._follows(partition, earlier, state, said)
        elif (state.epoch, state.leader_epoch) != (earlier.epoch + 1, earlier.leader_epoch + 1):
            raise Violated("state-skipped", said)
        self.found(partition, version, state)
        epochs = world.settled[partition].epochs
        if epochs and (earlier is None or state.unclean == earlier.unclean):
            entry = EntryId(epochs[-1], len(epochs) - 1)
            self._all_have(world, partition, state.may_lead, entry, f"{said}; {entry} is settled")

    def found(self, partition: int, version: int, state: PartitionState) -> None:
        """This is stored: since now, or since before anybody watched."""
        self._stored[partition] = (version, state)
        self._history[partition, state.epoch] = state
        self._chosen.setdefault((partition, state.leader_epoch), state.leader)

    def _follows(self, partition: int, old: PartitionState, new: PartitionState, said: str) -> None:
        led_anew = new.leader_epoch != old.leader_epoch
        in_order = new.epoch == old.epoch + 1 and new.leader_epoch - old.leader_epoch in (0, 1)
        if not in_order or (new.leader != old.leader and not led_anew):
            raise Violated("state-skipped", said)
        if led_anew and new.leader not in old.may_lead:
            raise Violated("leader-outside", said)
        gone = set(old.replicas) - set(new.replicas)
        expected = (set(old.isr) if new.leader in old.isr else {new.leader}) - gone
        if set(new.isr) != expected:
            asked = self._asked.get((partition, old.leader_epoch, old.epoch), set())
            if led_anew or gone or new.isr not in asked:
                raise Violated("isr-unasked", f"{said}; asked: {[names(isr) for isr in sorted(asked)]}")
            self.shrinks += bool(set(old.isr) - set(new.isr))
            self.expands += bool(set(new.isr) - set(old.isr))
        kept = set(old.may_lead) - gone
        if len(new.isr) < new.min_isr and not kept <= set(new.may_lead):
            raise Violated("eligible-lost", said)


def _has(world: Any, partition: int, member: Member, entry: EntryId) -> bool:
    """Whether the entry was flushed there; a disk that was wiped or damaged later counts as it was."""
    shadow = world.shadows.get((member.node, partition))
    if shadow is None or shadow.replica.me != member:
        shadow = world.buried.get((partition, member))
    if shadow is None:
        return False
    if shadow.damaged and shadow.replica.faulty:
        return True  # It knows that it misses something, and neither leads nor acknowledges.
    if shadow.durable.offset < entry.offset:
        return False
    log = shadow.replica.log
    if entry.offset <= log.base.offset:
        return True  # A snapshot stands for it.
    return log.span_at(entry.offset) is not None or bool(log.holds(entry))


def names(members: Iterable[Member]) -> str:
    return "{" + ",".join(f"n{member.node}/{member.incarnation}" for member in members) + "}"
