"""What Kafka's clients cost three real processes, and what they reach, beside a broker that keeps nothing."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import msgspec
import uvloop

from quorate import batch
from quorate.bench import kafka_fetching, machine
from quorate.bench.cluster_kafka import KafkaCluster, Producing
from quorate.bench.cluster_processes import ClusterFailed, NodeProcess
from quorate.bench.kafka_acknowledging import TOPIC as ACKNOWLEDGED
from quorate.bench.report import Report, Say, at_least, at_most, figure, ratios
from quorate.bench.turns import in_turns
from quorate.client.cluster import LATEST

REPLICATION = "raft"
WRITTEN, LONG = "written", "long"
"""Topics: one for librdkafka, one of large batches."""
BATCH_BYTES = 64 << 10
CONSUMERS = 1000
WAIT_MS = 5000


class Plan(msgspec.Struct, frozen=True):
    repetitions: int = 5
    producing_s: float = 5.0
    long_bytes: int = 512 << 20
    empty_count: int = 20_000
    waiting_s: float = 20.0


FULL = Plan()
QUICK = Plan(repetitions=2, producing_s=1.0, long_bytes=64 << 20, empty_count=3_000, waiting_s=5.0)


class NoClient(ClusterFailed):
    """librdkafka is not installed."""


def run(
    say: Say = lambda _: None, *, directory: Path | None = None, quick: bool = False, plan: Plan | None = None
) -> Report:
    plan = plan or (QUICK if quick else FULL)
    if find_spec("confluent_kafka") is None:
        raise NoClient("confluent-kafka is not installed, and is the producer; pip install 'quorate[local]'")
    with (
        machine.scratch(directory) as place,
        KafkaCluster(place) as cluster,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        described = machine.describe(place)
        say("starting three nodes")
        cluster.start()
        runner.run(cluster.until_registered())
        for topic in (WRITTEN, LONG):
            cluster.create(topic, REPLICATION)
        ours, theirs, costs, sizes = _produced(cluster, plan, say)
        say(f"writing {plan.long_bytes >> 20} MiB")
        end = _filled(runner, cluster, plan)
        node = cluster.leader(LONG)
        rates = [kafka_fetching.catch_up(node, LONG, end) for _ in range(plan.repetitions)]
        empty = [
            kafka_fetching.empty(node, LONG, end, plan.empty_count // plan.repetitions)
            for _ in range(plan.repetitions)
        ]
        say(f"{CONSUMERS} consumers wait")
        waiting = kafka_fetching.waiting(
            node, LONG, end, consumers=CONSUMERS, seconds=plan.waiting_s, wait_ms=WAIT_MS
        )
    return Report(
        "kafka",
        "Kafka's clients against three processes, beside a broker that keeps nothing",
        "quorate bench kafka" + " --quick" * quick,
        described,
        (
            figure("librdkafka, acks=all, records of 100 B a second", "", ours),
            figure("the same against a broker that only acknowledges", "", theirs),
            figure("processor of the leader for one of these batches", "µs", costs),
            figure("records in one of these batches", "", sizes),
        ),
        (
            at_least(0.4, "librdkafka beside a broker that only acknowledges", "", ratios(ours, theirs)),
            at_least(500, "catching up on batches of 64 KiB", "MB/s", rates),
            at_most(60, "processor for a fetch that finds nothing", "µs", empty),
            at_most(
                10, f"processor while {CONSUMERS} consumers wait ({WAIT_MS // 1000} s each)", "%", [waiting]
            ),
        ),
        notes=(
            f"three node processes and the client share these cores; topics of {REPLICATION}, else by default",
            "the broker that only acknowledges is one process: it parses requests as ours does, and keeps nothing",
            "a fetch's cost is what the system says that the node has used, the kernel's part included",
        ),
    )


def _produced(
    cluster: KafkaCluster, plan: Plan, say: Say
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Records a second here and there; and what a batch cost the leader, and held."""
    leader = cluster.leader(WRITTEN)
    costs: list[float] = []
    sizes: list[float] = []

    def ours() -> float:
        used, batches = kafka_fetching.used_s(leader), _batches(leader)
        rate = _librdkafka(cluster.bootstrap, WRITTEN, plan.producing_s)
        new = _batches(leader) - batches
        costs.append((kafka_fetching.used_s(leader) - used) / new * 1e6)
        sizes.append(rate * (plan.producing_s + 1) / new)
        return rate

    with _acknowledging() as port:
        sides = {
            "three nodes": ours,
            "a broker that only acknowledges": lambda: _librdkafka(
                f"127.0.0.1:{port}", ACKNOWLEDGED, plan.producing_s
            ),
        }
        samples = in_turns(sides, plan.repetitions, say)
    mine, others = samples.values()
    return mine, others, costs, sizes


def _librdkafka(servers: str, topic: str, seconds: float) -> float:
    command = [sys.executable, "-m", "quorate.bench.kafka_producing", servers, topic, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 10 * seconds, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ClusterFailed(f"librdkafka did not write: {said[-1] if said else 'it says nothing'}")
    return float(done.stdout)


@contextmanager
def _acknowledging() -> Iterator[int]:
    command = [sys.executable, "-m", "quorate.bench.kafka_acknowledging"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _batches(node: NodeProcess) -> int:
    """That clients have brought to this node so far."""
    with urlopen(f"http://{node.http}/metrics", timeout=10) as answer:
        found = re.search(r"^quorate_produce_batches_total (\d+)", answer.read().decode(), re.MULTILINE)
    if found is None:
        raise ClusterFailed("a node does not say how many batches it has taken")
    return int(found[1])


def _filled(runner: asyncio.Runner, cluster: KafkaCluster, plan: Plan) -> int:
    """Where the topic of large batches ends."""
    content = batch.encode_records([(None, bytes(BATCH_BYTES - batch.BATCH_MIN - 16))])
    count = plan.long_bytes // BATCH_BYTES
    node = cluster.leader(LONG)

    async def fill() -> None:
        loop = asyncio.get_running_loop()
        producing = Producing(LONG, content, in_flight=16, seconds=600, count_max=count)
        transport, _ = await loop.create_connection(lambda: producing, *node.address)
        await producing.done
        transport.abort()

    runner.run(fill())
    with cluster.asked() as asked:
        return asked.offsets(LONG, {0: LATEST})[0] or 0
