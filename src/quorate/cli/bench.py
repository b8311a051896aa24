"""`quorate bench`: the promised figures, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, no_such

if TYPE_CHECKING:
    from quorate.bench.report import Claim, Figure, Report

EPILOG = """\b
[bold]Examples[/bold]
quorate bench wal                    the log on this machine's disk
quorate bench wal --directory DIR    on another disk
quorate bench core --json            one JSON object, for programs
quorate bench table --quick          what tables cost, a look
quorate bench kafka                  what Kafka's clients reach, and cost
quorate bench sim --check            exit code 1 if a bound is missed
quorate bench cluster --only latency,throughput --protocol isr
quorate bench spark --only audit     jobs on Spark, on two cores
"""
PARTS = ("latency", "throughput", "idle", "kills", "open", "moving", "turning")
"""Of `bench cluster`."""
WITH_PARTS = ("cluster", "spark")


def register(app: typer.Typer) -> None:
    app.command("bench", epilog=EPILOG)(bench)


def bench(
    what: Annotated[
        str, typer.Argument(metavar="wal|core|sim|table|cluster|kafka|spark", help="What to measure.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and fewer: a look, not a figure.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Measure the disk that holds this directory (it is left as it was)."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a bound is missed.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PART,…",
            help=f"Of cluster, only some of: {', '.join(PARTS)}; of spark: read, write, audit, sweep, tier.",
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of cluster, one protocol.", show_default="all four")
    ] = None,
) -> None:
    """Measure what was promised: ratios within one run, medians with their spread.

    [bold]wal[/bold] the log: group commit beside raw writes and flushes, opening and checking a large log.
    [bold]core[/bold] the protocol: what a step costs, for small and large payloads.
    [bold]sim[/bold] the simulator: events per second, and where the time goes.
    [bold]table[/bold] tables: replaces, undo, and writing while a snapshot is taken.
    [bold]cluster[/bold] three real processes with real flushes, each protocol: latency, throughput, what idle
    partitions cost, how long a killed leader is missed, how soon a node with long logs is ready, what clients
    notice while data moves and while a topic is turned.
    [bold]kafka[/bold] Kafka's clients: a producer beside a broker that only acknowledges, catching up, waiting.
    [bold]spark[/bold] on two cores: reading, writing exactly once, an audit, a sweep, a lake.
    """
    if what not in (*BENCHES, *WITH_PARTS):
        raise no_such("benchmark", what, (*BENCHES, *WITH_PARTS))
    if directory is not None and not directory.is_dir():
        raise WrongUsage(
            f"there is no directory {str(directory)!r}; make it, or name another with --directory"
        )
    if what == "cluster":
        report = _cluster(quick, directory, only=_parts(only, PARTS), protocol=protocol)
    elif what == "spark" and protocol is None:
        report = _spark(quick, directory, only)
    elif only is not None or protocol is not None:
        raise WrongUsage(f"--only and --protocol are for `bench cluster`; `bench {what}` has no such parts")
    else:
        report = BENCHES[what](quick, directory)
    if json:
        say.print_json(report)
    else:
        show(report)
    if check and not report.held:
        raise typer.Exit(1)


def _wal(quick: bool, directory: Path | None) -> Report:
    from quorate.bench import wal

    return wal.run(say.progress_line, directory=directory, quick=quick)


def _core(quick: bool, _: Path | None) -> Report:
    from quorate.bench import core

    return core.run(say.progress_line, repetitions=5 if quick else core.REPETITIONS)


def _sim(quick: bool, _: Path | None) -> Report:
    from quorate.bench import sim

    return sim.run(say.progress_line, quick=quick)


def _table(quick: bool, _: Path | None) -> Report:
    from quorate.bench import table

    return table.run(say.progress_line, quick=quick)


def _kafka(quick: bool, directory: Path | None) -> Report:
    from quorate.bench import kafka
    from quorate.client.errors import ClientError
    from quorate.node.child import ChildFailed

    try:
        return kafka.run(say.progress_line, directory=directory, quick=quick)
    except (ChildFailed, ClientError) as failed:
        raise WrongUsage(f"the cluster did not do what it must: {failed}") from failed


def _cluster(quick: bool, directory: Path | None, *, only: tuple[str, ...], protocol: str | None) -> Report:
    from quorate.bench import cluster
    from quorate.client.errors import ClientError
    from quorate.machine.metadata import REPLICATIONS
    from quorate.node.child import ChildFailed

    if protocol is not None and protocol not in REPLICATIONS:
        raise no_such("protocol", protocol, REPLICATIONS)
    try:
        return cluster.run(say.progress_line, directory=directory, quick=quick, only=only, protocol=protocol)
    except (ChildFailed, ClientError) as failed:
        raise WrongUsage(f"the cluster did not do what it must: {failed}") from failed


def _spark(quick: bool, directory: Path | None, only: str | None) -> Report:
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        raise WrongUsage(
            "this needs Spark here; install it with `pip install '.[local]'` in a clone of Quorate"
        )
    from quorate.bench import spark

    parts = _parts(only, tuple(spark.PARTS))
    return spark.run(say.progress_line, directory=directory, quick=quick, only=parts)


def _parts(only: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in only.split(",")) if only is not None else ()
    for part in parts:
        if part not in known:
            raise no_such("part", part, known)
    return parts


BENCHES: dict[str, Callable[[bool, Path | None], Report]] = {
    "wal": _wal,
    "core": _core,
    "sim": _sim,
    "table": _table,
    "kafka": _kafka,
}


def show(report: Report) -> None:
    out = say.console()
    out.print(f"\n[bold]{report.bench}[/bold]: {report.title}")
    out.print(" · ".join(f"{key} {value}" for key, value in report.machine.items()), style="dim")
    out.print(
        say.table(
            "",
            ("measured", "median", "min – max", "samples"),
            map(_figure_row, report.figures),
            right=(1, 2, 3),
        )
    )
    if report.shares:
        rows = [
            (share.name, f"{share.percent:.1f} %", "█" * round(share.percent / 2)) for share in report.shares
        ]
        out.print(say.table("", ("where the time goes", "share", ""), rows, right=(1,)))
    if report.claims:
        columns = ("promised", "wanted", "median", "min – max", "")
        out.print(say.table("", columns, map(_claim_row, report.claims), right=(1, 2, 3)))
    for note in report.notes:
        out.print(f"· {note}")
    out.print(f"· again: {report.command}")


def _figure_row(figure: Figure) -> tuple[str, str, str, str]:
    unit = f" {figure.unit}" if figure.unit else ""
    return figure.name, f"{say.rounded(figure.median)}{unit}", _spread(figure), str(figure.samples)


def _claim_row(claim: Claim) -> tuple[str, str, str, str, str]:
    unit = f" {claim.unit}" if claim.unit else ""
    verdict = "[green]held[/green]" if claim.held else "[bold red]missed[/bold red]"
    return claim.name, claim.wanted, f"{say.rounded(claim.median)}{unit}", _spread(claim), verdict


def _spread(figure: Figure | Claim) -> str:
    return f"{say.rounded(figure.min)} – {say.rounded(figure.max)}"
