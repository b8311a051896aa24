"""The parts of `quorate bench spark` that are jobs: a sweep, a lake."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from quorate.batch import encode_records
from quorate.bench.cluster_kafka import KafkaCluster
from quorate.bench.report import Claim, Figure, Say, at_least, figure, ratios
from quorate.bench.turns import in_turns, seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
REPETITIONS = 3
ROWS_A_BATCH = 1000
VALUE_BYTES = 100
TOPIC = "events"

Found = tuple[list[Figure], list[Claim]]


@contextmanager
def _session(cores: int) -> Iterator[SparkSession]:
    from quorate.spark.session import local_session

    with local_session("quorate bench", master=f"local[{cores}]", log_level="off") as session:
        yield session


# ---- sweep ----


def sweeps(place: Path, quick: bool, say: Say) -> Found:
    from quorate.sim.run import Plan
    from quorate.spark.sweep import run_sweep

    seeds = range(8 if quick else 40)

    def swept(cores: int) -> float:
        with _session(cores) as session:
            out = str(place / "rows.parquet")
            plan, tell = Plan(0), lambda done: None
            run_sweep(session, plan, range(1000, 1000 + cores), tasks_count=cores, out=out, progress=tell)
            return seconds(
                lambda: run_sweep(session, plan, seeds, tasks_count=len(seeds) // 2, out=out, progress=tell)
            )

    sides = {"one core": lambda: swept(1), "two cores": lambda: swept(2)}
    taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"sweep: {text}"))
    rates = [len(seeds) / took_s for took_s in taken["two cores"]]
    return [figure("sweep: worlds a second", "", rates)], [
        at_least(1.7, "sweep: two cores beside one", "times", ratios(taken["one core"], taken["two cores"]))
    ]


# ---- tier ----


def tiers(place: Path, quick: bool, say: Say) -> Found:
    from quorate.client.cluster import Cluster
    from quorate.spark.lake import Lake
    from quorate.spark.tier import Tiering

    rows_count = 200_000 if quick else 2_000_000
    below = place / "cluster"
    below.mkdir()
    with KafkaCluster(below) as cluster, _session(CORES) as session:
        cluster.start()
        asyncio.run(cluster.until_registered())
        cluster.create(TOPIC, "raft", partitions=CORES)
        say(f"producing {rows_count:,} records of {VALUE_BYTES} bytes")
        _fill(cluster, rows_count)

        def tiered() -> float:
            lake = Lake(str(place / "lake"))
            rmtree(lake.uri, ignore_errors=True)
            tiering = Tiering(lake, {"kafka.bootstrap.servers": cluster.bootstrap}, (TOPIC,))
            with Cluster(cluster.bootstrap) as client:
                start = tiering.begin(client)
            took_s = seconds(lambda: tiering.run(session, start))
            assert tiering.rows_count == rows_count
            return took_s

        rows = (
            session.read.format("quorate")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", TOPIC)
            .load()
            .cache()
        )
        assert rows.count() == rows_count
        out = str(place / "rows.parquet")
        sides = {
            "tier": tiered,
            "Parquet": lambda: seconds(lambda: rows.write.mode("overwrite").parquet(out)),
        }
        in_turns(sides, 1)
        taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"tier: {text}"))
    rates = [rows_count / took_s for took_s in taken["tier"]]
    return [figure("tier: records a second", "", rates)], [
        at_least(
            0.5, "tier: beside Spark writing Parquet from memory", "", ratios(taken["Parquet"], taken["tier"])
        )
    ]


def _fill(cluster: KafkaCluster, rows_count: int) -> None:
    batch = encode_records([(None, bytes(VALUE_BYTES))] * ROWS_A_BATCH)
    with cluster.asked() as client:
        for number in range(rows_count // ROWS_A_BATCH):
            client.produce(TOPIC, {number % CORES: batch})
