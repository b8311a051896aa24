"""Joint transactions: tasks write under producers of their own, and one commit publishes what it lists.

Whoever coordinates makes a `Joint` and commits; each task makes one, too, opens an `Attempt`, and appends with a
`Writer`. An attempt, and what a writer has written (a `Part`), can be pickled and sent to the coordinator.

Everything may be asked twice. An attempt whose answer was lost is opened again; the other one times out. A commit
whose answer was lost is said to be in already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from quorate import batch
from quorate.client.cluster import Cluster
from quorate.client.errors import BadAnswer, CommitFailed, Refused, RunFenced
from quorate.client.security import Security
from quorate.wire import joint as wire
from quorate.wire.joint import Committed, Part, Written

TIMEOUT_S = 15 * 60.0
"""Of an attempt, where nobody says how long."""
SEQUENCES_COUNT = 1 << 31


class Attempt(NamedTuple):
    """One producer of a joint transaction."""

    app: str
    number: int
    run: str
    task: int
    attempt: int
    producer_id: int
    epoch: int


class Joint:
    """The joint transactions of one app, as one run of it has them. Use it as a context manager, in one thread."""

    def __init__(
        self,
        bootstrap: str,
        app: str,
        run: str,
        *,
        client_id: str = "quorate",
        timeout_s: float = 30.0,
        security: Security | None = None,
    ) -> None:
        """`app` and `run` are names of the caller's own; a run that the cluster has not seen fences all others."""
        self.app = app
        self.run = run
        self.cluster = Cluster(bootstrap, client_id=client_id, timeout_s=timeout_s, security=security)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.cluster.close()

    def open(self, number: int, *, task: int, attempt: int, timeout_s: float = TIMEOUT_S) -> Attempt:
        """A producer for this attempt of a task; raises NumberIn where the number is already in, RunFenced where a
        newer run has begun, and Refused where this run has given the number up."""
        answer = self._ask(wire.Open(self.app, number, self.run, task, attempt, round(timeout_s * 1000)))
        if isinstance(answer, wire.Committed):
            raise NumberIn(self.app, number)
        if not isinstance(answer, wire.Opened):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")
        return Attempt(self.app, number, self.run, task, attempt, answer.producer_id, answer.epoch)

    def writer(self, attempt: Attempt) -> Writer:
        return Writer(self.cluster, attempt)

    def renew(self, attempts: Sequence[Attempt]) -> None:
        """These are at work: their time begins anew. Raises CommitFailed where one of them is gone."""
        ids = tuple(attempt.producer_id for attempt in attempts)
        self._expect(wire.Renew(self.app, self.run, ids), wire.Renewed)

    def commit(self, number: int, parts: Sequence[Part]) -> Committed:
        """Publish all of these parts, or nothing; `already_in` where the number was in before.

        Whatever else was opened up to this number is aborted. Raises CommitFailed where a part is gone or not
        whole, and RunFenced where a newer run has begun: nothing is published then.
        """
        timeout_ms = round(self.cluster.timeout_s * 1000)
        answer = self._ask(wire.Commit(self.app, number, self.run, tuple(parts), timeout_ms))
        if not isinstance(answer, wire.Committed):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")
        return answer

    def begin(self, number: int) -> None:
        """This run has come to a number that it has nothing for: whatever run was there before is over, and the
        number is not taken. Raises RunFenced.
        """
        answer = self._ask(wire.AskLast(self.app))
        if not isinstance(answer, wire.Last):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")
        if answer.run != self.run:
            self.abort(number)

    def abort(self, number: int) -> bool:
        """Give this number up; False where it is in already, which no abort undoes. Raises RunFenced."""
        answer = self._ask(wire.Abort(self.app, number, self.run))
        if not isinstance(answer, wire.Aborted):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")
        return not answer.already_in

    def last(self) -> int:
        """The highest number that is in; -1 where nothing is known of this app."""
        answer = self._ask(wire.AskLast(self.app))
        if not isinstance(answer, wire.Last):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")
        return answer.number

    def _expect(self, request: wire.Request, kind: type) -> None:
        answer = self._ask(request)
        if not isinstance(answer, kind):
            raise BadAnswer(f"{self.app}: a node answered {type(answer).__name__}")

    def _ask(self, request: wire.Request) -> wire.Answer:
        answer = self.cluster.ask_joint(request)
        if isinstance(answer, wire.Fenced):
            raise RunFenced(self.app, self.run)
        if isinstance(answer, wire.Failed):
            raise CommitFailed(f"{self.app}: {answer.why}")
        if isinstance(answer, wire.Refused):
            raise Refused(f"{self.app}: {answer.why}")
        return answer


class NumberIn(Refused):
    """What was to be written is published already."""

    def __init__(self, app: str, number: int) -> None:
        super().__init__(f"{app}: number {number}, or a later one, is already in; there is nothing to write")
        self.number = number


class Writer:
    """Appends record batches under one attempt. What it appends is seen by nobody before the commit."""

    def __init__(self, cluster: Cluster, attempt: Attempt) -> None:
        self._cluster = cluster
        self._attempt = attempt
        self._counts: dict[tuple[str, int], int] = {}
        self._ids: dict[str, bytes] = {}

    def append(self, topic: str, batches: Mapping[int, batch.Buffer]) -> dict[int, int]:
        """One record batch for each of these partitions of a topic; their offsets, when all are settled.

        Whose producer a batch says it is, is written over. Raises AttemptOver, and TopicReplaced where the
        topic was created anew.
        """
        attempt = self._attempt
        if topic not in self._ids:
            self._ids[topic] = self._cluster.topics([topic])[topic].id
        self._cluster.expect(topic, self._ids[topic])
        mine = {}
        for partition, payload in batches.items():
            count = self._counts.get((topic, partition), 0)
            mine[partition] = batch.with_producer(
                payload,
                producer_id=attempt.producer_id,
                epoch=attempt.epoch,
                sequence=count % SEQUENCES_COUNT,
                transactional=True,
            )
        offsets = self._cluster.produce(topic, mine, transactional_id=attempt.app)
        for partition, payload in batches.items():
            count = self._counts.get((topic, partition), 0)
            self._counts[topic, partition] = count + batch.parse_batch_header(payload).offsets_count
        return offsets

    def part(self) -> Part:
        """What was written, for whoever commits."""
        written = tuple(
            Written(topic, self._ids[topic], partition, count)
            for (topic, partition), count in sorted(self._counts.items())
        )
        return Part(self._attempt.producer_id, written)
