"""What several commands for a running cluster are told alike."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from quorate.cli.wrong import WrongUsage

SERVERS = "127.0.0.1:9092"
WAIT_S = 600.0
NOT_THERE_YET = 1
"""The exit code of an order that was given and has not got there in time."""

LOCAL = "local[*]"
BOOTSTRAP = "QUORATE_BOOTSTRAP"

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT,…", envvar=BOOTSTRAP, help="Any nodes of the cluster."
    ),
]
Master = Annotated[str, typer.Option(metavar="URL", help="Which Spark runs it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only give the order; it is carried out by itself.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", min=0.1, help="How long to wait, in seconds.")
]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="How fast each node sends to new copies, as in 20MiB/s; off: no limit. It stays so.",
        show_default="as it is",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="Let a setting be this; repeat for more."),
]
Reset = Annotated[
    list[str] | None,
    typer.Option("--reset", metavar="KEY", help="Let a setting be as by default; repeat for more."),
]

NATS_SUBJECT = "quorate.nats.subject"
"""The setting of a topic; named here again, since `ingest` takes the whole library of NATS to import."""


def check_master(master: str) -> None:
    """Spark itself says it with two pages of Java."""
    if not re.fullmatch(
        r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+", master
    ):
        raise WrongUsage(f"--master {master!r}: write local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT")
