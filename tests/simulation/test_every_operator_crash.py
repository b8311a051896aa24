"""An operator ended at every step of an election and of each reconfiguration: sampled here, all in the proof."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from quorate.batch import encode_records
from quorate.core.coordinated import Status
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
)
from quorate.core.coordinated.shard import Phase
from quorate.sim import every_operator_crash
from quorate.sim.every_operator_crash import NEWCOMER, PLAYS, Disturbance
from quorate.sim.network import Weather
from quorate.sim.operator_stage import SETUP, TUNABLES, Stage
from quorate.sim.operators import FIRST
from quorate.sim.workload import Manners

CHUNKS = 4
SAMPLE_EVERY = 29
"""A prime, so that a sample meets everything that can go wrong."""

KEPT = [
    pytest.param("election", marks=pytest.mark.behaviour("OX-2", "OX-3", "OX-5")),
    pytest.param("swap", marks=pytest.mark.behaviour("OX-2", "OX-28", "OX-30")),
    pytest.param("expand", marks=pytest.mark.behaviour("OX-2", "OX-28", "OX-32")),
    pytest.param("contract", marks=pytest.mark.behaviour("OX-2", "OX-28", "D11")),
    pytest.param("leader swap", marks=pytest.mark.behaviour("OX-2", "OX-31")),
    pytest.param("call off", marks=pytest.mark.behaviour("OX-2", "OX-36")),
    pytest.param("call off late", marks=pytest.mark.behaviour("OX-2", "OX-36")),
    pytest.param("swap, one behind", marks=pytest.mark.behaviour("OX-2", "OX-19", "OX-28")),
    pytest.param("contract, one behind", marks=pytest.mark.behaviour("OX-2", "OX-35", "D11")),
]
assert len(KEPT) == len(PLAYS)


def complaints(name: str, chosen: list[Disturbance]) -> list[str]:
    return [f"{each}: {wrong}" for each in chosen if (wrong := every_operator_crash.survive(name, each))]


def played(name: str) -> Stage:
    """Undisturbed, to its end."""
    stage = every_operator_crash.prepared(name)
    stage.play(PLAYS[name].begin)
    stage.until(lambda: len(stage.history) > 1 and stage.is_at_rest(), "it does not end")
    return stage


# --- undisturbed ---


def test_undisturbed_election_finds_another_leader() -> None:
    stage = played("election")
    assert [shard.status for shard in stage.history] == [Status.STEADY, Status.ELECTION, Status.STEADY]
    assert stage.leader != stage.history[0].leader


@pytest.mark.parametrize("name", ["swap", "swap, one behind", "expand", "contract", "contract, one behind"])
def test_undisturbed_reconfiguration_is_prepared_and_committed_in_one_epoch(name: str) -> None:
    stage = played(name)
    before = stage.history[0]
    changes = [shard.reconfiguration for shard in stage.history]
    assert [change.phase if change else None for change in changes] == [
        None,
        Phase.PREPARE,
        Phase.COMMIT,
        None,
    ]
    assert {shard.epoch for shard in stage.history[1:]} == {before.epoch + 1}
    kind = name.partition(",")[0]
    assert len(stage.stored.ensemble) == {"swap": 3, "expand": 4, "contract": 2}[kind]
    assert (NEWCOMER in stage.stored.ensemble) == (kind != "contract")


def test_undisturbed_leader_is_moved_and_then_swapped() -> None:
    stage = played("leader swap")
    old = stage.history[0].leader
    phases = [shard.reconfiguration.phase for shard in stage.history if shard.reconfiguration is not None]
    assert phases == [Phase.WANTED, Phase.WANTED, Phase.WANTED, Phase.PREPARE, Phase.COMMIT]
    assert old not in stage.stored.ensemble
    assert NEWCOMER in stage.stored.ensemble


@pytest.mark.parametrize("name", ["call off", "call off late"])
def test_undisturbed_calling_off_leaves_everything_as_it_was(name: str) -> None:
    stage = played(name)
    changes = [shard.reconfiguration for shard in stage.history]
    assert [change.phase if change else None for change in changes] == [
        None,
        Phase.PREPARE,
        Phase.ABORT,
        None,
    ]
    assert stage.stored.ensemble == stage.history[0].ensemble
    assert any(to == NEWCOMER.node for _, to, _ in stage.said) == (name == "call off late")


# --- an election, message by message ---


def quiet() -> Stage:
    """Nobody writes, and every message takes as long as every other."""
    tunables = msgspec.structs.replace(
        TUNABLES,
        weather=Weather(delay_min=0.001, delay_mean=0.0),
        disk=msgspec.structs.replace(TUNABLES.disk, latency_min=0.0001, latency_max=0.0001),
        manners=Manners(clients_count=0),
    )
    stage = Stage(msgspec.structs.replace(SETUP, tunables=tunables))
    stage.run(1.0)
    return stage


def spoken(stage: Stage, *, beside: tuple[type, ...] = ()) -> list[tuple[int, int, str]]:
    """From, to, and the name of every message but these."""
    return [
        (source, to, type(message).__name__)
        for source, to, message in stage.said
        if type(message) not in beside
    ]


REPLICATION = (AddEntryRequest, AddEntryResponse)


def elect(stage: Stage, begin: Callable[[Stage], None]) -> None:
    stage.play(begin)
    stage.until(lambda: len(stage.history) > 1 and stage.is_at_rest(), "nobody is elected")
    assert [shard.status for shard in stage.history] == [Status.STEADY, Status.ELECTION, Status.STEADY]


@pytest.mark.behaviour("OX-6", "OX-9", "OX-11", "OX-12", "OX-13")
def test_a_quiet_election_takes_exactly_the_messages_of_the_document() -> None:
    stage = quiet()
    elect(stage, lambda stage: stage.operators.suspect(FIRST, 0, 1))
    stage.run(3.0)
    assert spoken(stage, beside=REPLICATION) == [
        (FIRST, 1, "FenceRequest"),
        (FIRST, 2, "FenceRequest"),
        (FIRST, 3, "FenceRequest"),
        (1, FIRST, "FenceResponse"),
        (2, FIRST, "FenceResponse"),
        (3, FIRST, "FenceResponse"),
        (FIRST, 2, "BecomeLeaderRequest"),
        (2, FIRST, "BecomeLeaderResponse"),
        (FIRST, 2, "AddFollowerRequest"),  # n1 was said to be gone, and is late, whenever it answers.
        (2, FIRST, "AddFollowerResponse"),
    ]


@pytest.mark.behaviour("OX-6", "OX-8", "OX-11", "OX-12")
def test_a_quiet_election_without_the_dead_leader_takes_as_many_rounds() -> None:
    stage = quiet()
    elect(stage, PLAYS["election"].begin)
    assert spoken(stage, beside=REPLICATION) == [
        (FIRST, 1, "FenceRequest"),
        (FIRST, 2, "FenceRequest"),
        (FIRST, 3, "FenceRequest"),
        (2, FIRST, "FenceResponse"),
        (3, FIRST, "FenceResponse"),
        (FIRST, 2, "BecomeLeaderRequest"),
        (2, FIRST, "BecomeLeaderResponse"),
    ]


@pytest.mark.behaviour("OX-14", "OX-16")
def test_only_who_has_what_the_new_leader_does_not_have_is_truncated_and_once() -> None:
    stage = quiet()
    network = stage.world.network
    away = [link for link in network.links if 1 in link]
    network.cut(away)
    for number in range(2):
        payload = encode_records([(None, b"nobody else gets it")], timestamp=number + 1)
        stage.world.propose(1, 0, [payload], lambda reply: None)
    stage.run(0.5)
    elect(stage, lambda stage: stage.operators.suspect(FIRST, 0, 1))
    assert spoken(stage, beside=REPLICATION)[-1][2] == "BecomeLeaderResponse"
    network.mend(away)
    stage.run(6.0)
    assert [each for each in spoken(stage) if each[2].startswith("Truncate")] == [
        (2, 1, "TruncateRequest"),
        (1, 2, "TruncateResponse"),
    ]
    copies = [stage.world.hosted(member.node, 0) for member in stage.stored.ensemble]
    assert len({str(copy.replica.log.head) for copy in copies if copy is not None}) == 1


# --- disturbed ---


@pytest.mark.parametrize("name", KEPT)
def test_a_sample_of_disturbances_is_survived(name: str) -> None:
    assert complaints(name, [*every_operator_crash.disturbances(name)][::SAMPLE_EVERY]) == []


@pytest.mark.proof
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", KEPT)
def test_every_disturbance_is_survived(name: str, chunk: int) -> None:
    assert complaints(name, [*every_operator_crash.disturbances(name)][chunk::CHUNKS]) == []
