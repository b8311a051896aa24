"""docs/OPERATIONS.md shows what its commands print: they are typed here, in its order, into real clusters.

Only blocks of ```console are typed. Those with a word behind that are typed into a cluster of that name, in which
other things have happened. `pytest --rewrite` puts what was printed into the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from quorate.batch import encode_records
from quorate.bench.cluster_processes import POLL_S, NodeProcess, free_ports
from quorate.client import Joint
from quorate.node.client import Client
from tests.cluster.growing import GrowingCluster
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.person import Operator
from tests.cluster.support import QUICK_RAFT, run, until
from tests.cluster.test_versions import NEWER, OLDER
from tests.cluster.typed_pages import DOCS, Block, Shown, Typist, blocks_of, expect_as_shown, rewritten

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

PAGE = DOCS / "OPERATIONS.md"
CLUSTER_ID = "R5mXbDkLQ7S3y0r1nUJ2Vg"
RECORDS_COUNT = 120
READ_COUNT = 100
MOVED_BYTES, MOVED_COUNT = 100_000, 40
"""Of each partition: more than goes at once, whatever rate copies are made at."""


class _TypedNode(NodeProcess):
    """What `quorate node data` runs; its elections are as quick as the others'."""

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory, 4, port, {})
        self.directory = directory / "data"

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        told = {f"QUORATE_RAFT__{name.upper()}": str(value) for name, value in QUICK_RAFT.items()}
        return subprocess.Popen(
            [*self.command, "--stop-with-stdin"],
            cwd=self.directory.parent,
            env=os.environ | told,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            process_group=0,
        )


class Stage:
    """A cluster as the page has it: nodes 1, 2 and 3, and a place for a fourth."""

    def __init__(self, cluster: GrowingCluster, client: Client, directory: Path, held: ExitStack) -> None:
        self.cluster, self.client = cluster, client
        self.typist = Typist(directory, lambda: cluster.bootstrap)
        self._held = held
        self.reader: Consumer | None = None
        self._state = "up"
        """What is shown of the fourth node when it runs."""
        (port,) = free_ports(1)
        self.fourth = _TypedNode(directory, port)
        self.typist.node = self.fourth
        self.typist.stands_for = {
            CLUSTER_ID: cluster.name,
            **{f"10.0.0.{node}:9092": str(process.address) for node, process in cluster.nodes.items()},
            "10.0.0.4:9092": str(self.fourth.address),
        }

    def does(self, line: str) -> None:
        Operator(self.cluster.bootstrap).brings_about(line)

    # --- what stands before a block's first command is typed ---

    async def transactions_are_open(self) -> None:
        bootstrap = self.cluster.bootstrap
        for topic in ("orders", "clicks"):
            self.does(f"topic create {topic} --partitions 4")
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pay-7", "log_level": 0})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in (0, 3):
            producer.produce("orders", b"1", partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        self._held.callback(lambda: producer)
        clicks = self._held.enter_context(Joint(bootstrap, "clicks", "run", timeout_s=TIMEOUT_S))
        writer = clicks.writer(clicks.open(41, task=0, attempt=0, timeout_s=900.0))
        writer.append("clicks", {0: encode_records([(None, b"1")])})
        person = Operator(bootstrap)

        def are_known() -> bool:
            shown = person.shows("transaction list")["transactions"]
            held = {each["transaction"]: each["holds_back"] for each in shown}
            return held == {"pay-7": ["orders/0", "orders/3"], "clicks": ["clicks/0"]}

        await until(are_known, "leaders to say what they hold back")

    async def there_is_a_group(self) -> None:
        """That has read most of one partition, and all of the other."""
        bootstrap = self.cluster.bootstrap
        self.does("topic create clicks --partitions 2 --replication isr")
        self._produce("clicks", {0: RECORDS_COUNT, 1: READ_COUNT})
        self.reader = reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "client.id": "billing-1",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        reader.subscribe(["clicks"])
        await until(lambda: reader.poll(POLL_S) is None and len(reader.assignment()) == 2, "it to have both")
        places = [TopicPartition("clicks", partition, READ_COUNT + 1) for partition in (0, 1)]
        reader.commit(offsets=places, asynchronous=False)
        self.typist.stands_for["billing-1/10.0.0.9"] = "billing-1/127.0.0.1"

    async def its_reader_leaves(self) -> None:
        assert self.reader is not None
        self.reader.close()

    async def there_is_much_in_events(self) -> None:
        self._produce("events", {0: MOVED_COUNT, 1: MOVED_COUNT}, b"." * MOVED_BYTES)

    def _produce(self, topic: str, counts: dict[int, int], value: bytes = b"1") -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for partition, count in counts.items():
            for _ in range(count):
                producer.produce(topic, value, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    async def the_third_is_away(self) -> None:
        await self.cluster.topic(self.client, "events", (1, 2, 3), partitions=2)
        self.does("cluster transfer --to 1")
        assert self.cluster.nodes[3].stop() == 0

    async def the_third_is_back(self) -> None:
        def finds_nothing() -> bool:
            return Operator(self.cluster.bootstrap).types("doctor").returncode == 0

        self.cluster.nodes[3].start()
        await self.cluster.until_registered(self.client)
        await until(finds_nothing, "node 3 to have everything")

    async def there_are_tables(self) -> None:
        self.does("table create bank/accounts id:int balance:int --key id")

    async def its_disk_is_lost(self) -> None:
        assert self.fourth.stop() == 0
        shutil.rmtree(self.fourth.directory)
        self._state = "up disk lost"

    async def every_node_knows_more(self) -> None:
        for node in self.cluster.nodes.values():
            assert node.stop() == 0
            node.command = NEWER
            node.start()
            await self.cluster.until_registered(self.client)

    async def there_are_five(self) -> None:
        for node in (4, 5):
            process = self.cluster.join(node, self.client)
            self.typist.stands_for[f"10.0.0.{node}:9092"] = str(process.address)
        await self.cluster.until_registered(self.client)

    async def the_fourth_of_five_goes(self) -> None:
        await self.there_are_five()
        await self.cluster.topic(self.client, "events", (2, 3, 4))
        self.does("cluster add 4")

    async def most_copies_are_away(self) -> None:
        await self.there_are_five()
        await self.cluster.topic(self.client, "events", (1, 4, 5))
        values = [b"%d" % number for number in range(RECORDS_COUNT)]
        Confluent(self.cluster.bootstrap).produce("events", values, "none")
        await self.cluster.until_registered(self.client)
        fifth = self.cluster.nodes[5]
        self.cluster.nodes[4].kill()
        assert fifth.stop() == 0
        shutil.rmtree(fifth.directory)
        fifth.format(replaces=True)
        fifth.start()
        await self._until_shown(fifth, "up disk lost")

    # --- and after it ---

    async def the_fourth_node_runs(self) -> None:
        self.cluster.nodes[4] = self.fourth
        self.client.know(4, self.fourth.address)
        await self._until_shown(self.fourth, self._state)

    async def _until_shown(self, node: NodeProcess, state: str) -> None:
        def is_shown() -> bool:
            return f"{node.node} {node.address} {state}" in re.sub(r"\s+", " ", person.does("cluster status"))

        person = Operator(self.cluster.bootstrap)
        await until(is_shown, f"node {node.node} to be {state}")


Prepare = Callable[[Stage], Awaitable[None]]
VOTERS = "1=10.0.0.1:9092,2=10.0.0.2:9092,3=10.0.0.3:9092"
FORMAT = f"quorate format data --node 4 --listen 10.0.0.4:9092 --voters {VOTERS} --cluster {CLUSTER_ID}"
BEFORE: dict[tuple[str, str], Prepare] = {
    ("", "quorate cluster drain 4 --no-wait --throttle 0"): Stage.there_is_much_in_events,
    ("", "quorate table demote bank"): Stage.there_are_tables,
    ("", f"{FORMAT} --replaces"): Stage.its_disk_is_lost,
    ("groups", "quorate group delete billing"): Stage.its_reader_leaves,
    ("restarted", "quorate doctor"): Stage.the_third_is_back,
}
SCENES: dict[str, Prepare] = {
    "transactions": Stage.transactions_are_open,
    "groups": Stage.there_is_a_group,
    "restarted": Stage.the_third_is_away,
    "upgraded": Stage.every_node_knows_more,
    "five-nodes": Stage.the_fourth_of_five_goes,
    "lost-majority": Stage.most_copies_are_away,
}


def test_the_page_shows_what_commands_print(tmp_path: Path, rewrite: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = list(blocks_of(page))
    typed = run(_type_all(tmp_path, shown))
    if rewrite:
        PAGE.write_text(rewritten(page, typed), encoding="utf-8")
        return
    for wanted, found in zip(shown, typed, strict=True):
        expect_as_shown(wanted, found)


async def _type_all(directory: Path, shown: list[Block]) -> list[Block]:
    typed: dict[int, Block] = {}
    for scene in ("", *SCENES):
        below = directory / (scene or "main")
        below.mkdir()
        async with _staged(below, scene) as stage:
            if scene:
                await SCENES[scene](stage)
            for number, block in enumerate(shown):
                if block.scene == scene:
                    typed[number] = Block(scene, [await _type(stage, scene, each) for each in block.typed])
    return [typed[number] for number in range(len(shown))]


@asynccontextmanager
async def _staged(directory: Path, scene: str) -> AsyncIterator[Stage]:
    with GrowingCluster(directory) as cluster, ExitStack() as held:
        if scene == "upgraded":
            for node in cluster.nodes.values():
                node.command = OLDER
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            yield Stage(cluster, client, directory, held)


async def _type(stage: Stage, scene: str, shown: Shown) -> Shown:
    """What is typed blocks this loop: nothing else runs in it meanwhile."""
    if (scene, shown.line) in BEFORE:
        await BEFORE[scene, shown.line](stage)
    typed = stage.typist.type(shown)
    if shown.line == "quorate node data":
        await stage.the_fourth_node_runs()
    return typed
