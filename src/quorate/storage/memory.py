"""What is kept in memory of all logs together: the newest frames, so that followers and readers cost no read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.storage.log import Log

MENTIONS_MIN = 4096


class Memory:
    """Frames of all logs that are kept in memory, oldest first, and how much they are."""

    __slots__ = ("bytes", "oldest", "tidy_at")

    def __init__(self) -> None:
        self.bytes = 0
        self.oldest: deque[Log] = deque()
        """One mention of its log per frame. Cuts leave mentions behind, which only blur the order."""
        self.tidy_at = MENTIONS_MIN

    def tidy(self, logs: Iterable[Log]) -> None:
        """Forget mentions of frames that are gone, lest they grow with every entry ever appended."""
        self.oldest = deque(log for log in logs for _ in log.tail_frames)
        self.tidy_at = 2 * len(self.oldest) + MENTIONS_MIN

    def shrink(self, bytes_max: int) -> None:
        """Let go of the oldest frames that can be read from their segments again."""
        while self.bytes > bytes_max and self.oldest:
            log = self.oldest[0]
            if log.tail_frames and not log.evict(1):
                return  # Not durable yet: what is younger is not, either.
            self.oldest.popleft()
