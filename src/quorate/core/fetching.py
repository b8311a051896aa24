"""A replica gets a snapshot: it was told the manifest, and fetches the chunks from whoever holds it, one at a time.

A chunk that does not come is asked for again; what was kept is not asked for twice. With another epoch it pauses,
and goes on where it was once the same snapshot of the same node is wanted again: otherwise, with epochs that are
shorter than it takes to fetch a large one, nobody would ever have it. It does not outlive a restart.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.core import effects
from quorate.core.carrying import CarriesChunk
from quorate.core.entry import Member, Snapshot
from quorate.core.staging import Staging


class ChunkRequest(msgspec.Struct, frozen=True, gc=False, tag="chunk?"):
    """A node that is to have a snapshot to the one that holds it: the next piece, from byte `at` on."""

    epoch: int
    snapshot: Snapshot
    at: int


class ChunkResponse(CarriesChunk, frozen=True, gc=False, tag="chunk"):
    """The piece."""


class ChunkGone(msgspec.Struct, frozen=True, gc=False, tag="chunk gone"):
    """This snapshot is no longer kept."""

    epoch: int
    snapshot: Snapshot


class Fetching:
    __slots__ = ("_asker", "_paused", "_replica", "_source", "deadline")

    def __init__(self, replica: Any) -> None:
        """`replica.fetched(asker, installed)` hears what came of it."""
        self._replica = replica
        self._asker = 0
        """Who wants to hear that it is here; 0: nothing is being fetched."""
        self._source = 0
        self._paused: Staging | None = None
        """What came of `_source` in an earlier epoch, and nobody has wanted since."""
        self.deadline: float | None = None

    # --- the holder's side ---

    def serve(self, sender: Member, message: ChunkRequest) -> None:
        """Somebody fetches a snapshot from here, a piece at a time."""
        replica = self._replica
        if replica.snapshot != message.snapshot:
            replica.send(sender.node, ChunkGone(replica.epoch, message.snapshot))
            return
        length = min(replica.config.tuning.chunk_bytes, message.snapshot.size - message.at)
        if length > 0:
            piece = ChunkResponse(replica.epoch, message.snapshot, message.at, length)
            replica.send(sender.node, piece, paced=replica.holds_back(sender))

    # --- the receiver's side ---

    def order(self, *, asker: int, source: int, snapshot: Snapshot) -> None:
        replica = self._replica
        if replica.installing:
            if replica.staging is not None and replica.staging.snapshot == snapshot:
                self._asker = asker
            return
        if not self._needs(snapshot):
            self._asker = asker
            self._answer(installed=True)
            return
        if replica.staging is None or replica.staging.snapshot != snapshot or self._source != source:
            replica.staging = self._resumed(source, snapshot)
        elif self._asker == asker and self.deadline is not None:
            return  # It is under way.
        self._asker, self._source = asker, source
        self._ask(replica.staging)

    def _resumed(self, source: int, snapshot: Snapshot) -> Staging:
        paused, self._paused = self._paused, None
        if paused is not None and paused.snapshot == snapshot and self._source == source:
            return paused
        return Staging(snapshot)

    def _needs(self, snapshot: Snapshot) -> bool:
        """Whether it is more than what is settled here, or would mend damage."""
        replica = self._replica
        if snapshot.last.offset < replica.log.floor:
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
        self.deadline = None
        asker, self._asker = self._asker, 0
        if asker:
            self._replica.fetched(asker, installed)

    def woke(self) -> None:
        staging = self._replica.staging
        if self.deadline is not None and self._replica.now >= self.deadline:
            self.deadline = None
            if staging is not None and not self._replica.installing:
                self._ask(staging)

    def pause(self) -> None:
        """Another epoch: nobody wants it any more, until somebody does again. What is being installed goes on."""
        replica = self._replica
        if replica.staging is not None and not replica.installing:
            self._paused, replica.staging = replica.staging, None
        self._asker = 0
        self.deadline = None

    def forget(self) -> None:
        """The disk is full: who knows what it has kept."""
        self.pause()
        self._paused = None
