"""One hosted replica: the protocol's state machine, its machine, and what is under way for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from quorate.core import confirm, coordinated, isr, raft
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, EntryId, Member, Partition, Quorums, Snapshot, Standing
from quorate.core.events import Event, Proposed, Recovered
from quorate.host.manifest import Manifest
from quorate.host.producing import Answer, Desk, Leading
from quorate.machine import Judging, Machine, Undoable
from quorate.machine.groups import Groups
from quorate.machine.markers import Marker
from quorate.machine.metadata import Metadata
from quorate.machine.producers import Numbered, Producers
from quorate.machine.table import Tables
from quorate.machine.tally import Tally
from quorate.machine.transactions import Transactions
from quorate.storage.store import RecoveredLog

PROTOCOLS: dict[str, Any] = {"raft": raft, "coordinated": coordinated, "isr": isr, "confirm": confirm}
"""How copies can agree: rooms with a `Replica` and its `SavedState`."""

UNDOING = "confirm"
"""The protocol in which machines change on append, where they can, and records may turn out to be void."""

MACHINES: dict[str, Callable[[], Machine]] = {
    "topic": Producers,
    "metadata": Metadata,
    "tables": Tables,
    "groups": Groups,
    "transactions": Transactions,
}
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
    quorums: Quorums | msgspec.UnsetType = msgspec.UNSET
    """At birth, `confirm` only; not written where they are majorities, so that other records are as ever."""
    generation: int | msgspec.UnsetType = msgspec.UNSET
    """The turn of its partition that it is of; not written where there was none."""
    voids: bool | msgspec.UnsetType = msgspec.UNSET
    """Its log was once of `confirm`, and is read with its rollbacks for good."""

    @property
    def turn(self) -> int:
        return 0 if self.generation is msgspec.UNSET else self.generation

    @property
    def is_voiding(self) -> bool:
        """Whether settled records may be void."""
        return self.protocol == UNDOING or self.voids is True

    def config(self, tuning: Any) -> Any:
        """What the protocol's replica is told at birth. Those that are overseen know no peers (OX-1)."""
        if self.protocol == "raft":
            return raft.Config(self.me, self.voters, self.learners, tuning, self.preferred)
        if self.protocol == UNDOING:
            quorums = None if self.quorums is msgspec.UNSET else self.quorums
            return confirm.Config(self.me, self.voters, self.learners, tuning, self.preferred, quorums)
        return PROTOCOLS[self.protocol].Config(self.me, tuning)


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


class Reader(msgspec.Struct, frozen=True, gc=False):
    """A read that the replica has answered, and whose answer waits until the machine has applied so much."""

    wanted: int
    deadline: float
    reply: Reply
    answer: Answer


class Taking(Protocol):
    """A snapshot on its way to the disk."""

    def abort(self, why: str) -> None: ...


class Hosted:
    """A replica and the host's side of it."""

    __slots__ = (
        "answers",
        "appended",
        "applied",
        "applied_checksum",
        "awaited",
        "commit",
        "desk",
        "feeding",
        "gone",
        "halted",
        "installing",
        "judge",
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
        "stands",
        "started",
        "taking",
        "tally",
        "undo",
        "voids",
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
        self.judge = self.machine if isinstance(self.machine, Judging) else None
        """Who knows synchronous transactions from asynchronous ones, where there are such."""
        self.voids = record.is_voiding
        """Whether settled records may be void."""
        self.undo: Undoable | None = None
        """The machine, where it changes on append."""
        self._choose_undo()
        self.appended = NOWHERE
        """The last entry that the machine has: appended or settled; `applied` where it changes on settle only."""
        self.applied = NOWHERE
        """The last entry that the machine has settled, and the checksum of its frame."""
        self.applied_checksum = 0
        self.stands = -1
        """The last offset that the machine was told to settle: `applied`, but for void entries behind it."""
        self.standing = Standing()
        """The controls in force there."""
        self.peers: tuple[int, ...] = ()
        """The nodes that the failure detector watches for it."""
        self.readers: list[Reader] = []
        self.commit = -1
        self.feeding = False
        """A read for the machine is under way."""
        self.installing: tuple[int, Snapshot] | None = None
        """(order, snapshot): an installation that the machine must follow once it is durable."""
        self.restoring: Snapshot | None = None
        """One that is durable, and is being read for the machine."""
        self.taking: Taking | None = None
        """A snapshot of the machine that is being made piece by piece."""
        self.halted: str | None = None
        """Why the machine takes nothing more: an entry could not be applied."""
        self.awaited: set[tuple[int, type, bool]] = set()
        """(node, kind of message, whether it waits its turn) for which bytes are being read: one at a time, lest
        reads pile up."""
        self.answers: dict[int, Answer] = {}
        self.requests = 0
        self.scheduled: float | None = None
        self.leader = 0
        """Whom everybody was told to ask."""
        self.started = False
        """The replica has been told what is on the disk: before that it has no log."""
        self.gone = False
        """Removed: what still comes back for it is for nobody."""

    def _choose_undo(self) -> None:
        if self.record.protocol == UNDOING and isinstance(self.machine, Undoable):
            self.undo = self.machine

    def take_over(self, other: Hosted) -> None:
        """This replica goes on with another's log, and so with what was built from it. Nothing is in doubt."""
        self.tally, self.machine = other.tally, other.machine
        self.desk = Desk(self.machine) if isinstance(self.machine, Producers) else None
        self.judge = self.machine if isinstance(self.machine, Judging) else None
        self._choose_undo()
        self.applied = self.appended = other.applied
        self.applied_checksum = other.applied_checksum
        self.stands, self.standing = other.stands, other.standing

    @property
    def is_open(self) -> bool:
        """Whether the machine can take entries: it is neither being replaced nor stuck."""
        replaced = self.installing is not None or self.restoring is not None
        return self.started and not self.gone and not replaced and self.halted is None

    def is_settled_for_good(self) -> bool:
        """Whether `applied` is a place at which a snapshot may end: not between a Rollback and what it voids."""
        at = self.applied.offset
        return not self.voids or self.replica.log.decided(at) == at

    def take_back(self, to: EntryId) -> None:
        """Nothing above this entry is in the log any more, or in doubt; what is settled stays.

        Void entries are settled without the machine: were it to lose their Rollback and not them, it would do them
        again.
        """
        if to.offset < self.applied.offset:
            to = self.applied
        if self.undo is not None and to.offset < self.appended.offset:
            self.undo.cut(to.offset if to != self.applied else self.stands)
            self.appended = to

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

    def end(self, why: str) -> None:
        """What still comes back for it is for nobody."""
        self.gone = True
        self.scheduled = None
        if self.taking is not None:
            self.taking.abort(why)

    def answer_all(self) -> None:
        """Whoever waits hears that nobody knows what became of it."""
        answers, self.answers = self.answers, {}
        for request, answer in answers.items():
            answer(Reply(request, Outcome.UNKNOWN))
        readers, self.readers = self.readers, []
        for reader in readers:
            reader.answer(Reply(reader.reply.request, Outcome.UNKNOWN))

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

    def is_next(self, event: Event, batch: Numbered | Marker) -> bool:
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

    def leading(self) -> Leading | None:
        """As whoever judges producers must know it; None where it does not lead."""
        leads_from = self.replica.leads_from
        if leads_from is None:
            return None
        return Leading(self.record.me.node, self.replica.epoch, leads_from, self.applied.offset)

    def manifest(self) -> Manifest:
        """All that a snapshot says, but for the machine itself."""
        return Manifest(self.applied, self.applied_checksum, self.tally.snapshot(), b"", self.standing)

    def snapshot_of(self, size: int) -> Snapshot:
        """What the core knows a manifest by that was taken or restored just now."""
        return Snapshot(self.applied, self.applied_checksum, size, self.standing)

    def restore(self, data: bytes) -> None:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        self.tally.restore(manifest.tally)
        self.machine.restore(manifest.machine)
        self.applied, self.applied_checksum = manifest.last, manifest.checksum
        self.appended = manifest.last
        self.stands = manifest.last.offset
        self.standing = manifest.standing
        self.halted = None


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
        base_checksum=log.base_checksum,
        generation=record.turn,
        voids=record.is_voiding,
        compacted=log.compacted,
    )
