"""What a store must be like after any orders and any end of its process: a model of plain lists."""

from __future__ import annotations

from random import Random

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Partition, Snapshot
from quorate.storage.frame import Frame
from quorate.storage.settings import TINY, StoreSettings
from quorate.storage.store import RecoveredLog
from tests.unit.storage.harness import P0, P1, P2, World

PARTITIONS = (P0, P1, P2)
Entry = tuple[EntryId, int]


class Picture(msgspec.Struct, frozen=True):
    """A replica at one moment."""

    exists: bool = False
    state: bytes = b""
    base: EntryId = NOWHERE
    entries: tuple[Entry, ...] = ()

    @property
    def head(self) -> EntryId:
        return self.entries[-1][0] if self.entries else self.base

    def __str__(self) -> str:
        entries = " ".join(str(entry[0]) for entry in self.entries)
        return f"exists {self.exists} state {self.state!r} base {self.base} entries {entries}"


class Model:
    """Orders given to one store, and the pictures that they make."""

    def __init__(self, seed: int, settings: StoreSettings = TINY) -> None:
        self.rng = Random(seed)
        self.world = World(seed, settings)
        self.story: list[str] = []
        self.pictures: dict[Partition, list[Picture]] = {partition: [Picture()] for partition in PARTITIONS}
        """By order: the last one is what memory holds."""
        self.durable: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)
        """The order up to which everything was said to be durable."""
        self.order_of: dict[Partition, dict[int, int]] = {partition: {} for partition in PARTITIONS}
        self.epochs: dict[Partition, int] = dict.fromkeys(PARTITIONS, 1)
        self.commits: dict[Partition, int] = dict.fromkeys(PARTITIONS, -1)
        self.states = 0
        self.heard = 0
        self.dead = False
        self.written: dict[Partition, dict[int, Frame]] = {partition: {} for partition in PARTITIONS}
        """Every frame that was ever made, by checksum: what a peer would have."""
        self.world.open()

    # --- orders ---

    def now(self, partition: Partition) -> Picture:
        return self.pictures[partition][-1]

    def note(self, partition: Partition, picture: Picture, what: str) -> int:
        io = self.world.io(partition)
        self.pictures[partition].append(picture)
        self.order_of[partition][io] = len(self.pictures[partition]) - 1
        self.story.append(f"{PARTITIONS.index(partition)} #{io} {what}")
        return io

    def act(self, kind: int, partition: Partition, number: int) -> None:
        """One order, chosen by numbers; those that make no sense just now are left out."""
        store = self.world.store
        now = self.now(partition)
        if not now.exists:
            self.states += 1
            state = b"s%d" % self.states
            io = self.note(partition, Picture(True, state), "create")
            store.create(partition, io, state)
        elif kind < 50:
            self._append(partition, number)
        elif kind < 60:
            self._cut(partition, number)
        elif kind < 70:
            self.states += 1
            state = b"s%d" % self.states + b"x" * (number % 40)
            io = self.note(partition, msgspec.structs.replace(now, state=state), f"state {self.states}")
            store.save_state(partition, io, state)
        elif kind < 76:
            self._remove_prefix(partition, number)
        elif kind < 80:
            self._install(partition, number)
        elif kind < 84 and now.entries:
            self.commits[partition] = max(
                self.commits[partition], now.entries[number % len(now.entries)][0].offset
            )
            store.note_commit(partition, self.commits[partition])
        elif kind < 86 and number % 4 == 0:
            self.story.append(f"{PARTITIONS.index(partition)} delete")
            store.delete(partition)
            self.pictures[partition].append(Picture())
            self.commits[partition] = -1
        elif kind < 88:
            self._snapshot(partition)

    def _append(self, partition: Partition, number: int) -> None:
        now = self.now(partition)
        if number % 5 == 0:
            self.epochs[partition] += 1
        size = (0, 5, 30, 200, 700, 1500, 5000)[number // 7 % 7]
        sizes = [size] * (1 + number // 49 % 3)
        frames = self.world.frames(partition, sizes, epoch=self.epochs[partition])
        self.written[partition].update((frame.checksum, frame) for frame in frames)
        entries = (*now.entries, *map(entry_of, frames))
        io = self.note(
            partition,
            msgspec.structs.replace(now, entries=entries),
            f"append {' '.join(str(frame.header.id) for frame in frames)} of {size}",
        )
        self.world.store.append(partition, io, frames)

    def _cut(self, partition: Partition, number: int) -> None:
        now = self.now(partition)
        least = max(self.commits[partition], now.base.offset)
        left = [entry for entry in now.entries if entry[0].offset <= least]
        above = now.entries[len(left) :]
        kept = (*left, *above[: number % (len(above) + 1)])
        to = kept[-1][0] if kept else now.base
        self.epochs[partition] += 1
        io = self.note(partition, msgspec.structs.replace(now, entries=kept), f"cut to {to}")
        self.world.store.cut(partition, io, to)

    def _remove_prefix(self, partition: Partition, number: int) -> None:
        now = self.now(partition)
        settled = [at for at, entry in enumerate(now.entries) if entry[0].offset <= self.commits[partition]]
        if not settled:
            return
        at = settled[number % len(settled)]
        base = now.entries[at][0]
        picture = msgspec.structs.replace(now, base=base, entries=now.entries[at + 1 :])
        io = self.note(partition, picture, f"remove prefix to {base}")
        self.world.store.remove_prefix(partition, io, base)

    def _install(self, partition: Partition, number: int) -> None:
        now = self.now(partition)
        data = Random(number).randbytes(number % 3000)
        pieces = [data[at : at + 700] for at in range(0, len(data), 700)] or [b""]
        keep = number % 2 == 0 and bool(now.entries)
        self.epochs[partition] += 1
        last: Entry = EntryId(self.epochs[partition], now.head.offset + 1 + number % 5), number
        picture = msgspec.structs.replace(now, base=last[0], entries=())
        if keep:
            at = number // 2 % len(now.entries)
            last = now.entries[at]
            picture = msgspec.structs.replace(now, base=last[0], entries=now.entries[at + 1 :])
        for at, piece in enumerate(pieces):
            io = self.note(partition, now, f"stage {at * 700}")
            self.world.store.stage_chunk(partition, io, at * 700, piece)
        io = self.note(partition, picture, f"install {last[0]} keep {keep}")
        self.commits[partition] = max(self.commits[partition], last[0].offset)
        self.world.store.note_commit(partition, last[0].offset)
        self.world.store.install_snapshot(partition, io, Snapshot(*last, len(data)), keep=keep)

    def _snapshot(self, partition: Partition) -> None:
        now = self.now(partition)
        settled = [entry for entry in now.entries if entry[0].offset <= self.commits[partition]]
        if settled:
            last = settled[-1]
            self.story.append(f"{PARTITIONS.index(partition)} snapshot {last[0]}")
            self.world.store.save_snapshot(partition, *last, b"machine" * 50, lambda _: None)

    # --- answers ---

    def listen(self) -> None:
        answers = self.world.answers
        while self.heard < len(answers):
            answer = answers[self.heard]
            self.heard += 1
            if answer[0] == "persisted":
                partition, io = Partition(answer[1]), int(answer[2])
                order = self.order_of[partition][io]
                assert order > self.durable[partition], "completions come in order"
                self.durable[partition] = order
            elif answer[0] == "failed":
                self._failed(Partition(answer[1]), int(answer[2]), str(answer[3]))
            elif answer[0] == "fatal":
                self.dead = True
            else:
                raise AssertionError(answer)

    def _failed(self, partition: Partition, io: int, reason: str) -> None:
        """As a replica does: back to what is durable, and cut the log there."""
        order = self.order_of[partition][io]
        self.story.append(f"{PARTITIONS.index(partition)} failed #{io} {reason}")
        assert order > self.durable[partition], "what was durable cannot fail"
        assert reason == "disk full", reason
        durable = self.pictures[partition][self.durable[partition]]
        if not durable.exists:
            self.world.store.delete(partition)
            self.pictures[partition].append(Picture())
            return
        # Nothing of the failed orders can be found again, whatever happens.
        del self.pictures[partition][self.durable[partition] + 1 :]
        new = self.note(partition, durable, f"cut to {durable.head} after failure")
        self.world.store.cut(partition, new, durable.head)

    def steps(self, count: int) -> None:
        self.world.store.pump(self.world.now)
        for _ in range(count):
            if self.dead or not self.world.step():
                break
            self.listen()
            self.world.store.pump(self.world.now)

    def settle(self) -> None:
        for _ in range(100_000):
            self.steps(1)
            if self.dead:
                return
            if self.world.store.deadline() is None and not self.world._events:
                return
        raise AssertionError("the store never comes to rest")

    # --- ends ---

    def end(self, *, power: bool) -> None:
        self.story.append("power loss" if power else "crash")
        if power:
            self.world.power_loss()
        else:
            self.world.crash()
        self.heard = 0
        self.dead = False
        self.world.open()
        self.compare()

    def compare(self) -> None:
        """Every replica is as some order since the last durable one left it."""
        for partition in PARTITIONS:
            found = self.found(partition)
            possible = self.pictures[partition][self.durable[partition] :]
            assert found in possible, (
                f"{PARTITIONS.index(partition)}: found {found}\n  durable {possible[0]}\n  last {possible[-1]}"
            )
            self.pictures[partition] = [found]
            self.durable[partition] = 0
            self.order_of[partition] = {}
            self.epochs[partition] = max(self.epochs[partition], found.head.epoch) + 1

    def found(self, partition: Partition) -> Picture:
        store = self.world.store
        if partition not in store.partitions():
            return Picture()
        recovered = store.recovered(partition)
        assert not recovered.faulty
        assert not recovered.state_damaged
        assert recovered.state is not None
        frames = self.world.read(recovered.base.offset + 1, partition=partition)
        check_recovered(recovered, frames)
        return Picture(True, recovered.state, recovered.base, tuple(map(entry_of, frames)))


def check_recovered(recovered: RecoveredLog, frames: list[Frame]) -> None:
    """What is said about a log fits its frames."""
    assert recovered.head == (frames[-1].header.id if frames else recovered.base)
    for header, frame in zip(reversed(recovered.headers), reversed(frames), strict=False):
        assert header == frame.header
    assert len(recovered.headers) <= len(frames)
    assert bool(recovered.headers) == bool(frames)
    starts = []
    epoch = recovered.base.epoch
    for frame in frames:
        if frame.header.epoch > epoch:
            epoch = frame.header.epoch
            starts.append((epoch, frame.header.offset))
    assert recovered.epochs == tuple(starts)
    controls = {header.offset for header in recovered.controls}
    assert {header.offset for header in recovered.headers if header.control is not None} <= controls


def entry_of(frame: Frame) -> Entry:
    return frame.header.id, frame.checksum
