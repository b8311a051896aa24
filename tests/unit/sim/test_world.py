"""A world without chance: nodes start, messages wait, disks lose and keep what they should."""

from __future__ import annotations

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.events import ReadLevel
from quorate.core.raft import Tuning
from quorate.host import HostSettings
from quorate.sim.invariants import Invariants
from quorate.sim.run import ROOMS
from quorate.sim.setup import Setup
from quorate.sim.trace import Trace
from quorate.sim.tunables import Tunables
from quorate.sim.world import World
from quorate.storage.frame import Frame
from quorate.storage.settings import TINY

TUNABLES = Tunables(host=HostSettings(store=TINY, raft=Tuning(election_timeout_s=0.15, heartbeat_s=0.03)))


def make(*, hold: bool = False, learners: tuple[int, ...] = (), trace: Trace | None = None) -> World:
    setup = Setup(7, TUNABLES, voters=((1, 2, 3),), learners=(learners,), hold=hold)
    world = World(setup, watch=Invariants(1, ROOMS["raft"]), trace=trace)
    for number in world.nodes:
        world.start(number)
    return world


def elected(world: World) -> int:
    """Lets time pass until somebody leads."""
    for _ in range(100):
        world.run(world.now + 0.1)
        if leaders := world.leaders(0):
            return leaders[0]
    raise AssertionError("nobody was elected")


def propose(world: World, number: int, value: bytes = b"value") -> list[Reply]:
    replies: list[Reply] = []
    assert world.propose(number, 0, [encode_records([(None, value)])], replies.append)
    return replies


def values(world: World, number: int) -> list[Frame]:
    found: list[Frame] = []
    world.fetch(number, 0, 0, 1 << 20, lambda frames, commit, base: found.extend(frames))
    world.run(world.now + 0.1)
    return found


def test_leader_is_elected_and_settles_a_proposal_on_every_node() -> None:
    world = make(learners=(4,))
    replies = propose(world, elected(world))
    world.run(world.now + 1.0)
    assert [reply.outcome for reply in replies] == [Outcome.SETTLED]
    for number in world.nodes:
        assert len(values(world, number)) == 2  # the leader's first entry, and ours


def test_idle_world_comes_to_rest() -> None:
    world = make()
    elected(world)
    world.run(world.now + 2.0)
    for number in world.nodes:
        hosted = world.hosted(number, 0)
        assert hosted is not None
        assert hosted.replica.deadline() is None


def test_held_messages_wait_until_they_are_delivered_dropped_or_doubled() -> None:
    world = make(hold=True)
    for _ in range(20):
        world.elapse(1)
        world.settle()
        if world.held:
            break
    first, second = sorted(world.held)
    copy = world.duplicate(first)
    assert sorted(world.held) == [first, second, copy]
    world.drop(second)
    steps = world.steps_count
    world.deliver(first)
    world.deliver(copy)
    assert world.steps_count == steps + 2
    world.settle()
    target = {letter.target for letter in world.held.values()}
    assert target == {1}  # both answers to the candidate


def test_settling_needs_no_timer() -> None:
    world = make(hold=True)
    world.settle()
    now = world.now
    world.settle()
    assert world.now == now


def test_crash_keeps_the_disk_and_a_restart_goes_on_with_it() -> None:
    world = make()
    replies = propose(world, elected(world))
    world.run(world.now + 1.0)
    assert replies
    for number in world.nodes:
        world.crash(number)
        assert world.life(number) == 0
    for number in world.nodes:
        world.start(number)
        assert world.life(number) == 2
    propose(world, elected(world), b"after")
    world.run(world.now + 1.0)
    assert len(values(world, 1)) == 4


def test_settled_entries_survive_the_loss_of_all_power() -> None:
    world = make()
    replies = propose(world, elected(world))
    world.run(world.now + 1.0)
    assert replies[0].outcome is Outcome.SETTLED
    for number in world.nodes:
        world.power_loss(number)
    for number in world.nodes:
        world.start(number)
    elected(world)
    world.run(world.now + 1.0)
    frames = values(world, 1)
    assert any(frame.header.offset == replies[0].offset for frame in frames)


def test_wiped_node_comes_back_as_a_learner_and_catches_up() -> None:
    world = make()
    leader = elected(world)
    propose(world, leader)
    world.run(world.now + 1.0)
    victim = 1 + leader % 3
    world.wipe(victim)
    assert isinstance(world.watch, Invariants)
    world.watch.wiped(victim)
    world.start(victim)
    propose(world, elected(world), b"after")
    world.run(world.now + 2.0)
    hosted = world.hosted(victim, 0)
    assert hosted is not None
    assert not hosted.replica.is_voter
    assert len(values(world, victim)) >= 3


def test_paused_node_does_nothing_and_then_everything() -> None:
    world = make()
    leader = elected(world)
    world.pause(leader, 0.5)
    replies = propose(world, leader)
    world.run(world.now + 0.2)
    assert not replies
    world.run(world.now + 1.0)
    assert len(replies) == 1


def test_node_that_is_down_takes_no_proposals_and_no_messages() -> None:
    trace = Trace()
    world = make(trace=trace)
    elected(world)
    world.crash(2)
    assert not world.propose(2, 0, [], lambda reply: None)
    world.run(world.now + 1.0)
    lost = [happening for happening in trace.happenings if happening.what == "lost"]
    assert {happening.peer for happening in lost} == {2}


def test_failed_flush_ends_the_process_and_somebody_is_told() -> None:
    world = make()
    leader = elected(world)
    ended: list[int] = []
    world.on_stop = ended.append
    world.nodes[leader].disk.fail_next_flush()
    replies = propose(world, leader)
    world.run(world.now + 1.0)
    assert ended == [leader]
    assert world.life(leader) == 0
    assert not any(reply.outcome is Outcome.SETTLED for reply in replies)


def test_outsider_holds_a_replica_and_does_nothing_until_it_is_taken_in() -> None:
    setup = Setup(7, TUNABLES, voters=((1, 2, 3),), learners=((),), outsiders=((4,),))
    world = World(setup, watch=Invariants(1, ROOMS["raft"]))
    for number in world.nodes:
        world.start(number)
    leader = elected(world)
    outsider = world.hosted(4, 0)
    assert outsider is not None
    assert outsider.replica.log.head.offset == -1
    replies: list[Reply] = []
    everybody = tuple(Member(number, 1) for number in range(1, 5))
    assert world.change(leader, 0, replies.append, ensemble=everybody)
    world.run(world.now + 1.0)
    assert [reply.outcome for reply in replies] == [Outcome.SETTLED]
    assert outsider.replica.is_voter


def test_read_is_told_up_to_where_its_node_shows_what_is_settled() -> None:
    world = make()
    leader = elected(world)
    propose(world, leader)
    world.run(world.now + 1.0)
    replies: list[Reply] = []
    world.read(leader, 0, ReadLevel.LINEARIZABLE, replies.append)
    world.read(1 + leader % 3, 0, ReadLevel.AT_OFFSET, replies.append, 1)
    world.run(world.now + 1.0)
    assert [(reply.outcome, reply.offset) for reply in replies] == [(Outcome.SETTLED, 1)] * 2
    assert world.applied(leader, 0) == 1


def test_nodes_differ_in_their_time_of_day_and_in_how_much_they_are_wanted() -> None:
    setup = Setup(7, TUNABLES, voters=((1, 2, 3),), learners=((),), priorities=((2, 3),))
    world = World(setup)
    for number in world.nodes:
        world.start(number)
    shown = {node.wall.local(1.0) for node in world.nodes.values()}
    assert len(shown) == 3
    wanted = [world.hosted(number, 0).replica.config.tuning.priority for number in world.nodes]  # type: ignore[union-attr]
    assert wanted == [1, 3, 1]


def test_one_thing_happens_at_a_time() -> None:
    world = make()
    events, steps = world.events_count, world.steps_count
    while world.steps_count == steps:
        before = world.events_count
        assert world.happen()
        assert world.events_count == before + 1
    assert world.steps_count - steps <= world.events_count - events
