"""What keepers of a log do for each other's damage, and what they are told of compaction.

Any copy will do for a repair, whoever leads; but it has to be of the same generation of compaction, as what is put
there has to fit.
"""

from __future__ import annotations

from typing import Any

from quorate.core import effects, events
from quorate.core.effects import Effect
from quorate.core.entry import Header, Member, Snapshot, Span
from quorate.core.log import LogView
from quorate.core.ordering import Ordering
from quorate.core.repairing import (
    REMOVED,
    REPAIR_BYTES_MAX,
    HaveEntries,
    Repairing,
    WantEntries,
    why_not,
)


class Mending:
    """A part of `Keeper`."""

    config: Any
    epoch: int
    log: LogView
    me: Member
    ordering: Ordering
    published: int
    repairing: Repairing
    role: Any
    snapshot: Snapshot | None
    _agreed: int
    _repairs: list[tuple[int, tuple[Header, ...]]]
    _serving: dict[int, tuple[int, WantEntries]]

    def emit(self, effect: Effect) -> None:
        raise NotImplementedError

    def read(self, *, first: int, last: int, bytes_max: int, paced: bool = False) -> int:
        raise NotImplementedError

    def send(self, to: int, message: Any) -> None:
        raise NotImplementedError

    def take_snapshot(self) -> None:
        raise NotImplementedError

    @property
    def installing(self) -> bool:
        raise NotImplementedError

    # --- repair ---

    def want_entries(self, sender: Member, message: WantEntries) -> None:
        """Somebody has lost entries: whoever can, helps."""
        reason = why_not(self.log, message.span, message.generation)
        if reason:
            self.send(sender.node, HaveEntries(self.epoch, message.span, why_not=reason))
            return
        span = message.span
        if self.config.tuning.paced and (sender.node, span) in self._served():
            return  # It waits its turn, and who asks again is not served twice.
        token = self.read(
            first=span.first_offset,
            last=span.last.offset,
            bytes_max=REPAIR_BYTES_MAX,
            paced=self.config.tuning.paced,
        )
        self._serving[token] = (sender.node, message)

    def _served(self) -> list[tuple[int, Span]]:
        return [(node, message.span) for node, message in self._serving.values()]

    def have_entries(self, sender: Member, message: HaveEntries) -> None:
        if message.why_not:
            if self.repairing.answered(self.log, peer=sender.node, span=message.span, reason=message.why_not):
                self.emit(effects.Report("every copy of these entries is damaged", message.span, self.me))
            if message.why_not == REMOVED:
                self.role.beyond_repair()
            return
        self.repair(self.repairing.usable(self.log, message.span, message.headers))

    def repair(self, headers: tuple[Header, ...]) -> None:
        if headers and not self._repairs:  # One at a time: the span moves when it is durable.
            io = self.ordering.issue()
            self._repairs.append((io, headers))
            self.emit(effects.Repair(io, headers))

    # --- compaction ---

    def _compaction_wanted(self, event: events.CompactionWanted) -> None:
        """Told again and again until it is done."""
        covered = self.snapshot.last.offset if self.snapshot is not None else -1
        if covered < event.upto <= self.published and not self.installing:
            self.take_snapshot()

    def _compaction_agreed(self, event: events.CompactionAgreed) -> None:
        self._agreed = max(self._agreed, event.upto)

    def _compacted(self, event: events.Compacted) -> None:
        self._agreed = max(self._agreed, event.upto)
        self.log.compact(event.upto, rewritten=event.rewritten)

    def _compaction_undone(self, event: events.CompactionUndone) -> None:
        self.log.compacted = event.upto
