"""Follower: stores what the leader of its epoch sends, and cuts its log where the leader says (OX-14).

Entries never cut anything here. Before a leader sends any, both logs are known to agree at the follower's head, so
a follower's log is the beginning of its leader's; where it turns out not to be, it says where it ends, and the
leader sends a `TruncateRequest`.
"""

from __future__ import annotations

from typing import Any

from quorate.core.appending import plan
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    TruncateRequest,
    TruncateResponse,
)
from quorate.core.coordinated.roles import Role
from quorate.core.entry import EntryId, Member
from quorate.core.reading import StillRequest, StillResponse


class Follower(Role):
    name = "follower"
    _acknowledge = False
    """Entries were ordered whose flush the leader waits to hear of."""
    _answered = -1

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is AddEntryRequest:
            self._add_entry(message)
        elif type(message) is TruncateRequest:
            self._truncate(message)
        elif type(message) is StillRequest:
            self.replica.send_when_saved(sender.node, StillResponse(message.epoch, message.round))

    # --- entries ---

    def _add_entry(self, message: AddEntryRequest) -> None:
        replica = self.replica
        probe = message.prev.offset
        if replica.installing:
            return
        if not replica.log.holds(message.prev):
            self._answer(accepted=False, probe=probe)
            return
        todo = plan(replica.log, message.prev, message.headers)
        if todo.repair:
            replica.repair(todo.repair)
        if todo.cut_to is not None or todo.gives_up is not None:
            self._answer(accepted=False, probe=probe)
            return
        if todo.append:
            replica.append(todo.append)
        replica.verify(todo.verified, message.commit)
        if todo.append and replica.durable.offset < replica.log.head.offset:
            self._acknowledge = True  # Said once, when it is flushed: see persisted().
        else:
            self._answer(accepted=True, probe=probe)

    def _answer(self, *, accepted: bool, probe: int) -> None:
        replica = self.replica
        self._answered = matched = replica.flushed_agreement()
        response = AddEntryResponse(
            replica.epoch,
            accepted,
            probe,
            matched,
            replica.commit,
            replica.log.head,
            faulty=replica.repairing.wanted(replica.log),
            wants_snapshot=replica.wants_snapshot,
        )
        replica.send_when_saved(replica.leader, response)

    def persisted(self) -> None:
        replica = self.replica
        if self._acknowledge:
            matched = replica.flushed_agreement()
            if matched > self._answered:
                self._answer(accepted=True, probe=matched)
            self._acknowledge = replica.durable.offset < replica.log.head.offset

    def beyond_repair(self) -> None:
        """A leader that is at rest has to be told what is missing, or the damage would stay for ever."""
        self._answer(accepted=True, probe=self.replica.verified.offset)

    # --- truncation ---

    def _truncate(self, message: TruncateRequest) -> None:
        """Keep nothing above `to`, if this log still is what the request is about."""
        replica = self.replica
        if replica.installing:
            return
        if message.head in (replica.log.head, replica.claim):
            self._cut_at_or_below(message.to, message.settled)
        response = TruncateResponse(replica.epoch, replica.log.head, replica.commit)
        replica.send_when_durable(replica.leader, response)

    def _cut_at_or_below(self, to: EntryId, settled: EntryId) -> None:
        replica = self.replica
        target = self._boundary_at_or_below(to)
        if target.offset < replica.commit:
            # What is settled lies inside of damage, and is never cut: by the leader's name others can give it back.
            if settled.offset == replica.commit:
                replica.repairing.settled = settled
            return
        if target == replica.log.head:
            return
        span = replica.log.span_at(target.offset + 1)
        if span is not None and span.before == target and span.first_offset <= to.offset:
            replica.owe(replica.claim)  # It may have been promised what is cut with the damage.
        is_guess = target.offset < replica.last_at_or_below(to).offset
        if is_guess and replica.log.boundary_at_or_below(target.offset) is None:
            replica.owe(replica.claim)  # More may be cut than what the leader does not have.
        replica.cut(target)
        if replica.verified.offset > target.offset:
            replica.verified = target

    def _boundary_at_or_below(self, to: EntryId) -> EntryId:
        """Our last position at or below `to` where an entry ends: where logs differ, so may their boundaries."""
        replica = self.replica
        log = replica.log
        found = replica.last_at_or_below(to)
        if found in (to, log.base, log.head) or log.span_at(found.offset + 1) is not None:
            return found
        boundary = log.boundary_at_or_below(found.offset)
        if boundary is not None or found.offset < replica.commit:
            return boundary if boundary is not None else found
        # It is older than the headers in memory: what is settled ends with an entry, too.
        settled = max(replica.commit, log.base.offset)
        span = log.span_at(settled)
        return span.before if span is not None and settled != span.last.offset else log.position(settled)
