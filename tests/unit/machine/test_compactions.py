"""What everybody has made of a partition's compaction, as the image has it."""

from __future__ import annotations

from quorate.core.entry import EntryId, Member, partition_of
from quorate.core.generation import Generation
from quorate.machine.compactions import CLEANUP_POLICY, COMPACT, Compaction, LetCompact, NoteReady, Ready
from quorate.machine.metadata import ChangeEnsemble, CreateTopic, NodeInfo, NoteReached, RegisterNode, Topic
from tests.unit.machine.test_altering import ID, Log

P0 = partition_of(ID, 0)
TRIO = (1, 2, 3)
WANTED = Generation(EntryId(0, -1), 0, EntryId(1, 99), 7, -1, (99,))
SAME, OTHER = 77, 78


def made() -> Log:
    log = Log()
    ensemble = tuple(Member(node, 1) for node in TRIO)
    topic = Topic("orders", ID, "raft", (ensemble,), {CLEANUP_POLICY: COMPACT})
    nodes = [RegisterNode(NodeInfo(node, 1, "h", node)) for node in (*TRIO, 4)]
    log.settle(*nodes, CreateTopic(topic), LetCompact(((P0, WANTED, 1),)))
    return log


def holders(log: Log) -> dict[int, Member]:
    return {member.node: member for member in log.orders.holders(0)}


def known(log: Log) -> Compaction:
    return log.orders.compactions[0]


def says(log: Log, node: int, crc: int) -> bool:
    return log.settle(NoteReady((Ready(P0, WANTED.upto, holders(log)[node], crc),)))


def replaced(log: Log, nodes: tuple[int, ...]) -> None:
    log.settle(ChangeEnsemble(ID, 0, nodes))
    log.settle(NoteReached(ID, 0, log.orders.changes[0].at))


def test_what_all_holders_have_made_alike_is_agreed() -> None:
    log = made()
    for node in TRIO:
        assert known(log).agreed is None
        assert says(log, node, SAME)
    assert known(log).agreed == WANTED


def test_where_one_has_made_something_else_nothing_is_agreed_and_it_is_named() -> None:
    log = made()
    for node, crc in zip(TRIO, (SAME, OTHER, SAME), strict=True):
        says(log, node, crc)
    there = holders(log)
    assert known(log).agreed is None
    assert known(log).differs(there.values())
    assert known(log).odd(there.values()) == [there[2]]


def test_of_two_that_differ_nobody_can_tell_which_is_odd() -> None:
    log = made()
    says(log, 1, SAME)
    says(log, 2, OTHER)
    assert known(log).odd(holders(log).values()) == []


def test_with_another_copy_in_place_of_the_odd_one_it_is_agreed() -> None:
    """What a copy had made that nobody holds any more does not count, also where its node holds another now."""
    for nodes in ((1, 3, 4), (1, 2, 3)):
        log = made()
        for node, crc in zip(TRIO, (SAME, OTHER, SAME), strict=True):
            says(log, node, crc)
        replaced(log, (1, 3))
        assert not known(log).differs(holders(log).values())
        replaced(log, nodes)
        (new,) = set(nodes) - {1, 3}
        assert known(log).missing(holders(log).values()) == [holders(log)[new]]
        assert says(log, new, SAME)
        assert known(log).agreed == WANTED


def test_with_the_odd_one_gone_it_is_agreed_when_anybody_says_so_again() -> None:
    log = made()
    for node, crc in zip(TRIO, (SAME, OTHER, SAME), strict=True):
        says(log, node, crc)
    replaced(log, (1, 3))
    assert not known(log).missing(holders(log).values())
    assert says(log, 1, SAME)
    assert known(log).agreed == WANTED
