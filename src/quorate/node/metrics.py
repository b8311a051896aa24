"""What a node counts while it works, for whoever watches it (`exposition.py` tells it).

Counting must cost next to nothing where batches are written: plain numbers, and a bisection into places that are
there from the start. Whatever can be looked up when somebody asks is not counted here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from quorate.core.effects import Outcome, Reply
from quorate.host.producing import Answer
from quorate.storage.disk import Disk, Done, Flush, Operation

BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""A flush takes some tenths of a millisecond, an election some seconds."""


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Up to each bound, above the one before it; the last, above all."""
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class Proposals:
    """Of the replicas that agree in one way."""

    __slots__ = ("commit", "outcomes")

    def __init__(self) -> None:
        self.commit = Histogram()
        """From the turn in which a proposal came to the reply that it is settled."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    def replied(self, began: float, answer: Answer, reply: Reply) -> None:
        self.outcomes[reply.outcome] += 1
        if reply.outcome is Outcome.SETTLED:
            self.commit.observe(monotonic() - began)
        answer(reply)


CLIENTS_COUNT_MAX = 100
"""Names that are told apart: a client that invents a new one each time must not fill whoever collects them."""
CLIENT_NAME_MAX = 60
NAMELESS, OTHERS = "(none)", "(others)"


class ClientCounts:
    """Of all connections whose client says that this is its name."""

    __slots__ = ("answer_bytes", "request_bytes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.request_bytes = 0
        self.answer_bytes = 0


class Metrics:
    """One for each node."""

    def __init__(self) -> None:
        self.produce_requests = 0
        self.produce_batches = 0
        self.produce_bytes = 0
        self.fetch_requests = 0
        self.fetch_batches = 0
        self.fetch_bytes = 0
        self.compactions = 0
        """Logs that have let go of what was compacted."""
        self.damaged = 0
        """Places that a read, or the scrubber, found to be other than what was written."""
        self.mended_offsets = 0
        """Written anew, as another copy has them."""
        self.scrubs = 0
        """Logs that the scrubber has read from end to end."""
        self.joint_repeated = 0
        """Joint commits of a number that was already in."""
        self.clients: dict[str, ClientCounts] = {}
        """By the name that a client gives itself (`client.id`)."""
        self.errors: dict[tuple[str, str], int] = {}
        """By request and error."""
        self.proposals: dict[str, Proposals] = {}
        """By protocol; those of the metadata group apart."""
        self.flush = Histogram()
        """Of a round: written and flushed, until the event loop has heard of it."""
        self.connections: dict[str, Callable[[], int]] = {}
        """How many guests there are, by what they are for."""
        self.groups: Callable[[], Counter[str]] = Counter
        """How many consumer groups are coordinated here, by the stage that they are in."""
        self.group_lags: Callable[[], dict[str, int]] = dict
        """Those of them that have most ahead of them, and how many offsets that is."""
        self.waiting_bytes: dict[str, Callable[[], int]] = {}
        """What they have in memory until somebody takes it, by what it is."""

    def client(self, name: str | None) -> ClientCounts:
        """What is counted of a client; of those that came when there were too many already, together."""
        name = NAMELESS if name is None else name[:CLIENT_NAME_MAX]
        found = self.clients.get(name)
        if found is None:
            name = name if len(self.clients) < CLIENTS_COUNT_MAX else OTHERS
            found = self.clients.setdefault(name, ClientCounts())
        return found

    def error(self, request: str, error: str) -> None:
        self.errors[request, error] = self.errors.get((request, error), 0) + 1

    def timed(self, protocol: str, began: float, answer: Answer) -> Answer:
        """`answer`, and how long it took."""
        proposals = self.proposals.get(protocol)
        if proposals is None:
            proposals = self.proposals[protocol] = Proposals()
        return partial(proposals.replied, began, answer)


class TimedDisk:
    """A disk whose flushes of one lane are timed."""

    def __init__(self, disk: Disk, lane: str, times: Histogram) -> None:
        self._disk = disk
        self._lane = lane
        self._times = times
        self.list_now = disk.list_now
        self.size_now = disk.size_now
        self.read_now = disk.read_now
        self.run_now = disk.run_now

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        if lane == self._lane and operations and type(operations[-1]) is Flush:
            done = partial(self._ended, monotonic(), done)
        self._disk.submit(lane, operations, done)

    def _ended(self, began: float, done: Done, error: Exception | None, results: list[bytes]) -> None:
        self._times.observe(monotonic() - began)
        done(error, results)
