"""The metadata group as a node sees it: the image it holds, and commands that change it for everybody.

A command may be given on any node. It is proposed where the group's leader is, and has happened when this
node's own image has it. An unknown outcome is tried again: every command says what is to be, not what is to be
added, so that the second of two changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from quorate.core.entry import Member, Partition, partition_of
from quorate.machine.cluster import KNOWN_LEVEL, AlterCluster
from quorate.machine.levels import level_of
from quorate.machine.metadata import (
    METADATA,
    METADATA_TOPIC,
    PARTITIONS_COUNT_MAX,
    REPLICATIONS,
    AddPartitions,
    AlterTopic,
    ChangeEnsemble,
    Command,
    CreateTopic,
    DeleteTopic,
    Metadata,
    NodeInfo,
    RegisterNode,
    TakeProducerIds,
    Topic,
    command_batch,
)
from quorate.machine.turning import TurnTopic
from quorate.node.client import BadRequest, Client, NotDone, NotWritten, OutcomeUnknown, Unreachable
from quorate.node.config import Address
from quorate.node.logs import WARNING
from quorate.node.placement import place
from quorate.node.requests import Answered, ReplicaStatus, Request
from quorate.node.statuses import replica_status

if TYPE_CHECKING:
    from quorate.node.node import Node

COMMAND_TIMEOUT_S = 10.0
TRY_S = 2.0
"""A leader that hangs is not waited for any longer: commands can be repeated."""
CATCH_UP_S = 2.0
"""Whoever asks for a current image hears after that time what is known; it may be old."""
REGISTER_AGAIN_S = 0.2
REPLICAS_COUNT = 3
"""Copies of a partition, where nobody says how many, and as many nodes are there."""
PARTITIONS_COUNT = 1
PARTITIONS_SETTING, REPLICAS_SETTING = "num.partitions", "default.replication.factor"
"""What the cluster may be set to in their place."""


class NoMetadata(Exception):
    """The metadata group did not settle the command in time; it may yet."""


class TopicExists(Exception):
    """The name is taken."""


class BadTopic(Exception):
    """Such a topic cannot be made, and the text says why."""


class BadReplication(BadTopic):
    """Copies cannot agree like that, here and now."""


class BadChange(Exception):
    """That cannot be made of a topic or a partition that is there, and the text says why."""


class TooNew(BadTopic, BadChange):
    """Not everybody here can be relied on to know such a command."""


class UnknownTopic(Exception):
    """There is no such topic, or no more."""


def no_such_node(node: int, image: Metadata) -> str:
    return f"there is no node {node}; there are: {', '.join(map(str, sorted(image.nodes)))}"


def default_partitions(image: Metadata) -> int:
    return int(image.cluster.config.get(PARTITIONS_SETTING, PARTITIONS_COUNT))


def default_replicas(image: Metadata, nodes_count: int) -> int:
    """Not more than there are nodes."""
    return min(int(image.cluster.config.get(REPLICAS_SETTING, REPLICAS_COUNT)), nodes_count)


def expect_level(level: int, commands: Iterable[Command]) -> None:
    """Raises TooNew for a command that came after the cluster's feature level, which never falls."""
    needed = max(map(level_of, commands))
    if needed > level:
        raise TooNew(
            f"this needs feature level {needed}, and the cluster is at {level}; when every node runs "
            f"a version that knows it, `quorate cluster alter --feature-level {needed}`"
        )


class MetadataClient:
    """Everything that a node asks of the metadata group."""

    def __init__(self, node: Node, rng: Random) -> None:
        self.leaders_version = 0
        """Rises whenever another leader of some partition is known here."""
        self.is_current = False
        """The image has everything that was settled before this process began."""
        self.forgetting: set[int] = set()
        """Nodes that a command which is on its way, proposed here as the leader, is to forget."""
        self._node = node
        self._rng = rng
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._producer_ids: Iterator[int] = iter(())
        self._taking_ids = asyncio.Lock()
        config = node.config
        self._configured = {node.id: config.own_address, **config.peer_addresses()}
        self._client = Client(config.cluster, self._configured, tls=node.security.to_nodes)

    @property
    def image(self) -> Metadata:
        image: Metadata = self._node.host.hosted[METADATA].machine  # type: ignore[assignment]
        return image

    @property
    def controller(self) -> int:
        """The node that leads the metadata group, as far as is known here; 0: nobody is."""
        return self._node.host.hosted[METADATA].leader

    @property
    def is_registered(self) -> bool:
        """Whether clients and other nodes can know of this node."""
        return self.image.nodes.get(self._node.id) == self._me()

    def _me(self) -> NodeInfo:
        address = self._node.config.client_address
        # What `listen` says stands in the address alone, as it did before there were others.
        listeners = {
            name: (listener.advertised.host, listener.advertised.port)
            for name, listener in self._node.config.listeners.items()
        }
        return NodeInfo(
            self._node.id,
            self._node.incarnation,
            address.host,
            address.port,
            self._node.disk,
            rack=self._node.config.rack,
            listeners=listeners,
            knows=KNOWN_LEVEL,
        )

    async def run(self) -> None:
        """Make this node known, and stay until cancelled."""
        async with self._client:
            while True:
                try:
                    await self._look_around()
                    await self.command(RegisterNode(self._me()))
                    break
                except NoMetadata as error:
                    self._node.log(f"not registered yet: {error}; trying again", level=WARNING)
                    await asyncio.sleep(REGISTER_AGAIN_S)
            if self._node.fail_if_replaced() or self._fail_if_too_old():
                return
            self._node.log("registered")
            self.is_current = True
            self._node.following.follow()
            await self._stay_known()

    async def _stay_known(self) -> None:
        """Say once more who this is whenever another node comes with another version; until cancelled.

        An image that an older node made lacks what that one does not know, as do its snapshots. So whoever is new,
        and began with one of these, would not know all of the others.
        """
        known = self._versions()
        while True:
            seen = self._versions()
            if seen == known:
                await self.until_applied(self._node.host.hosted[METADATA].applied.offset + 1)
                continue
            if self._node.fail_if_replaced() or self._fail_if_too_old():
                return
            try:
                await self.command(RegisterNode(self._me()))
            except NoMetadata:
                await asyncio.sleep(REGISTER_AGAIN_S)
                continue
            # Whoever came while that was settled has not been answered: only what was seen before is known.
            me, now = self._node.id, self._versions()
            known = {node: now.get(node, 0) if node == me else seen.get(node, 0) for node in {*seen, me}}

    def _versions(self) -> dict[int, int]:
        return {node: info.knows for node, info in self.image.nodes.items()}

    def _fail_if_too_old(self) -> bool:
        """Stop where everybody goes by more than this code knows: it would take their commands for nothing."""
        level = self.image.cluster.level
        if level > KNOWN_LEVEL:
            self._node.fail(
                f"this cluster goes by feature level {level}, and this version of quorate knows only "
                f"{KNOWN_LEVEL}; install the one that the other nodes have"
            )
        return level > KNOWN_LEVEL

    async def _look_around(self) -> None:
        """A node that is new asks who else there is: others than it was told may lead by now."""
        if self.image.nodes:
            return
        for peer in self._node.config.peers:
            try:
                known = (await self._client.image(peer, ())).nodes
            except (Unreachable, BadRequest):
                continue
            self.know(known)
            if known:
                return

    def know(self, nodes: Iterable[NodeInfo]) -> None:
        """Where other nodes are. What this node was told in its configuration goes before what they say."""
        for info in nodes:
            address = self._configured.get(info.node) or Address(*info.for_nodes)
            self._client.know(info.node, address)
            if info.node != self._node.id:
                self._node.know_peer(info.node, address)

    def forget(self, nodes: Iterable[int]) -> None:
        """They are gone for good, whatever this node was told in its configuration."""
        for node in nodes:
            self._client.forget(node)
            self._node.forget_peer(node)

    async def order(self, partition: Partition, request: Request, *, timeout_s: float) -> Answered:
        """Ask whoever leads a partition; raises NotDone, OutcomeUnknown and BadRequest."""
        self._client.expect_leader(partition, self._node.leader_of(partition)[0])
        return await self._client.order(partition, request, timeout_s=timeout_s)

    # --- commands ---

    async def command(self, *commands: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> int:
        """Settle them, and wait until the image here has them; the offset of the first.

        Raises NoMetadata, and TooNew for what not everybody here knows.
        """
        expect_level(self.image.cluster.level, commands)
        payload = command_batch(*commands)
        deadline = monotonic() + timeout_s
        self._client.expect_leader(METADATA, self.controller)
        while True:
            left_s = min(deadline - monotonic(), TRY_S)
            try:
                settled = await self._client.propose(METADATA, [payload], timeout_s=left_s)
                last = settled.offset + len(commands) - 1
                # Not `wait_for`, which may swallow that a node stops.
                async with asyncio.timeout(deadline - monotonic()):
                    await self.until_applied(last)
                return settled.offset
            except OutcomeUnknown as error:
                if monotonic() >= deadline:
                    raise NoMetadata(f"the metadata group does not answer: {error}") from error
            except (NotWritten, TimeoutError) as error:
                if monotonic() >= deadline or isinstance(error, BadRequest):
                    raise NoMetadata(f"the metadata group has no leader that answers: {error}") from error

    async def create_topic(
        self,
        name: str,
        ensembles: Sequence[Sequence[int]] | None = None,
        *,
        partitions_count: int = -1,
        replicas_count: int = -1,
        replication: str = "raft",
        config: dict[str, str] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """A topic that is in the image when this returns; raises TopicExists, BadTopic, NoMetadata."""
        await self.catch_up()  # A name that was given free is free.
        image = self.image
        if name in image.topics:
            raise TopicExists(f"topic {name!r} is there already")
        if replication not in REPLICATIONS:
            raise BadReplication(
                f"quorate.replication={replication} is unknown; there are: {', '.join(REPLICATIONS)}"
            )
        if ensembles is None:
            count = default_partitions(image) if partitions_count == -1 else partitions_count
            if not 1 <= count <= PARTITIONS_COUNT_MAX - image.partitions_count():
                left = PARTITIONS_COUNT_MAX - image.partitions_count()
                raise BadTopic(f"{count} partitions; from 1 to {left} more are possible")
            # Not fewer because a node is late: whoever wants fewer says so.
            told = {self._node.id, *self._node.config.peers}.difference(image.forgotten())
            everybody_count = max(len(image.nodes), len(told))
            copies = default_replicas(image, everybody_count) if replicas_count == -1 else replicas_count
            if not 1 <= copies <= len(image.nodes):
                raise BadTopic(f"{copies} copies of each partition; {len(image.nodes)} nodes are registered")
            ensembles = place(image, count, copies, heard=self._welcome(image))
        elif len(ensembles) > PARTITIONS_COUNT_MAX - image.partitions_count():
            raise BadTopic(
                f"{len(ensembles)} partitions are too many; all topics have {PARTITIONS_COUNT_MAX}"
            )
        topic = Topic(name, self._new_id(), replication, self._members(image, ensembles), config or {})
        expect_level(image.cluster.level, [CreateTopic(topic)])
        if not validate_only:
            await self.command(CreateTopic(topic))
            if self.image.by_id.get(topic.id) is None:
                if name in self.image.topics:
                    raise TopicExists(f"topic {name!r} is there already")
                raise NoMetadata(f"topic {name!r} was refused: too many partitions, or deleted at once")
        return topic

    def _welcome(self, image: Metadata) -> set[int]:
        """Nodes that are to be given copies of new partitions rather than others."""
        return set(self._node.heard).difference(image.drained())

    def _members(
        self, image: Metadata, ensembles: Sequence[Sequence[int]], *, first: int = 0
    ) -> tuple[tuple[Member, ...], ...]:
        members = []
        for number, nodes in enumerate(ensembles, first):
            unknown = [node for node in nodes if node not in image.nodes]
            if unknown:
                raise BadTopic(f"partition {number}: there is no node {unknown[0]}")
            if not nodes or len(set(nodes)) < len(nodes):
                raise BadTopic(f"partition {number}: name at least one node, and each once")
            members.append(tuple(Member(node, image.nodes[node].incarnation) for node in nodes))
        return tuple(members)

    def _new_id(self) -> bytes:
        topic_id = METADATA_TOPIC
        while topic_id == METADATA_TOPIC or topic_id == bytes(16):
            topic_id = self._rng.getrandbits(128).to_bytes(16, "big")
        return topic_id

    async def delete_topic(self, topic_id: bytes) -> None:
        """Raises UnknownTopic, BadChange, NoMetadata."""
        topic = self.image.by_id.get(topic_id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with id {topic_id.hex()}")
        if topic.is_internal:
            raise BadChange(f"{topic.name} is the cluster's own: what it keeps of {topic.purpose} is needed")
        await self.command(DeleteTopic(topic_id))

    async def alter_cluster(self, settings: dict[str, str | None]) -> None:
        """Let the cluster be set so, None as by default; it is when this returns. Raises TooNew, NoMetadata."""
        await self.command(AlterCluster(settings))

    async def alter_topic(self, topic_id: bytes, settings: dict[str, str | None]) -> None:
        """Let these settings be so, None as by default; they are when this returns.

        Raises UnknownTopic, NoMetadata.
        """
        if topic_id not in self.image.by_id:
            raise UnknownTopic(f"there is no topic with id {topic_id.hex()}")
        await self.command(AlterTopic(topic_id, settings))
        if topic_id not in self.image.by_id:
            raise UnknownTopic(f"the topic with id {topic_id.hex()} has been deleted meanwhile")

    async def add_partitions(
        self,
        topic_id: bytes,
        count: int,
        ensembles: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Let a topic have so many partitions, the new ones on these nodes; it has them when this returns.

        Raises UnknownTopic, BadChange, BadTopic, NoMetadata.
        """
        image = self.image
        topic = image.by_id.get(topic_id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with id {topic_id.hex()}")
        first = len(topic.ensembles)
        left = PARTITIONS_COUNT_MAX - image.partitions_count()
        if topic.is_tables:
            raise BadChange(f"topic {topic.name} is a group of tables, and has one partition")
        if topic.is_internal:
            raise BadChange(
                f"topic {topic.name} is the cluster's own: by the count it is known who lives where"
            )
        if count <= first:
            raise BadChange(f"topic {topic.name} has {first} partitions; more can be added, and none removed")
        if count - first > left:
            raise BadChange(f"{count - first} more partitions are too many; from 1 to {left} are possible")
        if ensembles is None:
            copies = min(len(topic.ensembles[0]), len(image.nodes))
            ensembles = place(image, count - first, copies, heard=self._welcome(image))
        added = self._members(image, ensembles, first=first)
        if not validate_only:
            await self.command(AddPartitions(topic_id, first, added))
            topic = self.image.by_id.get(topic_id)
            if topic is None:
                raise UnknownTopic(f"the topic with id {topic_id.hex()} has been deleted meanwhile")
            if len(topic.ensembles) != count:
                raise BadChange(f"topic {topic.name} was given other partitions at the same time; look again")
        return topic

    async def change_ensemble(
        self, topic_id: bytes, number: int, nodes: Sequence[int], *, seen: int | None = None
    ) -> None:
        """Let these nodes copy that partition; it is known to be wanted when this returns.

        With `seen`, only if nobody has changed it since the image had that version.
        Raises UnknownTopic, BadChange, NoMetadata.
        """
        if topic_id not in self.image.by_id or not self.image.nodes.keys() >= set(nodes):
            await self.catch_up()  # It may have come about just now, elsewhere.
        image = self.image
        topic = image.by_id.get(topic_id)
        if topic is None or not 0 <= number < len(topic.ensembles):
            raise UnknownTopic(f"there is no partition {number} of topic {topic_id.hex()}")
        if not nodes:
            raise BadChange("the last copy cannot be removed; delete the topic if it is not needed")
        stored = image.shard(partition_of(topic_id, number))
        if stored is not None and len(nodes) < (least := getattr(stored.shard, "min_isr", 1)):
            raise BadChange(
                f"{least} copies must be in sync for anything to be written (min.insync.replicas, as "
                f"{topic.name} was made), and there would be {len(nodes)}"
            )
        for node in nodes:
            if node not in image.nodes:
                raise BadChange(no_such_node(node, image))
        if len(set(nodes)) < len(nodes):
            raise BadChange("a node is named twice; one copy on each")
        if topic.turning is not None:
            raise BadChange(
                f"the copies of {topic.name} are about to agree by {topic.turning.to}, and stay where they are "
                f"meanwhile; `quorate topic describe {topic.name}` says how far that is"
            )
        await self.command(ChangeEnsemble(topic_id, number, tuple(nodes), seen))
        changed = self.image.by_id.get(topic_id)
        if changed is None:
            raise UnknownTopic(f"topic {topic.name} has been deleted meanwhile")
        if tuple(member.node for member in changed.wanted(number)) != tuple(nodes):
            raise BadChange(
                f"partition {number} of {topic.name} was changed by somebody else at the same time"
            )

    async def turn_topic(self, topic_id: bytes, to: str, *, seen: int | None = None) -> Topic:
        """Let the copies of a topic agree like that; it is known to be wanted when this returns.

        With `seen`, only if nobody has wanted another turn since the image had that version.
        Raises UnknownTopic, BadChange, NoMetadata.
        """
        if topic_id not in self.image.by_id:
            await self.catch_up()  # It may have come about just now, elsewhere.
        topic = self.image.by_id.get(topic_id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with id {topic_id.hex()}")
        if to not in REPLICATIONS:
            raise BadChange(f"quorate.replication={to} is unknown; there are: {', '.join(REPLICATIONS)}")
        if topic.is_internal:
            raise BadChange(f"{topic.name} is the cluster's own, and its copies agree by {topic.replication}")
        if topic.changes:
            raise BadChange(
                f"copies of {topic.name} are on their way to other nodes; wait until they are there, or call it off"
            )
        await self.command(TurnTopic(topic_id, to, seen))
        turned = self.image.by_id.get(topic_id)
        if turned is None:
            raise UnknownTopic(f"topic {topic.name} has been deleted meanwhile")
        if to != (turned.turning.to if turned.turning is not None else turned.replication):
            raise BadChange(f"topic {topic.name} was changed by somebody else at the same time; look again")
        return turned

    async def move_leader(self, partition: Partition, *, timeout_s: float) -> bool:
        """Let somebody else lead a partition that is overseen; whether that is so."""
        try:
            await self.let_lead(partition, 0, timeout_s=timeout_s)
        except BadChange:
            return False
        return True

    async def let_lead(self, partition: Partition, to: int, *, timeout_s: float) -> None:
        """Let that node lead a partition, or, with 0, anybody else; raises BadChange, with the reason."""
        stored = self.image.shard(partition)
        # Whoever oversees it is where the metadata group is led.
        asked = self._node.leader_of(partition)[0] if stored is None else self.controller
        self._client.expect_leader(partition, asked)
        try:
            await self._client.transfer(partition, to, timeout_s=timeout_s)
        except (NotDone, BadRequest, OutcomeUnknown) as error:
            raise BadChange(str(error)) from None

    async def leader_status(self) -> ReplicaStatus | None:
        """How the metadata group's leader sees its followers; None: nobody who leads it answers."""
        node = self._node
        if node.is_leader(METADATA):
            return replica_status(node.host.hosted[METADATA])
        try:
            async with asyncio.timeout(CATCH_UP_S):
                status = await self._client.status(self.controller or node.id)
        except (TimeoutError, Unreachable):
            return None
        found = (each for each in status.replicas if each.partition == METADATA and each.role == "leader")
        return next(found, None)

    async def next_producer_id(self) -> int:
        """One that no producer of this cluster ever had; raises NoMetadata."""
        async with self._taking_ids:
            while True:
                for producer_id in self._producer_ids:
                    return producer_id
                at = await self.command(TakeProducerIds(self._node.id))
                # None where an older command of ours, thought lost, was settled after this one.
                self._producer_ids = iter(self.image.producer_ids(self._node.id, at) or ())

    # --- what the log brings ---

    async def catch_up(self) -> bool:
        """Until the image has everything that was settled before this was called; False: it may not have."""
        self._client.expect_leader(METADATA, self.controller)
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self.until_applied(await self._client.read(METADATA, timeout_s=CATCH_UP_S))
        except (TimeoutError, NotDone, BadRequest, OutcomeUnknown):
            return False
        return True

    def until_applied(self, offset: int) -> asyncio.Future[None]:
        """Done when the image has everything up to there."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._node.host.hosted[METADATA].applied.offset >= offset:
            future.set_result(None)
        else:
            waiting = [each for each in self._waiting if not each[1].done()]  # Others have given up.
            self._waiting = [*waiting, (offset, future)]
        return future

    def applied(self, offset: int) -> None:
        """The image has everything up to there."""
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > offset:
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)
