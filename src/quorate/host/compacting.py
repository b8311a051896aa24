"""Compaction of hosted logs: when a replica may prepare a generation, and when it lets go of what it had.

Both are wanted by somebody outside, who knows of all replicas; here it is seen to that nothing goes that this one
still needs. A machine is never fed with what is left, so a snapshot of it comes first; and what is void is known
only where nothing is damaged (docs/decisions/020-compaction-keeps-the-chain.md).
"""

from __future__ import annotations

from collections.abc import Callable

from quorate.batch import Buffer
from quorate.core import events
from quorate.core.generation import Generation
from quorate.host.replicas import Hosted
from quorate.storage.store import Store
from quorate.storage.surviving import Survivors

Tell = Callable[[Hosted, events.Event], None]


class Compacting:
    def __init__(self, store: Store, tell: Tell, tell_first: Tell) -> None:
        self._store = store
        self._tell = tell
        self._tell_first = tell_first

    def why_not(self, hosted: Hosted, generation: Generation) -> str:
        """Why its files cannot be made here now; empty if they can."""
        if hosted.gone or not hosted.started:
            return "the replica is not there yet, or no more"
        if hosted.commit < generation.upto:
            return f"only {hosted.commit} is settled here"
        snapshot = hosted.replica.snapshot
        if snapshot is None or snapshot.last.offset < generation.upto:
            return "no snapshot of its machine covers it"
        return self._store.compactor.why_not(hosted.partition, generation)

    def prepare(
        self,
        hosted: Hosted,
        generation: Generation,
        opened: Callable[[Buffer], Buffer],
        done: Callable[[int | None], None],
    ) -> None:
        """`done` hears the checksum of what was made, or was there already; None: not now. Never at once."""
        log = hosted.replica.log
        survivors = Survivors(
            upto=generation.upto,
            deleted_upto=generation.deleted_upto,
            is_void=log.is_void if hosted.voids else lambda offset: False,
            opened=opened,
        )
        self._store.compactor.prepare(hosted.partition, generation, survivors, done)

    def swap(self, hosted: Hosted, generation: Generation) -> bool:
        """Everybody has prepared the same. False if it has to wait, or is not prepared here.

        The replica hears of it at the moment of the order, before anything else: what it reads from now on is what
        is left.
        """
        rewritten = self._store.compactor.swap(hosted.partition, generation)
        if rewritten is None:
            return False
        self._tell_first(hosted, events.Compacted(generation.upto, rewritten))
        return True

    def refill(self, hosted: Hosted, generation: Generation) -> bool:
        """A log that lacks all up to a snapshot began to be filled before it knew of what others have left there.
        That is not to be had any more as it was: let it begin again. Whether that was so."""
        span = self._store.compactor.refill(hosted.partition, generation)
        if span is None:
            return False
        self._tell_first(hosted, events.Damaged(span))
        self._tell_first(hosted, events.Compacted(generation.upto, rewritten=-1))
        return True

    def failed(self, hosted: Hosted) -> None:
        """Orders were refused: where a swap was among them, the log is what it was before."""
        upto, spans = self._store.compactor.state(hosted.partition)
        if upto != hosted.replica.log.compacted:
            self._tell(hosted, events.CompactionUndone(upto))
            for span in spans:
                self._tell(hosted, events.Damaged(span))
