"""The story of a run, line by line: the same bytes in every run, process and machine.

Nothing here depends on the identity or the hash of an object; times are printed with fixed digits. A run
without a trace never formats anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quorate.core import commands, coordinated, effects, events, isr, metadata, raft
from quorate.core.confirm.voting import Row, Says
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.coordinated.shard import Kind, Reconfiguration, Shard, Status
from quorate.core.entry import (
    NOWHERE,
    Confirm,
    EntryId,
    Header,
    Member,
    Membership,
    Promote,
    Quorums,
    Rollback,
    Snapshot,
    Span,
    Standing,
)
from quorate.sim.happening import Happening, with_store


class Trace:
    """Collects happenings."""

    def __init__(self) -> None:
        self.happenings: list[Happening] = []
        self._shards: set[int] = set()
        """Partitions that operators care for."""
        self._store: int | None = None
        """In such a world: the `raft` group that is their store."""

    def add(
        self,
        at: float,
        node: int,
        what: str,
        *,
        partition: int = -1,
        text: str = "",
        message: int = 0,
        peer: int = 0,
        state: str = "",
    ) -> None:
        in_store = partition == self._store
        if partition < 0 and self._store is not None:
            text = with_store(text, self._store)
        self.happenings.append(Happening(at, node, what, partition, text, message, peer, state, in_store))

    def lines(self) -> Iterable[str]:
        return map(str, self.happenings)

    def stepped(
        self, at: float, node: int, partition: int, replica: Any, event: Any, ordered: list[Any], message: int
    ) -> None:
        """One step of a replica: its cause, what it ordered, and the replica afterwards."""
        if isinstance(replica, coordinated.Replica | isr.Replica):
            self._shards.add(partition)
        elif isinstance(replica, raft.Replica) and self._shards:
            self._store = partition
        what, text, peer = tell_event(event)
        orders = ", ".join(order for order in map(tell_effect, ordered) if order)
        text = f"{text} -> {orders}" if orders else text
        number = message if peer else 0
        self.add(
            at,
            node,
            what,
            partition=partition,
            text=text.strip(),
            message=number,
            peer=peer,
            state=tell_state(replica),
        )
        for order in ordered:
            if type(order) is effects.Reply:
                self.add(at, node, "answered", partition=partition, text=tell_reply(order))


def tell_event(event: Any) -> tuple[str, str, int]:
    """A verb, the rest, and the other end of a message."""
    kind = type(event)
    if kind is events.Received:
        return "received", tell(event.message), event.sender.node
    if kind is events.Persisted:
        return "flushed", f"order {event.io}", 0
    if kind is events.TimePassed:
        return "woke", "", 0
    if kind is events.Proposed:
        entries = " ".join(f"{header.count}x{header.size}B" for header in event.headers)
        return "proposed", f"request {event.request}: {entries}", 0
    if kind is events.Started:
        return "started", "", 0
    if kind is events.Failed:
        return "failed", f"order {event.io}: {event.reason}", 0
    if kind is events.Loaded:
        return "loaded", tell_headers(event.headers), 0
    if kind is events.Damaged:
        return "damaged", tell_span(event.span), 0
    if kind is events.Expired:
        return "expired", str(event.to), 0
    if kind is events.Suspected:
        return "suspected", f"n{event.node}", 0
    if kind is events.ReadAsked:
        at = f" {event.offset}" if event.offset >= 0 else ""
        return "asked", f"request {event.request}: up to where it may read ({event.level}{at})", 0
    if kind is events.Commanded:
        return "commanded", tell(event.command), 0
    if kind is events.SnapshotTaken:
        return "took a snapshot", tell(event.snapshot), 0
    if kind in _FROM_STORE:
        return _FROM_STORE[kind], tell_fields(event), 0
    return _spaced(kind.__name__).replace("-", " "), tell_fields(event), 0


_FROM_STORE: dict[type, str] = {
    metadata.ShardRead: "read the store",
    metadata.ShardWritten: "wrote to the store",
    metadata.WriteRefused: "found the store written by somebody else",
    metadata.StoreSilent: "heard nothing from the store",
}


def tell_state(replica: Any) -> str:
    """A replica, or an operator, in one line."""
    if isinstance(replica, coordinated.Operator):
        return tell_operator(replica)
    return str(replica.describe()).replace("commit -1", "commit none")


_TASKS = {"Electing": "electing in", "Tending": "tending", "Reshaping": "reshaping"}


def tell_operator(operator: coordinated.Operator) -> str:
    """`operator e4 v9 tending {n1,n2,n3} led by n1`: its epoch, the store's version, what it does with whom."""
    shard = operator.shard
    if shard is None:
        return f"operator e0 v{operator.version} knowing nothing yet"
    doing = _TASKS.get(type(operator.task).__name__, "waiting:")
    return f"operator e{shard.epoch} v{operator.version} {doing} {tell_members(shard)}"


def tell_shard(shard: Shard) -> str:
    status = "election in" if shard.status is Status.ELECTION else "steady"
    return f"e{shard.epoch} {status} {tell_members(shard)}"


def tell_members(shard: Shard) -> str:
    ensemble = ",".join(map(tell, shard.ensemble))
    leader = f" led by {tell(shard.leader)}" if shard.leader is not None else ""
    change = f", {tell(shard.reconfiguration)}" if shard.reconfiguration is not None else ""
    return f"{{{ensemble}}}{leader}{change}"


def tell_partition(state: isr.PartitionState) -> str:
    """With incarnations, as an ensemble is told."""

    def nodes(members: tuple[Member, ...]) -> str:
        return "{" + ",".join(map(tell, members)) + "}"

    elr = f" elr {nodes(state.elr)}" if state.elr else ""
    unclean = f", uncleanly since e{state.unclean.leader_epoch}" if state.unclean is not None else ""
    return (
        f"e{state.leader_epoch} (v{state.epoch}) led by {tell(state.leader)},"
        f" isr {nodes(state.isr)}{elr} of {nodes(state.replicas)}{unclean}"
    )


def tell_reconfiguration(change: Reconfiguration) -> str:
    return f"{tell_change(change)} ({change.phase}{' again' if change.again else ''})"


def tell_change(change: Reconfiguration | Reconfigure) -> str:
    """With incarnations: a node that was wiped is swapped for itself."""
    old, new = (tell(member) if member is not None else "" for member in (change.old, change.new))
    said = {Kind.SWAP: f"swap {old} for {new}", Kind.EXPAND: f"add {new}", Kind.CONTRACT: f"remove {old}"}
    return said[change.kind]


def tell_snapshot(snapshot: Snapshot) -> str:
    standing = tell(snapshot.standing)
    return f"up to {snapshot.last} {snapshot.size}B" + (f" {standing}" if standing else "")


def tell_standing(standing: Standing) -> str:
    ceiling = f"ceiling {standing.ceiling}" if standing.ceiling else ""
    membership = str(standing.membership) if standing.membership is not None else ""
    return " ".join(filter(None, (membership, ceiling)))


_EFFECTS: dict[type, Callable[[Any], str]] = {
    effects.Append: lambda effect: f"append {tell_headers(effect.headers)} (order {effect.io})",
    effects.Cut: lambda effect: f"cut to {effect.to} (order {effect.io})",
    effects.SaveState: lambda effect: f"save {tell_fields(effect.state)} (order {effect.io})",
    effects.Commit: lambda effect: f"commit {effect.offset}",
    effects.Send: lambda effect: "",
    effects.Reply: lambda effect: "",
}


def tell_effect(effect: Any) -> str:
    """An order in a few words; sends and replies are told where they go."""
    teller = _EFFECTS.get(type(effect))
    return teller(effect) if teller is not None else tell(effect)


def tell_reply(reply: effects.Reply) -> str:
    where = f" at {reply.offset}" if reply.offset >= 0 else ""
    advice = "led by" if reply.outcome is effects.Outcome.SETTLED else "try"
    leader = f", {advice} n{reply.leader}" if reply.leader else ""
    why = f" ({reply.why})" if reply.why else ""
    return f"request {reply.request}: {reply.outcome}{where}{leader}{why}"


def tell_headers(headers: tuple[Header, ...]) -> str:
    if not headers:
        return "nothing"
    if len(headers) == 1:
        return f"{headers[0]} {tell_control(headers[0].control)}".strip()
    return f"{headers[0].epoch}-{headers[0].offset}..{headers[-1].id} ({len(headers)})"


def tell_control(control: Any) -> str:
    """What a control record says, beside its name."""
    if isinstance(control, Membership):
        return str(control)
    if isinstance(control, Confirm):
        return f"of {control.upto}"
    if isinstance(control, Rollback):
        return f"from {control.first}" + (" forced" if control.forced else "")
    if isinstance(control, Promote):
        return f"of n{control.leader}" + (f" after n{control.former}" if control.former else "")
    return ""


def tell_row(row: Row) -> str:
    """A row of `_voting`."""
    said = f"{'aye' if row.aye else 'nay'} to n{row.nominee}" if row.nominee else "nobody stands"
    if row.since and row.since == row.epoch:
        said = f"n{row.leader} leads" if row.leader else "nobody leads"
    former = f", former n{row.former}" if row.former else ""
    return f"({said}{former})"


def tell_says(says: Says) -> str:
    """`says epoch 4 (aye to n2)`."""
    stands = f" stands with {tell(says.last)}" if says.stands else ""
    notes = [name for name in ("ordered", "faulty") if getattr(says, name)]
    return " ".join([f"says epoch {says.epoch} {tell_row(says.row)}{stands}", *notes])


def tell_span(span: Span) -> str:
    return f"({span.before}, {span.last}]"


UNSAID = {
    "heir": 0,
    "priority": 1,
    "wants_snapshot": -1,
    "settled": NOWHERE,
    "owed": NOWHERE,
    "led": 0,
    "row": Row(),
}
"""Values that are the usual ones."""


_TELLERS: dict[type, Callable[[Any], str]] = {
    CallOff: lambda thing: f"request {thing.request}: call off",
    EntryId: lambda thing: str(thing) if thing != NOWHERE else "nothing",
    Header: str,
    Member: lambda thing: (
        f"n{thing.node}" if thing.incarnation == 1 else f"n{thing.node}/{thing.incarnation}"
    ),
    Membership: str,
    MoveLeader: lambda thing: f"request {thing.request}: move the leader",
    isr.PartitionState: tell_partition,
    Reconfiguration: tell_reconfiguration,
    Reconfigure: lambda thing: f"request {thing.request}: {tell_change(thing)}",
    Shard: tell_shard,
    Quorums: lambda thing: f"{thing.commit}+{thing.promote}",
    Row: tell_row,
    Says: tell_says,
    commands.SetReadOnly: lambda thing: (
        f"set-read-only request {thing.request} {'on' if thing.read_only else 'off'}"
    ),
    Snapshot: tell_snapshot,
    Span: tell_span,
    Standing: tell_standing,
}
"""Things that have a form of their own."""


def tell(thing: Any) -> str:
    """Any value; of a Struct its name and those of its fields that say something."""
    teller = _TELLERS.get(type(thing))
    if teller is not None:
        return teller(thing)
    if isinstance(thing, msgspec.Struct):
        return f"{_spaced(type(thing).__name__)} {tell_fields(thing)}".strip()
    if isinstance(thing, tuple):
        if thing and isinstance(thing[0], Header):
            return tell_headers(thing)
        return "(" + " ".join(tell(value) for value in thing) + ")"
    if thing is True:
        return "yes"
    if isinstance(thing, float):
        return f"{thing:.6f}"
    return str(thing) if thing != -1 else "none"


def tell_fields(thing: msgspec.Struct) -> str:
    fields = (
        (name, getattr(thing, name))
        for name in thing.__struct_fields__
        if name not in ("io", "token", "control")
    )
    fields = ((name, value) for name, value in fields if UNSAID.get(name) != value)
    return " ".join(f"{name} {tell(value)}" for name, value in fields if says_something(value))


def says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ((), "")


def _spaced(name: str) -> str:
    """VoteRequest: vote-request."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")
