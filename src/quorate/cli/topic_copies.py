"""`quorate topic transfer|add|remove|replace`: who copies the partitions of a topic, and who leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, WAIT_S, Json, NoWait, Servers, Throttle, Timeout
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import Topic
    from quorate.node.requests import Image

Target = Annotated[
    str, typer.Argument(metavar="NAME[/PARTITION]", help="The topic, or one of its partitions.")
]
Nodes = Annotated[str, typer.Option("--node", metavar="N[,M]", help="Which nodes.")]


class Copies(NamedTuple):
    """The nodes that copy a partition; or that shall, where a change is open."""

    name: str
    nodes: list[int]
    is_open: bool

    @property
    def where(self) -> str:
        """They, in words."""
        nodes = ", ".join(map(str, self.nodes))
        return f"it is to be on nodes {nodes}" if self.is_open else f"it is on nodes {nodes}"

    def has_already(self, node: int) -> WrongUsage:
        has = "is to have a copy" if self.is_open else "has a copy"
        return WrongUsage(f"{self.name}: node {node} {has} already; {self.where}")

    def has_none(self, node: int) -> WrongUsage:
        has = "is to have no copy" if self.is_open else "has no copy"
        return WrongUsage(f"{self.name}: node {node} {has}; {self.where}")


Leaders = dict[str, Any]
NewNodes = Callable[[Copies], list[int]]
"""From the nodes that copy a partition to those that shall."""

WAITING = """
A new copy follows first, and counts when it has caught up; writing goes on meanwhile.

The order stands in the metadata group: whatever happens to this command, it is carried out. A newer one takes
its place. Repeated, it waits for what was ordered, or says that it is so.

\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""

TRANSFER_EPILOG = """\b
[bold]Examples[/bold]
quorate topic transfer events/0 --to 2
quorate topic transfer events --to 2      every partition
quorate topic transfer orders             anybody else; in topics of coordinated nobody can be named

\b
[bold]Exit code[/bold]
0 that node leads, 1 it has not taken over yet, and may, 2 it cannot be done.
"""
ADD_EPILOG = f"""\b
[bold]Examples[/bold]
quorate topic add events --node 4
quorate topic add events/0 --node 4,5
{WAITING}"""
REMOVE_EPILOG = f"""\b
[bold]Examples[/bold]
quorate topic remove events --node 4      also gives up adding it
{WAITING}"""
REPLACE_EPILOG = f"""\b
[bold]Examples[/bold]
quorate topic replace events --node 3 --with 4
quorate topic replace events --node 3     the same node, after its disk was lost
{WAITING}"""
CHOSEN = "an operator chooses who leads {name}, by what is in its copies' logs; {instead}"
PARTITION_DIGITS_MAX = 9
FEW = {
    2: "with 2 copies, nothing can be written while either of their nodes is away",
    1: "with 1 copy, a lost disk loses everything, and nothing can be written or read while its node is away",
}
"""What so many copies mean, for whoever removes others."""


def register(topic_app: typer.Typer) -> None:
    topic_app.command("transfer", epilog=TRANSFER_EPILOG)(transfer)
    topic_app.command("add", epilog=ADD_EPILOG)(add)
    topic_app.command("remove", epilog=REMOVE_EPILOG)(remove)
    topic_app.command("replace", epilog=REPLACE_EPILOG)(replace)


def transfer(
    target: Target,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="NODE", min=1, help="Who shall lead.", show_default="anybody else"),
    ] = None,
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Let another node lead. Nothing that was acknowledged is lost; writers wait for a moment.

    What NATS publishes at that moment can be lost.
    """
    from quorate.cli.how_far import expect_majorities
    from quorate.cli.orders import carry_out, leader_status
    from quorate.core.entry import partition_of

    async def work(orders: Orders) -> Leaders:
        topic, numbers = await found(orders, target)
        if orders.seen.lost_now:
            expect_majorities(orders.seen, [(topic, number) for number in numbers], await orders.statuses())
        for number in numbers:
            nodes = [member.node for member in topic.ensembles[number]]
            if to is not None and to not in nodes:
                raise Copies(f"{topic.name}/{number}", nodes, is_open=False).has_none(to)
            if to is not None and topic.is_operated(number):
                raise WrongUsage(CHOSEN.format(name=topic.name, instead="leave --to out to let another lead"))
        orders.advise(again=f"quorate topic transfer {target}" + (f" --to {to}" if to is not None else ""))
        statuses = await orders.statuses()
        leaders = []
        for number in numbers:
            name, partition = f"{topic.name}/{number}", partition_of(topic.id, number)
            before = leader_status(statuses, partition)
            leader = await orders.transfer(partition, name, to or 0)
            already = before is not None and before.me.node == leader
            leaders.append({"partition": number, "leader": leader, "already": already})
            if not json:
                print(f"{name} is led by node {leader}{' already' * already}")
        return {"topic": topic.name, "partitions": leaders}

    leaders = carry_out(servers, work)
    if json:
        say.print_json(leaders)


def add(
    target: Target,
    node: Nodes,
    throttle: Throttle = None,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Let more nodes copy a topic."""
    from quorate.cli.orders import parse_nodes

    named = parse_nodes(node, "--node")
    _change(
        target,
        lambda copies: added(copies, named),
        servers,
        again=f"add {target} --node {node}",
        named=named,
        rate=throttle,
        no_wait=no_wait,
        timeout_s=timeout,
        json=json,
    )


def remove(
    target: Target,
    node: Nodes,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Let fewer nodes copy a topic."""
    from quorate.cli.orders import parse_nodes

    named = parse_nodes(node, "--node")
    _change(
        target,
        lambda copies: removed(copies, named),
        servers,
        again=f"remove {target} --node {node}",
        named=named,
        no_wait=no_wait,
        timeout_s=timeout,
        json=json,
    )


def added(copies: Copies, more: list[int]) -> list[int]:
    return copies.nodes + [each for each in more if each not in copies.nodes]


def removed(copies: Copies, fewer: list[int]) -> list[int]:
    left = [each for each in copies.nodes if each not in fewer]
    if not left:
        raise WrongUsage(
            f"{copies.name}: the last copy cannot be removed; `quorate topic delete` removes all"
        )
    return left


def replace(
    target: Target,
    node: Annotated[int, typer.Option("--node", metavar="OLD", min=1, help="Whose copy goes.")],
    with_: Annotated[
        int | None,
        typer.Option("--with", metavar="NEW", min=1, help="Who gets one.", show_default="the same node"),
    ] = None,
    throttle: Throttle = None,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Let another node copy a topic in place of one, or the same one whose disk was lost."""
    new = with_ or node

    def replaced(copies: Copies) -> list[int]:
        return swapped(copies, node, new)

    lost = node if new == node else 0
    again = f"replace {target} --node {node}" + (f" --with {with_}" if with_ is not None else "")
    _change(
        target,
        replaced,
        servers,
        again=again,
        rate=throttle,
        no_wait=no_wait,
        timeout_s=timeout,
        json=json,
        leaving=node,
        lost=lost,
    )


def swapped(copies: Copies, old: int, new: int) -> list[int]:
    if old not in copies.nodes and new != old and new in copies.nodes:
        return copies.nodes  # As it was ordered before.
    if old not in copies.nodes:
        raise copies.has_none(old)
    if new != old and new in copies.nodes:
        raise copies.has_already(new)
    return [new if each == old else each for each in copies.nodes]


LOST = "{name}/{number}: the disk of that copy is lost; make it anew: `quorate topic replace {name} --node {node}`"
STILL_THERE = (
    "node {node} has the disk that it had, and does not answer; name another node with --with, or, if the disk is "
    "lost, make its directory anew with --replaces and start it"
)


def _change(
    target: str,
    new_nodes: NewNodes,
    servers: str,
    *,
    again: str,
    named: Sequence[int] = (),
    rate: str | None = None,
    no_wait: bool,
    timeout_s: float,
    json: bool,
    leaving: int = 0,
    lost: int = 0,
) -> None:
    """`again`: what goes on with it, after `quorate topic`; `leaving`: whose copy goes, though the node be
    forgotten; `lost`: only where that node's copy was on a disk that is gone."""
    from quorate.cli import moving
    from quorate.cli.how_far import expect_majorities, until_reached
    from quorate.cli.orders import carry_out, expect_known, is_forgotten, listed

    async def work(orders: Orders) -> None:
        topic, numbers = await found(orders, target)
        image = orders.seen
        expect_known(named, image.nodes)
        if leaving:
            await is_forgotten(orders, leaving, image.nodes)
        if lost:
            new_nodes(copies_of(topic, numbers[0]))
            of = numbers
            numbers = [
                number
                for number in of
                if (topic.name, number, lost) in image.lost
                or is_under_way(image, topic, number, old=lost, new=lost)
            ]
            if not numbers and lost not in await orders.statuses():
                raise WrongUsage(STILL_THERE.format(node=lost))
            numbers = numbers or [number for number in of if lost in copies_of(topic, number).nodes]
        wanted = {number: new_nodes(copies_of(topic, number)) for number in numbers}
        for number, each in ((number, each) for number in numbers for each in named):
            if each in wanted[number] and (topic.name, number, each) in image.lost:
                raise WrongUsage(LOST.format(name=topic.name, number=number, node=each))
        to_order = {
            number: nodes
            for number, nodes in wanted.items()
            if nodes != copies_of(topic, number).nodes or (topic.name, number, lost) in image.lost
        }
        if image.lost_now:
            expect_majorities(image, [(topic, number) for number in numbers], await orders.statuses())
        # A copy on a disk that is lost is nothing to go back to.
        orders.advise(again=f"quorate topic {again}", off="" if lost else f"quorate topic cancel {target}")
        await moving.throttle(orders, rate)
        for number, nodes in to_order.items():
            await orders.change_topic(topic, number, nodes)
        _tell_few(topic, to_order)
        is_so = not to_order and not topic.changes.keys() & set(numbers)
        is_awaited = not is_so and not no_wait
        if is_awaited:
            await until_reached(orders, [(topic.name, number) for number in numbers], timeout_s)
        if not is_so:
            topic = await orders.topic(topic.name)
        now = {number: copies_of(topic, number) for number in numbers}
        said = [
            f"{copies.name} is on nodes {listed(copies.nodes)}{' already' * is_so}" for copies in now.values()
        ]
        if not is_so and no_wait:
            said = [
                f"{target} is ordered to be on other nodes; `quorate topic describe {topic.name}` shows how far"
            ]
        where = [{"partition": number, "nodes": copies.nodes} for number, copies in now.items()]
        reached = {"topic": topic.name, "is_so": is_so or is_awaited, "partitions": where}
        say.result(said, reached, json=json)

    carry_out(servers, work)


def _tell_few(topic: Topic, wanted: dict[int, list[int]]) -> None:
    """What it means where fewer copies are ordered than there are, and few are left."""
    fewer = [
        len(nodes) for number, nodes in wanted.items() if len(nodes) < len(copies_of(topic, number).nodes)
    ]
    if (count := min(fewer, default=0)) in FEW:
        say.progress_line(f"{topic.name}: {FEW[count]}")


def is_under_way(image: Image, topic: Topic, number: int, *, old: int, new: int) -> bool:
    """Whether it was ordered that one takes the other's place, and is not so yet."""
    if number not in topic.changes:
        return False
    counting, wanted = ([m.node for m in each] for each in (topic.ensembles[number], topic.wanted(number)))
    if new == old:
        where = topic.name, number, old
        return where in image.lost_now and where not in image.lost
    return old in counting and old not in wanted and new in wanted and new not in counting


def copies_of(topic: Topic, number: int) -> Copies:
    nodes = [member.node for member in topic.wanted(number)]
    return Copies(f"{topic.name}/{number}", nodes, number in topic.changes)


async def found(orders: Orders, target: str, *, even_old: bool = False) -> tuple[Topic, list[int]]:
    name, slash, text = target.partition("/")
    if slash and not (text.isascii() and text.isdecimal()):
        raise WrongUsage(f"{target!r}: write NAME, or NAME/PARTITION with a partition's number")
    topic = await orders.topic(name, even_old=even_old)
    count = len(topic.ensembles)
    if slash and (len(text) > PARTITION_DIGITS_MAX or int(text) >= count):
        raise WrongUsage(f"topic {name!r} has no partition {text}; it has {count}, counted from 0")
    return topic, [int(text)] if slash else list(range(count))
