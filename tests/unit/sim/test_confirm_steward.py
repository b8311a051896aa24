"""Orders to `confirm` groups: fair ones, asked of the right node or not; a person who makes them good."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from quorate.core import confirm
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Membership, Quorums
from quorate.host import HostSettings
from quorate.sim.chaos import Chaos
from quorate.sim.confirm_steward import ConfirmSteward, draw_quorums, is_safe
from quorate.sim.faults import ACTS, CHANGES, LEADER, Fault, Place, membership
from quorate.sim.invariants import Invariants
from quorate.sim.run import ROOMS, place_partitions, plan_seed
from quorate.sim.setup import Setup
from quorate.sim.tunables import Tunables, draw
from quorate.sim.world import World
from quorate.storage.settings import TINY
from tests.unit.sim.test_invariants import expect


class Bench:
    """Three nodes that count, two that could, one of them unlucky."""

    def __init__(self, *, automatic: bool = True) -> None:
        tuning = confirm.Tuning(election_timeout_s=0.15, heartbeat_s=0.03, automatic=automatic)
        tunables = Tunables(host=HostSettings(store=TINY, confirm=tuning))
        setup = Setup(7, tunables, ((1, 2, 3),), ((),), outsiders=((4, 5),), unlucky=(2,), protocol="confirm")
        self.invariants = Invariants(1, ROOMS["confirm"])
        self.world = World(setup, watch=self.invariants)
        self.chaos = Chaos(self.world, (), self.invariants)
        assert isinstance(self.chaos.steward, ConfirmSteward)
        self.steward = self.chaos.steward
        for number in self.world.nodes:
            self.world.start(number)
        self.steward.begin()
        self.run(2.0)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    @property
    def leader(self) -> int:
        (leader,) = self.world.leaders(0)
        return leader

    @property
    def membership(self) -> Membership:
        return self.invariants.membership(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("way", sorted(set(ACTS)))
def test_every_order_is_answered(bench: Bench, way: str) -> None:
    for chance in range(6):
        bench.steward.strike(Fault(0.0, f"act-{way}", nodes=(LEADER,), chance=chance))
        bench.run(0.5)
    bench.chaos.heal()
    bench.run(5.0)
    assert bench.steward.unanswered() == []
    assert bench.steward.toll.orders >= 6


@pytest.mark.behaviour("D9")
def test_only_unlucky_ones_are_cut_loose(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(bench.steward, "cut_loose", lambda node, partition: asked.append(node))
    for chance in range(20):
        bench.steward.strike(Fault(0.0, "act-cut-loose", nodes=(LEADER,), chance=chance))
    assert set(asked) == {2}


@pytest.mark.behaviour("TT-32", "D9")
def test_who_was_cut_loose_is_joined_again(bench: Bench) -> None:
    other = bench.leader % 3 + 1
    bench.steward.cut_loose(other, 0)
    bench.run(0.01)
    assert bench.steward.loose_nodes(0) == [other]
    assert bench.steward.still_loose() == [f"p0 n{other}"]
    bench.steward.healed = True
    bench.run(3.0)
    assert bench.steward.still_loose() == []


@pytest.mark.behaviour("TT-24")
def test_read_only_is_lifted_when_everything_has_healed(bench: Bench) -> None:
    bench.steward.set_read_only(bench.leader, 0, read_only=True)
    bench.run(1.0)
    leader = bench.world.hosted(bench.leader, 0)
    assert leader is not None
    assert leader.replica.role._read_only
    bench.steward.healed = True
    bench.run(3.0)
    assert not leader.replica.role._read_only


@pytest.mark.behaviour("TT-12")
def test_somebody_is_promoted_where_nothing_is_automatic() -> None:
    bench = Bench(automatic=False)
    first = bench.leader
    bench.world.crash(first)
    bench.run(4.0)
    assert bench.leader != first


@pytest.mark.behaviour("D10")
@pytest.mark.parametrize("way", sorted(set(CHANGES)))
def test_every_quorum_that_is_asked_for_is_fair(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What is settled is not on unlucky nodes alone, and the others are enough."""
    asked: list[tuple[tuple[Member, ...], Quorums | None]] = []

    def change(
        *_: object, ensemble: tuple[Member, ...], quorums: Quorums | None = None, **__: object
    ) -> bool:
        asked.append((ensemble, quorums))
        return True

    monkeypatch.setattr(bench.world, "change", change)
    for chance in range(40):
        bench.steward.strike(Fault(0.0, f"change-{way}", nodes=(LEADER,), chance=chance))
    assert asked
    for ensemble, quorums in asked:
        if quorums is not None and is_safe(quorums, len(ensemble)):
            unlucky = sum(member.node == 2 for member in ensemble)
            assert unlucky < quorums.commit <= len(ensemble) - unlucky
            assert quorums.promote <= len(ensemble) - unlucky


@pytest.mark.behaviour("D10")
@pytest.mark.parametrize("count", range(1, 8))
def test_quorums_that_are_drawn_are_safe(count: int) -> None:
    rng = Random(count)
    for unlucky in range((count + 1) // 2):
        for _ in range(50):
            quorums = draw_quorums(rng, count, unlucky)
            assert quorums is not None
            assert is_safe(quorums, count)


@pytest.mark.behaviour("D10")
def test_a_change_to_unsafe_quorums_that_is_said_to_be_done(bench: Bench) -> None:
    wanted = Membership(bench.membership.ensemble, quorums=Quorums(1, 2))
    with expect("change-answer"):
        bench.steward._check_change(0, wanted, Reply(1, Outcome.SETTLED, 0))


def test_a_promotion_of_one_that_never_led(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.leader % 3 + 1
    answers: list[Callable[[Reply], None]] = []

    def command(*order: Any) -> bool:
        answers.append(order[-1])
        return True

    monkeypatch.setattr(bench.world, "command", command)
    bench.steward.promote(node, 0)
    with expect("order-answer"):
        answers[0](Reply(1, Outcome.SETTLED, 0, 1, node))


# ---- worlds ----


def test_orders_are_there_only_for_confirm() -> None:
    place = Place((1, 2, 3), (), 0.1, 4.0)
    kinds = {fault.kind for fault in membership(Random(1), place)}
    assert not any(kind.startswith("act-") for kind in kinds)
    acting = msgspec.structs.replace(place, acts=True)
    found = {fault.kind for seed in range(20) for fault in membership(Random(seed), acting)}
    assert {f"act-{way}" for way in ACTS} <= found


def test_worlds_are_born_with_quorums_of_many_sizes_all_of_them_fair() -> None:
    found = set()
    for seed in range(60):
        plan = plan_seed(seed, protocol="confirm", nodes=5)
        setup = place_partitions(plan, draw(seed))
        for voters, quorums in zip(setup.voters, setup.quorums, strict=bool(setup.quorums)):
            if quorums is None:
                continue
            unlucky = len(set(voters).intersection(setup.unlucky))
            assert is_safe(quorums, len(voters))
            assert unlucky < quorums.commit <= len(voters) - unlucky
            found.add((len(voters), quorums.commit, quorums.promote))
    assert len(found) > 5
