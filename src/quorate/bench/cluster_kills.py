"""Leaders that are killed under load: how long nobody takes writes, and whether anything acknowledged is lost.

A client of each protocol's topic writes one at a time and follows the leader by Kafka's Metadata. The node that
leads most of them is killed with SIGKILL. What counts is the time from there to the first acknowledgement of a
write that was sent after it, of each topic that it led. Then it is started again, catches up, and the next one is
killed. In the end everything is read back from every node.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from random import Random
from time import monotonic, perf_counter, sleep
from typing import Any

from quorate.batch import encode_records, parse_batch_header
from quorate.bench.cluster_kafka import ACKS_ALL, PRODUCE_VERSION, KafkaCluster
from quorate.bench.cluster_load import Findings, Ledger
from quorate.bench.cluster_processes import START_TIMEOUT_S, ClusterFailed
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.pauses import Pauses
from quorate.bench.report import Claim, Figure, at_most, figure
from quorate.client.cluster import NO_LEADER
from quorate.client.connection import Connection
from quorate.client.errors import ClientError, Unreachable
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA
from quorate.node.client import Client, OutcomeUnknown
from quorate.node.client import Unreachable as NodeUnreachable
from quorate.wire.cursor import BadMessage
from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class

GONE_MAX_S = 2.0
VALUE_BYTES = 256
TRY_S = 5.0
PAUSE_S = 0.01
"""Between two tries, while nobody leads."""
BACK_TIMEOUT_S = 120.0
"""For a killed node to be started, and in sync again."""
STILL_TOLD_S = 0.5
"""A pause of the machine that is worth a word."""
WRITES_BETWEEN = 20
"""Acknowledged before the next kill, at least."""


class Writer(threading.Thread):
    """Writes values that are never the same twice, one at a time, to whoever leads."""

    def __init__(self, cluster: KafkaCluster, topic: str, partition: Partition, ledger: Ledger) -> None:
        super().__init__(name=f"writer of {topic}", daemon=True)
        self.topic = topic
        self.acknowledged: list[tuple[float, float]] = []
        """(sent, answered) of every write that was."""
        self.leader = 0
        """Who acknowledged the last one."""
        self._cluster = cluster
        self._acknowledged, self._unknown = ledger.acknowledged[partition], ledger.unknown[partition]
        self._rng = Random(topic)
        self._ended = threading.Event()
        self._wrong: BaseException | None = None

    def stop(self) -> None:
        self._ended.set()
        self.join()
        self.expect_well()

    def expect_well(self) -> None:
        if self._wrong is not None:
            raise ClusterFailed(f"{self.topic}: {self._wrong}")

    def run(self) -> None:
        try:
            with self._cluster.asked(TRY_S) as asked:
                while not self._ended.is_set():
                    with suppress(Unreachable):  # Whoever waits for this writer has a time-out of its own.
                        leader = asked.topics([self.topic])[self.topic].partitions[0].leader
                        if leader != NO_LEADER:
                            self._write_to(leader)
                    sleep(PAUSE_S)
        except (ClientError, AssertionError) as error:
            self._wrong = error

    def _write_to(self, leader: int) -> None:
        """As long as it takes them."""
        with ExitStack() as stack:
            try:
                deadline = monotonic() + TRY_S
                connection = Connection(
                    *self._cluster.nodes[leader].address, client_id="bench", deadline=deadline
                )
            except OSError:
                return
            stack.callback(connection.close)
            while not self._ended.is_set() and self._write(connection):
                self.leader = leader

    def _write(self, connection: Connection) -> bool:
        batch = encode_records([(None, self._rng.randbytes(VALUE_BYTES))])
        checksum = parse_batch_header(batch).crc
        sent = perf_counter()
        try:
            answer = connection.ask(
                Api.PRODUCE, PRODUCE_VERSION, _request(self.topic, batch), deadline=monotonic() + TRY_S
            )
        except (OSError, BadMessage):
            self._unknown.add(checksum)
            return False
        (part,) = answer.responses[0].partition_responses
        if part.error_code:
            self._unknown.add(checksum)
            return False
        assert part.base_offset not in self._acknowledged, "one offset was acknowledged twice"
        self._acknowledged[part.base_offset] = checksum
        self.acknowledged.append((sent, perf_counter()))
        return True

    def first_after(self, moment: float) -> float:
        """When the first write that was sent then or later was acknowledged."""
        deadline = perf_counter() + START_TIMEOUT_S
        while perf_counter() < deadline:
            self.expect_well()
            at = bisect_left(self.acknowledged, (moment, 0.0))
            if at < len(self.acknowledged):
                return self.acknowledged[at][1]
            sleep(PAUSE_S / 4)
        raise ClusterFailed(f"{self.topic}: no write was acknowledged for {START_TIMEOUT_S} s")

    def write_more(self, count: int) -> None:
        wanted, deadline = len(self.acknowledged) + count, perf_counter() + START_TIMEOUT_S
        while len(self.acknowledged) < wanted:
            self.expect_well()
            if perf_counter() > deadline:
                raise ClusterFailed(f"{self.topic}: no {count} writes were acknowledged")
            sleep(PAUSE_S / 4)


def _request(topic: str, batch: bytes) -> Any:
    values = {
        "transactional_id": None,
        "acks": ACKS_ALL,
        "timeout": timedelta(seconds=TRY_S),
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    }
    return make(request_class(Api.PRODUCE, PRODUCE_VERSION), values)


def kills(stage: Stage) -> Found:
    """Until every protocol's leader was killed so many times."""
    runner, cluster, _, protocols, plan, say = stage
    partitions = runner.run(partitions_of(cluster, protocols))
    gone: dict[str, list[float]] = {name: [] for name in protocols}
    stood_still: list[float] = []
    both_count = 0
    client = cluster.client()
    ledger = Ledger(client, tuple(partitions.values()), seed=1, value_bytes=VALUE_BYTES)
    writers = {name: Writer(cluster, name, partitions[name], ledger) for name in protocols}
    for writer in writers.values():
        writer.start()
    try:
        while min(map(len, gone.values())) < plan.kills:
            of_metadata = runner.run(all_well(cluster, partitions))
            for writer in writers.values():
                writer.write_more(WRITES_BETWEEN)
            led = {name: writer.leader for name, writer in writers.items()}
            missing = [name for name in protocols if len(gone[name]) < plan.kills]
            (victim, _), *_ = Counter(led[name] for name in missing).most_common(1)
            hit = [name for name in protocols if led[name] == victim]
            both_count += victim == of_metadata
            with Pauses() as pauses:
                killed_at = perf_counter()
                cluster.nodes[victim].kill()
                for name in hit:
                    back_at = _first_after(cluster, writers[name], partitions[name], killed_at)
                    gone[name].append(back_at - killed_at)
                stood_still.append(pauses.longest_s())
            times = ", ".join(f"{name} {gone[name][-1]:.2f} s (kill {len(gone[name])})" for name in hit)
            also = ", and the metadata group" if victim == of_metadata else ""
            still = f"; this machine stood still for {stood_still[-1]:.2f} s" * (
                stood_still[-1] >= STILL_TOLD_S
            )
            say(
                f"kill -9 of node {victim}, which led {', '.join(hit)}{also}; writes went on after: {times}{still}"
            )
            cluster.nodes[victim].start()
        runner.run(all_well(cluster, partitions))
    finally:
        for writer in writers.values():
            writer.stop()
    say("reading everything back from every node")
    found = runner.run(read_back(cluster, ledger))
    return _found(gone, stood_still, both_count, found, ledger)


def _first_after(cluster: KafkaCluster, writer: Writer, partition: Partition, killed_at: float) -> float:
    """When writes went on; where they do not, that is told with all that shows why."""
    try:
        return writer.first_after(killed_at)
    except ClusterFailed as failed:
        with asyncio.Runner() as runner:
            seen = runner.run(_seen(cluster, partition))
        said = "\n".join(f"node {node.node} said: {node.said()}" for node in cluster.nodes.values())
        raise ClusterFailed(f"{failed}\n{seen}\n{said}") from failed


async def _seen(cluster: KafkaCluster, partition: Partition) -> str:
    """What each node that runs says of a partition."""
    lines = []
    async with cluster.client() as client:
        for node in cluster.nodes.values():
            if node.process is None:
                continue
            try:
                async with asyncio.timeout(TRY_S):
                    status = await client.status(node.node)
            except (NodeUnreachable, OutcomeUnknown, TimeoutError) as error:
                lines.append(f"node {node.node} does not answer: {error}")
                continue
            lines += [
                f"node {node.node}: {replica.role}, leader {replica.leader}, epoch {replica.epoch}, head "
                f"{replica.head}, commit {replica.commit}, lags {replica.lags}, connected to {status.connected}"
                for replica in status.replicas
                if replica.partition == partition
            ]
    return "\n".join(lines)


async def partitions_of(cluster: KafkaCluster, topics: Sequence[str]) -> dict[str, Partition]:
    async with cluster.client() as client:
        image = await client.image(1, tuple(topics), current=True)
    return {topic.name: partition_of(topic.id, 0) for topic in image.topics}


async def all_well(cluster: KafkaCluster, partitions: dict[str, Partition]) -> int:
    """Who leads the metadata group, once every node follows every partition, in sync, and is known."""

    async def led(client: Client) -> int | None:
        statuses = await cluster.statuses(client)
        leaders: dict[bytes, int] = {}
        known: Counter[bytes] = Counter()
        for status in statuses:
            for replica in status.replicas:
                known[replica.partition] += replica.leader != 0
                if replica.role == "leader" and set(replica.in_sync) == set(cluster.nodes):
                    leaders[replica.partition] = status.node
        wanted = (*partitions.values(), METADATA)
        if not all(each in leaders and known[each] == len(cluster.nodes) for each in wanted):
            return None
        if not all(status.registered == tuple(cluster.nodes) for status in statuses):
            return None
        return leaders[METADATA]

    async with cluster.client() as client:
        return await cluster.until(lambda: led(client), "every copy to be in sync", BACK_TIMEOUT_S)


async def read_back(cluster: KafkaCluster, ledger: Ledger) -> list[Findings]:
    async with ledger.client:
        await cluster.converged(ledger.client)
        return [await ledger.compare(node) for node in cluster.nodes]


def _found(
    gone: dict[str, list[float]],
    stood_still: Sequence[float],
    both_count: int,
    read: Sequence[Findings],
    ledger: Ledger,
) -> Found:
    figures: list[Figure] = []
    claims: list[Claim] = []
    for name, times in gone.items():
        figures.append(
            figure(f"{name}: from kill -9 of the leader to writes, {len(times)} kills", "s", times)
        )
        claims.append(at_most(GONE_MAX_S, f"{name}: longest time without writes", "s", [max(times)]))
    figures.append(figure("· how long this machine itself stood still meanwhile", "s", stood_still))
    figures.append(figure("acknowledged under kills", "entries", [ledger.acknowledged_count]))
    figures.append(figure("of unknown outcome", "entries", [each.unknown_count for each in read]))
    figures.append(figure("· settled all the same", "entries", [each.unknown_kept_count for each in read]))
    claims.append(
        at_most(0, "acknowledged entries lost, any node", "", [sum(len(each.lost) for each in read)])
    )
    claims.append(
        at_most(0, "entries that nobody wrote, or twice", "", [sum(len(each.foreign) for each in read)])
    )
    note = (
        f"kills: of whoever leads, while a client of each topic writes one at a time; {both_count} of them led the "
        f"metadata group, too; all that was acknowledged is read back from every node and compared"
    )
    return Found(figures, claims, (note,))
