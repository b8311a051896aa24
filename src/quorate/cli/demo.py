"""`quorate demo`: a cluster under a pipeline, its leader killed, every event counted; then made-up worlds.

Each step says what it is about to do, does it, and says what came of it. What matters is compared, not shown:
the demo ends with exit code 1 if an acknowledged event was lost, or any was counted twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, check_picture, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from quorate.cli.demo_cluster import DemoCluster
    from quorate.cli.demo_flow import Flow
    from quorate.cli.worlds import Totals
    from quorate.sim.mutate import Caught, Mutant

EVENTS_COUNT = 200_000
SEEDS_COUNT = 160
JOBS_MAX = 2
MUTANT = "raft-commit-old-epoch"
STORY = "demo-story.svg"
SWEEP = "demo-sweep.parquet"
REPORT = "demo-report.html"
LAKE = "demo-lake"
HUNT_SEEDS = 200

EPILOG = """\b
[bold]Examples[/bold]
quorate demo                       less than three minutes on two cores
quorate demo --seeds 50            a shorter look
KEEP=1 quorate demo                the cluster stays, for you to use

[bold]Exit code[/bold]
0 everything held, 1 something was lost, doubled or not caught, 2 it could not run.
"""


def register(app: typer.Typer) -> None:
    app.command("demo", epilog=EPILOG)(demo)


def demo(
    events: Annotated[
        int, typer.Option(metavar="N", min=1000, max=10_000_000, help="Events that go through the cluster.")
    ] = EVENTS_COUNT,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="Made-up worlds of the sweep.")
    ] = SEEDS_COUNT,
    story: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Where the picture goes.", show_default=f"out/{STORY}"),
    ] = None,
) -> None:
    """Show what Quorate is about: a pipeline that survives a kill, and proof that its checks bite.

    With KEEP=1 in the environment, the cluster is left running.
    """
    check_picture(story)
    expect_installed()
    began = monotonic()
    out = say.console()
    introduce(out)
    from quorate.cli.demo_cluster import DemoCluster

    with DemoCluster(keep=os.environ.get("KEEP", "") not in ("", "0")) as cluster:
        start_cluster(out, cluster)
        with spark_session(out) as spark:
            flow = send_and_kill(out, cluster, spark, events)
            compare(out, flow)
            keep_evidence(out, cluster, of_a_bug=not flow.held)
            kept = write_back(out, cluster, spark, flow)
            keep_evidence(out, cluster, of_a_bug=not kept)
            is_clean = audit_disks(out, cluster, spark)
            keep_evidence(out, cluster, of_a_bug=not is_clean)
            worlds = sweep(out, spark, seeds)
    mutant, caught = plant_a_bug(out)
    if caught is not None:
        draw_it(out, mutant, caught, story)
    sum_up(out, flow, worlds, caught, monotonic() - began)
    if cluster.is_kept:
        tell_how_to_use(out, cluster)
    violated = any(totals.sum.violations for totals in worlds)
    if not (flow.held and flow.victim and kept and is_clean) or violated or caught is None:
        raise typer.Exit(1)


def expect_installed() -> None:
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "confluent_kafka", "deltalake")):
        raise WrongUsage(
            "the demo needs Spark and a Kafka client here; install them with `pip install '.[local]'` "
            "in a clone of Quorate"
        )


def keep_evidence(out: Console, cluster: DemoCluster, *, of_a_bug: bool) -> None:
    """What did not come out as it should can be looked at, and whoever sees it is told where."""
    if of_a_bug and not cluster.is_evidence:
        cluster.is_evidence = True
        out.print(f"   its data and logs are left for a look: {cluster.directory.parent}\n", soft_wrap=True)


def introduce(out: Console) -> None:
    out.print(
        "\n[bold]Quorate[/bold] keeps copies of a log on several nodes, takes events from Kafka clients and hands\n"
        "them to Spark. Its promise: what was acknowledged is never lost, doubled or reordered, whatever\n"
        "breaks. This demo breaks things.\n"
    )


def step(out: Console, number: int, title: str, *lines: str) -> None:
    out.print(f"[bold]{number}  {title}[/bold]")
    for line in lines:
        say.paragraph(out, line)


# ---- 1 ----


def start_cluster(out: Console, cluster: DemoCluster) -> None:
    from quorate.cli.demo_cluster import NODES_COUNT
    from quorate.cli.demo_events import (
        COPIES_COUNT,
        COUNTRIES,
        PARTITIONS_COUNT,
        RESULTS,
        TABLE,
        TOPIC,
        create_table,
        create_topics,
    )

    step(
        out,
        1,
        "A cluster",
        f"`quorate up` starts {NODES_COUNT} nodes, each a process with its own disk directory; they elect a",
        "leader for what all must know, the metadata. Then a Kafka client asks for topics, and each chooses how",
        "its copies agree.",
    )
    with out.status("the nodes start"):
        seconds = cluster.start()
    pids = ", ".join(str(cluster.node_pid(node)) for node in range(1, NODES_COUNT + 1))
    out.print(f"   ✓ up in {say.duration(seconds)}: processes {pids} at {cluster.bootstrap}", soft_wrap=True)
    with out.status("topics and a table are created"):
        create_topics(cluster.bootstrap)
        create_table(cluster.bootstrap)
    out.print(
        f"   ✓ topic {TOPIC!r}, for events: {PARTITIONS_COUNT} partitions, {COPIES_COUNT} copies of each, raft"
    )
    out.print(f"   ✓ topics for results: {', '.join(RESULTS.values())}")
    out.print(f"   ✓ table {TABLE!r}: in which country each of {len(COUNTRIES)} cities lies\n")


# ---- 2 ----


@contextmanager
def spark_session(out: Console) -> Iterator[SparkSession]:
    from quorate.spark.java import NoJava
    from quorate.spark.session import NoSpark, local_session

    step(out, 2, "A pipeline", 'Spark starts on this machine. It finds format("quorate") by itself.')
    began = monotonic()
    with ExitStack() as stack:
        try:
            with out.status("Spark starts"):
                spark = stack.enter_context(local_session("quorate demo", log_level="off"))
        except (NoJava, NoSpark) as error:
            raise WrongUsage(str(error)) from error
        out.print(f"   ✓ Spark {spark.version} in {say.duration(monotonic() - began)}\n")
        yield spark


# ---- 3 ----


def send_and_kill(out: Console, cluster: DemoCluster, spark: SparkSession, events_count: int) -> Flow:
    from quorate.cli.demo_flow import Flow

    step(
        out,
        3,
        "Events, and a kill",
        f"An idempotent producer sends {events_count:,} sales, acknowledged when a majority has flushed them,",
        "while a streaming query adds them up by city and time, looks each city up in the table, and writes the",
        "totals back, exactly once. Half-way, the leader of partition 0 gets kill -9.",
    )
    flow = Flow(cluster, spark, events_count)
    flow.run(out)
    return flow


# ---- 4 ----


def compare(out: Console, flow: Flow) -> None:
    step(
        out,
        4,
        "Every event, counted",
        "What the producer was told beside what is found in the topics of results, city by city:",
    )
    columns = ("city", "acknowledged", "counted", "sum", "sum counted", "")
    out.print(say.table("", columns, flow.rows(), right=(1, 2, 3, 4)))
    out.print(
        f"   {'✓ nothing lost, nothing twice' if flow.held else '[bold red]✗ they differ[/bold red]'}\n"
    )


# ---- 5 and 6 ----


def write_back(out: Console, cluster: DemoCluster, spark: SparkSession, flow: Flow) -> bool:
    """Results in topics of every other kind, and all of it in a lake; whether both are what they should be."""
    from quorate.cli.demo_lake import Kept

    step(
        out,
        5,
        "Results, and a lake",
        "The results went into topics of three kinds, each batch in one transaction over all of them.",
        "`quorate tier` keeps events and results in Delta tables, each record once: the log may forget them then.",
    )
    held = True
    for topic, found in flow.written.items():
        is_same = found == flow.counted
        held = held and is_same
        mark = "✓" if is_same else "[bold red]✗[/bold red]"
        out.print(f"   {mark} {topic}: totals of {len(found)} cities, read back by Spark")
    place = default_place(LAKE)
    shutil.rmtree(place, ignore_errors=True)
    with out.status("events and results go into the lake"):
        kept = Kept(spark, cluster, place)
    is_same = all(found == flow.counted for found in (kept.by_city, *kept.results))
    said = "read back as one with the log, and equal" if is_same else "[bold red]and they differ[/bold red]"
    out.print(
        f"   {'✓' if is_same else '[bold red]✗[/bold red]'} {kept.rows_count:,} records in "
        f"{say.duration(kept.seconds)}, {say.bytes_count(kept.bytes_count)} in {place}; {said}\n",
        soft_wrap=True,
    )
    return held and is_same


def audit_disks(out: Console, cluster: DemoCluster, spark: SparkSession) -> bool:
    from quorate.cli.demo_lake import audited

    step(
        out,
        6,
        "The disks, audited",
        "`quorate audit` reads what all nodes have on their disks, while they run, and compares every copy:",
    )
    with out.status("Spark reads the disks"):
        said, is_clean = audited(spark, cluster)
    out.print(f"   {said}\n", soft_wrap=True)
    return is_clean


# ---- 7 ----


def sweep(out: Console, spark: SparkSession, worlds_count: int) -> list[Totals]:
    from quorate.cli.sweep_command import added_up, run_parts, write_page
    from quorate.cli.sweep_report import comparison
    from quorate.cli.world_options import PROTOCOLS
    from quorate.cli.worlds import show_violations
    from quorate.sim.run import Plan
    from quorate.spark.sweep_parts import Sweep, plans_of

    seeds_count = max(1, worlds_count // len(PROTOCOLS))
    step(
        out,
        7,
        "Made-up worlds, on Spark",
        "One kill proves little. The same code runs in worlds made from a number each: simulated disks, clocks",
        "and network, and whatever can go wrong does. After every event every invariant is checked.",
        f"Spark spreads {seeds_count} worlds for each way to agree over this machine's cores:",
    )
    place, page = default_place(SWEEP), default_place(REPORT)
    wanted = Sweep(plans_of(Plan(0), PROTOCOLS), 0, seeds_count)
    began = monotonic()
    run_parts(spark, wanted, str(place.absolute()), tasks=None, overwrite=True)
    found, compared = added_up(spark, wanted, str(place.absolute()), monotonic() - began)
    write_page(page, wanted, found, compared)
    violations = [violation for totals in found for violation in totals.finish().violations]
    if violations:
        show_violations(violations, out, shrunk=False)
    names, rows = comparison(compared)
    out.print(say.table("", names, rows, right=range(1, len(names))))
    out.print(f"   every world, one row: {place}", soft_wrap=True)
    out.print(f"   ✓ the same with pictures, for your browser: {page.resolve()}\n", soft_wrap=True)
    return found


# ---- 8 ----


def plant_a_bug(out: Console) -> tuple[Mutant, Caught | None]:
    from quorate.cli.mutants import describe
    from quorate.sim import mutate, patching

    mutant = describe(MUTANT)
    step(
        out,
        8,
        "A bug, planted on purpose",
        "Would those checks notice? Into a copy of the code goes a known bug of real systems:",
        f"[italic]{mutant.name}[/italic]: it {mutant.does} (origin: {mutant.origin}).",
    )
    try:
        jobs = min(JOBS_MAX, os.cpu_count() or 1)
        with out.status("hunting it"):
            caught = mutate.hunt(mutant.name, range(HUNT_SEEDS), hint=False, jobs=jobs)
    except (patching.DoesNotApply, mutate.HuntFailed) as error:
        raise WrongUsage(f"the bug cannot be planted: {error}") from error
    if caught is None:
        out.print(f"   [red]✗ it lived through {HUNT_SEEDS} worlds[/red]\n")
    else:
        out.print(f"   ✓ caught in {say.duration(caught.seconds)}, in world {caught.seed}, by the invariant")
        say.paragraph(out, f"[bold]{caught.invariant}[/bold]: {caught.detail}", indent=5)
    return mutant, caught


def draw_it(out: Console, mutant: Mutant, caught: Caught, wanted: Path | None) -> None:
    from quorate.cli.mutants import drawn

    picture = drawn(mutant, caught)
    file = wanted if wanted is not None else default_place(STORY)
    write_text(file, picture)
    out.print(f"   ✓ its story as a picture, for your browser: {file.resolve()}\n", soft_wrap=True)


def default_place(name: str) -> Path:
    """`out` below this directory, or the system's place for temporary files where that cannot be."""
    try:
        Path("out").mkdir(exist_ok=True)
    except OSError:
        return Path(gettempdir()) / f"quorate-{name}"
    return Path("out") / name


# ---- the end ----


def sum_up(out: Console, flow: Flow, worlds: list[Totals], caught: Caught | None, seconds: float) -> None:
    out.print(f"[bold]In short[/bold], after {say.duration(seconds)}")
    for line in (_of_events(flow), _of_the_kill(flow), _of_worlds(worlds), _of_the_bug(caught)):
        say.paragraph(out, line)
    command = say.command()
    out.print(
        "\n   Go on with:\n"
        f"     {command} up                            a cluster of your own\n"
        f"     {command} sim raft --seed 7 --trace     one world, line by line\n"
        f"     {command} mutants                       every known bug, planted and caught\n"
    )


def _of_events(flow: Flow) -> str:
    if flow.held:
        return (
            f"{flow.sender.acknowledged_count:,} events were acknowledged, and Spark counted every one of them "
            f"[bold green]once[/bold green], in {flow.batches_count} batches."
        )
    return (
        f"[bold red]{flow.lost_count:,} acknowledged events are lost, {flow.doubled_count:,} are there twice[/bold "
        f"red], and {flow.unknown_count:,} were never acknowledged. That is a bug of ours."
    )


def _of_the_kill(flow: Flow) -> str:
    if not flow.victim:
        return "[bold red]No node was killed: the events ended too early.[/bold red]"
    back = f"It was back {say.duration(flow.back_after_s)} after the kill. " if flow.back_after_s else ""
    return (
        f"Node {flow.victim} was killed with {flow.acknowledged_before:,} events in; its partitions paused for "
        f"{say.duration(flow.gap_s)}. {back}Spark was {say.duration(flow.behind_s)} behind the last event, its "
        f"longest batch took {say.duration(flow.longest_batch_s)}."
    )


def _of_worlds(worlds: list[Totals]) -> str:
    sums = [totals.sum for totals in worlds]
    seeds, violations = sum(each.seeds for each in sums), sum(len(each.violations) for each in sums)
    if violations:
        return (
            f"[bold red]{violations} of {seeds} worlds broke a promise.[/bold red] That is a bug "
            "of ours; the lines above say how to see it again."
        )
    faults = sum(sum(totals.thrown.values()) for totals in worlds)
    lived_s = sum(totals.seconds for totals in worlds)
    return (
        f"{seeds:,} worlds lived through {say.duration(lived_s)} of their own time, "
        f"{faults:,} faults and {sum(each.events for each in sums):,} events in {say.duration(worlds[0].taken)} of "
        f"yours; {sum(each.acknowledged for each in sums):,} acknowledged writes, and none was lost."
    )


def _of_the_bug(caught: Caught | None) -> str:
    if caught is None:
        return f"[bold red]The bug we planted, {MUTANT}, was not caught.[/bold red]"
    world = "in its first world" if caught.seeds_count == 1 else f"in world {caught.seeds_count} of its life"
    return f"The bug we planted was caught {world}."


def tell_how_to_use(out: Console, cluster: DemoCluster) -> None:
    from quorate.cli.demo_events import TOPIC

    out.print("[bold]The cluster is still running[/bold], as KEEP=1 asked")
    for what, how in (
        ("bootstrap servers", cluster.bootstrap),
        ("read with kcat", f"kcat -b 127.0.0.1:{cluster.port} -t {TOPIC} -C -e | head"),
        ("data and logs", str(cluster.directory)),
        ("what it says", f"tail -f {cluster.output}"),
        ("stop it", f"kill {cluster.pid}"),
        ("start it again", f"quorate up --dir {cluster.directory}"),
    ):
        out.print(f"   {what:<18} {how}", soft_wrap=True, markup=False)
    out.print()
