"""Which epoch wrote which offsets: all that is needed to compare two logs.

Within an epoch one leader decides every entry boundary, so two logs that hold the same epoch at the same
offset hold the same entries up to there (log matching, YB-6). An index of (epoch, first offset) therefore
answers every question about agreement without a header in memory and without touching the disk.
"""

from __future__ import annotations

from bisect import bisect_right

from quorate.core.entry import EntryId


class EpochIndex:
    """Ascending epochs with the first offset of each, above a base entry."""

    __slots__ = ("_epochs", "_firsts", "base")

    def __init__(self, base: EntryId, starts: tuple[tuple[int, int], ...] = ()) -> None:
        self.base = base
        self._epochs = [epoch for epoch, _ in starts]
        self._firsts = [first for _, first in starts]
        assert self._epochs == sorted(set(self._epochs))
        assert self._firsts == sorted(set(self._firsts))

    def starts(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._epochs, self._firsts, strict=True))

    def at(self, offset: int) -> int:
        """The epoch of the entry that covers `offset`; the caller knows that it is between base and head."""
        assert offset >= self.base.offset
        place = bisect_right(self._firsts, offset)
        return self._epochs[place - 1] if place else self.base.epoch

    def append(self, epoch: int, offset: int) -> None:
        """An entry of `epoch` now stands at `offset`, the end of the log."""
        last_epoch = self._epochs[-1] if self._epochs else self.base.epoch
        assert epoch >= last_epoch, "epochs never fall along a log (YB-17)"
        if epoch > last_epoch:
            assert not self._firsts or offset > self._firsts[-1]
            self._epochs.append(epoch)
            self._firsts.append(offset)

    def insert(self, epoch: int, offset: int) -> None:
        """A repaired entry of `epoch` stands at `offset`, somewhere in the log."""
        place = bisect_right(self._firsts, offset)
        if (self._epochs[place - 1] if place else self.base.epoch) == epoch:
            return
        if place < len(self._epochs) and self._epochs[place] == epoch:
            self._firsts[place] = offset  # The epoch began inside the stretch that was unreadable.
            return
        self._epochs.insert(place, epoch)
        self._firsts.insert(place, offset)

    def cut(self, offset: int) -> None:
        """Forget everything above `offset`."""
        while self._firsts and self._firsts[-1] > offset:
            self._firsts.pop()
            self._epochs.pop()

    def remove_prefix(self, base: EntryId) -> None:
        """Forget everything at or below `base`."""
        place = bisect_right(self._firsts, base.offset)
        if place < len(self._firsts):
            # The epoch of base may go on above it: at() answers it from base itself.
            assert self._epochs[place] > base.epoch or self._firsts[place] > base.offset
        del self._epochs[:place]
        del self._firsts[:place]
        self.base = base

    def last_shared(self, theirs: EntryId, head: EntryId) -> EntryId:
        """Our last position at or below `theirs` in both epoch and offset.

        If `theirs` is the other log's last position at or below some position of ours, then nothing above
        the answer can be shared: epochs never fall along either log.
        """
        offset = min(theirs.offset, head.offset)
        while offset > self.base.offset:
            place = bisect_right(self._firsts, offset)
            epoch = self._epochs[place - 1] if place else self.base.epoch
            if epoch <= theirs.epoch:
                return EntryId(epoch, offset)
            if not place:
                break
            offset = self._firsts[place - 1] - 1
        return self.base
