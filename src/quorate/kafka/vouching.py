"""Before a leader takes the first batch of a transaction, the coordinator says whether it is open (KIP-890).

Batches that come meanwhile from the same producer for the same partition wait behind the first, in their order: the
second must not be judged before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorate.core.entry import Partition
from quorate.machine.producers import Numbered
from quorate.machine.purpose import TRANSACTIONS
from quorate.machine.transaction_words import Verdict
from quorate.node.client import BadRequest, NotDone, OutcomeUnknown
from quorate.node.requests import Answered, MayWrite
from quorate.node.transactions import may_write

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

ASK_TIMEOUT_S = 5.0
WAITING_MAX = 10_000
"""Batches that wait for a coordinator, over all connections."""

Go = Callable[[Verdict | None], None]
"""Told what the coordinator says; None: nobody could be asked, or it is out of date already."""


class Vouching:
    """One for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[tuple[Partition, int], list[Go]] = {}
        self._waiting_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    def when_vouched(self, name: str, partition: Partition, batch: Numbered, go: Go) -> None:
        """Call `go` at once where this leader has asked already, or when the coordinator has answered."""
        hosted = self._broker.node.host.hosted[partition]
        key = partition, batch.producer_id
        is_asking = key in self._waiting
        assert hosted.desk is not None
        if not is_asking and hosted.desk.vouching.vouches(batch, hosted.replica.epoch):
            go(Verdict.DONE)
        elif self._waiting_count >= WAITING_MAX:
            go(None)
        else:
            self._waiting.setdefault(key, []).append(go)
            self._waiting_count += 1
            if not is_asking:
                question = hosted.desk.vouching.ask(batch.producer_id, hosted.replica.epoch)
                task = asyncio.get_running_loop().create_task(self._ask(name, partition, batch, question))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str, partition: Partition, batch: Numbered, question: int) -> None:
        verdict = await ask_coordinator(
            self._broker, name, producer_id=batch.producer_id, epoch=batch.epoch, partition=partition
        )
        told = verdict[0] if verdict is not None else None

        def tell() -> None:
            answer = told
            hosted = self._broker.node.host.hosted.get(partition)
            if hosted is None or hosted.desk is None:
                answer = None
            elif not hosted.desk.vouching.answered(batch, question, is_open=answer is Verdict.DONE):
                answer = None if answer is Verdict.DONE else answer
            waiting = self._waiting.pop((partition, batch.producer_id))
            self._waiting_count -= len(waiting)
            for go in waiting:
                go(answer)

        self._broker.in_turn(tell)


async def ask_coordinator(
    broker: Broker, name: str, *, producer_id: int, epoch: int, partition: Partition
) -> tuple[Verdict, int] | None:
    """What the coordinator of that name says of a producer that writes there, and the number of its transaction;
    None where nobody could be asked."""
    node = broker.node
    home = node.homes.partition_of(TRANSACTIONS, name)
    if home is None:
        return Verdict.BAD_PRODUCER, -1
    request = MayWrite(home, name, producer_id, epoch, partition)
    answered: Answered
    try:
        if node.leads_with_all(home):
            future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
            broker.in_turn(lambda: may_write(node, request, future.set_result))
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answered = await future
            if answered.why:
                return Verdict(answered.why), answered.offset
        answered = await node.metadata.order(home, request, timeout_s=ASK_TIMEOUT_S)
        return Verdict(answered.why), answered.offset
    except (NotDone, OutcomeUnknown, BadRequest, TimeoutError, ValueError):
        return None
