"""How long writers wait while a topic is turned: from each protocol to the next, under a client's writes.

What counts is the longest time between two acknowledgements from the order to where the topic is of the other
kind. In the end everything is read back from every node.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from quorate.bench.cluster_kafka import REPLICATION, KafkaCluster
from quorate.bench.cluster_kills import GONE_MAX_S, VALUE_BYTES, Writer, all_well, partitions_of, read_back
from quorate.bench.cluster_load import Ledger
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.report import at_most, figure
from quorate.client.admin import alter_topic
from quorate.machine.metadata import REPLICATIONS

WRITES_AROUND = 20
"""Acknowledged before each order, and after it is carried out."""
TURNED_TIMEOUT_S = 60.0


def turning(stage: Stage) -> Found:
    """Round and round, beginning with the first of those that are measured."""
    runner, cluster, _, protocols, plan, say = stage
    name = protocols[0]
    partitions = runner.run(partitions_of(cluster, (name,)))
    ledger = Ledger(cluster.client(), tuple(partitions.values()), seed=1, value_bytes=VALUE_BYTES)
    writer = Writer(cluster, name, partitions[name], ledger)
    ways = [*REPLICATIONS[REPLICATIONS.index(name) :], *REPLICATIONS[: REPLICATIONS.index(name)], name]
    waited: dict[str, list[float]] = {f"{old} to {new}": [] for old, new in pairwise(ways)}
    writer.start()
    try:
        for _ in range(plan.repetitions):
            for old, new in pairwise(ways):
                runner.run(all_well(cluster, partitions))
                writer.write_more(WRITES_AROUND)
                first = len(writer.acknowledged) - 1
                _order(cluster, name, new)
                runner.run(_turned(cluster, name, new))
                writer.first_after(perf_counter())
                answered = [at for _, at in writer.acknowledged[first:]]
                waited[f"{old} to {new}"].append(max(after - before for before, after in pairwise(answered)))
                say(
                    f"turned from {old} to {new}; writes waited for {waited[f'{old} to {new}'][-1]:.2f} s at most"
                )
        writer.write_more(WRITES_AROUND)
        runner.run(all_well(cluster, partitions))
    finally:
        writer.stop()
    found = runner.run(read_back(cluster, ledger))
    lost, foreign = (
        sum(map(len, each)) for each in zip(*((one.lost, one.foreign) for one in found), strict=True)
    )
    return Found(
        [figure("acknowledged while turned", "entries", [ledger.acknowledged_count])],
        [
            *(
                at_most(GONE_MAX_S, f"{way}: longest time without writes", "s", [max(times)])
                for way, times in waited.items()
            ),
            at_most(0, "acknowledged entries lost, any node", "", [lost]),
            at_most(0, "entries that nobody wrote, or twice", "", [foreign]),
        ],
        ("turning: from the order to where the topic is of the other kind, a client writes one at a time",),
    )


def _order(cluster: KafkaCluster, name: str, new: str) -> None:
    with cluster.asked() as asked:
        alter_topic(asked, name, {REPLICATION: new})


async def _turned(cluster: KafkaCluster, name: str, new: str) -> None:
    async with cluster.client() as client:

        async def is_so() -> bool | None:
            (topic,) = (await client.image(1, (name,), current=True)).topics
            return (topic.turning is None and topic.replication == new) or None

        await cluster.until(is_so, f"{name} to be of {new}", TURNED_TIMEOUT_S)
