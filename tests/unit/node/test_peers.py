"""Links between nodes: kept up, greeted, and never a place where memory is lost to a slow peer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
import uvloop

from quorate.bench.cluster_processes import free_ports
from quorate.core.entry import NOWHERE, Member, Partition, Snapshot
from quorate.core.raft.messages import SnapshotChunk, VoteResponse
from quorate.host import Parcel, Ping
from quorate.node.codec import Hello, Refused, Welcome, decode_greeting, decode_parcel, encode_greeting
from quorate.node.config import Address
from quorate.node.letters import LETTER_BYTES_MAX, Letters
from quorate.node.peers import OUTBOUND_BYTES_MAX, Peers
from quorate.node.porch import Porch
from quorate.storage.disk import Buffer

DEADLINE_S = 20.0
PARTITION = Partition(bytes(20))
ME = Member(1, 1)
CHUNK_BYTES = 1 << 20
WELCOME = Welcome(2)


class Listener(Letters):
    """The other node's side of a link."""

    made: list[Listener]

    def __init__(self, made: list[Listener], welcome: Welcome | Refused) -> None:
        super().__init__()
        made.append(self)
        self.hello: Hello | None = None
        self.parcels: list[Parcel] = []
        self._welcome = welcome

    def letter_received(self, letter: Buffer) -> None:
        if self.hello is not None:
            self.parcels.append(decode_parcel(letter))
            return
        greeting = decode_greeting(letter)
        assert isinstance(greeting, Hello)
        self.hello = greeting
        self.letter_bytes_max = LETTER_BYTES_MAX
        answer = encode_greeting(self._welcome)
        self.put((answer,), len(answer))
        self.flush()

    def pause(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def with_peer(
    test: Callable[[Peers, list[Listener], list[str]], Awaitable[None]],
    welcome: Welcome | Refused = WELCOME,
) -> None:
    """Run a test between `Peers` of node 1 and a listener that is node 2."""

    async def main() -> None:
        made: list[Listener] = []
        said: list[str] = []
        loop = asyncio.get_running_loop()
        listener = partial(Listener, made, welcome)
        server = await loop.create_server(
            partial(Porch, set(), letters=listener, guests=None), "127.0.0.1", 0
        )
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        peers = Peers("c", 1, {2: address}, rng=Random(1), log=lambda text, **_: said.append(text))
        running = asyncio.create_task(peers.run())
        try:
            await test(peers, made, said)
        finally:
            running.cancel()
            await asyncio.wait([running])
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def ping(boot: int) -> Parcel:
    return Parcel(None, Member(1, 0), Ping(boot))


def chunk() -> Parcel:
    message = SnapshotChunk(1, Snapshot(NOWHERE, 0, CHUNK_BYTES), 0, CHUNK_BYTES)
    return Parcel(PARTITION, ME, message, chunk=bytes(CHUNK_BYTES))


def test_parcels_of_one_turn_arrive_in_order() -> None:
    async def test(peers: Peers, made: list[Listener], _: list[str]) -> None:
        await until(lambda: peers.connected == (2,))
        assert made[0].hello == Hello("c", 1, 2)
        for boot in range(3):
            peers.send(2, ping(boot))
        assert made[0].parcels == []
        peers.flush()
        await until(lambda: len(made[0].parcels) == 3)
        assert [parcel.message.boot for parcel in made[0].parcels] == [0, 1, 2]

    with_peer(test)


def test_a_broken_link_is_made_again() -> None:
    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        await until(lambda: peers.connected == (2,))
        made[0].abort()
        await until(lambda: len(made) == 2 and peers.connected == (2,))
        peers.send(2, ping(7))
        peers.flush()
        await until(lambda: len(made[1].parcels) == 1)
        assert sum("trying again" in line for line in said) == 1

    with_peer(test)


def test_what_is_sent_without_a_link_is_lost_and_counted() -> None:
    async def test(peers: Peers, _: list[Listener], __: list[str]) -> None:
        peers.send(2, ping(1))
        peers.send(9, ping(1))
        assert peers.dropped_count == 2

    with_peer(test)


def test_a_refused_greeting_is_said_once_and_tried_again() -> None:
    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        await until(lambda: len(made) >= 3)
        assert peers.connected == ()
        assert len(said) == 1
        assert "no such cluster here" in said[0]

    with_peer(test, Refused("no such cluster here"))


def test_a_greeting_that_is_refused_for_good_is_not_tried_again() -> None:
    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        heard: list[str] = []

        def refused(peer: int, why: str) -> bool:
            heard.append(f"node {peer}: {why}")
            return True

        peers.introduce(incarnation=1, disk=7, refused=refused, nobody_there=lambda node: None)
        await until(lambda: len(heard) == 1)
        peers.heard_of(2)
        peers.know(9, Address("127.0.0.1", peers._addresses[2].port))
        await until(lambda: len(heard) == 2)  # A later attempt of node 2's link would have come before.
        assert [each.hello.to for each in made if each.hello is not None] == [2, 9]
        assert said == []

    with_peer(test, Refused("replaced"))


def test_a_peer_that_is_heard_of_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a node that is back would stand for election before its leaders reach it."""
    monkeypatch.setattr("quorate.node.peers.RECONNECT_FIRST_S", 10 * DEADLINE_S)
    monkeypatch.setattr("quorate.node.peers.RECONNECT_MAX_S", 10 * DEADLINE_S)

    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        await until(lambda: len(said) == 1)
        peers.heard_of(9)
        peers.heard_of(2)
        await until(lambda: len(made) == 2)

    with_peer(test, Refused("not yet"))


def test_another_node_at_the_address_is_not_taken_for_the_peer() -> None:
    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        await until(lambda: len(made) >= 2)
        assert peers.connected == ()
        assert "somebody else" in said[0]

    with_peer(test, Welcome(3))


def test_a_peer_that_does_not_read_costs_a_bounded_queue() -> None:
    async def test(peers: Peers, made: list[Listener], _: list[str]) -> None:
        await until(lambda: peers.connected == (2,))
        made[0].pause()
        parcel = chunk()
        for _number in range(2 * OUTBOUND_BYTES_MAX // CHUNK_BYTES):
            peers.send(2, parcel)
            peers.flush()
        link = peers._links[2]
        assert OUTBOUND_BYTES_MAX - 2 * CHUNK_BYTES < link.unsent_bytes <= OUTBOUND_BYTES_MAX
        assert peers.dropped_count > 0
        # Votes and answers still go: they have a reserve, which is bounded too.
        dropped_count = peers.dropped_count
        peers.send(2, Parcel(PARTITION, ME, VoteResponse(1, True)))
        assert peers.dropped_count == dropped_count
        peers.send(2, parcel)
        assert peers.dropped_count == dropped_count + 1
        peers.flush()
        made[0].resume()
        await until(lambda: link.unsent_bytes == 0)
        await until(lambda: len(made[0].parcels) == peers.sent_count)
        assert made[0].parcels[-1].message == VoteResponse(1, True)

    with_peer(test)


def test_a_peer_that_is_learned_of_gets_a_link() -> None:
    async def test(peers: Peers, made: list[Listener], _: list[str]) -> None:
        await until(lambda: peers.connected == (2,))
        peers.know(9, Address("127.0.0.1", peers._addresses[2].port))
        assert peers.known == (2, 9)
        await until(lambda: any(each.hello is not None and each.hello.to == 9 for each in made))

    with_peer(test)


def test_a_peer_that_has_moved_is_found_at_its_new_place() -> None:
    async def test(peers: Peers, made: list[Listener], _: list[str]) -> None:
        right = peers._addresses[2]
        await until(lambda: peers.connected == (2,))
        peers.know(2, Address("127.0.0.1", 1))
        made[0].abort()
        await until(lambda: peers.connected == ())
        peers.know(2, right)
        await until(lambda: peers.connected == (2,))

    with_peer(test)


def test_a_forgotten_peer_is_not_tried_any_more_until_it_is_known_again() -> None:
    async def test(peers: Peers, made: list[Listener], said: list[str]) -> None:
        await until(lambda: peers.connected == (2,))
        (address,) = peers._addresses.values()
        peers.forget(2)
        peers.forget(3)
        await until(lambda: not made[0].is_open)
        assert peers.known == peers.connected == ()
        said.clear()
        peers.send(2, ping(1))

        def attempts_count(to: int) -> int:
            return sum(each.hello is not None and each.hello.to == to for each in made)

        peers.know(9, address)  # It is not there, either: what answers is node 2.
        await until(lambda: attempts_count(9) >= 3)  # The pauses before were longer than node 2's first.
        assert attempts_count(2) == 1
        assert not any(line.startswith("peer 2 ") for line in said)
        peers.know(2, address)
        await until(lambda: peers.connected == (2,))

    with_peer(test)


def test_where_nobody_listens_a_node_has_ended_until_it_is_heard_of() -> None:
    async def test(peers: Peers, made: list[Listener], _: list[str]) -> None:
        ended: list[int] = []
        peers.introduce(
            incarnation=1,
            disk=7,
            refused=lambda node, why: False,
            nobody_there=lambda node: ended.append(node),
        )
        await until(lambda: peers.connected == (2,))
        (port,) = free_ports(1)
        peers.know(9, Address("127.0.0.1", port))
        await until(lambda: ended[:2] == [9, 9])
        assert peers.ended == {9}
        peers.heard_of(9)
        assert peers.ended == set()

    with_peer(test)
