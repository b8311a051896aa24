"""The client against nodes that answer by a script: what is tried again, and what is never."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from quorate.batch import encode_records
from quorate.core.effects import Outcome
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.node.client import BadRequest, Client, NotDone, NotWritten, OutcomeUnknown, Settled
from quorate.node.codec import Hello, Welcome, decode_greeting, encode_greeting
from quorate.node.config import Address
from quorate.node.letters import LETTER_BYTES_MAX, Letters
from quorate.node.porch import Porch
from quorate.node.requests import Answer, Answered, Read, Rejected, decode_request, encode_answer
from quorate.storage.disk import Buffer

PARTITION = Partition(bytes(20))
BATCH = encode_records([(None, b"value")])
SETTLED = Answered(Outcome.SETTLED, 7, 3, 0)

Script = list[Answer | str]
"""Answers in turn; "hang up" closes the connection, "silence" answers nothing."""


class ScriptedNode(Letters):
    def __init__(self, node: int, script: Script) -> None:
        super().__init__()
        self._node = node
        self._script = script
        self._greeted = False

    def letter_received(self, letter: Buffer) -> None:
        if not self._greeted:
            assert isinstance(decode_greeting(letter), Hello)
            self._greeted = True
            self.letter_bytes_max = LETTER_BYTES_MAX
            self._say(encode_greeting(Welcome(self._node)))
            return
        number, _, _ = decode_request(letter)
        answer = self._script.pop(0)
        if answer == "hang up":
            self.abort()
        elif not isinstance(answer, str):
            self._say(encode_answer(number, answer))

    def _say(self, letter: bytes) -> None:
        self.put((letter,), len(letter))
        self.flush()


def with_nodes(scripts: dict[int, Script], test: Callable[[Client], Awaitable[None]]) -> None:
    """Every script must have been played to its end."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        addresses: dict[int, Address] = {}
        servers = []
        for node, script in scripts.items():
            scripted = partial(ScriptedNode, node, script)
            server = await loop.create_server(
                partial(Porch, set(), letters=scripted, guests=None), "127.0.0.1", 0
            )
            servers.append(server)
            addresses[node] = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            async with Client("c", addresses) as client:
                await test(client)
        finally:
            for server in servers:
                server.close()
        assert all(not script for script in scripts.values())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_hint_is_followed_and_remembered() -> None:
    async def test(client: Client) -> None:
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 3)
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 3)

    elsewhere = Answered(Outcome.NOT_LEADER, -1, 3, leader=3)
    with_nodes({1: [elsewhere], 2: [], 3: [SETTLED, SETTLED]}, test)


def test_without_a_hint_every_node_is_asked_in_turn() -> None:
    async def test(client: Client) -> None:
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 2)

    nobody = Answered(Outcome.NOT_LEADER, -1, 3, leader=0)
    with_nodes({1: [nobody, nobody], 2: [nobody, SETTLED], 3: [nobody]}, test)


def test_a_busy_or_full_leader_is_asked_again() -> None:
    async def test(client: Client) -> None:
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 1)

    script: Script = [Answered(Outcome.BUSY, -1, 3, 1), Answered(Outcome.FULL, -1, 3, 1), SETTLED]
    with_nodes({1: script, 2: []}, test)


def test_an_unknown_outcome_is_never_tried_again() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(OutcomeUnknown):
            await client.propose(PARTITION, [BATCH])

    with_nodes({1: [Answered(Outcome.UNKNOWN, -1, 3, 0)], 2: []}, test)
    with_nodes({1: ["hang up"], 2: []}, test)


def test_silence_is_an_unknown_outcome() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await client.propose(PARTITION, [BATCH], timeout_s=0.05)

    with_nodes({1: ["silence"]}, test)


def test_a_rejected_batch_was_not_written() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(BadRequest, match="checksum"):
            await client.propose(PARTITION, [BATCH])

    with_nodes({1: [Rejected("the batch's checksum does not match its bytes")]}, test)


def test_what_no_leader_took_was_not_written() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(NotWritten, match="busy"):
            await client.propose(PARTITION, [BATCH], timeout_s=0.01)

    with_nodes({1: [Answered(Outcome.BUSY, -1, 3, 1)]}, test)


def test_a_node_that_is_down_is_passed_over() -> None:
    async def test(client: Client) -> None:
        client._addresses[1] = Address("127.0.0.1", 1)
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 2)

    with_nodes({1: [], 2: [SETTLED]}, test)


# --- orders and reads ---


def test_an_order_goes_where_the_leader_is() -> None:
    async def test(client: Client) -> None:
        await client.transfer(PARTITION, 2)
        await client.change(PARTITION, (1, 2))
        assert await client.read(PARTITION) == 7

    # After a transfer the node that leads now is asked first.
    with_nodes(
        {1: [Answered(Outcome.NOT_LEADER, -1, 3, leader=3)], 2: [SETTLED, SETTLED], 3: [SETTLED]}, test
    )


def test_an_order_whose_outcome_is_unknown_is_given_again() -> None:
    """It says what is to be: given twice, it is no more."""

    async def test(client: Client) -> None:
        await client.change(PARTITION, (1, 2))

    script: Script = [
        Answered(Outcome.UNKNOWN, -1, 3, 0),
        "hang up",
        Answered(Outcome.BUSY, -1, 3, 1),
        SETTLED,
    ]
    with_nodes({1: script}, test)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.TIMED_OUT])
def test_a_refused_order_says_why(outcome: Outcome) -> None:
    async def test(client: Client) -> None:
        with pytest.raises(NotDone, match="another change is joint"):
            await client.change(PARTITION, (1, 2))

    with_nodes({1: [Answered(outcome, -1, 3, 1, "another change is joint")], 2: []}, test)


def test_an_order_that_nobody_takes_is_unknown_in_the_end() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(OutcomeUnknown, match="knows of no leader"):
            await client.transfer(PARTITION, 1, timeout_s=0.01)

    with_nodes({1: [Answered(Outcome.NOT_LEADER, -1, 3, 0)]}, test)


def test_a_node_that_is_learned_of_is_asked_like_any_other() -> None:
    async def test(client: Client) -> None:
        address = client._addresses.pop(2)
        client.know(2, address)
        assert client.nodes == (1, 2)
        assert await client.propose(PARTITION, [BATCH]) == Settled(7, 3, 2)

    with_nodes({1: [Answered(Outcome.NOT_LEADER, -1, 3, leader=2)], 2: [SETTLED]}, test)


def test_while_one_node_hangs_another_takes_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.node.client.SOON_S", 0.05)

    async def test(client: Client) -> None:
        await client.change(PARTITION, (1, 2))

    with_nodes({1: ["silence"], 2: [Answered(Outcome.NOT_LEADER, -1, 3, leader=3)], 3: [SETTLED]}, test)


def test_a_leader_that_takes_its_time_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that point to it do not make it one that hears the order twice."""
    monkeypatch.setattr("quorate.node.client.SOON_S", 0.05)
    at_one = Answered(Outcome.NOT_LEADER, -1, 3, leader=1)

    async def test(client: Client) -> None:
        with pytest.raises(OutcomeUnknown):
            await client.change(PARTITION, (1, 2), timeout_s=0.3)
        script.clear()

    script: Script = [at_one] * 20
    with_nodes({1: ["silence"], 2: script}, test)


def test_what_becomes_of_one_that_was_asked_beside_is_nobodys_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node ends itself when a task of its own fails unseen; that another hangs is no reason to."""
    unseen: list[dict[str, object]] = []

    async def test(client: Client) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        failed = asyncio.Event()

        async def fail(node: int, *_: object) -> Answer:
            failed.set()
            raise OutcomeUnknown(f"node {node}: no answer in time")

        monkeypatch.setattr(client, "_ask", fail)
        task = client._ask_beside(1, Read(PARTITION, ReadLevel.LINEARIZABLE, -1), 0.0)
        await failed.wait()
        await asyncio.sleep(0)
        assert task.done()
        del task
        gc.collect()

    with_nodes({1: []}, test)
    assert unseen == []
