"""Commands to groups: fair ones, asked of the right node or not, and what is answered is checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Membership
from quorate.core.raft import Tuning
from quorate.host import HostSettings
from quorate.sim.chaos import Chaos
from quorate.sim.faults import CHANGES, LEADER, Fault
from quorate.sim.invariants import Invariants
from quorate.sim.run import ROOMS
from quorate.sim.setup import Setup
from quorate.sim.steward import Steward, is_at_rest
from quorate.sim.tunables import Tunables
from quorate.sim.world import World
from quorate.storage.settings import TINY
from tests.unit.sim.test_invariants import expect

TUNABLES = Tunables(host=HostSettings(store=TINY, raft=Tuning(election_timeout_s=0.15, heartbeat_s=0.03)))


class Bench:
    """Three nodes that count, two that could, one of them unlucky; commands are noted, and carried out too."""

    def __init__(self) -> None:
        setup = Setup(7, TUNABLES, ((1, 2, 3),), ((),), outsiders=((4, 5),), unlucky=(2,))
        self.invariants = Invariants(1, ROOMS["raft"])
        self.world = World(setup, watch=self.invariants)
        steward = Chaos(self.world, (), self.invariants).steward
        assert isinstance(steward, Steward)
        self.steward = steward
        for number in self.world.nodes:
            self.world.start(number)
        self.run(1.0)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    @property
    def leader(self) -> int:
        return self.world.leaders(0)[0]

    @property
    def membership(self) -> Membership:
        return self.invariants.membership(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("way", sorted(set(CHANGES)))
def test_every_ensemble_that_is_asked_for_has_fewer_unlucky_nodes_than_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    asked: list[tuple[Member, ...]] = []

    def change(*_: object, ensemble: tuple[Member, ...], **__: object) -> bool:
        asked.append(ensemble)
        return True

    monkeypatch.setattr(bench.world, "change", change)
    for chance in range(40):
        bench.steward.strike(Fault(0.0, f"change-{way}", nodes=(LEADER,), chance=chance))
    assert asked
    for ensemble in asked:
        if ensemble:
            assert 2 * sum(member.node == 2 for member in ensemble) < len(ensemble)


def test_change_is_carried_out_and_answered(bench: Bench) -> None:
    wanted = (Member(1, 1), Member(4, 1), Member(5, 1))
    bench.steward.change(bench.leader, 0, ensemble=wanted)
    assert len(bench.steward.unanswered()) == 1
    bench.run(2.0)
    assert bench.steward.unanswered() == []
    assert bench.membership == Membership(wanted)
    assert bench.steward.toll.changes_settled == 1


def test_transfer_is_carried_out_and_answered(bench: Bench) -> None:
    heir = bench.leader % 3 + 1
    bench.steward.transfer(bench.leader, 0, to=heir)
    bench.run(1.0)
    assert bench.leader == heir
    assert bench.steward.toll.transfers_settled == 1


def test_command_of_a_node_that_dies_is_not_waited_for(bench: Bench) -> None:
    leader = bench.leader
    bench.steward.change(leader, 0, ensemble=(Member(4, 1), Member(5, 1)))
    bench.world.crash(leader)
    assert bench.steward.unanswered() == []


def says(reply: Reply) -> Callable[..., bool]:
    """A node that answers every command at once, and always the same."""

    def command(_: int, __: int, answer: Callable[[Reply], None], **___: object) -> bool:
        answer(reply)
        return True

    return command


def test_change_that_is_said_to_be_done_and_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.world, "change", says(Reply(1, Outcome.SETTLED, offset=0)))
    with expect("change-answer"):
        bench.steward.change(1, 0, ensemble=(Member(1, 1), Member(4, 1)))


def test_change_that_is_refused_without_a_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.world, "change", says(Reply(1, Outcome.REFUSED)))
    with expect("change-answer"):
        bench.steward.change(1, 0, ensemble=(Member(1, 1), Member(4, 1)))


def test_leadership_that_is_said_to_have_moved_and_has_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bench.leader % 3 + 1
    monkeypatch.setattr(bench.world, "transfer", says(Reply(1, Outcome.SETTLED, leader=other)))
    with expect("transfer-answer"):
        bench.steward.transfer(bench.leader, 0, to=other)


def test_change_that_waits_for_somebody_who_never_comes_is_given_up_in_the_end(bench: Bench) -> None:
    hung = Member(4, 1_000)
    bench.steward.change(bench.leader, 0, ensemble=(Member(1, 1), Member(3, 1), hung))
    bench.run(3.0)
    assert not is_at_rest(bench.membership)
    missing = bench.steward.settle_down()
    assert missing()
    bench.run(5.0)
    assert missing() == []
    assert bench.membership == Membership((Member(1, 1), Member(3, 1)))


def test_who_came_back_as_another_is_taken_in_as_who_it_is(bench: Bench) -> None:
    bench.world.wipe(2)
    bench.invariants.wiped(2)
    bench.world.start(2)
    missing = bench.steward.renew()
    assert missing()
    bench.run(5.0)
    assert missing() == []
    assert Member(2, 2) in bench.membership.ensemble
