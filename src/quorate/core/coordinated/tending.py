"""The operator in the steady state: whoever of the ensemble does not follow yet is fenced and added (OX-13).

An operator that has just come does not know who follows. It fences everybody with the epoch that is; to those who
follow already this changes nothing, and the leader has their cursors. Late is also who was down, and comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.coordinated.messages import (
    AddFollowerRequest,
    AddFollowerResponse,
    FenceRequest,
    FenceResponse,
)
from quorate.core.coordinated.shard import Shard
from quorate.core.entry import EntryId, Member

if TYPE_CHECKING:
    from quorate.core.coordinated.operator import Operator

LAZY_AFTER = 8
"""So many times whoever does not answer is asked eagerly,"""
LAZY = 8
"""and then one time out of so many."""


class Tending:
    def __init__(self, operator: Operator) -> None:
        assert operator.shard is not None
        self._operator = operator
        self._shard: Shard = operator.shard
        self._missing: dict[Member, EntryId | None] = {
            member: None for member in self._shard.ensemble if member != self._shard.leader
        }
        """Who is not known to follow, and with what head it was fenced."""
        self._asked = 0

    def know(self, attached: set[Member], late: dict[Member, EntryId]) -> None:
        """From the election that has just ended: most of them follow, and some were fenced late (OX-9)."""
        for member in attached:
            self._missing.pop(member, None)
        self._missing.update(late)

    def begin(self) -> None:
        if self._shard.reconfiguration is not None:
            self._operator.give_up_after(4 * self._operator.tuning.patience_s)
        if self._missing:
            self._operator.retry_after(0.0)

    def retry(self) -> bool:
        self._asked += 1
        if self._asked <= LAZY_AFTER or self._asked % LAZY == 0:
            for member in self._missing:
                self._ask_for(member)
        return bool(self._missing)

    def _ask_for(self, member: Member) -> None:
        head = self._missing[member]
        epoch = self._shard.epoch
        if head is None:
            self._operator.send(member, FenceRequest(epoch, self._shard.ensemble))
        else:
            assert self._shard.leader is not None
            self._operator.send(self._shard.leader, AddFollowerRequest(epoch, member, head))

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is FenceResponse and sender in self._missing:
            self._missing[sender] = message.head
            self._ask_for(sender)
        elif type(message) is AddFollowerResponse and sender == self._shard.leader:
            self._missing.pop(message.follower, None)

    def suspected(self, node: int) -> None:
        leader = self._shard.leader
        assert leader is not None
        if node == leader.node:
            self._operator.elect()

    def gave_up(self) -> None:
        """The leader is to go, and nobody else could lead: try again."""
        self._operator.elect()
