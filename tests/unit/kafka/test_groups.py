"""Consumer groups over the wire, every version: joining, shares, positions, and what people see of them."""

from __future__ import annotations

import asyncio
import struct
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from quorate.batch import encode_records
from quorate.core.entry import Partition
from quorate.kafka.group_coordinator import Coordinator
from quorate.machine.groups import Groups
from quorate.node.exposition import exposition
from quorate.wire.messages import VERSIONS, Api
from tests.unit.kafka.harness import Connection, Served, serve, until
from tests.unit.kafka.test_transactions import Producer, ready

NONE = ErrorCode.none
WANTS_T = struct.pack(">hi", 0, 1) + b"\0\1t" + struct.pack(">i", 0)
"""What a consumer says that wants the topic t."""


def versions(api: Api) -> range:
    least, greatest = VERSIONS[api]
    return range(least, greatest + 1)


class Somebody:
    """A member of a group, on a connection of its own."""

    def __init__(self, connection: Connection, *, version: int | None = None, group: str = "g") -> None:
        self.connection = connection
        self.version = version
        self.group = group
        self.id = ""
        self.generation = -1
        self.assignment = b""

    def ask_join(self, **more: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": timedelta(seconds=10),
            "rebalance_timeout": timedelta(seconds=20),
            "member_id": self.id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": WANTS_T}],
            "reason": None,
        } | more

    async def join(self, **more: Any) -> Any:
        joined = await self.connection.ask(Api.JOIN_GROUP, self.ask_join(**more), self.version)
        if joined.error_code == ErrorCode.member_id_required:
            self.id = joined.member_id
            joined = await self.connection.ask(Api.JOIN_GROUP, self.ask_join(**more), self.version)
        self.id, self.generation = joined.member_id, joined.generation_id
        return joined

    async def sync(self, shares: dict[str, bytes] | None = None, version: int | None = None) -> Any:
        values = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                {"member_id": member_id, "assignment": share} for member_id, share in (shares or {}).items()
            ],
        }
        return await self.connection.ask(Api.SYNC_GROUP, values, version)

    async def heartbeat(self, version: int | None = None) -> ErrorCode:
        values = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": None,
        }
        answer = await self.connection.ask(Api.HEARTBEAT, values, version)
        return ErrorCode(answer.error_code)

    async def leave(self, version: int | None = None) -> Any:
        member = {"member_id": self.id, "group_instance_id": None, "reason": None}
        values = {"group_id": self.group, "member_id": self.id, "members": [member]}
        return await self.connection.ask(Api.LEAVE_GROUP, values, version)


async def called_back(member: Somebody) -> None:
    """Until it hears that there is another round."""
    deadline = time.monotonic() + 5
    error = await member.heartbeat()
    while error != ErrorCode.rebalance_in_progress:
        assert (error, time.monotonic() < deadline) == (NONE, True)
        error = await member.heartbeat()


async def commit(
    connection: Connection,
    offset: int,
    *,
    group: str = "g",
    member: Somebody | None = None,
    topic: str = "t",
    partition: int = 0,
    metadata: str | None = "note",
    version: int | None = None,
) -> ErrorCode:
    each = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": 4,
        "committed_metadata": metadata,
    }
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": member.generation if member else -1,
        "member_id": member.id if member else "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [{"name": topic, "partitions": [each]}],
    }
    answer = await connection.ask(Api.OFFSET_COMMIT, values, version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def positions(
    connection: Connection,
    *,
    group: str = "g",
    topics: dict[str, tuple[int, ...]] | None = None,
    version: int | None = None,
) -> dict[tuple[str, int], tuple[int, int, str]]:
    chosen = VERSIONS[Api.OFFSET_FETCH][1] if version is None else version
    named = None
    if topics is not None:
        named = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
    one = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": named}
    values = {**one, "groups": [one], "require_stable": True}
    answer = await connection.ask(Api.OFFSET_FETCH, values, chosen)
    answered = answer.groups[0] if chosen >= 8 else answer
    assert getattr(answered, "error_code", NONE) == NONE
    return {
        (topic.name, each.partition_index): (
            each.committed_offset,
            getattr(each, "committed_leader_epoch", -1),
            each.metadata,
        )
        for topic in answered.topics
        for each in topic.partitions
    }


async def prepared(served: Served, connection: Connection) -> None:
    """A topic, and a home whose partitions are led."""
    await connection.create("t", partitions=2)
    await served.node.metadata.alter_cluster({"group.initial.rebalance.delay.ms": "0"})
    values = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
    await connection.ask(Api.FIND_COORDINATOR, values)
    home = served.node.metadata.image.topics["__consumer_offsets"]
    await until(lambda: all(served.node.leads_with_all(partition) for partition in home.partitions()))


# ---- members ----


def test_two_share_a_topic_in_every_version(tmp_path: Path) -> None:
    async def share(one: Connection, two: Connection, version: int) -> None:
        group = f"of version {version}"
        anna, bert = Somebody(one, version=version, group=group), Somebody(two, version=version, group=group)
        joined = await anna.join()
        assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, 1, anna.id)
        shared = await anna.sync({anna.id: b"all"})
        assert (shared.error_code, shared.assignment) == (NONE, b"all")
        joining = asyncio.ensure_future(bert.join())
        await called_back(anna)
        joined = await anna.join()
        assert [member.metadata for member in joined.members] == [WANTS_T] * 2
        assert (await joining).members == ()
        waiting = asyncio.ensure_future(bert.sync())
        shared = await anna.sync({anna.id: b"half", bert.id: b"other half"})
        assert (shared.assignment, (await waiting).assignment) == (b"half", b"other half")
        assert [await anna.heartbeat(), await bert.heartbeat()] == [NONE, NONE]

    async def test(served: Served) -> None:
        async with await served.connect() as one, await served.connect() as two:
            await prepared(served, one)
            for version in versions(Api.JOIN_GROUP):
                await share(one, two, version)

    serve(tmp_path, test)


def test_every_version_of_the_small_ones_is_understood(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            for version in versions(Api.SYNC_GROUP):
                anna = Somebody(connection)
                await anna.join()
                assert (await anna.sync({anna.id: b"all"}, version)).assignment == b"all"
                for each in versions(Api.HEARTBEAT):
                    assert await anna.heartbeat(each) == NONE
                left = await anna.leave(version)
                assert left.error_code == NONE
                assert [member.error_code for member in getattr(left, "members", ())] in ([], [NONE])
                again = await anna.leave(version)
                errors = [again.error_code, *(member.error_code for member in getattr(again, "members", ()))]
                assert ErrorCode.unknown_member_id in errors

    serve(tmp_path, test)


def test_a_client_that_goes_while_it_waits_is_not_waited_for(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as one:
            await prepared(served, one)
            anna = Somebody(one)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            async with await served.connect() as two:
                await two.send(two.request(Api.JOIN_GROUP, Somebody(two).ask_join(), 3))
                await called_back(anna)
            await until(lambda: served.node.metrics.connections["kafka"]() == 1)
            joined = await anna.join()
            assert [member.member_id for member in joined.members] == [anna.id]

    serve(tmp_path, test)


def test_a_silent_member_is_gone_after_its_session(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            await served.node.metadata.alter_cluster({"group.min.session.timeout.ms": "100"})
            anna = Somebody(connection)
            await anna.join(session_timeout=timedelta(milliseconds=100))
            await anna.sync({anna.id: b"all"})
            home = served.node.homes.partition_of("groups", "g")
            machine = cast(Groups, served.node.host.hosted[cast(Partition, home)].machine)
            await until(lambda: not machine.groups["g"].members)
            assert await anna.heartbeat() == ErrorCode.unknown_member_id
            assert (await described(connection, "g")).group_state == "Empty"

    serve(tmp_path, test)


def test_a_group_without_a_name_is_none(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            for name in ("", "x" * 1001):
                nobody = Somebody(connection, group=name)
                assert (await nobody.join()).error_code == ErrorCode.invalid_group_id
                assert (await nobody.sync()).error_code == ErrorCode.invalid_group_id
                assert await nobody.heartbeat() == ErrorCode.invalid_group_id

    serve(tmp_path, test)


def test_before_there_is_a_home_nobody_coordinates(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assert (await Somebody(connection).join()).error_code == ErrorCode.coordinator_not_available
            assert await commit(connection, 1) == ErrorCode.coordinator_not_available

    serve(tmp_path, test)


def test_a_member_goes_on_while_its_group_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every client knows what to make of a heartbeat that came too early."""

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            with monkeypatch.context() as loading:
                loading.setattr(Coordinator, "_epoch", lambda coordinator, partition: None)
                assert await anna.heartbeat() == NONE
                assert (await anna.sync()).error_code == ErrorCode.coordinator_load_in_progress
            assert await anna.heartbeat() == NONE

    serve(tmp_path, test)


# ---- positions ----


def test_positions_are_found_again_with_what_was_noted_in_every_version(tmp_path: Path) -> None:
    async def keep(connection: Connection, version: int) -> None:
        group = f"of version {version}"
        assert await commit(connection, 5, group=group, version=version) == NONE
        noted = await commit(connection, 6, group=group, partition=1, metadata=None, version=version)
        assert noted == NONE
        epoch = 4 if version >= 6 else -1
        for each in versions(Api.OFFSET_FETCH):
            known = epoch if each >= 5 else -1
            found = await positions(connection, group=group, topics={"t": (0, 1), "u": (0,)}, version=each)
            assert found == {
                ("t", 0): (5, known, "note"),
                ("t", 1): (6, known, ""),
                ("u", 0): (-1, -1, ""),
            }
            if each >= 2:
                everything = await positions(connection, group=group, version=each)
                assert set(everything) == {("t", 0), ("t", 1)}

    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            for version in versions(Api.OFFSET_COMMIT):
                await keep(connection, version)
            assert await positions(connection, group="other") == {}

    serve(tmp_path, test)


def test_positions_that_cannot_be_kept_are_refused_one_by_one(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            unknown = ErrorCode.unknown_topic_or_partition
            assert await commit(connection, 5, topic="nothing") == unknown
            assert await commit(connection, 5, partition=2) == unknown
            assert await commit(connection, 5, partition=-1) == unknown
            assert await commit(connection, 5, metadata="x" * 4097) == ErrorCode.offset_metadata_too_large
            assert await commit(connection, -1) == ErrorCode.invalid_commit_offset_size
            assert await positions(connection) == {}

    serve(tmp_path, test)


def test_only_members_of_the_generation_commit_where_there_are_members(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            assert await commit(connection, 5, member=anna) == NONE
            assert await commit(connection, 9) == ErrorCode.unknown_member_id
            anna.generation -= 1
            assert await commit(connection, 9, member=anna) == ErrorCode.illegal_generation
            assert await commit(connection, 9, member=anna, group="none") == ErrorCode.illegal_generation
            assert (await positions(connection))["t", 0][0] == 5

    serve(tmp_path, test)


def test_a_position_is_none_in_another_topic_of_that_name(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            await commit(connection, 5)
            values = {"topic_names": ["t"], "timeout": timedelta(seconds=5)}
            await connection.ask(Api.DELETE_TOPICS, values, 5)
            assert await positions(connection, topics={"t": (0,)}) == {("t", 0): (-1, -1, "")}
            await connection.create("t", partitions=2)
            assert await positions(connection, topics={"t": (0,)}) == {("t", 0): (-1, -1, "")}
            assert await positions(connection) == {}

    serve(tmp_path, test)


def test_what_is_too_old_goes_by_itself(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            await connection.create("u")
            await commit(connection, 5)
            await commit(connection, 5, group="h", topic="u")
            values = {"topic_names": ["u"], "timeout": timedelta(seconds=5)}
            await connection.ask(Api.DELETE_TOPICS, values, 5)
            home = served.node.homes.partition_of("groups", "h")
            machine = cast(Groups, served.node.host.hosted[cast(Partition, home)].machine)
            await until(lambda: "h" not in machine.groups)
            assert (await positions(connection))["t", 0][0] == 5

    serve(tmp_path, test, retention_every_s=0.1)


def test_positions_of_a_topic_that_nobody_reads_can_be_deleted(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async def delete(group: str, topic: str) -> tuple[ErrorCode, list[ErrorCode]]:
            topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
            answer = await connection.ask(Api.OFFSET_DELETE, {"group_id": group, "topics": topics})
            return ErrorCode(answer.error_code), [each.partitions[0].error_code for each in answer.topics]

        async with await served.connect() as connection:
            await prepared(served, connection)
            await connection.create("u")
            assert await delete("g", "t") == (ErrorCode.group_id_not_found, [])
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            await commit(connection, 5, member=anna)
            await commit(connection, 6, member=anna, topic="u")
            assert await delete("g", "t") == (NONE, [ErrorCode.group_subscribed_to_topic])
            assert await delete("g", "u") == (NONE, [NONE])
            assert set(await positions(connection)) == {("t", 0)}
            await anna.leave()
            assert await delete("g", "t") == (NONE, [NONE])
            assert await positions(connection) == {}

    serve(tmp_path, test)


def test_a_consumer_that_was_fenced_has_no_say_in_a_transaction_either(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            producer = Producer(connection)
            await ready(served, connection)
            await producer.begin()
            who = {
                "transactional_id": producer.name,
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "group_id": "g",
            }
            assert (await connection.ask(Api.ADD_OFFSETS_TO_TXN, who)).error_code == NONE

            async def commit_as(member_id: str, generation: int, version: int) -> ErrorCode:
                part = {
                    "partition_index": 0,
                    "committed_offset": 5,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
                values = who | {
                    "generation_id": generation,
                    "member_id": member_id,
                    "group_instance_id": None,
                    "topics": [{"name": "t", "partitions": [part]}],
                }
                answer = await connection.ask(Api.TXN_OFFSET_COMMIT, values, version)
                return ErrorCode(answer.topics[0].partitions[0].error_code)

            assert await commit_as(anna.id, anna.generation - 1, 3) == ErrorCode.illegal_generation
            assert await commit_as("stranger", anna.generation, 3) == ErrorCode.unknown_member_id
            assert await commit_as(anna.id, anna.generation, 3) == NONE
            assert await commit_as("", -1, 2) == NONE, "it is fenced by its own epoch"

    serve(tmp_path, test)


# ---- for people ----


async def described(connection: Connection, group: str, version: int | None = None) -> Any:
    values = {"groups": [group], "include_authorized_operations": False}
    (one,) = (await connection.ask(Api.DESCRIBE_GROUPS, values, version)).groups
    return one


async def listed(connection: Connection, *states: str, version: int | None = None) -> dict[str, str]:
    values = {"states_filter": states, "types_filter": ()}
    answer = await connection.ask(Api.LIST_GROUPS, values, version)
    assert answer.error_code == NONE
    return {group.group_id: getattr(group, "group_state", "") for group in answer.groups}


def test_groups_are_listed_and_described_in_every_version(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            await commit(connection, 5, group="alone")
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            for version in versions(Api.LIST_GROUPS):
                assert set(await listed(connection, version=version)) == {"alone", "g"}
            assert await listed(connection) == {"alone": "Empty", "g": "Stable"}
            assert await listed(connection, "stable") == {"g": "Stable"}
            for version in versions(Api.DESCRIBE_GROUPS):
                found = await described(connection, "g", version)
                assert (found.group_state, found.protocol_type, found.protocol_data) == (
                    "Stable",
                    "consumer",
                    "range",
                )
                (member,) = found.members
                assert (member.member_id, member.client_id, member.client_host) == (
                    anna.id,
                    "test",
                    "/127.0.0.1",
                )
                assert (member.member_metadata, member.member_assignment) == (WANTS_T, b"all")
                nobody = await described(connection, "none", version)
                missing = ErrorCode.group_id_not_found if version >= 6 else NONE
                assert (nobody.error_code, nobody.group_state) == (missing, "Dead")
            assert (await described(connection, "alone")).group_state == "Empty"

    serve(tmp_path, test)


def test_whoever_watches_sees_how_many_groups_there_are_and_how_far_behind(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            for number in range(10):
                await connection.produce("t", encode_records([(None, b"%d" % number)]))
            await commit(connection, 4)
            await commit(connection, 10_000, group="ahead")
            anna = Somebody(connection, group="h")
            await anna.join()
            page = exposition(served.node)
            assert 'quorate_groups{state="Empty"} 2\n' in page
            assert 'quorate_groups{state="CompletingRebalance"} 1\n' in page
            # The leader's own entry lies before the ten.
            assert 'quorate_group_lag_offsets{group="g"} 7\n' in page
            assert 'quorate_group_lag_offsets{group="ahead"} 0\n' in page

    serve(tmp_path, test)


def test_groups_without_members_are_deleted_in_every_version(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await prepared(served, connection)
            anna = Somebody(connection)
            await anna.join()
            await anna.sync({anna.id: b"all"})
            for version in versions(Api.DELETE_GROUPS):
                await commit(connection, 5, group="alone")
                values = {"groups_names": ["alone", "g", "none"]}
                answer = await connection.ask(Api.DELETE_GROUPS, values, version)
                assert {each.group_id: each.error_code for each in answer.results} == {
                    "alone": NONE,
                    "g": ErrorCode.non_empty_group,
                    "none": ErrorCode.group_id_not_found,
                }
                assert await listed(connection) == {"g": "Stable"}

    serve(tmp_path, test)
