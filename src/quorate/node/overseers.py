"""Operators and controllers in a node: whoever leads the metadata group oversees every partition that needs it.

`coordinated` topics have an operator for each partition, `isr` topics a controller (core/coordinated, core/isr).
What they must not forget stands in the metadata group's image, changed by compare-and-set; so they live only as
long as this node leads that group, and the next leader's begin with what is stored. Two at once exclude each other.

They are addressed by their node's number with a minus in front, and by the metadata group's epoch as their life: an
answer to one of an earlier leadership is for nobody. They work in turns of their own, never inside of the host's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, get_args

from quorate.core import coordinated, events, isr
from quorate.core.coordinated import messages as coordinated_messages
from quorate.core.effects import Outcome, Reply, Send
from quorate.core.entry import NOWHERE, TOPIC_ID_BYTES, Member, Partition, number_of, partition_of
from quorate.core.events import Recovered, Started
from quorate.core.isr import messages as isr_messages
from quorate.core.metadata import ReadShard, ShardRead, WriteShard
from quorate.host import Parcel
from quorate.machine.metadata import METADATA, Topic
from quorate.machine.turning import min_isr
from quorate.node.stores import Heard, MetadataStore, Store

if TYPE_CHECKING:
    from quorate.node.node import Node

STEADY = coordinated.Status.STEADY
NOTHING_KEPT = Started(Recovered(base=NOWHERE, head=NOWHERE, epochs=()))
LOOK_EVERY_S = 0.5
WRONG_S = 1.0
"""Whoever should lead and has not said so for this long is suspected, and again as long as that lasts."""
WATCH_S = 10.0
"""How often one with nothing to do looks at the store: nobody else writes there, unless this node was replaced."""

HEARD_BY: dict[str, frozenset[Any]] = {
    "coordinated": frozenset(get_args(coordinated_messages.ToOperator)),
    "isr": frozenset(get_args(isr_messages.ToController)),
}
"""What is said to whoever oversees a partition; of anything else the sender is mistaken."""

Answer = Callable[[Reply], None]


class Overseen:
    """One partition, and whoever oversees it."""

    __slots__ = ("answers", "generation", "gone", "hears", "overseer", "partition", "scheduled", "topic")

    def __init__(self, partition: Partition, overseer: Any, topic: Topic) -> None:
        self.partition = partition
        self.generation = topic.generation(number_of(partition))
        self.overseer = overseer
        self.hears = HEARD_BY[topic.protocol(number_of(partition))]
        self.topic = topic
        self.answers: dict[int, Answer] = {}
        self.scheduled: float | None = None
        self.gone = False


class Overseers:
    def __init__(self, node: Node, rng: Random) -> None:
        self._node = node
        self._store: Store = MetadataStore(node)
        self._rng = rng
        self._overseen: dict[Partition, Overseen] = {}
        self._life = 0
        """The epoch in which this node leads the metadata group; 0: it does not."""
        self._followed = -1
        self._inbox: deque[tuple[Overseen, Any]] = deque()
        self._deadlines: list[tuple[float, int, Overseen]] = []
        self._pushes = 0
        self._requests = 0
        self._wrong_since: dict[Partition, float] = {}
        """Partitions of which nobody says that it leads them, though the store says who should."""
        self._awake: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return len(self._overseen)

    # --- what they are told ---

    def look(self) -> None:
        """The image, or who leads the metadata group, may be another."""
        self._wake()

    def receive(self, parcel: Parcel) -> None:
        """A replica answers, or asks."""
        assert parcel.partition is not None
        overseen = self._overseen.get(parcel.partition)
        if overseen is None or parcel.generation != overseen.generation:
            return
        if type(parcel.message) in overseen.hears:
            self._put(overseen, events.Received(parcel.sender, parcel.message))

    def suspect(self, peer: int) -> None:
        """Nothing was heard from that node for too long, or it is in another life now."""
        for overseen in self._overseen.values():
            self._put(overseen, events.Suspected(peer))

    def oversees(self, partition: Partition) -> bool:
        return partition in self._overseen

    def command(self, partition: Partition, make: Callable[[int], Any], answer: Answer) -> bool:
        """Order something; False where it is not overseen here."""
        overseen = self._overseen.get(partition)
        if overseen is None:
            return False
        self._requests += 1
        order = make(self._requests)
        overseen.answers[order.request] = answer
        self._put(overseen, events.Commanded(order))
        return True

    async def run(self) -> None:
        """Until cancelled: see to it that whoever should lead does."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            for partition, overseen in self._overseen.items():
                leader = self._should_lead(overseen)
                if not leader or self._node.says_so(leader, partition):
                    self._wrong_since.pop(partition, None)
                elif now - self._wrong_since.setdefault(partition, now) >= WRONG_S:
                    self._wrong_since[partition] = now
                    self._put(overseen, events.Suspected(leader))

    def _should_lead(self, overseen: Overseen) -> int:
        """The node that leads by what is stored; 0: nobody is to, or somebody is being chosen."""
        stored = self._store.known(overseen.partition)
        if stored is None or getattr(stored.shard, "status", STEADY) is not STEADY:
            return 0
        return stored.shard.leader.node if stored.shard.leader is not None else 0

    def _put(self, overseen: Overseen, event: Any) -> None:
        self._inbox.append((overseen, event))
        self._wake()

    # --- turns ---

    def _wake(self) -> None:
        if self._awake is None:
            self._awake = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = None
        if self._node.is_over:
            return
        self._node.begin_turn()
        try:
            self._follow()
            self._work_off()
        finally:
            self._node.end_turn()
        self._rest()

    def _work_off(self) -> None:
        now = time.monotonic()
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            place, _, overseen = heappop(heap)
            if overseen.scheduled == place and not overseen.gone:
                overseen.scheduled = None
                due = overseen.overseer.deadline()
                if due is not None and due <= now:
                    self._step(now, overseen, events.TimePassed())
                else:
                    self._schedule(overseen)
        while self._inbox:
            overseen, event = self._inbox.popleft()
            if not overseen.gone:
                self._step(now, overseen, event)

    def _step(self, now: float, overseen: Overseen, event: Any) -> None:
        for effect in overseen.overseer.step(now, event):
            if isinstance(effect, Send):
                me = Member(-self._node.id, self._life)
                parcel = Parcel(overseen.partition, me, effect.message, generation=overseen.generation)
                self._node.send_in_turn(effect.to, parcel)
            elif isinstance(effect, Reply):
                overseen.answers.pop(effect.request)(effect)
            else:
                assert isinstance(effect, ReadShard | WriteShard)
                self._store.ask(overseen.partition, effect, partial(self._answered, overseen))
        self._schedule(overseen)

    def _schedule(self, overseen: Overseen) -> None:
        due = overseen.overseer.deadline()
        if due is not None and (overseen.scheduled is None or due < overseen.scheduled):
            overseen.scheduled = due
            self._pushes += 1
            heappush(self._deadlines, (due, self._pushes, overseen))

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines and self._awake is None:
            delay_s = max(0.0, self._deadlines[0][0] - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    # --- whom to oversee ---

    def _follow(self) -> None:
        node = self._node
        replica = node.host.hosted[METADATA].replica
        life = replica.epoch if node.leads_with_all(METADATA) else 0
        if life != self._life:
            self._let_all_go()
            self._life, self._followed = life, -1
        image = node.metadata.image
        if not life or image.version == self._followed:
            return
        self._followed = image.version
        for overseen in tuple(self._overseen.values()):
            topic = image.by_id.get(overseen.partition[:TOPIC_ID_BYTES])
            if topic is None or topic.generation(number_of(overseen.partition)) != overseen.generation:
                self._let_go(overseen)
        for topic in image.topics.values():
            for number in range(len(topic.ensembles)):
                if topic.is_overseen(number):
                    self._oversee(topic, number)

    def _oversee(self, topic: Topic, number: int) -> None:
        partition = partition_of(topic.id, number)
        if partition in self._overseen:
            return
        overseen = Overseen(partition, self._make(topic, number), topic)
        self._overseen[partition] = overseen
        self._inbox.append((overseen, NOTHING_KEPT))

    def _make(self, topic: Topic, number: int) -> Any:
        ensemble = tuple(sorted(topic.ensembles[number]))
        if topic.protocol(number) == "isr":
            birth = isr.Birth(ensemble, min_isr(topic, number), leader=topic.ensembles[number][0])
            return isr.Controller(isr.ControllerTuning(watch_s=WATCH_S), self._rng, birth=birth)
        newborn = coordinated.Shard(0, coordinated.Status.ELECTION, ensemble)
        tuning = coordinated.OperatorTuning(watch_s=WATCH_S)
        prefers = tuple(member.node for member in topic.ensembles[number])
        return coordinated.Operator(tuning, self._rng, birth=newborn, prefers=prefers)

    def _let_all_go(self) -> None:
        for overseen in tuple(self._overseen.values()):
            self._let_go(overseen)
        self._inbox.clear()
        self._deadlines.clear()
        self._wrong_since.clear()

    def _let_go(self, overseen: Overseen) -> None:
        """Whoever waits for an order of its hears that nobody knows what becomes of it."""
        overseen.gone = True
        del self._overseen[overseen.partition]
        for request, answer in overseen.answers.items():
            answer(Reply(request, Outcome.UNKNOWN, why="another node leads the metadata group"))
        overseen.answers.clear()

    # --- the store ---

    def _answered(self, overseen: Overseen, event: Heard) -> None:
        self._put(overseen, event)
        if isinstance(event, ShardRead):
            leader = self._should_lead(overseen)
            if leader in self._node.links.ended:  # That was said before anybody here oversaw it, perhaps.
                self._put(overseen, events.Suspected(leader, ended=True))
