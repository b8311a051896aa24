"""`quorate transaction`: transactions that are not over, and an end for those that nobody else ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers, Timeout
from quorate.cli.wrong import NotYet, WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.cli.transaction_view import TransactionView

WAIT_S = 60.0
ABORT_EPILOG = """\b
[bold]Examples[/bold]
quorate transaction abort pay-7     a producer's, by its transactional id
quorate transaction abort clicks    all that a joint app has open

Whoever has it open is fenced: its next write or commit fails, and it must be started again.
What is committed stays so. The command waits until readers of committed records go on.
"""

transaction_app = typer.Typer(
    no_args_is_help=True, help="See which transactions are not over, and abort one that holds readers back."
)


def register(app: typer.Typer) -> None:
    transaction_app.command("list")(list_)
    transaction_app.command("abort", epilog=ABORT_EPILOG)(abort)
    app.add_typer(transaction_app, name="transaction")


def list_(servers: Servers = SERVERS, json: Json = False) -> None:
    """List the transactions that are not over, those that are open for longest first."""
    found = _looked_at(servers)
    if json:
        say.print_json({"transactions": found})
    elif found:
        columns = ("transaction", "kind", "producer", "state", "for", "aborted in", "holds back")
        out = say.console()
        out.print(say.table("Transactions", columns, map(_row, found), right=(2, 4, 5), whole=(0,)))
    else:
        print("No transaction is open.")


def _row(view: TransactionView) -> tuple[str, ...]:
    from rich.markup import escape

    left = say.duration(view.left_s) if view.left_s is not None else ""
    age = say.duration(view.age_s) if view.age_s is not None else ""
    kind = f"{view.kind}, number {view.number}" if view.number is not None else view.kind
    holds_back = ", ".join(view.holds_back)
    return escape(view.transaction), kind, str(view.producer_id), view.state, age, left, escape(holds_back)


def abort(
    name: Annotated[str, typer.Argument(metavar="ID", help="A transactional id, or a joint app.")],
    timeout: Timeout = WAIT_S,
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Abort what is open under a transactional id, or of a joint app, and fence whoever has it open."""
    from quorate.cli.orders import carry_out

    meant = [view for view in _looked_at(servers) if view.transaction == name]
    if not meant:
        raise WrongUsage(
            f"no transaction of {name!r} is open; `quorate transaction list` shows those that are not over"
        )
    opened = [view for view in meant if view.is_open]
    if opened and not _ended(servers, name, opened):
        raise WrongUsage(f"the transaction of {name!r} has just been committed: nothing is left to abort")
    if not opened:
        say.progress_line(
            f"the transaction of {name!r} is {meant[0].state} already; readers wait for its markers"
        )
    producer_ids = [view.producer_id for view in meant]
    carry_out(servers, lambda orders: _until_over(orders, name, producer_ids, timeout))
    outcome = "aborted" if opened else meant[0].state
    said = f"{name}: {outcome}; readers of committed records go on"
    say.result(said, {"transaction": name, "outcome": outcome, "producer_ids": producer_ids}, json=json)


def _looked_at(servers: str) -> list[TransactionView]:
    from quorate.cli.orders import carry_out
    from quorate.cli.transaction_view import not_over

    async def work(orders: Orders) -> list[TransactionView]:
        return not_over(await orders.image(even_old=True), await orders.statuses())

    return carry_out(servers, work)


def _ended(servers: str, name: str, opened: Sequence[TransactionView]) -> bool:
    """Whether anything was aborted; all else had been committed meanwhile."""
    from quorate.cli.orders import reached
    from quorate.client.transactions import abort_joint, abort_plain

    numbers = [view.number for view in opened if view.number is not None]
    aborted = []
    with reached(servers) as cluster:
        if numbers:
            aborted.append(abort_joint(cluster, name, max(numbers)))
        if len(numbers) < len(opened):
            aborted.append(abort_plain(cluster, name))
    return any(aborted)


async def _until_over(orders: Orders, name: str, producer_ids: Sequence[int], timeout_s: float) -> None:
    """Until no partition waits for them any more."""
    import asyncio

    from quorate.cli.orders import LOOK_EVERY_S
    from quorate.cli.transaction_view import is_over

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                image = await orders.image(even_old=True)
                if is_over(image, await orders.statuses(), producer_ids):
                    return
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise NotYet(
            f"{name}: decided, and not yet written everywhere after {timeout_s:g} s; it is tried again and again: "
            "`quorate doctor` says what is in the way"
        ) from None
