"""`quorate table put`, `get`, `scan`, `delete`, `txn` and `result`: what is in the tables of a running cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Servers
from quorate.cli.wrong import NotDone, WrongUsage, in_words

if TYPE_CHECKING:
    from quorate.client import Consistency, Executed

TRANSACTION_FILE_BYTES_MAX = 64 << 20
NEGATIVE = {"ignore_unknown_options": True}
"""Values may begin with a minus."""
READS = "linearizable, committed or local"

TableArgument = Annotated[str, typer.Argument(metavar="GROUP/TABLE", help="The table, as in bank/accounts.")]
KeyArgument = Annotated[list[str], typer.Argument(metavar="KEY…", help="The values of the key's columns.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
Read = Annotated[str, typer.Option("--read", metavar="HOW", help=f"What is seen: {READS}.")]
Node = Annotated[
    int, typer.Option("--node", metavar="N", min=0, help="Ask this copy.", show_default="whoever leads")
]

EXIT_EPILOG = """\b
[bold]Exit code[/bold]
0 it is done, 1 it is not (the tables refuse it), or nobody knows yet, 2 wrong usage, or nobody answers.
"""
PUT_EPILOG = f"""\b
[bold]Examples[/bold]
quorate table put bank/accounts 1 Ann 100
quorate table put bank/accounts 2 null 0             no owner
quorate table put bank/accounts 1 Ann 70 --if 7      only if the row is as it was read, at version 7
quorate table put bank/accounts 3 Cid 5 --if-absent

{EXIT_EPILOG}"""
SCAN_EPILOG = """\b
[bold]Examples[/bold]
quorate table scan bank/accounts
quorate table scan bank/accounts --from 1 --to 5 --limit 10
quorate table scan bank/visits --from 2026-11-16 --to 2026-11-16     all keys that begin so
quorate table scan bank/visits --from 2026-11-16 --from 7            from that day and number on
"""
TXN_EPILOG = f"""\b
[bold]Example[/bold]
echo '{{"operations": [
  {{"update": "accounts", "key": 1, "add": {{"balance": -30}}}},
  {{"update": "accounts", "key": 2, "add": {{"balance": 30}}}}],
  "conditions": [{{"at": "accounts", "key": 1, "version": 7}}]}}' | quorate table txn bank -

docs/TABLES.md lists all operations and conditions.

{EXIT_EPILOG}"""


def register(table_app: typer.Typer) -> None:
    table_app.command("put", epilog=PUT_EPILOG, context_settings=NEGATIVE)(put)
    table_app.command("get", context_settings=NEGATIVE)(get)
    table_app.command("scan", epilog=SCAN_EPILOG)(scan)
    table_app.command("delete", epilog=EXIT_EPILOG, context_settings=NEGATIVE)(delete)
    table_app.command("txn", epilog=TXN_EPILOG)(txn)
    table_app.command("result")(result)


def put(
    name: TableArgument,
    values: Annotated[list[str], typer.Argument(metavar="VALUE…", help="Of all columns, in order.")],
    if_version: Annotated[
        int | None, typer.Option("--if", metavar="VERSION", min=0, help="Only if the row has this version.")
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if there is no row with this key.")
    ] = False,
    null: Annotated[str, typer.Option(metavar="WORD", help="What stands for no value.")] = "null",
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Write a row, in place of the one with the same key if there is one."""
    from quorate.cli.table_words import group_and_table, opened, parse_row, table_of
    from quorate.tables import Absent, At, Condition, Replace

    if if_absent and if_version is not None:
        raise WrongUsage("--if and --if-absent exclude each other: give one of them")
    group, table = group_and_table(name)
    with opened(servers, group) as tables:
        found = table_of(tables, table)
        row = parse_row(found, values, null)
        names = [column.name for column in found.columns]
        key = tuple(row[names.index(part)] for part in found.key)
        conditions: list[Condition] = [Absent(table, key)] if if_absent else []
        if if_version is not None:
            conditions.append(At(table, key, if_version))
        done = tables.execute(Replace(table, row), conditions=conditions)
    _tell(done, as_json=as_json)


def delete(
    name: TableArgument,
    key: KeyArgument,
    if_version: Annotated[
        int | None, typer.Option("--if", metavar="VERSION", min=0, help="Only if the row has this version.")
    ] = None,
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Delete a row, if there is one."""
    from quorate.cli.table_words import group_and_table, opened, parse_key, table_of
    from quorate.tables import At, Delete

    group, table = group_and_table(name)
    with opened(servers, group) as tables:
        values = parse_key(table_of(tables, table), key)
        conditions = [] if if_version is None else [At(table, values, if_version)]
        done = tables.execute(Delete(table, values), conditions=conditions)
    _tell(done, as_json=as_json)


def _tell(done: Executed, *, as_json: bool) -> None:
    if as_json:
        say.print_json({"id": done.id.hex(), "offset": done.offset, "settled": done.settled})
    elif done.settled:
        print(f"done, at offset {done.offset}")
    else:
        print(f"done, at offset {done.offset}; it is not settled yet, and may be lost (asynchronous tables)")


def get(
    name: TableArgument,
    key: KeyArgument,
    read: Read = "committed",
    node: Node = 0,
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the row with a key; exit code 1 if there is none."""
    from quorate.cli.table_words import group_and_table, opened, parse_key, row_json, rows_table, table_of

    group, table = group_and_table(name)
    consistency = _consistency(read)
    with opened(servers, group) as tables:
        found = table_of(tables, table)
        row = tables.get(table, parse_key(found, key), consistency, node=node)
    if as_json:
        say.print_json(None if row is None else row_json(found, row))
    elif row is not None:
        say.console().print(rows_table(found, [row]))
    if row is None:
        raise NotDone(f"there is no row {' '.join(key)} in {name}")


def scan(
    name: TableArgument,
    first: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="VALUE", help="The first key; once for each of its columns."),
    ] = None,
    last: Annotated[
        list[str] | None, typer.Option("--to", metavar="VALUE", help="The last key, likewise; included.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Rows at most.")] = 100,
    read: Read = "committed",
    node: Node = 0,
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show rows in the order of their keys."""
    from quorate.cli.table_words import group_and_table, opened, parse_key, row_json, rows_table, table_of

    group, table = group_and_table(name)
    consistency = _consistency(read)
    with opened(servers, group) as tables:
        found = table_of(tables, table)
        ends = [parse_key(found, end, whole=False) if end else None for end in (first, last)]
        # One more than wanted: to say whether that was all.
        rows = tables.scan(table, *ends, limit=limit + 1, consistency=consistency, node=node)
    if as_json:
        say.print_json([row_json(found, row) for row in rows[:limit]])
        return
    out = say.console()
    out.print(rows_table(found, rows[:limit]))
    if len(rows) > limit:
        say.progress_line(f"there are more; these are the first {limit:,}: --limit shows more")


def _consistency(read: str) -> Consistency:
    from quorate.client import Consistency

    try:
        return Consistency(read)
    except ValueError:
        raise WrongUsage(f"--read {read!r}: write {READS}") from None


def txn(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group of tables.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The transaction as JSON; -: standard input.")],
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Carry out a transaction: several operations on tables of one group, all of them or none."""
    from quorate.cli.table_json import parse_transaction
    from quorate.cli.table_words import opened
    from quorate.client.table_calls import new_id

    text = _read_file(file)
    with opened(servers, group) as tables:
        transaction = parse_transaction(text, tables.tables(), new_id)
        done = tables.execute(*transaction.operations, conditions=transaction.conditions, id_=transaction.id)
    _tell(done, as_json=as_json)


def _read_file(file: str) -> bytes:
    try:
        if file == "-":
            text = sys.stdin.buffer.read(TRANSACTION_FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                text = opened.read(TRANSACTION_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise WrongUsage(
            f"cannot read {file!r}: {in_words(error)}; name a file, or - for standard input"
        ) from error
    if len(text) > TRANSACTION_FILE_BYTES_MAX:
        raise WrongUsage(
            f"{file!r} is longer than {TRANSACTION_FILE_BYTES_MAX:,} bytes; that is no transaction"
        )
    return text


def result(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group of tables.")],
    id_: Annotated[str, typer.Argument(metavar="ID", help="The transaction's, in hexadecimal.")],
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Say what became of a transaction; exit code 1 if nothing is known of it."""
    from quorate.cli.table_json import parse_id
    from quorate.cli.table_words import opened
    from quorate.tables import Outcome

    id_bytes = parse_id(id_)
    with opened(servers, group) as tables:
        found = tables.result(id_bytes)
    if as_json:
        known = found and {
            "outcome": found.outcome.name.lower(),
            "offset": found.offset,
            "why": found.why or None,
        }
        say.print_json(known)
    elif found is not None:
        why = f": {found.why}" if found.outcome is Outcome.REFUSED else ""
        say.console().print(f"{found.outcome.name.lower()}, at offset {found.offset}{why}", markup=False)
    if found is None:
        raise NotDone(
            f"nothing is settled under {id_} in {group}: it was never there, was taken back, may be settled yet, "
            f"or is long ago"
        )
