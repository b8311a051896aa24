"""A client that asks up to where it may read: by asking a majority, from a lease, or at an offset of any replica.

Where it is told an end, it fetches there and then what stands at that end. It has a stream of chance of its own,
so that worlds without such clients are what they were before there were any.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec

from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.sim.oracle import Asked
from quorate.storage.frame import Frame

if TYPE_CHECKING:
    from quorate.sim.workload import Workload

TRIES_MAX = 6
LEVELS = (
    ReadLevel.LINEARIZABLE,
    ReadLevel.LINEARIZABLE,
    ReadLevel.LEASE,
    ReadLevel.LEASE,
    ReadLevel.AT_OFFSET,
)
BYTES_MAX = 1


class Question(msgspec.Struct):
    """One request to one node."""

    number: int
    node: int
    asked: Asked
    tries: int
    given_up: bool = False


class Reader:
    def __init__(self, workload: Workload, rng: Random) -> None:
        self.workload = workload
        self.world = workload.world
        self.oracle = workload.oracle
        self.manners = workload.manners
        self.rng = rng
        self.stubborn = rng.random() < 0.5
        """Goes on asking whoever led last: a leader of the past gets something to answer."""
        self.leaders = [0] * len(workload.holders)

    def rest(self) -> None:
        self.world.after(self.rng.expovariate(1.0 / self.manners.pause_s), self._act, None)

    def _act(self, _: None) -> None:
        if self.workload.open:
            self.ask(self.rng.randrange(len(self.workload.holders)), self.rng.choice(LEVELS), 1)

    def ask(self, partition: int, level: ReadLevel, tries: int) -> Question:
        rng = self.rng
        holders = self.workload.holders[partition]
        anywhere = level is ReadLevel.AT_OFFSET or rng.random() < 0.1
        node = rng.choice(holders) if anywhere else self.leaders[partition] or rng.choice(holders)
        offset = -1
        if level is ReadLevel.AT_OFFSET:
            known = max(0, self.oracle.highest[partition])
            offset = max(0, known + rng.randint(-3, 3)) if rng.random() < 0.7 else rng.randint(0, known)
        self.workload.requests_count += 1
        asked = self.oracle.asked(partition, level, offset)
        question = Question(self.workload.requests_count, node, asked, tries)
        self.world.after(self.manners.delay_s * (0.5 + rng.random()), self._arrive, question)
        self.world.after(self.manners.patience_s, self._give_up, question)
        return question

    def _arrive(self, question: Question) -> None:
        if question.given_up or not self.workload.open:
            self._again(question, leader=0)
            return
        asked, node = question.asked, question.node
        waiting = self.workload.waiting
        waiting[question.number] = (node, self.world.life(node), str(asked))

        def answer(reply: Reply) -> None:
            if waiting.pop(question.number, None) is not None:
                self._answered(question, reply)

        if not self.world.read(node, asked.partition, asked.level, answer, asked.offset):
            waiting.pop(question.number, None)
            self._again(question, leader=0)

    def _answered(self, question: Question, reply: Reply) -> None:
        asked = question.asked
        if reply.outcome is Outcome.SETTLED:
            self._told(question, reply.offset)
            if asked.level is not ReadLevel.AT_OFFSET:
                self.leaders[asked.partition] = question.node
            self._finish(question)
        else:
            self._again(question, leader=reply.leader if reply.outcome is Outcome.NOT_LEADER else 0)

    def _told(self, question: Question, end: int) -> None:
        """A promise is a promise, also for a client that waits no longer."""
        asked, node = question.asked, question.node
        partition = asked.partition
        self.oracle.told(asked, end, applied=self.world.applied(node, partition))
        reader = (node, self.world.life(node), partition)

        def done(frames: list[Frame], commit: int, base: int) -> None:
            self.oracle.fetched(reader, end, frames, commit, base, end)

        self.world.fetch(node, partition, max(0, end), BYTES_MAX, done)

    def _again(self, question: Question, *, leader: int) -> None:
        """No end was told: ask elsewhere, or later, or something else."""
        if question.given_up:
            return
        question.given_up = True
        asked = question.asked
        self.leaders[asked.partition] = leader if leader != question.node else 0
        if question.tries >= TRIES_MAX or not self.workload.open:
            self.rest()
            return
        self.world.after(self.manners.pause_s * self.rng.random(), self._retry, question)

    def _retry(self, question: Question) -> None:
        if self.workload.open:
            asked = question.asked
            self.ask(asked.partition, asked.level, question.tries + 1)

    def _give_up(self, question: Question) -> None:
        if question.given_up:
            return
        question.given_up = True
        if not self.stubborn or self.rng.random() < 0.3:
            self.leaders[question.asked.partition] = 0
        self.rest()

    def _finish(self, question: Question) -> None:
        if not question.given_up:
            question.given_up = True
            self.rest()
