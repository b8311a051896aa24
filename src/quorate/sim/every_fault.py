"""Every single fault that a disk can have, one after the other, on a small cluster at rest.

A few entries are written to three nodes, some overwritten, some behind a snapshot; then everything is idle
and the files of every node are kept. For each fault (a byte flipped, a file cut short, a frame zeroed or
exchanged with its neighbour) one node gets the damaged file, all three are started, and three things must
hold: nobody ever reads anything but what was settled; nothing settled is lost, since two good copies are
left; and the damaged node becomes whole again.

Of `confirm`, some of it is void, and nobody ever reads that either, though the damage hide what says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

import msgspec

from quorate.core import commands, confirm
from quorate.core.effects import Reply
from quorate.core.entry import Kind, Span
from quorate.core.raft import Tuning
from quorate.host import HostSettings
from quorate.host.detector import DetectorSettings
from quorate.sim.chance import stream
from quorate.sim.disk import SimDisk, SimDiskSettings
from quorate.sim.invariants import Invariants
from quorate.sim.oracle import Oracle
from quorate.sim.setup import Setup
from quorate.sim.tunables import Tunables
from quorate.sim.workload import Manners, Workload
from quorate.sim.world import World
from quorate.storage.errors import StoreError
from quorate.storage.frame import Frame, frames_in
from quorate.storage.settings import KIB, TINY

SEED = 11
VICTIM = 1
PACE_S = 0.1
PATIENCE_S = 60.0
READ_BYTES = 1 << 16

TIMES = {
    "election_timeout_s": PACE_S,
    "heartbeat_s": PACE_S / 5,
    "snapshot_every": 24,
    "keep_behind": 16,
    "repair_retry_s": PACE_S / 2,
}
TUNABLES = Tunables(
    pace_s=PACE_S,
    partitions_count=2,
    disk=SimDiskSettings(latency_min=0.0001, latency_max=0.0005),
    host=HostSettings(
        store=msgspec.structs.replace(
            TINY,
            journal_bytes=8 * KIB,
            marks_bytes=4 * KIB,
            align_bytes=64,
            journal_entry_max=300,
            segment_bytes=1 * KIB,
            mark_delay_s=PACE_S / 10,
        ),
        raft=msgspec.convert(TIMES, Tuning),
        confirm=msgspec.convert(TIMES, confirm.Tuning),
        detector=DetectorSettings(ping_s=PACE_S / 2, suspect_s=PACE_S * 2),
    ),
    manners=Manners(
        clients_count=2, pause_s=PACE_S / 5, value_bytes_max=60, large_share=0.1, large_bytes=400
    ),
)
SETUP = Setup(SEED, TUNABLES, ((1, 2, 3), (1, 2, 3)), ((), ()))


class Given(msgspec.Struct):
    """The cluster at rest."""

    setup: Setup
    files: dict[int, dict[str, bytes]]
    """What lies on each node's disk."""
    settled: list[dict[int, bytes]]
    """Of each partition: first offset → payload of every settled entry of records that was still kept."""
    commits: list[int]


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong with one file."""

    file: str
    kind: str
    at: int
    length: int = 1
    other: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.kind} {self.length} at {self.at}"

    def done_to(self, content: bytes) -> bytes:
        changed = bytearray(content)
        if self.kind == "flip":
            changed[self.at] ^= 1 << (self.at % 8)
        elif self.kind == "cut":
            del changed[self.at :]
        elif self.kind == "zero":
            changed[self.at : self.at + self.length] = bytes(self.length)
        else:
            one, two = (
                content[self.at : self.at + self.length],
                content[self.other : self.other + self.length],
            )
            changed[self.at : self.at + self.length], changed[self.other : self.other + self.length] = (
                two,
                one,
            )
        return bytes(changed)


def make(protocol: str = "raft") -> Given:
    """Write, elect, overwrite, snapshot, rest; of `confirm`, roll back."""
    setup = msgspec.structs.replace(SETUP, protocol=protocol)
    invariants = Invariants(2)
    oracle = Oracle(2)
    world = World(setup, watch=invariants)
    workload = Workload(SEED, world, oracle, TUNABLES.manners, setup.holders)
    for number in world.nodes:
        world.start(number)
    workload.begin()
    world.run(1.0)
    leader = (world.leaders(0) or [1])[0]
    world.crash(leader)
    world.run(1.6)
    world.start(leader)
    world.run(2.2)
    if protocol == "confirm":
        _roll_back(world, workload)
    workload.close()
    _until(world, lambda: not _unready(world, [0, 0]), "the cluster does not come to rest")
    world.run(world.now + 3 * PACE_S)
    commits = [_commit(world, partition) for partition in range(2)]
    settled: list[dict[int, bytes]] = [{}, {}]
    for partition, known in enumerate(settled):
        for number in world.nodes:
            for offset, payload in _read(world, number, partition).items():
                assert known.setdefault(offset, payload) == payload
    files = {number: node.disk.durable_files() for number, node in world.nodes.items()}
    for number, node in world.nodes.items():
        # An old snapshot that was removed may come back with the power; nothing needs it, and nothing minds.
        seen = {name: node.disk.content(name) for name in node.disk.files()}
        assert seen.items() <= files[number].items(), "a cluster at rest has flushed everything"
    return Given(setup, files, settled, commits)


def _roll_back(world: World, workload: Workload) -> None:
    """What two clients have just written is taken back, on every partition."""
    answers: list[Reply] = []
    for partition in (0, 1):
        for client in workload.clients:
            client.leaders[partition] = (world.leaders(partition) or [1])[0]
            client.pipelines = []
            client.propose(partition)
    while not all(_unsettled(world, partition) for partition in (0, 1)):
        assert world.happen()
    for partition in (0, 1):
        (leader,) = world.leaders(partition)
        world.command(leader, partition, commands.RollBack, answers.append)
    _until(world, lambda: len(answers) == 2, "rollbacks are not answered")


def _unsettled(world: World, partition: int) -> bool:
    """Whether the leader has records that are on no other node yet."""
    hosted = world.hosted(world.leaders(partition)[0], partition)
    assert hosted is not None
    return bool(hosted.replica.log.head.offset > hosted.replica.commit + 1)


def faults(files: dict[str, bytes]) -> Iterator[Fault]:
    """Every byte flipped, every length, every frame zeroed, every two neighbouring frames exchanged."""
    for name, content in sorted(files.items()):
        for at in range(len(content)):
            yield Fault(name, "flip", at)
        for at in range(len(content)):
            yield Fault(name, "cut", at, len(content) - at)
        places = [*frames_in(content)]
        for at, length in places:
            yield Fault(name, "zero", at, length)
        for (at, length), (other, other_length) in pairwise(places):
            if length == other_length:
                yield Fault(name, "swap", at, length, other)
            yield Fault(name, "zero", at, other + other_length - at)


def survive(given: Given, fault: Fault, victim: int = VICTIM) -> str:
    """Start the cluster with the fault. What is wrong then; empty if it is as it should be."""
    world = World(given.setup)
    for number, node in world.nodes.items():
        files = dict(given.files[number])
        if number == victim:
            files[fault.file] = fault.done_to(files[fault.file])
        node.disk = _disk(world, number, files)
    try:
        for number in world.nodes:
            if not world.start(number):
                return f"n{number} does not start"
        _until(world, lambda: not _unready(world, given.commits), "no recovery")
        _check_all(world, victim)
        _until(world, lambda: not _unready(world, given.commits), "no repair")
        return _differences(world, given)
    except (StoreError, Unfinished, AssertionError) as error:
        return f"{type(error).__name__}: {error}"


class Unfinished(Exception):
    """The world did not get where it should within its patience."""


def _disk(world: World, number: int, files: dict[str, bytes]) -> SimDisk:
    made = world.nodes[number].disk
    rng: Random = stream(SEED, "disk", number)
    return SimDisk.from_files(files, rng, made._schedule, TUNABLES.disk)


def _until(world: World, done: Callable[[], bool], what: str) -> None:
    deadline = world.now + PATIENCE_S
    while not done():
        if world.now > deadline:
            states = [
                hosted.replica.describe()
                for number in world.nodes
                for partition in range(2)
                if (hosted := world.hosted(number, partition)) is not None
            ]
            raise Unfinished(f"{what}: {'; '.join(states)}")
        world.run(world.now + PACE_S / 4)


def _unready(world: World, commits: list[int]) -> bool:
    """Whether some copy is not whole, not current or not at rest."""
    for partition, commit in enumerate(commits):
        heads = set()
        for number in world.nodes:
            hosted = world.hosted(number, partition)
            if hosted is None or hosted.replica.faulty or hosted.commit < commit:
                return True
            if hosted.applied.offset != hosted.commit or hosted.replica.log.head.offset != hosted.commit:
                return True
            heads.add(hosted.replica.log.head)
        if len(heads) != 1:
            return True
    return False


def _commit(world: World, partition: int) -> int:
    hosted = world.hosted(1, partition)
    assert hosted is not None
    return hosted.commit


def _check_all(world: World, number: int) -> None:
    found: list[list[Span]] = []
    for partition in (0, 1):
        world.check(number, partition, found.append)
    _until(world, lambda: len(found) == 2, "the check does not end")


def _read(world: World, number: int, partition: int) -> dict[int, bytes]:
    """Everything that a node shows: first offset → payload of entries of records."""
    hosted = world.hosted(number, partition)
    assert hosted is not None
    found: dict[int, bytes] = {}
    at = hosted.replica.log.base.offset + 1
    while at <= hosted.commit:
        frames = _fetch(world, number, partition, at)
        if not frames:
            raise Unfinished(f"n{number} p{partition} shows nothing at {at} of {hosted.commit}")
        for frame in frames:
            if frame.header.kind == Kind.RECORDS:
                found[frame.header.offset] = bytes(frame.payload)
            at = frame.header.last + 1
    return found


def _fetch(world: World, number: int, partition: int, at: int) -> list[Frame]:
    answers: list[list[Frame]] = []
    world.fetch(number, partition, at, READ_BYTES, lambda frames, _, __: answers.append(frames))
    _until(world, lambda: bool(answers), "a read does not end")
    return answers[0]


def _differences(world: World, given: Given) -> str:
    for partition, settled in enumerate(given.settled):
        for number in world.nodes:
            found = _read(world, number, partition)
            hosted = world.hosted(number, partition)
            assert hosted is not None
            base = hosted.replica.log.base.offset
            for offset, payload in settled.items():
                if offset > base and found.get(offset) != payload:
                    return f"n{number} p{partition}: offset {offset} is not what was settled"
            for offset in found:
                if offset <= given.commits[partition] and offset not in settled and offset > base:
                    return f"n{number} p{partition}: offset {offset} was never settled"
    return ""
