"""Clients: they propose unique values to whoever they believe leads, read anywhere, and give up in time.

A client learns from every answer: where the leader is, that a node is busy or full, that nobody knows what
became of its proposal (then the value is never proposed again: rule 9). Whatever a node answers goes to the
oracle at that moment, even if the client has stopped waiting: a promise is a promise.

Some clients have producer ids. They need not know what became of a batch to propose it again: pipeline.py. Where a
partition is a table group, they make transactions instead: table_client.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from quorate.batch import Record, encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.host.querying import Consistency
from quorate.sim.chance import stream
from quorate.sim.oracle import Fate, Oracle, Proposal
from quorate.sim.pipeline import Pipeline
from quorate.sim.reading import Reader
from quorate.sim.survival import keyed
from quorate.sim.table_client import Teller
from quorate.sim.table_group import TableGroup
from quorate.storage.frame import Frame

ATTEMPTS_MAX = 12
READ_BYTES = (1, 2_000, 20_000)


class Workplace(Protocol):
    """What clients need of the world."""

    now: float

    def after(self, seconds: float, function: Callable[[Any], None], argument: Any) -> None: ...

    def life(self, node: int) -> int:
        """Which life the node is in; 0 if it is down."""
        ...

    def propose(
        self, node: int, partition: int, payloads: list[bytes], answer: Callable[[Reply], None]
    ) -> bool:
        """False: nobody there."""
        ...

    def fetch(
        self,
        node: int,
        partition: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[Frame], int, int], None],
    ) -> bool:
        """`done` gets the entries, the node's commit, and the offset just below its log."""
        ...

    def read(
        self, node: int, partition: int, level: ReadLevel, answer: Callable[[Reply], None], offset: int = -1
    ) -> bool:
        """Up to where one may read there. False: nobody there."""
        ...

    def query(
        self,
        node: int,
        partition: int,
        ask: Callable[[Any, Any], Any],
        answer: Callable[[Reply, Any], None],
        *,
        consistency: Consistency,
        offset: int = -1,
    ) -> bool:
        """Let `ask` look at the node's machine. False: nobody there."""
        ...

    def applied(self, node: int, partition: int) -> int:
        """What a node can show at this moment; -1 if nothing."""
        ...


class Manners(msgspec.Struct, frozen=True):
    """How clients behave in one run."""

    clients_count: int = 4
    patience_s: float = 1.0
    """A client waits this long for an answer."""
    pause_s: float = 0.02
    """Between two requests, on average."""
    reads_share: float = 0.3
    value_bytes_max: int = 200
    large_share: float = 0.02
    large_bytes: int = 4_000
    delay_s: float = 0.001
    producers_share: float = 0.0
    """Of the clients: those that write with producer ids."""
    readers_count: int = 0
    """Further clients that only ask up to where they may read: reading.py."""


class Attempt(msgspec.Struct):
    """One request to one node."""

    number: int
    proposal: Proposal
    node: int
    tries: int
    given_up: bool = False


class Workload:
    """All clients of a run."""

    def __init__(
        self,
        seed: int,
        world: Workplace,
        oracle: Oracle,
        manners: Manners,
        holders: tuple[tuple[int, ...], ...],
        tables: Mapping[int, TableGroup] = MappingProxyType({}),
    ) -> None:
        """`holders`: the nodes of each partition; `tables`: those partitions that are table groups."""
        self.world = world
        self.oracle = oracle
        self.manners = manners
        self.holders = holders
        self.tables = tables
        self.open = True
        self.waiting: dict[int, tuple[int, int, str]] = {}
        """Requests that a node has and has not answered: (node, its life, what)."""
        self.proposals_count = 0
        self.requests_count = 0
        self.keys = stream(seed, "keys")
        """Which records have which key, where logs are compacted."""
        self.clients = [
            Client(self, number, stream(seed, "client", number)) for number in range(manners.clients_count)
        ]
        self.readers = [
            Reader(self, stream(seed, "reader", number)) for number in range(manners.readers_count)
        ]

    def begin(self) -> None:
        for client in self.clients:
            client.rest()
        for reader in self.readers:
            reader.rest()

    def close(self) -> None:
        """Nothing more is asked of any node; what was asked goes on until it is answered."""
        self.open = False

    def insist(self, pause_s: float) -> Callable[[], list[str]]:
        """Producers go on with what they have not been told to be settled. Returns what is left of it."""
        pipelines = [pipeline for client in self.clients for pipeline in client.pipelines]
        tellers = [teller for client in self.clients for teller in client.tellers.values()]
        for pipeline in pipelines:
            pipeline.insist(pause_s)
        for teller in tellers:
            teller.insist(pause_s)
        return lambda: [
            *(str(pipeline) for pipeline in pipelines if pipeline.under_way),
            *(str(teller) for teller in tellers if teller.doubtful),
        ]

    def unanswered(self) -> list[str]:
        """Requests that a node which still lives has never answered."""
        return [
            f"{what} at n{node}"
            for node, life, what in self.waiting.values()
            if self.world.life(node) == life
        ]


class Client:
    def __init__(self, workload: Workload, number: int, rng: Random) -> None:
        self.workload = workload
        self.world = workload.world
        self.oracle = workload.oracle
        self.manners = workload.manners
        self.number = number
        self.rng = rng
        self.stubborn = rng.random() < 0.4
        """Goes on asking whoever led last: a leader that was cut off gets something to append."""
        self.leaders = [0] * len(workload.holders)
        self.tails = [0] * len(workload.holders)
        """Where this client reads on, per partition."""
        share = self.manners.producers_share
        partitions = range(len(workload.holders)) if share and rng.random() < share else ()
        self.pipelines = [Pipeline(self, number, partition) for partition in partitions]
        """One per partition, if this client has producer ids."""
        self.tellers = {partition: Teller(self, group) for partition, group in workload.tables.items()}

    def rest(self) -> None:
        pause = self.rng.expovariate(1.0 / self.manners.pause_s)
        self.world.after(pause, self._act, None)

    def _act(self, _: None) -> None:
        if not self.workload.open:
            return
        partition = self.rng.randrange(len(self.workload.holders))
        if self.rng.random() < self.manners.reads_share:
            self._read(partition)
        elif partition in self.tellers:
            self.tellers[partition].act()
            self.rest()
        elif self.pipelines:
            self.pipelines[partition].propose()
            self.rest()
        else:
            self.propose(partition)

    # --- writing ---

    def propose(self, partition: int) -> Proposal:
        rng = self.rng
        entries_count = 1 if rng.random() < 0.8 else rng.randint(2, 4)
        counts = [rng.choice((1, 1, 2, 3)) for _ in range(entries_count)]
        self.workload.proposals_count += 1
        number = self.workload.proposals_count
        payloads = [
            encode_records(self.records(number, index, count), timestamp=number)
            for index, count in enumerate(counts)
        ]
        proposal = self.oracle.proposed(number, partition, payloads, counts)
        self._attempt(proposal, 1)
        return proposal

    def records(self, number: int, index: int, count: int) -> Sequence[Record | tuple[None, bytes]]:
        """Of entry `index` of a proposal; nobody else ever proposes the same."""
        made = [(None, self._value(number, index, record)) for record in range(count)]
        return made if self.oracle.survival is None else keyed(self.workload.keys, made)

    def _value(self, number: int, index: int, record: int) -> bytes:
        name = b"c%d.%d.%d.%d " % (self.number, number, index, record)
        large = self.rng.random() < self.manners.large_share
        size = self.manners.large_bytes if large else self.rng.randint(0, self.manners.value_bytes_max)
        return name + b"." * size

    def _attempt(self, proposal: Proposal, tries: int) -> None:
        attempt = self.make_attempt(proposal, tries)
        self.world.after(self.travel_s(), self._arrive, attempt)
        self.world.after(self.manners.patience_s, self._give_up, attempt)

    def make_attempt(self, proposal: Proposal, tries: int) -> Attempt:
        """A request to whom the client believes to lead."""
        partition = proposal.partition
        node = self.leaders[partition] or self.rng.choice(self.workload.holders[partition])
        self.workload.requests_count += 1
        return Attempt(self.workload.requests_count, proposal, node, tries)

    def travel_s(self) -> float:
        return self.manners.delay_s * (0.5 + self.rng.random())

    def _arrive(self, attempt: Attempt) -> None:
        proposal = attempt.proposal
        if attempt.given_up:
            return
        if not self.workload.open:
            self._again(attempt, leader=0)
            return
        proposal.attempts_open += 1
        if not self.hand_over(attempt, lambda reply: self._answered(attempt, reply)):
            proposal.attempts_open -= 1  # Nobody took it.
            self._again(attempt, leader=0)

    def hand_over(self, attempt: Attempt, answered: Callable[[Reply], None]) -> bool:
        """Propose it there; False: nobody took it."""
        proposal = attempt.proposal
        waiting = self.workload.waiting
        what = f"proposal {proposal.number} of p{proposal.partition}"
        waiting[attempt.number] = (attempt.node, self.world.life(attempt.node), what)

        def answer(reply: Reply) -> None:
            if waiting.pop(attempt.number, None) is not None:
                answered(reply)

        taken = self.world.propose(attempt.node, proposal.partition, list(proposal.payloads), answer)
        if not taken:
            waiting.pop(attempt.number, None)
        return taken

    def _answered(self, attempt: Attempt, reply: Reply) -> None:
        proposal = attempt.proposal
        outcome = reply.outcome
        if outcome is Outcome.SETTLED:
            self.oracle.acknowledged(proposal, reply.offset)
            if reply.timestamp:
                self.oracle.stamped(proposal.partition, reply.offset, reply.epoch, reply.timestamp)
            self.leaders[proposal.partition] = attempt.node
            self._finish(attempt)
        elif outcome is Outcome.UNKNOWN:
            self.doubt(proposal.partition)
            if proposal.fate is Fate.OPEN:
                proposal.fate = Fate.UNKNOWN
            self._finish(attempt)
        else:
            proposal.attempts_open -= 1
            hint = reply.leader if outcome is Outcome.NOT_LEADER else attempt.node
            self._again(attempt, leader=hint)

    def _again(self, attempt: Attempt, *, leader: int) -> None:
        """It was certainly not taken: try elsewhere, or later."""
        if attempt.given_up:
            self._refused(attempt)
            return
        attempt.given_up = True  # This attempt is over; its patience is spent on the next one.
        proposal = attempt.proposal
        self.leaders[proposal.partition] = leader if leader != attempt.node else 0
        if attempt.tries >= ATTEMPTS_MAX or not self.workload.open:
            self._refused(attempt)
            self.rest()
            return
        pause = self.manners.pause_s * self.rng.random() * attempt.tries
        self.world.after(pause, self._retry, attempt)

    def _retry(self, attempt: Attempt) -> None:
        if self.workload.open:
            self._attempt(attempt.proposal, attempt.tries + 1)
        else:
            self._refused(attempt)

    def _refused(self, attempt: Attempt) -> None:
        proposal = attempt.proposal
        if proposal.attempts_open == 0 and proposal.fate in (Fate.OPEN, Fate.UNKNOWN):
            proposal.fate = Fate.REFUSED

    def _give_up(self, attempt: Attempt) -> None:
        """No answer in time: unknown, never 'not written' (rule 9)."""
        if attempt.given_up:
            return
        attempt.given_up = True
        self.doubt(attempt.proposal.partition)
        if attempt.proposal.fate is Fate.OPEN:
            attempt.proposal.fate = Fate.UNKNOWN
        self.rest()

    def doubt(self, partition: int) -> None:
        if not self.stubborn or self.rng.random() < 0.3:
            self.leaders[partition] = 0

    def _finish(self, attempt: Attempt) -> None:
        if not attempt.given_up:
            attempt.given_up = True
            self.rest()

    # --- reading ---

    def _read(self, partition: int) -> None:
        rng = self.rng
        node = rng.choice(self.workload.holders[partition])
        tail = self.tails[partition]
        offset = tail if rng.random() < 0.6 else rng.randint(0, tail + 3)
        bytes_max = rng.choice(READ_BYTES)
        life = self.world.life(node)
        self.workload.requests_count += 1
        number = self.workload.requests_count
        waiting = self.workload.waiting
        reader = (node, life, partition)
        known = self.oracle.known_commit(reader)

        def done(frames: list[Frame], commit: int, base: int) -> None:
            waiting.pop(number, None)
            end = self.oracle.fetched(reader, offset, frames, commit, base, known)
            self.tails[partition] = max(self.tails[partition], end if frames else base + 1)

        waiting[number] = (node, life, f"a read of p{partition} from {offset}")
        if not self.world.fetch(node, partition, offset, bytes_max, done):
            waiting.pop(number, None)
        self.rest()
