"""What an order is answered with: by what the store says, and never by what was meant.

Whoever waits hears SETTLED if it has happened, TIMED_OUT if it has not and will not, and UNKNOWN where others have
been at work unseen, so that it may have been done and undone.
"""

from __future__ import annotations

from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.coordinated.shard import Phase, Shard, Status
from quorate.core.effects import Outcome
from quorate.core.overseeing import DONE, DROPPED, UNSEEN, Given, Verdict


def judge(given: Given, shard: Shard, *, has_seen_all: bool) -> Verdict | None:
    """None: it is still under way. `has_seen_all`: no version was stored since that is not known here."""
    dropped = DROPPED if has_seen_all else UNSEEN
    if isinstance(given.order, MoveLeader):
        return _judge_move(given, shard, dropped)
    if isinstance(given.order, CallOff):
        return _judge_call_off(given, shard, dropped)
    return _judge_change(given.order, shard, dropped)


def _judge_move(given: Given, shard: Shard, dropped: Verdict) -> Verdict | None:
    if shard.status is not Status.STEADY:
        return None
    if shard.leader != given.before.leader:
        return DONE
    if shard.epoch == given.before.epoch:
        return dropped
    return Verdict(Outcome.SETTLED, "the same node leads again") if given.is_begun else UNSEEN


def _judge_call_off(given: Given, shard: Shard, dropped: Verdict) -> Verdict | None:
    unwanted, change = given.before.reconfiguration, shard.reconfiguration
    assert unwanted is not None
    there = change if change is not None and change.same_as(unwanted) else None
    if there is not None and there.phase is Phase.ABORT:
        return None
    if given.is_begun:
        return DONE  # Whatever is there now was begun since.
    if there is not None:
        is_late = there.phase is Phase.COMMIT or there.again
        return Verdict(Outcome.TIMED_OUT, "too late: it is being committed") if is_late else dropped
    if unwanted.applied_to(shard.ensemble) == shard.ensemble:
        return Verdict(Outcome.TIMED_OUT, "too late: it is done")
    return DONE if dropped is DROPPED else UNSEEN


def _judge_change(order: Reconfigure, shard: Shard, dropped: Verdict) -> Verdict | None:
    is_in = order.new is None or order.new in shard.ensemble
    is_out = order.old is None or order.old not in shard.ensemble
    if is_in and is_out:
        return DONE
    change = shard.reconfiguration
    is_under_way = change is not None and (change.old, change.new) == (order.old, order.new)
    return None if is_under_way else dropped
