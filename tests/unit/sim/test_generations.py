"""What the account of a generation knows of those before it."""

from __future__ import annotations

import pytest

from quorate.core.commands import Turn
from quorate.core.effects import Reply
from quorate.core.entry import EntryId, Member, Span
from quorate.core.invariant import Violated
from quorate.core.raft import Tuning
from quorate.host import Hosted, HostSettings
from quorate.host.turning import reached
from quorate.machine.turning import Turned
from quorate.sim.generations import Generations
from quorate.sim.run import ROOMS
from quorate.sim.setup import Setup
from quorate.sim.tunables import Tunables
from quorate.sim.world import World
from quorate.storage.settings import TINY
from tests.unit.host.test_turning import propose

TUNABLES = Tunables(host=HostSettings(store=TINY, raft=Tuning(election_timeout_s=0.15, heartbeat_s=0.03)))
VOTERS = tuple(Member(node, 1) for node in (1, 2, 3))


class Stage:
    """Whoever led is cut off with something that nobody else has; the others elect another, and turn."""

    def __init__(self) -> None:
        self.generations = Generations(1, ROOMS, "raft")
        self.world = world = World(Setup(7, TUNABLES, ((1, 2, 3),), ((),)), watch=self.generations)
        for number in world.nodes:
            world.start(number)
        self.old = self._leader_but(0)
        propose(world, self.old, b"one")
        world.run(world.now + 1.0)
        world.network.cut(tuple((self.old, other) for other in world.nodes if other != self.old))
        propose(world, self.old, b"only here")
        world.run(world.now + 1.0)
        log = self.copy.replica.log
        self.tail: EntryId = log.head
        assert self.tail.offset > self.copy.replica.commit
        new = self._leader_but(self.old)
        world.command(new, 0, lambda request: Turn(request, 9), self._answered)
        world.run(world.now + 1.0)
        note = reached(self._hosted(new))
        assert note is not None
        self.turned = Turned(note.at, "confirm", note.barrier, note.epoch, new)
        self.generations.begin(0, self.turned, VOTERS)

    def _leader_but(self, other: int) -> int:
        world = self.world
        while not (found := [node for node in world.leaders(0) if node != other]):
            world.run(world.now + 0.1)
        return found[0]

    def _hosted(self, node: int) -> Hosted:
        found = self.world.hosted(node, 0)
        assert found is not None
        return found

    def _answered(self, reply: Reply) -> None:
        """It is seen in the log."""

    @property
    def copy(self) -> Hosted:
        return self._hosted(self.old)

    def damage(self) -> Span:
        """What is settled last cannot be read, and nothing above it."""
        log = self.copy.replica.log
        span = Span(log.position(self.copy.replica.commit - 1), log.head)
        log.mark_faulty(span)
        return span

    def turn(self) -> None:
        self.world.turn(self.old, 0, self.turned, VOTERS)
        assert self.copy.record.turn == 9


def test_a_tail_that_cannot_be_read_is_known_to_the_generation_that_will_give_it_up() -> None:
    stage = Stage()
    span = stage.damage()
    stage.turn()
    assert stage.copy.replica.log.head == stage.tail, (
        "nobody knows where an entry ends before the damage does"
    )
    account = stage.generations.account(0)
    entries = account.chain(0, stage.tail, above=span.before.offset)
    assert [entry[2] for entry in entries] == list(range(span.first_offset, stage.tail.offset + 1))


def test_a_tail_whose_name_has_another_entry_by_now_is_seen() -> None:
    stage = Stage()
    stage.damage()
    account = stage.generations.account(0)
    account._entries[0][stage.tail.epoch, stage.tail.offset] = (1, 0, 1, 0, None)
    with pytest.raises(Violated, match="log-matching"):
        stage.turn()


def test_the_tail_of_a_copy_that_has_not_turned_is_known_to_its_own_generation() -> None:
    stage = Stage()
    settled = stage.copy.replica.commit
    chain = stage.generations.of(0, 0).chain(0, stage.tail, above=settled)
    assert [entry[2] for entry in chain] == list(range(settled + 1, stage.tail.offset + 1))


def test_what_a_copy_came_to_lack_before_it_turned_is_known_though_the_store_had_said_so() -> None:
    stage = Stage()
    stage.generations.of(0, 0).shadows[stage.old, 0].missing = 1
    stage.turn()
    assert stage.generations.account(0).shadows[stage.old, 0].missing == 1


def test_nothing_of_an_earlier_generation_is_known_that_can_be_read() -> None:
    stage = Stage()
    stage.turn()
    assert stage.copy.replica.log.head.offset < stage.tail.offset
    assert not stage.generations.account(0).knows(0, stage.tail)
