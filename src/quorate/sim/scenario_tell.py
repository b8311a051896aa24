"""What happens in a scenario, told line by line with the file's own names and offsets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quorate.core import effects, events
from quorate.core.confirm.voting import Row
from quorate.core.coordinated.shard import Reconfiguration
from quorate.core.entry import (
    Confirm,
    EntryId,
    Header,
    Member,
    Membership,
    Promote,
    Rollback,
    Snapshot,
    Span,
)
from quorate.core.isr import PartitionState
from quorate.sim.scenario_log import write_headers, write_position
from quorate.sim.scenario_room import Room, message_name

ENTRIES_FIELD = "headers"


class Teller:
    """Puts values into the words of one file."""

    def __init__(self, names: Mapping[int, str], origin: int, room: Room) -> None:
        self.names = names
        self.origin = origin
        self.room = room

    def node(self, number: int) -> str:
        return self.names.get(number, "somebody")

    def offset(self, offset: int) -> str:
        return str(offset + self.origin) if offset >= 0 else "none"

    def position(self, position: EntryId) -> str:
        return write_position(position, self.origin)

    def headers(self, headers: tuple[Header, ...]) -> str:
        return write_headers(headers, self.origin)

    def message(self, message: Any) -> str:
        """`append-entries epoch 5 prev 1-1 entries 1-2 1-3`: what is as usual is left out."""
        return " ".join((message_name(type(message)), *self.fields(message).values()))

    def fields(self, message: Any) -> dict[str, str]:
        """Every field that says something, as it is written: `prev 1-1`, `search`, `not granted`."""
        told = {}
        for field in msgspec.structs.fields(message):
            value = getattr(message, field.name)
            usual = value == field.default and type(value) is type(field.default)
            if usual or field.name in self.room.untold_fields:
                continue
            name = self.field_name(field.name)
            if isinstance(value, bool):
                told[name] = name if value else f"not {name}"
            else:
                told[name] = f"{name} {self.value(field.name, value)}"
        return told

    def field_name(self, name: str) -> str:
        return "entries" if name == ENTRIES_FIELD else name.replace("_", "-")

    def value(self, field: str, value: Any) -> str:
        if field in self.room.offset_fields:
            return self.offset(value)
        if field in self.room.node_fields:
            return self.node(value)
        if isinstance(value, Member):
            return self.node(value.node)
        if isinstance(value, EntryId):
            return self.position(value)
        if isinstance(value, Span):
            return self.span(value)
        if isinstance(value, Snapshot):
            return self.position(value.last)
        if isinstance(value, Reconfiguration | PartitionState | Row):
            return self.named(str(value).replace("n0", "none"))
        if isinstance(value, tuple):
            return self.row(value)
        return str(value)

    def row(self, values: tuple[Any, ...]) -> str:
        """Entries, members, or members with their heads."""
        if all(isinstance(value, Header) for value in values):
            return self.headers(values)
        if all(isinstance(value, Member) for value in values):
            return " ".join(self.node(member.node) for member in values)
        return ", ".join(f"{self.node(member.node)} {self.position(head)}" for member, head in values)

    def named(self, text: str) -> str:
        """Whatever the code calls n2 is called as this file calls it."""
        return re.sub(r"\bn(\d+)\b", lambda found: self.node(int(found[1])), text)

    def span(self, span: Span) -> str:
        first, last = span.first_offset + self.origin, span.last.offset + self.origin
        return f"{first}..{last}" if last > first else str(first)

    def reply(self, reply: effects.Reply) -> str:
        where = f" at {self.offset(reply.offset)}" if reply.offset >= 0 else ""
        return f"{reply.outcome}{where}" + (f' because "{reply.why}"' if reply.why else "")

    def decision(self, header: Header) -> str:
        """A PROMOTE, CONFIRM or ROLLBACK, in words; empty for every other entry."""
        at, control = self.position(header.id), header.control
        if isinstance(control, Promote):
            former = f" after {self.node(control.former)}" if control.former else ""
            return f"{at} promote {self.node(control.leader)}{former}"
        if isinstance(control, Confirm):
            return f"{at} confirm {self.position(control.upto)}"
        if isinstance(control, Rollback):
            return f"{at} {'forced ' if control.forced else ''}rollback from {self.offset(control.first)}"
        return ""

    def membership(self, membership: Membership) -> str:
        """`R2 R3 R4 from R1 R2 R3 learners R5`: what is not is left out."""

        def nodes(members: tuple[Member, ...]) -> str:
            return " ".join(self.node(member.node) for member in members)

        said = nodes(membership.ensemble)
        if membership.outgoing:
            said += f" from {nodes(membership.outgoing)}"
        if membership.learners:
            said += f" learners {nodes(membership.learners)}"
        if membership.wanted is not None and not membership.outgoing:
            said += f" to be {nodes(membership.wanted.ensemble)}"
        return said


class Narrator:
    """Sees every step. Keeps the lines of the story, and every entry that was ever appended."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.lines: list[str] = []
        self.entries: dict[tuple[int, int], Header] = {}
        """By epoch and offset, for every offset that the entry covers."""
        self.cuts: Counter[int] = Counter()
        self._durable: dict[int, EntryId] = {}
        self._roles: dict[int, tuple[str, int]] = {}
        self._memberships: dict[int, Membership] = {}
        self._effects: dict[type, Callable[[Any], str]] = {
            effects.Append: lambda effect: f"appends {self._appended(effect.headers)}",
            effects.Cut: lambda effect: (
                f"cuts to {teller.position(effect.to)}"
                + (", and sets aside what was there" if effect.aside else "")
            ),
            effects.SaveState: lambda effect: "saves " + " ".join(teller.fields(effect.state).values()),
            effects.Repair: lambda effect: f"repairs {teller.headers(effect.headers)}",
            effects.StageChunk: lambda effect: f"stages a snapshot from byte {effect.at}",
            effects.InstallSnapshot: lambda effect: (
                f"installs the snapshot of {teller.position(effect.snapshot.last)}"
            ),
            effects.RemovePrefix: lambda effect: f"removes entries up to {teller.position(effect.to)}",
            effects.Commit: lambda effect: f"commits {teller.offset(effect.offset)}",
        }

    def _appended(self, headers: tuple[Header, ...]) -> str:
        decisions = list(filter(None, map(self.teller.decision, headers)))
        return self.teller.headers(headers) + (f" ({', '.join(decisions)})" if decisions else "")

    def say(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> list[str]:
        """The story since it was last taken."""
        lines, self.lines = self.lines, []
        return lines

    def learn(self, headers: tuple[Header, ...]) -> None:
        for header in headers:
            for offset in range(header.offset, header.last + 1):
                self.entries[header.epoch, offset] = header

    def stepped(self, node: int, replica: Any, event: events.Event, ordered: list[effects.Effect]) -> None:
        name = self.teller.node(node)
        self._event(node, name, replica, event)
        for effect in ordered:
            if isinstance(effect, effects.Append | effects.Repair):
                self.learn(effect.headers)
            elif isinstance(effect, effects.Cut):
                self.cuts[node] += 1
            told = self._effects.get(type(effect))
            if told is not None:
                self.say(f"{name} {told(effect)}")
        membership = getattr(replica, "membership", None)  # Where the log says who counts.
        if membership is not None and membership is not self._memberships.get(node):
            if self._memberships.get(node, membership) != membership:
                self.say(f"{name} goes by {self.teller.membership(membership)}")
            self._memberships[node] = membership
        self._role(node, name, replica)

    def _event(self, node: int, name: str, replica: Any, event: events.Event) -> None:
        if isinstance(event, events.Started):
            self.learn(event.recovered.headers)
            self._durable[node] = replica.durable
            self._roles[node] = (replica.role.name, replica.epoch)
            self.say(f"{name} starts in epoch {replica.epoch} with {self._log(replica)}")
        elif isinstance(event, events.Persisted):
            durable = replica.durable
            news = f" up to {self.teller.position(durable)}" if durable != self._durable[node] else ""
            self._durable[node] = durable
            self.say(f"{name} flushed{news}")
        elif isinstance(event, events.Failed):
            self.say(f"{name} hears from its disk: {event.reason}")
        elif isinstance(event, events.Damaged):
            self.say(f"{name} finds {self.teller.span(event.span)} damaged")
        elif isinstance(event, events.SnapshotTaken):
            self.say(f"{name} took a snapshot of {self.teller.position(event.snapshot.last)}")
        elif isinstance(event, events.Loaded):
            self.learn(event.headers)

    def _log(self, replica: Any) -> str:
        head = replica.log.head
        return f"a log up to {self.teller.position(head)}" if head.offset >= 0 else "an empty log"

    def _role(self, node: int, name: str, replica: Any) -> None:
        now = (replica.role.name, replica.epoch)
        before = self._roles.get(node)
        self._roles[node] = now
        if now == before:
            return
        role, epoch = now
        if role == "leader":
            self.say(f"{name} leads epoch {epoch}")
        elif role == "candidate":
            self.say(f"{name} stands for epoch {epoch}")
        elif role == "prospect":
            self.say(f"{name} misses its leader")
        elif role == "fenced":
            self.say(f"{name} is fenced in epoch {epoch}")
        elif role == "waiting":
            self.say(f"{name} waits in epoch {epoch}")
        elif before is not None and before[0] == "prospect":
            self.say(f"{name} follows again")
        elif before is not None and before[0] in ("fenced", "waiting"):
            self.say(f"{name} follows in epoch {epoch}")
        elif before is not None and before[0] != role:
            self.say(f"{name} steps down in epoch {epoch}")
