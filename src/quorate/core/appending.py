"""The receiving side of replication: match, skip, cut at the first conflict, store.

Openraft's document gives both wrong turns: cutting everything behind `prev` loses committed entries in a
crash (OR-7), keeping what conflicts lets an old leader's entries win an election (OR-5). So: entries that
are already here are skipped (OR-3, OR-8), the first that differs cuts the log there (OR-4), the rest is
appended (OR-2).
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId, Header, Span
from quorate.core.log import LogView


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What to do with entries whose `prev` this log holds."""

    cut_to: EntryId | None
    append: tuple[Header, ...]
    repair: tuple[Header, ...]
    """What fills the first faulty span, where the entries cover all of it."""
    verified: EntryId
    """The last entry now known to agree with the sender's log (OR-10)."""
    gives_up: Span | None = None
    """What was lost here and is not what the sender has: the log ends before it, and what it held is owed."""


def plan(log: LogView, prev: EntryId, headers: tuple[Header, ...]) -> Plan:
    """Compare entries with the log, entry by entry, and stop at the first that is not there."""
    assert log.holds(prev)
    verified = headers[-1].id if headers else prev
    if headers and headers[0].offset == log.head.offset + 1:  # The steady state: nothing to compare.
        return Plan(None, headers, (), verified)
    repair: tuple[Header, ...] = ()
    inside: list[Header] = []
    for index, header in enumerate(headers):
        if header.last <= log.base.offset:
            continue
        assert header.offset > log.base.offset, "entries are never cut in the middle"
        if header.offset > log.head.offset:
            return Plan(None, headers[index:], repair, verified)
        span = log.span_at(header.offset)
        if span is not None:
            inside.append(header)
            if contradicts(header.id, span) or header.last > span.last.offset:
                first = index + 1 - len(inside)
                return Plan(None, headers[first:], repair, verified, gives_up=span)
            if header.id == span.last:  # The sender has the very entries that are missing (log matching).
                repair = repair or tuple(inside)
                inside = []
            continue
        if log.epoch_at(header.offset) == header.epoch:
            continue
        return Plan(log.position(header.offset - 1), headers[index:], repair, verified)
    if inside:
        verified = log.position(inside[0].offset - 1)  # Inside the damage nobody can tell yet.
    return Plan(None, (), repair, verified)


def contradicts(position: EntryId, span: Span) -> bool:
    """Whether a log with `position` cannot have the end of `span`: epochs never fall along a log."""
    return position.epoch > span.last.epoch or (
        position.offset == span.last.offset and position.epoch != span.last.epoch
    )
