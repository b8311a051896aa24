"""The operator in the steady state: whoever of the ensemble does not follow is gathered, and the leader watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.coordinated.gathering import Gathering
from quorate.core.coordinated.shard import Shard
from quorate.core.entry import Member

if TYPE_CHECKING:
    from quorate.core.coordinated.operator import Operator


class Tending:
    def __init__(self, operator: Operator) -> None:
        assert operator.shard is not None
        self._operator = operator
        self._shard: Shard = operator.shard
        self.gathering = Gathering(operator, operator.shard)

    def begin(self) -> None:
        if self._shard.reconfiguration is not None:
            # A leader that is to go, and nobody else could lead: try again in a while.
            self._operator.give_up_after(4 * self._operator.tuning.patience_s)
        self._operator.retry_after(0.0)

    def retry(self) -> bool:
        self.gathering.ask()
        return bool(self.gathering.missing)

    def receive(self, sender: Member, message: Any) -> None:
        self.gathering.receive(sender, message)

    def suspected(self, node: int) -> None:
        leader = self._shard.leader
        assert leader is not None
        if node == leader.node:
            # Perhaps it is only cut off from the others, and has the highest head.
            self._operator.elect(avoid=leader)

    def gave_up(self) -> None:
        self._operator.elect()
