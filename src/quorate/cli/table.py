"""`quorate table`: groups of tables in a running cluster; table_rows.py has what is in them, table_leaders.py who
leads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say, table_leaders, table_rows
from quorate.cli.options import SERVERS, Servers
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.client import TableGroup
    from quorate.machine.metadata import Topic
    from quorate.tables import Table
    from quorate.wire.tables import Described

table_app = typer.Typer(
    no_args_is_help=True,
    help="Create tables in a running cluster, write and read them, and say who leads them.",
)

GROUP_TIMEOUT_S = 5.0
"""For one group of a list: those that answer are shown all the same."""

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group of tables.")]
TableArgument = Annotated[str, typer.Argument(metavar="GROUP/TABLE", help="The table, as in bank/accounts.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]

CREATE_EPILOG = """\b
[bold]Examples[/bold]
quorate table create bank/accounts id:int owner:str? balance:int --key id
quorate table create bank/visits day:str id:int count:int --key day,id --async
quorate table create shop/stock item:str count:int --key item --replication raft --replicas 3

A group is created with its first table. Types: int, float, str, bytes, bool; a question mark lets a column be null.
"""


def register(app: typer.Typer) -> None:
    table_app.command("create", epilog=CREATE_EPILOG)(create)
    table_app.command("list")(list_)
    table_app.command("describe")(describe)
    table_rows.register(table_app)
    table_leaders.register(table_app)
    table_app.command("drop")(drop)
    app.add_typer(table_app, name="table")


def create(
    name: TableArgument,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN:TYPE…", help="As in id:int owner:str?.")],
    key: Annotated[
        str, typer.Option("--key", metavar="COLUMN,…", help="The columns of the primary key, in order.")
    ],
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Answer before a quorum has it; it may be lost then.")
    ] = False,
    replication: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="How the copies of a new group agree: confirm, raft, coordinated or isr.",
            show_default="confirm",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=9, help="Copies of a new group.", show_default="3, or all nodes"
        ),
    ] = None,
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Create a table, and its group where that is not there."""
    from quorate.cli.table_words import group_and_table, opened, parse_columns
    from quorate.tables import CreateTable, Table, why_not_table

    group, table = group_and_table(name)
    keys = tuple(part.strip() for part in key.split(","))
    made = Table(table, parse_columns(columns), keys, synchronous=not asynchronous)
    wrong = why_not_table(made)
    if wrong is not None:
        raise WrongUsage(wrong)
    with opened(servers, group) as tables:
        is_new = _expect_group(tables, servers, replication, replicas)
        done = tables.execute(CreateTable(made))
    if as_json:
        say.print_json({"group": group, "table": table, "new_group": is_new, "offset": done.offset})
    else:
        out = say.console()
        out.print(f"table {name} is created{', and group ' + group if is_new else ''}", markup=False)


def _expect_group(tables: TableGroup, servers: str, replication: str | None, replicas: int | None) -> bool:
    """Let there be one; whether it is made now. One that is there is not changed by asking for another kind."""
    from quorate.cli.orders import reached
    from quorate.client import UnknownGroup, create_group

    try:
        found = tables.describe()
    except UnknownGroup:
        with reached(servers) as cluster:
            create_group(
                cluster, tables.group, replicas_count=replicas or -1, replication=replication or "confirm"
            )
        return True
    for option, wanted, there in (
        ("--replication", replication, found.replication),
        ("--replicas", replicas, len(found.copies)),
    ):
        if wanted is not None and wanted != there:
            raise WrongUsage(
                f"{option} {wanted}: group {tables.group!r} is there already, with {there}; leave it out"
            )
    return False


def list_(servers: Servers = SERVERS, as_json: AsJson = False) -> None:
    """List the groups of tables, with their leaders and tables."""
    from quorate.cli.orders import carry_out, listed

    groups = carry_out(servers, _groups)
    found = {group.name: _described(servers, group.name) for group in groups}
    if as_json:
        say.print_json([_group_json(group, found[group.name]) for group in groups])
        return
    rows = []
    for group in groups:
        described = found[group.name]
        copies = listed(sorted({member.node for member in group.holders(0)}))
        leader, names = "unknown", "does not answer"
        if described is not None:
            leader = str(described.leader or "none")
            names = ", ".join(table.name for table in described.tables)
        rows.append((group.name, group.replication, copies, leader, names))
    out = say.console()
    if rows:
        columns = ("group", "replication", "copies", "leader", "tables")
        out.print(say.table("Groups of tables", columns, rows, right=(3,), whole=(0,)))
    else:
        out.print("There are no tables; make one: quorate table create GROUP/TABLE COLUMN:TYPE… --key COLUMN")


async def _groups(orders: Orders) -> list[Topic]:
    from quorate.cli.orders import MAY_BE_OLD

    image = await orders.image(even_old=True)
    if not image.is_current:
        say.progress_line(MAY_BE_OLD)
    return [topic for topic in image.topics if topic.is_tables]


def _described(servers: str, group: str) -> Described | None:
    from quorate.client import ClientError, TableGroup

    try:
        with TableGroup(servers, group, client_id="quorate-cli", timeout_s=GROUP_TIMEOUT_S) as tables:
            return tables.describe()
    except ClientError:
        return None


def _group_json(group: Topic, described: Described | None) -> dict[str, Any]:
    return {
        "group": group.name,
        "replication": group.replication,
        "copies": sorted({member.node for member in group.holders(0)}),
        "leader": described.leader or None if described is not None else None,
        "tables": None if described is None else [table.name for table in described.tables],
    }


def describe(
    name: Annotated[str, typer.Argument(metavar="GROUP[/TABLE]", help="A group of tables, or one of them.")],
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show a group's tables, copies and leader; or a table's columns."""
    from quorate.cli.table_words import group_and_table, opened, table_of

    if "/" in name:
        group, table = group_and_table(name)
        with opened(servers, group) as tables:
            found = table_of(tables, table)
        say.print_json(_table_json(found)) if as_json else _show_table(group, found)
        return
    with opened(servers, name) as tables:
        described = tables.describe()
    if as_json:
        say.print_json(
            {
                "group": name,
                "replication": described.replication,
                "leader": described.leader or None,
                "epoch": described.epoch,
                "copies": described.copies,
                "tables": [_table_json(table) for table in described.tables],
            }
        )
        return
    from quorate.cli.orders import listed

    who = f"led by node {described.leader}" if described.leader else "led by nobody now"
    out = say.console()
    out.print(
        f"group {name}: {described.replication}, {who}, epoch {described.epoch}, copies on nodes "
        f"{listed(described.copies)}",
        markup=False,
        soft_wrap=True,
    )
    rows = [_table_row(table) for table in described.tables]
    if rows:
        out.print(say.table("", ("table", "key", "columns", "answers"), rows, whole=(0,)))


def _table_row(table: Table) -> tuple[str, ...]:
    from quorate.cli.table_words import column_text

    answers = "when settled" if table.synchronous else "when flushed (async)"
    return table.name, ", ".join(table.key), " ".join(map(column_text, table.columns)), answers


def _table_json(table: Table) -> dict[str, Any]:
    from quorate.cli.table_words import column_text

    return {
        "table": table.name,
        "columns": [column_text(column) for column in table.columns],
        "key": table.key,
        "async": not table.synchronous,
    }


def _show_table(group: str, table: Table) -> None:
    key = {name: str(number) for number, name in enumerate(table.key, 1)}
    rows = [
        (column.name, column.type.value, "yes" if column.nullable else "no", key.get(column.name, ""))
        for column in table.columns
    ]
    kind = "synchronous" if table.synchronous else "asynchronous"
    title = f"Table {group}/{table.name}, {kind}"
    say.console().print(say.table(title, ("column", "type", "may be null", "in the key"), rows, right=(3,)))


def drop(
    name: Annotated[str, typer.Argument(metavar="GROUP/TABLE", help="The table; with --group, the group.")],
    whole_group: Annotated[
        bool, typer.Option("--group", help="The whole group, with all its tables.")
    ] = False,
    servers: Servers = SERVERS,
    as_json: AsJson = False,
) -> None:
    """Drop a table, with all that is in it; or a whole group."""
    from quorate.cli.table_words import group_and_table, opened
    from quorate.tables import DropTable

    if whole_group:
        _drop_group(name, servers)
    else:
        if "/" not in name:
            raise WrongUsage(
                f"{name!r} is a group: name a table of it, as in {name}/TABLE, or drop all with --group"
            )
        group, table = group_and_table(name)
        with opened(servers, group) as tables:
            tables.execute(DropTable(table))
    if as_json:
        say.print_json({"dropped": name})
    else:
        say.console().print(f"{'group' if whole_group else 'table'} {name} is dropped", markup=False)


def _drop_group(group: str, servers: str) -> None:
    from quorate.cli.orders import reached
    from quorate.cli.table_words import opened
    from quorate.client.admin import delete_topic

    with opened(servers, group) as tables:
        tables.describe()  # A topic of records is not dropped by mistake.
    with reached(servers) as cluster:
        delete_topic(cluster, group)
