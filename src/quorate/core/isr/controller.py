"""The controller of one partition: says who leads, agrees to who is in sync, and is not in the way of the data.

Every change is one compare-and-set of the whole state, and begins nothing that would have to be ended: a
controller that dies leaves nothing half-done. What is in the store is told to every replica until it answers
(LB-13). Whoever takes over reads it, tells it again, and changes nothing (LB-19).

**Who leads next** is one of those who have everything that is settled: of the ISR, or, where nobody of that can,
of those who left it while it was too small to settle anything (`PartitionState.may_lead`). A controller needs to
know nothing about their logs, and nobody has to be fenced first: the leader of before waits for all of them, too,
and none of them acknowledges anything to it once it has heard of the next.

That a leader is gone it hears from a majority of the others in sync (LB-13, D5), from outside (`Suspected`), from
the replica itself, or by its silence when this very controller has told it to lead. A controller that takes over
and cannot hear the leader changes nothing: others may hear it well (LB-14, LB-19).
"""

from __future__ import annotations

from random import Random

import msgspec

from quorate.core import events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.isr.messages import AlterIsr, PartitionHeard, PartitionTold, ReportLeader
from quorate.core.isr.orders import ChangeReplicas, ElectUncleanly, MoveLeader, Order
from quorate.core.isr.state import Birth, PartitionState, Unclean, newborn
from quorate.core.overseeing import DONE, DROPPED, STORE_HANDLERS, UNSEEN, Given, Overseer, Verdict

EAGER = 8
"""So many times whoever does not answer is told eagerly,"""
LAZY = 8
"""and then one time out of so many."""
CALL_HOLDS = 8
"""Who answered when everybody was called counts as there for so many times the patience."""
_NEVER = float("-inf")


class ControllerTuning(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    retry_s: float = 0.2
    """What was not answered is said again after this long."""
    patience_s: float = 1.5
    """A leader that does not say that it leads is given up after this long."""
    watch_s: float = 2.0
    """How often a controller with nothing to do looks whether another has changed something."""
    report_s: float = 4.0
    """Reports count together within this time (LB-13)."""


class Controller(Overseer):
    tuning: ControllerTuning
    shard: PartitionState | None

    def __init__(self, tuning: ControllerTuning, rng: Random, birth: Birth | None = None) -> None:
        """`birth`: what to begin a partition with of which the store knows nothing."""
        super().__init__(tuning, rng)
        self._birth = birth
        self._told: PartitionState | None = None
        """What everybody was told last, at least once."""
        self._times_told = 0
        self._heard: dict[Member, PartitionHeard] = {}
        """The newest that each replica has said about itself."""
        self._gone: set[Member] = set()
        """Who seems to be gone; never longer than until it says something."""
        self._reports: dict[Member, float] = {}
        """Who has reported the leader of this epoch, and when."""
        self._chosen: tuple[int, Member] | None = None
        """The leader epoch that this controller wrote last, and who is to lead in it."""
        self._heard_at: dict[Member, float] = {}
        self._called_at = _NEVER
        """When everybody was asked last, for a person's sake, whether they are there."""
        self._retry_at: float | None = None
        self._give_up_at: float | None = None

    def deadline(self) -> float | None:
        times = (self._look_at, self._retry_at, self._give_up_at)
        return min((time for time in times if time is not None), default=None)

    def describe(self) -> str:
        return f"controller v{self.version} {self.shard if self.shard is not None else 'knows nothing'}"

    def leading_node(self) -> int:
        return self.shard.leader.node if self.shard is not None else 0

    # --- the store ---

    def forget(self) -> None:
        self._retry_at = self._give_up_at = None

    def found(self, before: int) -> None:
        if self.shard is not None:
            self._go_on()
        elif self._birth is not None:
            # Everybody has the same: nothing. So anybody may lead (LB-1, LB-2).
            leader = self._birth.leader or self.rng.choice(sorted(self._birth.replicas))
            self._store(newborn(self._birth, leader))

    def _store(self, state: PartitionState) -> None:
        """First it is stored, and then it is told (LB-2, LB-18)."""
        before = self.shard
        if before is None or state.leader_epoch != before.leader_epoch:
            self._chosen = state.leader_epoch, state.leader
        self.write(state, self._go_on)

    def _go_on(self) -> None:
        """The store holds this: whoever ordered it hears so, and then all the others."""
        state = self.shard
        assert state is not None
        self._judge_orders()
        if self._told is None or self._told.epoch != state.epoch:
            self._reports.clear()
            self._times_told = 0
            self._gone &= set(state.replicas)
            self._heard = {member: said for member, said in self._heard.items() if member in state.replicas}
            self._heard_at = {member: at for member, at in self._heard_at.items() if member in state.replicas}
            for member in self._told.replicas if self._told is not None else ():
                if member not in state.replicas:
                    self._tell(member)  # Whoever misses that hears it when it asks the leader for more.
            self._told = state
        self._look_at = self.now + self.tuning.watch_s
        has_chosen = self._chosen == (state.leader_epoch, state.leader)
        waits = has_chosen and not self._leader_leads()
        self._give_up_at = self.now + self.tuning.patience_s if waits else None
        self._tell_all()

    # --- telling ---

    def _tell(self, member: Member) -> None:
        assert self.shard is not None
        self.send(member, PartitionTold(self.shard.leader_epoch, self.shard))

    def _tell_all(self) -> None:
        """Everybody who does not know it yet, or seems to be gone: its answer shows that it is not.

        And who cannot lead, as long as nobody does: it may be mended.
        """
        state = self.shard
        assert state is not None
        leads = self._leader_leads()
        untold = [
            member
            for member in state.replicas
            if not self._knows(member, state) or member in self._gone or not (leads or self._is_fit(member))
        ]
        self._times_told += 1
        if self._times_told <= EAGER or self._times_told % LAZY == 0:
            for member in untold:
                self._tell(member)
        self._retry_at = self.now + self.tuning.retry_s if untold else None

    def _knows(self, member: Member, state: PartitionState) -> bool:
        heard = self._heard.get(member)
        return heard is not None and heard.partition_epoch >= state.epoch

    def _is_fit(self, member: Member) -> bool:
        heard = self._heard.get(member)
        return heard is None or heard.can_lead

    def _leader_leads(self) -> bool:
        """By what it has said itself, if it is not gone since."""
        state = self.shard
        assert state is not None
        heard = self._heard.get(state.leader)
        leads = heard is not None and heard.epoch == state.leader_epoch and heard.leads
        return leads and state.leader not in self._gone

    # --- what replicas say ---

    def _received(self, event: events.Received) -> None:
        state, sender, message = self.shard, event.sender, event.message
        if state is None or not self._is_informed:
            return  # Whatever it says will be said again.
        if message.epoch > state.leader_epoch or message.partition_epoch > state.epoch:
            self.look()  # Another controller has been at work.
            return
        self._gone.discard(sender)
        if sender not in state.replicas:
            self._stranger(state, sender, message.partition_epoch)
            return
        self._heard_at[sender] = self.now
        if type(message) is PartitionHeard:
            self._heard_from(state, sender, message)
        elif message.epoch != state.leader_epoch or message.partition_epoch != state.epoch:
            self._tell(sender)  # It speaks of the past (LB-15).
        elif type(message) is AlterIsr:
            self._alter_isr(state, sender, message)
        elif type(message) is ReportLeader:
            self._report(state, sender)

    def _stranger(self, state: PartitionState, sender: Member, knows: int) -> None:
        """One that was removed may not know it. Where a node has another disk, who was there is gone (KIP-903)."""
        if knows < state.epoch:
            self._tell(sender)  # It may be of the past; its answer is not.
            return
        for member in state.replicas:
            if member.node == sender.node:
                self._missing(member)

    def _heard_from(self, state: PartitionState, sender: Member, message: PartitionHeard) -> None:
        before = self._heard.get(sender)
        if before is not None and before.epoch > message.epoch:
            return
        if before is not None and before.epoch == message.epoch and message.leads and not before.leads:
            return  # Overtaken: whoever does not lead an epoch never will.
        self._heard[sender] = message
        if self._leader_leads():
            self._give_up_at = None
        elif sender == state.leader and message.epoch == state.leader_epoch:
            self._elect()  # It has restarted, or is damaged, and says so.
        elif state.leader in self._gone or self._has_refused(state):
            self._elect()  # Nobody could lead; perhaps this one can.

    def _has_refused(self, state: PartitionState) -> bool:
        heard = self._heard.get(state.leader)
        return heard is not None and heard.epoch == state.leader_epoch and not heard.leads

    def _alter_isr(self, state: PartitionState, sender: Member, message: AlterIsr) -> None:
        """The leader knows who keeps up; the store, whether anything has changed meanwhile (LB-20, LB-23)."""
        isr = set(message.isr)
        if sender != state.leader or sender not in isr or not isr <= set(state.replicas):
            return
        if message.isr == state.isr:
            self._tell(sender)
            return
        self._store(state.with_isr(isr))

    def _report(self, state: PartitionState, sender: Member) -> None:
        """A majority of the others in sync, within the bound (LB-13, LB-14, D5).

        Where nobody else is in sync, of those who could lead all the same.
        """
        others = [member for member in state.isr if member != state.leader] or list(state.elr)
        if sender not in others:
            return
        self._reports[sender] = self.now
        fresh = [m for m in others if self.now - self._reports.get(m, float("-inf")) <= self.tuning.report_s]
        # Where it is known to be gone already, nobody could lead so far; perhaps this one can.
        if 2 * len(fresh) > len(others) or state.leader in self._gone:
            self._missing(state.leader)

    # --- who leads ---

    def _suspected(self, event: events.Suspected) -> None:
        if self.shard is not None and self._is_informed:
            for member in self.shard.replicas:
                if member.node == event.node:
                    self._missing(member)

    def _missing(self, member: Member) -> None:
        assert self.shard is not None
        self._gone.add(member)
        if self._retry_at is None:
            self._retry_at = self.now + self.tuning.retry_s
        if member == self.shard.leader:
            self._elect()

    def _able(self, state: PartitionState) -> list[Member]:
        """Who has everything, and does not seem to be gone or damaged."""
        return [m for m in state.may_lead if m not in self._gone and self._is_fit(m)]

    def _elect(self) -> None:
        """One of those, if there are any (LB-16)."""
        state = self.shard
        assert state is not None
        able = self._able(state)
        others = [m for m in able if m in state.isr and m != state.leader]
        # One that says itself that it does not lead may do so in another epoch.
        again = [state.leader] if state.leader in able and self._has_refused(state) else []
        candidates = others or again or [m for m in able if m in state.elr]
        if candidates:
            self._store(state.led_by(self.rng.choice(candidates)))
        elif self._retry_at is None:
            # Those who could not lead are asked again: they may be mended.
            self._retry_at = self.now + self.tuning.retry_s

    # --- time ---

    def _time_passed(self, _: events.TimePassed) -> None:
        if self._give_up_at is not None and self.now >= self._give_up_at:
            self._give_up_at = self.now + self.tuning.patience_s
            assert self.shard is not None
            self._missing(self.shard.leader)
        if self._retry_at is not None and self.now >= self._retry_at:
            self._tell_all()
        if self._look_at is not None and self.now >= self._look_at:
            if self._is_informed:
                self.peek()
            else:
                self.look()

    # --- orders ---

    def _commanded(self, event: events.Commanded) -> None:
        order: Order = event.command
        why = self._why_not(order)
        if why:
            self.emit(Reply(order.request, Outcome.REFUSED, why=why))
            return
        state = self.shard
        assert state is not None
        self._orders.append(Given(order, before=state))
        if isinstance(order, MoveLeader):
            self._store(state.led_by(order.to or self.rng.choice(self._heirs(state))))
        elif isinstance(order, ElectUncleanly):
            self._store(_uncleanly_led_by(state, order.to))
        else:
            kept = [member for member in state.replicas if member != order.old]
            replicas = tuple(sorted(kept if order.new is None else [*kept, order.new]))
            led = state.led_by(self.rng.choice(self._heirs(state))) if order.old == state.leader else state
            self._store(msgspec.structs.replace(led.held_by(replicas), epoch=state.epoch + 1))

    def _heirs(self, state: PartitionState) -> list[Member]:
        """Who could lead instead; whoever seems to be there, if anybody does, and in sync, if anybody is."""
        fit = [member for member in state.may_lead if member != state.leader and self._is_fit(member)]
        heirs = [member for member in fit if member in state.isr] or fit
        return [member for member in heirs if member not in self._gone] or heirs

    def judge(self, given: Given, *, has_seen_all: bool) -> Verdict | None:
        assert self.shard is not None
        if _is_done(given.order, given.before, self.shard):
            return DONE
        return DROPPED if has_seen_all else UNSEEN

    def _why_not(self, order: Order) -> str:
        """Why this cannot be done now; empty if it can."""
        state = self.shard
        if state is None or not self._is_informed:
            return "the metadata store has not answered yet"
        if isinstance(order, MoveLeader):
            if order.to is None:
                return (
                    "" if self._heirs(state) else "nobody else could lead who has everything that is settled"
                )
            if order.to == state.leader:
                return f"node {order.to.node} leads already"
            if not self._is_fit(order.to):
                return f"node {order.to.node} is damaged, and cannot lead before that is mended"
            return "" if order.to in state.isr else f"node {order.to.node} is not in sync"
        if isinstance(order, ElectUncleanly):
            return self._why_not_uncleanly(state, order.to)
        return self._why_not_change(state, order.old, order.new)

    def _why_not_uncleanly(self, state: PartitionState, to: Member) -> str:
        """It loses what is settled: not while there is somebody who has it."""
        if to not in state.replicas:
            return f"node {to.node} does not hold this partition"
        if not self._is_fit(to):
            return f"node {to.node} is damaged: it can lead once that is mended, and in no other way"
        if to in state.may_lead:
            return f"node {to.node} has everything that is settled"
        able = self._able(state)
        if not able:
            return ""
        if self.now >= self._called_at + CALL_HOLDS * self.tuning.patience_s:
            self._call(state)
        lately = min(self._called_at, self.now - self.tuning.patience_s)
        there = [member for member in able if self._heard_at.get(member, _NEVER) >= lately]
        if there:
            return f"node {there[0].node} has everything that is settled, and does not seem to be gone"
        if self.now < self._called_at + self.tuning.patience_s:
            return "this controller is asking who is there: try again in a moment"
        return ""

    def _call(self, state: PartitionState) -> None:
        """Who answers is there. An idle partition is silent, so nothing else would tell."""
        self._called_at = self.now
        for member in state.replicas:
            self._tell(member)

    def _why_not_change(self, state: PartitionState, old: Member | None, new: Member | None) -> str:
        if old is None and new is None:
            return "nobody is named"
        if old is not None and old not in state.replicas:
            return f"node {old.node} does not hold this partition"
        if new is not None and new in state.replicas:
            return f"node {new.node} holds this partition already"
        if new is not None and any(m.node == new.node for m in state.replicas if m != old):
            return f"node {new.node} holds this partition with another disk; swap that for this one"
        if len(state.replicas) + (new is not None) - (old is not None) < state.min_isr:
            return f"{state.min_isr} are needed in sync, and fewer would hold this partition"
        is_wiped = old is not None and new is not None and old.node == new.node
        if old is not None and old in state.isr and len(state.isr) <= state.min_isr and not is_wiped:
            return f"node {old.node} is in sync, and without it fewer than {state.min_isr} are"
        if old == state.leader and not self._heirs(state):
            return "nobody else could lead who has everything that is settled"
        if old in state.may_lead and not is_wiped and not any(m != old for m in self._able(state)):
            return f"node {old.node} may be the only one left that has everything that is settled"
        return ""


def _uncleanly_led_by(state: PartitionState, leader: Member) -> PartitionState:
    """A person accepts that what only the others have is lost; that they did is stored with it."""
    leader_epoch = state.leader_epoch + 1
    return msgspec.structs.replace(
        state,
        epoch=state.epoch + 1,
        leader_epoch=leader_epoch,
        leader=leader,
        isr=(leader,),
        elr=(),
        unclean=Unclean(leader_epoch, leader, state.may_lead),
    )


def _is_done(order: Order, before: PartitionState, state: PartitionState) -> bool:
    """Whether what was ordered stands in the store."""
    if isinstance(order, ChangeReplicas):
        return (order.new is None or order.new in state.replicas) and order.old not in state.replicas
    if state.leader_epoch == before.leader_epoch:
        return False
    if isinstance(order, ElectUncleanly):
        unclean = state.unclean
        return (
            unclean is not None and unclean.leader_epoch > before.leader_epoch and unclean.leader == order.to
        )
    return state.leader != before.leader if order.to is None else state.leader == order.to


Controller.handlers = STORE_HANDLERS | {
    events.Received: Controller._received,
    events.Suspected: Controller._suspected,
    events.Commanded: Controller._commanded,
    events.TimePassed: Controller._time_passed,
}
