"""Files of a generation that were made before the store was opened: are they all there, and whole?

They may be all that is left of what is damaged in the log by now: neither thrown away, nor believed unseen.
"""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c

from quorate.core.generation import Generation
from quorate.storage.disk import DiskFailed, ReadAt
from quorate.storage.log import Log
from quorate.storage.records import Segment
from quorate.storage.segment import (
    FOOTER_TAIL_BYTES,
    DamagedFooter,
    Footer,
    Made,
    footer_at,
    parse_footer,
    segment_file,
)
from quorate.storage.shared import LANE_CHECK, Shared

Found = list[tuple[Segment, Made]]


class Finding:
    def __init__(
        self, shared: Shared, log: Log, generation: Generation, done: Callable[[Found | None], None]
    ) -> None:
        self._shared = shared
        self._log = log
        self._generation = generation
        self._done = done
        self._found: Found = []
        self._last = generation.start, generation.start_checksum
        """The last entry of the file before, and the checksum of its frame."""

    def begin(self) -> None:
        """Not at once: whoever asks is told later."""
        self._shared.submit(LANE_CHECK, (), lambda _: self._next())

    def _next(self) -> None:
        place, generation = len(self._found), self._generation
        if place == len(generation.ends):
            self._done(self._found)
            return
        base = (generation.ends[place - 1] if place else generation.start.offset) + 1
        file = segment_file(self._log.directory, base, generation.upto)
        footer = self._footer_of(file)
        if footer is None or footer.made is None:
            self._done(None)
            return
        self._read(file, base, footer, footer.made, at=0, crc=0)

    def _footer_of(self, file: str) -> Footer | None:
        """Blocks for as long as it takes to read a footer, once for each file after a restart."""
        disk = self._shared.disk
        size = disk.size_now(file)
        if size is None:
            return None
        try:
            start = footer_at(disk.read_now(file, max(0, size - FOOTER_TAIL_BYTES), FOOTER_TAIL_BYTES), size)
            footer = parse_footer(disk.read_now(file, start, size - start), self._log.partition)
        except (DiskFailed, DamagedFooter):
            return None
        return footer if footer.size == start else None

    def _read(self, file: str, base: int, footer: Footer, made: Made, *, at: int, crc: int) -> None:
        """All that is in it, block by block."""
        if at == footer.size:
            self._judge(base, footer, made, crc)
            return
        length = min(self._shared.settings.check_bytes, footer.size - at)

        def completed(error: Exception | None, results: list[bytes]) -> None:
            if self._shared.dead:
                return
            if error is not None or len(results[0]) != length:
                self._done(None)
            else:
                self._read(file, base, footer, made, at=at + length, crc=crc32c(results[0], crc))

        self._shared.disk.submit(LANE_CHECK, (ReadAt(file, at, length),), completed)

    def _judge(self, base: int, footer: Footer, made: Made, crc: int) -> None:
        generation, place = self._generation, len(self._found)
        is_last = place + 1 == len(generation.ends)
        fits = (
            crc == made.crc
            and (made.upto, made.deleted_upto) == (generation.upto, generation.deleted_upto)
            and (footer.before, footer.before_checksum) == self._last
            and footer.last.offset == generation.ends[place]
            and (not is_last or (footer.last, footer.checksum) == (generation.last, generation.checksum))
        )
        if not fits:
            self._done(None)
            return
        self._last = footer.last, footer.checksum
        segment = Segment(base, footer.before, footer.before_checksum, footer.size, generation.upto)
        self._found.append((segment, made))
        self._next()
