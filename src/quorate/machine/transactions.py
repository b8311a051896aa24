"""The coordinator of transactions: a machine over the log of a home, the same on every copy.

A home is a partition of the cluster's own topic for transactions; a transactional id, or an app, lives in the one
that its name says (machine/cluster.py). What a command came to is asked for by its offset, at the copy that leads;
where that has forgotten it, the client asks again, which is harmless.

Outside of the machine, whoever leads writes the markers of what is `ending` (host/coordinating.py), tells when they
are settled, and says what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from quorate.machine import joint_transactions as joint
from quorate.machine import plain_transactions as plain
from quorate.machine.commanded import Commanded
from quorate.machine.transaction_words import (
    DONE,
    AbortJoint,
    AddPartitions,
    App,
    BeginProducer,
    Command,
    CommitJoint,
    Ending,
    EndPlain,
    Enlist,
    Forget,
    Marked,
    OpenAttempt,
    Phase,
    Plain,
    Renew,
    Result,
    Seal,
    State,
    TimeOut,
    Verdict,
)


class Transactions(Commanded):
    """Whoever reads it leaves it as it is: only commands and snapshots change it."""

    def __init__(self) -> None:
        super().__init__(Command, State)
        self._state = State()

    def state(self) -> State:
        return self._state

    def become(self, state: State) -> None:
        self._state = state

    def apply(self, command: Command) -> Result:
        state = self._state
        state.now_ms = max(state.now_ms, getattr(command, "now_ms", 0))
        return _APPLY[type(command)](state, command)

    # --- what is asked of it ---

    def may_write(self, name: str, producer_id: int, epoch: int, partition: bytes) -> Verdict:
        """Whether a producer's transaction is open there (KIP-890): asked before its first batch, with everything
        seen that was settled when the question came. `PART_GONE`: an attempt that must enlist there first."""
        attempt = joint.attempt_of(self._state, name, producer_id)
        if attempt is not None:
            if attempt.sealed:
                return Verdict.BAD_STATE
            if epoch != joint.FIRST_EPOCH:
                return Verdict.FENCED
            return Verdict.DONE if partition in attempt.partitions else Verdict.PART_GONE
        known = self._state.plain.get(name)
        refused = plain.why_not_owner(known, producer_id, epoch)
        if refused is not None:
            return refused
        assert known is not None
        if known.phase in plain.DECIDED:
            return Verdict.CONCURRENT
        is_open = known.phase is Phase.ONGOING and partition in known.partitions
        return Verdict.DONE if is_open else Verdict.BAD_STATE

    def endings(self) -> Iterator[tuple[int, Ending]]:
        """Producers whose transaction is decided, and whose markers are not all written."""
        return iter(self._state.endings.items())

    def is_ending(self, producer_id: int) -> bool:
        return producer_id in self._state.endings

    def partitions_of(self, app: str, producer_id: int) -> tuple[bytes, ...]:
        """Where an open attempt may have written."""
        attempt = joint.attempt_of(self._state, app, producer_id)
        return tuple(attempt.partitions) if attempt is not None else ()

    def deadline_ms(self) -> int | None:
        """When the next transaction times out."""
        times = [
            each.began_ms + each.timeout_ms
            for each in self._state.plain.values()
            if each.phase is Phase.ONGOING
        ]
        times += [
            attempt.began_ms + attempt.timeout_ms
            for app in self._state.apps.values()
            for attempt in app.attempts.values()
        ]
        return min(times, default=None)

    def plain(self, name: str) -> Plain | None:
        return self._state.plain.get(name)

    def all_plain(self) -> Iterator[tuple[str, Plain]]:
        return iter(self._state.plain.items())

    def app(self, name: str) -> App | None:
        return self._state.apps.get(name)

    def all_apps(self) -> Iterator[tuple[str, App]]:
        return iter(self._state.apps.items())


def _marked(state: State, command: Marked) -> Result:
    for mark in command.marks:
        ending = state.endings.get(mark.producer_id)
        if ending is None or ending.number != mark.number or mark.partition not in ending.partitions:
            continue  # Said before.
        ending.partitions.remove(mark.partition)
        if not ending.partitions:
            del state.endings[mark.producer_id]
            if ending.name:
                plain.ended(state, ending)
    return DONE


def _time_out(state: State, command: TimeOut) -> Result:
    for name, each in state.plain.items():
        if plain.is_overdue(each, state.now_ms):
            plain.abort_for_owner(state, name, each)
    for app in state.apps.values():
        joint.time_out(state, app)
    return DONE


def _forget(state: State, command: Forget) -> Result:
    quiet = (Phase.EMPTY, Phase.COMMITTED, Phase.ABORTED)
    idle = [
        name
        for name, each in state.plain.items()
        if each.phase in quiet and each.used_ms + command.plain_idle_ms <= state.now_ms
    ]
    for name in idle:
        del state.plain[name]
    idle = [
        name
        for name, app in state.apps.items()
        if not app.attempts and app.used_ms + command.app_idle_ms <= state.now_ms
    ]
    for name in idle:
        del state.apps[name]
    return DONE


_APPLY: dict[type, Callable[[State, Any], Result]] = {
    BeginProducer: plain.begin_producer,
    AddPartitions: plain.add_partitions,
    EndPlain: plain.end_plain,
    OpenAttempt: joint.open_attempt,
    Enlist: joint.enlist,
    Renew: joint.renew,
    Seal: joint.seal,
    CommitJoint: joint.commit_joint,
    AbortJoint: joint.abort_joint,
    Marked: _marked,
    TimeOut: _time_out,
    Forget: _forget,
}
