"""The end of the demo: results into topics of every kind, events into a lake, and an audit of the disks."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.demo_events import COPIES_COUNT, CREATE_TIMEOUT_S, TOPIC, Sum
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorate.cli.demo_cluster import DemoCluster

OTHERS = ("coordinated", "isr", "confirm")
"""The events went into a topic whose copies agree by raft; results go into one of each other kind."""


def topic_of(protocol: str) -> str:
    return f"totals-{protocol}"


def write_totals(bootstrap: str, totals: dict[str, Sum]) -> None:
    """By an idempotent producer; raises WrongUsage where something was not acknowledged."""
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [
        NewTopic(topic_of(protocol), 1, COPIES_COUNT, config={"quorate.replication": protocol})
        for protocol in OTHERS
    ]
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    try:
        for made in admin.create_topics(wanted).values():
            made.result(CREATE_TIMEOUT_S)
        for protocol in OTHERS:
            for city, total in sorted(totals.items()):
                producer.produce(
                    topic_of(protocol),
                    key=city.encode(),
                    value=b'{"events": %d, "cents": %d}' % (total.count, total.cents),
                    on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                )
        left = producer.flush(CREATE_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise WrongUsage(f"the totals were not written: {error}") from error
    if left or failed:
        raise WrongUsage(f"the totals were not written: {failed[0] if failed else 'no answer in time'}")


def read_totals(spark: SparkSession, bootstrap: str, protocol: str) -> dict[str, Sum]:
    rows = (
        spark.read.format("quorate")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic_of(protocol))
        .load()
        .selectExpr(
            "cast(key as string) city",
            "from_json(cast(value as string), 'events long, cents long') said",
        )
        .collect()
    )
    return {row["city"]: Sum(row["said"]["events"], row["said"]["cents"]) for row in rows}


class Kept:
    """What the lake holds after the events were tiered."""

    def __init__(self, spark: SparkSession, cluster: DemoCluster, place: Path) -> None:
        from quorate.client import Cluster
        from quorate.spark.lake import Lake, LakeTrouble
        from quorate.spark.tier import Tiering

        began = monotonic()
        options = {"kafka.bootstrap.servers": cluster.bootstrap}
        tiering = Tiering(Lake(str(place.absolute())), options, (TOPIC,))
        try:
            with Cluster(cluster.bootstrap, client_id="quorate-demo") as client:
                start = tiering.begin(client)
            tiering.run(spark, start)
        except LakeTrouble as trouble:
            raise WrongUsage(str(trouble)) from trouble
        self.seconds = monotonic() - began
        self.rows_count, self.bytes_count = tiering.rows_count, tiering.bytes_count
        self.by_city = self._counted(spark, cluster, place)

    def _counted(self, spark: SparkSession, cluster: DemoCluster, place: Path) -> dict[str, Sum]:
        """From the table, and what the log has behind it."""
        rows = (
            spark.read.format("quorate")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", TOPIC)
            .option("tiered", "true")
            .option("lake", str(place.absolute()))
            .option("columns", "key,value")
            .load()
            .selectExpr(
                "cast(key as string) city",
                "cast(get_json_object(cast(value as string), '$.cents') as bigint) cents",
            )
            .groupBy("city")
            .agg({"*": "count", "cents": "sum"})
            .collect()
        )
        return {row["city"]: Sum(row["count(1)"], row["sum(cents)"]) for row in rows}


def audited(spark: SparkSession, cluster: DemoCluster) -> tuple[str, bool]:
    """What was looked at, in a line; and whether it was all right."""
    from quorate.audit.findings import KINDS
    from quorate.audit.places import places_in
    from quorate.spark.audit import audit

    began = monotonic()
    report = audit(spark, places_in(cluster.directory), lambda said: None)
    looked = (
        f"{report.copies_count} copies of {report.partitions_count} partitions, {report.entries_count:,} entries, "
        f"{say.bytes_count(report.bytes_count)} in {say.duration(monotonic() - began)}"
    )
    if not report.findings:
        return f"✓ {looked}: every frame is whole, and all copies agree", True
    worst = report.findings[0]
    where = f"{worst.replica} {report.name(worst.partition)} {worst.offsets}"
    return f"[bold red]✗ {looked}: {where}: {KINDS[worst.kind].means}[/bold red]", False
