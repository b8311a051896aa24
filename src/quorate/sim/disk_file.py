"""What lies on a disk of a made-up world: files and names, as reads see them and as they would survive."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


class SimFile:
    """What reads see, what is on the platter, and the way from the one to the other."""

    __slots__ = ("cached", "dropped", "durable", "unflushed")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.unflushed: list[tuple[int, bytes | None]] = []
        """Writes (at, content), and truncations (size, None), oldest first."""
        self.dropped: list[tuple[int, int]] = []
        """(at, length) of writes that a failed flush dropped: read as if they were there, while cached."""

    def write(self, at: int, content: bytes) -> None:
        _put(self.cached, at, content)
        self.unflushed.append((at, content))

    def truncate(self, size: int) -> None:
        _resize(self.cached, size)
        self.unflushed.append((size, None))

    def flush(self) -> None:
        for at, content in self.unflushed:
            if content is None:
                _resize(self.durable, at)
            else:
                _put(self.durable, at, content)
        self.unflushed.clear()

    def drop_unflushed(self) -> None:
        self.dropped.extend((at, len(content)) for at, content in self.unflushed if content is not None)
        self.unflushed.clear()

    def evict_dropped(self, rng: Random) -> None:
        """The kernel may at any time read a clean page anew, and so find out what is really on the disk."""
        if not self.dropped:
            return
        for dropped in self.dropped.copy():
            if rng.random() < 0.5:
                self.dropped.remove(dropped)
                at, length = dropped[0], max(0, min(dropped[1], len(self.cached) - dropped[0]))
                self.cached[at : at + length] = self.durable[at : at + length].ljust(length, b"\0")
        for at, content in self.unflushed:
            if content is not None:
                _put(self.cached, at, content[: max(0, len(self.cached) - at)])

    def power_loss(self, rng: Random, kept_share: float, sector_bytes: int) -> None:
        """Only what the disk itself did not delay is there for sure."""
        torn_share = (1.0 - kept_share) / 2
        for at, content in self.unflushed:
            luck = rng.random()
            if content is None:
                if luck < kept_share:
                    _resize(self.durable, at)
            elif luck < kept_share:
                _put(self.durable, at, content)
            elif luck < kept_share + torn_share:
                self._tear(rng, at, content, sector_bytes)
        self.cached = self.durable.copy()
        self.unflushed.clear()
        self.dropped.clear()

    def _tear(self, rng: Random, at: int, content: bytes, sector_bytes: int) -> None:
        """Each sector for itself, in no order."""
        start = at // sector_bytes * sector_bytes
        end = at + len(content)
        kept = rng.getrandbits((end - start) // sector_bytes + 1)
        while start < end:
            if kept & 1:
                first, last = max(start, at), min(start + sector_bytes, end)
                _put(self.durable, first, content[first - at : last - at])
            kept >>= 1
            start += sector_bytes

    def damage(self, change: Callable[[bytearray], None], *places: tuple[int, int]) -> None:
        """Change both contents, and what is on its way between them: no flush heals it."""
        change(self.cached)
        change(self.durable)
        for index, (at, content) in enumerate(self.unflushed):
            if content is None:
                continue
            for start, end in places:
                first, last = max(start, at), min(end, at + len(content), len(self.cached))
                if first < last:
                    content = content[: first - at] + self.cached[first:last] + content[last - at :]
            self.unflushed[index] = (at, content)

    def damage_end(self, size: int) -> None:
        assert size <= len(self.cached)
        del self.cached[size:]
        del self.durable[size:]
        self.unflushed = [
            (at, content[: size - at]) if content is not None else (min(at, size), None)
            for at, content in self.unflushed
            if at < size or content is None
        ]


class SimDirectory:
    """Names that would survive the power going out, and changes since, oldest first.

    A change is one or two (path, file) at once; no file means that the name is gone.
    """

    __slots__ = ("durable", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, SimFile] = {}
        self.pending: list[tuple[tuple[str, SimFile | None], ...]] = []

    def flush(self) -> None:
        self._keep(len(self.pending))

    def power_loss(self, rng: Random) -> dict[str, SimFile]:
        self._keep(rng.randint(0, len(self.pending)))
        return self.durable

    def _keep(self, changes_count: int) -> None:
        for change in self.pending[:changes_count]:
            for path, file in change:
                if file is None:
                    self.durable.pop(path, None)
                else:
                    self.durable[path] = file
        self.pending.clear()


def _put(target: bytearray, at: int, content: bytes) -> None:
    if at > len(target):
        target.extend(bytes(at - len(target)))
    target[at : at + len(content)] = content


def _resize(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))
