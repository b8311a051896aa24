"""The leader's part of a reconfiguration: the old node counts no more, the new one begins to (OX-29 to OX-35).

A change that is prepared or done is known by its epoch, so each request can come again, and is answered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AbortReconfigurationResponse,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
)
from quorate.core.coordinated.shard import Reconfiguration
from quorate.core.entry import Member

if TYPE_CHECKING:
    from quorate.core.coordinated.leader import Leader


class Reconfiguring:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._change: Reconfiguration | None = None
        """What this epoch was adopted for; None: an election, or a change that was called off."""
        self._is_done = False
        self._settled_before = -1
        """What was settled when it was prepared: the new node must have all of it before anybody counts on it."""
        self._asker = 0
        """The operator that waits to hear that everything is prepared."""
        self.inactive: Member | None = None
        """Still in the ensemble, and not counted."""

    @property
    def is_open(self) -> bool:
        """Somebody is to come or go, and has not yet."""
        return self._change is not None and not self._is_done

    # --- prepare ---

    def prepare(self, operator: Member, message: PrepareReconfigurationRequest) -> None:
        replica = self._leader.replica
        is_new = message.epoch == replica.epoch + 1
        if is_new and (self._leader.is_ending or not self._leader.knows_what_is_settled):
            return  # The new node could get too little, or this protocol is about to end. It is asked again.
        if is_new:
            self._prepare(message.epoch, message.reconfiguration)
        if not self._is_about(message.epoch, message.reconfiguration):
            replica.send(operator.node, PrepareReconfigurationResponse(message.epoch, prepared=False))
            return
        self._asker = operator.node
        self.go_on()
        if self._asker and not is_new:
            # It takes its time. But the epoch is adopted, and others can be gathered.
            response = PrepareReconfigurationResponse(replica.epoch, prepared=True, ready=False)
            replica.send_when_saved(self._asker, response)

    def _prepare(self, epoch: int, change: Reconfiguration) -> None:
        leader = self._leader
        assert change.old != leader.replica.me, "a leader is moved first (OX-31)"
        self._let_newcomer_go()
        self._change, self._is_done = change, False
        self._settled_before = leader.replica.commit
        assert self._settled_before >= 0
        if change.old is not None:
            leader.detach(change.old)  # Its acknowledgements stop counting here (D12).
            self.inactive = change.old
        leader.adopt(epoch)
        if change.new is not None and leader.replica.config.tuning.whole_logs:
            leader.attach_somewhere(change.new)  # It follows, and counts for nothing yet.

    def go_on(self) -> None:
        """Answer if there is a snapshot that has everything the new node must have, or it has that itself, or those
        who stay have all that is settled: here it can still be called off, and in COMMIT no more."""
        replica = self._leader.replica
        if not self._asker or self._change is None:
            return
        if self._change.new is None:
            snapshot = None
            if not self._has_all(self._change.applied_to(self._leader.ensemble)):
                return
        elif replica.config.tuning.whole_logs:
            snapshot = None
            if self._leader.flushed_on(self._change.new) < self._settled_before:
                return
        else:
            snapshot = replica.snapshot
            if snapshot is None or snapshot.last.offset < self._settled_before:
                replica.take_snapshot()
                return
        response = PrepareReconfigurationResponse(replica.epoch, prepared=True, snapshot=snapshot)
        replica.send_when_saved(self._asker, response)
        self._asker = 0

    def _is_about(self, epoch: int, change: Reconfiguration) -> bool:
        same = self._change is not None and self._change.same_as(change)
        return same and epoch == self._leader.replica.epoch

    # --- commit ---

    def commit(self, operator: Member, message: CommitReconfigurationRequest) -> None:
        change = message.reconfiguration
        leads = self._is_about(message.epoch, change)
        if leads and not self._is_done:
            self._commit(change)
        # Only then has nobody to remember that it was another ensemble.
        done = leads and self._is_done and self._has_all(self._leader.ensemble)
        if self._was_elected_with(message.epoch, change):
            leads, done = True, self._leader.knows_what_is_settled
        self._leader.replica.send(operator.node, CommitReconfigurationResponse(message.epoch, leads, done))

    def _was_elected_with(self, epoch: int, change: Reconfiguration) -> bool:
        """An election has completed it, and this leader was told its outcome."""
        ensemble = self._leader.ensemble
        is_applied = change.applied_to(ensemble) == ensemble
        return self._change is None and epoch == self._leader.replica.epoch and is_applied

    def _commit(self, change: Reconfiguration) -> None:
        leader = self._leader
        ensemble = change.applied_to(leader.ensemble)
        assert leader.knows_what_is_settled
        if change.new is None and not self._has_all(ensemble):
            return
        self._is_done = True
        self.inactive = None
        leader.ensemble = ensemble
        leader.replica.tell(ensemble)
        if change.new is not None:
            leader.attach_somewhere(change.new)
        leader.persisted()  # Fewer may be needed now.

    def _has_all(self, ensemble: tuple[Member, ...]) -> bool:
        """Nothing that is settled is on fewer than a majority of these (OX-34)."""
        return self._leader.reached_by(ensemble) >= self._leader.replica.commit

    def _let_newcomer_go(self) -> None:
        """Whoever was to count, and does not, need not follow."""
        if self._change is not None and self._change.new is not None and not self._is_done:
            self._leader.detach(self._change.new)

    # --- call off ---

    def abort(self, operator: Member, message: AbortReconfigurationRequest) -> None:
        leader = self._leader
        replica = leader.replica
        if message.epoch == replica.epoch + 1:  # It has never heard of what is called off.
            self._let_newcomer_go()
            self._change = None
            leader.adopt(message.epoch)
        elif self._is_about(message.epoch, message.reconfiguration) and not self._is_done:
            self._let_newcomer_go()
            old, self.inactive, self._change = self.inactive, None, None
            if old is not None:
                leader.attach_somewhere(old)
        leads = message.epoch == replica.epoch and self._change is None
        replica.send_when_saved(operator.node, AbortReconfigurationResponse(message.epoch, leads))
