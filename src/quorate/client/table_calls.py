"""Asking about tables, without sockets: which node to ask next, how long to wait for it, what its answer means.

Both clients, the synchronous one and the one for asyncio, drive these. A call goes on through changes of leader
until its time is over; a node that says nothing gets a share of the time, and then others are asked. A transaction
has an id, under which it is done once, so that it can be sent again when nobody knows what became of it. What such
a repetition is answered counts only if it says what became of the id: that this copy of it was rolled back, or
refused by a node, says nothing of the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from socket import gaierror
from typing import Any, Generic, NamedTuple, TypeVar

from quorate.client.errors import (
    BadAnswer,
    ClientError,
    GroupReplaced,
    NobodyThere,
    OutcomeUnknown,
    Refused,
    RolledBack,
    TransactionRefused,
    UnknownGroup,
    Unreachable,
)
from quorate.tables import ID_BYTES, Outcome
from quorate.wire import tables as wire
from quorate.wire.tables import Consistency

PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5
REDIRECTIONS_COUNT_MAX = 3
"""So many times a call goes where it is sent without a pause."""
PATIENCE_MIN_S, PATIENCE_MAX_S = 2.0, 10.0
"""For one node; twice as long after each that said nothing."""
PATIENCE_S_PER_BYTE = 1e-6
"""A large transaction takes its time on a slow line."""
PATIENCE_SHARE = 0.5
"""Of the time that is left: the rest is for others."""
NODE_SHARE = 0.8
"""Of our patience: a node's word that its time is over says more than its silence."""
SHUNNED_S = 1.0
"""A node that did not answer is asked later than others, for so long."""
LOOK_AROUND_EVERY = 3
"""Failures after which it is asked anew where the nodes are."""

LOOKS_COUNT = 2
"""After so many looks a node is believed not to be there: one that has just started knows only itself."""

Address = tuple[str, int]
Found = TypeVar("Found")

_EXPECTED: dict[type, type] = {
    wire.Execute: wire.Done,
    wire.AskResult: wire.Done,
    wire.Get: wire.Rows,
    wire.Scan: wire.Rows,
    wire.AskTables: wire.Described,
    wire.AskPiece: wire.Piece,
    wire.AskChanges: wire.Changes,
    wire.Promote: wire.Ordered,
    wire.Demote: wire.Ordered,
}


class Nodes:
    """Where the nodes are, who leads a group as far as it was heard, and who did not answer lately."""

    def __init__(self, bootstrap: list[Address], rng: Random | None = None) -> None:
        self.bootstrap = bootstrap
        self.addresses: dict[int, Address] = {}
        self.leaders: dict[str, int] = {}
        self.group_ids: dict[str, bytes] = {}
        """Of every group that has answered: another one of that name is not taken for it."""
        self.rng = rng or Random(os.urandom(8))
        self._failed_at: dict[Address, float] = {}

    def failed(self, address: Address, now: float) -> None:
        self._failed_at[address] = now

    def answered(self, address: Address) -> None:
        self._failed_at.pop(address, None)

    def is_shunned(self, address: Address, now: float) -> bool:
        failed_at = self._failed_at.get(address)
        return failed_at is not None and now < failed_at + SHUNNED_S

    def choose(self, among: list[Address], now: float) -> Address:
        """Any that has not failed lately; else the one for which that is longest ago."""
        well = [address for address in among if not self.is_shunned(address, now)]
        if well:
            return self.rng.choice(well)
        return min(among, key=lambda address: self._failed_at[address])


class Step(NamedTuple):
    """What a call needs next: a pause, and then an answer from this node, within its patience."""

    pause_s: float
    address: Address
    patience_s: float
    looks_around: bool
    """Asked is not about tables, but where the nodes are."""


class Call(Generic[Found]):
    """One request, over all its tries: `next`, then `saw`, `answered` or `failed`, until it `is_over`."""

    def __init__(
        self,
        nodes: Nodes,
        request: wire.Request,
        judge: Callable[[Any], Found],
        *,
        now: float,
        timeout_s: float,
        node: int = 0,
        size: int = 0,
    ) -> None:
        """`node`: only this one is asked. `judge` makes of the answer what was wanted, or raises.

        `size` is the request's, in bytes, if that is much.
        """
        self.is_over = False
        self.found: Found
        self._nodes = nodes
        self._request = request
        self._judge = judge
        self._end = now + timeout_s
        self._timeout_s = timeout_s
        self._node = node
        self._size = size
        self._step: Step | None = None
        self._among: tuple[int, ...] = ()
        """Nodes that have a copy, if somebody has said so."""
        self._left_out: Address | None = None
        """Who could not answer just now, where others can."""
        self._must_look = False
        self._looks_count = 0
        self._pause_s = 0.0
        self._backoff_s = 0.0
        self._redirections_count = 0
        self._failures_count = 0
        self._waits_count = 0
        """Times that it was waited for in vain."""
        self._refused: set[Address] = set()
        self._trouble = ""
        self._may_be_done = False

    @property
    def group(self) -> str:
        return self._request.group

    @property
    def is_order(self) -> bool:
        return isinstance(self._request, wire.Promote | wire.Demote)

    @property
    def _is_for_any_copy(self) -> bool:
        asked = getattr(self._request, "consistency", Consistency.LINEARIZABLE)
        return asked is not Consistency.LINEARIZABLE

    def next(self, now: float) -> Step:
        """Raises Unreachable, or OutcomeUnknown, when the time is over."""
        left_s = self._end - now - self._pause_s
        if left_s <= 0 and self._step is not None:
            why = self._trouble or "nobody answered"
            raise self.given_up(f"within {self._timeout_s:g} s: {why}", "; is a majority of the nodes up?")
        at = now + self._pause_s
        known = self._nodes.addresses
        wanted = self._node or self._nodes.leaders.get(self.group, 0)
        looks_around = self._must_look or not known or (wanted not in known and wanted != 0)
        if self._looks_count >= LOOKS_COUNT and self._node and self._node not in known:
            raise Refused(f"there is no node {self._node}; there are: {', '.join(map(str, sorted(known)))}")
        if looks_around:
            address = self._nodes.choose(list(dict.fromkeys([*known.values(), *self._nodes.bootstrap])), at)
        elif wanted and (self._node or not self._is_left_out(known[wanted], at)):
            address = known[wanted]
        else:
            among = [known[node] for node in self._among if node in known] or list(known.values())
            others = [address for address in among if address != self._left_out]
            address = self._nodes.choose(others or among, at)
        self._step = Step(self._pause_s, address, self._patience_s(left_s, looks_around), looks_around)
        return self._step

    def _is_left_out(self, address: Address, now: float) -> bool:
        return address == self._left_out or self._nodes.is_shunned(address, now)

    def _patience_s(self, left_s: float, looks_around: bool) -> float:
        if self.is_order and not looks_around:
            return max(left_s, 0.0)  # It is not for others, and is not given twice.
        patience_s: float = min(PATIENCE_MIN_S * 2 ** min(self._waits_count, 10), PATIENCE_MAX_S)
        patience_s += self._size * PATIENCE_S_PER_BYTE
        return min(patience_s, max(left_s * PATIENCE_SHARE, PAUSE_MIN_S))

    def request(self) -> wire.Request:
        """To be sent in this step."""
        assert self._step is not None
        return wire.within(self._request, self._step.patience_s * NODE_SHARE)

    # --- what came of a step ---

    def saw(self, addresses: dict[int, Address], leader: int) -> None:
        """Where the nodes are; and who leads, 0 where nobody knows."""
        assert self._step is not None
        self._nodes.answered(self._step.address)
        self._nodes.addresses = addresses
        self._must_look = False
        self._looks_count += 1
        self._pause(0.0 if addresses and (not self._node or self._node in addresses) else None)
        if leader in addresses:
            self._nodes.leaders[self.group] = leader
        elif self._nodes.leaders.get(self.group) not in addresses:
            self._nodes.leaders.pop(self.group, None)

    def failed(self, now: float, error: Exception, why: str, *, was_sent: bool) -> None:
        """The node did not answer. Raises NobodyThere where nobody can have."""
        step = self._step
        assert step is not None
        where = f"{step.address[0]}:{step.address[1]}"
        self._trouble = f"{where}: {why}"
        self._nodes.failed(step.address, now)
        self._failures_count += 1
        self._waits_count += isinstance(error, TimeoutError)
        if isinstance(error, ConnectionRefusedError | gaierror) and not self._nodes.addresses:
            self._refused.add(step.address)
            if self._refused.issuperset(self._nodes.bootstrap):
                raise NobodyThere(f"nobody listens at {where} ({why})")
        if was_sent and not step.looks_around:
            if self.is_order:
                raise Unreachable(f"{self.group}: {self._trouble}; it may have been done: look who leads")
            self._may_be_done = True
        if self._nodes.addresses.get(self._nodes.leaders.get(self.group, 0)) == step.address:
            del self._nodes.leaders[self.group]
        self._must_look = self._failures_count % LOOK_AROUND_EVERY == 0
        others = any(not self._nodes.is_shunned(each, now) for each in self._nodes.addresses.values())
        self._pause(0.0 if others and not self._node else None)

    def answered(self, answer: wire.Answer) -> None:
        """Raises what trying again cannot mend."""
        assert self._step is not None
        self._nodes.answered(self._step.address)
        if isinstance(answer, wire.Again):
            self._led_by(answer.leader)
            self._try_again(answer.why)
        elif isinstance(answer, wire.Elsewhere):
            if self._node:
                nodes = ", ".join(map(str, answer.copies))
                raise Refused(f"node {self._node} has no copy of {self.group!r}; these have: {nodes}")
            self._among = answer.copies
            self._led_by(answer.leader or min(answer.copies, default=0))
            self._try_again("the node has no copy of it")
        elif isinstance(answer, wire.Unknown):
            self._unknown(answer.why or "nobody knows what became of it")
        elif isinstance(answer, wire.RolledBack):
            if not self._may_be_done:
                raise RolledBack(answer.why or "too few copies had it")
            self._unknown("it was rolled back, sent again as it was")
        elif isinstance(answer, wire.NoGroup):
            replaced = GroupReplaced(self.group) if answer.is_another else UnknownGroup(self.group)
            raise self._final(replaced)
        elif isinstance(answer, wire.Refused):
            raise self._final(Refused(answer.why))
        elif type(answer) is not _EXPECTED[type(self._request)]:
            raise self._final(BadAnswer(f"{self.group}: a node answered {type(answer).__name__}"))
        else:
            self.is_over = True
            self.found = self._judged(answer)

    def _led_by(self, leader: int) -> None:
        assert self._step is not None
        is_news = leader and self._nodes.addresses.get(leader) != self._step.address
        if leader:
            self._nodes.leaders[self.group] = leader
        else:
            self._nodes.leaders.pop(self.group, None)
        self._redirections_count = self._redirections_count + 1 if is_news else REDIRECTIONS_COUNT_MAX

    def _try_again(self, why: str) -> None:
        self._trouble = why
        assert self._step is not None
        self._left_out = self._step.address if self._is_for_any_copy else None
        self._pause(0.0 if self._redirections_count < REDIRECTIONS_COUNT_MAX and not self._node else None)

    def _unknown(self, why: str) -> None:
        if self.is_order:
            raise Refused(f"{self.group}: {why}; look who leads")
        self._may_be_done = True
        self._waits_count += 1  # Each try is one more entry in a log that gets nowhere.
        self._nodes.leaders.pop(self.group, None)
        self._trouble = why
        self._pause(None)

    def _pause(self, pause_s: float | None) -> None:
        """None: longer each time."""
        if pause_s is None:
            self._backoff_s = min(max(self._backoff_s * 2, PAUSE_MIN_S), PAUSE_MAX_S)
            pause_s = self._backoff_s * (0.75 + self._nodes.rng.random() / 4)
        self._pause_s = pause_s

    def _judged(self, answer: Any) -> Found:
        group_id = getattr(answer, "group_id", b"")
        if group_id:
            self._nodes.group_ids[self.group] = group_id
        if isinstance(answer, wire.Done) and isinstance(self._request, wire.Execute):
            if answer.result is None:
                raise OutcomeUnknown(
                    self._request.transaction.id, "(so much was done since that it is forgotten)"
                )
            if answer.result.outcome is Outcome.REFUSED:
                raise TransactionRefused(answer.result.why)
        return self._judge(answer)

    def _final(self, error: ClientError) -> ClientError:
        """A node's last word; but of a transaction that was sent before, it says nothing."""
        if isinstance(self._request, wire.Execute) and self._may_be_done:
            return OutcomeUnknown(self._request.transaction.id, f"when it was sent again: {error}")
        return error

    def given_up(self, why: str, advice: str = "") -> ClientError:
        """It is not tried any more."""
        if isinstance(self._request, wire.Execute) and self._may_be_done:
            return OutcomeUnknown(self._request.transaction.id, why)
        return Unreachable(f"{self.group}: nothing came of it {why}{advice}")


def new_id() -> bytes:
    """Of a transaction: made up where it is begun, so that nobody has to be asked."""
    return os.urandom(ID_BYTES)
