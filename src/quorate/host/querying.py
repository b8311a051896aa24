"""Reading what a machine has made of a log: at a level that the reader chooses.

`local` is what this replica has applied, settled or not. `committed`, the default, is what has been settled here so
far; whoever has written waits until that includes its own offset, and then asks what became of its transaction.
`linearizable` is everything that was settled anywhere when the read began: the leader is asked first (`Host.read`),
and then it is a committed read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.host.host import Host
from quorate.host.replicas import Hosted
from quorate.tables import BadRead, Level

Found = TypeVar("Found")


class Consistency(StrEnum):
    LOCAL = "local"
    COMMITTED = "committed"
    LINEARIZABLE = "linearizable"


def query(
    host: Host,
    now: float,
    partition: Partition,
    ask: Callable[[Any, Level], Found],
    answer: Callable[[Reply, Found | None], None],
    *,
    consistency: Consistency = Consistency.COMMITTED,
    offset: int = -1,
) -> None:
    """Let `ask` look at a machine at the right time; it changes nothing, and may raise BadRead.

    A committed look waits until `offset` is settled and applied here. The reply is SETTLED, with the offset up to
    which entries are seen, or says why nothing was found out.
    """
    hosted = host.hosted[partition]

    def look(reply: Reply) -> None:
        if reply.outcome is Outcome.SETTLED:
            answer(*_looked(hosted, ask, Level.COMMITTED))
        else:
            answer(reply, None)

    if consistency is Consistency.LINEARIZABLE:
        host.read(now, partition, ReadLevel.LINEARIZABLE, look)
    elif consistency is Consistency.COMMITTED and offset > hosted.applied.offset:
        host.read(now, partition, ReadLevel.AT_OFFSET, look, offset=offset)
    else:
        level = Level.LOCAL if consistency is Consistency.LOCAL else Level.COMMITTED
        answer(*_looked(hosted, ask, level))


def _looked(hosted: Hosted, ask: Callable[[Any, Level], Found], level: Level) -> tuple[Reply, Found | None]:
    leader = hosted.leader
    if hosted.gone or not hosted.started:
        return Reply(0, Outcome.BUSY, leader=leader, why="this replica is not there yet, or no more"), None
    if hosted.halted is not None:
        why = f"an entry could not be applied here: {hosted.halted}; ask another node"
        return Reply(0, Outcome.BUSY, leader=leader, why=why), None
    if hosted.applied.offset < hosted.replica.log.floor or hosted.restoring is not None:
        return Reply(0, Outcome.BUSY, leader=leader, why="its state is still being read"), None
    upto = hosted.appended if level is Level.LOCAL else hosted.applied
    try:
        found = ask(hosted.machine, level)
    except BadRead as error:
        return Reply(0, Outcome.REFUSED, leader=leader, why=str(error)), None
    return Reply(0, Outcome.SETTLED, upto.offset, upto.epoch, leader), found
