"""What asks a cluster from outside: no server code.

`Cluster` knows who leads and asks them; `ranges` reads exactly what lies between two offsets; `records` turns
record batches into Arrow columns. `TableGroup` and, for asyncio, `AsyncTableGroup` write and read tables, whose
words (`Insert`, `Add`, `At` and so on) stand in `quorate.tables`. `Joint` publishes what many have written by one
commit (docs/TRANSACTIONS.md). Spark's executors import this room and `wire`,
and nothing of the server.
"""

from quorate.wire import kio_alone as kio_alone  # isort: skip  # before anything else imports kio
from quorate.client.aio_tables import AsyncTableGroup
from quorate.client.cluster import EARLIEST, LATEST, Cluster, Fetched, PartitionInfo, TopicInfo
from quorate.client.errors import (
    AttemptOver,
    BadAnswer,
    ChangesGone,
    ClientError,
    CommitFailed,
    GroupReplaced,
    NobodyThere,
    OffsetOutOfRange,
    OffsetsMissing,
    OutcomeUnknown,
    PartitionsGone,
    Refused,
    RolledBack,
    RunFenced,
    SnapshotLost,
    TopicGone,
    TopicReplaced,
    TransactionRefused,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from quorate.client.joint import Attempt, Joint, NumberIn, Writer
from quorate.client.security import NotLetIn, Security
from quorate.client.table_session import Executed
from quorate.client.tables import TableGroup, create_group
from quorate.wire.joint import Committed, Part, Written
from quorate.wire.tables import Consistency

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncTableGroup",
    "Attempt",
    "AttemptOver",
    "BadAnswer",
    "ChangesGone",
    "ClientError",
    "Cluster",
    "CommitFailed",
    "Committed",
    "Consistency",
    "Executed",
    "Fetched",
    "GroupReplaced",
    "Joint",
    "NobodyThere",
    "NotLetIn",
    "NumberIn",
    "OffsetOutOfRange",
    "OffsetsMissing",
    "OutcomeUnknown",
    "Part",
    "PartitionInfo",
    "PartitionsGone",
    "Refused",
    "RolledBack",
    "RunFenced",
    "Security",
    "SnapshotLost",
    "TableGroup",
    "TopicGone",
    "TopicInfo",
    "TopicReplaced",
    "TransactionRefused",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
    "Writer",
    "Written",
    "create_group",
]
