"""Who is in a consumer group, and what is said to them: the words of group_live.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

from quorate.machine.groups import Member

NO_GENERATION = -1


class Stage(StrEnum):
    """Where a group is, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members are called back, and who comes is in the next generation."""
    COMPLETING = "CompletingRebalance"
    """The generation is known, and its leader shares out the partitions."""
    STABLE = "Stable"
    DEAD = "Dead"
    """There is no such group."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """What the cluster is set to."""

    session_least_s: float = 1.0
    session_greatest_s: float = 1800.0
    initial_delay_s: float = 0.5
    """The first who comes to an empty group waits so long for others, and again while others come."""
    members_max: int = 1000


class Join(msgspec.Struct, frozen=True, gc=False):
    """Somebody wants to be in the next generation."""

    member_id: str
    """Empty: it has none yet."""
    instance: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_s: float
    rebalance_s: float
    needs_id: bool = True
    """Whether it takes an id first and comes again with it, so that no id is lost with an answer (KIP-394)."""
    can_skip: bool = False
    """Whether it understands that it leads and need not share out anything (KIP-814)."""

    def bytes_count(self) -> int:
        said = sum(len(name) + len(text) for name, text in self.protocols)
        return said + len(self.protocol_type) + len(self.instance or "")


class Joined(NamedTuple):
    """What became of that."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: id, instance, and what each says to the chosen protocol."""
    skip_assignment: bool = False


class Sync(msgspec.Struct, frozen=True, gc=False):
    """Somebody wants to know what is its share; the leader says all of them."""

    member_id: str
    instance: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Synced(NamedTuple):
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


WhenJoined = Callable[[Joined], None]
WhenSynced = Callable[[Synced], None]


class Live:
    """A member as the coordinator knows it."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "expires",
        "id",
        "instance",
        "is_there",
        "join",
        "protocols",
        "rebalance_s",
        "session_s",
        "sync",
        "was_told",
    )

    def __init__(self, id_: str, wanted: Join) -> None:
        self.id = id_
        self.instance = wanted.instance
        self.client_id = wanted.client_id
        self.client_host = wanted.client_host
        self.assignment = b""
        self.expires = 0.0
        """When it is taken for gone, unless it is heard of before."""
        self.join: WhenJoined | None = None
        """It waits for the next generation."""
        self.sync: WhenSynced | None = None
        """It waits for its share."""
        self.is_there = False
        """Its connection was there when it began to wait, and still is."""
        self.was_told = bool(wanted.member_id)
        """It knows its id."""
        self.update(wanted)

    def update(self, wanted: Join) -> None:
        self.protocols = wanted.protocols
        self.session_s = wanted.session_s
        self.rebalance_s = wanted.rebalance_s

    @property
    def may_expire(self) -> bool:
        """Who waits here has nothing to say meanwhile."""
        return not (self.is_there and (self.join is not None or self.sync is not None))

    def metadata(self, protocol: str) -> bytes:
        return next((said for name, said in self.protocols if name == protocol), b"")

    def bytes_count(self) -> int:
        return len(self.assignment) + sum(len(name) + len(said) for name, said in self.protocols)

    def saved(self, assignment: bytes) -> Member:
        return Member(
            self.id,
            self.instance,
            self.client_id,
            self.client_host,
            round(self.session_s * 1000),
            round(self.rebalance_s * 1000),
            self.protocols,
            assignment,
        )


def revived(now: float, member: Member) -> Live:
    """A member as the log has it: it is heard of from now on."""
    wanted = Join(
        member.id,
        member.instance,
        member.client_id,
        member.client_host,
        "",
        member.protocols,
        member.session_ms / 1000,
        member.rebalance_ms / 1000,
    )
    live = Live(member.id, wanted)
    live.assignment = member.assignment
    live.expires = now + live.session_s
    return live


def chosen_protocol(members: Sequence[Live]) -> str:
    """Of those that all can, the one that most would rather have; of two such, as the first member has them."""
    common = common_protocols(members)
    assert common, "nobody is let in who shares none with the others"
    votes = dict.fromkeys(common, 0)
    for member in members:
        votes[next(name for name, _ in member.protocols if name in votes)] += 1
    return max(common, key=lambda name: votes[name])


def common_protocols(members: Iterable[Live]) -> list[str]:
    common: list[str] | None = None
    for member in members:
        names = [name for name, _ in member.protocols]
        common = names if common is None else [name for name in common if name in names]
    return common or []
