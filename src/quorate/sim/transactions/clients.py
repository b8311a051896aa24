"""Producers of a world of transactions, as scripts: they do what Kafka's and Spark's do, and remember it.

Some die in the middle, and another begins under the same name; some of those only seem to be dead, and go on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from quorate.batch import TRANSACTIONAL, encode_records
from quorate.core.effects import Outcome
from quorate.machine.transaction_words import (
    AbortJoint,
    AddPartitions,
    BeginProducer,
    EndPlain,
    OpenAttempt,
    Result,
    Verdict,
)
from quorate.sim.transactions.logs import Log
from quorate.sim.transactions.serving import Cluster, Listed
from quorate.sim.transactions.world import Ask, Script, Sleep

TRIES = 6
IN = -1
"""Among tasks that are done: the number is in already."""
NOW = 0
"""In place of what the node that is asked fills in: the time, and ids that nobody had before."""


class Plain(msgspec.Struct):
    """One plain transaction, as its producer knows it."""

    name: str
    sent: set[bytes] = msgspec.field(default_factory=set)
    acked: dict[int, list[bytes]] = msgspec.field(default_factory=dict)
    """By partition, in their order."""
    outcome: str = "open"
    """open, committed, aborted, or unknown: whether it was committed was not answered."""


class Joint(msgspec.Struct):
    """One commit of a joint transaction, as whoever asked for it knows it."""

    app: str
    number: int
    listed: dict[int, list[bytes]]
    """Values by partition."""
    outcome: str = "unknown"
    """unknown, committed, already in, or failed."""


class Book:
    """What all clients remember, for the oracle."""

    def __init__(self) -> None:
        self.plain: list[Plain] = []
        self.joint: list[Joint] = []
        self.never: set[bytes] = set()
        """Values of attempts that no commit has listed."""


class Producer:
    """What both kinds have in common: batches under one producer id."""

    def __init__(self, cluster: Cluster, name: str, life: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.life = life
        self.id = self.epoch = -1
        self.sequences: dict[int, int] = {}
        self.values = 0
        self.tries = self.world.rng.randint(1, TRIES)

    def ask_home(self, command: Any, *, is_ordered: bool = False) -> Ask:
        home = self.cluster.home_of(self.name)
        return Ask(
            self.cluster.guess(home), partial(self.cluster.command, home, command), is_ordered=is_ordered
        )

    def write(self, log: Log, sent: set[bytes]) -> Any:
        """A batch, as often as it takes: its values; or None, where nobody knows; or the verdict that ended it."""
        count = self.world.rng.randint(1, 3)
        values = [
            b"%s/%s/%d" % (self.name.encode(), self.life.encode(), self.values + each)
            for each in range(count)
        ]
        self.values += count
        sent.update(values)
        payload = encode_records(
            [(None, value) for value in values],
            attributes=TRANSACTIONAL,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(log.number, 0),
        )
        for _ in range(self.tries):
            what = partial(self.cluster.produce, log, self.name, payload)
            answer = yield Ask(self.cluster.guess(log), what)
            if answer in (Outcome.SETTLED, Outcome.DUPLICATE):
                self.sequences[log.number] = self.sequences.get(log.number, 0) + count
                return values
            if isinstance(answer, Verdict) and answer is not Verdict.CONCURRENT:
                return answer
            if answer in (Outcome.FENCED, Outcome.OUT_OF_ORDER):
                return answer
            yield Sleep(self.world.rng.uniform(0.02, 0.3))
        return None


# ---- plain ----
#
# An EndTxn does not say which transaction it means: one that arrives when the next is open ends that. Only an epoch
# for each transaction would help (KIP-890, part 2). So what a producer asks of its coordinator is ordered here.


def plain(cluster: Cluster, book: Book, name: str, life: int, until: float) -> Script:
    """One life of a producer with a transactional id."""
    world = cluster.world
    me = Producer(cluster, name, str(life))
    timeout_ms = world.rng.choice((800, 3000, 10_000))
    if not (yield from _begin(me, timeout_ms, keeps=False)):
        return
    is_careful = world.rng.random() < 0.6
    while world.now < until:
        if not (yield from _transaction(me, book)):
            if not is_careful:
                # As clients did before KIP-360: the end first, under the epoch that it has, and then anew.
                yield me.ask_home(EndPlain(me.name, me.id, me.epoch, False, NOW), is_ordered=True)
                yield Sleep(world.rng.uniform(0.0, 3.0))
            if not (yield from _begin(me, timeout_ms, keeps=is_careful)):
                return
        yield Sleep(world.rng.expovariate(1 / 0.2))


def _begin(me: Producer, timeout_ms: int, *, keeps: bool) -> Any:
    """InitProducerId; whether this life goes on."""
    for _ in range(40):
        given = (me.id, me.epoch) if keeps else (-1, -1)
        command = BeginProducer(me.name, NOW, timeout_ms, NOW, *given)
        result: Result | None = yield me.ask_home(command, is_ordered=True)
        if result is not None and result.verdict is Verdict.DONE:
            me.id, me.epoch, me.sequences = result.producer_id, result.epoch, {}
            return True
        if result is not None and result.verdict is Verdict.FENCED:
            return False
        yield Sleep(me.world.rng.uniform(0.05, 0.3))
    return False


def _transaction(me: Producer, book: Book) -> Any:
    """Whether the producer can go on as it is; otherwise it begins a new epoch, or its life is over."""
    world = me.world
    logs = world.rng.sample(me.cluster.topics, world.rng.randint(1, len(me.cluster.topics)))
    for _ in range(40):
        partitions = tuple(log.partition for log in logs)
        command = AddPartitions(me.name, me.id, me.epoch, partitions, NOW)
        result = yield me.ask_home(command, is_ordered=True)
        if result is not None and result.verdict is Verdict.DONE:
            break
        if result is not None and result.verdict is not Verdict.CONCURRENT:
            return False
        yield Sleep(world.rng.uniform(0.02, 0.2))
    else:
        return False
    mine = Plain(f"{me.name}/{me.life}/{len(book.plain)}")
    book.plain.append(mine)
    for _ in range(world.rng.randint(1, 5)):
        log = world.rng.choice(logs)
        values = yield from me.write(log, mine.sent)
        if not isinstance(values, list):
            mine.outcome = "aborted"  # Nobody will ever ask to commit it.
            return False
        mine.acked.setdefault(log.number, []).extend(values)
        if world.rng.random() < 0.1:
            yield Sleep(world.rng.uniform(0.1, 4.0))
    return (yield from _end(me, mine, commit=world.rng.random() < 0.7))


def _end(me: Producer, mine: Plain, *, commit: bool) -> Any:
    mine.outcome = "unknown" if commit else "aborted"
    in_doubt = False
    for _ in range(TRIES):
        command = EndPlain(me.name, me.id, me.epoch, commit, NOW)
        result = yield me.ask_home(command, is_ordered=True)
        if result is not None and result.verdict is Verdict.DONE:
            mine.outcome = "committed" if commit else "aborted"
            return True
        if result is not None:
            if not in_doubt:
                mine.outcome = "aborted"
            return False
        in_doubt = True
        yield Sleep(me.world.rng.uniform(0.02, 0.3))
    return False


# ---- joint ----


def joint(cluster: Cluster, book: Book, app: str, run: int, until: float) -> Script:
    """One run of an app: number after number, from the first that is not in."""
    world = cluster.world
    name = f"run-{run}"
    number = yield from _first_number(cluster, app)
    while world.now < until:
        done: dict[int, tuple[Listed, dict[int, list[bytes]]]] = {}
        tasks = world.rng.randint(1, 3)
        for task in range(tasks):
            copies = 2 if world.rng.random() < 0.3 else 1
            for attempt in range(copies):
                world.start(_attempt(cluster, book, app, name, number, task, attempt, done))
        if world.rng.random() < 0.3:  # One that begins when it may be over.
            late = _attempt(cluster, book, app, name, number, 0, 9, {})
            world.after(world.rng.uniform(0.5, 4.0), lambda late=late: world.start(late))  # type: ignore[misc]
        patience = world.now + 6.0
        while len(done) < tasks and IN not in done and world.now < patience:
            yield Sleep(0.05)
        if world.rng.random() < 0.1:
            yield Sleep(world.rng.uniform(0.5, 3.0))
        is_in = IN in done
        if (len(done) < tasks and not is_in) or world.rng.random() < 0.1:
            yield from _give_up(cluster, app, number, name)
            return
        outcome = yield from _commit(cluster, book, app, number, name, {} if is_in else done)
        if outcome not in ("committed", "already in"):
            return
        if world.rng.random() < 0.8:  # Else it forgets that it has, and does all of it again.
            number += 1


def _first_number(cluster: Cluster, app: str) -> Any:
    """A run that begins does the last number again: it does not know whether that was heard to be in."""
    home = cluster.home_of(app)

    def last(node: int, answer: Any) -> None:
        def looked(machine: Any) -> None:
            known = machine.app(app) if machine is not None else None
            answer(None if machine is None else max(known.last, 0) if known is not None else 0)

        home.read(node, looked)

    while True:
        found = yield Ask(cluster.guess(home), last)
        if found is not None:
            return found
        yield Sleep(0.1)


def _attempt(
    cluster: Cluster,
    book: Book,
    app: str,
    run: str,
    number: int,
    task: int,
    attempt: int,
    done: dict[int, tuple[Listed, dict[int, list[bytes]]]],
) -> Script:
    """One attempt of a task; `done` hears of what it has written, if it is the first that is through."""
    world = cluster.world
    timeout_ms = world.rng.choice((1500, 5000, 20_000))
    result: Result | None = None
    me = Producer(cluster, app, f"{run}.{number}.{task}.{attempt}.{world.events}")
    for _ in range(TRIES):
        command = OpenAttempt(app, number, run, task, attempt, timeout_ms, NOW, NOW)
        result = yield me.ask_home(command)
        if result is not None:
            break
        yield Sleep(world.rng.uniform(0.02, 0.2))
    if result is not None and result.verdict is Verdict.ALREADY_IN:
        done[IN] = Listed(-1, {}), {}
    if result is None or result.verdict is not Verdict.DONE:
        return
    me.id, me.epoch = result.producer_id, result.epoch
    written: dict[int, list[bytes]] = {}
    for _ in range(world.rng.randint(1, 4)):
        log = world.rng.choice(cluster.topics)
        values = yield from me.write(log, book.never)
        if not isinstance(values, list):
            return
        written.setdefault(log.number, []).extend(values)
        if world.rng.random() < 0.1:
            yield Sleep(world.rng.uniform(0.1, 3.0))
    if task not in done:
        counts = {bytes(cluster.topics[each].partition): len(values) for each, values in written.items()}
        done[task] = Listed(me.id, counts), written
    if world.rng.random() < 0.15:  # It does not know when to stop.
        yield Sleep(world.rng.uniform(0.0, 2.0))
        yield from me.write(world.rng.choice(cluster.topics), book.never)


def _give_up(cluster: Cluster, app: str, number: int, run: str) -> Any:
    me = Producer(cluster, app, run)
    for _ in range(3):
        if (yield me.ask_home(AbortJoint(app, number, run, NOW))) is not None:
            return


def _commit(
    cluster: Cluster,
    book: Book,
    app: str,
    number: int,
    run: str,
    done: dict[int, tuple[Listed, dict[int, list[bytes]]]],
) -> Any:
    world, home = cluster.world, cluster.home_of(app)
    parts = tuple(done[task][0] for task in sorted(done))
    listed: dict[int, list[bytes]] = {}
    for task in sorted(done):
        for each, values in done[task][1].items():
            listed.setdefault(each, []).extend(values)
    mine = Joint(app, number, listed)
    book.joint.append(mine)
    for values in listed.values():
        book.never.difference_update(values)
    in_doubt = False
    for _ in range(12):
        what = partial(cluster.commit, app, number, run, parts)
        result = yield Ask(cluster.guess(home), what, 5.0)
        if isinstance(result, Result) and result.verdict is Verdict.DONE:
            mine.outcome = "committed"
            return mine.outcome
        if isinstance(result, Result) and result.verdict is Verdict.ALREADY_IN:
            mine.outcome = "already in"
            return mine.outcome
        if result is False or isinstance(result, Result):
            mine.outcome = "unknown" if in_doubt else "failed"
            return mine.outcome
        in_doubt = True
        yield Sleep(world.rng.uniform(0.05, 0.3))
    return mine.outcome
