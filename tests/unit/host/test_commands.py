"""Reads, changes of membership and transfers, through a host: asked, carried out, and answered once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Membership
from quorate.core.events import ReadLevel
from tests.unit.host.test_host import PARTITIONS, VOTERS, Trio

PARTITION = PARTITIONS[0]


@pytest.fixture
def trio() -> Trio:
    made = Trio()
    made.run(lambda: made.leader(PARTITION) is not None)
    made.run(lambda: all(host.hosted[PARTITION].commit >= 0 for host in made.hosts.values()))
    return made


def leader(trio: Trio) -> int:
    found = trio.leader(PARTITION)
    assert found is not None
    return found


def asked(trio: Trio, ask: Callable[[list[Reply]], None]) -> Reply:
    replies: list[Reply] = []
    ask(replies)
    trio.run(lambda: bool(replies))
    trio.settle()
    (reply,) = replies
    return reply


def read(trio: Trio, node: int, level: ReadLevel, offset: int = -1) -> Reply:
    def ask(replies: list[Reply]) -> None:
        trio.hosts[node].read(trio.now, PARTITION, level, replies.append, offset=offset)

    return asked(trio, ask)


@pytest.mark.parametrize("level", [ReadLevel.LINEARIZABLE, ReadLevel.LEASE])
def test_a_read_is_answered_with_what_the_machine_has_applied(trio: Trio, level: ReadLevel) -> None:
    node = leader(trio)
    trio.propose(node, PARTITION, b"x")
    reply = read(trio, node, level)
    assert (reply.outcome, reply.offset) == (Outcome.SETTLED, 1)
    assert trio.hosts[node].hosted[PARTITION].applied.offset >= 1


def test_a_read_at_an_offset_waits_on_a_follower_until_it_is_applied_there(trio: Trio) -> None:
    node = leader(trio)
    other = next(number for number in trio.hosts if number != node)
    trio.propose(node, PARTITION, b"x")
    reply = read(trio, other, ReadLevel.AT_OFFSET, 1)
    assert (reply.outcome, reply.offset) == (Outcome.SETTLED, 1)
    assert trio.hosts[other].hosted[PARTITION].applied.offset >= 1


def test_a_read_that_waits_in_vain_is_answered_too(trio: Trio) -> None:
    reply = read(trio, leader(trio), ReadLevel.AT_OFFSET, 99)
    assert reply.outcome is Outcome.TIMED_OUT


@pytest.mark.behaviour("YB-12")
def test_a_change_is_answered_when_it_is_settled_and_lasts_through_a_restart(trio: Trio) -> None:
    node = leader(trio)
    stays = next(number for number in trio.hosts if number != node)
    ensemble = tuple(sorted((Member(node, 1), Member(stays, 1))))

    def ask(replies: list[Reply]) -> None:
        trio.hosts[node].change(trio.now, PARTITION, replies.append, ensemble=ensemble)

    assert asked(trio, ask).outcome is Outcome.SETTLED
    trio.run(lambda: trio.hosts[stays].hosted[PARTITION].standing.membership == Membership(ensemble))
    assert trio.hosts[node].hosted[PARTITION].replica.membership == Membership(ensemble)


@pytest.mark.behaviour("YB-15")
def test_a_transfer_is_answered_when_the_heir_leads(trio: Trio) -> None:
    node = leader(trio)
    heir = next(number for number in trio.hosts if number != node)

    def ask(replies: list[Reply]) -> None:
        trio.hosts[node].transfer(trio.now, PARTITION, replies.append, to=heir)

    reply = asked(trio, ask)
    assert (reply.outcome, reply.leader) == (Outcome.SETTLED, heir)
    assert trio.hosts[heir].hosted[PARTITION].replica.role.name == "leader"


def test_commands_at_the_wrong_node_are_sent_to_the_leader(trio: Trio) -> None:
    node = leader(trio)
    other = next(number for number in trio.hosts if number != node)
    replies: list[Reply] = []
    host = trio.hosts[other]
    host.change(trio.now, PARTITION, replies.append, ensemble=VOTERS)
    host.transfer(trio.now, PARTITION, replies.append, to=other)
    host.read(trio.now, PARTITION, ReadLevel.LINEARIZABLE, replies.append)
    assert [(reply.outcome, reply.leader) for reply in replies] == [(Outcome.NOT_LEADER, node)] * 3


def test_a_removed_replica_answers_whoever_waits_for_a_read_or_a_command(trio: Trio) -> None:
    node = leader(trio)
    replies: list[Reply] = []
    host = trio.hosts[node]
    host.read(trio.now, PARTITION, ReadLevel.LINEARIZABLE, replies.append)
    host.read(trio.now, PARTITION, ReadLevel.AT_OFFSET, replies.append, offset=50)
    host.change(trio.now, PARTITION, replies.append, ensemble=VOTERS[:2])
    host.transfer(trio.now, PARTITION, replies.append, to=next(n for n in trio.hosts if n != node))
    host.remove(trio.now, PARTITION)
    trio.settle()
    assert [reply.outcome for reply in replies] == [Outcome.UNKNOWN] * 4
