"""Entries for readers and for replicas: from memory at once, or from the disk later.

Readers get what is settled and not void. Behind void entries there is always another one, at the latest the
Rollback itself, so a reader that asks from inside of a void stretch gets what follows it, never an empty answer
that would make it ask the same again.
"""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.entry import Kind
from quorate.host.replicas import Hosted
from quorate.storage.frame import Frame
from quorate.storage.store import Store

GotFrames = Callable[[list[Frame]], None]


def frames_of(store: Store, hosted: Hosted, first: int, last: int, bytes_max: int, done: GotFrames) -> None:
    """Frames as they lie in the log, void ones included."""
    frames = store.frames(hosted.partition, first, last, bytes_max)
    if frames is not None:
        done(frames)
    else:
        store.read(hosted.partition, first, last, bytes_max, done)


def fetch(
    store: Store, hosted: Hosted, offset: int, bytes_max: int, done: Callable[[list[Frame], int], None]
) -> None:
    """Settled entries that are not void, from the one that holds `offset` on, and up to where all is settled."""
    commit = hosted.commit

    def read(frames: list[Frame]) -> None:
        settled, valid = _sorted_out(hosted, frames, commit)
        if settled and not valid and not hosted.gone:
            fetch(store, hosted, settled[-1].header.last + 1, bytes_max, done)
        else:
            done(valid, commit)

    while _can_be_read(hosted, offset):
        frames = store.frames(hosted.partition, offset, commit, bytes_max)
        if frames is None:
            store.read(hosted.partition, offset, commit, bytes_max, read)
            return
        settled, valid = _sorted_out(hosted, frames, commit)
        if valid or not settled:
            done(valid, commit)
            return
        offset = settled[-1].header.last + 1
    done([], commit)


def _can_be_read(hosted: Hosted, offset: int) -> bool:
    """Whether it is settled here and kept; and whether it is known if it is void: a Rollback may be damaged."""
    log = hosted.replica.log
    if not log.base.offset < offset <= hosted.commit:
        return False
    in_doubt = hosted.voids and any(
        span.last.offset >= offset and span.before.offset < hosted.commit for span in log.faulty
    )
    return not in_doubt


def _sorted_out(hosted: Hosted, frames: list[Frame], commit: int) -> tuple[list[Frame], list[Frame]]:
    """Those that are settled, and those of them that are not void.

    Of what was removed from the log while it was read, nobody knows any more whether it is void. In what compaction
    has left, nothing is.
    """
    settled = [frame for frame in frames if frame.header.last <= commit]
    if not hosted.voids:
        return settled, settled
    log = hosted.replica.log
    valid = [
        frame
        for frame in settled
        if frame.header.offset > log.base.offset
        and (frame.header.kind != Kind.RECORDS or frame.is_part or not log.is_void(frame.header.offset))
    ]
    return settled, valid
