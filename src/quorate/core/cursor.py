"""One follower as its leader sees it.

A cursor *searches* for the last position that both logs share, then *streams* entries behind it, several
messages ahead of the answers; it *receives a snapshot* where the entries it needs are gone. What is in
flight is bounded, so a slow follower costs the leader nothing but its own turn.

The search (OR-11 to OR-15) keeps a span: `matched` is known to be shared, `end` is known not to be. Every
refusal carries the follower's own last position at or below the probe; with the leader's epoch index that
usually names the shared position at once. Where it does not, the next probe is the middle of the span, so
that a search never takes more than log2(n) probes and a few.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from quorate.core.entry import EntryId, Header, Member, Snapshot, Span
from quorate.core.log import LogView

BEATS_EAGER = 8
"""So many heartbeats go out to a follower that is silent,"""
BEATS_LAZY = 8
"""and then one out of so many."""


class Phase(StrEnum):
    SEARCHING = "searching"
    STREAMING = "streaming"
    SNAPSHOT = "snapshot"


class Cursor:
    __slots__ = (
        "_hinted",
        "_inflight",
        "agreed",
        "beats",
        "commit",
        "contradicted",
        "end",
        "incarnation",
        "inflight_bytes",
        "is_held",
        "last_heard",
        "loose",
        "matched",
        "next",
        "node",
        "phase",
        "priority",
        "probe",
        "quiet",
        "reading",
        "snapshot",
        "snapshot_at",
    )

    def __init__(self, node: int, incarnation: int, log: LogView, now: float) -> None:
        self.node = node
        self.incarnation = incarnation
        self.last_heard = now
        self.beats = 0
        """Heartbeats since it was last heard of."""
        self.priority = 1
        self.loose = False
        """It follows, and does not count for now (`confirm`, D9)."""
        self.search_anew(log)

    def search_anew(self, log: LogView) -> None:
        """Nothing is known of the follower: [none, last + 1]. The first probe is our own last position."""
        self.phase = Phase.SEARCHING
        self.matched = -1
        """The highest offset that the follower has flushed and that agrees with our log."""
        self.agreed = -1
        """The highest offset at which both logs are known to agree, flushed or not."""
        self.end = log.head.offset + 1
        """The lowest offset known not to be shared."""
        self.probe = log.head.offset
        self._hinted = False
        self.next = log.head.offset + 1
        self.commit = -1
        self.contradicted: Span | None = None
        """What the follower lost, our log does not have, and it was told so since the last heartbeat."""
        self.quiet = False
        self.reading = 0
        self.is_held = False
        """What is being read for it waits its turn."""
        self.snapshot_at = 0
        self.snapshot: Snapshot | None = None
        self._inflight: deque[tuple[int, int]] = deque()
        self.inflight_bytes = 0

    @property
    def member(self) -> Member:
        return Member(self.node, self.incarnation)

    def heard(self, now: float) -> None:
        self.last_heard = now
        self.beats = 0

    def is_due(self) -> bool:
        """Whether this heartbeat is for it, too: one that does not answer is tried less often."""
        self.beats += 1
        return self.beats <= BEATS_EAGER or self.beats % BEATS_LAZY == 0

    def __str__(self) -> str:
        return f"n{self.node} {self.phase} matched {self.matched} next {self.next}"

    # --- searching ---

    def refused(self, log: LogView, *, probe: int, theirs: EntryId) -> bool:
        """The follower does not hold our position at `probe`; its own last one at or below is `theirs`.

        False where the refusal is old news.
        """
        if self.phase is Phase.SNAPSHOT or probe < self.matched:
            return False
        if self.phase is Phase.SEARCHING and probe != self.probe:
            return False
        if probe == self.matched:  # What it had flushed was damaged, and given up: see `Replica.give_up`.
            self.matched = self.agreed = -1
        if self.phase is Phase.STREAMING:  # A message was lost or overtaken: search between flushed and sent.
            self.phase = Phase.SEARCHING
            self.agreed = self.matched
            self._hinted = False
        if probe <= self.agreed:  # It has lost what it had not flushed (its disk is full): only that counts.
            self.agreed = self.matched
        shared = log.epochs.last_shared(theirs, log.head)
        self.end = max(min(probe, shared.offset + 1), self.agreed + 1)
        # The epoch index names the likely position. If that was wrong once, halve what is left (OR-12).
        self.probe = (self.agreed + self.end) // 2 if self._hinted else self.end - 1
        self._hinted = not self._hinted
        self._forget_inflight()
        return True

    def accepted(self, log: LogView, *, probe: int, matched: int) -> bool:
        """The follower holds our position at `probe` and has flushed up to `matched`. True if it was news."""
        assert matched <= log.head.offset
        news = matched > self.matched
        self.matched = max(self.matched, matched)
        if self.phase is Phase.SEARCHING:
            agreed = max(self.agreed, probe, self.matched)
            news = news or agreed > self.agreed
            self.agreed = agreed
            self.end = max(self.end, agreed + 1)
            if agreed + 1 == self.end:  # The bounds meet (OR-15).
                self.phase = Phase.STREAMING
                self.next = agreed + 1
                news = True
            else:
                self.probe = (agreed + self.end) // 2
        elif self.phase is Phase.SNAPSHOT:
            assert self.snapshot is not None
            if self.matched >= self.snapshot.last.offset:
                self.phase = Phase.STREAMING
                self.next = self.matched + 1
                news = True
        if self.phase is Phase.STREAMING:
            self.agreed = max(self.agreed, self.matched)
            self.next = max(self.next, self.matched + 1)
            while self._inflight and self._inflight[0][0] <= self.matched:
                self.inflight_bytes -= self._inflight.popleft()[1]
        return news

    # --- streaming ---

    def attach(self, at: int) -> None:
        """Both logs are known to agree up to `at`: stream from there on."""
        self.phase = Phase.STREAMING
        self.agreed = max(at, self.matched)
        self.next = at + 1
        self._forget_inflight()

    def sent(self, headers: tuple[Header, ...]) -> None:
        size = 0
        for header in headers:
            size += header.size
        last = headers[-1].last
        self._inflight.append((last, size))
        self.inflight_bytes += size
        self.next = last + 1

    def has_room(self, *, bytes_max: int, messages_max: int) -> bool:
        return self.inflight_bytes < bytes_max and len(self._inflight) < messages_max

    def _forget_inflight(self) -> None:
        self._inflight.clear()
        self.inflight_bytes = 0
        self.reading = 0

    # --- snapshot ---

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        self.phase = Phase.SNAPSHOT
        self.snapshot = snapshot
        self.snapshot_at = 0
        self._forget_inflight()
