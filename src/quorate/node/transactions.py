"""Transactions between nodes: leaders of partitions ask coordinators, and coordinators write markers.

Three questions go from node to node, each to whoever leads: *may* this producer write there (asked of the home,
before a leader takes the first batch of a transaction); *mark* the end of a transaction (asked of its partitions);
*count* what an attempt has settled (asked of its partitions, before a joint commit). Each may be asked twice.

What of a home is led here is looked after: markers are sent until all are written, and what takes too long is
aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition
from quorate.host.coordinating import Chaser, Order
from quorate.host.querying import Consistency
from quorate.host.replicas import Hosted
from quorate.machine.groups import EndOffsets
from quorate.machine.markers import Marker, encode_marker
from quorate.machine.purpose import GROUPS, TOPIC, TRANSACTIONS
from quorate.machine.transaction_words import Enlist, Forget, Marked, TimeOut, Verdict
from quorate.machine.transactions import Transactions
from quorate.node.client import BadRequest, NotDone, OutcomeUnknown
from quorate.node.logs import WARNING
from quorate.node.requests import Answered, CountRecords, MarkEnd, MayWrite

if TYPE_CHECKING:
    from quorate.node.node import Node

Answer = Callable[[Answered], None]

LOOK_EVERY_S = 0.25
"""How late a time-out may be noticed."""
FORGET_EVERY_S = 600.0
MARK_TIMEOUT_S = 10.0
APP_IDLE_SETTING = "quorate.joint.idle.ms"
"""The cluster's setting: how long the last number of an app is kept when nobody uses it."""
APP_IDLE_MS = 90 * 24 * 3600 * 1000
PLAIN_IDLE_SETTING = "transactional.id.expiration.ms"
PLAIN_IDLE_MS = 7 * 24 * 3600 * 1000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Coordinating:
    """The homes of transactions that are led here."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._chasers: dict[Partition, tuple[int, Chaser]] = {}
        """By home, with the epoch of its leadership."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._proposing: set[Partition] = set()
        self._forgot_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        self._node.watch_settled(self._settled)
        looked_at = time.monotonic()
        try:
            while True:
                self._look()
                self._woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._woken.wait()
                if time.monotonic() - looked_at >= LOOK_EVERY_S:  # Also where it is never quiet for so long.
                    looked_at = time.monotonic()
                    self._look_at_clock()
        finally:
            for task in self._tasks:
                task.cancel()

    def _settled(self, partition: Partition) -> None:
        hosted = self._node.host.hosted.get(partition)
        if hosted is not None and hosted.record.purpose == TRANSACTIONS:
            self._woken.set()

    def _led(self) -> list[Hosted]:
        return [
            hosted
            for partition, hosted in self._node.host.hosted.items()
            if hosted.record.purpose == TRANSACTIONS and self._node.leads_with_all(partition)
        ]

    # --- markers ---

    def _look(self) -> None:
        for hosted in self._led():
            epoch = hosted.replica.epoch
            known, chaser = self._chasers.get(hosted.partition, (0, Chaser()))
            if known != epoch:
                chaser = Chaser()
                self._chasers[hosted.partition] = epoch, chaser
            machine = cast(Transactions, hosted.machine)
            for order in chaser.due(time.monotonic(), machine):
                task = asyncio.get_running_loop().create_task(self._mark(chaser, order, epoch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self._tell(hosted.partition, chaser)

    async def _mark(self, chaser: Chaser, order: Order, epoch: int) -> None:
        image = self._node.metadata.image
        marker = order.marker
        if image.is_deleted(order.partition[:TOPIC_ID_BYTES]):
            chaser.written(order)  # What was written there is gone for good.
        else:
            request = MarkEnd(
                order.partition,
                marker.producer_id,
                marker.epoch,
                marker.number,
                marker.commit,
                epoch,
                wall_ms(),
            )
            try:
                await self._node.metadata.order(order.partition, request, timeout_s=MARK_TIMEOUT_S)
                chaser.written(order)
            except (NotDone, OutcomeUnknown, BadRequest) as error:
                chaser.failed(time.monotonic(), order)
                self._node.log(
                    f"the end of a transaction of producer {marker.producer_id} is not written to "
                    f"{order.partition.hex()}: {error}; trying again",
                    level=WARNING,
                )
        self._woken.set()

    def _tell(self, home: Partition, chaser: Chaser) -> None:
        """The home hears which markers are written, all that there are at once."""
        marks = chaser.news()
        if not marks or home in self._proposing:
            return
        self._proposing.add(home)

        def told(reply: Reply, _: Any) -> None:
            self._proposing.discard(home)
            if reply.outcome is Outcome.SETTLED:
                chaser.heard(marks)
            if chaser.news():
                self._woken.set()

        self._node.begin_turn()
        self._node.homes.propose(home, [Marked(marks)], told)
        self._node.end_turn()

    # --- time ---

    def _look_at_clock(self) -> None:
        now_ms = wall_ms()
        commands: list[Any] = []
        if time.monotonic() - self._forgot_at > FORGET_EVERY_S:
            self._forgot_at = time.monotonic()
            config = self._node.metadata.image.cluster.config
            plain_ms = int(config.get(PLAIN_IDLE_SETTING, PLAIN_IDLE_MS))
            commands.append(Forget(now_ms, plain_ms, int(config.get(APP_IDLE_SETTING, APP_IDLE_MS))))
        for hosted in self._led():
            deadline_ms = cast(Transactions, hosted.machine).deadline_ms()
            mine = [*commands]
            if deadline_ms is not None and deadline_ms <= now_ms:
                mine.append(TimeOut(now_ms))
            if mine:
                self._node.begin_turn()
                self._node.homes.propose(hosted.partition, mine, lambda _, __: None)
                self._node.end_turn()


# ---- what other nodes ask, between `begin_turn` and `end_turn` ----


def may_write(node: Node, request: MayWrite, answer: Answer) -> None:
    """Of the home's leader. SETTLED: `why` is the verdict, `offset` the number of the transaction."""
    home = Partition(request.home)
    if not node.is_leader(home):
        answer(elsewhere(node, home))
        return
    if node.host.hosted[home].record.purpose != TRANSACTIONS:
        answer(refused("no transactions live there"))
        return
    name, producer_id, epoch = request.name, request.producer_id, request.epoch

    def ask(machine: Transactions, _: Any) -> tuple[Verdict, int]:
        known = machine.plain(name)
        number = known.number if known is not None else -1
        return machine.may_write(name, producer_id, epoch, request.partition), number

    def looked(reply: Reply, found: tuple[Verdict, int] | None) -> None:
        if found is None:
            answer(answered(reply))
        elif found[0] is Verdict.PART_GONE:
            command = Enlist(name, producer_id, epoch, request.partition, wall_ms())
            node.homes.propose(home, [command], enlisted)
        else:
            answer(Answered(Outcome.SETTLED, found[1], reply.epoch, reply.leader, found[0].value))

    def enlisted(reply: Reply, results: Any) -> None:
        if reply.outcome is Outcome.SETTLED and results and results[0] is not None:
            answer(Answered(Outcome.SETTLED, -1, reply.epoch, reply.leader, results[0].verdict.value))
        else:
            answer(answered(reply, without=Outcome.BUSY))

    node.query(home, ask, looked, consistency=Consistency.LINEARIZABLE)


def mark_end(node: Node, request: MarkEnd, answer: Answer) -> None:
    """Of the partition's leader: SETTLED when the marker is."""
    partition = Partition(request.partition)
    if not node.is_leader(partition):
        answer(elsewhere(node, partition))
        return
    purpose = node.host.hosted[partition].record.purpose
    if purpose not in (TOPIC, GROUPS) or not _is_possible(request):
        answer(refused("no transaction ends there like that"))
        return
    if purpose == GROUPS:
        ending = EndOffsets(request.producer_id, request.epoch, request.commit, request.number)

        def ended(reply: Reply, _: Any) -> None:
            answer(answered(reply, without=Outcome.SETTLED))

        node.homes.propose(partition, [ending], ended)
        return
    marker = Marker(request.producer_id, request.epoch, request.number, request.commit)
    payload = encode_marker(marker, coordinator_epoch=request.home_epoch, now_ms=request.now_ms)
    node.propose(partition, [payload], lambda reply: answer(answered(reply)))


def count_records(node: Node, request: CountRecords, answer: Answer) -> None:
    """Of the partition's leader: SETTLED with the count; from then on there are no more."""
    partition = Partition(request.partition)
    if not node.is_leader(partition):
        answer(elsewhere(node, partition))
        return

    def looked(reply: Reply, _: Any) -> None:
        hosted = node.host.hosted.get(partition)
        if reply.outcome is not Outcome.SETTLED or hosted is None:
            answer(answered(reply))
            return
        leading = hosted.leading()
        count = None
        if leading is not None and hosted.desk is not None:
            count = hosted.desk.counted(request.producer_id, leading)
        if count is None:
            answer(Answered(Outcome.BUSY, -1, reply.epoch, reply.leader))
        else:
            answer(Answered(Outcome.SETTLED, count, reply.epoch, reply.leader))

    node.query(partition, lambda _, __: True, looked, consistency=Consistency.LINEARIZABLE)


def _is_possible(request: MarkEnd) -> bool:
    """Its numbers fit where they are written."""
    numbers = (request.producer_id, request.number + 1, request.now_ms)
    return all(0 <= each < 1 << 63 for each in numbers) and 0 <= request.epoch < 1 << 15


def refused(why: str) -> Answered:
    return Answered(Outcome.REFUSED, -1, 0, 0, why)


def elsewhere(node: Node, partition: Partition) -> Answered:
    leader, epoch = node.leader_of(partition)
    return Answered(Outcome.NOT_LEADER, -1, epoch, leader if leader != node.id else 0)


def answered(reply: Reply, *, without: Outcome | None = None) -> Answered:
    """`without`: what a reply comes to that is settled, and whose results nobody knows."""
    outcome = reply.outcome
    if outcome is Outcome.SETTLED and without is not None:
        outcome = without
    elif outcome in (Outcome.UNKNOWN, Outcome.ROLLED_BACK, Outcome.FULL, Outcome.TIMED_OUT):
        outcome = Outcome.BUSY  # All of these may be asked again.
    return Answered(outcome, reply.offset, reply.epoch, reply.leader, reply.why)
