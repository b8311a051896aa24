"""Tables in real clusters: nothing is lost or done twice while leaders are killed and hang, on every protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from quorate.client import (
    AsyncTableGroup,
    Consistency,
    GroupReplaced,
    OutcomeUnknown,
    Refused,
    TableGroup,
    UnknownGroup,
    Unreachable,
    create_group,
)
from quorate.client.admin import delete_topic
from quorate.client.cluster import Cluster
from quorate.client.table_calls import new_id
from quorate.tables import Add, Column, CreateTable, Insert, Outcome, Table, Type, Update
from tests.cluster.support import expect_no_traceback, run, sampled
from tests.cluster.table_support import (
    GROUP,
    TIMEOUT_S,
    Counting,
    led,
    paused,
    tables_in,
    until_refused_no_more,
    until_value,
    value_of,
)

pytestmark = pytest.mark.cluster

DOCUMENTS = Table("documents", (Column("id", Type.INT), Column("text", Type.STR)), ("id",))
TEXT = "x" * 1_000_000
ONE_MORE = Update("counters", (0,), (Add("value", 1),))


@pytest.mark.parametrize("replication", sampled("coordinated"))
def test_compare_and_set_is_exact_while_leaders_are_killed(tmp_path: Path, replication: str) -> None:
    async def main() -> None:
        async with (
            tables_in(tmp_path, replication) as (cluster, bank),
            AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=TIMEOUT_S) as other,
        ):
            async with Counting(bank, other) as counting:
                for _ in range(2):
                    await counting.until_more(50)
                    victim = cluster.nodes[await led(bank)]
                    victim.kill()
                    await counting.until_more(50)
                    victim.start()
                    await counting.until_more(50)
            async with cluster.client() as client:
                await cluster.until_registered(client)
            await counting.settle(bank)
            await counting.expect_exact(bank)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.parametrize("replication", sampled("isr"))
def test_a_leader_that_hangs_holds_nobody_up_for_long(tmp_path: Path, replication: str) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, replication) as (cluster, bank):
            async with Counting(bank, tasks_count=4) as counting:
                await counting.until_more(20)
                async with paused(cluster, await led(bank)):
                    await counting.until_more(20)
                await counting.until_more(20)
            await counting.settle(bank)
            await counting.expect_exact(bank)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.parametrize("replication", sampled("raft"))
def test_whoever_has_written_sees_it_on_every_copy(tmp_path: Path, replication: str) -> None:
    async def main() -> None:
        async with (
            tables_in(tmp_path, replication) as (cluster, bank),
            AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=TIMEOUT_S) as stranger,
        ):
            for number in range(1, 11):
                done = await bank.execute(ONE_MORE)
                assert done.settled
                assert await value_of(stranger, Consistency.LINEARIZABLE) == number
                for node in (1, 2, 3):
                    assert await value_of(bank, node=node) == number
                assert await value_of(bank, Consistency.LOCAL, node=await led(bank)) == number
            # What was seen once is seen from then on, wherever it is asked.
            for node in (1, 2, 3):
                assert await value_of(stranger, node=node) == 10
            with pytest.raises(Refused, match="there is no node 9"):
                await value_of(bank, node=9)
            # Nearly as much as one transaction can hold, and more than one answer.
            await bank.execute(CreateTable(DOCUMENTS))
            await bank.execute(*(Insert("documents", (number, TEXT)) for number in range(16)))
            for node in (1, 2, 3):
                assert [row.values async for row in bank.iterate("documents", node=node)] == [
                    (number, TEXT) for number in range(16)
                ]

    run(main())


@pytest.mark.parametrize("replication", sampled("confirm"))
def test_what_is_unknown_can_be_asked_for_later(tmp_path: Path, replication: str) -> None:
    """Without a quorum nothing is settled, and nobody says that nothing was done; with one, it is done once."""

    async def main() -> None:
        async with tables_in(tmp_path, replication) as (cluster, bank):
            leader = await led(bank)
            followers = [node for node in cluster.nodes if node != leader]
            id_ = new_id()
            async with (
                paused(cluster, *followers),
                AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=2.0) as hasty,
            ):
                with pytest.raises(OutcomeUnknown) as unknown:
                    await hasty.execute(ONE_MORE, id_=id_)
                assert unknown.value.id == id_
                with pytest.raises(Unreachable):
                    await hasty.result(id_)
            done = await bank.execute(ONE_MORE, id_=id_)
            result = await bank.result(id_)
            assert result is not None
            assert (result.outcome, result.offset) == (Outcome.DONE, done.offset)
            assert await value_of(bank, Consistency.LINEARIZABLE) == 1
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_local_reads_see_what_may_be_taken_back_and_others_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "confirm") as (cluster, bank):
            leader = await led(bank)
            followers = [node for node in cluster.nodes if node != leader]
            async with (
                AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=TIMEOUT_S) as writer,
                AsyncTableGroup(cluster.bootstrap, GROUP, timeout_s=1.0) as reader,
            ):
                # Both are connected by now: a leader that hears nobody stands down before long.
                assert await value_of(writer, Consistency.LINEARIZABLE) == 0
                assert await value_of(reader, Consistency.LOCAL, node=leader) == 0
                async with paused(cluster, *followers):
                    writing = asyncio.create_task(writer.execute(ONE_MORE))
                    await until_value(reader, 1, Consistency.LOCAL, node=leader)
                    assert await value_of(reader, node=leader) == 0
                    with pytest.raises(Unreachable):
                        await value_of(reader, Consistency.LINEARIZABLE)
                await writing
            assert await value_of(bank, Consistency.LINEARIZABLE) == 1

    run(main())


def test_leaders_are_demoted_and_promoted_while_clients_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "confirm") as (cluster, bank):
            async with Counting(bank, tasks_count=4) as counting:
                for _ in range(2):
                    await counting.until_more(20)
                    before = await led(bank)
                    await until_refused_no_more(bank.demote)
                    await counting.until_more(20)
                    assert await led(bank) != before, "whoever was demoted leaves it to others"
            await counting.settle(bank)
            for node in (1, 2, 3):

                async def promote(node: int = node) -> None:
                    assert await bank.promote(node) == node

                await until_refused_no_more(promote)
                assert await led(bank) == node
                done = await bank.execute(ONE_MORE)
                counting.done[0] += done.settled
            await counting.expect_exact(bank)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_asynchronous_tables_answer_early_and_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "confirm") as (cluster, bank):
            visits = Table("visits", (Column("id", Type.INT),), ("id",), synchronous=False)
            await bank.execute(CreateTable(visits))
            leader = await led(bank)
            followers = [node for node in cluster.nodes if node != leader]
            async with paused(cluster, *followers):
                done = await bank.execute(Insert("visits", (1,)))
                assert not done.settled
                assert await bank.get("visits", (1,), Consistency.LOCAL, node=leader) is not None
                assert await bank.get("visits", (1,), node=leader) is None
            # The counters are synchronous: what comes before them in the log is settled with them, or void.
            await bank.execute(ONE_MORE)
            result = await bank.result(done.id)
            row = await bank.get("visits", (1,))
            assert (result is not None) == (row is not None), "all of it, or nothing"

    run(main())


def test_a_group_on_one_node_is_found_from_any_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "raft", replicas=1) as (cluster, bank):
            (holder,) = (await bank.describe()).copies
            for node, process in cluster.nodes.items():
                async with AsyncTableGroup(str(process.address), GROUP, timeout_s=TIMEOUT_S) as guest:
                    assert await value_of(guest) == 0
                    if node != holder:
                        with pytest.raises(
                            Refused, match=f"node {node} has no copy of 'bank'; these have: {holder}"
                        ):
                            await value_of(guest, node=node)

    run(main())


def expect_unknown_soon(group: TableGroup) -> None:
    """A node that is a little behind may know it still."""
    deadline = monotonic() + TIMEOUT_S
    with pytest.raises(UnknownGroup):
        while monotonic() < deadline:
            group.tables()


def test_a_group_that_is_deleted_and_made_anew_is_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "raft") as (cluster, bank):

            def remade() -> None:
                with Cluster(cluster.bootstrap) as kafka:
                    delete_topic(kafka, GROUP)
                    with TableGroup(cluster.bootstrap, GROUP) as nobody:
                        expect_unknown_soon(nobody)
                    create_group(kafka, GROUP, replication="confirm")

            with pytest.raises(GroupReplaced):
                async with asyncio.timeout(TIMEOUT_S):
                    remaking = asyncio.create_task(asyncio.to_thread(remade))
                    while True:
                        try:
                            await bank.execute(ONE_MORE)
                        except (UnknownGroup, OutcomeUnknown):
                            assert not (remaking.done() and remaking.exception()), remaking
                            await asyncio.sleep(0.05)
            await remaking
            async with AsyncTableGroup(cluster.bootstrap, GROUP) as new:
                assert await new.tables() == ()

    run(main())


@pytest.mark.proof
def test_a_dead_cluster_is_said_to_be_so_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with tables_in(tmp_path, "raft") as (cluster, _):
            bootstrap = cluster.bootstrap
            async with AsyncTableGroup(bootstrap, GROUP, timeout_s=2.0) as bank:
                await bank.tables()
                for process in cluster.nodes.values():
                    process.kill()
                began = monotonic()
                with pytest.raises(Unreachable, match="within 2 s"):
                    await bank.tables()
                assert monotonic() - began < 2.0 + TIMEOUT_S / 2

    run(main())
