"""DescribeConfigs, IncrementalAlterConfigs and CreatePartitions: what a topic is, and that it be otherwise."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.core.entry import Member
from quorate.kafka.configs import Operation, Resource
from quorate.kafka.settings import (
    SETTINGS,
    Kind,
    Refused,
    Source,
    check_altered,
    check_config,
    described,
    values_of,
)
from quorate.machine.metadata import Topic
from quorate.machine.turning import Turning
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, serve

NOW = timedelta(seconds=5)
SET, DELETE = Operation.SET, Operation.DELETE


def topic(replication: str = "raft", copies: int = 3, **config: str) -> Topic:
    ensemble = tuple(Member(node, 1) for node in range(1, copies + 1))
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return Topic("orders", bytes(15) + b"o", replication, (ensemble,), settings)


# ---- what is possible ----


def test_copies_in_sync_are_up_to_all_for_isr_and_up_to_what_settles_elsewhere() -> None:
    check_config({"min.insync.replicas": "3"}, copies=3, replication="isr")
    for replication in ("raft", "coordinated", "confirm"):
        with pytest.raises(Refused, match=r"min.insync.replicas=3; from 1 to 2 is possible"):
            check_config({"min.insync.replicas": "3"}, copies=3, replication=replication)
    with pytest.raises(Refused, match="from 1 to 3 is possible"):
        check_config({"min.insync.replicas": "4"}, copies=3, replication="isr")


def test_what_can_be_altered_is_and_back_to_its_default() -> None:
    altered = {"max.message.bytes": "2000", "min.insync.replicas": None, "cleanup.policy": "delete"}
    assert check_altered(topic(), altered) == altered


@pytest.mark.parametrize(
    ("given", "altered", "why"),
    [
        (topic("isr"), {"quorate.replication": "paxos"}, "quorate.replication=paxos"),
        (topic(), {"quorate.kind": "tables"}, "quorate.kind of topic orders is records, and stays"),
        (topic(), {"quorate.nats.subject": "a.b"}, "quorate.nats.subject of topic orders is not given"),
        (topic("isr"), {"min.insync.replicas": "1"}, "min.insync.replicas of topic orders is 2, and stays"),
        (topic("isr", min_insync_replicas="3"), {"min.insync.replicas": None}, "orders is 3, and stays"),
        (topic("isr"), {"min.insync.replicas": "3"}, "and stays so from its creation on; make another topic"),
        (
            msgspec.structs.replace(topic("raft"), turning=Turning("isr", 9)),
            {"min.insync.replicas": "1"},
            "min.insync.replicas of topic orders is 2, and stays so while it is replicated by isr",
        ),
        (topic(), {"retention.ms": "soon"}, "retention.ms=soon; from -1 to"),
        (topic(), {"max.message.bytes": "1"}, "max.message.bytes=1; from 1024 to"),
        (topic(), {"colour": "red"}, "colour is not a setting of topics here"),
        (topic(), {"colour": None}, "colour is not a setting of topics here"),
    ],
)
def test_what_cannot_be_altered_is_refused_by_name(
    given: Topic, altered: dict[str, str | None], why: str
) -> None:
    with pytest.raises(Refused) as refused:
        check_altered(given, altered)
    assert why in refused.value.why
    assert refused.value.error == ErrorCode.invalid_config


def test_what_stays_may_be_said_again_and_nothing_comes_of_it() -> None:
    same = {"quorate.replication": "isr", "min.insync.replicas": "2", "quorate.nats.subject": None}
    assert check_altered(topic("isr"), same) == {}


def test_how_copies_agree_can_be_altered_and_called_off() -> None:
    assert check_altered(topic("isr"), {"quorate.replication": "confirm"}) == {
        "quorate.replication": "confirm"
    }
    assert check_altered(topic("isr"), {"quorate.replication": None}) == {"quorate.replication": "raft"}
    turning = msgspec.structs.replace(topic("isr"), turning=Turning("raft", 7))
    assert check_altered(turning, {"quorate.replication": "raft"}) == {}
    assert check_altered(turning, {"quorate.replication": "isr"}) == {"quorate.replication": "isr"}


def test_who_must_have_flushed_is_a_choice_of_topics_with_a_name() -> None:
    check_config({"quorate.flush": "leader"}, copies=3)
    assert values_of(topic("raft"))["quorate.flush"] == "quorum"
    assert check_altered(topic("isr"), {"quorate.flush": "leader"}) == {"quorate.flush": "leader"}
    with pytest.raises(Refused, match=r"quorate.flush=nobody is not done here; only quorum or leader"):
        check_config({"quorate.flush": "nobody"}, copies=3)
    with pytest.raises(Refused, match=r"a table says itself whether it is asynchronous"):
        check_config({"quorate.flush": "leader", "quorate.kind": "tables"}, copies=3)


def test_every_setting_is_described_with_whoever_gave_it() -> None:
    found = {each["name"]: each for each in described(topic("isr", max_message_bytes="2000"))}
    by_itself = {name for name, setting in SETTINGS.items() if setting.default}
    assert set(found) == {*by_itself, "min.insync.replicas"}
    given = found["max.message.bytes"]
    assert (given["value"], given["config_source"], given["read_only"]) == ("2000", Source.TOPIC, False)
    assert [each["value"] for each in given["synonyms"]] == ["2000", "1048588"]
    assert given["config_type"] == Kind.INT
    by_default = found["min.insync.replicas"]
    assert (by_default["value"], by_default["config_source"]) == ("2", Source.DEFAULT)
    assert by_default["read_only"]
    assert (found["quorate.replication"]["value"], found["quorate.replication"]["read_only"]) == (
        "isr",
        False,
    )


# ---- as requests ----


def resource(name: str, kind: int = Resource.TOPIC, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": None, **more}


def setting(name: str, value: str | None, operation: int = SET) -> dict[str, Any]:
    return {"name": name, "value": value, "config_operation": operation}


async def describe(connection: Connection, version: int, *resources: dict[str, Any]) -> list[Any]:
    values = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    return list((await connection.ask(Api.DESCRIBE_CONFIGS, values, version)).results)


async def alter(
    connection: Connection, *resources: dict[str, Any], version: int = 1, **more: Any
) -> list[Any]:
    values = {"resources": resources, "validate_only": False, **more}
    return list((await connection.ask(Api.INCREMENTAL_ALTER_CONFIGS, values, version)).responses)


def versions(api: Api) -> range:
    return range(VERSIONS[api][0], VERSIONS[api][1] + 1)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_CONFIGS))
def test_settings_are_described_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("orders", max_message_bytes="2000")
            wanted, absent, node, nowhere, what = await describe(
                connection,
                version,
                resource("orders", configuration_keys=["max.message.bytes", "no.such"]),
                resource("absent"),
                resource("1", Resource.NODE),
                resource("9", Resource.NODE),
                resource("orders", 7),
            )
            ((found),) = wanted.configs
            assert (found.name, found.value, found.config_source) == ("max.message.bytes", "2000", 1)
            assert absent.error_code == ErrorCode.unknown_topic_or_partition
            assert (node.error_code, node.configs) == (ErrorCode.none, ())
            assert nowhere.error_message == "there is no node 9"
            assert what.error_code == ErrorCode.invalid_request

    serve(tmp_path, test)


@pytest.mark.parametrize("version", versions(Api.INCREMENTAL_ALTER_CONFIGS))
def test_settings_are_altered_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("orders")
            image = served.node.metadata.image

            async def answer(*configs: dict[str, Any], kind: int = Resource.TOPIC, **more: Any) -> Any:
                ((found),) = await alter(
                    connection, resource("orders", kind, configs=configs), version=version, **more
                )
                return found

            assert (await answer(setting("max.message.bytes", "2000"))).error_code == ErrorCode.none
            assert image.topics["orders"].config == {"max.message.bytes": "2000"}
            validated = await answer(setting("max.message.bytes", "3000"), validate_only=True)
            assert validated.error_code == ErrorCode.none
            assert image.topics["orders"].config == {"max.message.bytes": "2000"}
            for configs, why in (
                ([setting("colour", "red")], "colour is not a setting of topics here"),
                ([setting("max.message.bytes", "2000", 2)], "nothing is appended or subtracted"),
                ([setting("max.message.bytes", "2000")] * 2, "max.message.bytes is there twice"),
            ):
                assert why in (await answer(*configs)).error_message
            assert "its own configuration" in (await answer(kind=Resource.NODE)).error_message
            rate = "leader.replication.throttled.rate"
            throttled = await answer(setting(rate, "1000"), kind=Resource.NODE)
            assert "its own configuration" in throttled.error_message
            lifted = await answer(setting(rate, None, DELETE), kind=Resource.NODE)
            assert lifted.error_code == ErrorCode.none, "there is none, which is what is asked for"
            assert (await answer(setting("max.message.bytes", None, DELETE))).error_code == ErrorCode.none
            assert image.topics["orders"].config == {}
            absent, *twice = await alter(
                connection,
                resource("absent", configs=[]),
                *[resource("orders", configs=[])] * 2,
                version=version,
            )
            assert absent.error_code == ErrorCode.unknown_topic_or_partition
            assert {each.error_code for each in twice} == {ErrorCode.invalid_request}

    serve(tmp_path, test)


def test_a_batch_is_measured_by_what_the_topic_is_set_to_now(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("orders")
            large = encode_records([(None, b"x" * 3000)])
            assert (await connection.produce("orders", large)).error_code == ErrorCode.none
            await alter(connection, resource("orders", configs=[setting("max.message.bytes", "2000")]))
            refused = await connection.produce("orders", large)
            assert refused.error_code == ErrorCode.message_too_large

    serve(tmp_path, test)


@pytest.mark.parametrize("version", versions(Api.CREATE_PARTITIONS))
def test_partitions_are_added_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("orders")
            await connection.create("bank", quorate_kind="tables")

            def count() -> int:
                return len(served.node.metadata.image.topics["orders"].ensembles)

            async def add(
                wanted: int, nodes: list[int] | None = None, *, name: str = "orders", validate: bool = False
            ) -> Any:
                assigned = None if nodes is None else [{"broker_ids": [node]} for node in nodes]
                more = [{"name": name, "count": wanted, "assignments": assigned}]
                values = {"topics": more, "timeout": NOW, "validate_only": validate}
                ((found),) = (await connection.ask(Api.CREATE_PARTITIONS, values, version)).results
                return found

            assert (await add(3, validate=True)).error_code == ErrorCode.none
            assert count() == 1
            assert (await add(3)).error_code == ErrorCode.none
            assert count() == 3
            assert (await add(4, [1])).error_code == ErrorCode.none
            for answer, error, why in (
                (await add(4), ErrorCode.invalid_partitions, "orders has 4 partitions; more can be added"),
                (await add(9999), ErrorCode.invalid_partitions, "9995 more partitions are too many"),
                (await add(6, [1]), ErrorCode.invalid_replica_assignment, "1 assignments for 2 more"),
                (await add(5, [7]), ErrorCode.invalid_replica_assignment, "partition 4: there is no node 7"),
                (await add(2, name="bank"), ErrorCode.invalid_partitions, "a group of tables"),
                (await add(2, name="absent"), ErrorCode.unknown_topic_or_partition, "no topic absent"),
            ):
                assert answer.error_code == error
                assert why in answer.error_message
            assert count() == 4

    serve(tmp_path, test)


def test_an_added_partition_can_be_written_to_at_once(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("orders")
            more = [{"name": "orders", "count": 8, "assignments": None}]
            values = {"topics": more, "timeout": NOW, "validate_only": False}
            await connection.ask(Api.CREATE_PARTITIONS, values)
            for number in range(8):
                answer = await connection.produce("orders", encode_records([(None, b"v")]), partition=number)
                assert answer.error_code == 0

    serve(tmp_path, test)


def test_what_only_kafka_itself_goes_by_is_taken_and_said_to_have_no_effect(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assert (await connection.create("orders", segment_jitter_ms="5")).error_code == 0
            flush = {"name": "flush.ms", "config_operation": SET, "value": "7"}
            resource = {"resource_type": Resource.TOPIC, "resource_name": "orders", "configs": [flush]}
            asked = {"resources": [resource], "validate_only": False}
            (answer,) = (await connection.ask(Api.INCREMENTAL_ALTER_CONFIGS, asked)).responses
            assert (answer.error_code, answer.error_message) == (0, "without effect here: flush.ms")
            resource = {
                "resource_type": Resource.TOPIC,
                "resource_name": "orders",
                "configuration_keys": None,
            }
            asked = {"resources": [resource], "include_synonyms": False, "include_documentation": True}
            (found,) = (await connection.ask(Api.DESCRIBE_CONFIGS, asked)).results
            said = {each.name: each for each in found.configs}
            assert said["segment.jitter.ms"].value == "5"
            for name in ("segment.jitter.ms", "flush.ms"):
                assert said[name].documentation.startswith("It has no effect here: ")
            assert "preallocate" not in said
            wrong = await connection.create("others", preallocate="maybe")
            assert (wrong.error_code, wrong.error_message) == (
                ErrorCode.invalid_config,
                "preallocate=maybe is not done here; only false or true",
            )

    serve(tmp_path, test)
