"""Snapshots of machines: out to the disk and to peers, and in again.

A machine that can (`InPieces`) is written piece by piece: the next piece is made when the one before is written, so
that nobody waits for more than one. It is the state of the moment in which it was begun, and is given up
when another state takes the machine's place meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec

from quorate.core import effects, events
from quorate.core.entry import Snapshot
from quorate.host import manifest as manifests
from quorate.host.feeder import LONG_AGO, Feeder
from quorate.host.replicas import Hosted
from quorate.machine import InPieces
from quorate.storage.store import Store

Tell = Callable[[Hosted, events.Event], None]


class Snapshots:
    """Takes and restores the snapshots of all hosted machines."""

    def __init__(self, store: Store, feeder: Feeder, settled: Callable[[Hosted], None], tell: Tell) -> None:
        self._store = store
        self._feeder = feeder
        self._settled = settled
        self._tell = tell

    # --- out ---

    def take(self, hosted: Hosted) -> None:
        """Save the machine's settled state; the answer is an event for the replica."""
        why_not = _why_not(hosted)
        if why_not:
            self._tell(hosted, events.SnapshotFailed(why_not))
        elif isinstance(hosted.machine, InPieces):
            hosted.taking = taking = Taking(hosted, self._store, hosted.machine.snapshot_pieces(), self._tell)
            taking.go_on(None)
        else:
            self._take_at_once(hosted)

    def _take_at_once(self, hosted: Hosted) -> None:
        whole = msgspec.structs.replace(hosted.manifest(), machine=hosted.machine.snapshot())
        data = manifests.encode_manifest(whole)
        snapshot = hosted.snapshot_of(len(data))

        def saved(error: Exception | None) -> None:
            self._tell(hosted, _what_became(snapshot, error))

        self._store.save_snapshot(hosted.partition, snapshot.last, snapshot.checksum, data, saved)

    def is_whole(self, hosted: Hosted, snapshot: Snapshot, data: bytes | None, length: int) -> bool:
        """Whether what was read is of the replica's newest snapshot, and all that was asked for.

        None: the store has another one by now, of which the replica will hear.
        """
        if data is None or hosted.gone or hosted.replica.snapshot != snapshot:
            return False
        if len(data) != length:
            self._tell(hosted, events.SnapshotLost())
        return len(data) == length

    def check(self, hosted: Hosted) -> None:
        """Read all of it, and have it replaced if that is not what was written."""
        snapshot = hosted.replica.snapshot
        if snapshot is None:
            return

        def read(data: bytes | None) -> None:
            self.is_whole(hosted, snapshot, data, snapshot.size)

        self._store.read_snapshot(hosted.partition, snapshot, 0, snapshot.size, read)

    # --- in ---

    def install(self, hosted: Hosted, effect: effects.InstallSnapshot) -> None:
        """The log is to start behind a snapshot. Until that is durable nobody knows what the log is."""
        hosted.take_back(hosted.applied)
        hosted.installing = (effect.io, effect.snapshot)
        start = None if effect.start is None else (effect.start, effect.start_checksum)
        self._store.install_snapshot(
            hosted.partition,
            effect.io,
            effect.snapshot,
            keep=effect.keep,
            start=start,
            compacted=effect.compacted,
        )

    def persisted(self, hosted: Hosted, io: int) -> None:
        if hosted.installing is not None and hosted.installing[0] <= io:
            hosted.restoring = hosted.installing[1]
            hosted.installing = None
            self._restore(hosted, hosted.restoring)

    def failed(self, hosted: Hosted, io: int) -> None:
        """One that was ordered before is durable, and is still being read (seed 316)."""
        if hosted.installing is not None and hosted.installing[0] >= io:
            hosted.installing = None

    def _restore(self, hosted: Hosted, snapshot: Snapshot) -> None:
        """Let the machine be what the installed snapshot says."""

        def done(data: bytes | None) -> None:
            if hosted.gone or hosted.restoring is not snapshot:
                return
            hosted.restoring = None
            if data is not None and len(data) == snapshot.size:
                self._become(hosted, snapshot, data)
            elif data is not None or hosted.applied.offset < snapshot.last.offset:
                self._tell(hosted, events.SnapshotLost())
                return
            self._feeder.feed(hosted)
            self._settled(hosted)

        self._store.read_snapshot(hosted.partition, snapshot, 0, snapshot.size, done)

    def _become(self, hosted: Hosted, snapshot: Snapshot, data: bytes) -> None:
        if snapshot.last.offset <= hosted.applied.offset and hosted.halted is None:
            return  # It mends the log, or stands in for another that was lost: the machine has more.
        if hosted.taking is not None:
            hosted.taking.abort("another state took the machine's place")
        hosted.restore(data)
        hosted.answer_readers(LONG_AGO)


class Taking:
    """One snapshot, piece by piece."""

    def __init__(self, hosted: Hosted, store: Store, pieces: Generator[bytes], tell: Tell) -> None:
        self._hosted = hosted
        self._pieces = pieces
        self._tell = tell
        self._manifest = hosted.manifest()
        self._bytes_count = 0
        self._is_over = False
        head = manifests.head(self._manifest, 0)
        self._saving = store.begin_snapshot(hosted.partition, len(head))

    def go_on(self, error: Exception | None) -> None:
        """The piece before is written, or cannot be."""
        if self._is_over:
            return
        if error is not None:
            self.abort(str(error))
            return
        piece = next(self._pieces, None)
        if piece is not None and self._bytes_count + len(piece) > manifests.MACHINE_BYTES_MAX:
            self.abort("the machine's state is too large for a snapshot")
        elif piece is not None:
            self._bytes_count += len(piece)
            self._saving.add(piece, self.go_on)
        else:
            self._finish()

    def _finish(self) -> None:
        manifest = self._manifest
        head, tail = manifests.head(manifest, self._bytes_count), manifests.tail(manifest)
        size = len(head) + self._bytes_count + len(tail)
        snapshot = Snapshot(manifest.last, manifest.checksum, size, manifest.standing)

        def saved(error: Exception | None) -> None:
            if not self._is_over:
                self._end()
                self._tell(self._hosted, _what_became(snapshot, error))

        self._saving.finish(manifest.last, manifest.checksum, head, tail, saved)

    def abort(self, why: str) -> None:
        """It is not needed, or not possible: the file goes, and the machine keeps nothing for it any more."""
        self._end()
        self._saving.abort()
        self._tell(self._hosted, events.SnapshotFailed(why))

    def _end(self) -> None:
        self._is_over = True
        self._hosted.taking = None
        self._pieces.close()


def _why_not(hosted: Hosted) -> str:
    """Why no snapshot can be taken now; empty if it can."""
    if hosted.halted is not None:
        return f"the machine is stuck: {hosted.halted}"
    if hosted.applied.offset < max(0, hosted.replica.log.floor) or not hosted.is_open:
        return "there is nothing new to take one of"
    newest = hosted.replica.snapshot
    if newest is not None and newest.last.offset >= hosted.applied.offset:
        # Another of the same state may be of another length, and peers are told of the one that there is.
        return "there is one of this state"
    return "" if hosted.is_settled_for_good() else "what is settled here ends in the middle of a rollback"


def _what_became(snapshot: Snapshot, error: Exception | None) -> events.Event:
    return events.SnapshotTaken(snapshot) if error is None else events.SnapshotFailed(str(error))
