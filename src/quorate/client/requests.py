"""What a client asks a cluster, as messages: metadata, offsets, and batches to append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from quorate import batch
from quorate.wire.entities import make
from quorate.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from quorate.wire.messages import Api, request_class

LIST_OFFSETS_VERSION, METADATA_VERSION, PRODUCE_VERSION = 7, 12, 9


def metadata_request(names: Sequence[str] | None) -> Any:
    values = {
        "topics": None if names is None else [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return make(request_class(Api.METADATA, METADATA_VERSION), values)


def offsets_request(topic: str, wanted: Mapping[int, int], committed: bool) -> Any:
    partitions = [{"partition_index": number, "timestamp": timestamp} for number, timestamp in wanted.items()]
    values = {
        "replica_id": -1,
        "isolation_level": READ_COMMITTED if committed else READ_UNCOMMITTED,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    return make(request_class(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION), values)


def produce_request(
    topic: str, batches: Mapping[int, batch.Buffer], transactional_id: str | None, timeout_s: float
) -> Any:
    partitions = [{"index": number, "records": bytes(records)} for number, records in batches.items()]
    values = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": timedelta(seconds=timeout_s),
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }
    return make(request_class(Api.PRODUCE, PRODUCE_VERSION), values)
