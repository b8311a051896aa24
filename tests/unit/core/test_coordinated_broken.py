"""Nodes and operators of `coordinated` in states that no step of theirs leads to: each is seen, and by its name.

What is forged is said in test_coordinated_invariants.py; here real ones go on from what they should not be.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorate.core import events
from quorate.core.coordinated import invariants, operator_invariants
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    BecomeLeaderRequest,
    CommitReconfigurationRequest,
    FenceRequest,
    FenceResponse,
    PrepareReconfigurationRequest,
)
from quorate.core.coordinated.shard import Phase, Reconfiguration, Shard
from quorate.core.effects import Append, Effect, Send, TakeSnapshot
from quorate.core.entry import Header, Member, Span
from quorate.core.invariant import Violated
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    N5,
    OPERATOR,
    Bench,
    Town,
    at,
    contract,
    electing,
    expand,
    propose,
    steady,
    swap,
)


@pytest.fixture
def town() -> Town:
    """N1 leads epoch 1, and everybody has its no-op and one write; N4 has nothing."""
    town = Town("", "", "", "", ensemble=3)
    town.start()
    town.wake()
    propose(town.leader())
    town.settle()
    town.wake()
    assert town.leader().replica.me == N1
    return town


def expect(invariant: str, broken: Callable[[], Any]) -> None:
    with pytest.raises(Violated) as caught:
        broken()
    assert caught.value.invariant == invariant, str(caught.value)


def twist(bench: Bench, twisted: Callable[[list[Effect]], list[Effect]]) -> None:
    """From here on, what this node orders is something else."""
    step = bench.replica.step
    bench.replica.step = lambda now, event: twisted(step(now, event))


def store(town: Town, *shards: Shard) -> None:
    for shard in shards:
        version, _ = town.room.operators._stored[0]
        town.room.wrote(town.invariants, 0, version + 1, shard)


def say(town: Town, to: int, message: Any) -> None:
    """An operator says something, and it arrives."""
    town.room.operated(town.invariants, 101, 0, [Send(to, message)])
    town.nodes[to].receive(OPERATOR, message)


def prepare(town: Town, change: Reconfiguration) -> None:
    store(town, steady(2, change=change))
    say(town, 1, PrepareReconfigurationRequest(2, change))


# ---- who leads ----


@pytest.mark.behaviour("D12")
def test_leader_that_does_not_open_its_epoch(town: Town) -> None:
    twist(town.nodes[2], lambda ordered: [effect for effect in ordered if type(effect) is not Append])
    town.down = {1}

    def elect() -> None:
        town.desk.tell(events.Suspected(1))
        town.settle()

    expect("epoch-unopened", elect)


@pytest.mark.behaviour("OX-8")
def test_entry_of_an_epoch_that_nobody_leads(town: Town) -> None:
    request = AddEntryRequest(5, at("1-1"), -1, (Header(5, 2, size=1),))
    expect("epoch-unelected", lambda: town.nodes[2].receive(N1, request))


def test_leader_and_follower_with_damage_that_go_on(town: Town) -> None:
    for node in (1, 2):
        log = town.nodes[node].replica.log
        log.faulty = (Span(at("1-0"), log.head),)
    expect("faulty-leads", lambda: town.nodes[1].tell(events.TimePassed()))
    acknowledged = AddEntryResponse(1, True, 1, 1, -1, at("1-1"))
    twist(town.nodes[2], lambda ordered: [*ordered, Send(1, acknowledged)])
    expect("faulty-leads", lambda: town.nodes[2].tell(events.TimePassed()))


# ---- what is flushed and acknowledged ----


@pytest.mark.behaviour("OX-23")
def test_node_that_counts_as_flushed_what_is_still_on_its_way(town: Town) -> None:
    leader = town.nodes[1]
    event = events.Proposed(2, (Header(0, 0, size=10),))
    ordered = leader.replica.step(leader.now, event)
    town.invariants.stepped(1, 0, leader.replica, event, ordered)
    leader.replica.ordering.durable = leader.replica.log.head
    flushed = events.Persisted(leader.replica.ordering.persisted)
    expect("durable-early", lambda: leader.tell(flushed))


@pytest.mark.behaviour("D1")
def test_follower_that_acknowledges_what_its_leader_does_not_have(town: Town) -> None:
    """As if somebody else had spoken for its leader."""
    request = AddEntryRequest(1, at("1-1"), -1, (Header(1, 2, size=1),))
    expect("ack-unverified", lambda: town.nodes[2].receive(N1, request))


# ---- what is settled ----


@pytest.mark.behaviour("OX-23", "OX-24")
def test_leader_that_counts_entries_of_an_earlier_epoch() -> None:
    town = Town("1-0 1-1", "1-0 1-1", "1-0 1-1", epoch=1)
    town.desk.start()
    while town.nodes[1].replica.role.name != "leader":
        town.deliver()
    leader = town.nodes[1]
    assert (leader.log(), leader.replica.commit) == ("1-0 1-1 2-2", -1)
    leader.replica.commit = 1
    expect("settled-old-epoch", lambda: leader.tell(events.TimePassed()))


@pytest.mark.behaviour("OX-29", "OX-30")
def test_new_node_that_counts_without_a_snapshot(town: Town) -> None:
    """What is settled is on N1 and N3; and of N1, N2 and N4 only one has it."""
    town.down = {2}
    propose(town.leader(), 2)
    town.settle()
    assert town.leader().replica.commit == 2
    twist(town.leader(), lambda ordered: [effect for effect in ordered if type(effect) is not TakeSnapshot])
    prepare(town, swap(N3, N4))
    change = swap(N3, N4, Phase.COMMIT)
    store(town, steady(2, change=change))
    expect("redundancy-fell", lambda: say(town, 1, CommitReconfigurationRequest(2, change)))


@pytest.mark.behaviour("OX-3", "OX-7")
def test_leader_of_the_past_that_settles_with_one_who_said_to_be_fenced(town: Town) -> None:
    liar = town.invariants.shadows[3, 0]
    answer = FenceResponse(2, liar.durable, 3)
    town.down = {1, 3}
    town.desk.tell(events.Suspected(1))
    town.room.operators.sent_by_node(liar, Send(101, answer))
    town.desk.receive(N3, answer)
    town.settle()
    assert town.leader().replica.me == N2
    town.down = {2, 101}

    def settle() -> None:
        propose(town.nodes[1], 2)
        town.settle()

    expect("no-loss-of-confirmed-write", settle)


def test_member_whose_settled_log_is_another_one_than_the_stored_leaders(town: Town) -> None:
    prepare(town, contract(N3))
    town.nodes[2].replica.log = Bench(N2, "1-0 7-1").replica.log
    expect("no-log-divergence", lambda: store(town, steady(2, change=contract(N3, Phase.COMMIT))))


# ---- who is fenced ----


def choose(
    town: Town, shard: Shard, fenced: tuple[Member, ...], leader: Member, *, others: tuple[Member, ...] = ()
) -> None:
    """In an election out of `shard` these nodes are fenced, and `leader` is told to lead with `others`."""
    final = operator_invariants.final_ensemble(shard)
    town.room.operators._stored[0] = (7, shard)
    town.room.operators._history[0, shard.epoch] = [shard]
    for member in fenced:
        town.nodes[member.node].receive(OPERATOR, FenceRequest(shard.epoch, final))
    heads = tuple((member, town.nodes[member.node].replica.log.head) for member in others)
    request = BecomeLeaderRequest(shard.epoch, 0, final, heads)
    town.room.operated(town.invariants, 101, 0, [Send(leader.node, request)])


FIVE = (N1, N2, N3, N4, N5)
SWAP, EXPAND = swap(N3, N4, Phase.COMMIT), expand(N4, Phase.COMMIT)
AGAIN = Reconfiguration(contract(N3).kind, Phase.WANTED, N3, again=True)


@pytest.mark.behaviour("OX-8", "OX-19", "OX-21")
@pytest.mark.parametrize(
    ("shard", "fenced"),
    [
        (electing(2), (N2,)),
        (electing(2, change=SWAP), (N2, N3)),
        (electing(2, change=SWAP), (N2,)),
        (electing(2, change=EXPAND), (N2,)),
        (electing(2, (N1, N2, N3, N4), EXPAND), (N2, N4)),
        (electing(2, FIVE, contract(N5)), (N2, N3)),
    ],
    ids=str,
)
def test_leader_chosen_while_a_majority_may_go_on_without_the_fenced(
    shard: Shard, fenced: tuple[Member, ...]
) -> None:
    town = Town("", "", "", "", "", ensemble=3)
    expect("fenced-minority", lambda: choose(town, shard, fenced, N2))


@pytest.mark.behaviour("OX-8", "OX-19")
@pytest.mark.parametrize(
    ("shard", "fenced"),
    [
        (electing(2), (N2, N3)),
        (electing(2, change=SWAP), (N2, N3, N4)),
        (electing(2, change=SWAP), (N1, N2)),
        (electing(2, change=EXPAND), (N2, N3, N4)),
        (electing(2, (N1, N2, N3, N4), EXPAND), (N1, N2, N4)),
        (electing(2, change=AGAIN), (N2, N3)),
    ],
    ids=str,
)
def test_leader_chosen_once_the_fenced_meet_every_majority(shard: Shard, fenced: tuple[Member, ...]) -> None:
    town = Town("", "", "", "", "", ensemble=3)
    choose(town, shard, fenced, N2)


@pytest.mark.behaviour("OX-8")
def test_whoever_came_back_with_another_disk_is_not_the_one_to_be_fenced() -> None:
    """N3 of the ensemble is another one than the N3 that answers."""
    town = Town("", "", "", ensemble=3)
    shard = electing(2, (N1, N2, Member(3, 9)))
    expect("fenced-minority", lambda: choose(town, shard, (N2, N3), N2))


@pytest.mark.behaviour("OX-10")
def test_leader_below_a_follower_of_its_own() -> None:
    town = Town("", "1-0", "1-0 1-1", epoch=1)
    expect("chosen-lower", lambda: choose(town, electing(2), (N2, N3), N2, others=(N3,)))


# ---- none is forgotten ----


def test_every_invariant_of_the_room_is_broken_by_some_test() -> None:
    tables = f"{invariants.__doc__}{operator_invariants.__doc__}"
    names = set(re.findall(r"^\| ([a-z]+(?:-[a-z]+)+) \|", tables, flags=re.MULTILINE))
    raised = {
        name
        for module in (invariants, operator_invariants)
        for name in re.findall(r'Violated\(\s*"([a-z-]+)"', inspect.getsource(module))
    }
    eventual = {name for name in names if name.startswith("eventually-")}  # tests/simulation/test_liveness.py
    assert names - eventual == raised
    tests = [Path(__file__), Path(__file__).with_name("test_coordinated_invariants.py")]
    said = "".join(path.read_text(encoding="utf-8") for path in tests)
    assert [name for name in sorted(raised) if f'"{name}"' not in said] == []
    assert len(eventual) == 2
