"""Both clients of tables over real sockets, against nodes that hang, close and contradict each other."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from quorate.client import (
    AsyncTableGroup,
    GroupReplaced,
    NobodyThere,
    OutcomeUnknown,
    TableGroup,
    UnknownGroup,
)
from quorate.tables import Delete, Outcome, Result, Row
from quorate.wire import tables as wire
from quorate.wire.messages import Api
from tests.unit.client.scripted import Answer, Frame, ScriptedNode, metadata

ROW = Row(3, (1, "Ann"))


class Asked:
    """One interface to both clients: a call runs in a new client, to its end."""

    def __init__(self, kind: type[TableGroup] | type[AsyncTableGroup]) -> None:
        self._kind = kind

    def __call__(
        self, bootstrap: str, method: str, *arguments: Any, timeout_s: float = 30.0, **more: Any
    ) -> Any:
        if self._kind is TableGroup:
            with TableGroup(bootstrap, "bank", timeout_s=timeout_s) as tables:
                return getattr(tables, method)(*arguments, **more)

        async def main() -> Any:
            async with AsyncTableGroup(bootstrap, "bank", timeout_s=timeout_s) as group:
                return await getattr(group, method)(*arguments, **more)

        return asyncio.run(main())


@pytest.fixture(params=[TableGroup, AsyncTableGroup])
def ask(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


def node_that(
    answers: Callable[[wire.Request], wire.Answer | None], leader: list[ScriptedNode] | None = None
) -> ScriptedNode:
    """Says who leads (itself, if nobody is named), and then answers; None: it closes the connection."""

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, leader[0] if leader else made)
        said = answers(frame.body)
        return None if said is None else wire.encode_answer(said, frame.correlation)

    made = ScriptedNode(answer)
    return made


def test_a_row_is_found(ask: Asked) -> None:
    with node_that(lambda request: wire.Rows((ROW,), 5)) as node:
        assert ask(node.bootstrap, "get", "t", (1,)) == ROW
    assert node.asked == [Api.METADATA, wire.TABLES_API]


def test_scans_have_a_number_of_their_own(ask: Asked) -> None:
    def answer(request: wire.Request) -> wire.Answer:
        assert isinstance(request, wire.Scan)
        return wire.Rows((ROW,), 5, (1,) if request.after is None else None)

    with node_that(answer) as node:
        assert ask(node.bootstrap, "scan", "t") == (ROW, ROW)
    assert node.asked == [Api.METADATA, wire.TABLES_SCAN_API, wire.TABLES_SCAN_API]


def test_a_transaction_goes_to_the_same_id_after_a_connection_broke(ask: Asked) -> None:
    ids: list[bytes] = []

    def answer(request: wire.Request) -> wire.Answer | None:
        assert isinstance(request, wire.Execute)
        ids.append(request.transaction.id)
        return None if len(ids) == 1 else wire.Done(Result(Outcome.DONE, 7))

    with node_that(answer) as node:
        done = ask(node.bootstrap, "execute", Delete("t", (1,)))
    assert ids == [done.id, done.id]
    assert (done.offset, done.settled) == (7, True)


def test_what_nobody_answers_is_unknown(ask: Asked) -> None:
    with node_that(lambda request: None) as node, pytest.raises(OutcomeUnknown) as unknown:
        ask(node.bootstrap, "execute", Delete("t", (1,)), id_=b"i" * 16, timeout_s=0.5)
    assert unknown.value.id == b"i" * 16


def test_a_node_that_hangs_leaves_time_for_others(ask: Asked) -> None:
    """The leader, as everybody says: it takes the connection and the request, and nothing comes."""
    over = threading.Event()

    def hang(_: wire.Request) -> None:
        over.wait()

    others: list[ScriptedNode] = []
    with node_that(hang, others) as hung, node_that(lambda request: wire.Rows((ROW,), 5)) as well:
        others.append(hung)
        began = monotonic()
        try:
            assert ask(f"{hung.bootstrap},{well.bootstrap}", "get", "t", (1,), timeout_s=6.0) == ROW
        finally:
            over.set()
        assert monotonic() - began < 5.5


def test_nobody_listens(ask: Asked) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NobodyThere):
        ask(f"127.0.0.1:{port}", "tables")


def test_no_such_group_and_another_one(ask: Asked) -> None:
    with node_that(lambda request: wire.NoGroup()) as node, pytest.raises(UnknownGroup, match="'bank'"):
        ask(node.bootstrap, "tables")
    with node_that(lambda request: wire.NoGroup(is_another=True)) as node, pytest.raises(GroupReplaced):
        ask(node.bootstrap, "tables")


def test_tasks_share_a_connection_and_cancelled_ones_mix_nothing_up() -> None:
    """Each asks for its own key, and some are cancelled at any moment: nobody gets another's row."""

    def answer(request: wire.Request) -> wire.Answer:
        assert isinstance(request, wire.Get)
        return wire.Rows((Row(1, request.key),), 5)

    async def main() -> None:
        async with AsyncTableGroup(node.bootstrap, "bank") as bank:

            async def look(number: int) -> None:
                for key in range(number * 100, number * 100 + 20):
                    row = await bank.get("t", (key,))
                    assert row is not None
                    assert row.values == (key,)

            tasks = [asyncio.create_task(look(number)) for number in range(40)]
            for number, task in enumerate(tasks):
                if number % 4 == 0:
                    await bank.get("t", (-1,))  # So that they are under way, each somewhere else.
                    task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(each, asyncio.CancelledError) for each in found) > 0
            assert [each for each in found if not isinstance(each, asyncio.CancelledError | None)] == []

    with node_that(answer) as node:
        asyncio.run(main())
    assert node.connections_count == 1


def test_whoever_waits_when_the_client_is_closed_hears_of_it() -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(_: wire.Request) -> None:
        asked.set()
        over.wait()

    async def main() -> None:
        bank = AsyncTableGroup(node.bootstrap, "bank")
        waiting = asyncio.create_task(bank.execute(Delete("t", (1,))))
        await asyncio.to_thread(asked.wait, 10)
        await bank.close()
        with pytest.raises(OutcomeUnknown, match="closed"):
            await asyncio.wait_for(waiting, 10)

    with node_that(hang) as node:
        try:
            asyncio.run(main())
        finally:
            over.set()
