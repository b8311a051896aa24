"""Each invariant of `coordinated` is broken once, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorate.core import events
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    AddFollowerRequest,
    BecomeLeaderRequest,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    FenceRequest,
    FenceResponse,
    PrepareReconfigurationRequest,
    TruncateResponse,
)
from quorate.core.coordinated.shard import Phase, Shard, Status
from quorate.core.effects import Append, Send
from quorate.core.entry import EntryId, Header
from quorate.core.invariant import Violated
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    THREE,
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
    """N1 leads epoch 1, and everybody has its no-op and one write."""
    town = Town("", "", "", "", ensemble=3)
    town.start()
    town.wake()
    propose(town.leader())
    town.settle()
    town.wake()
    return town


def expect(invariant: str, broken: Callable[[], Any]) -> None:
    with pytest.raises(Violated) as caught:
        broken()
    assert caught.value.invariant == invariant, str(caught.value)


def store(town: Town, *shards: Shard) -> None:
    for shard in shards:
        version, _ = town.room.operators._stored[0]
        town.room.wrote(town.invariants, 0, version + 1, shard)


def say(town: Town, to: int, message: Any) -> None:
    """An operator says something."""
    town.room.operated(town.invariants, 101, 0, [Send(to, message)])


def answer(town: Town, node: int, message: Any, *, event: Any = None) -> None:
    """A node says something, as if that were a step of its own."""
    replica = town.nodes[node].replica
    town.invariants.stepped(node, 0, replica, event or events.TimePassed(), [Send(101, message)])


# ---- what is written ----


@pytest.mark.behaviour("OX-2")
def test_a_write_that_skips_one(town: Town) -> None:
    expect("store-skipped", lambda: town.room.wrote(town.invariants, 0, 9, electing(2)))


@pytest.mark.behaviour("OX-5", "OX-27", "D4")
@pytest.mark.parametrize(
    "shard",
    [
        electing(1),
        electing(3),
        steady(3, change=swap(N3, N4)),
        steady(1, change=contract(N3)),
        steady(2),
    ],
)
def test_an_epoch_that_does_not_follow(town: Town, shard: Shard) -> None:
    invariant = "change-overlaps" if shard == steady(1, change=contract(N3)) else "epoch-skipped"
    expect(invariant, lambda: store(town, shard))


@pytest.mark.behaviour("OX-26")
def test_a_second_change_beside_the_first(town: Town) -> None:
    store(town, steady(2, change=swap(N3, N4)))
    expect("change-overlaps", lambda: store(town, steady(3, change=contract(N2))))
    expect("change-overlaps", lambda: store(town, steady(2, change=contract(N2, Phase.COMMIT))))


@pytest.mark.behaviour("OX-31")
def test_a_leader_outside_of_the_ensemble_or_on_its_way_out(town: Town) -> None:
    expect("legal-leader-and-ensemble", lambda: store(town, steady(2, leader=N4)))
    expect("legal-leader-and-ensemble", lambda: store(town, steady(2, change=swap(N1, N4))))
    expect("legal-leader-and-ensemble", lambda: store(town, Shard(2, Status.STEADY, THREE)))


@pytest.mark.behaviour("OX-12")
def test_a_leader_that_is_stored_before_it_leads(town: Town) -> None:
    store(town, electing(2))
    expect("leader-unconfirmed", lambda: store(town, steady(2, leader=N2)))


@pytest.mark.behaviour("OX-28", "D11")
def test_an_ensemble_that_changes_on_its_own_or_too_early(town: Town) -> None:
    expect("ensemble-unapplied", lambda: store(town, electing(2, (N1, N2))))
    store(town, steady(2, change=contract(N3)), steady(2, change=contract(N3, Phase.COMMIT)))
    expect("ensemble-unapplied", lambda: store(town, steady(2, (N1, N2))))


@pytest.mark.behaviour("D11")
def test_an_election_that_completes_a_contraction(town: Town) -> None:
    change = contract(N3, Phase.COMMIT)
    store(town, steady(2, change=contract(N3)), steady(2, change=change), electing(3, change=change))
    town.invariants.leaders[0][3] = 1
    expect("ensemble-unapplied", lambda: store(town, steady(3, (N1, N2))))


@pytest.mark.behaviour("OX-28")
def test_an_election_that_forgets_what_may_have_grown(town: Town) -> None:
    store(town, steady(2, change=expand(N4)), steady(2, change=expand(N4, Phase.COMMIT)))
    expect("ensemble-unapplied", lambda: store(town, electing(3)))


# ---- what operators say ----


@pytest.mark.behaviour("OX-2", "OX-5", "OX-29", "OX-30")
@pytest.mark.parametrize(
    ("to", "message"),
    [
        (1, FenceRequest(2, THREE)),
        (1, BecomeLeaderRequest(1, 0, (N4,), ())),
        (2, AddFollowerRequest(1, N3, at("1-0"))),
        (1, PrepareReconfigurationRequest(1, swap(N3, N4))),
        (1, CommitReconfigurationRequest(1, swap(N3, N4, Phase.COMMIT))),
    ],
)
def test_an_order_of_which_the_store_knows_nothing(town: Town, to: int, message: Any) -> None:
    wanted = "chosen-outsider" if type(message) is BecomeLeaderRequest else "order-unstored"
    expect(wanted, lambda: say(town, to, message))


def test_an_order_to_follow_or_to_drop_oneself(town: Town) -> None:
    expect("valid-messages", lambda: say(town, 1, AddFollowerRequest(1, N1, at("1-0"))))
    replica = town.nodes[1].replica
    to_itself = Send(1, AddEntryRequest(1, at("1-1"), -1))
    expect(
        "valid-messages",
        lambda: town.invariants.stepped(1, 0, replica, events.TimePassed(), [to_itself]),
    )


@pytest.mark.behaviour("OX-8", "OX-10", "OX-20")
def test_a_wrong_choice(town: Town) -> None:
    store(town, electing(2))
    expect("fenced-minority", lambda: say(town, 2, BecomeLeaderRequest(2, 0, THREE, ())))
    for node in (2, 3):
        town.nodes[node].receive(OPERATOR, FenceRequest(2, THREE))
    del town.room.operators.chosen[0, 2]
    head = town.nodes[2].replica.log.head
    expect("chosen-lower", lambda: say(town, 2, BecomeLeaderRequest(2, 0, THREE, ((N3, EntryId(1, 9)),))))
    expect("chosen-outsider", lambda: say(town, 4, BecomeLeaderRequest(2, 0, THREE, ())))
    say(town, 2, BecomeLeaderRequest(2, 0, THREE, ((N3, head),)))
    expect("chosen-twice", lambda: say(town, 3, BecomeLeaderRequest(2, 0, THREE, ((N2, head),))))


# ---- nodes ----


@pytest.mark.behaviour("OX-7")
def test_an_answer_before_it_is_flushed(town: Town) -> None:
    head = town.nodes[2].replica.log.head
    expect("epoch-unsaved", lambda: answer(town, 2, FenceResponse(5, head, 1)))
    town.nodes[2].replica.become("fenced")
    expect("fence-unflushed", lambda: answer(town, 2, FenceResponse(1, EntryId(1, 9), 1)))
    expect("ack-unflushed", lambda: answer(town, 2, TruncateResponse(1, EntryId(1, 9), -1)))
    expect("ack-unflushed", lambda: answer(town, 2, AddEntryResponse(1, True, 9, 9, -1, head)))


@pytest.mark.behaviour("OX-7")
def test_a_fenced_node_that_goes_on(town: Town) -> None:
    store(town, electing(2))
    bench = town.nodes[2]
    bench.receive(OPERATOR, FenceRequest(2, THREE))
    head = bench.replica.log.head
    expect("fenced-replicates", lambda: answer(town, 2, AddEntryResponse(1, True, 1, 1, -1, head)))
    late = events.Received(N1, AddEntryRequest(1, head, -1))
    append = Append(bench.replica.ordering.issued + 1, (Header(1, 2, size=1),))
    expect("fenced-replicates", lambda: town.invariants.stepped(2, 0, bench.replica, late, [append]))


@pytest.mark.behaviour("D2")
def test_an_acknowledgement_in_another_epoch_than_the_own(town: Town) -> None:
    bench = town.nodes[2]
    bench.receive(N1, AddEntryRequest(2, bench.replica.log.head, -1))
    early = AddEntryResponse(1, True, 1, 1, -1, bench.replica.log.head)
    expect("ack-other-epoch", lambda: answer(town, 2, early))


@pytest.mark.behaviour("OX-10")
def test_a_leader_that_nobody_chose(town: Town) -> None:
    bench = town.nodes[2]
    bench.receive(OPERATOR, FenceRequest(2, THREE))
    token = bench.replica.token
    expect(
        "leader-unchosen",
        lambda: bench.receive(OPERATOR, BecomeLeaderRequest(2, token, THREE, ())),
    )


@pytest.mark.behaviour("OX-34")
def test_a_contraction_that_takes_a_majority_from_what_is_settled(town: Town) -> None:
    town.down = {2}
    propose(town.leader(), 2)
    town.settle()
    change = contract(N3)
    store(town, steady(2, change=change))
    say(town, 1, PrepareReconfigurationRequest(2, change))
    town.nodes[1].receive(OPERATOR, PrepareReconfigurationRequest(2, change))
    done = CommitReconfigurationResponse(2, leads=True, done=True)
    expect("contract-unsafe", lambda: answer(town, 1, done))


@pytest.mark.behaviour("D12", "OX-23")
def test_what_is_settled_with_the_one_that_is_to_go(town: Town) -> None:
    town.down = {2}
    change = swap(N3, N4)
    store(town, steady(2, change=change))
    say(town, 1, PrepareReconfigurationRequest(2, change))
    leader = town.nodes[1]
    leader.receive(OPERATOR, PrepareReconfigurationRequest(2, change))
    town.nodes[3].receive(N1, AddEntryRequest(2, at("1-1"), -1, tuple(leader.replica.log.window[-1:])))
    leader.replica.commit = 2
    expect("settled-minority", lambda: leader.tell(events.TimePassed()))


@pytest.mark.behaviour("OX-23")
def test_what_is_settled_by_a_follower_first(town: Town) -> None:
    town.down = {2, 3}
    propose(town.leader(), 2)
    town.nodes[2].receive(N1, AddEntryRequest(1, at("1-1"), -1, tuple(town.leader().replica.log.window[-1:])))
    town.nodes[2].replica.commit = 2
    expect("settled-by-follower", lambda: town.nodes[2].tell(events.Suspected(1)))
