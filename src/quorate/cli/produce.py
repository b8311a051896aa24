"""`quorate produce`: records from the keyboard, a pipe or a file into a topic."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.options import SERVERS, Servers
from quorate.cli.wrong import WrongUsage, in_words

if TYPE_CHECKING:
    from quorate.cli.record_lines import Parse

EPILOG = """\b
[bold]Examples[/bold]
quorate produce events                               one record for each line that you type; Ctrl-D ends
quorate produce events --file data.txt --compression zstd
quorate produce events --key-separator :             alice:hello
quorate produce events --json                        {"key": "alice", "value": "hello", "headers": {"app": "web"}}
quorate consume old --format json | quorate produce new --json

Records with the same key go to the same partition. With --acks all, the default, every record is written once, also
when a node dies meanwhile.

\b
[bold]Exit code[/bold]
0 all were written, 1 some were not, 2 the command cannot be done.
"""


class Acks(StrEnum):
    none = "0"
    leader = "1"
    all = "all"


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


def register(app: typer.Typer) -> None:
    app.command("produce", epilog=EPILOG)(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Read lines from there.", show_default="standard input"
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Each line is a key, this, and a value."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Each line is a JSON object.")] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeat for more."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, metavar="N", help="All into this one.", show_default="by key"
        ),
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Of batches of records.")
    ] = Compression.none,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Who has flushed a record when it counts as written.")
    ] = Acks.all,
    servers: Servers = SERVERS,
) -> int | None:
    """Write records into a topic, one for each line."""
    from quorate.cli.orders import reached
    from quorate.cli.producing import Settings, write_all
    from quorate.cli.record_lines import header_of
    from quorate.client.admin import settings_of

    headers = tuple(map(header_of, header or ()))
    parse = _parse(key_separator, json=json)
    with reached(servers) as cluster:
        partitions_count = len(cluster.topics([topic])[topic].partitions)
        is_compacted = settings_of(cluster, topic).get("cleanup.policy") == "compact"
    if partition is not None and partition >= partitions_count:
        raise WrongUsage(f"topic {topic} has no partition {partition}; it has {partitions_count}, from 0 on")
    settings = Settings(
        topic,
        partitions_count,
        partition,
        headers,
        None if compression == "none" else str(compression),
        str(acks),
        is_compacted,
    )
    if file is None and sys.stdin is None:  # Closed: something else may have its number by now.
        raise WrongUsage("there is no standard input; name a file with --file")
    if file is None:
        return write_all(servers, settings, 0, parse)
    try:
        with file.open("rb") as lines:
            return write_all(servers, settings, lines.fileno(), parse, size=file.stat().st_size)
    except OSError as error:
        raise WrongUsage(f"cannot read {str(file)!r}: {in_words(error)}; name a file with lines") from error


def _parse(key_separator: str | None, *, json: bool) -> Parse:
    from quorate.cli.record_lines import from_json, from_keyed, from_plain

    if json and key_separator is not None:
        raise WrongUsage("--json and --key-separator: in JSON a key has its own field; choose one of them")
    if key_separator is None:
        return from_json if json else from_plain
    if not key_separator:
        raise WrongUsage("--key-separator: give one character or more")
    return from_keyed(key_separator.encode())
