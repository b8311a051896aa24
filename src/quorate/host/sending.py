"""Messages on their way out, with the bytes of the entries or of the piece of a snapshot that they name.

Bytes are found in what the step was about, or in the store's memory; only a follower that lags beyond that costs a
read, one at a time for each peer and kind of message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from quorate.core import effects
from quorate.core.carrying import CarriesChunk
from quorate.core.entry import Header, Snapshot
from quorate.core.repairing import HaveEntries
from quorate.host.contract import Context, same_entry
from quorate.host.pacing import Errand, Pacer, What
from quorate.host.parcel import Parcel, packed
from quorate.host.replicas import Hosted
from quorate.storage.frame import Frame
from quorate.storage.store import Store

BYTES_UNBOUNDED = 1 << 62
"""Where the core has already bounded what it asks for."""

IsWhole = Callable[[Hosted, Snapshot, bytes | None, int], bool]


class Sender:
    def __init__(
        self, store: Store, send: Callable[[int, Parcel], None], is_whole: IsWhole, pacer: Pacer
    ) -> None:
        self._store = store
        self._send = send
        self._is_whole = is_whole
        self._pacer = pacer

    def send(self, hosted: Hosted, effect: effects.Send, context: Context) -> None:
        message = effect.message
        headers: tuple[Header, ...] = getattr(message, "headers", ())
        if headers:
            self._send_with_frames(hosted, effect, headers, context)
        elif isinstance(message, CarriesChunk):
            self._send_with_chunk(hosted, effect, message)
        else:
            self._post(hosted, effect.to, message)

    def _post(
        self, hosted: Hosted, to: int, message: Any, frames: tuple[Frame, ...] = (), chunk: bytes = b""
    ) -> None:
        me, generation = hosted.record.me, hosted.record.turn
        self._send(to, Parcel(hosted.partition, me, message, frames, chunk, generation=generation))

    def _send_with_frames(
        self, hosted: Hosted, effect: effects.Send, headers: tuple[Header, ...], context: Context
    ) -> None:
        first, last = headers[0].offset, headers[-1].last
        if first in context.frames:
            found = [context.frames.get(header.offset) for header in headers]
            self._send_frames(hosted, effect, headers, [frame for frame in found if frame is not None])
            return
        in_memory = self._store.frames(hosted.partition, first, last, BYTES_UNBOUNDED)
        if in_memory is not None:
            self._send_frames(hosted, effect, headers, in_memory)
            return
        done = _once(hosted, effect, partial(self._send_frames, hosted, effect, headers))
        if done is not None:
            self._read_on(hosted, first, last, [], done)

    def _send_frames(
        self, hosted: Hosted, effect: effects.Send, headers: tuple[Header, ...], frames: list[Frame]
    ) -> None:
        # A log that was cut meanwhile no longer holds them: as if the message had been lost. What compaction has
        # left is only ever given to whoever mends his log.
        is_repair = type(effect.message) is HaveEntries
        if not is_repair and hosted.replica.log.compacted >= 0 and any(frame.is_part for frame in frames):
            return
        if len(frames) == len(headers) and all(map(same_entry, frames, headers)):
            message = packed(effect.message)
            self._post(hosted, effect.to, message, tuple(frames))

    def _read_on(
        self, hosted: Hosted, first: int, last: int, found: list[Frame], done: Callable[[Any], None]
    ) -> None:
        """A read may end early, at a seam between two files or between memory and disk: go on behind it."""

        def more(frames: list[Frame]) -> None:
            found.extend(frames)
            if frames and frames[-1].header.last < last and not hosted.gone:
                self._read_on(hosted, frames[-1].header.last + 1, last, found, done)
            else:
                done(found)

        self._store.read(hosted.partition, first, last, BYTES_UNBOUNDED, more)

    def _send_with_chunk(self, hosted: Hosted, effect: effects.Send, message: CarriesChunk) -> None:
        def send(chunk: bytes | None) -> None:
            if effect.paced:
                self._pacer.spent(expected=message.length, bytes_count=len(chunk or b""))
            if chunk is not None and self._is_whole(hosted, message.snapshot, chunk, message.length):
                self._post(hosted, effect.to, message, chunk=chunk)

        done = _once(hosted, effect, send)
        if done is None:
            return

        def read() -> None:
            if not hosted.gone:
                self._store.read_snapshot(
                    hosted.partition, message.snapshot, message.at, message.length, done
                )

        if effect.paced:
            errand = Errand(hosted.partition, effect.to, What.SNAPSHOT)
            forgotten = partial(hosted.awaited.discard, _key(effect))
            self._pacer.when_free(errand, message.length, read, forgotten=forgotten)
        else:
            read()


def _once(hosted: Hosted, effect: effects.Send, send: Callable[[Any], None]) -> Callable[[Any], None] | None:
    """`send`, to be called when a read is done; None while another for the same peer is under way.

    Senders repeat themselves until they are answered, so a slow disk would gather reads without end. One that waits
    its turn is not in the way of one that need not, as the copy counts by now.
    """
    key = _key(effect)
    if key in hosted.awaited:
        return None
    hosted.awaited.add(key)

    def done(found: Any) -> None:
        hosted.awaited.discard(key)
        send(found)

    return done


def _key(effect: effects.Send) -> tuple[int, type, bool]:
    return effect.to, type(effect.message), effect.paced
