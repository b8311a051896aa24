"""What is ordered of whoever oversees a partition, one step after the other, until its copies are those wanted."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.orders import CallOff, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration
from quorate.core.entry import Member
from quorate.core.isr import PartitionState
from quorate.core.isr.orders import ChangeReplicas
from quorate.machine.shards import State
from quorate.node.moves import Rest, next_step

ONE, TWO, THREE, FOUR = (Member(node, 7) for node in (1, 2, 3, 4))
TRIO = ONE, TWO, THREE
TWO_ANEW = Member(2, 90)
SHARD = Shard(4, Status.STEADY, TRIO, ONE)
STATE = PartitionState(7, 4, ONE, TRIO, TRIO, min_isr=1)


def step(stored: State, wanted: tuple[Member, ...]) -> Any:
    found = next_step(stored, wanted, TRIO)
    return found if isinstance(found, Rest) else found(5)


@pytest.mark.parametrize(
    ("wanted", "order"),
    [
        (TRIO, Rest.REACHED),
        ((*TRIO, FOUR), Reconfigure(5, Kind.EXPAND, new=FOUR)),
        ((ONE, THREE), Reconfigure(5, Kind.CONTRACT, old=TWO)),
        ((ONE, TWO_ANEW, THREE), Reconfigure(5, Kind.SWAP, old=TWO, new=TWO_ANEW)),
        ((THREE, FOUR, TWO_ANEW), Reconfigure(5, Kind.SWAP, old=TWO, new=TWO_ANEW)),
        ((THREE, FOUR), Reconfigure(5, Kind.CONTRACT, old=TWO)),
        ((FOUR, THREE, TWO), Reconfigure(5, Kind.EXPAND, new=FOUR)),
    ],
    ids=[
        "as it is",
        "one more",
        "one less",
        "a lost disk",
        "a lost disk goes first",
        "whoever leads goes last",
        "one comes before another goes",
    ],
)
def test_an_operator_has_one_come_before_another_goes_unless_a_disk_is_lost(
    wanted: tuple[Member, ...], order: Any
) -> None:
    assert step(SHARD, wanted) == order


def test_the_only_copy_gets_company_before_it_goes() -> None:
    alone = Shard(4, Status.STEADY, (ONE,), ONE)
    assert step(alone, (FOUR,)) == Reconfigure(5, Kind.EXPAND, new=FOUR)


def test_what_is_under_way_ends_first_and_what_is_wanted_no_more_is_called_off() -> None:
    adding = Reconfiguration(Kind.EXPAND, Phase.PREPARE, new=FOUR)
    shard = msgspec.structs.replace(SHARD, reconfiguration=adding)
    assert step(shard, (*TRIO, FOUR)) is Rest.UNDER_WAY
    assert step(shard, TRIO) == CallOff(5)
    assert step(Shard(5, Status.ELECTION, TRIO), (*TRIO, FOUR)) is Rest.UNDER_WAY


@pytest.mark.parametrize(
    ("state", "wanted", "order"),
    [
        (STATE, TRIO, Rest.REACHED),
        (STATE, (FOUR, TWO, THREE), ChangeReplicas(5, new=FOUR)),
        (STATE, (ONE, TWO_ANEW, THREE), ChangeReplicas(5, old=TWO, new=TWO_ANEW)),
        (STATE, (THREE,), ChangeReplicas(5, old=TWO)),
        (STATE.held_by((*TRIO, FOUR)), (FOUR, TWO, THREE), Rest.UNDER_WAY),
        (
            STATE.held_by((*TRIO, FOUR)).with_isr((*TRIO, FOUR)),
            (FOUR, TWO, THREE),
            ChangeReplicas(5, old=ONE),
        ),
        (STATE.held_by((*TRIO, FOUR)), TRIO, ChangeReplicas(5, old=FOUR)),
    ],
    ids=[
        "as it is",
        "one comes before another goes",
        "a lost disk",
        "whoever leads goes last",
        "whoever came is not in sync",
        "whoever came is in sync",
        "whoever came never was, and is not wanted any more",
    ],
)
def test_a_controller_has_a_new_copy_in_sync_before_an_old_one_goes(
    state: PartitionState, wanted: tuple[Member, ...], order: Any
) -> None:
    assert step(state, wanted) == order


def carried_out(stored: State, order: Any) -> State:
    """As if nothing came in between."""
    if isinstance(order, Reconfigure):
        assert isinstance(stored, Shard)
        change = Reconfiguration(order.kind, Phase.COMMIT, order.old, order.new)
        ensemble = change.applied_to(stored.ensemble)
        leader = stored.leader if stored.leader in ensemble else ensemble[0]
        return msgspec.structs.replace(stored, ensemble=ensemble, leader=leader)
    assert isinstance(stored, PartitionState)
    assert isinstance(order, ChangeReplicas)
    kept = [member for member in stored.replicas if member != order.old]
    replicas = tuple(sorted(kept if order.new is None else [*kept, order.new]))
    heir = next(member for member in stored.isr if member in replicas)
    led = stored.led_by(heir) if stored.leader == order.old else stored
    held = led.held_by(replicas)
    return held.with_isr(replicas)


@pytest.mark.parametrize("stored", [SHARD, STATE], ids=["operator", "controller"])
def test_whatever_is_wanted_is_reached(stored: State) -> None:
    everybody = (*TRIO, FOUR, Member(5, 7), TWO_ANEW)
    ways = [
        wanted
        for count in range(1, 5)
        for wanted in combinations(everybody, count)
        if len({member.node for member in wanted}) == count
    ]
    for wanted in ways:
        now, steps_count = stored, 0
        while (order := step(now, wanted)) is not Rest.REACHED:
            now, steps_count = carried_out(now, order), steps_count + 1
            copies = now.ensemble if isinstance(now, Shard) else now.replicas
            assert len(copies) >= min(len(TRIO), len(wanted)), "never fewer than there were, or are to be"
            assert steps_count <= len(TRIO) + len(wanted), f"{wanted}: {now}"
        held = now.ensemble if isinstance(now, Shard) else now.replicas
        assert held == tuple(sorted(wanted))
