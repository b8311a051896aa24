"""One hosted replica: the protocol's state machine, its machine, and what is under way for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from quorate.core import raft
from quorate.core.effects import Reply
from quorate.core.entry import NOWHERE, EntryId, Member, Partition, Snapshot
from quorate.core.events import Recovered
from quorate.machine.tally import Tally
from quorate.storage.store import RecoveredLog

Answer = Callable[[Reply], None]


PROTOCOLS = {"raft": raft.Replica}
"""How copies can agree; the other rooms join when they stand."""


class ReplicaRecord(msgspec.Struct, frozen=True, gc=False):
    """Everything about a replica that is not its log, as it is saved: small, and saved as one."""

    protocol: str
    me: Member
    voters: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    state: raft.SavedState = raft.SavedState()


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[ReplicaRecord] = msgspec.msgpack.Decoder(ReplicaRecord)


def encode_record(record: ReplicaRecord) -> bytes:
    return _encode(record)


def decode_record(data: bytes) -> ReplicaRecord:
    return _decode.decode(data)


class Manifest(msgspec.Struct, frozen=True, gc=False):
    """What a snapshot holds."""

    last: EntryId
    checksum: int
    machine: bytes


class Hosted:
    """A replica and the host's side of it."""

    __slots__ = (
        "answers",
        "applied",
        "applied_checksum",
        "awaited",
        "commit",
        "feeding",
        "machine",
        "partition",
        "record",
        "replica",
        "requests",
        "restoring",
        "scheduled",
    )

    def __init__(self, partition: Partition, record: ReplicaRecord, tuning: raft.Tuning, rng: Random) -> None:
        self.partition = partition
        self.record = record
        room = PROTOCOLS[record.protocol]
        config = raft.Config(record.me, record.voters, record.learners, tuning)
        self.replica = room(config, Random(rng.getrandbits(64)))
        self.machine = Tally()
        self.applied = NOWHERE
        """The last entry that the machine has settled, and the checksum of its frame."""
        self.applied_checksum = 0
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

    def saved(self, state: Any) -> bytes:
        """The record with the protocol's newest state."""
        self.record = msgspec.structs.replace(self.record, state=state)
        return encode_record(self.record)

    def manifest(self) -> bytes:
        return msgspec.msgpack.encode(Manifest(self.applied, self.applied_checksum, self.machine.snapshot()))

    def restore(self, data: bytes) -> None:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        self.machine.restore(manifest.machine)
        self.applied, self.applied_checksum = manifest.last, manifest.checksum


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
