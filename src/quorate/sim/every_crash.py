"""Every node, crashed at every single event of something that takes several steps.

Small worlds without chance play one thing each: a change of membership that adds two nodes and leaves out one, the
leader; a transfer of leadership; the installation of a snapshot; and of `confirm` a rollback, a promotion, a
demotion, a replica that is cut loose, and other quorums. Each is played once undisturbed, to count its events. Then
it is played again for every node and every event: the node ends right behind that event, with what it had written
or only with what it had flushed, and comes back at once or after the others have missed it. Every invariant is
checked all the while, and in the end everything must have come to rest as after any other run (healing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from quorate.batch import encode_records
from quorate.core import confirm
from quorate.core.confirm.invariants import ConfirmInvariants
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Quorums
from quorate.core.invariant import Violated
from quorate.core.raft import Tuning
from quorate.core.raft.invariants import RaftInvariants
from quorate.sim import stage as stages
from quorate.sim.chaos import Chaos
from quorate.sim.confirm_steward import ConfirmSteward
from quorate.sim.oracle import Fate
from quorate.sim.setup import Setup
from quorate.sim.stage import LATE_PACES, PACE_S, SEED, TUNING
from quorate.sim.steward import Steward
from quorate.sim.workload import Manners
from quorate.storage.errors import StoreError

TUNABLES = stages.small(
    {
        "raft": Tuning(election_timeout_s=PACE_S, **TUNING),
        "confirm": confirm.Tuning(election_timeout_s=PACE_S, **TUNING),
    },
    manners=Manners(clients_count=0),
)


class Stage(stages.Stage):
    """One of the worlds, from its beginning to where the play begins."""

    def __init__(self, setup: Setup) -> None:
        room = ConfirmInvariants() if setup.protocol == "confirm" else RaftInvariants()
        super().__init__(setup, room)
        if isinstance(room, ConfirmInvariants):
            self.oracle.is_void = room.is_void
        self.chaos = Chaos(self.world, (), self.invariants)
        self.chaos.begin()
        for number in self.world.nodes:
            self.world.start(number)
        self.until(lambda: bool(self.world.leaders(0)), "nobody leads")
        if isinstance(room, ConfirmInvariants):
            self.until(lambda: room.promotions > 0, "nobody takes writes")

    @property
    def steward(self) -> Steward:
        steward = self.chaos.steward
        assert isinstance(steward, Steward)
        return steward

    @property
    def person(self) -> ConfirmSteward:
        steward = self.chaos.steward
        assert isinstance(steward, ConfirmSteward)
        return steward

    @property
    def leader(self) -> int:
        return self.world.leaders(0)[0]

    def propose(self) -> None:
        """One entry, to whoever leads."""
        self.workload.proposals_count += 1
        number = self.workload.proposals_count
        payload = encode_records([(None, b"value %d" % number)], timestamp=number)
        proposal = self.oracle.proposed(number, 0, [payload], [1])
        proposal.fate = Fate.UNKNOWN

        def answer(reply: Reply) -> None:
            if reply.outcome is Outcome.SETTLED:
                self.oracle.acknowledged(proposal, reply.offset)
            elif reply.outcome is not Outcome.UNKNOWN:
                proposal.fate = Fate.REFUSED

        self.world.propose(self.leader, 0, [payload], answer)

    def write(self, count: int) -> None:
        """So many entries, each settled before the next one."""
        for _ in range(count):
            due = self.oracle.acknowledged_count + 1
            self.propose()
            self.until(lambda due=due: self.oracle.acknowledged_count == due, "a proposal is not settled")  # type: ignore[misc]

    def heal(self) -> None:
        self.chaos.heal()
        self.come_to_rest(self.chaos.steward)


class Play(msgspec.Struct, frozen=True):
    """What comes before, and what sets it off."""

    setup: Setup
    prepare: Callable[[Stage], None]
    begin: Callable[[Stage], None]


class Crash(msgspec.Struct, frozen=True):
    event: int
    node: int
    power: bool
    late: bool

    def __str__(self) -> str:
        what = "loses its power" if self.power else "crashes"
        back = "comes back late" if self.late else "comes back at once"
        return f"n{self.node} {what} behind event {self.event} and {back}"


# ---- what is played ----


def _change(stage: Stage) -> None:
    """Two join, and one leaves: whoever leads. There is something to settle before, and something meanwhile."""
    leader = stage.leader
    ensemble = tuple(Member(number, 1) for number in stage.world.nodes if number != leader)
    stage.propose()
    stage.steward.change(leader, 0, ensemble=ensemble)
    stage.propose()


def _transfer(stage: Stage) -> None:
    leader = stage.leader
    stage.propose()
    stage.steward.transfer(leader, 0, to=leader % 3 + 1)


def _stop_one(stage: Stage) -> None:
    """One sleeps through so much that its part of the log is no longer kept."""
    sleeper = stage.leader % 3 + 1
    stage.world.crash(sleeper)
    stage.write(24)


def _wake_one(stage: Stage) -> None:
    for number in stage.world.nodes:
        stage.restart(number)


def _roll_back(stage: Stage) -> None:
    """What was just written is taken back, before or after it is on a quorum."""
    for _ in range(3):
        stage.propose()
    stage.person.roll_back(stage.leader, 0)


def _promote(stage: Stage) -> None:
    """Another one takes over as soon as it has everything: before, the leader would say NAY."""
    heir, leader = (stage.world.hosted(node, 0) for node in (stage.leader % 3 + 1, stage.leader))
    assert heir is not None
    assert leader is not None
    stage.until(lambda: heir.replica.log.head == leader.replica.log.head, "it does not catch up")
    stage.person.promote(stage.leader % 3 + 1, 0)


def _demote(stage: Stage) -> None:
    stage.propose()
    stage.person.demote(stage.leader, 0)


def _cut_loose(stage: Stage) -> None:
    """One gives up what it does not know to be settled; the person joins it again when it is seen to."""
    stage.propose()
    stage.person.cut_loose(stage.leader % 3 + 1, 0)
    stage.propose()


def _resize(stage: Stage) -> None:
    """Everybody must have what is settled from now on."""
    stage.propose()
    ensemble = tuple(Member(number, 1) for number in stage.world.nodes)
    stage.person.change(stage.leader, 0, ensemble=ensemble, quorums=Quorums(3, 2))
    stage.propose()


def _is_over(stage: Stage) -> bool:
    """Whoever gave a command has been answered, and every member has all that is settled."""
    commit = stage.invariants.settled[0].commit
    members = stage.invariants.membership(0).members
    copies = [stage.world.hosted(member.node, 0) for member in sorted(members)]
    return not stage.steward.waiting and all(
        copy is not None and copy.commit == copy.replica.log.head.offset == commit for copy in copies
    )


TRIO = Setup(SEED, TUNABLES, ((1, 2, 3),), ((),))
CONFIRMING = msgspec.structs.replace(TRIO, protocol="confirm")
PLAYS: dict[str, Play] = {
    "change": Play(msgspec.structs.replace(TRIO, outsiders=((4, 5),)), lambda stage: stage.write(3), _change),
    "transfer": Play(TRIO, lambda stage: stage.write(3), _transfer),
    "snapshot": Play(TRIO, _stop_one, _wake_one),
    **{
        name: Play(CONFIRMING, lambda stage: stage.write(3), begin)
        for name, begin in {
            "roll-back": _roll_back,
            "promote": _promote,
            "demote": _demote,
            "cut-loose": _cut_loose,
            "resize": _resize,
        }.items()
    },
}


def begun(name: str) -> Stage:
    play = PLAYS[name]
    stage = Stage(play.setup)
    play.prepare(stage)
    play.begin(stage)
    return stage


def events_count(name: str) -> int:
    """How long it takes undisturbed, in events."""
    stage = begun(name)
    first = stage.world.events_count
    stage.until(lambda: _is_over(stage), f"the {name} does not end")
    count = stage.world.events_count - first
    stage.heal()
    return count


def crashes(name: str) -> Iterator[Crash]:
    """Every way to disturb it."""
    for event in range(events_count(name) + 1):
        for node in PLAYS[name].setup.nodes:
            for power in (False, True):
                for late in (False, True):
                    yield Crash(event, node, power, late)


def survive(name: str, crash: Crash) -> str:
    """Play it with the crash. What is wrong then; empty if it is as it should be."""
    try:
        stage = begun(name)
        world = stage.world
        for _ in range(crash.event):
            world.happen()
        (world.power_loss if crash.power else world.crash)(crash.node)
        if crash.late:
            world.run(world.now + LATE_PACES * PACE_S)
        stage.restart(crash.node)
        world.run(world.now + LATE_PACES * PACE_S)
        stage.heal()
    except (StoreError, Violated, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
