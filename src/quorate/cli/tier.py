"""`quorate tier`: topics kept in Delta tables, by a Structured Streaming job."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.access import access
from quorate.cli.options import LOCAL, SERVERS, Master, Servers, check_master
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.client.security import Security
    from quorate.spark.tier import Tiering

FAILED = 1
BATCH_OFFSETS_MAX = 1_000_000_000
UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
EPILOG = """\b
[bold]Examples[/bold]
quorate tier events --lake lake/                       what is there now, then it ends
quorate tier events,orders --lake lake/ --every 1min   on and on
quorate tier events --lake s3://bucket/lake --storage AWS_REGION=eu-west-1 --compact --vacuum 168

Whenever it is stopped or killed: the tables say where it goes on.

[bold]Exit code[/bold]
0 done, 1 something came in between, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    app.command("tier", epilog=EPILOG)(tier)


def tier(
    topics: Annotated[str, typer.Argument(metavar="TOPIC,…", help="What is kept.", show_default=False)],
    lake: Annotated[
        str, typer.Option(metavar="PLACE", help="Where: a table for each topic, in a directory or s3://….")
    ],
    bootstrap: Servers = SERVERS,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Go on, looking so often, as in 30s.", show_default="once, up to now"
        ),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A storage option of deltalake; repeat for more."),
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Join small files after each commit.")] = False,
    vacuum: Annotated[
        int | None,
        typer.Option(metavar="HOURS", min=0, help="Remove files that nothing has needed for so long."),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=BATCH_OFFSETS_MAX, help="Offsets of one commit, at most about."),
    ] = 10_000_000,
    master: Master = LOCAL,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Keep topics in Delta tables, each record exactly once, from where the tables end."""
    names = tuple(dict.fromkeys(name.strip() for name in topics.split(",") if name.strip()))
    if not names:
        raise WrongUsage(f"{topics!r} names no topic")
    if not lake.strip():
        raise WrongUsage("--lake is empty; name a directory, or s3://…")
    check_master(master)
    options = dict(option(text) for text in storage or [])
    spelled(every)
    check_installed()
    from quorate.cli.orders import reached
    from quorate.spark.java import NoJava
    from quorate.spark.lake import Lake, LakeTrouble, NotTiered
    from quorate.spark.session import NoSpark, local_session
    from quorate.spark.tier import Tiering

    given = {"kafka.bootstrap.servers": bootstrap, **secured(access().security)}
    kept = Tiering(Lake(lake, options), given, names, compact, vacuum, say.progress_line)
    try:
        with reached(bootstrap) as cluster:
            start = kept.begin(cluster)
        say.progress_line(f"Spark is starting ({master}): some seconds")
        with local_session("quorate tier", master=master, log_level="off") as session:
            kept.run(session, start, every=spelled(every), batch_offsets=batch)
    except (NoSpark, NoJava) as missing:
        raise WrongUsage(str(missing)) from missing
    except NotTiered as wrong:
        raise WrongUsage(str(wrong)) from wrong
    except LakeTrouble as trouble:
        say.progress_line(f"quorate: {trouble}")
        raise typer.Exit(FAILED) from trouble
    counts = {"records": kept.rows_count, "bytes": kept.bytes_count, "commits": kept.commits_count}
    say.result(f"{', '.join(names)} → {lake}: {became(kept)}", counts, json=json)


def became(kept: Tiering) -> str:
    size, commits = say.bytes_count(kept.bytes_count), say.counted(kept.commits_count, "commit")
    if kept.rows_count:
        return f"{say.counted(kept.rows_count, 'record')}, {size} of files, {commits}"
    noted = f"; {commits} to note where it goes on, behind offsets without records"
    return f"nothing new{noted if kept.commits_count else ''}"


def check_installed() -> None:
    """Spark first: what brings it here brings the other, too."""
    from quorate.spark.session import NoSpark, check_spark

    try:
        check_spark()
    except NoSpark as missing:
        raise WrongUsage(str(missing)) from missing
    if find_spec("deltalake") is None:
        raise WrongUsage(
            "`deltalake` is not installed; install it with `pip install '.[local]'`, or `.[lake]` beside a Spark"
        )


def option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise WrongUsage(f"--storage {text!r}: write NAME=VALUE, as in AWS_REGION=eu-west-1")
    return name, value


def spelled(every: str | None) -> str | None:
    """As Spark spells times."""
    if every is None:
        return None
    # Spark counts in microseconds: of more digits it prints stacks, where those do not fit.
    found = re.fullmatch(r"([0-9]{1,6}) ?(s|sec|seconds?|m|min|minutes?|h|hours?)", every)
    if found is None:
        raise WrongUsage(f"--every {every!r}: write a time, as in 30s or 5min")
    return f"{found[1]} {UNITS[found[2][0]]}"


def secured(security: Security | None) -> dict[str, str]:
    """The options of `format("quorate")` that say the same."""
    from quorate.spark.options import SECURITY

    if security is None:
        return {}
    said = {name: str(getattr(security, field) or "") for name, field in SECURITY.items() if field}
    has_password = bool(said["kafka.sasl.username"])
    protocol = ("SASL_" if has_password else "") + ("SSL" if security.tls else "PLAINTEXT")
    if not has_password:
        said.pop("kafka.sasl.mechanism", None)
    return {"kafka.security.protocol": protocol, **{name: value for name, value in said.items() if value}}
