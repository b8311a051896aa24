"""`quorate audit`: the directories of all nodes, read and compared on Spark; nothing is written to them."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say
from quorate.cli.options import LOCAL, Master, check_master
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.audit.places import Place
    from quorate.spark.audit import Report

SHOWN_MAX = 200
EPILOG = """\b
[bold]Examples[/bold]
quorate audit data/                         all nodes in a directory, as `quorate up --dir data` makes it
quorate audit /disk1/n1 /disk2/n2 /disk3/n3
quorate audit data/ --json                  for programs

[bold]Exit code[/bold]
0 everything is as it was written, 1 something is wrong, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    app.command("audit", epilog=EPILOG)(audit)


def audit(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Nodes' directories, or one with nodes in it.", show_default=False
        ),
    ],
    master: Master = LOCAL,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Read what all nodes have on their disks, running or not, and say whether it is whole and the same."""
    check_master(master)
    places = _places(directories)
    began = monotonic()
    report = _run(places, master)
    taken_s = monotonic() - began
    if json:
        say.print_json(_object(report, taken_s))
    else:
        _show(report, taken_s)
    if report.findings:
        raise typer.Exit(1)


def _places(directories: list[Path]) -> list[Place]:
    from quorate.audit.places import NotANode, places_in

    try:
        places = [place for directory in directories for place in places_in(directory)]
    except NotANode as wrong:
        raise WrongUsage(f"{wrong}; name directories of nodes, or one that holds them") from wrong
    for place in places:
        if [other.replica for other in places].count(place.replica) > 1:
            raise WrongUsage(f"two directories are of {place.replica}; name each node once")
    return places


def _run(places: list[Place], master: str) -> Report:
    from quorate.spark.java import NoJava
    from quorate.spark.session import NoSpark, local_session

    say.progress_line(f"Spark is starting ({master}): some seconds")
    try:
        with local_session("quorate audit", master=master, log_level="off") as session:
            from quorate.spark.audit import audit as audited

            return audited(session, places, say.progress_line)
    except (NoSpark, NoJava) as missing:
        raise WrongUsage(str(missing)) from missing


def _object(report: Report, taken_s: float) -> dict[str, Any]:
    from quorate.audit.findings import KINDS

    return {
        "replicas": report.replicas,
        "partitions": report.partitions_count,
        "copies": report.copies_count,
        "entries": report.entries_count,
        "bytes": report.bytes_count,
        "states": report.states_count,
        "protocols": report.protocols,
        "looks": report.looks,
        "untold": report.untold_count,
        "seconds": round(taken_s, 2),
        "findings": [
            {
                "replica": each.replica,
                "partition": report.name(each.partition),
                "first": each.first if each.first >= 0 else None,
                "last": each.last if each.last >= 0 else None,
                "kind": each.kind,
                "detail": each.detail,
                "means": KINDS[each.kind].means,
                "do": KINDS[each.kind].do,
            }
            for each in report.findings
        ],
    }


def _show(report: Report, taken_s: float) -> None:
    from quorate.audit.findings import KINDS

    out = say.console()
    if report.findings:
        rows = [
            (each.replica or "all", report.name(each.partition), each.offsets, each.kind, each.detail)
            for each in report.findings[:SHOWN_MAX]
        ]
        columns = ("replica", "partition", "offsets", "kind", "where")
        out.print(say.table("What is wrong", columns, rows, whole=(0, 3)))
        if len(report.findings) > SHOWN_MAX:
            out.print(f"… and {len(report.findings) - SHOWN_MAX:,} more: --json has them")
        if report.untold_count:
            out.print(f"… and {report.untold_count:,} more pieces of damage, which are not listed")
        found = {finding.kind for finding in report.findings}
        kinds = [(kind, meant.means, meant.do) for kind, meant in KINDS.items() if kind in found]
        out.print(say.table("What it means, and what to do", ("kind", "means", "do"), kinds, whole=(0,)))
    said = ", ".join(f"{count} {name}" for name, count in sorted(report.protocols.items()))
    out.print(
        f"{say.counted(len(report.replicas), 'replica')}, "
        f"{say.counted(report.partitions_count, 'partition')} ({said}), "
        f"{say.counted(report.copies_count, 'copy', 'copies')}: "
        f"{say.counted(report.entries_count, 'entry', 'entries')}, {say.bytes_count(report.bytes_count)}, "
        f"{say.counted(report.states_count, 'state')} built again, in {say.duration(taken_s)}",
        soft_wrap=True,
    )
    if not report.findings:
        are_compared = report.copies_count > report.partitions_count
        copies = "all copies agree" if are_compared else "there was nothing to compare: one copy of each"
        out.print(f"[bold]Every frame is whole, every chain unbroken, and {copies}.[/bold]")
    else:
        count = len(report.findings)
        out.print(f"[bold]{say.counted(count, 'finding')}[/bold]")
