"""Failure detection from outside for controllers of `isr`: who is gone, and who does not lead though it should.

In half of all worlds there is nobody like that (`Oversight.watched`), and followers' reports must do.
"""

from __future__ import annotations

from typing import Any

from quorate.sim.watcher import Watcher


class IsrWatcher(Watcher):
    def _wrong(self, operator: int, shard: int) -> list[int]:
        stored: Any = self._store.newest(shard)
        if stored is None:
            return []
        wrong = [member.node for member in stored.replicas if self._is_gone(operator, member.node)]
        leader = stored.leader
        hosted = self._world.hosted(leader.node, shard)
        leads = hosted is not None and hosted.replica.me == leader and hosted.replica.role.name == "leader"
        if not leads and leader.node not in wrong:
            wrong.append(leader.node)
        return wrong
