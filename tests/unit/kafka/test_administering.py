"""What admin clients ask beside topics and settings: the cluster, its disks, who copies and who leads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.kafka.describing import METADATA_LOG
from quorate.kafka.leader_epochs import end_of_epoch
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, serve

NOW = timedelta(seconds=5)


def versions(api: Api) -> range:
    least, greatest = VERSIONS[api]
    return range(least, greatest + 1)


def test_the_cluster_and_its_quorum_are_described(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for version in versions(Api.DESCRIBE_CLUSTER):
                values = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
                cluster = await connection.ask(Api.DESCRIBE_CLUSTER, values, version)
                assert (cluster.error_code, cluster.cluster_id, cluster.controller_id) == (0, "test", 1)
                assert [(each.broker_id, each.port) for each in cluster.brokers] == [(1, served.port)]
            wrong = {"include_cluster_authorized_operations": False, "endpoint_type": 2}
            answer = await connection.ask(Api.DESCRIBE_CLUSTER, wrong)
            assert answer.error_code == ErrorCode.unsupported_endpoint_type
            for version in versions(Api.DESCRIBE_QUORUM):
                asked = [
                    {"topic_name": name, "partitions": [{"partition_index": 0}]}
                    for name in (METADATA_LOG, "other")
                ]
                answer = await connection.ask(Api.DESCRIBE_QUORUM, {"topics": asked}, version)
                quorum, other = (topic.partitions[0] for topic in answer.topics)
                assert (quorum.error_code, quorum.leader_id) == (0, 1)
                (voter,) = quorum.current_voters
                assert voter.replica_id == 1
                if version >= 2:
                    (node,) = answer.nodes
                    assert [(each.name, each.port) for each in node.listeners] == [("CLIENT", served.port)]
                assert voter.log_end_offset == quorum.high_watermark > 0
                assert other.error_code == ErrorCode.unknown_topic_or_partition

    serve(tmp_path, test)


def test_a_node_says_how_much_of_each_log_it_has(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("a", partitions=2)
            await connection.create("b")
            records = encode_records([(None, bytes(5000))])
            assert (await connection.produce("a", records, partition=1)).error_code == 0
            for version in versions(Api.DESCRIBE_LOG_DIRS):
                (everything,) = (
                    await connection.ask(Api.DESCRIBE_LOG_DIRS, {"topics": None}, version)
                ).results
                assert everything.log_dir.endswith("n1")
                assert [topic.name for topic in everything.topics] == ["a", "b"]
                sizes = [each.partition_size for each in everything.topics[0].partitions]
                assert sizes[1] > len(records) > sizes[0]
            asked = [{"topic": "a", "partitions": [1, 7]}, {"topic": "none", "partitions": [0]}]
            (some,) = (await connection.ask(Api.DESCRIBE_LOG_DIRS, {"topics": asked})).results
            (found,) = some.topics
            assert [each.partition_index for each in found.partitions] == [1]
            assert some.total_bytes >= some.usable_bytes > 0

    serve(tmp_path, test)


def test_what_cannot_be_reassigned_or_elected_is_said_for_each_partition(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("a")
            wanted = [
                {"partition_index": 0, "replicas": [1]},
                {"partition_index": 0, "replicas": [1, 9]},
                {"partition_index": 0, "replicas": None},
                {"partition_index": 5, "replicas": [1]},
            ]
            topics = [{"name": "a", "partitions": wanted}]
            answer = await connection.ask(
                Api.ALTER_PARTITION_REASSIGNMENTS, {"timeout": NOW, "topics": topics}
            )
            assert [each.error_code for each in answer.responses[0].partitions] == [
                ErrorCode.none,
                ErrorCode.invalid_replica_assignment,
                ErrorCode.no_reassignment_in_progress,
                ErrorCode.unknown_topic_or_partition,
            ]
            asked: dict[str, Any] = {"timeout": NOW, "topics": None}
            assert (await connection.ask(Api.LIST_PARTITION_REASSIGNMENTS, asked)).topics == ()

            for version in versions(Api.ELECT_LEADERS):
                asked = {"election_type": 0, "timeout": NOW, "topic_partitions": None}
                assert (
                    await connection.ask(Api.ELECT_LEADERS, asked, version)
                ).replica_election_results == ()
            named = [{"topic": "a", "partitions": [0, 3]}]
            for kind in (0, 1):
                asked = {"election_type": kind, "timeout": NOW, "topic_partitions": named}
                (results,) = (await connection.ask(Api.ELECT_LEADERS, asked)).replica_election_results
                assert [each.error_code for each in results.partition_result] == [
                    ErrorCode.election_not_needed,
                    ErrorCode.unknown_topic_or_partition,
                ]

    serve(tmp_path, test)


def test_access_rules_and_quotas_are_declined(tmp_path: Path) -> None:
    rule = {
        "resource_type": 2,
        "resource_name": "a",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    pattern = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for version in versions(Api.DESCRIBE_ACLS):
                described = await connection.ask(Api.DESCRIBE_ACLS, pattern, version)
                (created,) = (await connection.ask(Api.CREATE_ACLS, {"creations": [rule]}, version)).results
                (deleted,) = (
                    await connection.ask(Api.DELETE_ACLS, {"filters": [pattern]}, version)
                ).filter_results
                for answer in (described, created, deleted):
                    assert answer.error_code == ErrorCode.security_disabled
                    assert "no access rules" in answer.error_message
            for version in versions(Api.DESCRIBE_CLIENT_QUOTAS):
                asked = {"components": [], "strict": False}
                assert (await connection.ask(Api.DESCRIBE_CLIENT_QUOTAS, asked, version)).entries == ()
                entity = [{"entity_type": "user", "entity_name": "x"}]
                ops = [[{"key": "k", "value": 1.5, "remove": remove}] for remove in (True, False)]
                entries = [{"entity": entity, "ops": each} for each in ops]
                asked = {"entries": entries, "validate_only": False}
                taken, put = (await connection.ask(Api.ALTER_CLIENT_QUOTAS, asked, version)).entries
                assert (taken.error_code, put.error_code) == (ErrorCode.none, ErrorCode.invalid_request)

    serve(tmp_path, test)


async def leader_epoch(
    connection: Connection, asked: int, current: int = -1, version: int = 4
) -> tuple[int, int, int]:
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": asked}
    values = {"replica_id": -1, "topics": [{"topic": "a", "partitions": [partition]}]}
    answer = await connection.ask(Api.OFFSET_FOR_LEADER_EPOCH, values, version)
    (found,) = answer.topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


def test_where_an_epoch_ended_is_told(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            topic = await connection.create("a")
            offset = (await connection.produce("a", encode_records([(None, b"x")] * 3))).base_offset
            (partition,) = served.node.metadata.image.by_id[topic.topic_id.bytes].partitions()
            epoch = served.node.leader_of(partition)[1]
            for version in versions(Api.OFFSET_FOR_LEADER_EPOCH):
                assert await leader_epoch(connection, epoch, version=version) == (0, epoch, offset + 3)
            assert await leader_epoch(connection, epoch + 1) == (0, -1, -1)
            assert await leader_epoch(connection, 0) == (0, 0, 0)
            assert await leader_epoch(connection, -1) == (0, -1, -1)
            assert (await leader_epoch(connection, epoch, epoch + 1))[0] == ErrorCode.unknown_leader_epoch
            assert (await leader_epoch(connection, epoch, epoch - 1))[0] == ErrorCode.fenced_leader_epoch

    serve(tmp_path, test)


@pytest.mark.parametrize("version", versions(Api.ALTER_CONFIGS))
def test_what_is_altered_the_old_way_is_all_that_is_set(tmp_path: Path, version: int) -> None:
    async def alter(connection: Connection, **config: str) -> tuple[int, str | None]:
        configs = [{"name": name.replace("_", "."), "value": value} for name, value in config.items()]
        resource = {"resource_type": 2, "resource_name": "a", "configs": configs}
        asked = {"resources": [resource], "validate_only": False}
        (answer,) = (await connection.ask(Api.ALTER_CONFIGS, asked, version)).responses
        return answer.error_code, answer.error_message

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create(
                "a", max_message_bytes="2000", retention_ms="5000", quorate_replication="confirm"
            )
            assert await alter(connection, retention_ms="6000") == (0, None)
            topic = served.node.metadata.image.topics["a"]
            assert (topic.config, topic.replication) == ({"retention.ms": "6000"}, "confirm")
            error, why = await alter(connection, no_such="1")
            assert error == ErrorCode.invalid_config
            assert why is not None
            assert "no.such is not a setting" in why

    serve(tmp_path, test)


def test_a_new_leader_that_does_not_know_yet_what_is_settled_sends_nobody_back(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            topic = await connection.create("a")
            for _ in range(2):
                await connection.produce("a", encode_records([(None, b"x")] * 3))
            (partition,) = served.node.metadata.image.by_id[topic.topic_id.bytes].partitions()
            hosted = served.node.host.hosted[partition]
            before, read_to = hosted.replica.log.head.epoch, hosted.commit + 1
            hosted.commit -= 3  # As if it had just been elected, and not heard of the last ones.
            assert end_of_epoch(served.node, partition, before) == (before, read_to)

    serve(tmp_path, test)
