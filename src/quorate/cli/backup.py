"""`quorate backup`: topics and groups of tables into a directory or an object store, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers
from quorate.cli.rates import UNLIMITED, parse_rate
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.backup.manifest import Manifest
    from quorate.backup.pace import Progress
    from quorate.backup.place import Place

backup_app = typer.Typer(
    no_args_is_help=True,
    help="Save topics and groups of tables to a directory or an object store, and restore them.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic, or the group of tables.")]
Where = Annotated[
    str, typer.Argument(metavar="PLACE", help="A directory, or s3://BUCKET/PREFIX; one for many backups.")
]
Endpoint = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Of an object store that is not Amazon's.",
        show_default="AWS_ENDPOINT_URL_S3, or AWS_ENDPOINT_URL",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="No more than so much a second, as in 50MiB or 800k; off: no limit."),
]

CREATE_EPILOG = """\b
[bold]Examples[/bold]
quorate backup create orders /var/backups/quorate
quorate backup create orders /var/backups/quorate --rate 50MiB      again: only what is new
quorate backup create bank s3://backups/quorate --endpoint http://10.0.0.9:9000

\b
For s3:// credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or wherever
Amazon's tools find them, the region from AWS_REGION. Ctrl-C: what is saved stands, and the
same command goes on from there.
"""
RESTORE_EPILOG = """\b
[bold]Examples[/bold]
quorate backup restore orders /var/backups/quorate
quorate backup restore orders /var/backups/quorate --as orders-of-monday --rate 50MiB
quorate backup restore orders /var/backups/quorate --resume         after Ctrl-C, or worse

\b
Everything is verified before anything is written. The topic, or group, must not be there.
docs/BACKUP.md says what is kept: records, their order and their settings always, offsets
where that is possible (it is told where it was not), versions of rows not, nor records of
transactions that were not committed.
"""


def register(app: typer.Typer) -> None:
    backup_app.command("create", epilog=CREATE_EPILOG)(create)
    backup_app.command("list")(list_)
    backup_app.command("verify")(verify)
    backup_app.command("restore", epilog=RESTORE_EPILOG)(restore)
    app.add_typer(backup_app, name="backup")


def create(
    name: Name,
    place: Where,
    servers: Servers = SERVERS,
    rate: Rate = None,
    endpoint: Endpoint = "",
    json: Json = False,
) -> None:
    """Save a topic or a group of tables, or what is new in it since the last time."""
    from quorate.cli.backup_work import in_one_line, opened, save, stopping

    with in_one_line(), stopping() as is_stopped:
        bytes_per_s = _paced(rate)
        save(opened(place, endpoint), servers, name, bytes_per_s, is_stopped, as_json=json)


def _paced(rate: str | None) -> int | None:
    """None: as fast as it goes."""
    parsed = parse_rate(rate, "--rate", least=1) if rate is not None else UNLIMITED
    return parsed if parsed != UNLIMITED else None


def list_(place: Where, endpoint: Endpoint = "", json: Json = False) -> None:
    """List the backups of a place, as their manifests have them; `verify` reads what these name."""
    from quorate.backup.manifest import backups_in
    from quorate.cli.backup_work import in_one_line, opened

    found: list[Manifest | str] = []
    with in_one_line():
        where = opened(place, endpoint)
        found += [_manifest_or_why(where, name) for name in backups_in(where)]
    if json:
        say.print_json({"backups": [_as_json(each) for each in found]})
    elif not found:
        print(f"There are no backups in {place}; make one: quorate backup create NAME {place}")
    else:
        _tell_backups([each for each in found if not isinstance(each, str)])
    wrong = [each for each in found if isinstance(each, str)]
    for line in wrong:
        say.progress_line(line)
    if wrong:
        raise typer.Exit(1)


def _counting(progress: Progress, whole: int) -> Callable[[int], None]:
    def went(count: int) -> None:
        progress.went(count, done=progress.bytes_count + count, whole=whole)

    return went


def _manifest_or_why(place: Place, name: str) -> Manifest | str:
    from quorate.backup.errors import Damaged, NoBackup, WrongBackup
    from quorate.backup.manifest import newest

    try:
        return newest(place, name)
    except (NoBackup, Damaged, WrongBackup) as error:
        return str(error)


def _as_json(found: Manifest | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"wrong": found}
    return {
        "name": found.name,
        "kind": found.kind,
        "id": found.id,
        "cluster": found.cluster,
        "saved_at_ms": found.saved_at_ms,
        "complete": found.complete,
        "bytes": found.size,
        "files": len(found.files),
        "records": found.records,
        "replication": found.replication,
        "config": found.config,
        "partitions": [
            {"partition": number, "start": part.start, "end": part.end}
            for number, part in enumerate(found.partitions)
        ],
        "tables": list(found.tables),
        "offset": found.offset if found.offset >= 0 else None,
    }


def _tell_backups(found: list[Manifest]) -> None:
    from datetime import UTC, datetime

    from quorate.backup.pace import size_text

    rows = [
        (
            each.name,
            each.kind,
            datetime.fromtimestamp(each.saved_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            f"{each.records:,}",
            size_text(each.size),
            "" if each.complete else "not complete: create it again",
        )
        for each in found
    ]
    columns = ("name", "kind", "saved", "records or rows", "size", "")
    say.console().print(say.table("Backups", columns, rows, right=(3, 4), whole=(0, 2)))


def verify(
    place: Where,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this one.", show_default="all")
    ] = None,
    endpoint: Endpoint = "",
    json: Json = False,
) -> None:
    """Read every byte of the backups of a place; exit code 1 if one is damaged, or not complete."""
    from quorate.backup.checking import problems
    from quorate.backup.manifest import some_backups_in
    from quorate.backup.pace import Progress
    from quorate.cli.backup_work import in_one_line, opened

    wrong: list[str] = []
    with in_one_line():
        where = opened(place, endpoint)
        names = some_backups_in(where) if name is None else [name]
        for each in names:
            found = _manifest_or_why(where, each)
            if isinstance(found, str):
                wrong.append(found)
                continue
            progress = Progress(f"verifying {each}", say.progress_line)
            wrong += problems(where, found, _counting(progress, found.size))
            if not found.complete:
                wrong.append(f"{each} is not complete: `quorate backup create` was stopped; create it again")
    for line in wrong:
        say.progress_line(line)
    what = f"{say.counted(len(wrong), 'thing')} wrong" if wrong else "every byte is as it was written"
    said = f"{say.counted(len(names), 'backup')} verified: {what}"
    say.result(said, {"backups": names, "wrong": wrong}, json=json)
    if wrong:
        raise typer.Exit(1)


def restore(
    name: Name,
    place: Where,
    servers: Servers = SERVERS,
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="OTHER", help="The name it gets.", show_default="the one it had"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier restore of this backup ended.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also from a backup whose `create` was stopped.")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=9, help="Copies of it.", show_default="as many as it had"),
    ] = None,
    rate: Rate = None,
    endpoint: Endpoint = "",
    json: Json = False,
) -> None:
    """Restore a topic or a group of tables, to a new one of the same or another name."""
    from quorate.backup.checking import check
    from quorate.backup.manifest import TABLES, newest
    from quorate.backup.pace import Progress
    from quorate.cli.backup_work import Wanted, in_one_line, opened, restore_tables, restore_topic, stopping

    with in_one_line(), stopping() as is_stopped:
        bytes_per_s = _paced(rate)
        where = opened(place, endpoint)
        manifest = newest(where, name)
        if not manifest.complete and not partial:
            raise WrongUsage(
                f"the backup of {name} is not complete: `quorate backup create` was stopped; create it again, or "
                f"restore what is there with --partial"
            )
        progress = Progress(f"verifying {name}", say.progress_line)
        uncommitted = check(where, manifest, _counting(progress, manifest.size))
        wanted = Wanted(
            where, manifest, uncommitted, servers, as_ or name, resume, replicas, bytes_per_s, is_stopped
        )
        work = restore_tables if manifest.kind == TABLES else restore_topic
        lines, told = work(wanted)
    say.result(lines, told, json=json)
