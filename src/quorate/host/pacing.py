"""Moving data waits its turn: what is read for copies that do not count yet goes out at a rate, over all replicas.
Whose copy counts never gets here: that is for the core to say (`Mending.holds_back`), for entries, for pieces of
snapshots and for what fills in logs alike.

A read is begun only when what was sent before it is paid for, at so many bytes a second. So nothing is held in
memory while it waits, no message overtakes another, and heartbeats and whatever clients wait for are not
touched. How much a read will bring is not known before: what is expected is charged, and put right when it is
done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from quorate.core.entry import Partition

UNLIMITED = -1


class What(StrEnum):
    ENTRIES = "entries"
    REPAIR = "repair"
    SNAPSHOT = "snapshot"


WAITING_PER_COPY_MAX = 3
"""So much waits for each copy that is made elsewhere of one that is held here, and no more: one of each `What`."""


class Errand(NamedTuple):
    """What is to be read, and for which copy."""

    partition: Partition
    node: int
    what: What


class Pacer:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rate = UNLIMITED
        self._owed_bytes = 0.0
        self._at = 0.0
        """When that was owed."""
        self._waiting: dict[Errand, tuple[int, Callable[[], None], Callable[[], None]]] = {}
        """In the order of their turns."""
        self.moved_bytes = 0
        """What was read so far."""

    @property
    def deadline(self) -> float | None:
        """When somebody who waits can begin."""
        if not self._waiting or self._rate <= 0:
            return None
        return self._at + self._owed_bytes / self._rate

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def waits(self, partition: Partition) -> bool:
        """Whether something of that partition does."""
        return any(errand.partition == partition for errand in self._waiting)

    def set_rate(self, rate: int) -> None:
        """In bytes a second; 0: nobody begins, below: everybody does."""
        self._pay()
        self._rate = rate
        self.go_on()

    def when_free(
        self, errand: Errand, expected: int, begin: Callable[[], None], *, forgotten: Callable[[], None]
    ) -> None:
        """Call `begin` now, or in turn, later; it is expected to bring so many bytes. Or `forgotten`: see `keep`.

        Whoever asks for the same again, as every new leader does, has forgotten what it asked for before: this has
        its turn instead. (Of pieces of snapshots, the one that waits is kept: host/sending.py.) So what waits is
        bounded by how many copies are being made, however long nobody begins.
        """
        self._waiting[errand] = expected, begin, forgotten
        assert sum(errand._replace(what=what) in self._waiting for what in What) <= WAITING_PER_COPY_MAX
        self.go_on()

    def forget(self, partition: Partition) -> None:
        """It is not held here any more."""
        for errand in [errand for errand in self._waiting if errand.partition == partition]:
            del self._waiting[errand]

    def keep(self, partition: Partition, nodes: Collection[int]) -> None:
        """Copies of it are made on no other nodes any more: what waits for those is for nobody."""
        gone = [each for each in self._waiting if each.partition == partition and each.node not in nodes]
        for _, _, forgotten in [self._waiting.pop(errand) for errand in gone]:
            forgotten()

    def spent(self, *, expected: int, bytes_count: int) -> None:
        """What was begun is done, and brought so many bytes instead of what was expected."""
        self.moved_bytes += bytes_count
        if self._rate > 0:
            self._pay()
            self._owed_bytes = max(0.0, self._owed_bytes + bytes_count - expected)

    def go_on(self) -> None:
        """Let those begin whose turn it is."""
        self._pay()
        while self._waiting and self._is_free:
            expected, begin, _ = self._waiting.pop(next(iter(self._waiting)))
            if self._rate > 0:
                self._owed_bytes += expected
            begin()

    @property
    def _is_free(self) -> bool:
        return self._rate < 0 or (self._rate > 0 and self._owed_bytes < 1)

    def _pay(self) -> None:
        now = self._now()
        if self._rate < 0:
            self._owed_bytes = 0.0
        elif self._rate > 0:
            self._owed_bytes = max(0.0, self._owed_bytes - (now - self._at) * self._rate)
        self._at = now
