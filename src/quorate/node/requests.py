"""What a client may ask a node, and the answers: a small protocol for tools, tests and benchmarks.

A request's letter holds a number that its answer repeats; answers come in any order. Batches are attached to
`Propose`, entries to `Fetched`.
"""

from __future__ import annotations

import msgspec

from quorate.batch import BATCH_MIN
from quorate.core.effects import Outcome
from quorate.core.entry import EntryId, Member, Membership
from quorate.core.events import ReadLevel
from quorate.machine import shards
from quorate.machine.cluster import Cluster
from quorate.machine.metadata import NodeInfo, Topic
from quorate.node.health import Health
from quorate.node.held_back import HoldsBack, OpenTransaction
from quorate.node.letters import BadLetter, opened, seal
from quorate.storage.disk import Buffer
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, parse


class Propose(msgspec.Struct, frozen=True, gc=False, tag="propose"):
    """Append the attached batches, of these sizes, as one."""

    partition: bytes
    sizes: tuple[int, ...]


class Fetch(msgspec.Struct, frozen=True, gc=False, tag="fetch"):
    """Settled entries of this node's replica, from the one that holds `offset` on."""

    partition: bytes
    offset: int
    bytes_max: int


class Read(msgspec.Struct, frozen=True, gc=False, tag="read"):
    """Up to where may be read? Answered with that offset; see `ReadLevel`."""

    partition: bytes
    level: ReadLevel
    offset: int = -1


class Change(msgspec.Struct, frozen=True, gc=False, tag="change"):
    """Let these nodes copy the partition, the preferred leader first.

    Of a topic's partition any node takes it, and answers when it is known to be wanted, which is before it is
    so. Of the metadata group its leader takes it, and answers when it is so.
    """

    partition: bytes
    nodes: tuple[int, ...]
    seen: int | None = None
    """The version that the client has seen: of the image, or of the metadata group's membership. Refused if
    the partition was changed since. None: in any case."""


class Forget(msgspec.Struct, frozen=True, gc=False, tag="forget"):
    """That node is gone for good. For the metadata group's leader; answered when it is forgotten."""

    node: int
    seen: int | None = None
    """The version of the image that the client has seen. Refused if the node was registered anew since."""


class Transfer(msgspec.Struct, frozen=True, gc=False, tag="transfer"):
    """Let that node lead, or anybody else than who leads now. Answered when it is so, with who leads.

    For the leader; where somebody oversees the partition, for the metadata group's.
    """

    partition: bytes
    to: int
    """0: anybody else."""


class MayWrite(msgspec.Struct, frozen=True, gc=False, tag="may write?"):
    """Is a transaction of this producer open in that partition? For whoever leads the home of its name."""

    home: bytes
    name: str
    producer_id: int
    epoch: int
    partition: bytes


class MarkEnd(msgspec.Struct, frozen=True, gc=False, tag="mark end"):
    """A transaction is decided: write its marker. For the partition's leader; answered when that is settled."""

    partition: bytes
    producer_id: int
    epoch: int
    number: int
    commit: bool
    home_epoch: int
    now_ms: int


class CountRecords(msgspec.Struct, frozen=True, gc=False, tag="count records"):
    """How many records has this producer in its open transaction there? Let there be no more. For the leader."""

    partition: bytes
    producer_id: int


class AskStatus(msgspec.Struct, frozen=True, gc=False, tag="status?"):
    """How is every replica?"""


class AskImage(msgspec.Struct, frozen=True, gc=False, tag="image?"):
    """What does the node know of the cluster? With `topics`, of these; None: of all.

    With `current` it answers when its image has everything that was settled before it was asked: whatever
    anybody was told before is in there.
    """

    topics: tuple[str, ...] | None = None
    current: bool = False


class Answered(msgspec.Struct, frozen=True, gc=False, tag="answered"):
    """What became of a proposal, a read or an order; `leader` is a hint where it must be sent instead."""

    outcome: Outcome
    offset: int
    epoch: int
    leader: int
    why: str = ""
    """In words, where an order was refused."""
    timestamp: int = 0
    """A settled proposal's, in milliseconds, where leaders give them out (`raft.ceiling_s`)."""


class Fetched(msgspec.Struct, frozen=True, gc=False, tag="fetched"):
    """So many entries are attached; this replica has settled up to `commit`, its log starts behind `base`."""

    commit: int
    base: int
    frames_count: int


class ReplicaStatus(msgspec.Struct, frozen=True, gc=False):
    partition: bytes
    role: str
    leader: int
    epoch: int
    head: EntryId
    commit: int
    digest: int
    """Over every settled entry: two replicas with the same commit and digest hold the same."""
    me: Member = Member(0, 0)
    membership: Membership = Membership(())
    """As it is in force there, settled or not."""
    lags: dict[int, int] = {}
    """Only the leader knows: offsets that each other node has not confirmed yet."""
    protocol: str = "raft"
    base: int = -1
    """The offset just below the first one kept."""
    in_sync: tuple[int, ...] = ()
    """Only the leader knows: nodes that count and have everything that is settled; of `isr`, the agreed ISR."""
    faulty: tuple[tuple[int, int], ...] = ()
    """(first, last) offset of what cannot be read there, of at most a hundred places."""
    unsettled_s: float = 0.0
    """Only the leader knows: how long the oldest entry that is not settled has waited; 0: none waits."""
    halted: str = ""
    """Why what is settled is not applied there any more; empty: it is."""
    compacted: int = -1
    """Up to which offset only the newest record of each key is left there; -1: all are."""
    held_back: HoldsBack | None = None
    """By which open transaction readers of committed records are; None: by none."""
    barrier: int = -1
    """The offset of the entry in its log that ends its protocol, settled or not; -1: none does."""


class NatsStatus(msgspec.Struct, frozen=True, gc=False):
    """How a node's messages from NATS are coming in."""

    servers: str
    """Without passwords."""
    why_not: str
    """It is not connected, or not allowed to read, in words; empty: it is."""
    subjects: tuple[str, ...]
    """Those it is subscribed to, or will be: of the partitions that it leads."""
    written_count: int
    refused_count: int


class Status(msgspec.Struct, frozen=True, gc=False, tag="status"):
    node: int
    connected: tuple[int, ...]
    dropped_count: int
    replicas: tuple[ReplicaStatus, ...]
    metadata_leader: int = 0
    """As this node knows it; 0: nobody, or there is no metadata group."""
    registered: tuple[int, ...] = ()
    """The nodes in this node's image; it is in there itself when it is ready."""
    topics_count: int = 0
    nats: NatsStatus | None = None
    """None: no NATS server was named to it, and nothing that it leads asks for one."""
    health: Health | None = None
    """None: its version does not say."""
    transactions: tuple[OpenTransaction, ...] = ()
    """Those that it coordinates, and that are not over: the oldest hundred."""


class Image(msgspec.Struct, frozen=True, tag="image"):
    """What a node's image says; a topic that is not in there was not there."""

    node: int
    version: int
    nodes: tuple[NodeInfo, ...]
    topics: tuple[Topic, ...]
    lost: tuple[tuple[str, int, int], ...] = ()
    """(topic, partition, node) of wanted replicas whose disk is gone, though their node is there."""
    metadata: Membership = Membership(())
    """Who votes in the metadata group and who follows, as far as that is settled."""
    is_current: bool = False
    """It was asked to be, and is: no majority of the metadata group was away."""
    lost_now: tuple[tuple[str, int, int], ...] = ()
    """The same of the replicas that count now: where a majority of them is lost, what is wanted never comes."""
    stored: shards.Shards = {}
    """What whoever oversees a partition keeps of it."""
    users: tuple[str, ...] = ()
    """Who has a password here."""
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    """Its feature level, its settings, and where groups and transactions live."""
    lives: dict[int, int] = {}
    """By node, its registration epoch: where in the log its directory was first registered."""


class Rejected(msgspec.Struct, frozen=True, gc=False, tag="rejected"):
    """The request itself is wrong; nothing was done."""

    why: str


Request = (
    Propose
    | Fetch
    | Read
    | Change
    | Transfer
    | Forget
    | MayWrite
    | MarkEnd
    | CountRecords
    | AskStatus
    | AskImage
)
Answer = Answered | Fetched | Status | Image | Rejected


class _Request(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    content: Request


class _Answer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    content: Answer


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


def encode_request(number: int, request: Request, attachment_bytes: int = 0) -> bytes:
    return seal(_encode(_Request(number, request)), attachment_bytes)


def decode_request(letter: Buffer) -> tuple[int, Request, memoryview]:
    """Number, request and attachment; raises BadLetter."""
    envelope, attachment = opened(letter)
    try:
        request: _Request = _decode_request(envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLetter(f"no request: {error}") from error
    if len(attachment) and not isinstance(request.content, Propose):
        raise BadLetter(f"{len(attachment)} bytes are attached that nothing speaks of")
    return request.number, request.content, attachment


def encode_answer(number: int, answer: Answer, attachment_bytes: int = 0) -> bytes:
    return seal(_encode(_Answer(number, answer)), attachment_bytes)


def decode_answer(letter: Buffer) -> tuple[int, Answer, memoryview]:
    """Number, answer and attachment; raises BadLetter."""
    envelope, attachment = opened(letter)
    try:
        answer: _Answer = _decode_answer(envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLetter(f"no answer: {error}") from error
    return answer.number, answer.content, attachment


BATCHES_COUNT_MAX = 4096
"""More in one turn would keep the node from its heartbeats."""


def attached_batches(request: Propose, attachment: memoryview) -> list[memoryview]:
    """The batches of a proposal, not looked at yet; raises BadLetter."""
    if len(request.sizes) > BATCHES_COUNT_MAX:
        raise BadLetter(
            f"{len(request.sizes)} batches in one proposal, at most {BATCHES_COUNT_MAX} are taken"
        )
    batches = []
    at = 0
    for size in request.sizes:
        if not BATCH_MIN <= size <= len(attachment) - at:
            raise BadLetter(f"a batch of {size} bytes, where {len(attachment) - at} are left")
        batches.append(attachment[at : at + size])
        at += size
    if at != len(attachment) or not batches:
        raise BadLetter(f"{len(attachment) - at} bytes are left behind {len(batches)} batches")
    return batches


def attached_frames(answer: Fetched, attachment: memoryview) -> list[Frame]:
    """The entries of an answer, verified; raises BadLetter."""
    if answer.frames_count * FRAME_HEAD_BYTES > len(attachment):
        raise BadLetter(f"{answer.frames_count} entries cannot be in {len(attachment)} bytes")
    frames = []
    at = 0
    try:
        for _ in range(answer.frames_count):
            frame, at = parse(attachment, at, where="answer")
            frames.append(frame)
    except DamagedFrame as damaged:
        raise BadLetter(str(damaged)) from damaged
    return frames
