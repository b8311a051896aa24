"""FindCoordinator, and the topics of the cluster's own that it makes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.machine.groups import CommitOffsets, DeleteGroup, Position, Result
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, serve, until

HOME = "__consumer_offsets"


async def find(connection: Connection, version: int, *names: str, kind: int = 0) -> Any:
    """The answers, in the order of the names."""
    values = {"key": names[0], "key_type": kind, "coordinator_keys": names}
    body = await connection.ask(Api.FIND_COORDINATOR, values, version)
    return body.coordinators if version >= 4 else [body]


async def metadata(connection: Connection) -> dict[str, Any]:
    values = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return {topic.name: topic for topic in (await connection.ask(Api.METADATA, values, 12)).topics}


def test_the_first_who_asks_has_the_home_made_and_all_hear_who_it_is(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assert HOME not in await metadata(connection)
            least, greatest = VERSIONS[Api.FIND_COORDINATOR]
            for version in range(least, greatest + 1):
                (found,) = await find(connection, version, "readers")
                assert (found.error_code, found.node_id) == (0, 1)
                assert (found.host, found.port) == ("127.0.0.1", served.port)
                if version >= 4:
                    both = await find(connection, version, "readers", "others")
                    assert [(each.key, each.node_id) for each in both] == [("readers", 1), ("others", 1)]
            home = (await metadata(connection))[HOME]
            assert home.is_internal
            assert len(home.partitions) == 8

    serve(tmp_path, test)


def test_two_who_ask_at_once_find_one_home(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as one, await served.connect() as two:
            found = await asyncio.gather(find(one, 4, "a"), find(two, 4, "b"))
            assert [each.error_code for answer in found for each in answer] == [0, 0]
            assert list(served.node.metadata.image.cluster.homes) == ["groups"]

    serve(tmp_path, test)


def test_what_has_no_coordinator_is_refused(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            (found,) = await find(connection, 4, "shared", kind=2)
            assert (found.error_code, found.node_id) == (ErrorCode.invalid_request, -1)

    serve(tmp_path, test)


def test_a_home_is_nobodys_to_write_or_delete_or_make(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            made = await connection.create(HOME)
            assert made.error_code == ErrorCode.invalid_topic_exception
            await find(connection, 4, "readers")
            written = await connection.produce(HOME, encode_records([(None, b"mine")]))
            assert written.error_code == ErrorCode.invalid_topic_exception
            values = {"topic_names": [HOME], "timeout": timedelta(seconds=5)}
            (gone,) = (await connection.ask(Api.DELETE_TOPICS, values, 5)).responses
            assert gone.error_code == ErrorCode.policy_violation
            more = {"name": HOME, "count": 9, "assignments": None}
            values = {"topics": [more], "timeout": timedelta(seconds=5), "validate_only": False}
            (added,) = (await connection.ask(Api.CREATE_PARTITIONS, values)).results
            assert added.error_code == ErrorCode.invalid_partitions
            assert len((await metadata(connection))[HOME].partitions) == 8

    serve(tmp_path, test)


def test_a_home_has_as_many_partitions_as_the_cluster_is_set_to(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await served.node.metadata.alter_cluster({"offsets.topic.num.partitions": "3"})
            await find(connection, 4, "readers")
            assert len((await metadata(connection))[HOME].partitions) == 3

    serve(tmp_path, test)


def test_what_is_proposed_to_a_home_is_answered_with_what_came_of_it(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        homes = served.node.homes
        await homes.ensure("groups")
        partition = homes.partition_of("groups", "readers")
        assert partition is not None
        await until(lambda: served.node.leads_with_all(partition))
        answered: asyncio.Future[tuple[Reply, Any]] = asyncio.get_running_loop().create_future()
        position = Position(7, -1, "", b"", 0)
        served.node.begin_turn()
        homes.propose(
            partition,
            [CommitOffsets("readers", {"t": {0: position}}), DeleteGroup("nobody")],
            lambda reply, results: answered.set_result((reply, results)),
        )
        served.node.end_turn()
        async with asyncio.timeout(5):
            reply, results = await answered
        assert reply.outcome is Outcome.SETTLED
        assert results == [Result.DONE, Result.NO_GROUP]

    serve(tmp_path, test)
