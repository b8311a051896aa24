"""What must hold of all that operators write into the store and say to nodes, however many of them there are.

| invariant | says | source |
| --- | --- | --- |
| valid-messages | nobody is told to follow, drop or take in itself | TLA+ ValidMessages |
| legal-leader-and-ensemble | a stored leader is in the ensemble, and not the one to go | TLA+, OX-31 |
| store-skipped | each write of a shard follows the one before | OX-2, Oxia #1174 |
| epoch-skipped | elections and reconfigurations begin with the next epoch, nothing else does | OX-5, OX-27, D4 |
| change-overlaps | a reconfiguration needs a leader, no election and no other reconfiguration | OX-26 |
| ensemble-unapplied | the ensemble becomes what a change in COMMIT says, once that is safe | OX-28, D11 |
| leader-unconfirmed | a leader is stored once it leads | OX-12 |
| order-unstored | what an operator orders was written down before | OX-2, OX-5, OX-29, OX-30 |
| chosen-twice | one leader is chosen an epoch | OX-8 |
| chosen-outsider | leader and followers come from the final ensemble | OX-20 |
| chosen-lower | the highest of the heads that were answered is chosen | OX-8, OX-10, OX-17 |
| fenced-minority | those who are fenced when a leader is chosen meet every majority of before | OX-8, OX-19 |

Both of the specification's liveness properties are looked at when everything has healed (sim/healing.py):

| property | says | source |
| --- | --- | --- |
| eventually-all-values-committed | what is proposed is settled | TLA+ EventuallyAllValuesCommitted |
| eventually-reconfiguration-completes | none stays in the store | TLA+ EventuallyReconfigurationCompletes |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AddEntryRequest,
    AddEntryResponse,
    AddFollowerRequest,
    BecomeLeaderRequest,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    FenceRequest,
    FenceResponse,
    PrepareReconfigurationRequest,
    TruncateRequest,
    TruncateResponse,
)
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration, Shard, Status
from quorate.core.effects import Send
from quorate.core.entry import EntryId, Member
from quorate.core.invariant import Violated

BETWEEN_NODES = (AddEntryRequest, AddEntryResponse, TruncateRequest, TruncateResponse)


class OperatorInvariants:
    def __init__(self) -> None:
        self.chosen: dict[tuple[int, int], Member] = {}
        """By partition and epoch: who was told to lead."""
        self.prepared: dict[tuple[int, int], Member] = {}
        """By partition and epoch: whom a reconfiguration takes along into that epoch."""
        self._stored: dict[int, tuple[int, Shard]] = {}
        """By partition: the newest version, and what it says."""
        self._history: dict[tuple[int, int], list[Shard]] = {}
        """By partition and epoch: all that was stored."""
        self._fenced: dict[tuple[int, int], dict[tuple[Member, EntryId], bool]] = {}
        """By partition and epoch: who said to be fenced, with each head; and whether it is damaged."""
        self._done: set[tuple[int, int]] = set()
        """Partitions and epochs in which a leader said that a change is done."""
        self._ordered: dict[type, Callable[[int, str, int, Any], None]] = {
            FenceRequest: self._fence,
            BecomeLeaderRequest: self._become_leader,
            AddFollowerRequest: self._add_follower,
            PrepareReconfigurationRequest: self._prepare,
            CommitReconfigurationRequest: self._commit,
            AbortReconfigurationRequest: self._abort,
        }

    def shard(self, partition: int) -> Shard | None:
        """The newest."""
        return self._stored[partition][1] if partition in self._stored else None

    # --- what nodes say ---

    def sent_by_node(self, shadow: Any, effect: Send) -> None:
        message = effect.message
        kind = type(message)
        if kind in BETWEEN_NODES and effect.to == shadow.node:
            raise Violated("valid-messages", f"{shadow.name} sends itself {message}")
        place = (shadow.partition, getattr(message, "epoch", 0))
        if kind is FenceResponse:
            heads = self._fenced.setdefault(place, {})
            fenced = (shadow.replica.me, message.head)
            heads[fenced] = message.faulty or heads.get(fenced, False)
        elif kind is CommitReconfigurationResponse and message.done:
            self._done.add(place)

    # --- what operators say ---

    def operated(self, operator: int, partition: int, effects: list[Any]) -> None:
        for effect in effects:
            if type(effect) is Send:
                check = self._ordered.get(type(effect.message))
                if check is not None:
                    check(partition, f"p{partition} operator {operator}", effect.to, effect.message)

    def _was_stored(self, partition: int, who: str, message: Any, fits: Callable[[Shard], bool]) -> Shard:
        for shard in reversed(self._history.get((partition, message.epoch), [])):
            if fits(shard):
                return shard
        raise Violated("order-unstored", f"{who} says {message}; stored: {self.shard(partition)}")

    def _fence(self, partition: int, who: str, to: int, message: FenceRequest) -> None:
        self._was_stored(partition, who, message, lambda _: True)

    def _become_leader(self, partition: int, who: str, to: int, message: BecomeLeaderRequest) -> None:
        shard = self._was_stored(partition, who, message, lambda s: s.status is Status.ELECTION)
        leader = next((member for member in message.ensemble if member.node == to), None)
        final = final_ensemble(shard)
        followers = [member for member, _ in message.followers]
        if leader is None or message.ensemble != final or any(member not in final for member in followers):
            said = f"n{to} lead {names(message.ensemble)} with {names(followers)}"
            raise Violated("chosen-outsider", f"{who} lets {said}; {shard} ends in {names(final)}")
        if leader in followers:
            raise Violated("valid-messages", f"{who} lets n{to} follow itself: {message}")
        other = self.chosen.setdefault((partition, message.epoch), leader)
        if other != leader:
            raise Violated("chosen-twice", f"{who} lets n{to} lead e{message.epoch}, n{other.node} was to")
        self._chose(partition, who, leader, message, shard)

    def _chose(
        self, partition: int, who: str, leader: Member, message: BecomeLeaderRequest, shard: Shard
    ) -> None:
        fenced = self._fenced.get((partition, message.epoch), {})
        members = {member for member, _ in fenced}
        for ensemble in may_have_counted(shard):
            if 2 * sum(member in members for member in ensemble) < len(ensemble):
                said = f"fenced: {names(sorted(members))} of {names(ensemble)}"
                raise Violated("fenced-minority", f"{who} chose n{leader.node}; {said}; {shard}")
        mine = max((head for member, head in fenced if member == leader), default=None)
        for member, head in message.followers:
            damaged = fenced.get((member, head))
            if mine is None or damaged is None or (head > mine and not damaged):
                raise Violated(
                    "chosen-lower", f"{who} chose n{leader.node} at {mine}; n{member.node} is at {head}"
                )

    def _add_follower(self, partition: int, who: str, to: int, message: AddFollowerRequest) -> None:
        if message.follower.node == to:
            raise Violated("valid-messages", f"{who} lets n{to} follow itself")
        self._was_stored(partition, who, message, lambda s: s.leader is not None and s.leader.node == to)

    def _prepare(self, partition: int, who: str, to: int, message: PrepareReconfigurationRequest) -> None:
        shard = self._was_changing(partition, who, to, message, Phase.PREPARE)
        if message.reconfiguration.old is not None and message.reconfiguration.old.node == to:
            raise Violated("valid-messages", f"{who} lets n{to} drop itself: {message}")
        assert shard.leader is not None
        self.prepared[partition, message.epoch] = shard.leader

    def _commit(self, partition: int, who: str, to: int, message: CommitReconfigurationRequest) -> None:
        self._was_changing(partition, who, to, message, Phase.COMMIT)
        shard, new = self.shard(partition), message.reconfiguration.new
        is_in = shard is not None and new in shard.ensemble  # An election has taken it in, and it leads.
        if new is not None and new.node == to and not is_in:
            raise Violated("valid-messages", f"{who} lets n{to} take itself in: {message}")

    def _abort(self, partition: int, who: str, to: int, message: AbortReconfigurationRequest) -> None:
        shard = self._was_changing(partition, who, to, message, Phase.ABORT)
        assert shard.leader is not None
        self.prepared[partition, message.epoch] = shard.leader  # It may not have heard of it before.

    def _was_changing(self, partition: int, who: str, to: int, message: Any, phase: Phase) -> Shard:
        def fits(shard: Shard) -> bool:
            change = shard.reconfiguration
            is_that = change is not None and change.phase is phase and change == message.reconfiguration
            return is_that and shard.leader is not None and shard.leader.node == to

        return self._was_stored(partition, who, message, fits)

    # --- what they write ---

    def wrote(self, world: Any, partition: int, version: int, shard: Shard) -> None:
        earlier_version, earlier = self._stored.get(partition, (0, None))
        said = f"p{partition} v{version} {shard}, after v{earlier_version} {earlier}"
        if version != earlier_version + 1:
            raise Violated("store-skipped", said)
        self._legal(shard, said)
        if earlier is not None:
            self._follows(world, partition, earlier, shard, said)
        self._stored[partition] = (version, shard)
        self._history.setdefault((partition, shard.epoch), []).append(shard)

    def found(self, partition: int, version: int, shard: Shard) -> None:
        """This is stored since before anybody watched."""
        self._stored[partition] = (version, shard)
        self._history.setdefault((partition, shard.epoch), []).append(shard)

    def _legal(self, shard: Shard, said: str) -> None:
        leader, change = shard.leader, shard.reconfiguration
        if (leader is None) != (shard.status is Status.ELECTION):
            raise Violated("legal-leader-and-ensemble", said)
        if leader is not None and leader not in shard.ensemble:
            raise Violated("legal-leader-and-ensemble", said)
        begun = change is not None and change.phase is not Phase.WANTED
        if begun and change is not None and change.old is not None and change.old == leader:
            raise Violated("legal-leader-and-ensemble", said)

    def _follows(self, world: Any, partition: int, old: Shard, new: Shard, said: str) -> None:
        """A write is one of the protocol's steps, and none other."""
        if new.status is Status.ELECTION:
            if new.epoch != old.epoch + 1:
                raise Violated("epoch-skipped", said)
            self._same_ensemble(old, new, said)
            if final_ensemble(new) != final_ensemble(old):
                raise Violated("ensemble-unapplied", said)
        elif old.status is Status.ELECTION:
            self._elected(world, partition, old, new, said)
        elif new.leader != old.leader:
            raise Violated("leader-unconfirmed", said)
        elif _begins(new) and new.epoch != old.epoch:
            self._begins(old, new, said)
        else:
            self._goes_on(partition, old, new, said)

    def _elected(self, world: Any, partition: int, old: Shard, new: Shard, said: str) -> None:
        assert new.leader is not None
        if new.epoch != old.epoch:
            raise Violated("epoch-skipped", said)
        if world.leaders[partition].get(new.epoch) != new.leader.node:
            raise Violated("leader-unconfirmed", said)
        if new.ensemble != final_ensemble(old):
            raise Violated("ensemble-unapplied", said)

    def _begins(self, old: Shard, new: Shard, said: str) -> None:
        if new.epoch != old.epoch + 1:
            raise Violated("epoch-skipped", said)
        before = old.reconfiguration
        assert new.reconfiguration is not None
        if before is not None and not (before.phase is Phase.WANTED and _same(before, new.reconfiguration)):
            raise Violated("change-overlaps", said)
        self._same_ensemble(old, new, said)

    def _goes_on(self, partition: int, old: Shard, new: Shard, said: str) -> None:
        """Within an epoch: to COMMIT, to ABORT, to the end; or something is wanted, or no longer."""
        if new.epoch != old.epoch:
            raise Violated("epoch-skipped", said)
        before, after = old.reconfiguration, new.reconfiguration
        if before is not None and after is not None and not _same(before, after):
            raise Violated("change-overlaps", said)
        ends = before is not None and before.phase is Phase.COMMIT and after is None
        if not ends:
            phases = (
                before.phase if before is not None else None,
                after.phase if after is not None else None,
            )
            if phases not in STEPS:
                raise Violated("change-overlaps", said)
            self._same_ensemble(old, new, said)
            return
        assert before is not None
        if (partition, new.epoch) not in self._done or new.ensemble != applied(before, old.ensemble):
            raise Violated("ensemble-unapplied", said)

    def _same_ensemble(self, old: Shard, new: Shard, said: str) -> None:
        if new.ensemble != old.ensemble:
            raise Violated("ensemble-unapplied", said)


STEPS: frozenset[tuple[Phase | None, Phase | None]] = frozenset(
    {
        (None, Phase.WANTED),  # A leader that is to go is moved first.
        (Phase.WANTED, None),
        (Phase.PREPARE, Phase.COMMIT),
        (Phase.PREPARE, Phase.ABORT),
        (Phase.ABORT, None),
    }
)
"""Of a reconfiguration within an epoch, its end apart."""


def names(members: Iterable[Member]) -> str:
    return "{" + ",".join(f"n{member.node}" for member in members) + "}"


def _begins(shard: Shard) -> bool:
    return shard.reconfiguration is not None and shard.reconfiguration.phase is Phase.PREPARE


def _same(one: Reconfiguration, two: Reconfiguration) -> bool:
    return (one.kind, one.old, one.new) == (two.kind, two.old, two.new)


def applied(change: Reconfiguration, ensemble: tuple[Member, ...]) -> tuple[Member, ...]:
    """Said without the core's own words."""
    members = {*ensemble} - {change.old}
    return tuple(sorted(members if change.new is None else {*members, change.new}))


def final_ensemble(shard: Shard) -> tuple[Member, ...]:
    """Where an election must end: a swap or an expansion in COMMIT is completed, and nothing else (OX-28, D11)."""
    change = shard.reconfiguration
    if change is None or change.phase is not Phase.COMMIT or change.kind is Kind.CONTRACT:
        return shard.ensemble
    return applied(change, shard.ensemble)


def may_have_counted(shard: Shard) -> list[tuple[Member, ...]]:
    """The ensembles that leaders of earlier epochs may have settled something with."""
    change = shard.reconfiguration
    if change is None or not (change.phase is Phase.COMMIT or change.again):
        return [shard.ensemble]
    before = tuple(member for member in shard.ensemble if member != change.new)
    return [shard.ensemble, before, applied(change, shard.ensemble)]
