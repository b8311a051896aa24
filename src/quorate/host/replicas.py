"""One hosted replica: the protocol's state machine, its machine, and what is under way for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from quorate.core import coordinated, isr, raft
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, EntryId, Member, Partition, Snapshot, Standing
from quorate.core.events import Event, Proposed, Recovered
from quorate.host.producing import Answer, Desk, Leading
from quorate.machine import Machine
from quorate.machine.metadata import Metadata
from quorate.machine.producers import Numbered, Producers
from quorate.machine.table import Tables
from quorate.machine.tally import Tally
from quorate.storage.store import RecoveredLog

PROTOCOLS: dict[str, Any] = {"raft": raft, "coordinated": coordinated, "isr": isr}
"""How copies can agree: rooms with a `Replica` and its `SavedState`. The others join when they stand."""

MACHINES: dict[str, Callable[[], Machine]] = {"topic": Producers, "metadata": Metadata, "tables": Tables}
"""What a log is for decides what is built from it."""


class ReplicaRecord(msgspec.Struct, frozen=True, gc=False):
    """Everything about a replica that is not its log, as it is saved: small, and saved as one."""

    protocol: str
    me: Member
    voters: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    state: Any = None
    """The protocol's own, as it was saved last; None: a new replica has not saved any."""
    purpose: str = "topic"
    preferred: int = 0

    def config(self, tuning: Any) -> Any:
        """What the protocol's replica is told at birth. Those that are overseen know no peers (OX-1)."""
        if self.protocol != "raft":
            return PROTOCOLS[self.protocol].Config(self.me, tuning)
        return raft.Config(self.me, self.voters, self.learners, tuning, self.preferred)


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[ReplicaRecord] = msgspec.msgpack.Decoder(ReplicaRecord)


def encode_record(record: ReplicaRecord) -> bytes:
    if record.state is None:
        record = msgspec.structs.replace(record, state=PROTOCOLS[record.protocol].SavedState())
    return _encode(record)


def decode_record(data: bytes) -> ReplicaRecord:
    """On the disk a state does not say whose it is; the record does."""
    record = _decode.decode(data)
    state = msgspec.convert(record.state, PROTOCOLS[record.protocol].SavedState)
    return msgspec.structs.replace(record, state=state)


class Manifest(msgspec.Struct, frozen=True, gc=False):
    """What a snapshot holds."""

    last: EntryId
    checksum: int
    tally: bytes
    machine: bytes
    standing: Standing = Standing()


class Reader(msgspec.Struct, frozen=True, gc=False):
    """A read that the replica has answered, and whose answer waits until the machine has applied so much."""

    wanted: int
    deadline: float
    reply: Reply
    answer: Answer


class Hosted:
    """A replica and the host's side of it."""

    __slots__ = (
        "answers",
        "applied",
        "applied_checksum",
        "awaited",
        "commit",
        "desk",
        "feeding",
        "gone",
        "leader",
        "machine",
        "partition",
        "peers",
        "readers",
        "record",
        "replica",
        "requests",
        "restoring",
        "scheduled",
        "standing",
        "tally",
    )

    def __init__(self, partition: Partition, record: ReplicaRecord, tuning: Any, rng: Random) -> None:
        self.partition = partition
        self.record = record
        room = PROTOCOLS[record.protocol]
        self.replica = room.Replica(record.config(tuning), Random(rng.getrandbits(64)))
        self.tally = Tally()
        self.machine = MACHINES[record.purpose]()
        self.desk = Desk(self.machine) if isinstance(self.machine, Producers) else None
        """Who judges batches with a producer id, where they are told apart."""
        self.applied = NOWHERE
        """The last entry that the machine has settled, and the checksum of its frame."""
        self.applied_checksum = 0
        self.standing = Standing()
        """The controls in force there."""
        self.peers: tuple[int, ...] = ()
        """The nodes that the failure detector watches for it."""
        self.readers: list[Reader] = []
        self.commit = -1
        self.feeding = False
        """A read for the machine is under way."""
        self.restoring: tuple[int, Snapshot] | None = None
        """An installation that the machine must follow once it is durable."""
        self.awaited: set[tuple[int, type]] = set()
        """(node, kind of message) for which bytes are being read: one at a time, lest reads pile up."""
        self.answers: dict[int, Answer] = {}
        self.requests = 0
        self.scheduled: float | None = None
        self.leader = 0
        """Whom everybody was told to ask."""
        self.gone = False
        """Removed: what still comes back for it is for nobody."""

    def expect(self, answer: Answer) -> int:
        """The number of a request that is answered by a `Reply`."""
        self.requests += 1
        self.answers[self.requests] = answer
        return self.requests

    def answer_readers(self, now: float) -> None:
        """The machine has applied more, or it has taken too long."""
        if not self.readers:
            return
        readers, self.readers = self.readers, []
        applied = self.applied.offset
        for reader in readers:
            reply = reader.reply
            if reader.wanted <= applied:
                reader.answer(msgspec.structs.replace(reply, offset=min(applied, reply.offset)))
            elif now >= reader.deadline:
                why = f"offset {reader.wanted} cannot be read here; {applied} can"
                reader.answer(Reply(reply.request, Outcome.TIMED_OUT, leader=reply.leader, why=why))
            else:
                self.readers.append(reader)

    def deadline(self) -> float | None:
        """When something is to be done for it even if nothing happens."""
        due: float | None = self.replica.deadline()
        if not self.readers:
            return due
        first = min(reader.deadline for reader in self.readers)
        return first if due is None else min(first, due)

    def saved(self, state: Any) -> bytes:
        """The record with the protocol's newest state."""
        self.record = msgspec.structs.replace(self.record, state=state)
        return encode_record(self.record)

    def is_next(self, event: Event, batch: Numbered) -> bool:
        """Whether the replica is to be told of a producer's batch now. If not, the desk answers for it."""
        leads_from = self.replica.leads_from
        if leads_from is None:
            return True  # It refuses, and says who leads.
        assert self.desk is not None
        assert isinstance(event, Proposed)
        request = event.request
        leader = Leading(self.record.me.node, self.replica.epoch, leads_from, self.applied.offset)
        answer = self.desk.admit(request, batch, self.answers.pop(request), leader)
        if answer is not None:
            self.answers[request] = answer
        return answer is not None

    def manifest(self) -> bytes:
        parts = self.tally.snapshot(), self.machine.snapshot()
        return msgspec.msgpack.encode(Manifest(self.applied, self.applied_checksum, *parts, self.standing))

    def snapshot_of(self, size: int) -> Snapshot:
        """What the core knows a manifest by that was taken or restored just now."""
        return Snapshot(self.applied, self.applied_checksum, size, self.standing)

    def restore(self, data: bytes) -> None:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        self.tally.restore(manifest.tally)
        self.machine.restore(manifest.machine)
        self.applied, self.applied_checksum = manifest.last, manifest.checksum
        self.standing = manifest.standing


def as_recovered(log: RecoveredLog, record: ReplicaRecord, snapshot: Snapshot | None) -> Recovered:
    """What storage found, in the words of the core."""
    return Recovered(
        base=log.base,
        head=log.head,
        epochs=log.epochs,
        headers=log.headers,
        controls=log.controls,
        commit=log.commit,
        faulty=log.faulty,
        state=record.state,
        snapshot=snapshot,
    )
