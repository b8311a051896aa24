"""`quorate doctor` over real clusters with real troubles: it finds what was planted, and says when it is gone."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Producer

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.cli.doctor_partitions import UNSETTLED_S
from quorate.client import AsyncTableGroup, create_group
from quorate.core.entry import partition_of
from quorate.machine.metadata import METADATA, REPLICATIONS
from quorate.node.client import Client
from quorate.node.requests import ReplicaStatus
from quorate.tables import CreateTable, Insert
from tests.cluster.growing import held_by
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.secured import SecuredCluster, needs_openssl
from tests.cluster.support import expect_no_traceback, run
from tests.cluster.table_support import COUNTERS
from tests.cluster.test_faults import FULL_NODE, LARGE_BYTES, SMALL_SEGMENTS, damage

pytestmark = pytest.mark.cluster

FOUND_TIMEOUT_S = 90.0
NEWER = (sys.executable, "-m", "quorate.kafka")
ODD_NODE, OLDER_NODE = (Path(__file__).with_name(name) for name in ("odd_node.py", "older_node.py"))
OF_THIS_MACHINE = {"disk-filling", "clocks-apart"}
"""Its disk may be nearly full, whoever tests; and where it is busy, one answer may come late."""

Found = dict[str, dict[str, Any]]


def looked_at(bootstrap: str) -> tuple[int, list[dict[str, Any]]]:
    """Everything, also what may be so on this machine."""
    done = Operator(bootstrap).types("doctor --json")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["findings"]


def doctor(bootstrap: str) -> tuple[int, Found]:
    code, findings = looked_at(bootstrap)
    return code, {each["id"]: each for each in findings if each["id"] not in OF_THIS_MACHINE}


async def finds(cluster: ProxiedCluster, *kinds: str) -> Found:
    """Asked until all of these are found: a moment after something happened not everybody knows of it."""
    deadline = monotonic() + FOUND_TIMEOUT_S
    while True:
        code, found = await asyncio.to_thread(doctor, cluster.bootstrap)
        if found.keys() >= set(kinds):
            assert code == 1 or all(each["severity"] == "note" for each in found.values())
            return found
        assert monotonic() < deadline, f"{kinds} are not all in {list(found)}"


async def finds_nothing(cluster: ProxiedCluster, but: tuple[str, ...] = ()) -> None:
    deadline = monotonic() + FOUND_TIMEOUT_S
    while (found := (await asyncio.to_thread(doctor, cluster.bootstrap))[1]).keys() - set(but):
        assert monotonic() < deadline, found


def write(bootstrap: str, topic: str, count: int, size: int = 100) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "message.timeout.ms": 30_000,
            "batch.num.messages": 1,
        }
    )
    failed: list[object] = []
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(START_TIMEOUT_S) == 0
    assert failed == [None] * count


async def started(cluster: ProxiedCluster, client: Client) -> Operator:
    cluster.start()
    await cluster.until_registered(client)
    return Operator(cluster.bootstrap)


async def led_by(cluster: ProxiedCluster, client: Client, topic: str) -> int:
    (asked, *_) = [node for node, process in cluster.nodes.items() if process.process is not None]
    (found,) = (await client.image(asked, (topic,))).topics
    return await cluster.leader(client, partition_of(found.id, 0))


@pytest.mark.proof
def test_settings_dead_nodes_and_a_lost_majority(tmp_path: Path) -> None:
    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(person.does, "topic create events --partitions 2")
            await asyncio.to_thread(person.does, "topic create synced --replication isr")
            await finds_nothing(cluster)
            await asyncio.to_thread(person.does, "topic create lonely --replicas 1")
            await asyncio.to_thread(person.does, "topic alter events --config retention.ms=1000")
            found = await finds(cluster, "one-copy", "retention-below-segment")
            assert set(found) == {"one-copy", "retention-below-segment"}
            pasted = found["retention-below-segment"]["commands"][0]
            assert pasted.endswith(f" -b {cluster.bootstrap}")
            await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted.split()], check=True)
            (pasted,) = found["one-copy"]["commands"]
            await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted.split()], check=True)
            await finds_nothing(cluster)

            leader = await cluster.leader(client, METADATA)
            followers = [node for node in cluster.nodes if node != leader]
            cluster.nodes[followers[0]].kill()
            found = await finds(cluster, "node-silent", "voters-away", "copies-away")
            assert found["node-silent"]["nodes"] == [followers[0]]
            assert "one more goes, nothing can be written" in found["copies-away"]["what"]
            assert {"events/0", "events/1"} <= set(found["copies-away"]["partitions"])
            cluster.nodes[followers[1]].kill()
            found = await finds(cluster, "metadata-no-majority", "partition-leaderless")
            assert next(iter(found)) == "metadata-no-majority", "the worst comes first"
            assert found["partition-leaderless"]["severity"] == "critical"
            for node in followers:
                cluster.nodes[node].start()
            await finds_nothing(cluster, but=("node-restarted",))
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_cut_links_and_copies_that_fall_behind(tmp_path: Path) -> None:
    """One way: the leader hears its follower, which answers `quorate doctor`, and gets nothing to follow."""

    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(person.does, "topic create events")
            leader = await led_by(cluster, client, "events")
            follower = next(node for node in cluster.nodes if node != leader)
            cluster.links[leader, follower].set(cut=True)
            await asyncio.to_thread(write, cluster.bootstrap, "events", 20)
            found = await finds(cluster, "nodes-apart", "copy-behind")
            assert follower in found["nodes-apart"]["nodes"]
            assert found["copy-behind"]["nodes"] == [follower]
            cluster.heal()
            await finds_nothing(cluster)

            cluster.nodes[follower].send(signal.SIGSTOP)
            try:
                found = await finds(cluster, "node-silent", "copies-away")
                assert (
                    "nothing for 5 s" in found["node-silent"]["what"]
                    or "no answer" in found["node-silent"]["what"]
                )
            finally:
                cluster.nodes[follower].send(signal.SIGCONT)
            await finds_nothing(cluster)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_damage_and_a_full_disk(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = ProxiedCluster(tmp_path, store=SMALL_SEGMENTS, scrub_every_s=0.5)
        signs = {node: tmp_path / f"full-{node}" for node in cluster.nodes}
        for node, process in cluster.nodes.items():
            process.command = (sys.executable, str(FULL_NODE), str(signs[node]))
        async with cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(person.does, "topic create events")
            node = await led_by(cluster, client, "events")
            deadline = monotonic() + FOUND_TIMEOUT_S
            while not has_sealed_segments(cluster.nodes[node].directory):
                assert monotonic() < deadline
                await asyncio.to_thread(write, cluster.bootstrap, "events", 20, LARGE_BYTES)
            await until_marked(cluster, client)
            cluster.nodes[node].kill()
            assert damage(cluster.nodes[node].directory) >= 1
            cluster.cut_off(node)  # Or it would be mended before anybody looks.
            cluster.nodes[node].start()
            found = await finds(cluster, "copy-damaged", "nodes-apart")
            assert (found["copy-damaged"]["nodes"], found["copy-damaged"]["partitions"]) == (
                [node],
                ["events/0"],
            )
            cluster.heal()
            await finds_nothing(cluster)

            signs[node].touch()
            full = asyncio.create_task(writing_on(cluster.bootstrap))
            try:
                found = await finds(cluster, "disk-full")
                assert (found["disk-full"]["nodes"], found["disk-full"]["severity"]) == ([node], "critical")
            finally:
                signs[node].unlink()
                full.cancel()
                with suppress(asyncio.CancelledError):
                    await full
            await finds_nothing(cluster)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("replication", REPLICATIONS)
def test_the_same_damage_on_every_copy_is_named(tmp_path: Path, replication: str) -> None:
    async def main() -> None:
        cluster = ProxiedCluster(tmp_path, store=SMALL_SEGMENTS, scrub_every_s=0.5)
        async with cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(person.does, f"topic create events --replication {replication}")
            deadline = monotonic() + FOUND_TIMEOUT_S
            while not all(has_sealed_segments(node.directory) for node in cluster.nodes.values()):
                assert monotonic() < deadline
                await asyncio.to_thread(write, cluster.bootstrap, "events", 20, LARGE_BYTES)
            await until_marked(cluster, client)
            before = await copies_of(cluster, client, "events")
            for node in cluster.nodes.values():
                node.kill()
                assert damage(node.directory) >= 1
            for node in cluster.nodes.values():
                node.start()
            await cluster.until_registered(client)
            found = (await finds(cluster, "every-copy-damaged"))["every-copy-damaged"]
            assert (found["severity"], found["partitions"]) == ("critical", ["events/0"])
            assert "cannot be read on any copy that is there" in found["what"]

            async def said() -> bool | None:
                words = "every copy of these entries is damaged"
                return any(words in node.said() for node in cluster.nodes.values()) or None

            await cluster.until(said, "a node to say so")
            after = await copies_of(cluster, client, "events")
            for number, copy in after.items():
                assert copy.faulty, "it is still said to be damaged"
                assert copy.head.offset >= before[number].commit, "nothing that was settled is cut"
            expect_no_traceback(*cluster.nodes.values())

    run(main())


async def copies_of(cluster: ProxiedCluster, client: Client, topic: str) -> dict[int, ReplicaStatus]:
    """All three of its first partition."""

    async def all_there() -> dict[int, ReplicaStatus] | None:
        (found,) = (await client.image(1, (topic,))).topics
        held = held_by(await cluster.answers(client), partition_of(found.id, 0))
        return held if len(held) == 3 else None

    return await cluster.until(all_there, f"three copies of {topic}")


async def until_marked(cluster: ProxiedCluster, client: Client) -> None:
    """What was flushed last and is damaged at once is taken for torn: nothing says yet that it was flushed."""
    await until_flushed(cluster, client, "events")
    await asyncio.to_thread(write, cluster.bootstrap, "events", 1)
    await until_flushed(cluster, client, "events")


async def until_flushed(cluster: ProxiedCluster, client: Client, topic: str) -> None:
    """Every copy has everything on its disk."""
    (found,) = (await client.image(1, (topic,))).topics

    async def flushed() -> bool | None:
        held = held_by(await cluster.answers(client), partition_of(found.id, 0)).values()
        leader = next((copy for copy in held if copy.role == "leader"), None)
        if leader is None or leader.commit != leader.head.offset:
            return None
        return set(leader.in_sync) == set(cluster.nodes) or None

    await cluster.until(flushed, "every copy to be flushed")


def has_sealed_segments(directory: Path) -> bool:
    return any(len(list(log.glob("*.log"))) > 1 for log in directory.glob("store/partitions/*"))


async def writing_on(bootstrap: str) -> None:
    while True:
        await asyncio.to_thread(write, bootstrap, "events", 20, LARGE_BYTES)


@pytest.mark.proof
def test_a_transaction_that_waits_for_its_quorum(tmp_path: Path) -> None:
    """Of two copies one hangs; leaders change by order only, so nobody but a person can decide."""
    confirm = {"automatic": False, "election_timeout_s": 0.5, "heartbeat_s": 0.1}

    async def main() -> None:
        async with ProxiedCluster(tmp_path, confirm=confirm) as cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(
                create_group, cluster.bootstrap, "bank", replication="confirm", replicas_count=2
            )
            (group,) = (await client.image(1, ("bank",))).topics
            leads, follows = (member.node for member in group.ensembles[0])
            found = await finds(cluster, "partition-leaderless")
            assert any(
                command.startswith("quorate table promote bank --node")
                for command in found["partition-leaderless"]["commands"]
            )
            await asyncio.to_thread(promote, person, f"table promote bank --node {leads}")
            async with AsyncTableGroup(cluster.bootstrap, "bank", timeout_s=FOUND_TIMEOUT_S) as bank:
                await bank.execute(CreateTable(COUNTERS), Insert("counters", (1, 0)))
                cluster.nodes[follows].send(signal.SIGSTOP)
                waiting = asyncio.create_task(bank.execute(Insert("counters", (2, 0))))
                try:

                    async def waits() -> bool | None:
                        replica = held_by(await cluster.answers(client), partition_of(group.id, 0))[leads]
                        return replica.unsettled_s >= UNSETTLED_S or None

                    await cluster.until(waits, "the transaction to wait for long")
                    found = await finds(cluster, "unsettled")
                    assert not waiting.done()
                finally:
                    cluster.nodes[follows].send(signal.SIGCONT)
                await waiting
            assert found["unsettled"]["partitions"] == ["bank/0"]
            assert "a transaction waits for" in found["unsettled"]["what"]
            assert (
                f"quorate table promote bank --node {leads} --roll-back" in found["unsettled"]["commands"][-1]
            )
            await finds_nothing(cluster, but=("two-copies",))
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def promote(person: Operator, line: str) -> None:
    """Typed again where votes were late: half a second is not much on a busy machine."""
    deadline = monotonic() + FOUND_TIMEOUT_S
    while (done := person.types(line)).returncode:
        assert done.returncode == 1 or "incomplete quorum" in done.stderr, done.stderr
        assert monotonic() < deadline, done.stderr


@pytest.mark.proof
def test_a_transaction_that_a_client_leaves_open(tmp_path: Path) -> None:
    settings = {"transactional.id": "pay-7", "transaction.timeout.ms": 600_000, "log_level": 0}

    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster, cluster.client() as client:
            person = await started(cluster, client)
            await asyncio.to_thread(person.does, "topic create events --partitions 2")
            payer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
            await asyncio.to_thread(payer.init_transactions, START_TIMEOUT_S)
            payer.begin_transaction()
            for number in range(2):
                payer.produce("events", b"held", partition=number)
            assert await asyncio.to_thread(payer.flush, START_TIMEOUT_S) == 0
            await asyncio.to_thread(write, cluster.bootstrap, "events", 5)
            found = (await finds(cluster, "transaction-open"))["transaction-open"]
            assert (found["severity"], found["partitions"]) == ("warning", ["events/0", "events/1"])
            assert "(transactional id 'pay-7') is open for " in found["what"]
            assert "see nothing of events/0 from offset 1 on, 6 offsets by now" in found["what"]
            assert "a producer that begins under the same id aborts what is open" in found["do"]

            pasted = found["commands"][-1].split()
            assert pasted[:4] == ["quorate", "transaction", "abort", "pay-7"]
            await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted], check=True)
            await finds_nothing(cluster)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_changes_votes_lost_disks_and_settings_that_leave_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster, cluster.client() as client:
            person = await started(cluster, client)
            for line in (
                "topic create events",
                "topic create pair --replicas 2",
                "topic create tight --replication isr --config min.insync.replicas=3",
                "cluster alter --config quorate.moving.rate=0",
            ):
                await asyncio.to_thread(person.does, line)
            await asyncio.to_thread(write, cluster.bootstrap, "events", 200, LARGE_BYTES)
            cluster.join(4, client)
            await cluster.until_registered(client)
            await asyncio.to_thread(person.brings_about, "cluster add 4")
            await asyncio.to_thread(person.does, "topic add events --node 4 --no-wait")
            found = await finds(cluster, "two-copies", "min-insync-all", "voters-even", "change-open")
            assert found["min-insync-all"]["partitions"] == ["tight/0"]
            assert found["change-open"]["partitions"] == ["events/0"]
            for kind in ("min-insync-all", "voters-even"):
                (pasted,) = found[kind]["commands"]
                await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted.split()], check=True)
            await asyncio.to_thread(person.does, "cluster alter --reset quorate.moving.rate")
            await asyncio.to_thread(person.brings_about, "topic alter pair --replicas 3")
            await finds_nothing(cluster, but=("node-restarted",))

            leader = await cluster.leader(client, METADATA)
            lost = next(node for node in (2, 3) if node != leader)
            process = cluster.nodes[lost]
            process.kill()
            shutil.rmtree(process.directory)
            process.format(replaces=True)
            process.start()
            found = await finds(cluster, "disk-lost", "copies-away")
            assert found["disk-lost"]["nodes"] == [lost]
            (pasted,) = found["disk-lost"]["commands"]
            await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted.split()], check=True)
            await finds_nothing(cluster, but=("node-restarted",))
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
@needs_openssl
def test_certificates_that_end_soon(tmp_path: Path) -> None:
    with SecuredCluster(tmp_path) as cluster:
        cluster.start()
        command = [sys.executable, "-m", "quorate", "--access", str(cluster.access), "doctor", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S)
        assert done.returncode == 1, done.stderr
        found = [each for each in json.loads(done.stdout)["findings"] if each["id"] == "certificate-ends"]
    listeners = [f"node {node}, listeners.{name}" for node in (1, 2, 3) for name in ("nodes", "outside")]
    for listener in listeners:
        assert any(each["where"] == f"{listener}.tls.cert" for each in found)
    assert {each["severity"] for each in found} == {"critical"}
    assert all("ends in 2 days" in each["what"] or "hours" in each["what"] for each in found)


@pytest.mark.proof
def test_machines_and_versions_that_differ(tmp_path: Path) -> None:
    """Node 2 is of another version, its clock is ahead, and its disk nearly full; node 3 knows a level less.

    A new cluster goes by what its first leader knows, and who knows less does not start: all begin as older ones.
    """
    sign = tmp_path / "odd"
    sign.write_text('{"version": "0.0.9", "ahead_ms": 90000, "free_share": 0.02}', encoding="utf-8")

    async def main() -> None:
        cluster = ProxiedCluster(tmp_path)
        for process in cluster.nodes.values():
            process.command = (sys.executable, str(OLDER_NODE))
        async with cluster, cluster.client() as client:
            await started(cluster, client)
            await install(cluster, client, 1, NEWER)
            await install(cluster, client, 2, (sys.executable, str(ODD_NODE), str(sign)))
            found = await finds(cluster, "versions-differ", "levels-differ")
            assert "node 2: 0.0.9" in found["versions-differ"]["what"]
            assert found["levels-differ"]["nodes"] == [3]
            await finds_of_machine(cluster, 2, ("disk-filling", "critical"), ("clocks-apart", "warning"))
            sign.write_text('{"version": "0.0.9", "free_share": 0.1}', encoding="utf-8")
            await finds_of_machine(cluster, 2, ("disk-filling", "warning"))
            sign.unlink()
            for node in (2, 3):
                await install(cluster, client, node, NEWER)
            found = await finds(cluster, "level-behind")
            assert not found.keys() & {"versions-differ", "levels-differ"}
            (pasted,) = found["level-behind"]["commands"]
            await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *pasted.split()], check=True)
            await finds_nothing(cluster, but=("node-restarted",))
            expect_no_traceback(*cluster.nodes.values())

    run(main())


async def install(cluster: ProxiedCluster, client: Client, node: int, command: tuple[str, ...]) -> None:
    process = cluster.nodes[node]
    assert process.stop() == 0, process.said()
    process.command = command
    process.start()
    await cluster.until_registered(client)


async def finds_of_machine(cluster: ProxiedCluster, node: int, *wanted: tuple[str, str]) -> None:
    """Asked until this is found of that node's disk and clock, as bad as that."""
    deadline = monotonic() + FOUND_TIMEOUT_S
    while True:
        _, findings = await asyncio.to_thread(looked_at, cluster.bootstrap)
        found = {(each["id"], each["severity"]) for each in findings if node in each["nodes"]}
        if found >= set(wanted):
            return
        assert monotonic() < deadline, f"{wanted} are not all in {findings}"
