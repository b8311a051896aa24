"""What a node's connections with Kafka clients have in common: who handles which request, and who waits.

A request arrives in a turn of the node and is handed to the function for its api. Produce and Fetch are driven by
callbacks and cost no task; the rare ones that wait for the metadata group or read much are tasks of their
connection. Whatever answers outside of a turn (a timer, a task) makes one, so that answers of all connections
go out together at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.batch import BadBatch
from quorate.core.entry import Partition, partition_of
from quorate.ingest import Ingest
from quorate.kafka import (
    configs,
    coordinators,
    declining,
    describing,
    fetch,
    group_offsets,
    group_views,
    groups,
    joint,
    leader_epochs,
    metadata,
    offsets,
    produce,
    producer_ids,
    reassigning,
    records_gone,
    sasl,
    tables,
    topics,
    transaction_views,
    transactions,
    versions,
)
from quorate.kafka.call import Call
from quorate.kafka.expiring import Expiring
from quorate.kafka.group_coordinator import Coordinator
from quorate.kafka.keys import Keys
from quorate.kafka.sessions import Room
from quorate.kafka.table_snapshots import Snapshots
from quorate.kafka.terms import TermsOf, batch_bytes_max
from quorate.kafka.vouching import Vouching
from quorate.machine.metadata import METADATA, Topic
from quorate.wire.cursor import BadMessage, Buffer
from quorate.wire.joint import JOINT_API, JOINT_VERSION
from quorate.wire.messages import VERSIONS, Api
from quorate.wire.opening import TooLarge, opened
from quorate.wire.tables import TABLES_API, TABLES_SCAN_API, TABLES_VERSION

if TYPE_CHECKING:
    from quorate.kafka.door import Door
    from quorate.node import Node


def opened_for_keys(payload: Buffer) -> Buffer:
    """What compaction looks into: records that would take too much room are left as they are."""
    try:
        return opened(payload)
    except TooLarge as error:
        raise BadBatch(str(error)) from None


class Waiter(Protocol):
    """Somebody who wants to hear when a partition has settled more, or has another leader."""

    def woken(self, partition: Partition) -> None: ...


OPENING_COUNT_MAX = 2
"""Batches whose records are being looked at, over all connections."""

LOOKING_COUNT_MAX = 16
"""Logs that are being read for a time, over all connections: each has some megabytes in memory meanwhile."""

JUDGING_COUNT_MAX = 2
"""Passwords that are being hashed, over all connections: whoever tries many waits, and nobody else does."""

POLL_S = 0.02
UNANSWERED_BYTES_MAX = 512 << 20
"""Of writes, over all connections; each has a bound of its own, too."""


class Broker:
    """One for each node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.doors: set[Door] = set()
        self.untaken: dict[Door, None] = {}
        """Those of them whose clients do not take their answers, for longest first."""
        self.receiving_bytes = 0
        """Of requests that have not arrived wholly, over all doors."""
        self.unanswered_bytes = 0
        """Of requests that have, and wait for their answers, over all doors."""
        self.metadata = metadata.MetadataCache(node)
        self.opening = asyncio.Semaphore(OPENING_COUNT_MAX)
        self.looking = asyncio.Semaphore(LOOKING_COUNT_MAX)
        self.judging = asyncio.Semaphore(JUDGING_COUNT_MAX)
        self.expiring = Expiring(self.in_turn)
        self.terms = TermsOf()
        self._waiting: dict[Partition, dict[Waiter, None]] = {}
        self._woken: dict[Partition, None] = {}
        node.watch_settled(self._settled)
        node.when_over(self._over)
        node.metrics.connections["kafka"] = lambda: len(self.doors)
        node.metrics.waiting_bytes["requests"] = lambda: self.receiving_bytes
        node.compacting.opened = opened_for_keys
        self.session_room = Room()
        self.groups = Coordinator(self)
        self.snapshots = Snapshots()
        self.vouching = Vouching(self)
        self.commits = joint.Commits(self)
        self.keys = Keys(self)
        self.ingest = Ingest(node, batch_bytes_max)

    def handle(self, call: Call) -> None:
        """Raises BadMessage for what is not served."""
        api, version = call.head.api, call.head.version
        handler = _SERVED.get((api, version))
        if handler is not None:
            handler(self, call)
        elif api == Api.API_VERSIONS:
            versions.answer_unsupported(call)
        elif api in _HANDLERS:
            least, greatest = VERSIONS[Api(api)]
            raise BadMessage(f"this version is not served, only {least} to {greatest}")
        else:
            raise BadMessage("this request is not served here")

    @property
    def is_crowded(self) -> bool:
        """What waits for followers is in memory: whoever brings more then hears that it must come again."""
        return self.unanswered_bytes > UNANSWERED_BYTES_MAX

    def in_turn(self, act: Callable[[], None]) -> None:
        """For timers and tasks: answers given in `act` go out with the turn's end."""
        self.node.begin_turn()
        try:
            act()
        finally:
            self.node.end_turn()

    async def until_registered(self, timeout_s: float) -> bool:
        """A node that has just started does not know much: what it would say might be long out of date."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.node.metadata.is_registered:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _over(self, *, failed: bool) -> None:
        self.vouching.close()
        self.commits.close()
        self.keys.close()
        self.expiring.close()
        for door in tuple(self.doors):
            door.abort() if failed else door.close()

    # --- partitions ---

    def find(self, topic: Topic | None, number: int) -> tuple[int, Partition]:
        """The partition that a client named, where the leader is asked for, which this node must be; or else, in
        front of it, the error that says why not."""
        if topic is None or not 0 <= number < len(topic.ensembles):
            return ErrorCode.unknown_topic_or_partition, fetch.NO_PARTITION
        partition = partition_of(topic.id, number)
        if not self.node.is_leader(partition):
            return ErrorCode.not_leader_or_follower, partition
        return ErrorCode.none, partition

    def judge_epoch(self, partition: Partition, leader_epoch: int) -> int:
        """A client that says which epoch it knows hears when that is not the leader's."""
        if leader_epoch < 0:
            return ErrorCode.none
        epoch = self.node.leader_of(partition)[1] & batch.LEADER_EPOCH_MASK
        if leader_epoch < epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch if leader_epoch > epoch else ErrorCode.none

    # --- waiting ---

    def wait(self, partition: Partition, waiter: Waiter) -> None:
        self._waiting.setdefault(partition, {})[waiter] = None

    def forget(self, partition: Partition, waiter: Waiter) -> None:
        waiters = self._waiting.get(partition)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[partition]

    def _settled(self, partition: Partition) -> None:
        """Called in the middle of the node's work: remember it, and look when that is over."""
        if partition == METADATA:
            asyncio.get_running_loop().call_soon(self._look_at_users)
        if partition not in self._waiting:
            return
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._wake)
        self._woken[partition] = None

    def _look_at_users(self) -> None:
        """Whoever was removed, or has another password now, is here no more."""
        for door in tuple(self.doors):
            if door.session is not None and not door.session.is_still_good():
                door.turn_away("its password was changed, or it was removed")

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}

        def tell() -> None:
            for partition in woken:
                for waiter in tuple(self._waiting.get(partition, ())):
                    waiter.woken(partition)

        self.in_turn(tell)


Handler = Callable[[Broker, Call], object]

_HANDLERS: dict[int, Handler] = {
    Api.PRODUCE: produce.Producing,
    Api.FETCH: fetch.Fetching,
    Api.LIST_OFFSETS: offsets.handle,
    Api.METADATA: metadata.handle,
    Api.FIND_COORDINATOR: coordinators.handle,
    Api.JOIN_GROUP: groups.handle_join,
    Api.HEARTBEAT: groups.handle_heartbeat,
    Api.LEAVE_GROUP: groups.handle_leave,
    Api.SYNC_GROUP: groups.handle_sync,
    Api.OFFSET_COMMIT: group_offsets.handle_commit,
    Api.OFFSET_FETCH: group_offsets.handle_fetch,
    Api.OFFSET_DELETE: group_offsets.handle_delete,
    Api.DESCRIBE_GROUPS: group_views.handle_describe,
    Api.LIST_GROUPS: group_views.handle_list,
    Api.DELETE_GROUPS: group_views.handle_delete,
    Api.SASL_HANDSHAKE: sasl.handle_handshake,
    Api.SASL_AUTHENTICATE: sasl.handle_authenticate,
    Api.API_VERSIONS: versions.handle,
    Api.CREATE_TOPICS: topics.handle_create,
    Api.DELETE_TOPICS: topics.handle_delete,
    Api.DELETE_RECORDS: records_gone.handle,
    Api.INIT_PRODUCER_ID: producer_ids.handle,
    Api.ADD_PARTITIONS_TO_TXN: transactions.handle_add_partitions,
    Api.ADD_OFFSETS_TO_TXN: transactions.handle_add_offsets,
    Api.END_TXN: transactions.handle_end,
    Api.TXN_OFFSET_COMMIT: transactions.handle_offsets,
    Api.DESCRIBE_PRODUCERS: transaction_views.handle_describe_producers,
    Api.DESCRIBE_TRANSACTIONS: transaction_views.handle_describe,
    Api.LIST_TRANSACTIONS: transaction_views.handle_list,
    Api.OFFSET_FOR_LEADER_EPOCH: leader_epochs.handle,
    Api.DESCRIBE_ACLS: declining.handle_describe_acls,
    Api.CREATE_ACLS: declining.handle_create_acls,
    Api.DELETE_ACLS: declining.handle_delete_acls,
    Api.DESCRIBE_CONFIGS: configs.handle_describe,
    Api.ALTER_CONFIGS: configs.handle_replace,
    Api.DESCRIBE_LOG_DIRS: describing.handle_log_dirs,
    Api.CREATE_PARTITIONS: topics.handle_create_partitions,
    Api.ELECT_LEADERS: reassigning.handle_elect,
    Api.INCREMENTAL_ALTER_CONFIGS: configs.handle_alter,
    Api.ALTER_PARTITION_REASSIGNMENTS: reassigning.handle_alter,
    Api.LIST_PARTITION_REASSIGNMENTS: reassigning.handle_list,
    Api.DESCRIBE_CLIENT_QUOTAS: declining.handle_describe_quotas,
    Api.ALTER_CLIENT_QUOTAS: declining.handle_alter_quotas,
    Api.DESCRIBE_QUORUM: describing.handle_quorum,
    Api.DESCRIBE_CLUSTER: describing.handle_cluster,
}

_SERVED: dict[tuple[int, int], Handler] = {
    (api, version): _HANDLERS[api]
    for api, (least, greatest) in VERSIONS.items()
    for version in range(least, greatest + 1)
} | {
    (TABLES_API, TABLES_VERSION): tables.handle,
    (TABLES_SCAN_API, TABLES_VERSION): tables.handle,
    (JOINT_API, JOINT_VERSION): joint.handle,
}
"""By api and version: our own requests beside Kafka's."""
