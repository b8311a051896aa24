"""After the faults: everything heals, and the world must come to rest with nothing lost.

In turn: every process runs; whoever counts has everything, though nothing may be moved for others; a fresh
proposal settles on every partition; producers with ids get through with what they still have under way; changes
of membership come to an end; every request to a living node is answered; every byte is checked, so that hidden
damage is found and repaired; all replicas of a partition, wiped ones too, become equal; idle groups fall
silent; and whatever was acknowledged is read back from every node.

Where ensembles change, that is said of the members that there are in the end: who was left out, or never taken
in, need not have anything, and may go on asking.

What does not come about in time violates `liveness` or, in `coordinated`, the property that Oxia's specification
names (core/coordinated/operator_invariants.py): eventually-all-values-committed, where nothing is settled, and
eventually-reconfiguration-completes, where one is still in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Span
from quorate.core.invariant import Violated
from quorate.host import Hosted
from quorate.sim.chance import stream
from quorate.sim.chaos import Chaos
from quorate.sim.compaction import Compaction
from quorate.sim.confirm_steward import ConfirmSteward
from quorate.sim.invariants import Invariants
from quorate.sim.moving import Moving
from quorate.sim.oracle import Fate, Oracle
from quorate.sim.planner import Planner
from quorate.sim.steward import Steward
from quorate.sim.workload import Workload
from quorate.sim.world import World
from quorate.storage.frame import Frame

PATIENCE_PACES = 600
"""How many election time-outs the world has for each step of its way to rest."""
STEPS_MAX = 400_000
LIVENESS = "liveness"
VALUES_COMMITTED = "eventually-all-values-committed"
RECONFIGURATION_COMPLETES = "eventually-reconfiguration-completes"
READ_BYTES = 1 << 16
PRODUCER_ID = 1 << 20
"""New producers have ids above those of all clients."""


class Healing:
    def __init__(
        self,
        world: World,
        workload: Workload,
        oracle: Oracle,
        invariants: Invariants,
        steward: Steward | Planner,
    ) -> None:
        self.world = world
        self.steward = steward
        self.workload = workload
        self.oracle = oracle
        self.invariants = invariants
        self.pace = world.tunables.pace_s
        self.starts: dict[int, int] = {}
        """By partition: the last offset that is not to be kept any longer."""
        self.compaction: Compaction | None = None
        """What was agreed on, where logs are compacted."""
        self.moving: Moving | None = None
        self._steps_max = world.steps_count + STEPS_MAX

    def follows(self, chaos: Chaos) -> None:
        """What went on while everything went wrong, and is to come to its end."""
        self.starts = {number: entry.offset for number, (entry, _) in chaos.expiry.wanted.items()}
        self.compaction = chaos.compaction if self.oracle.survival is not None else None
        self.moving = chaos.moving

    def run(self) -> None:
        committed = VALUES_COMMITTED if self.world.setup.protocol == "coordinated" else LIVENESS
        if self.moving is not None and self.moving.stands_still:
            self.wait("who counts waits its turn", self._held_back)
            self.moving.go_on()
        self.wait("no fresh proposal settles", self._proposals(), committed)
        self.wait("batches of producers do not settle", self.workload.insist(self.pace * 1.5), committed)
        if isinstance(self.steward, ConfirmSteward):
            self.wait("who was cut loose is not joined again", self.steward.still_loose)
        if self.world.setup.operators:
            self.wait("changes do not come to an end", self.steward.settle_down())
            self.wait("who came back is not taken in", self.steward.renew())
            self.wait("changes do not come to an end", self.steward.settle_down())
        elif self.world.setup.outsiders:
            self.wait("changes do not come to an end", self.steward.settle_down())
            if stream(self.world.setup.seed, "renewing").random() < 0.5:
                self.wait("who came back is not taken in", self.steward.renew())
                self.wait("changes do not come to an end", self.steward.settle_down())
        self.wait("commands stay unanswered", self.steward.unanswered)
        self.wait("requests stay unanswered", self.workload.unanswered)
        self._check_all()
        self.wait("copies do not become equal", self._unequal)
        if self.compaction is not None:
            self.wait("compaction does not end", self.compaction.unfinished)
            self.wait("copies are not compacted", self._unequal)
        self.wait("idle groups do not fall silent", self._noisy)
        self._digests()
        self._tables()
        self._read_everything()

    def wait(self, what: str, missing: Callable[[], list[str]], promise: str = LIVENESS) -> None:
        """Let time pass until nothing is missing, or comes any nearer."""
        world, arrived = self.world, 0
        deadline = world.now + PATIENCE_PACES * self.pace
        while found := missing():
            if (arriving := self._arriving()) > arrived:  # In pieces of sixteen bytes that may take its time.
                arrived, deadline = arriving, world.now + PATIENCE_PACES * self.pace
            if world.now > deadline or world.steps_count >= self._steps_max:
                states = "; ".join(self._states())
                raise Violated(self._broken(promise), f"{what}: {', '.join(found)}; {states}")
            world.run(world.now + self.pace / 2, self._steps_max)

    def _arriving(self) -> int:
        """How much of a snapshot somebody has got, at most."""
        staged = (hosted.replica.staging for _, _, hosted in self._copies() if hosted is not None)
        return max((staging.at for staging in staged if staging is not None), default=0)

    def _broken(self, promise: str) -> str:
        """A reconfiguration that does not end holds up whatever comes after it."""
        is_stuck = isinstance(self.steward, Planner) and self.steward.is_reconfiguring()
        return RECONFIGURATION_COMPLETES if promise == LIVENESS and is_stuck else promise

    def _copies(self) -> list[tuple[int, int, Hosted | None]]:
        """(partition, node, replica) of every copy that counts or follows in the end."""
        return [
            (partition, number, self.world.hosted(number, partition))
            for partition in range(len(self.world.partitions))
            for number in self.steward.members(partition)
        ]

    def _states(self) -> list[str]:
        return [
            f"p{partition} " + (hosted.replica.describe() if hosted is not None else f"n{number} down")
            for partition, holders in enumerate(self.world.setup.holders)
            for number in holders
            for hosted in (self.world.hosted(number, partition),)
        ]

    # --- one after the other ---

    def _proposals(self) -> Callable[[], list[str]]:
        """Proposes to every partition until somebody settles it."""
        probes = [Probe(self, partition) for partition in self.world.setup.shards]
        for probe in probes:
            probe.propose(None)
        return lambda: [f"p{probe.partition}" for probe in probes if not probe.settled]

    def _check_all(self) -> None:
        """The scrubber: read every byte of every copy."""
        open_checks: dict[tuple[int, int], str] = {}

        def done(key: tuple[int, int]) -> Callable[[list[Span]], None]:
            def checked(_: list[Span]) -> None:
                open_checks.pop(key, None)

            return checked

        for partition, number, hosted in self._copies():
            if hosted is not None:
                open_checks[partition, number] = f"p{partition} n{number}"
                self.world.check(number, partition, done((partition, number)))
        self.wait("checks do not end", lambda: list(open_checks.values()))

    def _held_back(self) -> list[str]:
        """Which copies count, and have not all that is settled. They may not know it yet: with one that does not
        count and waits its turn, an in-sync set may be too small for anything to be settled (`isr`)."""
        found = []
        for partition in range(len(self.world.partitions)):
            settled = self.invariants.settled[partition].commit
            for member in self.steward.counted(partition):
                hosted = self.world.hosted(member.node, partition)
                if hosted is None or hosted.replica.me != member:
                    continue  # One that has lost its disk since.
                if hosted.replica.faulty or hosted.replica.log.head.offset < settled:
                    found.append(f"p{partition} n{member.node} is faulty or has not all up to {settled}")
        return found

    def _unequal(self) -> list[str]:
        found = []
        for partition, number, hosted in self._copies():
            why = self._differs(hosted, self.invariants.settled[partition].commit)
            start = self.starts.get(partition, -1)
            if not why and hosted is not None and hosted.replica.log.base.offset < start:
                why = f"starts at {hosted.replica.log.base}, and nothing up to {start} is to be kept"
            if not why and hosted is not None and self.compaction is not None:
                why = self.compaction.behind(partition, hosted)
            if why:
                found.append(f"p{partition} n{number} {why}")
        return found

    def _differs(self, hosted: Hosted | None, settled: int) -> str:
        """In what a copy is not yet as it should be; empty if it is."""
        if hosted is None:
            return "is down"
        replica = hosted.replica
        head = replica.log.head
        if replica.faulty:
            return "is faulty"
        if head.offset != settled or replica.commit != settled:
            return f"has not all up to {settled}"
        if replica.durable != head or replica.published != settled:
            return f"has flushed up to {replica.durable} and published up to {replica.published}"
        if hosted.applied != head:
            return f"has applied up to {hosted.applied}"
        return ""

    def _noisy(self) -> list[str]:
        return [
            f"p{partition} n{number}"
            for partition, number, hosted in self._copies()
            if hosted is None or hosted.replica.deadline() is not None
        ]

    def _digests(self) -> None:
        machines: dict[int, bytes] = {}
        for partition, number, hosted in self._copies():
            assert hosted is not None
            self.invariants.applied(number, partition, hosted.applied.offset, hosted.tally.counts)
            machine = hosted.machine.snapshot()
            if machines.setdefault(partition, machine) != machine:
                raise Violated("machine-digest", f"p{partition} n{number} has another machine than others")

    def _tables(self) -> None:
        """Every copy of a table group is what the settled log makes of it, whichever way it came about."""
        copies = self._copies()
        for group in self.workload.tables.values():
            group.finish(
                [(number, hosted) for partition, number, hosted in copies if partition == group.partition]
            )

    def _read_everything(self) -> None:
        """Every settled entry, from every copy, all of them side by side."""
        reading: dict[tuple[int, int], str] = {}
        given: dict[tuple[int, int], list[Frame]] = {}

        def read_on(number: int, partition: int, first: int, end: int) -> None:
            if first > end:
                reading.pop((partition, number), None)
                self._survived(partition, number, given.get((partition, number), []), end)
                return
            reading[partition, number] = f"p{partition} n{number} at {first}"

            def done(frames: list[Frame], commit: int, base: int) -> None:
                hosted = self.world.hosted(number, partition)
                if not frames and hosted is not None:  # A snapshot may have taken their place meanwhile.
                    base = hosted.replica.log.base.offset
                upto = self.oracle.fetched(reader, first, frames, commit, base)
                given.setdefault((partition, number), []).extend(frames)
                if upto <= first:
                    raise Violated("read-gap", f"p{partition}: n{number} has nothing at {first}")
                read_on(number, partition, upto, end)

            reader = (number, self.world.life(number), partition)
            self.world.fetch(number, partition, first, READ_BYTES, done)

        for partition, number, hosted in self._copies():
            if partition not in self.world.setup.shards:
                continue  # What clients never wrote to.
            assert hosted is not None
            self.oracle.lost_below(partition, hosted.replica.log.head.offset, f"n{number}")
            read_on(number, partition, hosted.replica.log.base.offset + 1, hosted.commit)
        self.wait("reads do not end", lambda: list(reading.values()))

    def _survived(self, partition: int, number: int, frames: list[Frame], end: int) -> None:
        if self.compaction is None or self.oracle.survival is None or partition in self.world.setup.tables:
            return
        generation = self.compaction.agreed.get(partition)
        self.oracle.survival.check(partition, generation, frames, end, f"n{number}")


class Probe:
    """Proposes fresh values to one partition until one is settled."""

    def __init__(self, healing: Healing, partition: int) -> None:
        self.world = healing.world
        self.oracle = healing.oracle
        self.workload = healing.workload
        self.pause = healing.pace
        self.partition = partition
        self.settled = False
        self._tries = 0

    def propose(self, _: Any) -> None:
        if self.settled:
            return
        self._tries += 1
        self.workload.proposals_count += 1
        number = self.workload.proposals_count
        payload = self._payload(number)
        proposal = self.oracle.proposed(number, self.partition, [payload], [1])
        setup = self.world.setup
        voters = (setup.holders if setup.outsiders else setup.voters)[self.partition]

        def answer(reply: Reply) -> None:
            if reply.outcome is Outcome.SETTLED:
                self.oracle.acknowledged(proposal, reply.offset)
                if reply.timestamp:
                    self.oracle.stamped(self.partition, reply.offset, reply.epoch, reply.timestamp)
                self.settled = True
            elif reply.outcome is not Outcome.UNKNOWN:
                proposal.fate = Fate.REFUSED

        self.world.propose(voters[self._tries % len(voters)], self.partition, [payload], answer)
        self.world.after(self.pause * 1.5, self.propose, None)

    def _payload(self, number: int) -> bytes:
        group = self.workload.tables.get(self.partition)
        if group is not None:
            return group.fresh(number)
        return encode_records([(None, b"fresh %d" % number)], timestamp=number, **self._numbers(number))

    def _numbers(self, number: int) -> dict[str, int]:
        """Where clients have producer ids, some of the fresh proposals are the first of a new producer."""
        if number % 2 == 0 or not self.workload.manners.producers_share:
            return {}
        return {"producer_id": PRODUCER_ID + number, "producer_epoch": 0, "base_sequence": 0}
