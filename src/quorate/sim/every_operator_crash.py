"""An operator, ended at every single step of an election and of each reconfiguration; and the nodes it works with.

Small worlds without faults play one thing each, while clients write and read: a leader dies and another is elected;
a node is swapped for another, added, removed; a leader is swapped, which has to be moved first; a change is called
off while it is being prepared. One swap and one removal begin while a node is behind. Each is played once
undisturbed, to count its steps. Then it is played again for everything that can go wrong at each of them:

- the operator ends for good: before the first of the things that the step orders, between any two of them, behind
  the last one; and another operator starts at once, or when all that was under way has arrived; or the leader ends
  with it;
- it stands still behind the step until another has done its work, and then goes on as if nothing had happened;
- a request to the store is lost, or done though the answer is lost; and that is said to the operator, or nothing;
- the leader, whoever leads afterwards, or the new node ends at a step of its own, and comes back.

Every invariant is checked all the while. In the end the ensemble is what the store's own history says that it must
be (OX-28, D11), nothing acknowledged is lost, and everything has come to rest as after any other run (healing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from quorate.core.coordinated import Status
from quorate.core.coordinated.orders import CallOff, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase
from quorate.core.entry import Member
from quorate.core.invariant import Violated
from quorate.sim.operator_stage import SPARE, Stage
from quorate.sim.operators import FIRST
from quorate.sim.stage import LATE_PACES, PACE_S
from quorate.storage.errors import StoreError

STALL_PACES = 15
"""So long an operator stands still: another has done its work meanwhile."""
WRITTEN_BEHIND = 4
"""So much is acknowledged that a node which is left behind does not have,"""
BEHIND_PACES = 3
"""until so long after the play has begun."""
NEWCOMER = Member(SPARE, 1)


# ---- what is played ----


def _lose_leader(stage: Stage) -> None:
    stage.world.crash(stage.leader.node)


def _reconfigure(
    stage: Stage, kind: Kind, *, old: Callable[[Stage], Member] | None = None, new: Member | None = None
) -> None:
    order = Reconfigure(1, kind, old(stage) if old is not None else None, new)
    if not stage.command(FIRST, order):
        raise Violated("liveness", f"the operator refuses {order}")


def _a_follower(stage: Stage) -> Member:
    return next(member for member in stage.stored.ensemble if member != stage.leader)


def _calling_off(stage: Stage, *, late: bool) -> None:
    """Swap, and call that off: when the leader has been asked to prepare it, or when the new node has been told."""
    _reconfigure(stage, Kind.SWAP, old=_a_follower, new=NEWCOMER)
    disturb = stage.on_operator_step
    is_called = False

    def stepped(number: int) -> None:
        nonlocal is_called
        is_told = any(to == SPARE for _, to, _ in stage.said)
        if not is_called and _prepares(stage, number) and (is_told or not late):
            is_called = True
            stage.world.after(0.0, call_off, number)
        disturb(number)

    def call_off(number: int) -> None:
        """Whoever ended before it heard that has to be told again, or rather the next one."""
        nonlocal is_called
        is_called = stage.command(number, CallOff(2))

    stage.on_operator_step = stepped


def _prepares(stage: Stage, number: int) -> bool:
    """Whether an operator knows of a change in PREPARE."""
    operator = stage.operators.operator(number, 0)
    shard = operator.shard if operator is not None else None
    return (
        shard is not None
        and shard.reconfiguration is not None
        and shard.reconfiguration.phase is Phase.PREPARE
    )


def _leave_behind(stage: Stage) -> None:
    """One of the ensemble gets nothing from the leader: what is settled is not on it, but on whoever is to go."""
    due = stage.oracle.acknowledged_count + WRITTEN_BEHIND
    stage.world.network.cut(_links_to_last(stage))
    stage.until(lambda: stage.oracle.acknowledged_count >= due, "two of three settle nothing")


def _links_to_last(stage: Stage) -> tuple[tuple[int, int], ...]:
    leader, last = stage.leader.node, stage.stored.ensemble[-1].node
    return (leader, last), (last, leader)


def _behind(begin: Callable[[Stage], None]) -> Callable[[Stage], None]:
    def begun(stage: Stage) -> None:
        stage.world.after(BEHIND_PACES * PACE_S, stage.world.network.mend, _links_to_last(stage))
        begin(stage)

    return begun


class Play(msgspec.Struct, frozen=True):
    """What sets it off, and what comes before."""

    begin: Callable[[Stage], None]
    prepare: Callable[[Stage], None] = lambda stage: None


SWAP = partial(_reconfigure, kind=Kind.SWAP, old=_a_follower, new=NEWCOMER)
CONTRACT = partial(_reconfigure, kind=Kind.CONTRACT, old=_a_follower)
PLAYS: dict[str, Play] = {
    "election": Play(_lose_leader),
    "swap": Play(SWAP),
    "swap, one behind": Play(_behind(SWAP), _leave_behind),
    "expand": Play(partial(_reconfigure, kind=Kind.EXPAND, new=NEWCOMER)),
    "contract": Play(CONTRACT),
    "contract, one behind": Play(_behind(CONTRACT), _leave_behind),
    "leader swap": Play(partial(_reconfigure, kind=Kind.SWAP, old=lambda stage: stage.leader, new=NEWCOMER)),
    "call off": Play(partial(_calling_off, late=False)),
    "call off late": Play(partial(_calling_off, late=True)),
}


def prepared(name: str) -> Stage:
    stage = Stage()
    PLAYS[name].prepare(stage)
    return stage


class Course(msgspec.Struct, frozen=True):
    """How a play goes undisturbed."""

    operator_steps: tuple[int, ...]
    """How much each step of the operator orders."""
    requests_count: int
    """To the store."""
    victims: dict[int, int]
    """Of the leader, whoever leads in the end, and a new node: how many steps each takes."""


def undisturbed(name: str) -> Course:
    stage = prepared(name)
    led = stage.leader.node
    stage.play(PLAYS[name].begin)
    _play_out(stage, name)
    is_joined = any(to == SPARE for source, to, _ in stage.said if source == FIRST)
    nodes = {led, stage.leader.node} | ({SPARE} if is_joined else set())
    victims = {node: stage.node_steps[node] for node in sorted(nodes) if stage.world.life(node)}
    course = Course(tuple(stage.operator_steps), stage.store.requests_count, victims)
    stage.heal()
    return course


def _play_out(stage: Stage, name: str) -> None:
    """Until it is over; and a little longer, for those who come late."""
    stage.until(lambda: len(stage.history) > 1 and stage.is_at_rest(), f"the {name} does not end")
    stage.run(1.0)


# ---- what goes wrong ----


class OperatorEnds(msgspec.Struct, frozen=True):
    step: int
    carried_out: int
    """Of what that step orders."""
    late: bool
    with_leader: bool = False
    """Whoever leads ends, too: only an election resolves what has stalled then (OX-28)."""

    def __str__(self) -> str:
        who = "the operator and the leader end" if self.with_leader else "the operator ends"
        then = "another one comes late" if self.late else "another one comes at once"
        return f"{who} at step {self.step}, with {self.carried_out} of its orders done, and {then}"

    def arm(self, stage: Stage) -> None:
        operators = stage.operators
        process = operators.processes[FIRST]

        def end() -> None:
            operators.crash(FIRST)
            stage.world.after(LATE_PACES * PACE_S * self.late, stage.take_over, None)
            for node in stage.world.leaders(0) if self.with_leader else ():
                stage.world.crash(node)
                stage.world.after(2 * LATE_PACES * PACE_S, stage.restart, node)

        def stepped(number: int) -> None:
            if number == FIRST and len(stage.operator_steps) == self.step + 1:
                process.fuse = self.carried_out
                stage.due = end

        stage.on_operator_step = stepped


class OperatorStalls(msgspec.Struct, frozen=True):
    step: int

    def __str__(self) -> str:
        return f"the operator stands still behind step {self.step}"

    def arm(self, stage: Stage) -> None:
        def stall() -> None:
            stage.operators.pause(FIRST, STALL_PACES * PACE_S)
            stage.take_over()

        def stepped(number: int) -> None:
            if number == FIRST and len(stage.operator_steps) == self.step + 1:
                stage.due = stall

        stage.on_operator_step = stepped


class AnswerLost(msgspec.Struct, frozen=True):
    request: int
    done: bool
    said: bool

    def __str__(self) -> str:
        what = "done, its answer lost" if self.done else "lost"
        return (
            f"request {self.request} to the store is {what}, which is {'said' if self.said else 'not said'}"
        )

    def arm(self, stage: Stage) -> None:
        def disturb(number: int) -> tuple[bool, bool] | None:
            if number != self.request or stage.has_struck:
                return None
            stage.has_struck = True
            return self.done, self.said

        stage.store.disturb = disturb


class NodeEnds(msgspec.Struct, frozen=True):
    node: int
    step: int
    power: bool
    late: bool

    def __str__(self) -> str:
        what = "loses its power" if self.power else "crashes"
        back = "comes back late" if self.late else "comes back at once"
        return f"n{self.node} {what} behind its step {self.step} and {back}"

    def arm(self, stage: Stage) -> None:
        world = stage.world

        def end() -> None:
            (world.power_loss if self.power else world.crash)(self.node)
            world.after(LATE_PACES * PACE_S * self.late, stage.restart, self.node)

        def stepped(node: int) -> None:
            if node == self.node and stage.node_steps[node] == self.step:
                stage.due = end

        stage.on_node_step = stepped


Disturbance = OperatorEnds | OperatorStalls | AnswerLost | NodeEnds


def disturbances(name: str) -> Iterator[Disturbance]:
    """Every way to disturb it."""
    course = undisturbed(name)
    for step, orders_count in enumerate(course.operator_steps):
        for carried_out in range(orders_count + 1):
            yield OperatorEnds(step, carried_out, late=False)
            yield OperatorEnds(step, carried_out, late=True)
            yield OperatorEnds(step, carried_out, late=False, with_leader=True)
        yield OperatorStalls(step)
    for request in range(course.requests_count):
        for done in (False, True):
            for said in (False, True):
                yield AnswerLost(request, done, said)
    for node, steps_count in course.victims.items():
        for step in range(steps_count):
            late = bool(step % 2)
            yield NodeEnds(node, step, power=False, late=late)
            yield NodeEnds(node, step, power=True, late=not late)


def survive(name: str, disturbance: Disturbance) -> str:
    """Play it with that. What is wrong then; empty if it is as it should be."""
    try:
        stage = prepared(name)
        disturbance.arm(stage)
        stage.play(PLAYS[name].begin)
        stage.until(lambda: stage.has_struck, "nothing went wrong")
        stage.run(2 * LATE_PACES + (STALL_PACES if isinstance(disturbance, OperatorStalls) else 0))
        stage.until(stage.is_at_rest, f"the {name} does not end")
        _went_on(stage, name, disturbance)
        stage.heal()
    except (StoreError, Violated, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _went_on(stage: Stage, name: str, disturbance: Disturbance) -> None:
    """Whoever takes over goes on where the other ended; nothing has to be elected while the leader leads."""
    ends_with_leader = isinstance(disturbance, OperatorEnds) and disturbance.with_leader
    is_lost = isinstance(disturbance, NodeEnds) or ends_with_leader
    is_led = name not in ("election", "leader swap") and not is_lost
    if is_led and any(shard.status is Status.ELECTION for shard in stage.history):
        raise Violated("resumed", f"an election, though n{stage.leader.node} leads: {stage.history}")
