"""What a log is made of, as the protocols see it: entry ids, headers and control records.

The core never holds a payload. A `Header` says everything a protocol needs to know about an entry, so that
a 1 MiB batch costs it as much as a 1-byte one. Control entries are the exception: they are few, they are
small, and protocols act on them, so a control entry's header carries the decoded record.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NewType

import msgspec

Partition = NewType("Partition", bytes)
"""16 bytes of topic id and a big-endian 4-byte partition number: the identity that every frame carries."""

TOPIC_ID_BYTES = 16
PARTITION_BYTES = 20

Node = NewType("Node", int)

FORMAT_VERSION = 1
"""The version of messages and frames that this code writes."""


def partition_of(topic_id: bytes, number: int) -> Partition:
    """The identity of partition `number` of one creation of a topic."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return Partition(topic_id + number.to_bytes(4, "big"))


def number_of(partition: Partition) -> int:
    return int.from_bytes(partition[TOPIC_ID_BYTES:], "big")


class Member(msgspec.Struct, frozen=True, gc=False, order=True):
    """One life of one node's disk for a partition. A wiped disk comes back as another incarnation."""

    node: int
    incarnation: int


class EntryId(msgspec.Struct, frozen=True, gc=False, order=True):
    """(epoch, last offset of the entry); ordered by epoch, then offset (OX-4).

    Also used for positions inside an entry: within an epoch every replica cuts its entries at the same
    offsets, so (epoch, offset) decides whether two logs agree there even between boundaries.
    """

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.offset}"


NOWHERE = EntryId(0, -1)
"""The position before the first entry of a log that has lost nothing."""


class Kind(IntEnum):
    """What an entry holds."""

    RECORDS = 0
    CONTROL = 1


class Flag(IntEnum):
    """Bits of a header's flags."""

    SYNCHRONOUS = 1
    TRANSACTIONAL = 2
    COMPACTED = 4
    """Not an entry as it was appended: what is left of it, or of a run of entries whose last one it is named by."""


class NoOp(msgspec.Struct, frozen=True, gc=False, tag="noop"):
    """The first entry of a leader's epoch: commits, by counting, everything before it."""

    leader: int


class Quorums(msgspec.Struct, frozen=True, gc=False):
    """How many of an ensemble must have an entry, and how many must vote for a leader (`confirm`, TT-40)."""

    commit: int
    promote: int


class Wanted(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where an open change of membership is to end."""

    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    version: int = 0
    quorums: Quorums | None = None


class Membership(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="membership"):
    """Who counts from this entry on (YB-12).

    At rest nothing is `wanted`. A change first lets those who are new follow as learners; then it is *joint*:
    `ensemble` is already the wanted one, `outgoing` the one before, and both must agree; then it is at rest
    again. What is wanted stands in the log from the first step, so that every leader can go on with it.
    """

    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    outgoing: tuple[Member, ...] = ()
    wanted: Wanted | None = None
    version: int = 0
    """Of the newest order that it came from."""
    quorums: Quorums | None = None
    """Of `ensemble`; None: majorities."""
    outgoing_quorums: Quorums | None = None
    """Of `outgoing`, while the change is joint."""

    @property
    def voters(self) -> frozenset[Member]:
        """Everybody who counts in one of the ensembles."""
        return frozenset(self.ensemble + self.outgoing)

    @property
    def members(self) -> frozenset[Member]:
        """Everybody who is sent the log."""
        return frozenset(self.ensemble + self.outgoing + self.learners)

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    def __str__(self) -> str:
        def nodes(members: tuple[Member, ...]) -> str:
            return "{" + ",".join(f"n{member.node}" for member in members) + "}"

        said = nodes(self.outgoing) + "+" + nodes(self.ensemble) if self.outgoing else nodes(self.ensemble)
        if self.quorums is not None:
            said += f" by {self.quorums.commit}+{self.quorums.promote}"
        if self.learners:
            said += f" learners {nodes(self.learners)}"
        if self.wanted is not None and not self.outgoing:
            said += f" to be {nodes(self.wanted.ensemble)}"
        return said


class Ceiling(msgspec.Struct, frozen=True, gc=False, tag="ceiling"):
    """No leader of an epoch up to this entry's gives out a timestamp above `upto` (milliseconds; YB-14)."""

    upto: int


class Promote(msgspec.Struct, frozen=True, gc=False, tag="promote"):
    """The first entry of a leader's epoch in `confirm`: settled, it settles all that former leaders left (D6)."""

    leader: int
    former: int
    """The node that led before, as far as the new leader knows; 0: nobody."""


class Confirm(msgspec.Struct, frozen=True, gc=False, tag="confirm"):
    """Every transaction up to `upto` is on a quorum; valid, but for what a ROLLBACK before it names (TT-6)."""

    upto: EntryId


class Rollback(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="rollback"):
    """Once this entry is settled, the records from offset `first` up to it are void (TT-10, D8)."""

    first: int
    forced: bool = False
    """A person ordered it, whatever a former leader may have confirmed."""


class Barrier(msgspec.Struct, frozen=True, gc=False, tag="barrier"):
    """The end of one protocol: nothing above this entry is settled by it, and another begins there (017)."""

    at: int
    """Names the turn that it was written for: above the generation of every log that it is appended to."""


Control = NoOp | Membership | Ceiling | Promote | Confirm | Rollback | Barrier
"""Control records known so far; transaction markers join them."""

STICKY_CONTROLS: tuple[type, ...] = (Membership, Ceiling, Rollback, Barrier)
"""Controls that stay in force after they are settled, and so stay in a log's control index: until the next of
their kind, but each Rollback for as long as its entry is kept, and each Barrier for good."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The controls in force at some place of a log, for whoever does not have the entries before it."""

    membership: Membership | None = None
    """None: the one that the replica was born with."""
    ceiling: int = 0
    barrier: int | msgspec.UnsetType = msgspec.UNSET
    """The turn that the newest Barrier is of; not written where there never was one, so that others are as ever."""
    since: int | msgspec.UnsetType = msgspec.UNSET
    """What `barrier` was when `membership` was said: a replica of a later generation does not go by it."""

    def after(self, control: Control) -> Standing:
        """What stands behind this control."""
        if type(control) is Membership:
            return Standing(control, self.ceiling, self.barrier, self.barrier)
        if type(control) is Ceiling:
            return Standing(self.membership, control.upto, self.barrier, self.since)
        if type(control) is Barrier:
            return Standing(self.membership, self.ceiling, control.at, self.since)
        return self

    @property
    def turned(self) -> int:
        """The turn that the newest Barrier is of; 0: there never was one."""
        return 0 if self.barrier is msgspec.UNSET else self.barrier

    def membership_of(self, generation: int) -> Membership | None:
        """What goes by here for a replica of that generation; None: what it was born with."""
        since = 0 if self.since is msgspec.UNSET else self.since
        return self.membership if since >= generation else None


class Header(msgspec.Struct, frozen=True, gc=False):
    """One entry: it covers offsets `offset … last`; `size` and `crc` are its payload's.

    The size and crc of a control entry that the core itself makes are 0 here: the host encodes the record
    and fills them in on the way to the disk.
    """

    epoch: int
    offset: int
    count: int = 1
    size: int = 0
    kind: int = Kind.RECORDS
    flags: int = 0
    crc: int = 0
    control: Control | None = None

    @property
    def last(self) -> int:
        return self.offset + self.count - 1

    @property
    def id(self) -> EntryId:
        return EntryId(self.epoch, self.offset + self.count - 1)

    def __str__(self) -> str:
        what = type(self.control).__name__.lower() if self.control is not None else f"{self.size}B"
        return f"{self.epoch}-{self.offset}..{self.last} {what}" if self.count > 1 else f"{self.id} {what}"


def in_force(controls: Sequence[Header], *, settled: int) -> list[Header]:
    """Those among a log's controls that still mean something, where everything up to `settled` is settled.

    Settled ones have done their work, but for the newest sticky one of each kind, for every Rollback: that says
    which records are void for as long as they are kept, and for every Barrier: it says whose the others are.
    """
    stand: dict[Any, Header] = {
        header.offset if type(header.control) in (Rollback, Barrier) else type(header.control): header
        for header in controls
        if header.last <= settled and isinstance(header.control, STICKY_CONTROLS)
    }
    above = [header for header in controls if header.last > settled]
    return sorted(stand.values(), key=lambda header: header.offset) + above


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A snapshot on some disk: everything up to `last`, whose frame has `checksum`, in `size` bytes."""

    last: EntryId
    checksum: int
    size: int
    standing: Standing = Standing()


class Span(msgspec.Struct, frozen=True, gc=False):
    """A faulty stretch of a log: bytes that are known to have been there and cannot be read.

    `before` is the entry just below the stretch; `last` is the id of its last entry. Both are always known:
    the next intact frame names its predecessor, and the mark names the head. Any log that holds both ids
    holds the very entries that are missing between them (log matching).
    """

    before: EntryId
    last: EntryId

    @property
    def first_offset(self) -> int:
        return self.before.offset + 1
