"""The heart of the demo: events flow through the cluster into Spark, a leader is killed, and all are counted."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.demo_events import CITIES, PARTITIONS_COUNT, RESULTS, TOPIC, Sender, Sum
from quorate.cli.demo_progress import Show, shown
from quorate.cli.demo_query import QueryFailed, Totals, read_totals
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from quorate.cli.demo_cluster import DemoCluster

KILL_AT = 0.4
"""The share of events that is acknowledged before the kill."""
LOOK_EVERY_S = 0.1
FLOW_TIMEOUT_S = 240.0
CATCH_UP_S = 60.0
SEED = 2026


class Flow:
    """What was sent, what was counted, and what happened meanwhile."""

    def __init__(self, cluster: DemoCluster, spark: SparkSession, events_count: int) -> None:
        self.sender = Sender(cluster.bootstrap, events_count, seed=SEED)
        self.written: dict[str, dict[str, Sum]] = {}
        """What is found in each topic of results, by city."""
        self.victim = 0
        self.led: list[int] = []
        """The partitions that the victim led."""
        self.acknowledged_before = 0
        self.back_after_s: float | None = None
        self.behind_s = 0.0
        """How long after the last acknowledgement Spark had all of it."""
        self.batches_count = 0
        self.longest_batch_s = 0.0
        self._cluster = cluster
        self._spark = spark
        self._killed_at = 0.0
        self._began = 0.0

    # --- what happens ---

    def run(self, out: Console) -> None:
        """Raises WrongUsage where there is nothing to compare."""
        totals = Totals(self._spark, self._cluster.bootstrap, self._cluster.scratch / "checkpoint")
        try:
            self._began = monotonic()
            self.sender.start()
            with shown(out) as show:
                self._warm_up(out, totals, show)
                self._watch(out, totals, show)
                self._catch_up(totals, show)
            with out.status("Spark counts what came last"):
                totals.finish()
                self.written = {
                    topic: read_totals(self._spark, self._cluster.bootstrap, topic)
                    for topic in RESULTS.values()
                }
        except QueryFailed as failed:
            raise WrongUsage(f"the streaming query failed: {failed}") from failed
        finally:
            self.sender.over.set()
            totals.stop()
        self.batches_count, self.longest_batch_s = totals.batches_count, totals.longest_batch_s
        self._tell_end(out)

    def _warm_up(self, out: Console, totals: Totals, show: Show) -> None:
        """Until Spark has read the first few events."""
        while not self._look(totals, show) and self.sender.is_alive():
            self._expect_time(0)
            sleep(LOOK_EVERY_S)
        out.print(
            f"   {self._clock()}  Spark has compiled its query and read the first events; now the others"
        )
        self.sender.flowing.set()

    def _watch(self, out: Console, totals: Totals, show: Show) -> None:
        """Until everything is sent and answered; on the way, the kill."""
        while self.sender.is_alive():
            rows = self._look(totals, show)
            if (
                not self.victim
                and rows
                and self.sender.acknowledged_count >= KILL_AT * self.sender.events_count
            ):
                self._kill(out)
            if self.victim and self.back_after_s is None and self._cluster.is_back(self.victim):
                self.back_after_s = monotonic() - self._killed_at
                out.print(f"   {self._clock()}  node {self.victim} is back: `quorate up` started it again")
            self._expect_time(rows)
            sleep(LOOK_EVERY_S)

    def _expect_time(self, rows: int) -> None:
        if monotonic() - self._began > FLOW_TIMEOUT_S:
            raise WrongUsage(
                f"after {FLOW_TIMEOUT_S:.0f} s {self.sender.acknowledged_count:,} of "
                f"{self.sender.events_count:,} events are acknowledged and {rows:,} read; try --events 20000"
            )

    def _look(self, totals: Totals, show: Show) -> int:
        rows = totals.look()
        acknowledged = self.sender.acknowledged_count
        show(
            min(rows, acknowledged) / self.sender.events_count,
            f"{acknowledged:,} acknowledged, {rows:,} read by Spark",
        )
        return rows

    def _kill(self, out: Console) -> None:
        from quorate.client import ClientError, Cluster

        try:
            with Cluster(self._cluster.bootstrap, client_id="quorate-demo") as client:
                partitions = client.topics([TOPIC])[TOPIC].partitions
        except ClientError as error:
            raise WrongUsage(str(error)) from error
        self.victim = max(partitions[0].leader, 1)
        self.led = [part.number for part in partitions if part.leader == self.victim]
        self.sender.forget_gaps()
        self._killed_at = monotonic()
        pid = self._cluster.kill(self.victim)
        self.acknowledged_before = self.sender.acknowledged_count
        out.print(
            f"   {self._clock()}  [bold red]kill -9 {pid}[/bold red]: node {self.victim}, which leads "
            f"partition{'s' * (len(self.led) > 1)} {', '.join(map(str, self.led))}; "
            f"{self.acknowledged_before:,} events are acknowledged"
        )

    def _catch_up(self, totals: Totals, show: Show) -> None:
        """Until Spark has read as much as was acknowledged, or ought to have."""
        sent = monotonic()
        while self._look(totals, show) < self.sender.acknowledged_count and monotonic() - sent < CATCH_UP_S:
            sleep(LOOK_EVERY_S)
        self.behind_s = monotonic() - sent

    def _tell_end(self, out: Console) -> None:
        if self.unknown_count:
            text = (
                f"[red]{self.unknown_count:,} events were not acknowledged: {self.sender.why_unknown}[/red]"
            )
        else:
            others = [number for number in range(PARTITIONS_COUNT) if number not in self.led]
            text = (
                "all is sent, acknowledged and read. What the dead node led was taken over after "
                f"[bold]{say.duration(self.gap_s)}[/bold];\n            no other partition paused for longer than "
                f"{say.duration(self.sender.longest_gap_s(others))}, and the producer saw no error."
            )
        out.print(f"   {self._clock()}  {text}\n", soft_wrap=True)

    def _clock(self) -> str:
        return f"{monotonic() - self._began:5.1f} s"

    # --- what came of it ---

    @property
    def counted(self) -> dict[str, Sum]:
        """As the first topic of results has it; the others must have the same."""
        return next(iter(self.written.values()), {})

    @property
    def gap_s(self) -> float:
        return self.sender.longest_gap_s(self.led)

    @property
    def unknown_count(self) -> int:
        return sum(unknown.count for unknown in self.sender.unknown.values())

    @property
    def lost_count(self) -> int:
        return sum(max(0, told.count - found.count) for told, found, _ in self._by_city())

    @property
    def doubled_count(self) -> int:
        return sum(
            max(0, found.count - told.count - unknown.count) for told, found, unknown in self._by_city()
        )

    @property
    def held(self) -> bool:
        """Everything was acknowledged, and is there once."""
        return self.unknown_count == 0 and all(told == found for told, found, _ in self._by_city())

    def _by_city(self) -> Iterator[tuple[Sum, Sum, Sum]]:
        """Acknowledged, counted, unknown."""
        for city in CITIES:
            yield self.sender.acknowledged[city], self.counted.get(city, Sum()), self.sender.unknown[city]

    def rows(self) -> Iterator[tuple[str, ...]]:
        for city, (told, found, _) in zip(CITIES, self._by_city(), strict=True):
            verdict = "[green]equal[/green]" if told == found else "[bold red]differs[/bold red]"
            yield city, f"{told.count:,}", f"{found.count:,}", money(told.cents), money(found.cents), verdict


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
