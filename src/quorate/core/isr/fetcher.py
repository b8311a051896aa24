"""One follower as its leader sees it: its newest request, and since when it is behind.

**Lag is a matter of time** (LB-20). A follower is behind from the moment when there is something that it has not
flushed. While entries keep coming it may never have all of them. So when it asks, the end of the leader's log is
*marked*; once it has flushed up to there, it is behind only since the time of the mark, and the next end is marked.
The mark must stay until it is reached: a follower asks for more while the last is being flushed, so that what it
has flushed is always older than its last request. By this, one that follows at a constant distance seems to be up
to twice as far behind as it is.
"""

from __future__ import annotations

from quorate.core.entry import NOWHERE, EntryId, Member
from quorate.core.isr.messages import FetchRequest

BEATS_EAGER = 8
"""So many heartbeats wake a follower that rests and does not answer,"""
BEATS_LAZY = 8
"""and then one out of so many."""


class Fetcher:
    __slots__ = (
        "_beats",
        "_marked_at",
        "_marked_end",
        "ahead_count",
        "behind_since",
        "given",
        "has_kept_up",
        "is_held",
        "is_resting",
        "is_suspected",
        "is_waiting",
        "member",
        "reading",
        "request",
        "says_more",
    )

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.request: FetchRequest | None = None
        """The newest; None: it has not asked in this epoch."""
        self.behind_since: float | None = now
        self.has_kept_up = False
        """It has reached a mark: since when it is behind is more than a guess."""
        self.given: tuple[int, EntryId] = (0, NOWHERE)
        """(session, last entry) that it was sent last: it is not sent twice, unless it asks again."""
        self.ahead_count = 0
        """So many messages with entries it was sent that it has not asked behind yet."""
        self.says_more = False
        """Its newest request is not answered yet, and says something that the one before did not."""
        self.is_waiting = False
        """There was nothing to answer its newest request with: the next that there is, it is told at once."""
        self.is_resting = False
        """It was told to rest, and has not asked since."""
        self.is_suspected = False
        """It may be gone: let it show itself."""
        self.reading = 0
        """Headers that it needs are being read from disk, by this token."""
        self.is_held = False
        """They wait their turn."""
        self._beats = 0
        self._marked_at = now
        self._marked_end = -1
        """Where the leader's log ended then, when it asked; -1: it has not asked yet."""

    @property
    def node(self) -> int:
        return self.member.node

    @property
    def prev(self) -> EntryId:
        return self.request.prev if self.request is not None else NOWHERE

    @property
    def end(self) -> EntryId:
        """Where its log will end once everything has arrived that was sent."""
        session, last = self.given
        is_ahead = self.request is not None and session == self.request.session and last > self.prev
        return last if is_ahead else self.prev

    @property
    def next(self) -> int:
        return self.end.offset + 1

    @property
    def flushed(self) -> int:
        return self.request.flushed if self.request is not None else -1

    @property
    def is_whole(self) -> bool:
        """It has asked, and has lost nothing to damage."""
        return self.request is not None and self.request.faulty is None and self.request.wants_snapshot < 0

    def asked(self, request: FetchRequest, *, end: int, now: float) -> bool:
        """A request came, and the leader's log ends at `end`. False if it is older than one that came before."""
        last = self.request
        if last is not None and (last.session, last.number) >= (request.session, request.number):
            return False
        self.says_more = last is None or _says(last) != _says(request)
        self.request = request
        if last is None or not self.says_more or request.prev < last.prev:
            self.forget_given()
        self.ahead_count = max(self.ahead_count - 1, 1) if self.end != request.prev else 0
        self.is_waiting = self.is_resting = self.is_suspected = False
        self._beats = 0
        # Without its snapshot it has not everything, whatever its log says.
        flushed = request.flushed if request.wants_snapshot < 0 else -1
        has_reached_mark = 0 <= self._marked_end <= flushed
        if flushed >= end:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now
        elif has_reached_mark:
            self.behind_since = max(self.behind_since, self._marked_at)
        if has_reached_mark or self._marked_end < 0:
            self._marked_at, self._marked_end = now, end
        self.has_kept_up = self.has_kept_up or has_reached_mark
        return True

    def forget_given(self) -> None:
        """It may have been lost."""
        self.given, self.ahead_count = (0, NOWHERE), 0

    def appended(self, now: float) -> None:
        if self.behind_since is None:
            self.behind_since = now

    def suspected(self, now: float) -> None:
        self.is_suspected = True
        self._beats = 0
        self.appended(now)

    def ended(self) -> None:
        """As if it had been behind for ever; it is not, once it has asked for more and has it."""
        self.behind_since = float("-inf")

    def lags(self, now: float, lag_s: float) -> bool:
        return self.behind_since is not None and now - self.behind_since >= lag_s

    def is_coming(self, now: float, lag_s: float) -> bool:
        """It keeps up, wherever it has been before: whoever is not in sync and does, is about to be."""
        return self.has_kept_up and self.is_whole and not self.lags(now, lag_s)

    def is_due(self) -> bool:
        """Whether this heartbeat is for it, too: one that does not answer is tried less often."""
        self._beats += 1
        return self._beats <= BEATS_EAGER or self._beats % BEATS_LAZY == 0


def _says(request: FetchRequest) -> tuple[int, EntryId, int, int]:
    return request.session, request.prev, request.flushed, request.commit
