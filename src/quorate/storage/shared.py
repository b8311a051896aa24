"""What the parts of a store have in common: the disk, the logs, the two journals, and whether it still lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorate.core.entry import Partition, Span
from quorate.storage.disk import Disk, DiskFull, Operation
from quorate.storage.journal import Journal
from quorate.storage.log import Log
from quorate.storage.memory import Memory
from quorate.storage.records import Fault
from quorate.storage.settings import StoreSettings

LANE_JOURNAL = "journal"
LANE_EARLY = "early"
LANE_SEGMENTS = "segments"
LANE_MARKS = "marks"
LANE_SNAPSHOTS = "snapshots"
LANE_READ = "read"
LANE_CHECK = "check"


class Listener(Protocol):
    """Who gave the orders. Called from completions of the disk, never from inside of an order."""

    def persisted(self, partition: Partition, io: int) -> None:
        """Every order of this replica up to `io` is on the disk to stay."""

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        """Order `io` of this replica and all later ones are refused; its next order that counts is a cut."""

    def damaged(self, partition: Partition, span: Span) -> None:
        """A read or a check found bytes that are not what was written."""

    def fatal(self, reason: str) -> None:
        """A flush failed: nothing is acknowledged any more, and the process must end (rule 5)."""


class Shared:
    __slots__ = (
        "dead",
        "deleting",
        "disk",
        "faulted",
        "full",
        "journal",
        "lazy_bytes",
        "leaving",
        "listener",
        "logs",
        "marks",
        "memory",
        "now",
        "settings",
    )

    def __init__(self, disk: Disk, settings: StoreSettings, listener: Listener) -> None:
        self.disk = disk
        self.settings = settings
        self.listener = listener
        self.logs: dict[Partition, Log] = {}
        self.leaving: dict[Partition, Log] = {}
        """Partitions whose deletion is ordered, but not durable: they would be back after a crash."""
        self.deleting: dict[Partition, Log] = {}
        """Deleted partitions whose files are not all gone yet."""
        self.memory = Memory()
        self.journal = Journal("journal", settings.align_bytes)
        self.marks = Journal("marks", settings.align_bytes)
        self.lazy_bytes = 0
        """Entries that only the journal holds durably, in bytes."""
        self.full = False
        """The disk had no room when we last asked for some."""
        self.dead = False
        self.now = 0.0
        self.faulted: Callable[[Log, Fault], None] = lambda log, fault: None
        """Called when entries turn out to be unreadable: orders under way know the log as it was before."""

    def durable_logs(self) -> list[Log]:
        """The logs that a crash would leave: not those whose creation is still on its way."""
        logs = [log for log in self.logs.values() if log.durable_state[1]]
        return [*logs, *self.leaving.values()]

    def submit(
        self, lane: str, operations: Sequence[Operation], done: Callable[[DiskFull | None], None]
    ) -> None:
        """Do this, and call `done` unless the store has died. Anything but a lack of room is the end of it."""

        def completed(error: Exception | None, _: list[bytes]) -> None:
            if self.dead:
                return
            if error is None or isinstance(error, DiskFull):
                done(error)
            else:
                self.die(str(error))

        self.disk.submit(lane, operations, completed)

    def die(self, reason: str) -> None:
        if not self.dead:
            self.dead = True
            self.listener.fatal(reason)
