"""What replicas order is done here, in their order: bytes to the store, messages to peers, entries to machines.

Bytes: the frames of the headers that an order names are found in what the step was about (`Context`) or in the
store's memory; only a follower that lags beyond that costs a read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from quorate.core import effects, events
from quorate.core.entry import Kind
from quorate.host.contract import Context, same_entry
from quorate.host.feeder import Feeder
from quorate.host.fetching import frames_of
from quorate.host.flushes import Flushes
from quorate.host.pacing import Errand, Pacer, What
from quorate.host.replicas import Hosted
from quorate.host.sending import Sender
from quorate.host.snapshots import Snapshots
from quorate.machine.producers import Producers
from quorate.storage.frame import Frame
from quorate.storage.store import Store


class Executor:
    """Executes the effects of all hosted replicas."""

    def __init__(
        self,
        store: Store,
        feeder: Feeder,
        snapshots: Snapshots,
        sender: Sender,
        pacer: Pacer,
        flushes: Flushes,
        *,
        settled: Callable[[Hosted], None],
        tell: Callable[[Hosted, events.Event, Context], None],
        report: Callable[[Hosted, effects.Report], None],
    ) -> None:
        """`settled` is called when a replica has settled more; `tell` lets it know a fact, `report` people."""
        self._store = store
        self._feeder = feeder
        self._snapshots = snapshots
        self._sender = sender
        self._pacer = pacer
        self._flushes = flushes
        self._settled = settled
        self._tell = tell
        self._report = report

    def execute(self, hosted: Hosted, ordered: list[effects.Effect], context: Context) -> None:
        """What one step ordered; `context` has the bytes that the step was about."""
        for effect in ordered:
            _EXECUTE[type(effect)](self, hosted, effect, context)

    # --- orders to the disk ---

    def _append(self, hosted: Hosted, effect: effects.Append, context: Context) -> None:
        headers = effect.headers
        if headers[0].offset in context.frames:
            frames = [context.frames[header.offset] for header in headers]
            assert all(map(same_entry, frames, headers))
        else:
            # A leader's own control entries come before what was proposed, in orders of their own.
            payloads = () if headers[0].kind == Kind.CONTROL else context.payloads
            frames = self._store.seal(hosted.partition, headers, payloads)
        self._store.append(hosted.partition, effect.io, frames)
        if context.flushed is not None and headers[0].kind != Kind.CONTROL:
            self._flushes.wait(hosted, headers[0].offset, headers[-1].last, context.flushed)
        if hosted.undo is not None:
            self._feeder.append(hosted, frames)

    def _cut(self, hosted: Hosted, effect: effects.Cut, _: Context) -> None:
        def note(what: str) -> None:
            self._report(hosted, effects.Report(what, member=hosted.record.me))

        self._store.cut(hosted.partition, effect.io, effect.to, aside=note if effect.aside else None)
        self._feeder.cut(hosted, effect.to)

    def _save_state(self, hosted: Hosted, effect: effects.SaveState, _: Context) -> None:
        self._store.save_state(hosted.partition, effect.io, hosted.saved(effect.state))

    def _repair(self, hosted: Hosted, effect: effects.Repair, context: Context) -> None:
        frames = [context.frames[header.offset] for header in effect.headers]
        self._store.repair(hosted.partition, effect.io, frames)

    def _stage_chunk(self, hosted: Hosted, effect: effects.StageChunk, context: Context) -> None:
        self._store.stage_chunk(hosted.partition, effect.io, effect.at, context.chunk)

    def _install_snapshot(self, hosted: Hosted, effect: effects.InstallSnapshot, _: Context) -> None:
        self._snapshots.install(hosted, effect)

    def _remove_prefix(self, hosted: Hosted, effect: effects.RemovePrefix, _: Context) -> None:
        self._store.remove_prefix(hosted.partition, effect.io, effect.to, effect.checksum)
        if isinstance(hosted.machine, Producers):
            hosted.machine.expire(effect.to.offset)

    # --- orders to the network and to readers ---

    def _send_message(self, hosted: Hosted, effect: effects.Send, context: Context) -> None:
        self._sender.send(hosted, effect, context)

    def _read(self, hosted: Hosted, effect: effects.Read, _: Context) -> None:
        if effect.paced:
            what = What.REPAIR if effect.mends else What.ENTRIES
            errand = Errand(hosted.partition, effect.paced_for, what)
            begin = partial(self._read_paced, hosted, effect)
            nothing = partial(self._tell, hosted, events.Loaded(effect.token, ()), Context())
            self._pacer.when_free(errand, effect.bytes_max, begin, forgotten=nothing)
        else:
            self._read_now(hosted, effect)

    def _read_paced(self, hosted: Hosted, effect: effects.Read) -> None:
        if not hosted.gone:
            self._read_now(hosted, effect)

    def _read_now(self, hosted: Hosted, effect: effects.Read) -> None:
        def loaded(frames: list[Frame]) -> None:
            if effect.paced:
                size = sum(frame.header.size for frame in frames)
                self._pacer.spent(expected=effect.bytes_max, bytes_count=size)
            context = Context({frame.header.offset: frame for frame in frames})
            headers = tuple(frame.header for frame in frames)
            self._tell(hosted, events.Loaded(effect.token, headers), context)

        frames_of(self._store, hosted, effect.first, effect.last, effect.bytes_max, loaded)

    def _reply(self, hosted: Hosted, effect: effects.Reply, _: Context) -> None:
        hosted.answers.pop(effect.request)(effect)

    def _reported(self, hosted: Hosted, effect: effects.Report, _: Context) -> None:
        self._report(hosted, effect)

    # --- the machine ---

    def _commit(self, hosted: Hosted, effect: effects.Commit, _: Context) -> None:
        assert effect.offset > hosted.commit
        hosted.commit = effect.offset
        self._store.note_commit(hosted.partition, effect.offset)
        self._feeder.feed(hosted)
        self._settled(hosted)

    def _take_snapshot(self, hosted: Hosted, _: effects.TakeSnapshot, __: Context) -> None:
        self._snapshots.take(hosted)


_EXECUTE: dict[type, Callable[[Executor, Hosted, Any, Context], None]] = {
    effects.Append: Executor._append,
    effects.Cut: Executor._cut,
    effects.SaveState: Executor._save_state,
    effects.Repair: Executor._repair,
    effects.StageChunk: Executor._stage_chunk,
    effects.InstallSnapshot: Executor._install_snapshot,
    effects.RemovePrefix: Executor._remove_prefix,
    effects.Send: Executor._send_message,
    effects.Read: Executor._read,
    effects.Commit: Executor._commit,
    effects.TakeSnapshot: Executor._take_snapshot,
    effects.Reply: Executor._reply,
    effects.Report: Executor._reported,
}
