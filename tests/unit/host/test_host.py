"""Several replicas over one disk, driven by hand: three hosts, simulated disks, and a queue for a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from quorate.batch import decode_records, encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Partition, partition_of
from quorate.host import Host, Hosted, HostSettings, Parcel, ReplicaRecord
from quorate.sim.disk import SimDisk
from quorate.storage.disk import Done, Operation
from quorate.storage.frame import Frame
from quorate.storage.settings import TINY

VOTERS = tuple(Member(node, 1) for node in (1, 2, 3))
PARTITIONS = [partition_of(bytes(16), number) for number in range(3)]


class Trio:
    """Three nodes without sockets, threads or clocks: whatever is under way happens in `settle`."""

    def __init__(
        self, changed: Callable[[Hosted], None] = lambda _: None, *, settings: HostSettings | None = None
    ) -> None:
        self.now = 0.0
        self.changed = changed
        self.settings = settings or HostSettings(store=TINY)
        self.told: list[Parcel] = []
        """What was sent."""
        self.waiting: list[Callable[[], None]] = []
        self.hosts: dict[int, Host] = {}
        for node in (1, 2, 3):
            self.hosts[node] = self.start(node)

    def start(self, node: int) -> Host:
        disk = SimDisk(Random(node), lambda _, finish: self.waiting.append(finish))
        host = Host(
            node,
            disk,
            self.settings,
            send=self.send,
            rng=Random(node),
            settled=self.changed,
            led=self.changed,
        )
        host.open(self.now)
        for partition in PARTITIONS:
            host.add(self.now, partition, ReplicaRecord("raft", Member(node, 1), VOTERS))
        return host

    def send(self, target: int, parcel: Parcel) -> None:
        self.told.append(parcel)
        self.waiting.append(lambda: self.hosts[target].receive(self.now, parcel))

    def settle(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def run(self, until: Callable[[], bool]) -> None:
        """Let deadlines come, one after the other, until something is true."""
        self.settle()
        for _ in range(500):
            if until():
                return
            due = min(due for host in self.hosts.values() if (due := host.deadline()) is not None)
            self.now = max(self.now, due)
            for host in self.hosts.values():
                host.tick(self.now)
            self.settle()
        raise AssertionError("it does not come true")

    def leader(self, partition: Partition) -> int | None:
        leaders = [
            node for node, host in self.hosts.items() if host.hosted[partition].replica.role.name == "leader"
        ]
        return leaders[0] if leaders else None

    def propose(self, node: int, partition: Partition, value: bytes) -> list[Reply]:
        replies: list[Reply] = []
        self.hosts[node].propose(self.now, partition, [encode_records([(None, value)])], replies.append)
        self.settle()
        return replies

    def read(self, node: int, partition: Partition) -> list[bytes]:
        found: list[list[Frame]] = []
        self.hosts[node].fetch(self.now, partition, 0, 1 << 20, lambda frames, _: found.append(frames))
        self.settle()
        return [
            record.value or b""
            for frame in found[0]
            if not frame.header.kind
            for record in decode_records(frame.payload)
        ]


@pytest.fixture
def trio() -> Trio:
    made = Trio()
    made.run(lambda: all(made.leader(partition) is not None for partition in PARTITIONS))
    return made


@pytest.mark.behaviour("YB-1")
def test_every_partition_is_a_group_of_its_own(trio: Trio) -> None:
    first, second, _ = PARTITIONS
    leader = trio.leader(first)
    assert leader is not None
    (reply,) = trio.propose(leader, first, b"only here")
    assert reply.outcome is Outcome.SETTLED
    assert trio.read(leader, first) == [b"only here"]
    assert trio.read(leader, second) == []
    heads = {partition: trio.hosts[leader].hosted[partition].replica.log.head for partition in PARTITIONS}
    assert heads[first].offset == 1
    assert heads[second].offset == 0


@pytest.mark.behaviour("YB-2")
def test_only_the_leader_takes_writes_and_others_say_who_it_is(trio: Trio) -> None:
    partition = PARTITIONS[0]
    leader = trio.leader(partition)
    assert leader is not None
    other = next(node for node in trio.hosts if node != leader)
    (reply,) = trio.propose(other, partition, b"x")
    assert (reply.outcome, reply.leader) == (Outcome.NOT_LEADER, leader)


def test_readers_see_settled_entries_on_every_node(trio: Trio) -> None:
    partition = PARTITIONS[0]
    leader = trio.leader(partition)
    assert leader is not None
    for value in (b"a", b"b", b"c"):
        trio.propose(leader, partition, value)
    trio.run(lambda: all(host.hosted[partition].commit == 3 for host in trio.hosts.values()))
    assert [trio.read(node, partition) for node in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3


def test_one_turn_of_many_replicas_is_one_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit over partitions: three replicas stand for election at once and save their votes as one."""
    waiting: list[Callable[[], None]] = []
    disk = SimDisk(Random(1), lambda _, finish: waiting.append(finish))
    host = Host(1, disk, HostSettings(store=TINY), send=lambda _, parcel: None, rng=Random(1))
    host.open(0.0)
    for partition in PARTITIONS:
        host.add(0.0, partition, ReplicaRecord("raft", Member(1, 1), (Member(1, 1),)))
    while waiting:
        waiting.pop(0)()
    lanes: list[str] = []
    submit = disk.submit

    def watched(lane: str, operations: Sequence[Operation], done: Done) -> None:
        lanes.append(lane)
        submit(lane, operations, done)

    monkeypatch.setattr(disk, "submit", watched)
    host.tick(10.0)
    roles = [hosted.replica.role.name for hosted in host.hosted.values()]
    assert roles == ["candidate"] * 3
    assert lanes.count("journal") == 1


def test_idle_groups_have_no_deadline(trio: Trio) -> None:
    trio.run(
        lambda: all(
            hosted.replica.deadline() is None
            for host in trio.hosts.values()
            for hosted in host.hosted.values()
        )
    )


def test_a_removed_replica_answers_who_waits_and_leaves_nothing_behind(trio: Trio) -> None:
    """Its flush, its messages and its deadline are still under way when it goes."""
    partition, other, _ = PARTITIONS
    leader = trio.leader(partition)
    assert leader is not None
    host = trio.hosts[leader]
    replies: list[Reply] = []
    host.propose(trio.now, partition, [encode_records([(None, b"under way")])], replies.append)
    host.remove(trio.now, partition)
    assert [reply.outcome for reply in replies] == [Outcome.UNKNOWN]
    trio.settle()
    assert partition not in host.hosted
    assert partition not in host.store.partitions()
    trio.run(lambda: trio.leader(other) is not None)
    survivor = trio.leader(other)
    assert survivor is not None
    (reply,) = trio.propose(survivor, other, b"as if nothing had been")
    assert reply.outcome is Outcome.SETTLED


def test_whoever_watches_hears_of_leaders_and_of_what_is_settled() -> None:
    heard: list[tuple[int, int]] = []
    trio = Trio(lambda hosted: heard.append((hosted.leader, hosted.commit)))
    partition = PARTITIONS[0]
    trio.run(lambda: trio.leader(partition) is not None)
    assert any(leader for leader, _ in heard)
    heard.clear()
    leader = trio.leader(partition)
    assert leader is not None
    trio.propose(leader, partition, b"x")
    assert (leader, 1) in heard
