"""Happenings gathered into moments, and the two ends of messages into journeys.

A *moment* is one cause on one node with its effects: a message received, the answers sent. Positions in a
story are moment numbers; something between two moments (the loss of a message in the network) stands at
a half.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache

import msgspec

from quorate.sim.happening import Happening


class Sort(Enum):
    """What a happening looks like, whatever its verb."""

    SENT = auto()
    RECEIVED = auto()
    LOST = auto()
    PROPOSED = auto()
    ANSWERED = auto()
    CRASHED = auto()
    POWER_LOST = auto()
    RESTARTED = auto()
    PAUSED = auto()
    RESUMED = auto()
    DAMAGED = auto()
    WIPED = auto()
    LINK_CUT = auto()
    LINK_HEALED = auto()
    TROUBLED = auto()
    VIOLATED = auto()
    SCRIPTED = auto()
    """A line of a scenario, which asks for what follows."""
    PLAIN = auto()


VERBS = {
    "sent": Sort.SENT,
    "received": Sort.RECEIVED,
    "lost": Sort.LOST,
    "dropped": Sort.LOST,
    "lost power": Sort.POWER_LOST,
    "proposed": Sort.PROPOSED,
    "asked": Sort.PROPOSED,
    "answered": Sort.ANSWERED,
    "violated": Sort.VIOLATED,
    "not as expected": Sort.VIOLATED,
    "store": Sort.TROUBLED,
}
LINK_CUTS = frozenset({"cut", "cut off", "isolated"})
"""Of links, where there is a peer or no node; a replica that cut its log says the same."""
STEMS = (
    ("line ", Sort.SCRIPTED),
    ("power", Sort.POWER_LOST),
    ("crash", Sort.CRASHED),
    ("kill", Sort.CRASHED),
    ("restart", Sort.RESTARTED),
    ("started", Sort.RESTARTED),
    ("pause", Sort.PAUSED),
    ("resum", Sort.RESUMED),
    ("wipe", Sort.WIPED),
    ("damage", Sort.DAMAGED),
    ("flip", Sort.DAMAGED),
    ("tor", Sort.DAMAGED),
    ("heal", Sort.LINK_HEALED),
    ("mend", Sort.LINK_HEALED),
    ("partition", Sort.LINK_CUT),
    ("disk", Sort.TROUBLED),
    ("fail", Sort.TROUBLED),
    ("fill", Sort.TROUBLED),
    ("slow", Sort.TROUBLED),
    ("storm", Sort.TROUBLED),
    ("clock", Sort.TROUBLED),
    ("jump", Sort.TROUBLED),
    ("drift", Sort.TROUBLED),
)
FAULTS = frozenset(
    {
        Sort.CRASHED,
        Sort.POWER_LOST,
        Sort.RESTARTED,
        Sort.PAUSED,
        Sort.RESUMED,
        Sort.DAMAGED,
        Sort.WIPED,
        Sort.LINK_CUT,
        Sort.LINK_HEALED,
        Sort.TROUBLED,
    }
)
LINKS = frozenset({Sort.LINK_CUT, Sort.LINK_HEALED})
EFFECTS = frozenset({Sort.SENT, Sort.LOST, Sort.ANSWERED})
"""These belong to the moment of their cause; every other happening begins a moment of its own."""


def sort_of(happening: Happening) -> Sort:
    if happening.what in LINK_CUTS and (happening.peer or not happening.node):
        return Sort.LINK_CUT
    return sort_of_verb(happening.what)


@lru_cache(maxsize=256)
def sort_of_verb(verb: str) -> Sort:
    verb = verb.lower()
    if verb in VERBS:
        return VERBS[verb]
    return next((sort for stem, sort in STEMS if verb.startswith(stem)), Sort.PLAIN)


REFUSAL = re.compile(
    r"^(?!fence|truncate|still|add-follower|chunk|fetch)([a-z-]+-response)"
    r"(?= epoch \d+\b(?! (?:asked \d+ )?(?:accepted|granted|gone|leads|prepared) yes))"
)


def plain(happening: Happening) -> str:
    """The text with a refusal named: it shows only as a missing yes."""
    text = happening.text
    return text if text.startswith("snapshot") else REFUSAL.sub(r"\1 refused", text)


def split_orders(happening: Happening) -> tuple[str, str]:
    """What happened, and what the replica ordered then: `… -> append 3-4 100B (order 9)`."""
    if sort_of(happening) in LINKS:
        return happening.text, ""
    said, _, orders = plain(happening).partition("->")
    return said.strip(), orders.strip()


PAIR = re.compile(r"n?(\d+)\s*(→|->|>|↔|<->|–|-)\s*n?(\d+)")
ONE_WAY = ("→", "->", ">")


def links_of(happening: Happening) -> list[tuple[int, int]]:
    """The directions (from, to) that a cut or a healing names; none means all."""
    one_way = "one way" in happening.text or "one-way" in happening.text
    if happening.node and happening.peer:
        ends = (happening.node, happening.peer)
        return [ends] if one_way else [ends, ends[::-1]]
    if "|" in happening.text:
        sides = [[int(node) for node in re.findall(r"\d+", side)] for side in happening.text.split("|")]
        return [
            (source, target)
            for side in sides
            for other in sides
            if other is not side
            for source in side
            for target in other
        ]
    found: list[tuple[int, int]] = []
    for source, sign, target in PAIR.findall(happening.text):
        found.append((int(source), int(target)))
        if sign not in ONE_WAY:
            found.append((int(target), int(source)))
    return found


class State(msgspec.Struct, frozen=True, gc=False):
    """A replica's one line, taken apart. What a line does not say stays empty."""

    role: str = ""
    epoch: int = 0
    first: int | None = None
    last: int | None = None
    commit: int | None = None
    notes: str = ""
    """What else a person should see: damage, say; or what an operator does, and with whom."""

    @property
    def title(self) -> str:
        """The role and its epoch; an operator or a controller that knows nothing has none."""
        return f"{self.role} e{self.epoch}" if self.epoch or self.role not in OVERSEERS else self.role

    @property
    def shard(self) -> str:
        """Of an operator: the ensemble, its leader, and what is being changed; whatever it does about that."""
        return self.notes[self.notes.find("{") :] if "{" in self.notes else ""

    @property
    def log(self) -> str:
        if self.first is None or self.last is None:
            return ""
        return f"log {self.first}..{self.last}" if self.last >= self.first else "log empty"

    @property
    def settled(self) -> str:
        if self.commit is None:
            return ""
        return f"commit {self.commit}" if self.commit >= 0 else "commit none"


UNKNOWN = State()

EPOCH = re.compile(r"\be(\d+)\b")
LOG = re.compile(r"\blog (-?\d+)\.\.(-?\d+)")
EMPTY_LOG = re.compile(r"\blog (?:empty|none|-)(?: after \d+-(\d+))?")
COMMIT = re.compile(r"\bcommit (-?\d+|none)")
ROLE = re.compile(r"^(?:n\d+\s+)?(?!log\b|commit\b)([a-z][a-z-]*)\b")
NOTES = re.compile(r"\b(?:(?:faulty|owes) \S+|loose\b|detached\b)")
OPERATOR = "operator"
CONTROLLER = "controller"
OVERSEERS = (OPERATOR, CONTROLLER)
OPERATING = re.compile(rf"^{OPERATOR} e(\d+) v\d+ (.*)")


def state_of(line: str) -> State:
    """Takes `n2 leader e7 log 3..19 commit 17` apart, and `operator e4 v9 tending {n1,n2,n3} led by n1`."""
    if operating := OPERATING.search(line):
        return State(role=OPERATOR, epoch=int(operating[1]), notes=operating[2])
    epoch, log, commit, role = EPOCH.search(line), LOG.search(line), COMMIT.search(line), ROLE.search(line)
    first = last = None
    if log:
        first, last = int(log[1]), int(log[2])
    elif empty := EMPTY_LOG.search(line):
        last = int(empty[1] or -1)
        first = last + 1
    return State(
        role=role[1] if role else "",
        epoch=int(epoch[1]) if epoch else 0,
        first=first,
        last=last,
        commit=int(commit[1].replace("none", "-1")) if commit else None,
        notes=" ".join(NOTES.findall(line)),
    )


RESHAPING = re.compile(r"^(?:prepare|commit|abort)-reconfiguration-")


class Moment(msgspec.Struct, frozen=True):
    """One cause on one node (0: the world), its effects, and the replica before and after."""

    at: float
    node: int
    happenings: tuple[Happening, ...]
    sorts: tuple[Sort, ...]
    before: State
    after: State

    def has(self, *sorts: Sort) -> bool:
        return any(sort in sorts for sort in self.sorts)

    @property
    def pairs(self) -> list[tuple[Happening, Sort]]:
        return list(zip(self.happenings, self.sorts, strict=True))

    @property
    def is_fault(self) -> bool:
        return any(sort in FAULTS for sort in self.sorts)

    @property
    def changes(self) -> bool:
        """Role, epoch, log or commit are others than before; a first sight of a replica counts too."""
        return self.before != self.after or self.returns

    @property
    def states_itself(self) -> bool:
        return any(happening.state for happening in self.happenings)

    @property
    def returns(self) -> bool:
        """The replica is back after a crash, and says how it is."""
        return self.has(Sort.RESTARTED) and self.states_itself

    @property
    def grows(self) -> bool:
        """Something other than the beginning of the log has changed: that much is routine."""
        return self.changes and msgspec.structs.replace(self.before, first=self.after.first) != self.after

    @property
    def cuts(self) -> bool:
        """The log ends lower than before, or what was cut has been written over at once."""
        was, now = self.before.last, self.after.last
        if any("cut to" in happening.text for happening in self.happenings):
            return True
        if self.has(Sort.RESTARTED):
            return False
        return was is not None and now is not None and now < was

    @property
    def reshapes(self) -> bool:
        """Part of how an ensemble changes: the order, each phase and its answers, and the end."""
        head = self.happenings[0]
        if self.before.shard and self.after.shard and self.before.shard != self.after.shard:
            return True
        is_said = head.what == "received" and RESHAPING.search(head.text) is not None
        is_ordered = head.what == "commanded" and head.node > 0
        is_refused = any(sort is Sort.ANSWERED and "refused" in told.text for told, sort in self.pairs)
        return is_said or (is_ordered and not is_refused)

    @property
    def turns(self) -> bool:
        """Somebody who only wants to know how it came about must see this one."""
        if self.is_fault or self.cuts or self.reshapes or self.has(Sort.VIOLATED, Sort.SCRIPTED):
            return True
        return (self.before.role, self.before.epoch) != (self.after.role, self.after.epoch)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    place: float
    lost: bool


class Journey(msgspec.Struct):
    """One message: sent once (unless that was before the story), and what became of it, copies included."""

    number: int
    sender: int
    receiver: int
    text: str
    sent: int | None = None
    arrivals: list[Arrival] = []


# ---- from happenings to moments ----


def gather(happenings: Sequence[Happening], partition: int) -> tuple[list[Moment], dict[int, Journey]]:
    moments: list[Moment] = []
    journeys: dict[int, Journey] = {}
    states: dict[int, State] = {}
    open_ones: list[Happening] = []

    def close() -> None:
        if open_ones:
            moments.append(moment_of(open_ones, states, partition))
            open_ones.clear()

    for happening in happenings:
        sort = sort_of(happening)
        if not (open_ones and belongs(happening, sort, open_ones)):
            close()
            if sort is Sort.LOST and happening.message in journeys:
                journeys[happening.message].arrivals.append(Arrival(len(moments) - 0.5, lost=True))
                continue
        open_ones.append(happening)
        if happening.message:
            travel(happening, sort, journeys, place=len(moments))
    close()
    return moments, journeys


def belongs(happening: Happening, sort: Sort, moment: list[Happening]) -> bool:
    """Whether it is part of the moment that is being gathered."""
    head = moment[0]
    if happening.at != head.at:
        return False
    if sort in LINKS and sort_of(head) is sort:
        return True
    if happening.node != head.node or sort_of(head) in LINKS:
        return False
    if sort is Sort.RESTARTED and sort_of(head) is Sort.RESTARTED:
        return True  # The node, then its replica.
    if sort is Sort.PLAIN and sort_of(head) is Sort.PLAIN and happening.what == head.what:
        return True
    return sort in EFFECTS


def travel(happening: Happening, sort: Sort, journeys: dict[int, Journey], *, place: int) -> None:
    journey = journeys.get(happening.message)
    if journey is None:
        ends = (happening.node, happening.peer)
        sender, receiver = ends[::-1] if sort is Sort.RECEIVED else ends
        journey = Journey(happening.message, sender, receiver, split_orders(happening)[0])
        journeys[happening.message] = journey
    if sort is Sort.SENT:
        journey.sent = place
        journey.text = plain(happening) or journey.text
    elif sort is Sort.RECEIVED:
        journey.arrivals.append(Arrival(place, lost=False))
    elif sort is Sort.LOST:
        journey.arrivals.append(Arrival(place, lost=True))


def moment_of(happenings: list[Happening], states: dict[int, State], partition: int) -> Moment:
    head = happenings[0]
    node = 0 if sort_of(head) in LINKS else head.node
    before = after = states.get(node, UNKNOWN)
    for happening in happenings:
        if happening.state and happening.partition in (-1, partition):
            after = state_of(happening.state)
    states[node] = after
    sorts = tuple(sort_of(happening) for happening in happenings)
    return Moment(head.at, node, tuple(happenings), sorts, before, after)
