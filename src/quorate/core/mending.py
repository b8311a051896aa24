"""What keepers of a log do for each other: who need not wait, how damage is mended, what is told of compaction.

Any copy will do for a repair, whoever leads; but it has to be of the same generation of compaction, as what is put
there has to fit. It waits its turn where the copy that asks does not count yet: a new one fills in most of its
log that way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Serving(NamedTuple):
    """What is being read for somebody who has lost it."""

    node: int
    message: WantEntries
    is_held: bool
    """The read waits its turn."""


class Mending:
    """A part of `Keeper`."""

    config: Any
    counted: tuple[Member, ...]
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
    _serving: dict[int, Serving]

    def emit(self, effect: Effect) -> None:
        raise NotImplementedError

    def read(self, *, first: int, last: int, bytes_max: int, paced_for: int = 0, mends: bool = False) -> int:
        raise NotImplementedError

    def send(self, to: int, message: Any, *, paced: bool = False) -> None:
        raise NotImplementedError

    def take_snapshot(self) -> None:
        raise NotImplementedError

    @property
    def installing(self) -> bool:
        raise NotImplementedError

    # --- who need not wait ---

    def holds_back(self, member: Member) -> bool:
        """Whether data for this copy waits its turn, so that clients do not starve (018).

        Nothing does for one that counts, however far it is behind: one of the ensemble, in this incarnation. What
        the metadata group says of that may be old, or not be heard yet: whom a role knows to count does so, too.
        """
        return bool(self.config.tuning.paced and member not in self.counted and not self.role.counts(member))

    def _counted(self, event: events.Counted) -> None:
        self.counted = event.members
        self.role.counted()

    # --- repair ---

    def want_entries(self, sender: Member, message: WantEntries) -> None:
        """Somebody has lost entries: whoever can, helps."""
        reason = why_not(self.log, message.span, message.generation)
        if reason:
            self.send(sender.node, HaveEntries(self.epoch, message.span, why_not=reason))
            return
        is_held = self.holds_back(sender)
        if self.config.tuning.paced and not self._may_serve(sender.node, message.span, is_held=is_held):
            return
        token = self.read(
            first=message.span.first_offset,
            last=message.span.last.offset,
            bytes_max=REPAIR_BYTES_MAX,
            paced_for=sender.node if is_held else 0,
            mends=True,
        )
        self._serving[token] = Serving(sender.node, message, is_held)

    def _may_serve(self, node: int, span: Span, *, is_held: bool) -> bool:
        """Whether this is not being read for that copy already, which asks again and again until it has it.

        One that counts by now does not wait for what was held up. Nobody wants what else was read for it any more.
        """
        served = [(token, serving) for token, serving in self._serving.items() if serving.node == node]
        for _, serving in served:
            if serving.message.span == span and (is_held or not serving.is_held):
                return False
        for token, _ in served:
            del self._serving[token]
        return True

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
