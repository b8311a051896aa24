"""What reads a cluster from outside: plain sockets, no server code, no asyncio.

`Cluster` knows who leads and asks them; `ranges` reads exactly what lies between two offsets; `records` turns
record batches into Arrow columns. Spark's executors import this room and `wire`, and nothing of the server.
"""

from quorate.client.cluster import EARLIEST, LATEST, Cluster, Fetched, PartitionInfo, TopicInfo
from quorate.client.errors import (
    BadAnswer,
    ClientError,
    NobodyThere,
    OffsetOutOfRange,
    OffsetsMissing,
    Refused,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from quorate.client.security import NotLetIn, Security

__all__ = [
    "EARLIEST",
    "LATEST",
    "BadAnswer",
    "ClientError",
    "Cluster",
    "Fetched",
    "NobodyThere",
    "NotLetIn",
    "OffsetOutOfRange",
    "OffsetsMissing",
    "PartitionInfo",
    "Refused",
    "Security",
    "TopicInfo",
    "TopicReplaced",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
]
