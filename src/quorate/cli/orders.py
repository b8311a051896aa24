"""What `quorate topic` and `quorate cluster` order of a running cluster, over the nodes' own protocol.

Every look is at a current image: the node that is asked first learns what the metadata group has settled. So
whatever one command has reported, the next one knows, whichever nodes they ask. An order says what was seen,
and is refused where somebody else has changed that since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from quorate.cli import say
from quorate.cli.wrong import NotYet, WrongUsage, no_such
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA, Command, NodeInfo, Topic, command_batch
from quorate.node.client import (
    BadRequest,
    Client,
    Connection,
    NotDone,
    NotInTime,
    NotWritten,
    OutcomeUnknown,
    Unreachable,
)
from quorate.node.config import Address
from quorate.node.metadata import TooNew, expect_level
from quorate.node.requests import Image, ReplicaStatus, Status

if TYPE_CHECKING:
    import ssl

    from quorate.client import Cluster

TIMEOUT_S = 20.0
STATUS_TIMEOUT_S = 2.0
SOON_S = 0.5
"""A node that is well answers by then; others are asked before one is waited for."""
NODE_DIGITS_MAX = 18
LOOK_EVERY_S = 0.25

NOBODY_LEADS = "nobody leads the metadata group; is a majority of its voters up?"
MAY_BE_OLD = f"{NOBODY_LEADS} What is shown may be old"
MAY_STAND = "the order may be given already; it goes on by itself then"
STANDS = "what was ordered stands, and goes on by itself"

Result = TypeVar("Result")


class Orders:
    """A running cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._seen: Image | None = None
        """As of the last look: what was changed since is not changed by what was seen."""
        self._voters_version = 0
        """Of the metadata group's membership, likewise."""
        self.voters_change = False
        """Whether a change of it was open."""
        self.standing = ""
        """What is to be said of orders that were given, if a person interrupts."""
        self.stands = STANDS
        """That, once they are known to be given."""
        self._advice = ""
        """Behind that: which commands go on with them, or call them off."""

    @property
    def seen(self) -> Image:
        assert self._seen is not None, "orders follow a look"
        return self._seen

    def advise(self, *, again: str, off: str = "") -> None:
        """Tell whoever interrupts what goes on with what is ordered from now on, and what calls it off."""
        self._advice = advice(again=again, off=off)
        self.stands = STANDS + self._advice

    async def image(self, topics: Sequence[str] | None = None, *, even_old: bool = False) -> Image:
        """What the cluster is. Whatever a command has reported before this one began is in there.

        Unless `even_old`: where no majority of the metadata group answers, this is what one node knows.
        """
        deadline = monotonic() + TIMEOUT_S
        while True:
            image = await self._ask(None if topics is None else tuple(topics))
            if image.is_current or even_old:
                break
            if monotonic() >= deadline:
                raise WrongUsage(NOBODY_LEADS)
            await asyncio.sleep(LOOK_EVERY_S)
        for info in image.nodes:
            self.client.know(info.node, Address(*info.for_nodes))
        self._seen = image
        return image

    async def _ask(self, topics: tuple[str, ...] | None) -> Image:
        """Of the first node that is sure of it; else of the one that knows most.

        One node after the other is asked, without giving up those that do not answer soon.
        """

        async def of(node: int, after_s: float) -> Image | str:
            await asyncio.sleep(after_s)
            try:
                return await self.client.image(node, topics, current=True)
            except (Unreachable, BadRequest) as error:
                return str(error)

        first = self._seen.node if self._seen is not None else 0
        nodes = sorted(self.client.nodes, key=lambda node: node != first)
        asked = [asyncio.create_task(of(node, SOON_S * number)) for number, node in enumerate(nodes)]
        old: Image | None = None
        why = "nobody answers"
        try:
            for answered in asyncio.as_completed(asked):
                image = await answered
                if isinstance(image, str):
                    why = image
                elif image.is_current:
                    return image
                elif old is None or image.version > old.version:
                    old = image
        finally:
            for task in asked:
                task.cancel()
        if old is None:
            raise WrongUsage(f"the cluster does not answer: {why}; is it up?")
        return old

    async def voters(self) -> dict[int, int]:
        """Who votes in the metadata group, or shall, where a change is open; with their incarnations.

        Where the image that was seen may be old, the leader knows. Nothing can be settled while nodes that are
        about to vote are gone, but for an order that takes that back.
        """
        membership = self.seen.metadata
        if not self.seen.is_current:
            leader = leader_status(await self.statuses(), METADATA)
            if leader is None:
                raise WrongUsage(NOBODY_LEADS)
            membership = leader.membership
        self._voters_version = membership.version
        self.voters_change = membership.wanted is not None or membership.is_joint
        return {member.node: member.incarnation for member in (membership.wanted or membership).ensemble}

    async def topic(self, name: str, *, even_old: bool = False) -> Topic:
        image = await self.image((name,), even_old=even_old)
        if not image.topics:
            known = await self.image(even_old=even_old)
            raise no_such("topic", name, [topic.name for topic in known.topics])
        return image.topics[0]

    async def statuses(self, timeout_s: float = STATUS_TIMEOUT_S) -> dict[int, Status]:
        """Of all nodes that answer soon."""

        async def of(node: int) -> Status | None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.client.status(node)
            except (Unreachable, TimeoutError):
                return None

        nodes = self.client.nodes
        found = await asyncio.gather(*map(of, nodes))
        return {node: status for node, status in zip(nodes, found, strict=True) if status is not None}

    async def change_topic(self, topic: Topic, number: int, nodes: Sequence[int]) -> None:
        partition = partition_of(topic.id, number)
        self.client.expect_leader(partition, self.seen.node)  # Any node takes it, and that one answers.
        change = self.client.change(partition, nodes, seen=self.seen.version, timeout_s=TIMEOUT_S)
        self._may_stand()
        await self._give(f"{topic.name}/{number}", change)
        self.standing = self.stands

    async def change_voters(self, nodes: Sequence[int], timeout_s: float) -> None:
        """In place of those of the last look, until it is so; raises NotYet after that time."""
        self._may_stand()
        try:
            await self.client.change(METADATA, nodes, seen=self._voters_version, timeout_s=timeout_s)
        except OutcomeUnknown:
            raise not_yet(timeout_s) from None
        except (NotDone, BadRequest) as refused:
            raise WrongUsage(f"the metadata group: {refused}") from refused
        self.standing = self.stands

    async def forget(self, node: int) -> None:
        self.standing = MAY_STAND + self._advice
        forget = self.client.forget_node(node, seen=self.seen.version, timeout_s=TIMEOUT_S)
        await self._give(f"node {node}", forget)

    async def transfer(self, partition: Partition, what: str, to: int) -> int:
        """Let that node lead, or, with 0, anybody else; who does."""
        say.progress_line(f"{what}: {f'node {to}' if to else 'another node'} is to lead")
        self.standing = MAY_STAND + self._advice
        return await self._give(what, self.client.transfer(partition, to, timeout_s=TIMEOUT_S))

    async def settle(self, what: str, command: Command) -> None:
        """A command of the metadata group, as it is; given twice, it does no more than once."""
        try:
            expect_level(self.seen.cluster.level, [command])
        except TooNew as too_new:
            raise WrongUsage(f"{what}: {too_new}") from too_new
        self.standing = MAY_STAND + self._advice
        batch = command_batch(command)
        deadline = monotonic() + TIMEOUT_S
        while True:
            try:
                await self.client.propose(METADATA, [batch], timeout_s=max(deadline - monotonic(), SOON_S))
                return
            except NotWritten as refused:
                raise WrongUsage(f"{what}: {refused}; {NOBODY_LEADS}") from refused
            except OutcomeUnknown as unknown:
                if monotonic() >= deadline:
                    raise NotYet(f"{what}: {unknown}; it may be so: look, and order again") from unknown

    def _may_stand(self) -> None:
        self.standing = self.standing or MAY_STAND + self._advice

    async def _give(self, what: str, order: Awaitable[Result]) -> Result:
        try:
            return await order
        except NotInTime as late:
            raise NotYet(f"{what}: {late}; it may yet: look again") from late
        except (NotDone, BadRequest) as refused:
            raise WrongUsage(f"{what}: {refused}") from refused
        except OutcomeUnknown as unknown:
            raise NotYet(
                f"{what}: nobody who leads answers ({unknown}); is a majority up? It may yet be done: look again"
            ) from unknown


def carry_out(servers: str, work: Callable[[Orders], Awaitable[Result]]) -> Result:
    """Do something with the cluster that lives there; what the world refuses is told in one line."""
    from quorate.cli.access import access

    given = access()
    found = _found_by_clients(servers) if given.nodes is None else ("", {})

    async def main() -> Result:
        if given.nodes is not None:
            made = await given.nodes.client()
        else:
            made = Client(*found, tls=given.letters_tls())
            await _meet(made, servers, given.letters_tls())
        async with made as client:
            orders = Orders(client)
            try:
                return await work(orders)
            except asyncio.CancelledError:  # Ctrl-C.
                if orders.standing:
                    say.progress_line(orders.standing)
                raise

    return asyncio.run(main())


def _found_by_clients(servers: str) -> tuple[str, dict[int, Address]]:
    """The cluster's id, and where its nodes are, as any Kafka client finds them."""
    from quorate.client.admin import find_nodes

    with reached(servers) as cluster:
        name, addresses = find_nodes(cluster)
    return name, {node: Address(*address) for node, address in addresses.items()}


async def _meet(client: Client, servers: str, tls: ssl.SSLContext | None) -> None:
    """A node that hears none of the others, or whose disk is full, sends clients away from itself: it is asked all
    the same, where it was named."""
    from quorate.client.cluster import parse_bootstrap

    known = set(client.addresses.values())

    async def met(address: Address) -> None:
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                connection = await Connection.open(client.cluster, 0, address, tls=tls)
        except (Unreachable, TimeoutError):
            return  # What it lets nobody do here, others may.
        connection.close("it has said who it is")
        node = (await connection.welcome).node
        if node not in client.nodes:
            client.know(node, address)

    named = [Address(*each) for each in parse_bootstrap(servers)]
    await asyncio.gather(*(met(address) for address in named if address not in known))


@contextmanager
def reached(servers: str) -> Iterator[Cluster]:
    """The cluster as a Kafka client has it."""
    from quorate.cli.access import access
    from quorate.client import ClientError, Cluster, NobodyThere

    security = access().security
    try:
        with Cluster(servers, client_id="quorate-cli", timeout_s=TIMEOUT_S, security=security) as cluster:
            yield cluster
    except ValueError as wrong:
        raise WrongUsage(f"--bootstrap: {wrong}") from wrong
    except NobodyThere as nobody:
        raise WrongUsage(
            f"{nobody}; is the cluster up? Name its nodes with --bootstrap HOST:PORT,…"
        ) from nobody
    except ClientError as error:
        raise WrongUsage(str(error)) from error


# ---- words ----


def advice(*, again: str, off: str = "") -> str:
    """Behind what is said to whoever interrupts."""
    return f"; `{again}` goes on with it" + (f", `{off}` calls it off" if off else "")


def expect_known(nodes: Sequence[int], known: Sequence[NodeInfo]) -> None:
    there = [info.node for info in known]
    for node in nodes:
        if node not in there:
            raise WrongUsage(f"there is no node {node}; there are: {listed(there)}")


async def is_forgotten(orders: Orders, node: int, known: Sequence[NodeInfo]) -> bool:
    """Whether a node was forgotten before; raises WrongUsage where nobody ever knew it.

    An image has only the nodes that there are. Who leads knows the others, and says yes to that order once more.
    """
    if any(info.node == node for info in known):
        return False
    try:
        await orders.forget(node)
    except WrongUsage:
        expect_known([node], known)
    return True


def not_yet(timeout_s: float, held_up: str = "") -> NotYet:
    """`held_up`: what it waits for that does not come by itself."""
    return NotYet(
        f"not yet so after {timeout_s:g} s; {held_up or 'it goes on by itself'}, or order something else"
    )


def leader_status(statuses: dict[int, Status], partition: Partition) -> ReplicaStatus | None:
    """The leader's own view, of the newest epoch."""
    found = [
        replica
        for status in statuses.values()
        for replica in status.replicas
        if replica.partition == partition and replica.role == "leader"
    ]
    return max(found, key=lambda replica: replica.epoch, default=None)


def listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def parse_nodes(text: str, option: str) -> list[int]:
    """`4` or `4,5`."""
    parts = [part.strip() for part in text.split(",")]
    digits = [part for part in parts if part.isascii() and part.isdecimal() and len(part) <= NODE_DIGITS_MAX]
    if digits != parts or not all(map(int, parts)):
        raise WrongUsage(f"{option} {text!r}: write a node's number, with commas between several")
    return [int(part) for part in parts]
