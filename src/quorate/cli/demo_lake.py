"""The end of the demo: events and results into a lake, and an audit of the disks."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.demo_events import RESULTS, TOPIC, Sum
from quorate.cli.demo_query import read_totals
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorate.cli.demo_cluster import DemoCluster


class Kept:
    """What the lake holds after events and results were tiered."""

    def __init__(self, spark: SparkSession, cluster: DemoCluster, place: Path) -> None:
        from quorate.client import Cluster
        from quorate.spark.lake import Lake, LakeTrouble
        from quorate.spark.tier import Tiering

        began = monotonic()
        options = {"kafka.bootstrap.servers": cluster.bootstrap}
        lake = str(place.absolute())
        tiering = Tiering(Lake(lake), options, (TOPIC, *RESULTS.values()))
        try:
            with Cluster(cluster.bootstrap, client_id="quorate-demo") as client:
                start = tiering.begin(client)
            tiering.run(spark, start)
        except LakeTrouble as trouble:
            raise WrongUsage(str(trouble)) from trouble
        self.seconds = monotonic() - began
        self.rows_count, self.bytes_count = tiering.rows_count, tiering.bytes_count
        self.by_city = self._counted(spark, cluster, lake)
        self.results = [
            read_totals(spark, cluster.bootstrap, topic, tiered="true", lake=lake)
            for topic in RESULTS.values()
        ]

    def _counted(self, spark: SparkSession, cluster: DemoCluster, lake: str) -> dict[str, Sum]:
        """From the table, and what the log has behind it."""
        rows = (
            spark.read.format("quorate")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", TOPIC)
            .option("tiered", "true")
            .option("lake", lake)
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
