"""Asking about tables, without sockets: which node to ask next, what to ask it, and what its answer means.

Both clients, the synchronous one and the one for asyncio, drive these. A call goes on through changes of leader
until its time is over. A transaction has an id, under which it is done once, so that it can be sent again when
nobody knows what became of it.
"""

from __future__ import annotations

import os
from random import Random
from time import monotonic
from typing import Any

from quorate.client.errors import OutcomeUnknown, Refused, RolledBack, TransactionRefused, Unreachable
from quorate.tables import ID_BYTES, Outcome, Result
from quorate.wire import tables as wire

PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5
TRY_S = 5.0
"""How long one node may take for one answer."""


class Nodes:
    """Where the nodes are, and who led a group when it was last heard of."""

    def __init__(self, bootstrap: list[tuple[str, int]]) -> None:
        self.bootstrap = bootstrap
        self.addresses: dict[int, tuple[str, int]] = {}
        self.leaders: dict[str, int] = {}


class Call:
    """One request, over all its tries: `address`, then `answered` or `failed`, until something is `found`."""

    def __init__(self, nodes: Nodes, request: wire.Request, timeout_s: float, *, node: int = 0) -> None:
        """`node`: only this one is asked."""
        self.request = request
        self.deadline = monotonic() + timeout_s
        self.is_over = False
        self.found: Any = None
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._node = node
        self._rng = Random(os.urandom(8))
        self._asked: tuple[str, int] | None = None
        self._times = 0
        self._trouble = ""
        self._may_be_done = False

    @property
    def group(self) -> str:
        return self.request.group

    def address(self) -> tuple[str, int]:
        """Whom to ask now; raises Unreachable or OutcomeUnknown when the time is over."""
        if self._times and monotonic() >= self.deadline:
            raise self._given_up()
        self._times += 1
        known = self._nodes.addresses
        wanted = self._node or self._nodes.leaders.get(self.group, 0)
        if wanted in known:
            self._asked = known[wanted]
        elif self._node:
            raise Refused(f"there is no node {self._node}; there are: {', '.join(map(str, sorted(known)))}")
        else:
            self._asked = self._rng.choice(list(known.values()) or self._nodes.bootstrap)
        return self._asked

    def pause_s(self) -> float:
        """Before the next try: longer each time."""
        longest: float = min(PAUSE_MIN_S * 2 ** min(self._times, 10), PAUSE_MAX_S)
        return min(longest * (0.5 + self._rng.random() / 2), max(self.deadline - monotonic(), 0.0))

    def try_deadline(self) -> float:
        return min(self.deadline, monotonic() + TRY_S)

    def failed(self, why: str, *, was_sent: bool) -> None:
        """The node did not answer."""
        assert self._asked is not None
        self._trouble = f"{self._asked[0]}:{self._asked[1]}: {why}"
        self._may_be_done = self._may_be_done or was_sent
        self._nodes.leaders.pop(self.group, None)

    def answered(self, answer: wire.Answer) -> None:
        """Raises what trying again cannot mend."""
        if isinstance(answer, wire.Again):
            self._trouble = answer.why
            if answer.leader:
                self._nodes.leaders[self.group] = answer.leader
            else:
                self._nodes.leaders.pop(self.group, None)
        elif isinstance(answer, wire.Unknown):
            self._may_be_done = True
            self._trouble = answer.why or "nobody knows what became of it"
            self._nodes.leaders.pop(self.group, None)
        elif isinstance(answer, wire.RolledBack):
            raise RolledBack(answer.why or "too few copies had it, and it was taken back")
        elif isinstance(answer, wire.Refused):
            raise Refused(answer.why)
        else:
            self.is_over = True
            self.found = self._judged(answer)

    def _judged(self, answer: Any) -> Any:
        if isinstance(answer, wire.Done) and isinstance(self.request, wire.Execute):
            result: Result | None = answer.result
            if result is None:
                raise OutcomeUnknown(
                    self.request.transaction.id, "so much was done since that it is forgotten"
                )
            if result.outcome is Outcome.REFUSED:
                raise TransactionRefused(result.why)
        return answer

    def _given_up(self) -> Exception:
        why = f"within {self._timeout_s:g} s: {self._trouble or 'nobody answered'}"
        if isinstance(self.request, wire.Execute) and self._may_be_done:
            return OutcomeUnknown(self.request.transaction.id, why)
        return Unreachable(f"{self.group}: nothing came of it {why}")


def new_id() -> bytes:
    """Of a transaction: made up where it is begun, so that nobody has to be asked."""
    return os.urandom(ID_BYTES)
