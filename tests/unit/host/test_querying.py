"""Tables on real replicas of `confirm` and of `raft`: written, read at every level, rolled back, restarted."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from quorate.batch import encode_records
from quorate.core import commands, confirm, raft
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.host import Host, HostSettings, Parcel, ReplicaRecord
from quorate.host.querying import Consistency, query
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.sim.disk import SimDisk
from quorate.storage.settings import TINY
from quorate.tables import Column, CreateTable, Level, Replace, Table, Transaction, Type
from tests.unit.host.test_host import PARTITIONS, VOTERS, Trio

PARTITION = PARTITIONS[0]
KV = Table("kv", (Column("k", Type.INT), Column("v", Type.STR)), ("k",))


class Group(Trio):
    """Three replicas of one table group; nodes can be cut off, and can be restarted."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.cut_off: set[int] = set()
        self.disks: dict[int, SimDisk] = {}
        self.transactions = 0
        super().__init__()
        self.run(lambda: self.leader(PARTITION) is not None)

    def start(self, node: int) -> Host:
        disk = self.disks.get(node) or SimDisk(Random(node), lambda _, finish: self.waiting.append(finish))
        self.disks[node] = disk
        tuning = confirm.Tuning(election_timeout_s=0.5, snapshot_every=0, alone_timeouts=1000)
        settings = HostSettings(store=TINY, confirm=tuning, raft=raft.Tuning(election_timeout_s=0.5))

        def send(target: int, parcel: Parcel) -> None:
            if not {node, target} & self.cut_off:
                self.send(target, parcel)

        host = Host(node, disk, settings, send=send, rng=Random(node))
        host.open(self.now)
        record = ReplicaRecord(self.protocol, Member(node, 1), VOTERS, purpose="tables")
        host.add(self.now, PARTITION, record)
        return host

    def restart(self, node: int) -> None:
        self.hosts[node].store.close()
        self.disks[node].crash()
        self.hosts[node] = self.start(node)

    def lead(self) -> int:
        leader = self.leader(PARTITION)
        assert leader is not None
        return leader

    def ask(self, node: int, *operations: Any) -> list[Reply]:
        self.transactions += 1
        payload = encode(Transaction(self.transactions.to_bytes(16, "big"), operations))
        replies: list[Reply] = []
        self.hosts[node].propose(self.now, PARTITION, [payload], replies.append)
        self.settle()
        return replies

    def tell(self, node: int, *operations: Any) -> Reply:
        replies = self.ask(node, *operations)
        self.run(lambda: bool(replies))
        return replies[0]

    def look(
        self, node: int, consistency: Consistency = Consistency.COMMITTED, offset: int = -1
    ) -> tuple[Reply, Any]:
        found: list[tuple[Reply, Any]] = []
        query(
            self.hosts[node],
            self.now,
            PARTITION,
            rows,
            lambda *answer: found.append(answer),
            consistency=consistency,
            offset=offset,
        )
        self.run(lambda: bool(found))
        return found[0]


def rows(machine: Tables, level: Level) -> list[Any]:
    return [row.values for row in machine.scan("kv", level=level)]


def replace(key: int, value: str) -> Replace:
    return Replace("kv", (key, value))


@pytest.fixture(params=["confirm", "raft"])
def group(request: pytest.FixtureRequest) -> Group:
    made = Group(request.param)
    made.run(lambda: made.tell(made.lead(), CreateTable(KV)).outcome is Outcome.SETTLED)
    return made


@pytest.fixture
def undoing() -> Group:
    made = Group("confirm")
    made.run(lambda: made.tell(made.lead(), CreateTable(KV)).outcome is Outcome.SETTLED)
    return made


def test_rows_are_read_at_every_level_and_on_every_node(group: Group) -> None:
    leader = group.lead()
    reply = group.tell(leader, replace(1, "a"))
    assert reply.outcome is Outcome.SETTLED
    assert group.look(leader, Consistency.LINEARIZABLE)[1] == [(1, "a")]
    for node in group.hosts:
        answer, found = group.look(node, offset=reply.offset)
        assert (answer.outcome, found) == (Outcome.SETTLED, [(1, "a")])
        assert answer.offset >= reply.offset
    other = next(node for node in group.hosts if node != leader)
    assert group.look(other, Consistency.LINEARIZABLE)[0].outcome is Outcome.NOT_LEADER


def test_a_table_that_is_not_there_is_said_to_be_so(group: Group) -> None:
    found: list[tuple[Reply, Any]] = []

    def ask(machine: Tables, level: Level) -> Any:
        return machine.scan("nothing", level=level)

    query(group.hosts[1], group.now, PARTITION, ask, lambda *answer: found.append(answer))
    ((reply, nothing),) = found
    assert (reply.outcome, nothing) == (Outcome.REFUSED, None)
    assert "nothing" in reply.why


@pytest.mark.behaviour("TT-3")
def test_what_is_not_settled_is_seen_locally_only_and_goes_when_it_is_rolled_back(undoing: Group) -> None:
    group = undoing
    leader = group.lead()
    assert group.tell(leader, replace(1, "a")).outcome is Outcome.SETTLED
    group.cut_off = {node for node in group.hosts if node != leader}
    waiting = group.ask(leader, replace(1, "b"))
    assert waiting == []
    assert group.look(leader, Consistency.LOCAL)[1] == [(1, "b")]
    assert group.look(leader)[1] == [(1, "a")]
    rolled_back: list[Reply] = []
    group.hosts[leader].command(group.now, PARTITION, commands.RollBack, rolled_back.append)
    group.settle()
    assert (rolled_back, waiting) == ([], [])
    assert group.look(leader, Consistency.LOCAL)[1] == [(1, "a")]
    group.cut_off = set()
    group.run(lambda: bool(rolled_back))
    assert [reply.outcome for reply in rolled_back + waiting] == [Outcome.SETTLED, Outcome.ROLLED_BACK]
    group.run(lambda: all(group.look(node, offset=rolled_back[0].offset) for node in group.hosts))
    assert [group.look(node)[1] for node in group.hosts] == [[(1, "a")]] * 3


@pytest.mark.behaviour("TT-22")
def test_undo_outlives_a_restart(undoing: Group) -> None:
    """A former leader comes back with what nobody else has, shows it locally, and takes it back."""
    group = undoing
    leader = group.lead()
    assert group.tell(leader, replace(1, "a")).outcome is Outcome.SETTLED
    group.cut_off = {leader}
    group.ask(leader, replace(1, "b"))
    group.restart(leader)
    group.settle()
    assert group.look(leader, Consistency.LOCAL)[1] == [(1, "b")]
    others = [node for node in group.hosts if node != leader]

    def led() -> bool:
        return any(group.hosts[node].hosted[PARTITION].replica.role.name == "leader" for node in others)

    group.run(led)
    successor = next(
        node for node in others if group.hosts[node].hosted[PARTITION].replica.role.name == "leader"
    )
    group.run(lambda: group.tell(successor, replace(2, "c")).outcome is Outcome.SETTLED)
    group.cut_off = set()
    wanted = [(1, "a"), (2, "c")]
    group.run(lambda: group.look(leader, Consistency.LOCAL)[1] == wanted)
    assert group.look(leader)[1] == wanted


def test_what_is_no_transaction_never_gets_into_the_log(group: Group) -> None:
    """Every copy would be stuck at it."""
    leader = group.lead()
    host = group.hosts[leader]
    head = host.hosted[PARTITION].replica.log.head
    replies: list[Reply] = []
    for payload in (encode_records([(None, b"x")]), encode_records([(None, b"x"), (None, b"y")])):
        host.propose(group.now, PARTITION, [payload], replies.append)
    group.settle()
    assert [reply.outcome for reply in replies] == [Outcome.REFUSED] * 2
    assert host.hosted[PARTITION].replica.log.head == head
