"""What is given at the beginning: logs and epochs, on disks, as a store itself would have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from quorate.batch import encode_records, parse_batch_header
from quorate.core.entry import NOWHERE, Control, Flag, Header, Kind, Member, NoOp, Partition, Promote, Span
from quorate.host.replicas import UNDOING, encode_record
from quorate.sim.invariants import Invariants
from quorate.sim.scenario_log import Item
from quorate.sim.scenario_script import Cast
from quorate.storage.store import Store

if TYPE_CHECKING:
    from quorate.sim.scenario_stage import Stage


class Account(Invariants):
    """Invariants of a world that did not begin with empty logs."""

    def given(self, headers: tuple[Header, ...]) -> None:
        before = NOWHERE
        for header in headers:
            entry = (before.epoch, before.offset, header.offset, header.crc, header.control)
            self._entries[0].setdefault((header.epoch, header.last), entry)
            self.leaders[0].setdefault(header.epoch, 0)
            before = header.id


def give(stage: Stage, cast: Cast) -> Any:
    """Nodes that are not given an epoch have the highest of all: a majority must have been in each.

    Returns what is stored then, where somebody oversees it; None if nothing was given.
    """
    logs = cast.logs
    latest = max((*cast.epochs.values(), *(items[-1].epoch for items in logs.values() if items)), default=0)
    if not latest:
        return None
    copies, in_sync = _members(cast.voters), _members(cast.in_sync or cast.voters)
    stored = cast.room.found(latest, copies, in_sync, cast.settings)
    for number in stage.nodes:
        items = logs.get(number, ())
        least = items[-1].epoch if items else 0
        state = cast.room.saved_state(max(cast.epochs.get(number, latest), least), stored)
        headers = _write(stage, number, items, state)
        stage.account.given(headers)
        stage.narrator.learn(headers)
    return stored


def _members(nodes: tuple[int, ...]) -> tuple[Member, ...]:
    return tuple(Member(node, 1) for node in nodes)


def _write(stage: Stage, number: int, items: tuple[Item, ...], state: Any) -> tuple[Header, ...]:
    node, partition = stage.nodes[number], stage.partitions[0]
    store = Store.open(node.disk, stage.tunables.host.store, _Deaf())
    record = msgspec.structs.replace(stage.record(number), state=state)
    store.create(partition, 0, encode_record(record))
    voids = record.protocol == UNDOING
    first: Control = Promote(0, 0) if voids else NoOp(0)
    headers = []
    for io, item in enumerate(items, start=1):
        header, payloads = _entry(item, stage.cast.origin, first)
        store.append(partition, io, store.seal(partition, (header,), payloads))
        headers.append(header)
    store.pump()
    stage.settle()
    node.disk.crash()  # Whoever wrote this is gone.
    return tuple(headers)


def _entry(item: Item, origin: int, first: Control) -> tuple[Header, list[bytes]]:
    """The same bytes on every node that is given this entry."""
    if item.control:
        return Header(item.epoch, item.first, kind=Kind.CONTROL, control=first), []
    values = [f"{item.epoch}-{offset + origin}" for offset in range(item.first, item.last + 1)]
    payload = encode_records([(None, value.encode()) for value in values])
    crc = parse_batch_header(payload).crc
    flags = Flag.SYNCHRONOUS if isinstance(first, Promote) else 0
    return Header(item.epoch, item.first, len(values), len(payload), Kind.RECORDS, flags, crc), [payload]


class _Deaf:
    """Listens to a store that only writes what is given."""

    def persisted(self, partition: Partition, io: int) -> None:
        """Nobody waits for it."""

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        raise AssertionError(reason)

    def damaged(self, partition: Partition, span: Span) -> None:
        raise AssertionError(span)

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)
