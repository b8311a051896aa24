"""A small storm for `isr`: replicas, controllers and a store in one heap of events, and everything goes wrong.

Messages are lost, doubled and overtake each other; processes die with what they had not flushed; disks are slow,
full and wiped; the store falls silent. What the simulator does with the whole host, this does with the core alone,
in milliseconds, and looks at the promises of the room. The invariants of every protocol are looked at, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import effects, events, isr, metadata
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot
from quorate.core.events import ReadLevel
from quorate.core.isr.leader import Leader
from quorate.core.isr.orders import ChangeReplicas
from quorate.sim.invariants import Invariants
from tests.unit.core.kit import Store

TUNING = isr.Tuning(
    heartbeat_s=0.1,
    lag_s=0.8,
    suspect_s=0.4,
    keep_behind=3,
    message_entries_max=4,
    snapshot_every=25,
    read_wait_s=2.0,
)
CONTROLLER_TUNING = isr.ControllerTuning(retry_s=0.2, patience_s=0.8, watch_s=1.0, report_s=1.0)
NOTHING_KEPT = events.Recovered(NOWHERE, NOWHERE, ())


class Disk:
    """What is on one disk; orders take effect when they are flushed."""

    def __init__(self) -> None:
        self.base = NOWHERE
        self.headers: list[Header] = []
        self.state: Any = None
        self.snapshot: Snapshot | None = None
        self.commit = -1
        self.waiting: list[Any] = []

    @property
    def head(self) -> EntryId:
        return self.headers[-1].id if self.headers else self.base

    def flush(self, upto: int) -> None:
        while self.waiting and self.waiting[0].io <= upto:
            self._do(self.waiting.pop(0))

    def _do(self, order: Any) -> None:
        if type(order) is effects.Append:
            assert order.headers[0].offset == self.head.offset + 1
            self.headers += order.headers
        elif type(order) is effects.Cut:
            self.headers = [header for header in self.headers if header.last <= order.to.offset]
            assert self.head == order.to
        elif type(order) is effects.SaveState:
            self.state = order.state
        elif type(order) is effects.InstallSnapshot:
            last = order.snapshot.last
            self.snapshot, self.base = order.snapshot, last
            self.headers = [header for header in self.headers if order.keep and header.offset > last.offset]
        elif type(order) is effects.RemovePrefix:
            self.base = order.to
            self.headers = [header for header in self.headers if header.offset > order.to.offset]

    def holds(self, entry: EntryId) -> bool:
        if entry.offset <= self.base.offset:
            return True
        return any(header.id == entry for header in self.headers)

    def recovered(self, rng: Random) -> events.Recovered:
        epochs: list[tuple[int, int]] = []
        for header in self.headers:
            if header.epoch != (epochs[-1][0] if epochs else self.base.epoch):
                epochs.append((header.epoch, header.offset))
        newest = tuple(self.headers[-rng.choice((3, 100)) :])
        return events.Recovered(
            self.base,
            self.head,
            tuple(epochs),
            newest,
            commit=self.commit,
            state=self.state,
            snapshot=self.snapshot,
        )


class Process:
    """A replica with its disk, or a controller without one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = 0
        self.incarnation = 1
        self.disk = Disk()
        self.machine: Any = None
        """The state machine; None while it is down."""

    @property
    def me(self) -> Member:
        return Member(self.number, self.incarnation)


class Storm:
    def __init__(self, seed: int, *, replicas: int = 3, controllers: int = 2, min_isr: int = 2) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.store = Store()
        self.states: list[isr.PartitionState] = []
        self.invariants = Invariants(1)
        self.nodes = {number: Process(number) for number in range(1, replicas + 1)}
        self.controllers = {number: Process(number) for number in range(101, 101 + controllers)}
        self.birth = isr.Birth(tuple(process.me for process in self.nodes.values()), min_isr)
        self.trouble = 0.0
        """How often something goes wrong, of the things that can."""
        self.is_silent = False
        self.cut_off: set[int] = set()
        self.settled: dict[int, int] = {}
        """Of each write that was acknowledged: its CRC, by its offset."""
        self.replies: dict[int, Outcome] = {}
        self.counts = {"crashes": 0, "wipes": 0, "reads": 0, "writes": 0, "elections": 0}
        self._commit = -1
        """The highest of any leader so far."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._requests = 0
        self._asked: dict[int, tuple[str, int]] = {}
        """Of each request: what it is, and a write's CRC, or what was settled when a read began."""
        self._wakes: dict[int, float] = {}
        for process in (*self.nodes.values(), *self.controllers.values()):
            self.start(process)

    # --- time ---

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, what))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            if until():
                return True
            self.now, _, what = heapq.heappop(self._heap)
            what()
        self.now = end
        return until()

    # --- life ---

    def start(self, process: Process) -> None:
        process.lives += 1
        rng = Random(self.rng.random())
        if process.number in self.nodes:
            process.machine = isr.Replica(isr.Config(process.me, TUNING), rng)
            self.tell(process, events.Started(process.disk.recovered(self.rng)))
            self.after(
                0.1, lambda: self.suspect(process.number)
            )  # The others see that it is in another life.
        else:
            process.machine = isr.Controller(CONTROLLER_TUNING, rng, birth=self.birth)
            self.tell(process, events.Started(NOTHING_KEPT))

    def crash(self, process: Process, *, for_s: float) -> None:
        if process.machine is None:
            return
        self.counts["crashes"] += 1
        process.machine = None
        # What was on its way to the disk may have got there, up to any order.
        orders = process.disk.waiting
        process.disk.flush(
            orders[self.rng.randrange(len(orders))].io if orders and self.rng.random() < 0.5 else -1
        )
        process.disk.waiting.clear()
        life = process.lives
        self.after(for_s, lambda: self.start(process) if process.lives == life else None)

    def wipe(self, process: Process) -> None:
        """The disk is lost while it is down; what comes back is somebody else."""
        if process.machine is not None:
            self.crash(process, for_s=self.rng.uniform(0.1, 1.0))
        self.counts["wipes"] += 1
        process.disk = Disk()
        process.incarnation += 1
        self.invariants.wiped(process.number)

    # --- steps ---

    def tell(self, process: Process, event: Any) -> None:
        machine = process.machine
        if machine is None:
            return
        ordered = machine.step(self.now, event)
        if process.number in self.nodes:
            self.invariants.stepped(process.number, 0, machine, event, ordered)
            self._look(process)
        for effect in ordered:
            self._carry_out(process, effect)
        self._schedule(process)

    def _schedule(self, process: Process) -> None:
        due = process.machine.deadline() if process.machine is not None else None
        if due is None:
            return
        due = max(due, self.now)
        life = process.lives

        def wake() -> None:
            if process.lives == life and process.machine is not None:
                now_due = process.machine.deadline()
                if now_due is not None and now_due <= self.now:
                    self.tell(process, events.TimePassed())

        if self._wakes.get(process.number, -1.0) != due:
            self._wakes[process.number] = due
            self.after(due - self.now, wake)

    def later(self, process: Process, seconds: float, event: Any) -> None:
        """For this life only."""
        life = process.lives
        self.after(seconds, lambda: self.tell(process, event) if process.lives == life else None)

    def _carry_out(self, process: Process, effect: Any) -> None:
        if isinstance(effect, effects.Send):
            self._post(process, effect)
        elif isinstance(effect, Reply):
            self._reply(process, effect)
        elif isinstance(effect, metadata.ReadShard | metadata.WriteShard):
            self._ask_store(process, effect)
        elif isinstance(effect, effects.Commit):
            if self.rng.random() < 0.3:  # The mark is written now and then.
                process.disk.commit = effect.offset
        elif isinstance(effect, effects.Read):
            headers = {h.offset: h for h in process.disk.headers + process.machine.log.window}
            found = tuple(headers[at] for at in sorted(headers) if headers[at].last >= effect.first)
            self.later(process, 0.005, events.Loaded(effect.token, found))
        elif isinstance(effect, effects.TakeSnapshot):
            self.later(process, 0.01, self._snapshot(process))
        elif isinstance(effect, effects.DiskEffect):
            self._to_disk(process, effect)

    def _snapshot(self, process: Process) -> Any:
        last = process.machine.log.boundary_at_or_below(process.machine.published)
        if last is None:
            return events.SnapshotFailed("nothing is settled")
        snapshot = Snapshot(last, 1, 10)
        process.disk.snapshot = snapshot
        return events.SnapshotTaken(snapshot)

    def _to_disk(self, process: Process, order: Any) -> None:
        disk, life = process.disk, process.lives
        disk.waiting.append(order)

        def flushed() -> None:
            if process.lives != life or process.machine is None or order not in disk.waiting:
                return
            if self.rng.random() < self.trouble * 0.02 and type(disk.waiting[0]) is effects.Append:
                first = disk.waiting[0].io
                disk.waiting.clear()
                self.tell(process, events.Failed(first, "full", disk.head))
                return
            disk.flush(order.io)
            self.tell(process, events.Persisted(order.io))

        slow = self.rng.choice((5.0, 30.0)) if self.rng.random() < self.trouble * 0.2 else 1.0
        self.after(self.rng.uniform(0.0005, 0.01) * slow, flushed)

    # --- network and store ---

    def _post(self, process: Process, effect: effects.Send) -> None:
        target = self.nodes.get(effect.to) or self.controllers.get(effect.to)
        assert target is not None
        sender = process.me
        for _ in range(2 if self.rng.random() < self.trouble * 0.2 else 1):
            lost = self.rng.random() < self.trouble * 0.15 or {process.number, effect.to} & self.cut_off
            if not lost:
                late = self.rng.uniform(0.1, 0.6) if self.rng.random() < self.trouble * 0.05 else 0.0
                self.after(
                    self.rng.uniform(0.0005, 0.01) + late,
                    lambda: self.tell(target, events.Received(sender, effect.message)),
                )

    def _ask_store(self, process: Process, request: Any) -> None:
        back = self.rng.uniform(0.001, 0.01)
        is_silent = self.is_silent

        def arrived() -> None:
            answer = self.store.do(request)
            if type(answer) is metadata.ShardWritten:
                self._stored()
            if not is_silent:
                self.later(process, back, answer)

        if not is_silent or self.rng.random() < 0.5:
            self.after(self.rng.uniform(0.001, 0.01) * (30.0 if is_silent else 1.0), arrived)
        if is_silent and self.rng.random() < 0.5:
            self.later(process, back, metadata.StoreSilent(request.token))

    def _stored(self) -> None:
        state = self.store.shard
        assert isinstance(state, isr.PartitionState)
        if self.states:
            before = self.states[-1]
            assert state.epoch == before.epoch + 1, "the epoch counts the changes"
            assert state.leader_epoch - before.leader_epoch in (0, 1)
            assert state.leader == before.leader or state.leader_epoch > before.leader_epoch
            assert state.leader in before.may_lead, "who leads had everything that was settled"
            self.counts["elections"] += state.leader_epoch > before.leader_epoch
        self.states.append(state)
        for member in state.may_lead:
            self._has_all(member, "stored")

    # --- what must hold ---

    def _look(self, process: Process) -> None:
        replica = process.machine
        if not isinstance(replica.role, Leader):
            return
        for member in replica.role.maximal_isr:
            self._has_all(member, f"counted by n{process.number}", upto=replica.commit)
        state = self.store.shard
        assert state is not None
        if replica.commit > self._commit:
            self._commit = replica.commit
            for member in state.may_lead:
                self._has_all(member, "in the store")

    def _has_all(self, member: Member, why: str, upto: int | None = None) -> None:
        """Whoever is in sync has flushed all that is settled; unless its disk is lost, which it never outlives."""
        settled = self.invariants.settled[0]
        process = self.nodes[member.node]
        at = settled.commit if upto is None else min(upto, settled.commit)
        if process.incarnation != member.incarnation or at < 0:
            return
        entry = EntryId(settled.epochs[at], at)
        assert process.disk.holds(entry), f"n{member.node}, {why}, lacks {entry}"

    # --- clients ---

    def _reply(self, process: Process, reply: Reply) -> None:
        kind, what = self._asked[reply.request]
        self.replies[reply.request] = reply.outcome
        if reply.outcome is not Outcome.SETTLED:
            return
        if kind == "write":
            self.counts["writes"] += 1
            assert self.settled.setdefault(reply.offset, what) == what, "one offset was given out twice"
        elif kind == "read":
            self.counts["reads"] += 1
            assert reply.offset >= what, f"a read saw {reply.offset}, and {what} was settled before it began"

    def request(self, kind: str, what: int) -> int:
        self._requests += 1
        self._asked[self._requests] = (kind, what)
        return self._requests

    def write(self, node: int) -> int:
        crc = self._requests + 1
        request = self.request("write", crc)
        self.tell(self.nodes[node], events.Proposed(request, (Header(0, 0, size=10, crc=crc),)))
        return request

    def read(self, node: int) -> None:
        request = self.request("read", self.invariants.settled[0].commit)
        self.tell(self.nodes[node], events.ReadAsked(request, ReadLevel.LINEARIZABLE))

    def order(self, order: Any) -> None:
        """To some controller that is up."""
        up = [process for process in self.controllers.values() if process.machine is not None]
        if up:
            self.tell(self.rng.choice(up), events.Commanded(order))

    def swap_wiped(self) -> None:
        """Whoever came back as somebody else is put in its own place."""
        state = self.store.shard
        for member in state.replicas if state is not None else ():
            now = self.nodes[member.node].me
            if now != member:
                self.order(ChangeReplicas(self.request("order", 0), old=member, new=now))

    def suspect(self, node: int) -> None:
        """The failure detectors of the other nodes say that this one is gone, or has restarted."""
        for process in self.nodes.values():
            if process.number != node:
                self.tell(process, events.Suspected(node))

    def suspect_all(self) -> None:
        """All detectors say who is gone, those beside controllers, too."""
        for node, process in self.nodes.items():
            if process.machine is None or node in self.cut_off:
                self.suspect(node)
                for controller in self.controllers.values():
                    self.tell(controller, events.Suspected(node))

    # --- the whole of it ---

    def rage(self, seconds: float, *, wipes: bool = True) -> None:
        """Everything at once, for so long."""
        self.trouble = 1.0
        end = self.now + seconds
        while self.now < end:
            self.run(self.rng.uniform(0.005, 0.1))
            dice = self.rng.random()
            if dice < 0.5:
                self.write(self.rng.choice(list(self.nodes)))
            elif dice < 0.65:
                self.read(self.rng.choice(list(self.nodes)))
            elif dice < 0.70:
                self.crash(self.rng.choice(list(self.nodes.values())), for_s=self.rng.uniform(0.05, 2.0))
            elif dice < 0.72:
                self.crash(
                    self.rng.choice(list(self.controllers.values())), for_s=self.rng.uniform(0.05, 1.0)
                )
            elif dice < 0.74:
                self.cut_off ^= {self.rng.choice([*self.nodes, *self.controllers])}
            elif dice < 0.76:
                self.is_silent = not self.is_silent and self.rng.random() < 0.5
            elif dice < 0.80:
                self.suspect_all()
            elif dice < 0.805 and wipes:
                self.wipe_safely()
            elif dice < 0.84:
                self.swap_wiped()
            elif dice < 0.86:
                leader = self.store.shard.leader if self.store.shard is not None else None
                if leader is not None:
                    self.crash(self.nodes[leader.node], for_s=self.rng.uniform(0.05, 2.0))

    def wipe_safely(self) -> None:
        """Not more disks than the minimum stands for: what is settled stays on one that is in sync."""
        state = self.store.shard
        if state is None:
            return
        whole = [member for member in state.may_lead if self.nodes[member.node].me == member]
        victims = [p for p in self.nodes.values() if len([m for m in whole if m.node != p.number]) >= 1]
        lost = [member for member in state.isr if self.nodes[member.node].me != member]
        if victims and not lost and len(state.isr) >= 2:
            self.wipe(self.rng.choice(victims))

    def calm(self) -> None:
        self.trouble = 0.0
        self.is_silent = False
        self.cut_off.clear()
        for process in (*self.nodes.values(), *self.controllers.values()):
            if process.machine is None:
                self.start(process)

    def heal(self, seconds: float = 60.0) -> None:
        """Nothing goes wrong any more: everybody gets in sync, has everything, and falls silent."""
        self.calm()
        end = self.now + seconds
        request = 0
        while self.now < end and not self._is_well():
            self.swap_wiped()
            self.suspect_all()
            state = self.store.shard
            if state is not None and self.replies.get(request, Outcome.UNKNOWN) is not Outcome.SETTLED:
                request = self.write(state.leader.node)
            self.run(0.5)
        assert self._is_well(), self.describe()
        self.run(5.0)
        assert self._is_quiet(), self.describe()
        for offset, crc in self.settled.items():
            for process in self.nodes.values():
                found = [header for header in process.disk.headers if header.offset == offset]
                assert offset <= process.disk.base.offset or [header.crc for header in found] == [crc]

    def _is_well(self) -> bool:
        state = self.store.shard
        if state is None or len(state.isr) < len(self.nodes):
            return False
        heads = {process.machine.log.head for process in self.nodes.values() if process.machine is not None}
        commits = {process.machine.commit for process in self.nodes.values() if process.machine is not None}
        (head, *others), (commit, *_) = heads, commits
        return not others and len(commits) == 1 and commit == head.offset

    def _is_quiet(self) -> bool:
        return all(process.machine.deadline() is None for process in self.nodes.values())

    def describe(self) -> str:
        lines = [f"at {self.now:.3f}: {self.store.shard}"]
        for process in (*self.nodes.values(), *self.controllers.values()):
            machine = process.machine
            deadline = machine.deadline() if machine is not None else None
            lines.append(
                f"  {process.me} {machine.describe() if machine is not None else 'down'} until {deadline}"
            )
        return "\n".join(lines)
