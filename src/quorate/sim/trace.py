"""The story of a run, line by line: the same bytes in every run, process and machine.

Nothing here depends on the identity or the hash of an object; times are printed with fixed digits. A run
without a trace never formats anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quorate.core import effects, events
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Membership, Span
from quorate.sim.happening import Happening


class Trace:
    """Collects happenings."""

    def __init__(self) -> None:
        self.happenings: list[Happening] = []

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
        self.happenings.append(Happening(at, node, what, partition, text, message, peer, state))

    def lines(self) -> Iterable[str]:
        return map(str, self.happenings)

    def stepped(
        self, at: float, node: int, partition: int, replica: Any, event: Any, ordered: list[Any], message: int
    ) -> None:
        """One step of a replica: its cause, what it ordered, and the replica afterwards."""
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
            state=replica.describe(),
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
    if kind is events.Suspected:
        return "suspected", f"n{event.node}", 0
    if kind is events.ReadAsked:
        at = f" {event.offset}" if event.offset >= 0 else ""
        return "asked", f"request {event.request}: up to where it may read ({event.level}{at})", 0
    if kind is events.Commanded:
        return "commanded", tell(event.command), 0
    return kind.__name__.lower(), tell(event), 0


_EFFECTS: dict[type, Callable[[Any], str]] = {
    effects.Append: lambda effect: f"append {tell_headers(effect.headers)} (order {effect.io})",
    effects.Cut: lambda effect: f"cut to {effect.to} (order {effect.io})",
    effects.SaveState: lambda effect: f"save {tell(effect.state)} (order {effect.io})",
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
    leader = f", try n{reply.leader}" if reply.leader else ""
    why = f" ({reply.why})" if reply.why else ""
    return f"request {reply.request}: {reply.outcome}{where}{leader}{why}"


def tell_headers(headers: tuple[Header, ...]) -> str:
    if not headers:
        return "nothing"
    if len(headers) == 1:
        control = headers[0].control
        return f"{headers[0]} {control}" if isinstance(control, Membership) else str(headers[0])
    return f"{headers[0].epoch}-{headers[0].offset}..{headers[-1].id} ({len(headers)})"


def tell_span(span: Span) -> str:
    return f"({span.before}, {span.last}]"


UNSAID = {"heir": 0, "priority": 1}
"""Values that are the usual ones."""


def tell(thing: Any) -> str:
    """Any Struct: its name and those of its fields that say something."""
    if isinstance(thing, EntryId | Header):
        return str(thing) if thing != NOWHERE else "nothing"
    if isinstance(thing, Member):
        return f"n{thing.node}" if thing.incarnation == 1 else f"n{thing.node}/{thing.incarnation}"
    if isinstance(thing, Span):
        return tell_span(thing)
    if isinstance(thing, Membership):
        return str(thing)
    if isinstance(thing, msgspec.Struct):
        fields = (
            (name, getattr(thing, name))
            for name in thing.__struct_fields__
            if name not in ("io", "token", "control")
        )
        fields = ((name, value) for name, value in fields if UNSAID.get(name) != value)
        parts = " ".join(f"{name} {tell(value)}" for name, value in fields if says_something(value))
        return f"{_spaced(type(thing).__name__)} {parts}".strip()
    if isinstance(thing, tuple):
        if thing and isinstance(thing[0], Header):
            return tell_headers(thing)
        return "(" + " ".join(tell(value) for value in thing) + ")"
    if thing is True:
        return "yes"
    if isinstance(thing, float):
        return f"{thing:.6f}"
    return str(thing)


def says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ((), "")


def _spaced(name: str) -> str:
    """VoteRequest: vote-request."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")
