"""What a host is told to be, who may watch it, and the bytes that go along with a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from quorate import batch
from quorate.core import confirm, coordinated, effects, events, isr, raft
from quorate.core.entry import Flag, Header, Kind, Partition
from quorate.host.detector import DetectorSettings
from quorate.host.replicas import UNDOING, Hosted
from quorate.machine import CannotApply
from quorate.machine.markers import Marker
from quorate.machine.producers import Numbered
from quorate.machine.purpose import HOMES
from quorate.storage.disk import Buffer
from quorate.storage.frame import Frame
from quorate.storage.store import StoreSettings


class HostSettings(msgspec.Struct, frozen=True, gc=False):
    store: StoreSettings = StoreSettings()
    metadata: raft.Tuning = raft.Tuning()
    """For the metadata group: it is small, and what it says must be soon known again after a restart."""
    homes: raft.Tuning = raft.Tuning()
    """For the cluster's own topics: only machines read them, so their logs are cut behind snapshots."""
    raft: raft.Tuning = raft.Tuning()
    coordinated: coordinated.Tuning = coordinated.Tuning()
    isr: isr.Tuning = isr.Tuning()
    confirm: confirm.Tuning = confirm.Tuning()
    detector: DetectorSettings = DetectorSettings()
    waiting_bytes_max: int = 64 << 20
    """Proposals are answered BUSY while more than this waits for the disk, over all replicas."""

    def tuning(self, *, protocol: str, purpose: str) -> Any:
        """For a replica that agrees like that, of a log for that."""
        if purpose in HOMES:
            return self.homes
        return self.metadata if purpose == "metadata" else getattr(self, protocol)


class Observer(Protocol):
    """Somebody who watches: the simulator's invariants and story, a node's metrics."""

    def stepped(
        self, now: float, node: int, hosted: Hosted, event: events.Event, ordered: list[effects.Effect]
    ) -> None: ...

    def reported(self, now: float, node: int, partition: Partition, report: effects.Report) -> None: ...


class Context(msgspec.Struct, gc=False):
    """The bytes that a step is about."""

    frames: dict[int, Frame] = {}
    payloads: Sequence[Buffer] = ()
    chunk: bytes = b""
    numbered: Numbered | Marker | None = None
    """A proposal's place among those of its producer, if it has one."""
    flushed: Callable[[int], None] | None = None
    """Who hears, with the first offset, when a proposal is flushed here, whoever else has it (acks=1)."""


NOTHING = Context()


def same_entry(frame: Frame, header: Header) -> bool:
    """Whether these are the bytes of that entry."""
    found = frame.header
    return found.offset == header.offset and found.epoch == header.epoch and found.count == header.count


def headers_of(
    payloads: Sequence[Buffer], hosted: Hosted
) -> tuple[tuple[Header, ...], batch.BatchHeader | None]:
    """Proposed batches as the core sees them; and the one with a producer id, if there is one.

    Where there are asynchronous transactions, it is the machine that can tell them apart; elsewhere, everything
    that is written to a log whose records can be taken back waits for its quorum (TT-36). Raises CannotApply for
    what no copy of the machine could apply.
    """
    headers = []
    produced: batch.BatchHeader | None = None
    judge = hosted.judge
    for payload in payloads:
        parsed = batch.parse_batch_header(payload)
        flags = Flag.TRANSACTIONAL if parsed.attributes & batch.TRANSACTIONAL else 0
        if judge is not None and parsed.offsets_count != 1:
            raise CannotApply(f"a transaction is one record, not {parsed.offsets_count}")
        if (judge is None or judge.is_synchronous(payload)) and hosted.record.protocol == UNDOING:
            flags |= Flag.SYNCHRONOUS
        size = parsed.length + batch.LENGTH_EXCLUDES
        headers.append(Header(0, 0, parsed.last_offset_delta + 1, size, Kind.RECORDS, flags, parsed.crc))
        if parsed.producer_id >= 0:
            produced = parsed
    return tuple(headers), produced
