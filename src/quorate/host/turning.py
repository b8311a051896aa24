"""A replica ends with its protocol, and another begins above the barrier, on the same log (decision 017).

What the old protocol has settled stays, and nothing else: a copy whose log holds the barrier is cut to it, one
that lacks it to what it knows to be settled. The latter *owes* the barrier, as it would something lost to
damage: it votes, and is fenced, as if it had it, and does not lead before its log is past it. The cut and the
new record are ordered in one turn, and so are durable together or not at all. The machine stays as it is: what
is settled is the same in every protocol.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Member, Partition
from quorate.core.events import Recovered
from quorate.core.log import LogView
from quorate.host.replicas import PROTOCOLS, Hosted, ReplicaRecord
from quorate.machine.turning import FRESH_EPOCHS, NoteBarrier, Turned
from quorate.storage.store import Store


def reached(hosted: Hosted) -> NoteBarrier | None:
    """What whoever leads a partition may say of its barrier; None: there is none, or it is not settled."""
    replica = hosted.replica
    ended = replica.barrier
    if ended is None or replica.role.name != "leader" or replica.commit < ended.entry.offset:
        return None
    whole = replica.role.whole_at(ended.entry.offset)
    return NoteBarrier(hosted.partition, ended.at, ended.entry, replica.epoch, replica.me, whole)


def turn(
    store: Store, hosted: Hosted, turned: Turned, voters: tuple[Member, ...]
) -> tuple[ReplicaRecord, Recovered] | None:
    """Order the cut; and what the new replica is, and starts from: its first order saves that. None: not yet."""
    replica = hosted.replica
    if not hosted.started or not replica.ordering.idle or replica.installing or hosted.restoring is not None:
        return None  # The disk has orders of the old protocol, or a snapshot is about to be the log.
    holds = replica.log.holds(turned.barrier)
    settled = max(replica.commit, hosted.applied.offset)
    to = turned.barrier if holds else _last_known(replica.log, settled)
    is_longer = to.offset < replica.log.head.offset
    if is_longer and not store.can_cut(hosted.partition, to):
        return None
    record = _record(hosted.record, turned, voters, owed=NOWHERE if holds else turned.barrier)
    hosted.take_back(hosted.applied)
    if is_longer:
        store.cut(hosted.partition, 0, to)
    recovered = Recovered(
        commit=to.offset if holds else settled,
        state=record.state,
        snapshot=replica.snapshot,
        base_checksum=store.recovered(hosted.partition).base_checksum,
        generation=turned.generation,
        voids=record.is_voiding,
        begins=True,
        published=replica.published,
        **replica.log.cut_down(to),
    )
    return record, recovered


def settled_only(store: Store, partition: Partition, recovered: Recovered) -> Recovered:
    """Of a log whose record is lost, what is known to be settled: of which generation the rest is, nobody knows."""
    log, snapshot = LogView(recovered), recovered.snapshot
    settled = max(recovered.commit, snapshot.last.offset if snapshot is not None else -1)
    to = _last_known(log, settled)
    if to == log.head or not store.can_cut(partition, to):
        return recovered
    store.cut(partition, 0, to)
    return msgspec.structs.replace(recovered, **log.cut_down(to))


def _last_known(log: LogView, settled: int) -> EntryId:
    """The end of what is known to be settled: what the disk says of that is a hint, and may be older than the
    machine, or than its snapshot. Where it cannot be read, nobody knows where an entry ends before the damage does;
    it goes on being mended, and this copy leads nothing meanwhile."""
    at = max(settled, log.floor)
    span = log.span_at(at)
    return log.position(at) if span is None else span.last


def _record(
    record: ReplicaRecord, turned: Turned, voters: tuple[Member, ...], *, owed: EntryId
) -> ReplicaRecord:
    """What a replica is told at birth in that generation. It has voted for nobody in it."""
    more = {"told": voters} if turned.protocol == "coordinated" else {}
    epoch = turned.epoch + FRESH_EPOCHS
    is_voiding = turned.voids or record.is_voiding
    return ReplicaRecord(
        turned.protocol,
        record.me,
        voters,
        state=PROTOCOLS[turned.protocol].SavedState(epoch=epoch, owed=owed, **more),
        purpose=record.purpose,
        preferred=turned.leader,
        generation=turned.generation,
        voids=is_voiding or msgspec.UNSET,
    )
