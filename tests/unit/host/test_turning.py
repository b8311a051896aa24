"""A host turns its replicas: what it keeps of a log, what it is from then on, and what a crash leaves of it."""

from __future__ import annotations

import pytest

from quorate.batch import encode_records
from quorate.core.commands import Turn
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, Member, Span
from quorate.core.keeping import KEEP_ALL
from quorate.core.raft import Tuning
from quorate.host import Host, Hosted, HostSettings
from quorate.host.replicas import as_recovered
from quorate.host.turning import reached, settled_only
from quorate.machine.metadata import REPLICATIONS
from quorate.machine.turning import NoteBarrier, Turned
from quorate.sim.setup import Setup
from quorate.sim.tunables import Tunables
from quorate.sim.world import World
from quorate.storage.settings import TINY

RAFT = Tuning(election_timeout_s=0.15, heartbeat_s=0.03)
SNAPSHOTS = Tuning(election_timeout_s=0.15, heartbeat_s=0.03, snapshot_every=1, keep_behind=KEEP_ALL)
VOTERS = tuple(Member(node, 1) for node in (1, 2, 3))
AT = 9


def led_world(tuning: Tuning = RAFT) -> tuple[World, int]:
    """Three nodes, and whoever leads; something is settled everywhere."""
    tunables = Tunables(host=HostSettings(store=TINY, raft=tuning))
    world = World(Setup(7, tunables, voters=((1, 2, 3),), learners=((),)))
    for number in world.nodes:
        world.start(number)
    while not world.leaders(0):
        world.run(world.now + 0.1)
    (leader,) = world.leaders(0)
    propose(world, leader, b"one")
    world.run(world.now + 1.0)
    return world, leader


def propose(world: World, node: int, value: bytes) -> list[Reply]:
    replies: list[Reply] = []
    assert world.propose(node, 0, [encode_records([(None, value)])], replies.append)
    return replies


def hosted(world: World, node: int) -> Hosted:
    found = world.hosted(node, 0)
    assert found is not None
    return found


def host_of(world: World, node: int) -> Host:
    found = world.nodes[node].host
    assert found is not None
    return found


def ended(world: World, leader: int) -> NoteBarrier:
    """The protocol has ended, as its leader says."""
    world.command(leader, 0, lambda request: Turn(request, AT), lambda reply: None)
    world.run(world.now + 1.0)
    note = reached(hosted(world, leader))
    assert note is not None
    return note


def turned_by(note: NoteBarrier, to: str) -> Turned:
    return Turned(note.at, to, note.barrier, note.epoch, note.leader.node)


def test_a_barrier_is_said_to_be_reached_by_its_leader_alone_with_those_who_have_it() -> None:
    world, leader = led_world()
    assert reached(hosted(world, leader)) is None
    note = ended(world, leader)
    assert (note.at, note.leader.node, note.whole) == (AT, leader, VOTERS)
    for node in world.nodes:
        assert (reached(hosted(world, node)) is None) == (node != leader)


@pytest.mark.parametrize("to", REPLICATIONS)
def test_a_copy_that_has_the_barrier_ends_there_and_goes_on_with_its_machine(to: str) -> None:
    world, leader = led_world()
    note = ended(world, leader)
    before = hosted(world, leader)
    world.turn(leader, 0, turned_by(note, to), VOTERS)
    after = hosted(world, leader)
    assert after is not before
    assert after.machine is before.machine
    assert (after.record.protocol, after.record.turn) == (to, AT)
    assert after.record.state.epoch == note.epoch + 1
    assert after.record.state.owed == NOWHERE
    assert after.replica.log.head == note.barrier
    assert after.replica.commit == note.barrier.offset
    world.run(world.now + 0.05)
    world.crash(leader)
    world.start(leader)
    again = hosted(world, leader)
    assert (again.record.protocol, again.record.turn) == (to, AT)
    assert again.replica.log.head.offset >= note.barrier.offset
    assert again.replica.generation == AT


def test_a_copy_that_lacks_the_barrier_keeps_what_is_settled_and_owes_the_rest() -> None:
    world, leader = led_world()
    away = next(node for node in world.nodes if node != leader)
    settled = hosted(world, away).replica.commit
    world.network.cut(tuple((one, away) for one in world.nodes if one != away))
    note = ended(world, leader)
    assert note.whole == tuple(member for member in VOTERS if member.node != away)
    world.turn(away, 0, turned_by(note, "confirm"), VOTERS)
    copy = hosted(world, away)
    assert copy.replica.log.head.offset == settled
    assert copy.record.state.owed == note.barrier
    assert copy.replica.faulty, "it does not lead before it has it"


@pytest.mark.parametrize("to", REPLICATIONS)
def test_what_only_a_snapshot_knows_to_be_settled_is_not_cut(to: str) -> None:
    world, leader = led_world(SNAPSHOTS)
    away = next(node for node in world.nodes if node != leader)
    world.network.cut(tuple((one, away) for one in world.nodes if one != away))
    world.crash(away)
    world.start(away)
    copy = hosted(world, away)
    settled = copy.applied
    assert copy.replica.commit < settled.offset, "on the disk, what is settled is a hint"
    store, partition = host_of(world, away).store, copy.partition
    found = as_recovered(store.recovered(partition), copy.record, copy.replica.snapshot)
    assert settled_only(store, partition, found).head == settled, "nor where the record is lost"
    world.turn(away, 0, turned_by(ended(world, leader), to), VOTERS)
    copy = hosted(world, away)
    assert copy.record.turn == AT
    assert copy.replica.log.head == settled
    assert copy.replica.commit == settled.offset


def test_a_compacted_log_is_known_as_such_in_the_next_protocol() -> None:
    world, leader = led_world()
    note = ended(world, leader)
    hosted(world, leader).replica.log.compact(1, rewritten=1)
    world.turn(leader, 0, turned_by(note, "raft"), VOTERS)
    assert hosted(world, leader).record.turn == AT
    assert hosted(world, leader).replica.log.compacted == 1


def test_readers_go_on_where_they_were_though_damage_may_hide_a_rollback_from_now_on() -> None:
    world, leader = led_world()
    away = next(node for node in world.nodes if node != leader)
    world.network.cut(tuple((one, away) for one in world.nodes if one != away))
    note = ended(world, leader)
    before = hosted(world, away)
    log = before.replica.log
    log.mark_faulty(Span(log.position(0), log.head))
    told = before.commit
    assert told > 0
    world.turn(away, 0, turned_by(note, "confirm"), VOTERS)
    after = hosted(world, away)
    assert after.voids
    assert after.replica.log.faulty
    assert (after.commit, after.replica.published) == (told, told)
    ends: list[tuple[int, int]] = []
    world.fetch(away, 0, told, 1 << 20, lambda frames, commit, base: ends.append((len(frames), commit)))
    assert ends == [(0, told)], "nothing is read that may be void, and nothing is taken back"


def test_whoever_waits_hears_that_nobody_knows_and_nothing_is_taken_in_the_old_protocol() -> None:
    world, leader = led_world()
    note = ended(world, leader)
    assert [reply.outcome for reply in propose(world, leader, b"two")] == [Outcome.BUSY]
    replies: list[Reply] = []
    hosted(world, leader).expect(replies.append)
    world.turn(leader, 0, turned_by(note, "raft"), VOTERS)
    assert [reply.outcome for reply in replies] == [Outcome.UNKNOWN]


def test_generations_do_not_hear_each_other_and_the_new_one_goes_on_alone() -> None:
    world, leader = led_world()
    note = ended(world, leader)
    left = next(node for node in world.nodes if node != leader)
    for node in world.nodes:
        if node != left:
            world.turn(node, 0, turned_by(note, "raft"), VOTERS)
    world.run(world.now + 2.0)
    assert hosted(world, left).record.turn == 0
    assert hosted(world, left).replica.log.head == note.barrier
    (new,) = [node for node in world.leaders(0) if hosted(world, node).record.turn == AT]
    replies = propose(world, new, b"three")
    world.run(world.now + 1.0)
    assert [reply.outcome for reply in replies] == [Outcome.SETTLED]
    world.turn(left, 0, turned_by(note, "raft"), VOTERS)
    world.run(world.now + 2.0)
    assert hosted(world, left).replica.commit == hosted(world, new).replica.commit


def test_a_power_loss_leaves_a_copy_as_it_was_or_turned_with_nothing_above_the_barrier() -> None:
    world, leader = led_world()
    note = ended(world, leader)
    world.crash(leader)
    while not world.leaders(0):
        world.run(world.now + 0.1)
    world.run(world.now + 0.5)
    found = set()
    for node in (each for each in world.nodes if each != leader):
        assert hosted(world, node).replica.log.head.offset > note.barrier.offset, (
            "the next leader's first entry"
        )
        world.turn(node, 0, turned_by(note, "isr"), VOTERS)
        world.power_loss(node)
        world.start(node)
        copy = hosted(world, node)
        is_turned = copy.record.turn == AT
        assert copy.record.protocol == ("isr" if is_turned else "raft")
        if is_turned:
            assert copy.replica.log.head == note.barrier
        assert copy.replica.log.holds(note.barrier)
        found.add(is_turned)
    assert found
