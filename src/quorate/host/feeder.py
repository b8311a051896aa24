"""Feeding machines: settled entries in order, snapshots out, snapshots in.

In the steady state everything is still in the store's memory. A machine that is behind (after a restart, or
behind a repair) is fed from the disk, one bounded read at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from quorate.core import events
from quorate.core.entry import Snapshot
from quorate.host.replicas import Hosted
from quorate.storage.frame import Frame
from quorate.storage.store import Store

FEED_BYTES_MAX = 1 << 20
LONG_AGO = float("-inf")
"""Instead of the time: what was applied is looked at, not who has waited too long."""


class Feeder:
    """Gives every hosted machine what is settled."""

    def __init__(self, store: Store, settled: Callable[[Hosted], None]) -> None:
        """`settled` is called when a machine that was behind has caught up by something."""
        self._store = store
        self._settled = settled

    def feed(self, hosted: Hosted) -> None:
        """Settle what can be settled now; where it must be read first, go on after that."""
        if hosted.gone:
            return
        log = hosted.replica.log
        while hosted.applied.offset < hosted.commit and not hosted.feeding and hosted.restoring is None:
            first = hosted.applied.offset + 1
            if first <= log.base.offset or (log.faulty and log.span_at(first) is not None):
                return  # A snapshot or a repair will bring it.
            frames = self._store.frames(hosted.partition, first, hosted.commit, FEED_BYTES_MAX)
            if frames is None:
                hosted.feeding = True
                done = self._when_read(hosted, first)
                self._store.read(hosted.partition, first, hosted.commit, FEED_BYTES_MAX, done)
                return
            if not _settle(hosted, frames):
                return
            hosted.answer_readers(LONG_AGO)

    def _when_read(self, hosted: Hosted, first: int) -> Callable[[list[Frame]], None]:
        def done(frames: list[Frame]) -> None:
            hosted.feeding = False
            restored = hosted.applied.offset + 1 != first  # A snapshot took their place meanwhile.
            if restored or _settle(hosted, frames):
                hosted.answer_readers(LONG_AGO)
                self.feed(hosted)
                self._settled(hosted)

        return done

    def take_snapshot(self, hosted: Hosted, done: Callable[[events.Event], None]) -> None:
        """Save the machine as it is now; the answer is an event for the replica."""
        behind = hosted.applied.offset < max(0, hosted.replica.log.base.offset)
        if behind or hosted.restoring is not None:
            done(events.SnapshotFailed("there is nothing new to take one of"))
            return
        data = hosted.manifest()
        snapshot = hosted.snapshot_of(len(data))

        def saved(error: Exception | None) -> None:
            if error is None:
                done(events.SnapshotTaken(snapshot))
            else:
                done(events.SnapshotFailed(str(error)))

        self._store.save_snapshot(hosted.partition, snapshot.last, snapshot.checksum, data, saved)

    def restore(self, hosted: Hosted, snapshot: Snapshot, lost: Callable[[], None]) -> None:
        """The installed snapshot is durable: let the machine be what it says."""

        def done(data: bytes) -> None:
            if hosted.gone or hosted.restoring is None or hosted.restoring[1] != snapshot:
                return
            hosted.restoring = None
            if len(data) != snapshot.size:
                lost()
                return
            if snapshot.last.offset > hosted.applied.offset:
                hosted.restore(data)
                hosted.answer_readers(LONG_AGO)
            self.feed(hosted)
            self._settled(hosted)

        self._store.read_snapshot(hosted.partition, 0, snapshot.size, done)


def _settle(hosted: Hosted, frames: list[Frame]) -> bool:
    progress = False
    for frame in frames:
        if frame.header.last > hosted.commit or frame.header.offset != hosted.applied.offset + 1:
            break
        hosted.tally.settle(frame.header, frame.checksum, frame.payload)
        hosted.machine.settle(frame.header, frame.checksum, frame.payload)
        hosted.applied, hosted.applied_checksum = frame.header.id, frame.checksum
        if frame.header.control is not None:
            hosted.standing = hosted.standing.after(frame.header.control)
        progress = True
    return progress
