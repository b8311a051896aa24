"""A node gets a snapshot: it was told the manifest, and fetches the chunks from whoever holds it, one at a time.

A chunk that does not come is asked for again; what was kept is not asked for twice. It outlives neither a change of
epoch nor a restart: whoever wanted it asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects
from quorate.core.coordinated.messages import (
    ChunkGone,
    ChunkRequest,
    ChunkResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorate.core.entry import Member, Snapshot
from quorate.core.staging import Staging

if TYPE_CHECKING:
    from quorate.core.coordinated.replica import Replica


class Fetching:
    __slots__ = ("_asker", "_replica", "_source", "deadline")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._asker = 0
        """Who wants to hear that it is here; 0: nothing is being fetched."""
        self._source = 0
        self.deadline: float | None = None

    def order(self, asker: Member, message: SnapshotRequest) -> None:
        replica = self._replica
        snapshot = message.snapshot
        if replica.installing:
            if replica.staging is not None and replica.staging.snapshot == snapshot:
                self._asker = asker.node
            return
        if not self._needs(snapshot):
            self._asker = asker.node
            self._answer(installed=True)
            return
        if (
            replica.staging is None
            or replica.staging.snapshot != snapshot
            or self._source != message.source.node
        ):
            replica.staging = Staging(snapshot)
        elif self._asker == asker.node and self.deadline is not None:
            return  # It is under way.
        self._asker, self._source = asker.node, message.source.node
        self._ask(replica.staging)

    def _needs(self, snapshot: Snapshot) -> bool:
        """Whether it is more than what is settled here, or would mend damage."""
        replica = self._replica
        if snapshot.last.offset < replica.log.base.offset:
            return False
        if snapshot.last.offset > replica.commit or replica.lacks_snapshot:
            return True
        faulty = replica.log.faulty
        return bool(faulty) and faulty[0].before.offset < snapshot.last.offset

    def _ask(self, staging: Staging) -> None:
        replica = self._replica
        if staging.io > replica.ordering.persisted:
            return  # The next one is asked for when this one is kept.
        self.deadline = replica.now + replica.config.tuning.heartbeat_s
        replica.send(self._source, ChunkRequest(replica.epoch, staging.snapshot, staging.at))

    def chunk(self, sender: Member, message: ChunkResponse) -> None:
        replica = self._replica
        staging = replica.staging
        if staging is None or replica.installing or sender.node != self._source:
            return
        if staging.snapshot != message.snapshot or staging.at != message.at:
            return
        staging.io = replica.ordering.issue()
        replica.emit(effects.StageChunk(staging.io, message.at))
        staging.at += message.length
        self.deadline = None
        if staging.at == message.snapshot.size:
            self._install(staging)

    def _install(self, staging: Staging) -> None:
        replica = self._replica
        last = staging.snapshot.last
        if not self._needs(staging.snapshot):  # Entries have overtaken it.
            replica.staging = None
            self._answer(installed=True)
            return
        if last.offset < replica.commit and not replica.log.holds(last):
            replica.staging = None  # It ends inside of what is damaged here: only a later one mends that.
            self._answer(installed=False)
            return
        replica.install(staging)

    def persisted(self) -> None:
        staging = self._replica.staging
        if staging is None or self._replica.installing or not staging.io:
            return
        if staging.io <= self._replica.ordering.persisted:
            staging.io = 0
            self._ask(staging)

    def installed(self) -> None:
        self._answer(installed=True)

    def gone(self, sender: Member, message: ChunkGone) -> None:
        """The source has another one by now."""
        staging = self._replica.staging
        if staging is None or self._replica.installing or sender.node != self._source:
            return
        if staging.snapshot == message.snapshot:
            self._replica.staging = None
            self._answer(installed=False)

    def _answer(self, *, installed: bool) -> None:
        replica = self._replica
        self.deadline = None
        asker, self._asker = self._asker, 0
        if asker:
            response = SnapshotResponse(replica.epoch, replica.log.head, installed)
            replica.send_when_durable(asker, response)

    def woke(self) -> None:
        staging = self._replica.staging
        if self.deadline is not None and self._replica.now >= self.deadline:
            self.deadline = None
            if staging is not None and not self._replica.installing:
                self._ask(staging)

    def forget(self) -> None:
        """Another epoch, or a disk that is full. What is already being installed goes on."""
        if not self._replica.installing:
            self._replica.staging = None
        self._asker = 0
        self.deadline = None
