"""Metadata, CreateTopics, DeleteTopics and InitProducerId: what clients hear of the metadata group."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.kafka.settings import WHY_MAX, Refused, check_config
from quorate.kafka.topics import check_name
from quorate.node.metadata import MetadataClient
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, serve

NOW = timedelta(seconds=5)
NOTHING_ELSE = {
    "allow_auto_topic_creation": True,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


# ---- what a topic may be ----


@pytest.mark.parametrize("name", ["a", "a.b_c-D9", "x" * 249, "...", "_"])
def test_names_that_kafka_takes_are_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "../etc"])
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(Refused, match="is no topic name") as refused:
        check_name(name)
    assert refused.value.error == ErrorCode.invalid_topic_exception


def test_settings_that_are_honoured_or_mean_what_is_done_are_taken() -> None:
    check_config({"max.message.bytes": "1048588", "min.insync.replicas": "2"}, copies=3)
    check_config({"cleanup.policy": "delete", "compression.type": "producer"}, copies=1)
    check_config({"retention.ms": "-1", "retention.bytes": "-1"}, copies=1)
    check_config({"retention.ms": "604800000", "retention.bytes": "1099511627776"}, copies=3)
    check_config({"segment.ms": "60000", "segment.bytes": "1048576"}, copies=3)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("min.insync.replicas", "3", "min.insync.replicas=3; from 1 to 2 is possible"),
        ("max.message.bytes", "lots", "max.message.bytes=lots; from 1024 to"),
        ("max.message.bytes", "-1", "max.message.bytes=-1; from 1024 to"),
        ("retention.ms", "-2", "retention.ms=-2; from -1 to"),
        ("retention.bytes", "1 GB", "retention.bytes=1 GB; from -1 to"),
        ("segment.bytes", "100", "segment.bytes=100; from 16384 to 1073741824 is possible"),
        (
            "cleanup.policy",
            "compact,delete",
            "cleanup.policy=compact,delete is not done here; only delete or compact",
        ),
        ("min.cleanable.dirty.ratio", "1.5", "min.cleanable.dirty.ratio=1.5; from 0 to 1 is possible"),
        ("segment.ms", "0", "segment.ms=0; from 1 to"),
        ("segment.jitter.s", "1", "segment.jitter.s is not a setting of topics here"),
    ],
)
def test_settings_that_would_not_be_honoured_are_refused_by_name(name: str, value: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        check_config({name: value}, copies=3)
    assert refused.value.why.startswith(why)
    assert refused.value.error == ErrorCode.invalid_config


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes", "segment.bytes", "segment.ms"])
def test_nothing_of_a_group_of_tables_goes_for_its_age_or_size(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is for topics") as refused:
        check_config({"quorate.kind": "tables", name: "1000000"}, copies=3)
    assert refused.value.error == ErrorCode.invalid_config


def test_a_refusal_that_quotes_the_client_has_room_in_every_version(tmp_path: Path) -> None:
    """Versions below 5 have 32 KiB for a text, and whoever asked may have used them up."""
    long = "x" * 32767
    given: dict[str, list[Any]] = {
        "is there twice": [topic(long), topic(long)],
        "is not a setting": [topic("a", {long: "1"})],
        "is not done here": [topic("a", {"cleanup.policy": long})],
        "is unknown": [topic("a", {"quorate.replication": long})],
    }

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for version in range(VERSIONS[Api.CREATE_TOPICS][0], VERSIONS[Api.CREATE_TOPICS][1] + 1):
                for topics in given.values():
                    values = {"topics": topics, "timeout": NOW, "validate_only": True}
                    answer = (await connection.ask(Api.CREATE_TOPICS, values, version)).topics[0]
                    assert answer.error_code != ErrorCode.none
                    assert len(answer.error_message) == WHY_MAX

    serve(tmp_path, test)


def topic(name: str, config: dict[str, str] | None = None) -> dict[str, Any]:
    settings = [{"name": key, "value": value} for key, value in (config or {}).items()]
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": settings,
    }


# ---- as requests ----


async def metadata(connection: Connection, topics: list[Any] | None, version: int = 13) -> Any:
    return await connection.ask(Api.METADATA, {"topics": topics, **NOTHING_ELSE}, version)


def named(name: str | None, topic_id: uuid.UUID | None = None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id}


def test_metadata_names_nodes_topics_and_leaders_in_every_version(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("one", partitions=2)
            await connection.create("two")
            for version in range(VERSIONS[Api.METADATA][1] + 1):
                body = await metadata(connection, [] if version == 0 else None, version)
                broker = body.brokers[0]
                assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", served.port)
                assert getattr(body, "controller_id", 1) == 1
                assert getattr(body, "cluster_id", "test") == "test"
                assert [(topic.name, len(topic.partitions)) for topic in body.topics] == [
                    ("one", 2),
                    ("two", 1),
                ]
                part = body.topics[0].partitions[1]
                assert (part.error_code, part.partition_index, part.leader_id) == (0, 1, 1)
                assert part.replica_nodes == part.isr_nodes == (1,)
                assert getattr(part, "leader_epoch", 1) == 1
            assert (await metadata(connection, [], 4)).topics == ()

    serve(tmp_path, test)


def test_unknown_topics_are_named_and_not_made(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            (topic,) = (await metadata(connection, [named("nowhere")])).topics
            assert topic.error_code == ErrorCode.unknown_topic_or_partition
            (topic,) = (await metadata(connection, [named(None, uuid.UUID(int=5))])).topics
            assert topic.error_code == ErrorCode.unknown_topic_id
            assert (await metadata(connection, None)).topics == ()

    serve(tmp_path, test)


@pytest.mark.parametrize("is_registered", [True, False])
def test_topics_without_a_name_are_for_versions_that_can_answer_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_registered: bool
) -> None:
    """Requests can name a topic by its id alone from 10 on, answers from 12 on."""

    async def test(served: Served) -> None:
        monkeypatch.setattr(MetadataClient, "is_registered", is_registered)
        for version in (10, 11):
            async with await served.connect() as connection:
                values = {"topics": [named(None, uuid.UUID(int=5))], **NOTHING_ELSE}
                await connection.send(connection.request(Api.METADATA, values, version))
                assert await connection.is_closed()
            assert f"request 3 version {version}: topics are asked for by id alone" in served.said[-1]

    serve(tmp_path, test)


def test_metadata_follows_what_changes(tmp_path: Path) -> None:
    """The answers are kept: a kept one must not outlive what it says."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assert (await metadata(connection, None)).topics == ()
            created = await connection.create("topic")
            (topic,) = (await metadata(connection, None)).topics
            assert topic.topic_id == created.topic_id
            (by_id,) = (await metadata(connection, [named(None, created.topic_id)])).topics
            assert by_id == topic
            again = await metadata(connection, [named(None, created.topic_id)])
            assert again.topics == (topic,)
            await served.node.metadata.delete_topic(created.topic_id.bytes)
            assert (await metadata(connection, None)).topics == ()
            recreated = await connection.create("topic")
            assert recreated.topic_id != created.topic_id

    serve(tmp_path, test)


@pytest.mark.parametrize("version", range(VERSIONS[Api.CREATE_TOPICS][0], VERSIONS[Api.CREATE_TOPICS][1] + 1))
def test_topics_are_created_and_refused_in_every_version(tmp_path: Path, version: int) -> None:
    def topic(name: str, partitions: int = 1, copies: int = 1, **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": copies,
            "assignments": [],
            "configs": [],
        } | more

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assigned = [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 1, "broker_ids": [1]}]
            gap = [{"partition_index": 1, "broker_ids": [1]}]
            stranger = [{"partition_index": 0, "broker_ids": [7]}]
            isr, paxos = ([{"name": "quorate.replication", "value": how}] for how in ("isr", "paxos"))
            topics = [
                topic("good"),
                topic("defaults", -1, -1),
                topic("assigned", -1, -1, assignments=assigned),
                topic("no name"),
                topic("none", 0),
                topic("many", 1, 2),
                topic("twice"),
                topic("twice"),
                topic("isr", configs=isr),
                topic("paxos", configs=paxos),
                topic("gap", -1, -1, assignments=gap),
                topic("stranger", -1, -1, assignments=stranger),
                topic("both", 1, 1, assignments=assigned),
            ]
            values = {"topics": topics, "timeout": NOW, "validate_only": False}
            body = await connection.ask(Api.CREATE_TOPICS, values, version)
            assert [(answer.name, answer.error_code) for answer in body.topics] == [
                ("good", 0),
                ("defaults", 0),
                ("assigned", 0),
                ("no name", ErrorCode.invalid_topic_exception),
                ("none", ErrorCode.invalid_partitions),
                ("many", ErrorCode.invalid_replication_factor),
                ("twice", ErrorCode.invalid_request),
                ("twice", ErrorCode.invalid_request),
                ("isr", 0),
                ("paxos", ErrorCode.invalid_config),
                ("gap", ErrorCode.invalid_replica_assignment),
                ("stranger", ErrorCode.invalid_replica_assignment),
                ("both", ErrorCode.invalid_request),
            ]
            assert sorted(served.node.metadata.image.topics) == ["assigned", "defaults", "good", "isr"]
            values = {"topics": [topic("good"), topic("new")], "timeout": NOW, "validate_only": True}
            body = await connection.ask(Api.CREATE_TOPICS, values, version)
            exists = ErrorCode.topic_already_exists
            assert [(answer.name, answer.error_code) for answer in body.topics] == [
                ("good", exists),
                ("new", 0),
            ]
            assert "new" not in served.node.metadata.image.topics

    serve(tmp_path, test)


def test_a_node_that_does_not_know_its_cluster_says_so_and_nothing_about_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = timedelta(milliseconds=50)

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("there")
            monkeypatch.setattr(MetadataClient, "is_registered", False)
            values = {"topics": [topic("new")], "timeout": soon, "validate_only": False}
            (answer,) = (await connection.ask(Api.CREATE_TOPICS, values)).topics
            assert answer.error_code == ErrorCode.not_controller
            values = {"topic_names": ["there"], "timeout": soon}
            (answer,) = (await connection.ask(Api.DELETE_TOPICS, values, 5)).responses
            assert answer.error_code == ErrorCode.not_controller
            assert list(served.node.metadata.image.topics) == ["there"]

    serve(tmp_path, test)


def test_a_created_topic_can_be_written_to_at_once(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for number in range(10):
                await connection.create(f"topic-{number}")
                answer = await connection.produce(f"topic-{number}", encode_records([(None, b"value")]))
                assert answer.error_code == 0

    serve(tmp_path, test)


@pytest.mark.parametrize("version", range(VERSIONS[Api.DELETE_TOPICS][0], VERSIONS[Api.DELETE_TOPICS][1] + 1))
def test_topics_are_deleted_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            for name in ("one", "two"):
                await connection.create(name)
            topics = served.node.metadata.image.topics
            if version >= 6:
                by_id = named(None, uuid.UUID(bytes=topics["two"].id))
                wanted = [named("one"), by_id, named("nowhere"), named(None, uuid.UUID(int=5))]
                values: dict[str, Any] = {"topics": wanted, "timeout": NOW}
            else:
                values = {"topic_names": ["one", "two", "nowhere"], "timeout": NOW}
            body = await connection.ask(Api.DELETE_TOPICS, values, version)
            unknown = ErrorCode.unknown_topic_or_partition
            expected = [("one", 0), ("two", 0), ("nowhere", unknown)]
            if version >= 6:
                expected.append((None, ErrorCode.unknown_topic_id))  # type: ignore[arg-type]
            assert [(answer.name, answer.error_code) for answer in body.responses] == expected
            assert served.node.metadata.image.topics == {}

    serve(tmp_path, test)


def test_every_producer_gets_a_number_of_its_own(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            values = {
                "transactional_id": None,
                "transaction_timeout": NOW,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            given = []
            for version in range(VERSIONS[Api.INIT_PRODUCER_ID][1] + 1):
                for _ in range(3):
                    body = await connection.ask(Api.INIT_PRODUCER_ID, values, version)
                    assert (body.error_code, body.producer_epoch) == (0, 0)
                    given.append(body.producer_id)
            assert len(set(given)) == len(given)
            assert min(given) >= 0
            refused = await connection.ask(Api.INIT_PRODUCER_ID, values | {"transactional_id": "mine"})
            assert refused.error_code == ErrorCode.not_coordinator, "whoever has not asked who that is"
            assert (refused.producer_id, refused.producer_epoch) == (-1, -1)

    serve(tmp_path, test)


async def set_cluster(connection: Connection, name: str, value: str) -> None:
    setting = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": "", "configs": [setting]}
    asked = {"resources": [resource], "validate_only": False}
    (answer,) = (await connection.ask(Api.INCREMENTAL_ALTER_CONFIGS, asked)).responses
    assert answer.error_code == 0, answer.error_message


def test_topics_come_about_by_asking_only_where_cluster_and_client_want_it(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:

            async def error_of(name: str, *, allow: bool, version: int = 12) -> int:
                asked = NOTHING_ELSE | {
                    "topics": [{"name": name, "topic_id": None}],
                    "allow_auto_topic_creation": allow,
                }
                (topic,) = (await connection.ask(Api.METADATA, asked, version)).topics
                return int(topic.error_code)

            unknown = ErrorCode.unknown_topic_or_partition
            assert await error_of("asked", allow=True) == unknown
            await set_cluster(connection, "auto.create.topics.enable", "true")
            await set_cluster(connection, "num.partitions", "2")
            assert await error_of("asked", allow=False) == unknown
            assert await error_of("asked", allow=True) == 0
            assert len(served.node.metadata.image.topics["asked"].ensembles) == 2
            assert await error_of("before-there-was-a-choice", allow=False, version=3) == 0
            assert await error_of("a topic", allow=True) == ErrorCode.invalid_topic_exception
            assert sorted(served.node.metadata.image.topics) == ["asked", "before-there-was-a-choice"]

    serve(tmp_path, test)
