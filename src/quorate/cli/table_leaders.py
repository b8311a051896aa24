"""`quorate table promote` and `demote`: who leads a group of tables, by order, and what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers
from quorate.cli.wrong import WrongUsage

PROMOTE_EPILOG = """\b
[bold]Examples[/bold]
quorate table demote bank && quorate table promote bank --node 2
quorate table promote bank --node 2 --roll-back      when what waits for its quorum shall be taken back

In a busy group others have more than the node that is promoted, and say NAY: demote the leader first.
A node that was far behind when the leader stopped still hears NAY: promote another.
Where too few copies answer, the node takes its nomination back by itself: after an election time-out, or
after a few of them where it was elected already.
"""

LOOK_EVERY_S = 0.5
TAKEN_BACK = "; where too few copies answer, that node takes it back by itself after a while"

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group of tables.")]


def register(table_app: typer.Typer) -> None:
    table_app.command("promote", epilog=PROMOTE_EPILOG)(promote)
    table_app.command("demote")(demote)


def promote(
    group: GroupArgument,
    node: Annotated[int, typer.Option("--node", metavar="N", min=1, help="Who shall lead.")],
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="Take back what former leaders left unsettled (it is lost).")
    ] = False,
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Let a node lead a group of tables whose copies agree by confirm."""
    from quorate.cli.table_words import opened

    again = f"quorate table promote {group} --node {node}" + " --roll-back" * roll_back
    what = f"node {node} is to lead"
    with opened(servers, group) as tables, _waited_for(servers, group, what, again=again, node=node):
        leader = tables.promote(node, roll_back=roll_back)
    say.result(
        f"group {group} is led by node {leader}", {"group": group, "leader": leader or None}, json=json
    )


def demote(group: GroupArgument, servers: Servers = SERVERS, json: Json = False) -> None:
    """Let whoever leads a group settle everything and lead no more; another node is elected, or promoted."""
    from quorate.cli.table_words import opened

    what = "whoever leads is to settle everything, and to lead no more"
    with opened(servers, group) as tables, _waited_for(servers, group, what):
        tables.demote()
    said = f"the leader of group {group} has settled everything, and leads no more"
    say.result(said, {"group": group, "demoted": True}, json=json)


@contextmanager
def _waited_for(servers: str, group: str, what: str, *, again: str = "", node: int = 0) -> Iterator[None]:
    """Tell what is waited for, and whoever interrupts what becomes of the order.

    Without `again`: given once more, it would be an order to the next leader.
    """
    from quorate.cli.orders import MAY_STAND, advice

    line = f"{group}: {what}"
    say.progress_line(line)
    answered = threading.Event()
    # A daemon: nobody who interrupts waits for its last look.
    threading.Thread(target=_tell, args=(servers, group, line, answered, node), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        answered.set()
        said = (
            advice(again=again) + TAKEN_BACK
            if again
            else f"; `quorate table describe {group}` says who leads"
        )
        say.progress_line(MAY_STAND + said)
        raise
    finally:
        answered.set()


def _tell(servers: str, group: str, line: str, answered: threading.Event, node: int) -> None:
    """Who leads meanwhile, as that node knows, or whoever answers: when that changes, and now and then."""
    from quorate.cli.how_far import Teller
    from quorate.cli.table_words import opened
    from quorate.client import ClientError

    teller = Teller()
    with suppress(WrongUsage), opened(servers, group) as tables:
        while not answered.wait(LOOK_EVERY_S):
            with suppress(ClientError):
                leader = tables.describe(node=node).leader
                if not answered.is_set():
                    teller.tell(f"{line}; so far {f'node {leader} leads' if leader else 'nobody leads'}")
