"""What goes wrong, and when: a schedule made up-front from the seed, so that a shrinker can leave faults out.

A profile turns a stream of chance into faults; profiles compose by putting their faults together. Each has
a stream of its own, so a profile's faults are the same whoever else takes part.

Copies that are lost for good (wiped disks, damaged bytes) hit only *unlucky* nodes, which are fewer than half
of any partition's voters: nobody can promise more. Everything else may hit everybody, at the same time too.

Commands are faults, too, as far as a world is concerned: the profile `membership` changes ensembles and moves
leadership at random moments (steward.py and planner.py decide on the spot what is asked of whom).

Where there are operators, they crash, stand still and are cut off like nodes. The profile `operator` goes for
them and for their store (trouble.py); it is not one of `all`, since most protocols have none. Nor is
`retention`, as logs keep everything in its worlds but what expires, nor `pacing`, as copies that do not count yet
wait for what is moved to them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from quorate.host.pacing import UNLIMITED
from quorate.sim.chance import stream
from quorate.sim.network import Weather

LEADER = 0
"""Instead of a node's number: whoever leads some partition at that moment."""
ANY_OPERATOR = -1
"""Instead of an operator's number: one of them."""


class Fault(msgspec.Struct, frozen=True, gc=False):
    """Something that goes wrong at one moment, and for what goes on, ends `seconds` later."""

    at: float
    kind: str
    nodes: tuple[int, ...] = ()
    seconds: float = 0.0
    links: tuple[tuple[int, int], ...] = ()
    weather: Weather | None = None
    amount: float = 0.0
    chance: int = 0
    """A seed of its own for what it decides on the spot: which byte, which leader."""

    def __str__(self) -> str:
        named = {LEADER: "leader", ANY_OPERATOR: "operator"}
        who = " ".join(named.get(node, f"n{node}") for node in self.nodes)
        links = " ".join(f"{source}>{target}" for source, target in self.links)
        amount = f" {self.amount:.3f}" if self.amount else ""
        seconds = f" for {self.seconds:.3f}s" if self.seconds else ""
        return " ".join(part for part in (self.kind, who, links) if part) + amount + seconds


class Place(msgspec.Struct, frozen=True):
    """Where faults happen: what a profile may use."""

    nodes: tuple[int, ...]
    unlucky: tuple[int, ...]
    """Nodes whose copies may be lost for good."""
    pace: float
    """The election time-out: what is short and what is long is measured in it."""
    ends: float
    """No fault begins later."""
    operators: tuple[int, ...] = ()
    acts: bool = False
    """There are orders beside changes of membership (`confirm`)."""

    @property
    def processes(self) -> tuple[int, ...]:
        """Whoever can crash, stand still, or be cut off."""
        return self.nodes + self.operators


def schedule(seed: int, profiles: tuple[str, ...], place: Place) -> tuple[Fault, ...]:
    """Every fault of a run, in the order of time."""
    faults: list[Fault] = []
    for name, profile in PROFILES.items():
        if name in profiles:
            rng = stream(seed, "faults", name)
            absent = is_absent(rng, profiles)
            made = profile(rng, place)
            if not absent:
                faults += made
    return tuple(sorted(faults, key=lambda fault: fault.at))


ABSENT = 0.35


def is_absent(rng: Random, profiles: tuple[str, ...]) -> bool:
    """In company a profile sits some seeds out, so that every combination gets its turn."""
    return rng.random() < ABSENT and len(profiles) > 1


def takes_part(seed: int, name: str, profiles: tuple[str, ...]) -> bool:
    return name in profiles and not is_absent(stream(seed, "faults", name), profiles)


def keeps_all(seed: int, profiles: tuple[str, ...]) -> bool:
    """Whether logs keep everything, whatever snapshots cover, but what one of these lets go."""
    return takes_part(seed, RETENTION, profiles) or takes_part(seed, COMPACTION, profiles)


OF_OPERATORS = "operator"
"""The profile for protocols that have operators; not one of `all`."""
RETENTION = "retention"
"""The profile in which logs keep everything but what expires, whatever snapshots cover; not one of `all`."""
COMPACTION = "compaction"
"""The profile in which records have keys, and logs keep everything but what compaction lets go of; not of `all`."""
PACING = "pacing"
"""The profile in which copies that do not count yet are sent data at a rate, which changes; not one of `all`."""
SPECIAL = (OF_OPERATORS, RETENTION, COMPACTION, PACING)


def parse_profiles(text: str) -> tuple[str, ...]:
    """`all`, `none`, or names with commas between; raises ValueError with a line for a person."""
    if text == "none":
        return ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in (*PROFILES, "all"):
            known = ", ".join(PROFILES)
            raise ValueError(f"there is no fault profile {name!r}; there are: all, none, {known}")
    everything = "all" in names
    return tuple(name for name in PROFILES if name in names or (everything and name not in SPECIAL))


def profiles_of(protocol: str) -> tuple[str, ...]:
    """Every kind of fault that there is where this protocol runs."""
    return tuple(name for name in PROFILES if name != OF_OPERATORS or protocol not in ("raft", "confirm"))


# ---- moments and lengths ----


def moments(rng: Random, place: Place, count: int) -> list[float]:
    return [place.pace + rng.random() * (place.ends - place.pace) for _ in range(count)]


def length(rng: Random, place: Place, *, least: float, most: float) -> float:
    """Seconds, drawn so that short ones are as likely as long ones in proportion."""
    return place.pace * least * float((most / least) ** rng.random())


def one_or_more(rng: Random, nodes: tuple[int, ...], *, leader: float, everyone: float) -> tuple[int, ...]:
    luck = rng.random()
    if luck < leader:
        return (LEADER,)
    if luck < leader + everyone:
        return nodes
    return tuple(sorted(rng.sample(nodes, rng.choice((1, 1, 1, min(2, len(nodes)))))))


# ---- profiles ----


def network(rng: Random, place: Place) -> list[Fault]:
    """Links cut in every shape, leaders cut off, and storms: messages are lost, doubled, late and old."""
    faults: list[Fault] = []
    if len(place.processes) < 2:
        return faults
    for at in moments(rng, place, rng.randint(1, 6)):
        links = shape(rng, place.processes)
        seconds = length(rng, place, least=0.5, most=10.0)
        if rng.random() < 0.25:
            beat = seconds / 8
            faults += [
                Fault(at + 2 * beat * turn, "partition", links=links, seconds=beat) for turn in range(4)
            ]
        else:
            faults.append(Fault(at, "partition", links=links, seconds=seconds))
    for at in moments(rng, place, rng.randint(1, 5)):
        seconds = length(rng, place, least=1.5, most=10.0)
        way = rng.choice(("isolate", "strand", "mute", "deaf"))
        faults.append(Fault(at, way, nodes=(LEADER,), seconds=seconds, chance=rng.getrandbits(32)))
    for at in moments(rng, place, rng.randint(0, 4)):
        weather = Weather(
            delay_mean=place.pace * rng.choice((0.01, 0.05, 0.2)),
            drop=rng.choice((0.0, 0.05, 0.2, 0.5)),
            duplicate=rng.choice((0.0, 0.1, 0.3)),
            replay=rng.choice((0.0, 0.1, 0.3)),
            stall=rng.choice((0.0, 0.1)),
            stall_seconds=place.pace * rng.choice((1.0, 4.0)),
        )
        faults.append(Fault(at, "storm", weather=weather, seconds=length(rng, place, least=1.0, most=10.0)))
    return faults


def shape(rng: Random, nodes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The links that are cut: a split, a bridge, one way only, or some here and there."""
    everything = [(one, other) for one in nodes for other in nodes if one != other]
    order = rng.sample(nodes, len(nodes))
    first = rng.randint(1, len(nodes) - 1)
    left, right = order[:first], order[first:]
    kind = rng.choice(("split", "split", "isolate", "deaf", "mute", "one-way", "bridge", "scattered"))
    if kind == "split":
        return between(tuple(left), nodes)
    if kind in ("isolate", "deaf", "mute"):
        return around(kind, order[0], nodes)
    if kind == "one-way":
        return tuple(link for link in everything if link[0] in left and link[1] in right)
    if kind == "bridge" and len(nodes) > 2:
        half = order[1 : 1 + len(order) // 2]
        return tuple(
            link for link in everything if order[0] not in link and (link[0] in half) != (link[1] in half)
        )
    return tuple(link for link in everything if rng.random() < 0.3)


def around(kind: str, node: int, nodes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The links to (`deaf`), from (`mute`), or to and from (`isolate`) one node."""
    others = [other for other in nodes if other != node]
    into = tuple((other, node) for other in others) if kind != "mute" else ()
    out = tuple((node, other) for other in others) if kind != "deaf" else ()
    return into + out


def between(group: tuple[int, ...], nodes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The links between a group of nodes and all others, both ways."""
    return tuple((one, other) for one in nodes for other in nodes if (one in group) != (other in group))


def crash(rng: Random, place: Place) -> list[Fault]:
    """Processes end without a word; what was written, flushed or not, is still there."""
    return [
        Fault(
            at,
            "crash",
            nodes=one_or_more(rng, place.processes, leader=0.35, everyone=0.15),
            seconds=length(rng, place, least=0.05, most=6.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 6))
    ]


def power(rng: Random, place: Place) -> list[Fault]:
    """The power goes: whatever was not flushed may be gone, or half there."""
    return [
        Fault(
            at,
            "power",
            nodes=one_or_more(rng, place.nodes, leader=0.25, everyone=0.35),
            seconds=length(rng, place, least=0.05, most=6.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 6))
    ]


def pause(rng: Random, place: Place) -> list[Fault]:
    """A process stands still, for longer than anybody waits for it, and goes on as if nothing was."""
    return [
        Fault(
            at,
            "pause",
            nodes=one_or_more(rng, place.processes, leader=0.6, everyone=0.05),
            seconds=length(rng, place, least=0.2, most=8.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 6))
    ]


CLOCK_RATES = (0.5, 0.8, 1.25, 2.0)


def clock(rng: Random, place: Place) -> list[Fault]:
    """Clocks run fast or slow, and jump."""
    faults = []
    for at in moments(rng, place, rng.randint(1, 6)):
        node = rng.choice(place.nodes)
        if rng.random() < 0.5:
            faults.append(Fault(at, "clock-rate", nodes=(node,), amount=rng.choice(CLOCK_RATES)))
        else:
            jump = length(rng, place, least=0.1, most=10.0) * rng.choice((-1.0, 1.0))
            faults.append(Fault(at, "clock-jump", nodes=(node,), amount=jump))
    return faults


def disk(rng: Random, place: Place) -> list[Fault]:
    """A flush fails, and the pages with it. The node must exit, and come back with what can be proven."""
    return [
        Fault(
            at,
            "flush-error",
            nodes=(rng.choice(place.nodes),),
            seconds=length(rng, place, least=0.1, most=3.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 5))
    ]


def damage(rng: Random, place: Place) -> list[Fault]:
    """Bytes of an unlucky node turn into others, while it runs or while it is down."""
    if not place.unlucky:
        return []
    return [
        Fault(
            at,
            "damage",
            nodes=(rng.choice(place.unlucky),),
            seconds=0.0 if rng.random() < 0.4 else length(rng, place, least=0.05, most=3.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(2, 10))
    ]


def full_disk(rng: Random, place: Place) -> list[Fault]:
    """No space is left, on one node or on all of them, for a while."""
    return [
        Fault(
            at,
            "full-disk",
            nodes=one_or_more(rng, place.nodes, leader=0.3, everyone=0.2),
            seconds=length(rng, place, least=0.5, most=8.0),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 3))
    ]


def slow_disk(rng: Random, place: Place) -> list[Fault]:
    """Everything that a disk does takes up to a hundred times as long."""
    return [
        Fault(
            at,
            "slow-disk",
            nodes=one_or_more(rng, place.nodes, leader=0.4, everyone=0.1),
            seconds=length(rng, place, least=1.0, most=8.0),
            amount=rng.choice((5.0, 20.0, 100.0)),
            chance=rng.getrandbits(32),
        )
        for at in moments(rng, place, rng.randint(1, 3))
    ]


def wipe(rng: Random, place: Place) -> list[Fault]:
    """An unlucky node comes back with an empty disk: a new incarnation, a learner from then on."""
    if not place.unlucky:
        return []
    return [
        Fault(at, "wipe", nodes=(rng.choice(place.unlucky),), seconds=length(rng, place, least=0.1, most=3.0))
        for at in moments(rng, place, rng.choice((1, 1, 2)))
    ]


CHANGES = (
    "add",
    "add",
    "remove",
    "remove",
    "replace",
    "any",
    "any",
    "promote",
    "demote",
    "without-leader",
    "back",
    "renew",
    "renew",
    "hang",
    "nonsense",
)
"""What can be asked of an ensemble: steward.py knows what each of them means."""


def membership(rng: Random, place: Place) -> list[Fault]:
    """Ensembles change, by one or by many, and leadership moves; in quick succession, and at wrong nodes, too."""
    if place.operators:
        return orders(rng, place)
    faults: list[Fault] = []
    for at in moments(rng, place, rng.randint(2, 8)):
        times = rng.choice((1, 1, 1, 2, 3))
        apart = 0.0 if rng.random() < 0.3 else length(rng, place, least=0.05, most=2.0)
        for turn in range(times):
            # Mostly whoever leads; at the same moment often somebody else, too.
            astray = rng.random() < (0.5 if turn and not apart else 0.15)
            kind = "transfer" if rng.random() < 0.3 else f"change-{rng.choice(CHANGES)}"
            node = rng.choice(place.nodes) if astray else LEADER
            faults.append(Fault(at + turn * apart, kind, nodes=(node,), chance=rng.getrandbits(32)))
    return faults + acts(rng, place) if place.acts else faults


ACTS = (
    "roll-back",
    "roll-back",
    "roll-back",
    "promote",
    "promote",
    "demote",
    "read-only",
    "cut-loose",
    "cut-loose",
    "join-again",
)
"""What else can be ordered of a `confirm` group: confirm_steward.py knows what each of them means."""


def acts(rng: Random, place: Place) -> list[Fault]:
    """At whoever leads, mostly; and rollbacks when it has just been cut off, for a shorter time than it leads on or
    a longer one: then there is something to take back."""
    faults: list[Fault] = []
    for at in moments(rng, place, rng.randint(3, 10)):
        for turn in range(rng.choice((1, 1, 2, 3))):
            later = turn * length(rng, place, least=0.05, most=3.0)
            node = rng.choice(place.nodes) if rng.random() < 0.15 else LEADER
            kind = f"act-{rng.choice(ACTS)}"
            faults.append(Fault(at + later, kind, nodes=(node,), chance=rng.getrandbits(32)))
    for at in moments(rng, place, rng.randint(1, 6)):
        seconds = length(rng, place, least=0.1, most=4.0)
        way = rng.choice(("isolate", "strand", "mute", "deaf"))
        chance = rng.getrandbits(32)  # The same for both: they hit the same leader.
        faults.append(Fault(at, way, nodes=(LEADER,), seconds=seconds, chance=chance))
        when = at + seconds * rng.choice((0.5, 0.9))
        faults.append(Fault(when, "act-roll-back", nodes=(LEADER,), chance=chance))
    return faults


ORDERS = (
    "swap",
    "swap",
    "swap",
    "expand",
    "expand",
    "contract",
    "contract",
    "renew",
    "hang",
    "nonsense",
    "move",
    "call-off",
    "call-off",
)
"""What can be ordered of operators: planner.py knows what each of them means."""


def orders(rng: Random, place: Place) -> list[Fault]:
    """The same where operators reconfigure, one step at a time."""
    faults: list[Fault] = []
    for at in moments(rng, place, rng.randint(3, 10)):
        apart = 0.0 if rng.random() < 0.3 else length(rng, place, least=0.02, most=3.0)
        for turn in range(rng.choice((1, 1, 2, 3))):
            kind = f"order-{rng.choice(ORDERS)}"
            faults.append(Fault(at + turn * apart, kind, nodes=(ANY_OPERATOR,), chance=rng.getrandbits(32)))
    return faults


FUSE_MAX = 12


def operator(rng: Random, place: Place) -> list[Fault]:
    """Operators die, mostly between two steps, stand still and come back; rumours; the store is slow or silent."""
    faults: list[Fault] = []

    def throw(kind: str, count: int, *, least: float, most: float, amount: float = 0.0) -> None:
        for at in moments(rng, place, count):
            seconds = length(rng, place, least=least, most=most)
            chance = rng.getrandbits(32)
            faults.append(
                Fault(at, kind, nodes=(ANY_OPERATOR,), seconds=seconds, amount=amount, chance=chance)
            )

    if not place.operators:
        return faults
    throw("operator-crash", rng.randint(0, 4), least=0.05, most=6.0)
    for _ in range(rng.randint(2, 10)):
        throw("operator-fuse", 1, least=0.05, most=4.0, amount=rng.randint(0, FUSE_MAX))
    throw("operator-pause", rng.randint(1, 5), least=0.2, most=10.0)
    throw("operator-rumour", rng.randint(0, 8), least=0.1, most=0.1)
    throw("operator-strand", rng.randint(0, 3), least=1.0, most=20.0)
    throw("store-slow", rng.randint(0, 3), least=0.5, most=6.0, amount=rng.choice((5.0, 20.0, 100.0)))
    throw("store-silent", rng.randint(0, 4), least=0.2, most=6.0)
    return faults


def retention(rng: Random, place: Place) -> list[Fault]:
    """What is settled need not be kept any longer: expiry.py decides on the spot what that is."""
    return [Fault(at, "expire", chance=rng.getrandbits(32)) for at in moments(rng, place, rng.randint(3, 15))]


def compaction(rng: Random, place: Place) -> list[Fault]:
    """What a newer record has superseded goes: compaction.py decides on the spot up to where."""
    count = rng.randint(4, 20)
    return [Fault(at, "compact", chance=rng.getrandbits(32)) for at in moments(rng, place, count)]


RATES = (UNLIMITED, 0, 0, 300, 3_000, 30_000)
"""Bytes a second; at 0 nothing is sent."""


def pacing(rng: Random, place: Place) -> list[Fault]:
    """What is sent to copies that do not count yet waits its turn, from the beginning; the rate is changed."""
    faults = []
    for at in [0.0, *moments(rng, place, rng.randint(1, 6))]:
        soon = tuple(node for node in place.nodes if rng.random() < 0.5)
        faults.append(Fault(at, "pace", nodes=soon, amount=rng.choice(RATES)))
    return faults


PROFILES: dict[str, Callable[[Random, Place], list[Fault]]] = {
    "network": network,
    "crash": crash,
    "power": power,
    "pause": pause,
    "clock": clock,
    "disk": disk,
    "damage": damage,
    "full-disk": full_disk,
    "slow-disk": slow_disk,
    "wipe": wipe,
    "membership": membership,
    OF_OPERATORS: operator,
    RETENTION: retention,
    COMPACTION: compaction,
    PACING: pacing,
}
