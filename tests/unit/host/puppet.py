"""A host whose replica does as it is told, and a machine that watches over the contract of those that undo."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from quorate.batch import encode_records
from quorate.core import commands, confirm, effects, events
from quorate.core.entry import Control, EntryId, Header, Kind, Member, Rollback, Snapshot, partition_of
from quorate.core.log import LogView
from quorate.host import Host, HostSettings, Parcel, ReplicaRecord
from quorate.host import replicas as replicas_module
from quorate.machine import CannotApply
from quorate.sim.disk import SimDisk
from quorate.storage.settings import TINY, StoreSettings

PARTITION = partition_of(bytes(16), 0)
ME = Member(1, 1)
POISON = b"poison"


class Config(msgspec.Struct, frozen=True):
    me: Member
    voters: tuple[Member, ...]
    learners: tuple[Member, ...]
    tuning: Any
    preferred: int
    quorums: Any


class SavedState(msgspec.Struct, frozen=True):
    epoch: int = 0


class Do(msgspec.Struct, frozen=True):
    """A command: change the log like this, and order that."""

    request: int
    act: Callable[[Puppet], list[effects.Effect]]


class Puppet:
    """Looks like a replica to its host."""

    handlers: ClassVar[dict[type, Any]] = {events.ApplyFailed: None}

    def __init__(self, config: Config, _: Random) -> None:
        self.config = config
        self.leader = 0
        self.epoch = 1
        self.leads_from: int | None = None
        self.peers: tuple[int, ...] = ()
        self.snapshot: Snapshot | None = None
        self.role = SimpleNamespace(name="puppet")
        self.log: LogView
        self.io = 0
        self.heard: list[events.Event] = []
        self.installs: list[tuple[int, Snapshot]] = []

    def step(self, _: float, event: events.Event) -> list[effects.Effect]:
        self.heard.append(event)
        if isinstance(event, events.Started):
            self.log = LogView(event.recovered)
            self.snapshot = event.recovered.snapshot
        elif isinstance(event, events.Commanded) and isinstance(event.command, commands.JoinAgain):
            return [effects.Reply(event.command.request, effects.Outcome.SETTLED)]
        elif isinstance(event, events.Commanded):
            ordered: list[effects.Effect] = event.command.act(self)
            return ordered
        elif isinstance(event, events.Proposed):
            (header,) = event.headers
            place = {"epoch": self.epoch, "offset": self.log.head.offset + 1}
            return self.append(msgspec.structs.replace(header, **place))
        elif isinstance(event, events.SnapshotTaken):
            self.snapshot = event.snapshot
        elif isinstance(event, events.Persisted):
            while self.installs and self.installs[0][0] <= event.io:
                self.snapshot = self.installs.pop(0)[1]
                self.log.restart_after(self.snapshot.last)
        return []

    def deadline(self) -> float | None:
        return None

    def append(self, header: Header) -> list[effects.Effect]:
        self.log.append((header,))
        return [effects.Append(self.next_io(), (header,))]

    def next_io(self) -> int:
        self.io += 1
        return self.io

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.heard if type(event) is kind]


class Watchful:
    """Remembers entries, and asserts that it is driven as machines that undo are to be driven."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, int, bytes]] = []
        """(epoch, offset, value) of records."""
        self.upto = -1
        self.stack: list[tuple[Header, bytes, list[int]]] = []
        """Unsettled entries; of a Rollback, which offsets it took back."""
        self.taken_back: set[int] = set()
        self.cuts: list[int] = []
        self.undone = 0

    @property
    def appended(self) -> int:
        return self.stack[-1][0].last if self.stack else self.upto

    def append(self, header: Header, payload: Any) -> None:
        assert header.offset == self.appended + 1
        if value_of(header, payload) == POISON:
            raise CannotApply("poison")
        taken: list[int] = []
        if isinstance(header.control, Rollback):
            taken = [
                entry.offset
                for entry, _, _ in self.stack
                if entry.kind == Kind.RECORDS and entry.offset >= header.control.first
            ]
            self.taken_back.update(taken)
        self.stack.append((header, value_of(header, payload), taken))

    def cut(self, to_offset: int) -> None:
        assert self.upto <= to_offset
        self.cuts.append(to_offset)
        while self.stack and self.stack[-1][0].offset > to_offset:
            self.undone += 1
            header, _, taken = self.stack.pop()
            self.taken_back.difference_update(taken)
            self.taken_back.discard(header.offset)
        assert self.appended <= to_offset

    def settle(self, header: Header, checksum: int, payload: Any) -> None:
        assert header.offset > self.upto
        value = value_of(header, payload)
        if self.stack:
            while self.stack[0][0].offset < header.offset:
                skipped = self.stack.pop(0)[0]
                assert skipped.offset in self.taken_back
                self.taken_back.discard(skipped.offset)
            appended = self.stack.pop(0)
            assert (appended[0].id, appended[1]) == (header.id, value), "what was appended is what is settled"
            assert header.offset not in self.taken_back
        elif value == POISON:
            raise CannotApply("poison")
        if header.kind == Kind.RECORDS:
            self.settled.append((header.epoch, header.offset, value))
        self.upto = header.last

    def is_synchronous(self, payload: Any) -> bool:
        return b"slow" in bytes(payload)

    @property
    def local(self) -> list[tuple[int, int, bytes]]:
        """What a reader of this replica's own state sees."""
        return self.settled + [
            (header.epoch, header.offset, value)
            for header, value, _ in self.stack
            if header.kind == Kind.RECORDS and header.offset not in self.taken_back
        ]

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.upto, self.settled))

    def restore(self, data: bytes) -> None:
        self.upto, self.settled = msgspec.msgpack.decode(data, type=tuple[int, list[tuple[int, int, bytes]]])
        self.stack, self.taken_back = [], set()


class InBits(Watchful):
    """Its snapshot is made in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 0
        self.closed = 0

    def snapshot_pieces(self) -> Generator[bytes]:
        data = self.snapshot()
        try:
            for at in range(0, len(data), 50_000):
                self.pieces += 1
                yield data[at : at + 50_000]
        finally:
            self.closed += 1


def value_of(header: Header, payload: Any) -> bytes:
    return bytes(payload)[-20:].split(b"=")[-1][:-1] if header.kind == Kind.RECORDS else b""


def batch(value: bytes) -> bytes:
    return encode_records([(None, b"=" + value)])


class Stage:
    """One host with one puppet, on a disk whose jobs wait until they are let."""

    def __init__(self, store: StoreSettings = TINY, *, files: dict[str, bytes] | None = None) -> None:
        self.now = 0.0
        self.jobs: list[Callable[[], None]] = []
        self.store_settings = store

        def schedule(_: float, finish: Callable[[], None]) -> None:
            self.jobs.append(finish)

        self.disk = (
            SimDisk(Random(1), schedule) if files is None else SimDisk.from_files(files, Random(1), schedule)
        )
        self.reports: list[str] = []
        self.replies: list[effects.Reply] = []
        self.sent: list[Parcel] = []
        self.host: Host
        self.start()

    def start(self) -> None:
        settings = HostSettings(store=self.store_settings)
        self.host = Host(1, self.disk, settings, send=self.send, rng=Random(1), observer=self)
        self.host.open(self.now)

    def add(self) -> None:
        self.host.add(self.now, PARTITION, ReplicaRecord("confirm", ME, (ME,), purpose="tables"))
        self.settle()

    def restart(self) -> None:
        self.host.store.close()
        self.disk.crash()
        self.jobs.clear()
        self.start()

    def send(self, _: int, parcel: Parcel) -> None:
        self.sent.append(parcel)

    # --- an observer ---

    def stepped(self, *_: Any) -> None: ...

    def reported(self, _: float, __: int, ___: Any, report: effects.Report) -> None:
        self.reports.append(report.what)

    # --- driving ---

    @property
    def hosted(self) -> Any:
        return self.host.hosted[PARTITION]

    @property
    def puppet(self) -> Puppet:
        replica: Puppet = self.hosted.replica
        return replica

    @property
    def machine(self) -> Any:
        return self.hosted.machine

    def settle(self) -> None:
        """Let what is under way come to its end. (A store whose disk is full tries again for ever.)"""
        for _ in range(20):
            while self.jobs:
                self.jobs.pop(0)()
            due = self.host.deadline()
            if due is None:
                return
            self.now = max(self.now, due)
            self.host.tick(self.now)

    def do(self, act: Callable[[Puppet], list[effects.Effect]]) -> None:
        command: Any = lambda request: Do(request, act)  # noqa: E731
        self.host.command(self.now, PARTITION, command, lambda _: None)

    def take(self, *what: bytes | Control, epoch: int = 1) -> None:
        """Append these as a leader would: records, or controls."""
        self.puppet.epoch = epoch
        for entry in what:
            if isinstance(entry, bytes):
                self.host.propose(self.now, PARTITION, [batch(entry)], self.replies.append)
            else:
                self._control(entry)

    def _control(self, control: Control) -> None:
        def act(puppet: Puppet) -> list[effects.Effect]:
            header = Header(puppet.epoch, puppet.log.head.offset + 1, kind=Kind.CONTROL, control=control)
            return puppet.append(header)

        self.do(act)

    def cut(self, to: EntryId, *, aside: bool = False) -> None:
        def act(puppet: Puppet) -> list[effects.Effect]:
            puppet.log.cut(to)
            return [effects.Cut(puppet.next_io(), to, aside)]

        self.do(act)

    def commit(self, offset: int) -> None:
        def act(puppet: Puppet) -> list[effects.Effect]:
            puppet.log.settle(offset)
            return [effects.Commit(offset)]

        self.do(act)

    def install(self, snapshot: Snapshot, data: bytes) -> None:
        """A peer's snapshot has come, in one piece, and takes the log's place."""
        io = self.puppet.next_io()
        self.host.store.stage_chunk(PARTITION, io, 0, data)

        def act(puppet: Puppet) -> list[effects.Effect]:
            install = effects.InstallSnapshot(puppet.next_io(), snapshot, keep=False)
            puppet.installs.append((install.io, snapshot))
            return [install]

        self.do(act)

    def order(self, make: Callable[[int], effects.Effect]) -> None:
        self.do(lambda puppet: [make(puppet.next_io())])


def use_puppet(monkeypatch: pytest.MonkeyPatch, machine: type[Any] = Watchful) -> None:
    room = SimpleNamespace(Replica=Puppet, Config=Config, SavedState=SavedState)
    monkeypatch.setitem(replicas_module.PROTOCOLS, "confirm", room)
    monkeypatch.setitem(replicas_module.MACHINES, "tables", machine)
    monkeypatch.setattr(confirm, "Config", Config)
