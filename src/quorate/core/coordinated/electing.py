"""The operator's part of an election: fence a majority, choose the highest head, let it lead (OX-5 to OX-12).

Why the highest head of a majority has everything that is settled: whatever is settled is on a majority of some
ensemble that may have been in force, a majority of the fencing ensemble meets each of those, and whoever was fenced
takes nothing more from earlier leaders.

One leader is chosen an epoch, and only once. If it does not answer, or was fenced anew since (it restarted), the
next epoch begins; to choose again in this one could make two leaders of one epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.coordinated.messages import (
    BecomeLeaderRequest,
    BecomeLeaderResponse,
    FenceRequest,
    FenceResponse,
)
from quorate.core.coordinated.shard import Kind, Phase, Shard, Status
from quorate.core.coordinated.tending import Tending
from quorate.core.entry import NOWHERE, EntryId, Member
from quorate.core.quorum import has_majority

if TYPE_CHECKING:
    from quorate.core.coordinated.operator import Operator


class Electing:
    def __init__(self, operator: Operator, avoid: Member | None) -> None:
        assert operator.shard is not None
        self._operator = operator
        self._shard: Shard = operator.shard
        change = self._shard.reconfiguration
        self._avoid = change.old if change is not None and change.phase is Phase.WANTED else avoid
        """Who is to go, or at least to lead no more: any majority without it will do as well."""
        self._fenced: dict[Member, FenceResponse] = {}
        self._request: BecomeLeaderRequest | None = None
        self._chosen: Member | None = None
        self._is_patient = True
        """Whoever is to be avoided is, as long as somebody else may come."""

    def begin(self) -> None:
        self.retry()
        self._operator.retry_after(self._operator.tuning.retry_s)
        self._operator.give_up_after(self._operator.tuning.patience_s)

    def retry(self) -> bool:
        if self._chosen is not None:
            self._operator.send(self._chosen, self._request)
            return True
        ensemble = self._shard.fencing_ensemble
        for member in ensemble:
            answer = self._fenced.get(member)
            if answer is None or answer.faulty:  # It may be mended by now.
                self._operator.send(member, FenceRequest(self._shard.epoch, ensemble))
        return True

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is FenceResponse and sender in self._shard.fencing_ensemble:
            if self._chosen is None or sender not in self._fenced:  # Late ones are kept (OX-9).
                self._fenced[sender] = message
            if self._chosen is None:
                self._choose()
        elif type(message) is BecomeLeaderResponse and sender == self._chosen:
            if message.leads:
                self._lead()
            else:
                self._operator.elect(avoid=self._avoid)

    def suspected(self, node: int) -> None:
        if self._chosen is not None and self._chosen.node == node:
            self._operator.elect(avoid=self._chosen)

    def gave_up(self) -> None:
        """Somebody who answered is better than nobody; but a chosen leader that does not answer leads nothing."""
        if self._chosen is not None:
            self._operator.elect(avoid=self._avoid)
            return
        self._is_patient = False
        self._choose()
        if self._chosen is None:
            self._operator.give_up_after(self._operator.tuning.patience_s)

    # --- the choice ---

    def _choose(self) -> None:
        """The highest head, once a majority is fenced (OX-8)."""
        avoided = self._avoid if self._is_patient else None
        counted = {member: answer for member, answer in self._fenced.items() if member != avoided}
        if not self._shard.has_fenced(set(counted)):
            return
        final = self._shard.final_ensemble
        eligible = [member for member in final if member in counted and not counted[member].faulty]
        if not eligible:
            return
        leader = max(
            eligible, key=lambda member: (counted[member].head, member != self._avoid, self._liked(member))
        )
        head = counted[leader].head
        if self._is_patient and head == NOWHERE and self._is_awaited():
            return  # Nothing is lost by waiting where nothing was ever written.
        damaged = [counted[member].head for member in final if member in counted and counted[member].faulty]
        if any(claim > head for claim in damaged) and self._may_be_settled(head):
            return  # It will be mended, or somebody else will come who has it.
        self._chosen = leader
        followers = [
            (member, counted[member].head) for member in final if member in counted and member != leader
        ]
        token = counted[leader].token
        self._request = BecomeLeaderRequest(self._shard.epoch, token, final, tuple(followers))
        self._operator.give_up_after(self._operator.tuning.patience_s)
        self._operator.send(leader, self._request)

    def _liked(self, member: Member) -> tuple[int, int]:
        """Of those who could lead alike, the greatest is to."""
        prefers = self._operator.prefers
        rank = prefers.index(member.node) if member.node in prefers else len(prefers)
        return -rank, -member.node

    def _is_awaited(self) -> bool:
        """Whether the one that is wanted most may yet come."""
        wanted = [
            member for member in self._shard.final_ensemble if member.node in self._operator.prefers[:1]
        ]
        return any(member not in self._fenced and member != self._avoid for member in wanted)

    def _may_be_settled(self, above: EntryId) -> bool:
        """Whether so few are known to have nothing above that entry that something there may be settled: rule 2."""
        without = {
            member for member, answer in self._fenced.items() if not answer.faulty and answer.head <= above
        }
        ensembles = [self._shard.ensemble, self._shard.final_ensemble]
        change = self._shard.reconfiguration
        if change is not None and change.again:  # A leader may have applied it, and settled with fewer.
            ensembles.append(change.applied_to(self._shard.ensemble))
        elif change is not None and change.new in self._shard.ensemble:  # Fewer have settled before it came.
            ensembles.append(tuple(member for member in self._shard.ensemble if member != change.new))
        return any(
            has_majority([member for member in ensemble if member not in without], ensemble)
            for ensemble in ensembles
        )

    def _lead(self) -> None:
        """Over: say so in the store, and then see to those who came late (OX-12)."""
        assert self._request is not None
        operator, shard = self._operator, self._shard
        change = shard.reconfiguration
        if change is not None and change.kind is Kind.SWAP and change.phase is Phase.COMMIT:
            change = None
        # An expansion is not forgotten before something is settled by the larger ensemble: what was settled before
        # may be on fewer than a majority of it.
        steady = Shard(shard.epoch, Status.STEADY, shard.final_ensemble, self._chosen, change)
        attached = {member for member, _ in self._request.followers}
        late = {
            member: answer.head
            for member, answer in self._fenced.items()
            if member in shard.final_ensemble and member not in attached and member != self._chosen
        }

        def written() -> None:
            operator.settled()
            if isinstance(operator.task, Tending):
                operator.task.gathering.know(attached, late)

        operator.write(steady, written)
