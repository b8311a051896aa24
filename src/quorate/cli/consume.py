"""`quorate consume`: a topic's records on the screen, or into a pipe."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.options import SERVERS, Servers
from quorate.cli.times import as_ms
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.record_lines import Show

EPILOG = """\b
[bold]Examples[/bold]
quorate consume events                               all that is there now
quorate consume events --follow --from end           what comes from now on; Ctrl-C ends
quorate consume events --partition 0 --from 1500 --count 10
quorate consume events --from 2026-03-01T12:00       what was written since then, by your clock
quorate consume events --group audit                 goes on where the group was, and remembers how far it got
quorate consume events --format json

Records of one partition come in their order. Only what is settled is shown.
"""


GROUP_NAME_MAX = 1000
"""As nodes have it."""


class Format(StrEnum):
    lines = "lines"
    json = "json"


def register(app: typer.Typer) -> None:
    app.command("consume", epilog=EPILOG)(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where from.")],
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="beginning, end, an offset, or a time as 2026-03-01T12:00."
        ),
    ] = "beginning",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on at the end, and wait for more.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many records.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this one; repeat for more."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Share the records with its other members."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How a record looks.")] = Format.lines,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Print keys, too, and this behind them."),
    ] = None,
    servers: Servers = SERVERS,
) -> int | None:
    """Print a topic's records."""
    from quorate.cli.consuming import Wanted, read_alone, read_in_group

    start = _start(begin)
    wanted = Wanted(
        topic, tuple(sorted(set(partition or ()))), start, count, follow, _show(format_, key_separator)
    )
    if group is None:
        return read_alone(servers, wanted)
    if not 0 < len(group) <= GROUP_NAME_MAX:
        raise WrongUsage(f"--group: its name has 1 to {GROUP_NAME_MAX} characters, not {len(group)}")
    if partition:
        raise WrongUsage("--group and --partition: a group divides partitions by itself; choose one of them")
    if isinstance(start, datetime) or start >= 0:
        raise WrongUsage(
            "--group: a group goes on where it was; --from is beginning or end, for where it was not yet"
        )
    return read_in_group(servers, wanted, group)


def _start(text: str) -> int | datetime:
    from quorate.client import EARLIEST, LATEST

    if text in ("beginning", "end"):
        return EARLIEST if text == "beginning" else LATEST
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        why = "write beginning, end, an offset, or a time as 2026-03-01T12:00"
        raise WrongUsage(f"--from {text!r}: {why}") from None
    as_ms(time, "--from")
    return time


def _show(format_: Format, key_separator: str | None) -> Show:
    from quorate.cli.record_lines import to_json, to_keyed, to_plain

    if format_ is Format.json:
        if key_separator is not None:
            raise WrongUsage("--format json and --key-separator: in JSON a key has its own field; choose one")
        return to_json
    return to_plain if key_separator is None else to_keyed(key_separator.encode())
