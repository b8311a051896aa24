"""The operator sees to it that everybody follows who should (OX-13).

Whoever is not known to follow is fenced with the epoch that is, and then added. To those who follow already this
changes nothing: the leader has their cursors. So an operator that has just come, and knows nothing, asks for all;
and who was down and comes back is late, like any other.
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


class Gathering:
    def __init__(self, operator: Operator, shard: Shard) -> None:
        assert shard.leader is not None
        self._operator = operator
        self._shard = shard
        self._leader: Member = shard.leader
        change = shard.reconfiguration
        leaving = change.old if change is not None else None
        self.missing: dict[Member, EntryId | None] = {
            member: None for member in shard.ensemble if member not in (shard.leader, leaving)
        }
        """Who is not known to follow, and with what head it was fenced."""
        self._asked = 0

    def know(self, attached: set[Member], late: dict[Member, EntryId]) -> None:
        """From the election that has just ended: most of them follow, and some were fenced late (OX-9)."""
        for member in attached:
            self.missing.pop(member, None)
        for member, head in late.items():
            if member in self.missing:
                self.missing[member] = head

    def ask(self) -> None:
        self._asked += 1
        if self._asked <= LAZY_AFTER or self._asked % LAZY == 0:
            for member in self.missing:
                self._ask_for(member)

    def _ask_for(self, member: Member) -> None:
        head = self.missing[member]
        epoch = self._shard.epoch
        if head is None:
            self._operator.send(member, FenceRequest(epoch, self._shard.ensemble))
        else:
            self._operator.send(self._leader, AddFollowerRequest(epoch, member, head))

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is FenceResponse and sender in self.missing:
            self.missing[sender] = message.head
            self._ask_for(sender)
        elif type(message) is AddFollowerResponse and sender == self._leader:
            self.missing.pop(message.follower, None)
