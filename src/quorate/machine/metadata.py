"""What the metadata group's log says: which nodes there are, which topics, and who copies which partition.

Every node follows that log and holds the same image. It changes through commands, each the value of a record in
a settled entry. A command is decided when it is settled, in the order of the log, so that two nodes that ask
for the same name at once hear the same answer: what the image says afterwards is what happened. One that
cannot be read, or that no longer fits, changes nothing.
"""

from __future__ import annotations

import msgspec

from quorate import batch
from quorate.core.entry import (
    TOPIC_ID_BYTES,
    Header,
    Kind,
    Member,
    Partition,
    number_of,
    partition_of,
)
from quorate.machine import changing, compactions, shards, turning
from quorate.machine.changing import Change, Start
from quorate.machine.cluster import (
    FIRST_LEVEL,
    AlterCluster,
    Cluster,
    RaiseLevel,
    SetHome,
    change_cluster,
    drained_nodes,
    home_number,
)
from quorate.machine.compactions import Compaction, LetCompact, NoteReady, Step, compacts
from quorate.machine.purpose import HOMES, TABLES, TOPIC, purpose_of
from quorate.machine.turning import Turned, Turning
from quorate.machine.users import PutUser, RemoveUser, User, Users, change_users

METADATA_TOPIC = bytes(15) + b"\1"
METADATA = partition_of(METADATA_TOPIC, 0)
"""The partition that the metadata group replicates. No topic of a user has its topic id."""

PRODUCER_IDS_BLOCK = 1000
"""A node fetches so many producer ids at once."""
PARTITIONS_COUNT_MAX = 3000
"""Of all topics together, for now: with 10,000, checkpoints of the journal leave no time for anything else."""
FIRST_ADDED = 2
ADDED_MAX = 1 << 40
"""Incarnations of replicas that were added to a partition lie between these; that of a disk is 1, or above."""
DELETED_KEPT_MAX = 100_000
"""Topics whose deletion is remembered: a node that was away learns from it what to remove."""
FIRST_INCARNATION = 1
"""Of every directory that was not made in place of another one: the first voters are named with it."""
REPLACED_KEPT_MAX = 1000
"""Replaced incarnations that are remembered of each node, the newest."""

REPLICATIONS = turning.PROTOCOLS
OPERATED = "coordinated"
"""The one in which an operator chooses who leads, by what is in the copies' logs: nobody is preferred."""
OVERSEEN = (OPERATED, "isr")
"""Those in which somebody outside says who leads, and keeps that in `shards`."""


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    """Where clients reach a node, and which life of its disk it is in."""

    node: int
    incarnation: int
    host: str
    port: int
    disk: int = 0
    """Which directory it is; 0: not known."""
    rack: str = ""
    """What it may lose at once with others: copies are put into different ones. Empty: not known."""
    listeners: dict[str, tuple[str, int]] = {}
    """Where it is found on each of its listeners; none: it has one, named `client`, at the address above."""
    knows: int = FIRST_LEVEL
    """The newest feature level that its code knows."""

    def on_listener(self, name: str) -> tuple[str, int] | None:
        """Where somebody is sent who asked on a listener of that name; None: this node has none."""
        if self.listeners:
            return self.listeners.get(name)
        return (self.host, self.port) if name == "client" else None

    @property
    def for_nodes(self) -> tuple[str, int]:
        """Where other nodes, and their tools, find it."""
        return self.listeners.get("nodes", (self.host, self.port))

    def is_another_disk(self, *, incarnation: int, disk: int) -> bool:
        """A directory that was made anew in place of this one, as if nothing had been promised with it."""
        return incarnation == self.incarnation and 0 not in (disk, self.disk) and disk != self.disk


class Topic(msgspec.Struct, frozen=True):
    """One creation of a topic. `ensembles` has the replicas of each partition, the preferred leader first."""

    name: str
    id: bytes
    replication: str
    ensembles: tuple[tuple[Member, ...], ...]
    config: dict[str, str] = {}
    changes: dict[int, Change] = {}
    """Partitions whose ensemble is to be another one."""
    changed: dict[int, int] = {}
    """Where in the log the last change of each was wanted."""
    starts: dict[int, Start] = {}
    """Partitions of which not everything has to be kept any longer."""
    turning: Turning | None = None
    """Its copies are to agree in another way."""
    turned: dict[int, Turned] = {}
    """Partitions whose copies once agreed otherwise: how they do now, and since when."""
    compactions: dict[int, Compaction] = {}
    """Partitions of which only the newest record of each key has to be kept."""

    @property
    def purpose(self) -> str:
        """What its log is for (machine/purpose.py)."""
        return purpose_of(self.config)

    @property
    def is_tables(self) -> bool:
        """A group of tables: its one partition holds transactions."""
        return self.purpose == TABLES

    @property
    def is_internal(self) -> bool:
        return self.purpose in HOMES

    def protocol(self, number: int) -> str:
        """How the copies of a partition agree."""
        turned = self.turned.get(number)
        return turned.protocol if turned is not None else self.replication

    def is_overseen(self, number: int) -> bool:
        return self.protocol(number) in OVERSEEN

    def is_operated(self, number: int) -> bool:
        return self.protocol(number) == OPERATED

    def generation(self, number: int) -> int:
        """The turn that its copies are of; 0: there was none."""
        turned = self.turned.get(number)
        return turned.generation if turned is not None else 0

    def partitions(self) -> list[Partition]:
        return [partition_of(self.id, number) for number in range(len(self.ensembles))]

    def wanted(self, number: int) -> tuple[Member, ...]:
        """Who copies a partition, or shall, where a change is open."""
        change = self.changes.get(number)
        return self.ensembles[number] if change is None else change.wanted

    def holders(self, number: int) -> tuple[Member, ...]:
        """Everybody who has a replica of a partition: those who count, and those who may be about to."""
        change = self.changes.get(number)
        if change is None:
            return self.ensembles[number]
        return tuple(dict.fromkeys((*change.wanted, *self.ensembles[number], *change.others)))


# --- commands ---


class RegisterNode(msgspec.Struct, frozen=True, tag="register node"):
    """A node says where it is to be found."""

    info: NodeInfo


class CreateTopic(msgspec.Struct, frozen=True, tag="create topic"):
    """Settled as created if the name is free, and then the image's topic has this very id."""

    topic: Topic


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete topic"):
    id: bytes


class TakeProducerIds(msgspec.Struct, frozen=True, tag="take producer ids"):
    """A node takes the next block of producer ids for its clients."""

    node: int


class ChangeEnsemble(msgspec.Struct, frozen=True, tag="change ensemble"):
    """Let these nodes copy a partition, the preferred leader first. Its leader sees to it."""

    id: bytes
    partition: int
    nodes: tuple[int, ...]
    seen: int | None = None
    """The version of the image that whoever wants it has seen. Where the partition was changed since, nothing
    is done: an order that was held up does not undo a newer one. None: in any case."""


class NoteReached(msgspec.Struct, frozen=True, tag="note reached"):
    """The partition's group has got where that change wanted it; forgotten if another is wanted by now."""

    id: bytes
    partition: int
    at: int


class ForgetNode(msgspec.Struct, frozen=True, tag="forget node"):
    """That node is gone for good, and has no copies. The directory that it was registered with never counts
    again."""

    node: int
    seen: int | None = None
    """The version of the image that whoever wants it has seen. Where the node was registered anew since,
    nothing is done. None: in any case."""


class AlterTopic(msgspec.Struct, frozen=True, tag="alter topic"):
    """Let these settings be what is said, and those that are only named be as if nobody had given them."""

    id: bytes
    settings: dict[str, str | None]
    """None: its default."""


class AddPartitions(msgspec.Struct, frozen=True, tag="add partitions"):
    """Let a topic that has `first` partitions have these, too. One that has another count by now is left alone."""

    id: bytes
    first: int
    ensembles: tuple[tuple[Member, ...], ...]


class LetStart(msgspec.Struct, frozen=True, tag="let start"):
    """Let logs start there. A start never falls: those that would are left as they are."""

    starts: tuple[tuple[Partition, Start], ...]


Command = (
    RegisterNode
    | CreateTopic
    | DeleteTopic
    | TakeProducerIds
    | ChangeEnsemble
    | NoteReached
    | ForgetNode
    | AlterTopic
    | AddPartitions
    | LetStart
    | turning.TurnTopic
    | turning.NoteBarrier
    | LetCompact
    | NoteReady
    | shards.WriteShard
    | PutUser
    | RemoveUser
    | AlterCluster
    | RaiseLevel
    | SetHome
)


class _State(msgspec.Struct):
    """The image as it stands in snapshots."""

    nodes: dict[int, NodeInfo] = {}
    topics: dict[str, Topic] = {}
    deleted: dict[bytes, None] = {}
    producer_ids: dict[int, tuple[int, int]] = {}
    next_producer_id: int = 0
    version: int = -1
    lives: dict[int, int] = {}
    """Where in the log each node was first registered with the incarnation that it has."""
    replaced: dict[int, tuple[int, ...]] = {}
    """The incarnations that each node was registered with before, the newest last. None of them comes back.
    A node that is in here and is not registered was forgotten."""
    shards: shards.Shards = {}
    """What operators keep, by partition."""
    users: Users = msgspec.field(default_factory=Users)
    cluster: Cluster = msgspec.field(default_factory=Cluster)


_encode = msgspec.msgpack.Encoder().encode
_decode_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_decode_state: msgspec.msgpack.Decoder[_State] = msgspec.msgpack.Decoder(_State)


def command_batch(*commands: Command) -> bytes:
    """Commands as what is proposed to the metadata group."""
    return batch.encode_records([(None, _encode(command)) for command in commands])


class Metadata:
    """The image. Whoever reads it leaves it as it is: only `settle` and `restore` change it."""

    __slots__ = ("_state", "by_id")

    def __init__(self) -> None:
        self._state = _State()
        self.by_id: dict[bytes, Topic] = {}

    @property
    def nodes(self) -> dict[int, NodeInfo]:
        return self._state.nodes

    @property
    def topics(self) -> dict[str, Topic]:
        return self._state.topics

    @property
    def version(self) -> int:
        """The offset of the last command that changed something."""
        return self._state.version

    def is_deleted(self, topic_id: bytes) -> bool:
        """True only where a command said so: nothing is removed because it is missing here (rule 4)."""
        return topic_id in self._state.deleted

    def producer_ids(self, node: int, settled_at: int) -> range | None:
        """The block that this node took with the command at that offset."""
        at, first = self._state.producer_ids.get(node, (-1, 0))
        return range(first, first + PRODUCER_IDS_BLOCK) if at == settled_at else None

    def is_of_this_life(self, member: Member) -> bool:
        """Whether the disk on which that replica was made is still its node's.

        A topic's first replicas have the incarnations of their nodes. One that is added later has the offset of
        the command that added it: a node that left an ensemble has forgotten what it promised there, and
        comes back as somebody else, however often (rule 4).
        """
        info = self._state.nodes.get(member.node)
        if info is None:
            return False
        since = max(self._state.lives.get(member.node, 0), FIRST_ADDED)
        return member.incarnation == info.incarnation or since <= member.incarnation < ADDED_MAX

    def is_replaced(self, node: int, *, incarnation: int) -> bool:
        """Whether that directory is never this node's again: another has its place, or it was forgotten."""
        known, before = self._state.nodes.get(node), self._state.replaced.get(node, ())
        if (known is None and not before) or (known is not None and known.incarnation == incarnation):
            return False
        # Nobody is replaced by the first: where another one is known, even in an image from before replaced
        # ones were remembered, the first came before it.
        return incarnation == FIRST_INCARNATION or incarnation in before

    def is_forgotten(self, node: int) -> bool:
        """A command said so, and it has not been registered with another directory since."""
        return node in self._state.replaced and node not in self._state.nodes

    def forgotten(self) -> list[int]:
        return [node for node in self._state.replaced if node not in self._state.nodes]

    def held_by(self, node: int) -> list[str]:
        """The partitions of which a node has a copy, or is to have one."""
        return [
            f"{name}/{number}"
            for name, topic in sorted(self._state.topics.items())
            for number in range(len(topic.ensembles))
            if any(member.node == node for member in topic.holders(number))
        ]

    def shard(self, partition: Partition) -> shards.Stored | None:
        """What an operator has written of it last."""
        return self._state.shards.get(partition)

    @property
    def users(self) -> dict[str, User]:
        """Whose passwords are known, by name."""
        return self._state.users.by_name

    @property
    def users_secret(self) -> bytes:
        """What nobody outside knows; empty as long as there never was a user."""
        return self._state.users.secret

    @property
    def cluster(self) -> Cluster:
        return self._state.cluster

    def life_of(self, node: int) -> int:
        """A registered node's registration epoch: where in the log its directory was first registered."""
        return self._state.lives.get(node, 0)

    def drained(self) -> list[int]:
        """Nodes that are to have no copies, and get none where there are others."""
        return drained_nodes(self._state.cluster.config, self._state.lives)

    def home_of(self, kind: str, name: str) -> Partition | None:
        """Where a group or a transaction of that name lives; None: its kind has no home yet."""
        topic = self.by_id.get(self._state.cluster.homes.get(kind, b""))
        return partition_of(topic.id, home_number(name, len(topic.ensembles))) if topic is not None else None

    def partitions_count(self) -> int:
        return sum(len(topic.ensembles) for topic in self._state.topics.values())

    # --- as a machine ---

    def settle(self, header: Header, checksum: int, payload: bytes | bytearray | memoryview) -> None:
        if header.kind == Kind.CONTROL:
            return
        try:
            records = batch.decode_records(payload)
            commands = [_decode_command.decode(record.value or b"") for record in records]
        except (batch.BadBatch, msgspec.MsgspecError, RecursionError):
            return
        for number, command in enumerate(commands):
            if self._apply(command, header.offset + number):
                self._state.version = header.offset + number

    def snapshot(self) -> bytes:
        return _encode(self._state)

    def restore(self, data: bytes) -> None:
        self._state = _decode_state.decode(data)
        self.by_id = {topic.id: topic for topic in self._state.topics.values()}

    # --- commands ---

    def _apply(self, command: Command, offset: int) -> bool:
        """Whether it changed anything."""
        if isinstance(command, CreateTopic):
            return self._create(command.topic)
        if isinstance(command, DeleteTopic):
            return self._delete(command.id)
        if isinstance(command, RegisterNode):
            return self._register(command.info, offset)
        if isinstance(command, ChangeEnsemble):
            return self._change(command, offset)
        if isinstance(command, NoteReached):
            return self._reached(command)
        if isinstance(command, turning.TurnTopic):
            return self._turn(command, offset)
        if isinstance(command, turning.NoteBarrier):
            return self._note_barrier(command, offset)
        if isinstance(command, shards.WriteShard):
            topic = self.by_id.get(command.partition[:TOPIC_ID_BYTES])
            is_of = topic is None or turning.is_of(
                topic.protocol(number_of(command.partition)), command.shard
            )
            if not is_of or self.is_deleted(command.partition[:TOPIC_ID_BYTES]):
                return False
            return shards.write(self._state.shards, command, offset)
        if isinstance(command, ForgetNode):
            return self._forget(command)
        if isinstance(command, AlterTopic):
            return self._alter(command)
        if isinstance(command, AddPartitions):
            return self._add_partitions(command)
        if isinstance(command, LetStart):
            return sum(self._let_start(*each) for each in command.starts) > 0
        if isinstance(command, LetCompact | NoteReady):
            return sum(self._compact(*each) for each in compactions.steps_of(command)) > 0
        if isinstance(command, PutUser | RemoveUser):
            return change_users(self._state.users, command, offset)
        if isinstance(command, AlterCluster | RaiseLevel | SetHome):
            known = min((info.knows for info in self._state.nodes.values()), default=FIRST_LEVEL)
            homes = {topic.id: topic.purpose for topic in self._state.topics.values() if topic.is_internal}
            return change_cluster(self._state.cluster, command, known=known, homes=homes)
        state = self._state
        state.producer_ids[command.node] = (offset, state.next_producer_id)
        state.next_producer_id += PRODUCER_IDS_BLOCK
        return True

    def _register(self, info: NodeInfo, offset: int) -> bool:
        state, known = self._state, self._state.nodes.get(info.node)
        if known is not None and known.is_another_disk(incarnation=info.incarnation, disk=info.disk):
            return False
        if self.is_replaced(info.node, incarnation=info.incarnation):
            return False
        if state.version == -1:  # Of a new cluster: the others were installed with the first.
            state.cluster.level = max(info.knows, FIRST_LEVEL)
        if info.knows < state.cluster.level:
            return False
        if known is None or known.incarnation != info.incarnation:
            state.lives[info.node] = offset
        if known is not None and known.incarnation != info.incarnation:
            self._note_replaced(known)
        state.nodes[info.node] = info
        return known != info

    def _note_replaced(self, info: NodeInfo) -> None:
        replaced = (*self._state.replaced.get(info.node, ()), info.incarnation)
        self._state.replaced[info.node] = replaced[-REPLACED_KEPT_MAX:]

    def _forget(self, command: ForgetNode) -> bool:
        state, node = self._state, command.node
        if node not in state.nodes or self.held_by(node):
            return False
        if command.seen is not None and state.lives.get(node, 0) > command.seen:
            return False
        self._note_replaced(state.nodes.pop(node))
        state.lives.pop(node, None)
        state.producer_ids.pop(node, None)
        return True

    def _create(self, topic: Topic) -> bool:
        state = self._state
        taken = topic.name in state.topics or topic.id in self.by_id or topic.id in state.deleted
        if taken or not self._can_hold(topic.ensembles):
            return False
        if len(topic.id) != len(METADATA_TOPIC) or topic.id == METADATA_TOPIC:
            return False
        self._put(Topic(topic.name, topic.id, topic.replication, topic.ensembles, topic.config))
        return True

    def _can_hold(self, ensembles: tuple[tuple[Member, ...], ...]) -> bool:
        """Whether there is room for so many more partitions, and everybody who is to copy them is known."""
        too_many = self.partitions_count() + len(ensembles) > PARTITIONS_COUNT_MAX
        members = {member.node for ensemble in ensembles for member in ensemble}
        return bool(ensembles) and all(ensembles) and not too_many and members.issubset(self._state.nodes)

    def _alter(self, command: AlterTopic) -> bool:
        topic = self.by_id.get(command.id)
        if topic is None:
            return False
        merged = {**topic.config, **command.settings}
        config = {name: value for name, value in merged.items() if value is not None}
        if config == topic.config:
            return False
        kept = topic.compactions if compacts(config) else compactions.without_wishes(topic.compactions)
        self._put(msgspec.structs.replace(topic, config=config, compactions=kept))
        return True

    def _add_partitions(self, command: AddPartitions) -> bool:
        topic = self.by_id.get(command.id)
        if topic is None or topic.is_tables or len(topic.ensembles) != command.first:
            return False
        if topic.is_internal or not self._can_hold(command.ensembles):
            return False
        self._put(msgspec.structs.replace(topic, ensembles=(*topic.ensembles, *command.ensembles)))
        return True

    def _let_start(self, partition: Partition, start: Start) -> bool:
        topic, number = self.by_id.get(partition[:TOPIC_ID_BYTES]), number_of(partition)
        if topic is None or topic.is_tables or number >= len(topic.ensembles):
            return False
        return self._put(changing.started(topic, number, start))

    def _compact(self, partition: Partition, step: Step) -> bool:
        topic, number = self.by_id.get(partition[:TOPIC_ID_BYTES]), number_of(partition)
        if topic is None or topic.purpose != TOPIC or number >= len(topic.ensembles):
            return False
        return self._put(compactions.stepped(topic, number, step))

    def _change(self, command: ChangeEnsemble, offset: int) -> bool:
        topic, nodes = self.by_id.get(command.id), command.nodes
        if topic is None or not 0 <= command.partition < len(topic.ensembles):
            return False
        if not nodes or len(set(nodes)) < len(nodes) or not self._state.nodes.keys() >= set(nodes):
            return False
        if command.seen is not None and topic.changed.get(command.partition, -1) > command.seen:
            return False
        if topic.turning is not None:
            return False
        present = [member for member in topic.holders(command.partition) if self.is_of_this_life(member)]
        return self._put(changing.wanted(topic, command.partition, nodes, present, offset))

    def _reached(self, command: NoteReached) -> bool:
        topic = self.by_id.get(command.id)
        return topic is not None and self._put(changing.reached(topic, command.partition, command.at))

    def _turn(self, command: turning.TurnTopic, offset: int) -> bool:
        topic = self.by_id.get(command.id)
        return topic is not None and self._put(turning.wanted(topic, command, offset))

    def _note_barrier(self, command: turning.NoteBarrier, offset: int) -> bool:
        topic, stored = self.by_id.get(command.partition[:TOPIC_ID_BYTES]), self.shard(command.partition)
        turned = None if topic is None else turning.noted(topic, command, stored)
        if turned is None:
            return False
        topic, state = turned
        self._put(topic)
        self._state.shards.pop(command.partition, None)
        if (
            state is not None
        ):  # A version that no earlier generation had: there are fewer writes than commands.
            self._state.shards[command.partition] = shards.Stored(offset, offset, state)
        return True

    def _put(self, topic: Topic | None) -> bool:
        """Let that be the topic; False: nothing is to change."""
        if topic is not None:
            self._state.topics[topic.name] = self.by_id[topic.id] = topic
        return topic is not None

    def _delete(self, topic_id: bytes) -> bool:
        topic = self.by_id.get(topic_id)
        if topic is None or topic.is_internal:
            return False
        state = self._state
        del self.by_id[topic_id]
        del state.topics[topic.name]
        for partition in topic.partitions():
            state.shards.pop(partition, None)
        state.deleted[topic_id] = None
        if len(state.deleted) > DELETED_KEPT_MAX:
            del state.deleted[next(iter(state.deleted))]
        return True
