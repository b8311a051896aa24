"""The operator's part of a reconfiguration: prepare, commit, or call off (OX-26 to OX-35).

Every request can be repeated: the leader knows by epoch and change whether it has done it already. Whoever reads
the store knows which phase was begun, and begins it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core.coordinated.gathering import Gathering
from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AbortReconfigurationResponse,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorate.core.coordinated.shard import Phase, Reconfiguration, Shard
from quorate.core.entry import Member

if TYPE_CHECKING:
    from quorate.core.coordinated.operator import Operator


PROMPT_TRIES = 3
"""A change that goes well is over by then; if not, perhaps somebody does not follow whom it needs."""


class Reshaping:
    def __init__(self, operator: Operator) -> None:
        shard = operator.shard
        assert shard is not None
        assert shard.reconfiguration is not None
        assert shard.leader is not None
        self._operator = operator
        self._shard: Shard = shard
        self._change: Reconfiguration = shard.reconfiguration
        self._leader: Member = shard.leader
        self._snapshot: SnapshotRequest | None = None
        """What the new node is to have, once the leader has prepared."""
        self._gathering = Gathering(operator, shard)
        self.has_adopted = self._change.phase is Phase.COMMIT
        """The leader is known to be in this epoch: nobody is fenced with it before, or it would be deposed."""
        self._tries = 0

    def begin(self) -> None:
        self.retry()
        self._operator.retry_after(self._operator.tuning.retry_s)
        self._operator.give_up_after(4 * self._operator.tuning.patience_s)

    def retry(self) -> bool:
        epoch, change = self._shard.epoch, self._change
        self._tries += 1
        if self.has_adopted and self._tries > PROMPT_TRIES:
            self._gathering.ask()
        if self._snapshot is not None:
            assert change.new is not None
            self._operator.send(change.new, self._snapshot)
        elif change.phase is Phase.PREPARE:
            self._operator.send(self._leader, PrepareReconfigurationRequest(epoch, change))
        elif change.phase is Phase.COMMIT:
            self._operator.send(self._leader, CommitReconfigurationRequest(epoch, change))
        else:
            assert change.phase is Phase.ABORT
            self._operator.send(self._leader, AbortReconfigurationRequest(epoch, change))
        return True

    def receive(self, sender: Member, message: Any) -> None:
        self._gathering.receive(sender, message)
        phase = self._change.phase
        if sender == self._leader:
            if type(message) is PrepareReconfigurationResponse and phase is Phase.PREPARE:
                self._prepared(message)
            elif type(message) is CommitReconfigurationResponse and phase is Phase.COMMIT:
                self._committed(message)
            elif type(message) is AbortReconfigurationResponse and phase is Phase.ABORT:
                self._end(message.leads, self._shard.ensemble)
        elif type(message) is SnapshotResponse and sender == self._change.new and self._snapshot is not None:
            if message.installed:
                if message.head.offset >= self._snapshot.snapshot.last.offset:  # Else of an older one.
                    self._commit()
            else:
                self._snapshot = None  # The leader has another one by now.
                self.retry()

    def _prepared(self, message: PrepareReconfigurationResponse) -> None:
        self.has_adopted = message.prepared
        if not message.prepared:
            self._operator.elect()
        elif not message.ready:
            pass  # It is asked again.
        elif message.snapshot is None:  # Nobody is new, or has everything already.
            self._commit()
        elif self._snapshot is None:
            assert self._change.new is not None
            self._snapshot = SnapshotRequest(self._shard.epoch, message.snapshot, self._leader)
            self.retry()

    def _commit(self) -> None:
        """The store first: from here on the new node may be sent entries, and is fenced like the others (OX-19)."""
        change = msgspec.structs.replace(self._change, phase=Phase.COMMIT)
        committing = msgspec.structs.replace(self._shard, reconfiguration=change)
        self._operator.write(committing, lambda: self._operator.begin(Reshaping(self._operator)))

    def _committed(self, message: CommitReconfigurationResponse) -> None:
        if message.done or not message.leads:
            self._end(message.leads, self._change.applied_to(self._shard.ensemble))
        # Otherwise it is asked again: the leader waits until enough others have what is settled (OX-35).

    def _end(self, leads: bool, ensemble: tuple[Member, ...]) -> None:
        if not leads:
            self._operator.elect()  # An election resolves whatever has stalled (OX-28).
            return
        over = msgspec.structs.replace(self._shard, ensemble=ensemble, reconfiguration=None)
        self._operator.write(over, self._operator.settled)

    def suspected(self, node: int) -> None:
        new = self._change.new
        if node == self._leader.node:
            self._operator.elect(avoid=self._leader)
        elif new is not None and node == new.node and self._change.phase is Phase.PREPARE:
            self._operator.call_off()

    def gave_up(self) -> None:
        """A leader that does not get as far as adopting the epoch misses followers, and nobody can be gathered
        before it does. One that waits for those who stay, without the one that goes, may settle nothing meanwhile.
        Whatever else takes long may go on, or be called off by whoever wanted it."""
        if self._change.phase is not Phase.PREPARE:
            return
        if not self.has_adopted and self._change.again:
            self._operator.elect()
        elif not self.has_adopted or self._change.new is None:
            self._operator.call_off()
