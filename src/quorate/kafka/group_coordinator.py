"""The consumer groups that this node coordinates: those that live in the partitions of their home that it
leads.

When this node comes to lead such a partition, and its machine has all that earlier leaders left, every group
that has members there is alive again as of its last round, and its members have a whole session to be heard of.
When it leads no more, whoever waits is told to look for the coordinator, and everything that was not written
down is forgotten.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, Any, cast

from kio.schema.errors import ErrorCode

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition, partition_of
from quorate.kafka.group_live import LiveGroup
from quorate.kafka.group_member import Join, Limits, Stage
from quorate.machine.groups import GROUPS_COUNT_MAX, Expire, Group, Groups, Member, PutGroup, Result
from quorate.machine.purpose import GROUPS
from quorate.node.homes import Results
from quorate.wire.consumers import CONSUMER, subscribed
from quorate.wire.cursor import BadMessage

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

SESSION_LEAST, SESSION_GREATEST = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
INITIAL_DELAY, MEMBERS_MAX = "group.initial.rebalance.delay.ms", "group.max.size"
RETENTION_MINUTES = "offsets.retention.minutes"
RETENTION_MINUTES_DEFAULT = 7 * 24 * 60
GROUP_NAME_MAX = 1000
CLIENT_ID_MAX = 200
LAGS_COUNT_MAX = 100
"""Groups whose lag is told to whoever watches."""
LAG_POSITIONS_MAX = 50_000
"""Positions that are looked at for that."""

_ERRORS: dict[Outcome, ErrorCode] = {
    Outcome.NOT_LEADER: ErrorCode.not_coordinator,
    # Rule 9: it may have been written, and may be written again: it says what is, not what is to be added.
    Outcome.UNKNOWN: ErrorCode.coordinator_not_available,
    Outcome.BUSY: ErrorCode.coordinator_load_in_progress,
    Outcome.FULL: ErrorCode.coordinator_not_available,
}
_RESULTS: dict[Any, ErrorCode] = {
    Result.DONE: ErrorCode.none,
    Result.FENCED: ErrorCode.not_coordinator,
    Result.NO_GROUP: ErrorCode.group_id_not_found,
    Result.NOT_EMPTY: ErrorCode.non_empty_group,
    Result.TOO_MANY: ErrorCode.group_max_size_reached,
}


class Refused(Exception):
    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


class Led:
    """One partition of the home, as long as this node leads it in one epoch."""

    def __init__(self, partition: Partition, epoch: int, machine: Groups) -> None:
        self.partition = partition
        self.epoch = epoch
        self.machine = machine
        self.live: dict[str, LiveGroup] = {}
        """Groups of which something is known here that the log need not have."""
        self.timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}

    def stage_of(self, name: str) -> Stage:
        live = self.live.get(name)
        if live is not None:
            return live.stage
        return Stage.EMPTY if name in self.machine.groups else Stage.DEAD


class Coordinator:
    """One for each node that serves Kafka clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._node = broker.node
        self._led: dict[Partition, Led] = {}
        self._looking = False
        self._expiring: asyncio.TimerHandle | None = None
        self._turns = 0
        self._node.watch_settled(self._noticed)
        self._node.when_over(self._over)
        self._node.metrics.groups = self._counted
        self._node.metrics.group_lags = self._lags

    # ---- which partitions ----

    def _noticed(self, partition: Partition) -> None:
        """In the middle of the node's work: a partition has settled more, or has another leader."""
        if self._looking or partition[:TOPIC_ID_BYTES] != self._home():
            return
        led = self._led.get(partition)
        if led is not None and self._epoch(partition) == led.epoch:
            return
        if led is None and not self._node.is_leader(partition):
            return
        self._looking = True
        asyncio.get_running_loop().call_soon(self._look)

    def _home(self) -> bytes | None:
        return self._node.metadata.image.cluster.homes.get(GROUPS) if self._node.config.voters else None

    def _epoch(self, partition: Partition) -> int | None:
        """In which this node leads it, knowing all that was settled before; None: it does not."""
        if not self._node.leads_with_all(partition):
            return None
        epoch: int = self._node.host.hosted[partition].replica.epoch
        return epoch

    def _look(self) -> None:
        self._looking = False
        if not self._node.is_over:
            self._broker.in_turn(self._take_all)

    def _take_all(self) -> None:
        for partition in self._partitions():
            self._take(partition)

    def _partitions(self) -> list[Partition]:
        topic = self._node.metadata.image.by_id.get(self._home() or b"")
        return [] if topic is None else topic.partitions()

    def _take(self, partition: Partition) -> Led | None:
        """That partition, if it is coordinated here now."""
        epoch = self._epoch(partition)
        led = self._led.get(partition)
        if led is not None and led.epoch == epoch and led.machine is self._machine(partition):
            return led
        if led is not None:
            self._drop(led)
        if epoch is None:
            return None
        led = self._led[partition] = Led(partition, epoch, self._machine(partition))
        for name, group in led.machine.groups.items():
            if group.members:
                self.rearm(led, self._revive(led, name, group))
        if self._expiring is None:
            self._expire_later()
        return led

    def _machine(self, partition: Partition) -> Groups:
        return cast(Groups, self._node.host.hosted[partition].machine)

    def _drop(self, led: Led) -> None:
        del self._led[led.partition]
        for _, timer in led.timers.values():
            timer.cancel()
        for group in led.live.values():
            group.drop(ErrorCode.not_coordinator)

    def _over(self, *, failed: bool) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
        for led in tuple(self._led.values()):
            for _, timer in led.timers.values():
                timer.cancel()
        self._led.clear()

    # ---- which group ----

    def find(self, name: str) -> Led:
        """The partition in which a group lives, if it is coordinated here; raises Refused."""
        if len(name) > GROUP_NAME_MAX:
            raise Refused(ErrorCode.invalid_group_id)
        partition = self._node.homes.partition_of(GROUPS, name)
        if partition is None:
            raise Refused(ErrorCode.coordinator_not_available)
        led = self._take(partition)
        if led is None:
            is_leader = self._node.is_leader(partition)
            raise Refused(ErrorCode.coordinator_load_in_progress if is_leader else ErrorCode.not_coordinator)
        return led

    def all_led(self) -> list[Led]:
        """Every partition that is coordinated here; raises Refused while one of them is not loaded yet."""
        taken = [self._take(partition) for partition in self._partitions()]
        if any(
            led is None and self._node.is_leader(partition)
            for partition, led in zip(self._partitions(), taken, strict=True)
        ):
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return [led for led in taken if led is not None]

    def group(self, name: str) -> tuple[Led, LiveGroup]:
        """A group that somebody wants to be in; raises Refused. Whoever has asked something of it says `rearm`."""
        if not name:
            raise Refused(ErrorCode.invalid_group_id)
        led = self.find(name)
        live = led.live.get(name)
        if live is None:
            if len(led.live) >= GROUPS_COUNT_MAX:
                raise Refused(ErrorCode.group_max_size_reached)
            live = self._revive(led, name, led.machine.groups.get(name) or Group())
        live.limits = self.limits()
        return led, live

    def known(self, name: str) -> tuple[Led, LiveGroup]:
        """A group that somebody says to be in; raises Refused."""
        if not name:
            raise Refused(ErrorCode.invalid_group_id)
        led = self.find(name)
        live = led.live.get(name)
        if live is None:
            raise Refused(ErrorCode.unknown_member_id)
        return led, live

    def may_commit(
        self,
        led: Led,
        name: str,
        member_id: str,
        instance: str | None,
        generation: int,
        *,
        is_transaction: bool = False,
    ) -> ErrorCode:
        """Whether positions are taken from there.

        A producer that says nothing of a member stands for itself: it is fenced by its own epoch (KIP-447).
        """
        live = led.live.get(name)
        if is_transaction and generation < 0 and not member_id and instance is None:
            return ErrorCode.none
        if live is not None:
            return live.may_commit(time.monotonic(), member_id, instance, generation)
        if generation < 0:
            return ErrorCode.none
        return ErrorCode.unknown_member_id if name in led.machine.groups else ErrorCode.illegal_generation

    def topics_read(self, led: Led, name: str) -> set[str] | None:
        """Those that members of a group want; None: nobody here understands what they say."""
        live = led.live.get(name)
        if live is None or not live.members:
            return set()
        if live.protocol_type != CONSUMER:
            return None
        try:
            said = [text for each in live.members.values() for _, text in each.protocols]
            return {topic for text in said for topic in subscribed(text)}
        except BadMessage:
            return None

    def _revive(self, led: Led, name: str, group: Group) -> LiveGroup:
        save = partial(self._save, led)
        live = LiveGroup.revived(time.monotonic(), name, group, self.limits(), save, _new_id)
        led.live[name] = live
        return live

    def limits(self) -> Limits:
        config, usual = self._node.metadata.image.cluster.config, Limits()

        def seconds(name: str, default_s: float) -> float:
            return int(config[name]) / 1000 if name in config else default_s

        return Limits(
            seconds(SESSION_LEAST, usual.session_least_s),
            seconds(SESSION_GREATEST, usual.session_greatest_s),
            seconds(INITIAL_DELAY, usual.initial_delay_s),
            int(config.get(MEMBERS_MAX, usual.members_max)),
        )

    # ---- time ----

    def rearm(self, led: Led, live: LiveGroup) -> None:
        """Something happened to that group: wake for it when it is next due, and forget it if nothing is left.

        Deadlines mostly move away: a timer that comes too early looks again.
        """
        if self._led.get(led.partition) is not led:
            return
        if live.is_idle:
            led.live.pop(live.name, None)
        due = live.deadline() if live.name in led.live else None
        armed = led.timers.get(live.name)
        if armed is not None and due is not None and armed[0] <= due:
            return
        if armed is not None:
            armed[1].cancel()
            del led.timers[live.name]
        if due is not None:
            delay_s = max(0.0, due - time.monotonic())
            timer = asyncio.get_running_loop().call_later(delay_s, self._woke, led, live)
            led.timers[live.name] = (due, timer)

    def _woke(self, led: Led, live: LiveGroup) -> None:
        led.timers.pop(live.name, None)
        if self._led.get(led.partition) is not led or led.live.get(live.name) is not live:
            return

        def tick() -> None:
            live.tick(time.monotonic())
            self.rearm(led, live)

        self._broker.in_turn(tick)

    # ---- the log ----

    def _save(
        self, led: Led, live: LiveGroup, members: tuple[Member, ...], done: Callable[[ErrorCode], None]
    ) -> None:
        command = PutGroup(
            live.name,
            live.protocol_type,
            live.generation,
            live.protocol,
            live.leader,
            members,
            time.time_ns() // 1_000_000,
        )

        def saved(error: ErrorCode) -> None:
            if self._led.get(led.partition) is not led:
                error = ErrorCode.not_coordinator
            elif error:
                live.save_again(time.monotonic())
            done(error)
            self.rearm(led, live)

        self.write(led, command, saved)

    def write(self, led: Led, command: Any, done: Callable[[ErrorCode], None]) -> None:
        """In a turn: propose it, and say what came of it."""

        def answered(reply: Reply, results: Results) -> None:
            done(_RESULTS.get(results[0], ErrorCode.unknown_server_error) if results else error_of(reply))

        self._node.homes.propose(led.partition, [command], answered)

    # ---- for whoever watches ----

    def _counted(self) -> Counter[str]:
        return Counter(
            led.stage_of(name).value
            for led in self._led.values()
            for name in {*led.machine.groups, *led.live}
        )

    def _lags(self) -> dict[str, int]:
        """Of those that have most ahead of them: a page for a watcher has an end, and so has what it may cost."""
        lags: dict[str, int] = {}
        left = LAG_POSITIONS_MAX
        for name, group in (
            (name, group) for led in self._led.values() for name, group in led.machine.groups.items()
        ):
            left -= group.positions_count()
            if left < 0:
                break
            if (lag := self._lag(group)) is not None:
                lags[name] = lag
        return dict(nlargest(LAGS_COUNT_MAX, lags.items(), key=lambda each: each[1]))

    def _lag(self, group: Group) -> int | None:
        """As far as this node has copies; None: of none of what the group reads."""
        found = None
        for positions in group.positions.values():
            for number, position in positions.items():
                partition = partition_of(position.topic_id, number)
                if self._node.holds(partition):
                    found = (found or 0) + max(0, self._node.commit(partition) + 1 - position.offset)
        return found

    # ---- what is too old ----

    def _expire_later(self) -> None:
        every_s = self._node.config.retention_every_s
        self._expiring = asyncio.get_running_loop().call_later(every_s, self._expire)

    def _expire(self) -> None:
        self._expiring = None
        if self._node.is_over or not self._led:
            return
        self._expire_later()
        # One partition at a time: all positions in it are looked at.
        self._turns += 1
        led = list(self._led.values())[self._turns % len(self._led)]
        image = self._node.metadata.image
        minutes = int(image.cluster.config.get(RETENTION_MINUTES, RETENTION_MINUTES_DEFAULT))
        older_than_ms = time.time_ns() // 1_000_000 - minutes * 60_000

        def propose() -> None:
            if self._take(led.partition) is not led:
                return
            deleted = sorted({each for each in _topics_of(led.machine) if image.is_deleted(each)})
            if deleted or led.machine.has_older(older_than_ms):
                self.write(led, Expire(older_than_ms, tuple(deleted)), lambda _: None)

        self._broker.in_turn(propose)


def error_of(reply: Reply) -> ErrorCode:
    return _ERRORS.get(reply.outcome, ErrorCode.coordinator_not_available)


def _topics_of(machine: Groups) -> Iterator[bytes]:
    for group in machine.groups.values():
        for positions in group.positions.values():
            yield from {position.topic_id for position in positions.values()}


def _new_id(wanted: Join) -> str:
    """As Kafka makes them: a person finds in it what the client or its instance is called."""
    name = wanted.instance if wanted.instance is not None else wanted.client_id
    return f"{name[:CLIENT_ID_MAX]}-{uuid.uuid4()}"
