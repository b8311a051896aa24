"""The words of transactions: what a coordinator is told, what it keeps, and what it answers.

A *producer* writes under an id and an epoch. A *plain* transaction has one producer, known by its transactional id,
again and again. A *joint* one has many, each of them an *attempt* with a producer id that nobody had before; one
commit, known by (app, number), publishes those that it lists.

Time and fresh producer ids come with the commands: every copy of the coordinator makes the same of them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

NAME_BYTES_MAX = 1000
"""Of a transactional id, an app and a run."""
EPOCH_MAX = 32_767
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""From here on a producer gets another id: the epoch above it is for whoever aborts on its behalf."""
PARTITIONS_COUNT_MAX = 10_000
"""Of one transaction."""
PRODUCERS_COUNT_MAX = 100_000
"""Transactional ids, and apps, of one home; open attempts of one app."""
FENCED_RUNS_MAX = 1000
"""Of one app; the run that was fenced first is forgotten first."""
ABORTED_NUMBERS_MAX = 1000
"""Numbers that a run has given up; the lowest are forgotten first."""
NOBODY = -1


class Verdict(StrEnum):
    """What came of a command."""

    DONE = "done"
    CONCURRENT = "another end of this transaction is still being written; ask again"
    FENCED = "a newer producer has this transactional id"
    BAD_STATE = "there is no such open transaction"
    BAD_PRODUCER = "this producer id is not the one of this transactional id"
    BAD_TIMEOUT = "the time-out is not one that the coordinator takes"
    TOO_MANY = "there are too many"
    BAD_NAME = "the name is empty or too long"
    ALREADY_IN = "this number, or a later one, is already in"
    RUN_FENCED = "a newer run of this app has begun"
    NUMBER_ABORTED = "this number was given up"
    PART_GONE = "a listed part timed out, was given up, or was never opened"
    PART_UNLISTED = "a part is listed that has written elsewhere than it is listed with"


class Phase(StrEnum):
    """Of a plain transaction; what Kafka calls them stands in kafka/transactions.py."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


# --- commands: of plain transactions ---


class BeginProducer(msgspec.Struct, frozen=True, tag="begin producer"):
    """InitProducerId: whoever had this transactional id before is fenced, and what it has open is aborted."""

    name: str
    now_ms: int
    timeout_ms: int
    fresh_id: int
    """Taken where a producer id is needed; nobody else ever gets it."""
    producer_id: int = NOBODY
    epoch: int = NOBODY
    """What the asking producer has, where it goes on after an error of its own (KIP-360)."""


class AddPartitions(msgspec.Struct, frozen=True, tag="add partitions"):
    """The first of a transaction opens it."""

    name: str
    producer_id: int
    epoch: int
    partitions: tuple[bytes, ...]
    now_ms: int


class EndPlain(msgspec.Struct, frozen=True, tag="end plain"):
    """EndTxn: from the moment that this is settled the outcome is decided."""

    name: str
    producer_id: int
    epoch: int
    commit: bool
    now_ms: int


# --- commands: of joint transactions ---


class OpenAttempt(msgspec.Struct, frozen=True, tag="open attempt"):
    """A producer of its own for an attempt of a task. A run that was never heard of fences all earlier ones."""

    app: str
    number: int
    run: str
    task: int
    attempt: int
    timeout_ms: int
    fresh_id: int
    now_ms: int


class Enlist(msgspec.Struct, frozen=True, tag="enlist"):
    """An attempt is about to write there for the first time."""

    app: str
    producer_id: int
    epoch: int
    partition: bytes
    now_ms: int


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """These attempts are at work: their time begins anew."""

    app: str
    run: str
    producer_ids: tuple[int, ...]
    now_ms: int


class Part(msgspec.Struct, frozen=True, gc=False):
    """What an attempt has written, as whoever commits lists it."""

    producer_id: int
    partitions: tuple[bytes, ...] = ()
    """Where; none: it was opened, and there was nothing to write."""


class Seal(msgspec.Struct, frozen=True, tag="seal"):
    """Before it is looked whether all is there that a commit lists: nobody may add to it from here on."""

    app: str
    number: int
    run: str
    parts: tuple[Part, ...]
    now_ms: int


class CommitJoint(msgspec.Struct, frozen=True, tag="commit joint"):
    """All that is listed is there: publish it, and abort whatever else was opened up to this number."""

    app: str
    number: int
    run: str
    parts: tuple[Part, ...]
    now_ms: int


class AbortJoint(msgspec.Struct, frozen=True, tag="abort joint"):
    """This run gives this number up."""

    app: str
    number: int
    run: str
    now_ms: int


# --- commands: of the coordinator itself ---


class Mark(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    number: int
    partition: bytes


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """These markers are settled where they belong."""

    marks: tuple[Mark, ...]


class TimeOut(msgspec.Struct, frozen=True, tag="time out"):
    """Whatever has been open for too long by then is aborted."""

    now_ms: int


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Transactional ids, and apps, that nobody has used for so long are forgotten."""

    now_ms: int
    plain_idle_ms: int
    app_idle_ms: int


Command = (
    BeginProducer
    | AddPartitions
    | EndPlain
    | OpenAttempt
    | Enlist
    | Renew
    | Seal
    | CommitJoint
    | AbortJoint
    | Marked
    | TimeOut
    | Forget
)


# --- state ---


class Plain(msgspec.Struct):
    """One transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    last_epoch: int = NOBODY
    """The epoch before, where its owner may still come and ask for this one; else NOBODY."""
    phase: Phase = Phase.EMPTY
    number: int = 0
    """Counts transactions: no marker is ever taken for one of another transaction."""
    partitions: list[bytes] = []
    """Of the open transaction, in the order in which they came."""
    began_ms: int = 0
    used_ms: int = 0


class Attempt(msgspec.Struct):
    """One producer of a joint transaction, as long as nothing is decided about it. Its epoch is 0."""

    number: int
    run: str
    task: int
    attempt: int
    timeout_ms: int
    began_ms: int
    partitions: list[bytes] = []
    sealed: bool = False


class App(msgspec.Struct):
    last: int = -1
    """The highest number that is in."""
    run: str = ""
    fenced: list[str] = []
    """Runs before this one, oldest first."""
    aborted: list[int] = []
    """Numbers above `last` that this run has given up."""
    attempts: dict[int, Attempt] = {}
    """By producer id."""
    used_ms: int = 0


class Ending(msgspec.Struct):
    """A producer whose transaction is decided, until every partition has its marker."""

    epoch: int
    number: int
    commit: bool
    partitions: list[bytes]
    """Those that have none yet."""
    name: str = ""
    """The transactional id that waits for it; of attempts: nobody does."""


class State(msgspec.Struct):
    plain: dict[str, Plain] = {}
    apps: dict[str, App] = {}
    endings: dict[int, Ending] = {}
    """By producer id."""
    now_ms: int = 0
    """The latest time that any command told: it never goes back, whoever leads."""


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a command came to."""

    verdict: Verdict
    producer_id: int = NOBODY
    epoch: int = NOBODY
    last: int = -1
    """Of an app: the highest number that is in."""
    why: str = ""
    """More than the verdict says, where there is more."""


DONE = Result(Verdict.DONE)


def is_bad_name(name: str) -> bool:
    return not 0 < len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX
