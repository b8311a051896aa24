"""`quorate cluster replace`: a node takes another's place, or its own with a new disk, wherever that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, WAIT_S, Json, NoWait, Servers, Throttle, Timeout
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import Topic
    from quorate.node.requests import Image

EPILOG = """\b
[bold]Examples[/bold]
quorate cluster replace 3              its disk was lost; it was made anew with --replaces, and runs
quorate cluster replace 3 --with 4     node 3 is gone for good
quorate cluster replace 3 --throttle 20MiB/s

It is never done by itself: only a person knows whether the old disk may come back with what it holds.

\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""


class _Plan(NamedTuple):
    """What is to be ordered, what was before and is not so yet, and what can never be."""

    votes: bool
    copies: list[tuple[Topic, int, list[int]]]
    under_way: list[tuple[Topic, int]]
    never: list[str]


NOTHING_TO_DO = _Plan(False, [], [], [])
"""It is so already."""


def register(cluster_app: typer.Typer) -> None:
    cluster_app.command("replace", epilog=EPILOG)(replace)


def replace(
    node: Annotated[int, typer.Argument(metavar="NODE", min=1, help="A node's number.")],
    with_: Annotated[
        int | None,
        typer.Option(
            "--with", metavar="NEW", min=1, help="Who takes its place.", show_default="the same node"
        ),
    ] = None,
    throttle: Throttle = None,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Let another node, or the same one with a new disk, take a node's place wherever it counts."""
    from quorate.cli import moving
    from quorate.cli.how_far import change_voters, until_reached, until_voters_stay
    from quorate.cli.orders import carry_out

    new = with_ or node

    async def work(orders: Orders) -> _Plan:
        image = await orders.image()
        voters = await orders.voters()
        again = f"quorate cluster replace {node}" + (f" --with {new}" if new != node else "")
        orders.advise(again=again)
        if orders.voters_change:  # Perhaps this very one, ordered before.
            await until_voters_stay(orders, timeout)
            image, voters = await orders.image(), await orders.voters()
            if _has_taken_over(image, voters, node, new):
                return _Plan(True, [], [], [])
        plan = await _planned(orders, image, voters, node, new)
        await moving.throttle(orders, throttle)
        if plan.votes:  # First of all: everything else is agreed on there.
            nodes = sorted(voters) if new == node else sorted({*voters, new} - {node})
            await change_voters(orders, nodes, timeout)
        # A copy on a disk that is lost is nothing to go back to.
        orders.advise(again=again, off="quorate cluster stop-moves" if new != node else "")
        for topic, number, nodes in plan.copies:
            await orders.change_topic(topic, number, nodes)
        waits_for = [*(each[:2] for each in plan.copies), *plan.under_way]
        if waits_for and not no_wait:
            await until_reached(orders, [(topic.name, number) for topic, number in waits_for], timeout)
        return plan

    _tell(carry_out(servers, work), node, new, no_wait=no_wait, json=json)


def _tell(plan: _Plan, node: int, new: int, *, no_wait: bool, json: bool) -> None:
    count = len(plan.copies) + len(plan.under_way)
    copies = say.counted(count, "partition")
    done = f"{copies} and the metadata group" if plan.votes else copies
    said = []
    if no_wait and (count or plan.votes):
        said.append(f"ordered for {done}; `quorate cluster status` shows how far")
    elif count or plan.votes:
        said.append(f"node {new} counts in {done}" + (f" in place of node {node}" if new != node else ""))
    elif not plan.never:
        so = f"node {node} counts everywhere" if new == node else f"node {node} has no copy and no vote"
        said.append(f"nothing is left to do: {so}")
    where = [f"{topic.name}/{number}" for topic, number in (*(c[:2] for c in plan.copies), *plan.under_way)]
    is_so = not no_wait or not (count or plan.votes)
    made = {"node": node, "with": new, "is_so": is_so, "partitions": where, "metadata": plan.votes}
    say.result(said, {**made, "never": plan.never}, json=json)
    if plan.never:
        more = f" And so it is with {len(plan.never) - 1} more." if len(plan.never) > 1 else ""
        raise WrongUsage(plan.never[0] + more)


def _has_taken_over(image: Image, voters: dict[int, int], node: int, new: int) -> bool:
    """The vote is where it was wanted, and there is no copy to move."""
    from quorate.cli.topic_copies import copies_of

    lives = {info.node: info.incarnation for info in image.nodes}
    votes = new in voters and voters[new] == lives.get(new) and (new == node or node not in voters)
    is_lost = any(lost == node for _, _, lost in image.lost)
    has_copies = any(
        node in copies_of(topic, number).nodes
        for topic in image.topics
        for number in range(len(topic.ensembles))
    )
    return votes and not (is_lost if new == node else has_copies)


async def _planned(orders: Orders, image: Image, voters: dict[int, int], node: int, new: int) -> _Plan:
    """Raises WrongUsage where there is nothing to replace."""
    from quorate.cli.orders import expect_known, listed
    from quorate.cli.topic_copies import STILL_THERE, copies_of, is_under_way, swapped

    expect_known([new], image.nodes)
    partitions = [(topic, number) for topic in image.topics for number in range(len(topic.ensembles))]
    under_way = [each for each in partitions if is_under_way(image, *each, old=node, new=new)]
    copies = [
        (topic, number, swapped(copies_of(topic, number), node, new))
        for topic, number in partitions
        if node in copies_of(topic, number).nodes
    ]
    votes = node in voters
    if not votes and not copies and not under_way:
        if new != node and any(info.node == node for info in image.nodes):
            return NOTHING_TO_DO
        raise WrongUsage(f"node {node} has no copy of anything, and no vote in the metadata group")
    if votes and new != node and new in voters:
        raise WrongUsage(
            f"the metadata group: node {new} votes already, as do {listed(sorted(voters))}; take the vote away "
            f"with `quorate cluster remove {node}`, and move copies with `quorate topic replace`"
        )
    if new == node:
        (life,) = [info.incarnation for info in image.nodes if info.node == node]
        votes = votes and voters[node] != life
        copies = [each for each in copies if (each[0].name, each[1], node) in image.lost]
        if not votes and not copies and not under_way:
            if node not in await orders.statuses():
                raise WrongUsage(STILL_THERE.format(node=node))
            return NOTHING_TO_DO
    return await _without_hopeless(orders, image, _Plan(votes, copies, under_way, []))


async def _without_hopeless(orders: Orders, image: Image, plan: _Plan) -> _Plan:
    """Partitions that have lost their majority do not hold up the others."""
    from quorate.cli.how_far import why_never_led

    if not image.lost_now:
        return plan
    statuses = await orders.statuses()
    never = {
        (topic.name, number): why
        for topic, number in [*(each[:2] for each in plan.copies), *plan.under_way]
        if (why := why_never_led(image, topic, number, statuses))
    }
    copies = [each for each in plan.copies if (each[0].name, each[1]) not in never]
    under_way = [each for each in plan.under_way if (each[0].name, each[1]) not in never]
    return _Plan(plan.votes, copies, under_way, list(never.values()))
