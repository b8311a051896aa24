"""A node that hears none of the others sends clients there: it does not know any more who leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from quorate.core.entry import Member
from quorate.machine.cluster import KNOWN_LEVEL
from quorate.machine.metadata import CreateTopic, NodeInfo, RegisterNode, Topic
from quorate.wire.messages import Api
from tests.unit.kafka.harness import Connection, Served, serve

ELSEWHERE = NodeInfo(2, 1, "127.0.0.1", 1, knows=KNOWN_LEVEL)


async def metadata(client: Connection) -> Any:
    values = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return await client.ask(Api.METADATA, values)


def test_where_nobody_else_is_heard_clients_are_sent_to_the_others(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        known = served.node.metadata
        async with await served.connect() as client:
            assert [broker.node_id for broker in (await metadata(client)).brokers] == [1], "there is no other"
            await known.command(RegisterNode(ELSEWHERE))
            me = Member(1, served.node.incarnation)
            await known.command(CreateTopic(Topic("both", bytes([7] * 16), "raft", ((me, Member(2, 1)),))))
            told = await metadata(client)
            assert ([broker.node_id for broker in told.brokers], told.controller_id) == ([2], 2)
            (partition,) = told.topics[0].partitions
            assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.leader_not_available)

    serve(tmp_path, test)


def test_a_node_with_the_only_copy_of_something_stays_to_be_found(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as client:
            assert (await client.create("own")).error_code == ErrorCode.none
            await served.node.metadata.command(RegisterNode(ELSEWHERE))
            told = await metadata(client)
            assert [broker.node_id for broker in told.brokers] == [1, 2]
            assert told.topics[0].partitions[0].leader_id == 1

    serve(tmp_path, test)
