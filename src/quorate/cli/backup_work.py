"""What `quorate backup` does with a cluster: backup.py has the commands and their words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from quorate.backup import snapshot
from quorate.backup.errors import BackupError, Damaged, Stopped
from quorate.backup.manifest import Manifest
from quorate.backup.outcomes import Uncommitted
from quorate.backup.pace import Progress, Throttle, size_text
from quorate.backup.place import Place, open_place
from quorate.backup.resuming import Standing, standing
from quorate.backup.returning import Returned, Returning, Target
from quorate.backup.saving import IsStopped, save_topic
from quorate.backup.source import source_of
from quorate.cli import say
from quorate.cli.options import NATS_SUBJECT
from quorate.cli.orders import TIMEOUT_S, Orders, carry_out, reached
from quorate.cli.wrong import NotDone, WrongUsage
from quorate.machine.metadata import Topic

if TYPE_CHECKING:
    from quorate.client import Cluster, TableGroup

INTERRUPTED = 130
REPLICATION = "quorate.replication"
HELD_BACK = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""Until all is there: what is restored is old, and would go at once; and who goes on with a restore compares what
is there with the backup, batch by batch."""
LEFT_OUT = (NATS_SUBJECT,)
"""A restored topic takes nothing by itself."""

Told = tuple[list[str], dict[str, Any]]


class Wanted(NamedTuple):
    """A restore, as it was asked for."""

    place: Place
    manifest: Manifest
    uncommitted: list[Uncommitted]
    """Of a topic, by partition: what is left out."""
    servers: str
    name: str
    resume: bool
    replicas: int | None
    rate: int | None
    is_stopped: IsStopped


# ---- how commands begin and end ----


@contextmanager
def in_one_line() -> Iterator[None]:
    try:
        yield
    except Stopped as stopped:
        say.progress_line(str(stopped))
        raise typer.Exit(INTERRUPTED) from stopped
    except Damaged as damaged:
        raise NotDone(f"{damaged}; nothing is changed") from damaged
    except BackupError as error:
        raise WrongUsage(str(error)) from error


@contextmanager
def stopping() -> Iterator[IsStopped]:
    """Ctrl-C lets what is under way come to an end; pressed again, it does not."""
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, before)


def opened(place: str, endpoint: str) -> Place:
    return open_place(place, endpoint=endpoint)


@contextmanager
def group_of(servers: str, name: str) -> Iterator[TableGroup]:
    from quorate.cli.access import access
    from quorate.client import ClientError, TableGroup

    made = TableGroup(servers, name, client_id="quorate-cli", timeout_s=TIMEOUT_S, security=access().security)
    try:
        with made as tables:
            yield tables
    except ClientError as error:
        raise WrongUsage(str(error)) from error


# ---- saving ----


def save(
    place: Place, servers: str, name: str, rate: int | None, is_stopped: IsStopped, *, as_json: bool
) -> None:
    cluster_id, topic = carry_out(servers, lambda orders: _topic(orders, name))
    source = source_of(topic, cluster_id)
    tell = say.progress_line
    if topic.is_tables:
        with group_of(servers, name) as tables:
            done = snapshot.save_tables(place, tables, source, rate=rate, tell=tell, is_stopped=is_stopped)
        made, new_bytes, new_records = done.manifest, done.bytes_count, done.manifest.records
        said = f"{_rows(new_records, len(made.tables))} at offset {made.offset}"
        if not done.is_new:
            said = f"nothing is new since offset {made.offset}"
            new_records = 0
        lost: list[dict[str, int]] = []
    else:
        with reached(servers) as cluster:
            saved = save_topic(place, cluster, source, rate=rate, tell=tell, is_stopped=is_stopped)
        made, new_bytes, new_records = saved.manifest, saved.bytes_count, saved.records
        said = say.counted(new_records, "new record") if new_records else "no record is new"
        lost = [{"partition": number, "first": gap.first, "last": gap.end - 1} for number, gap in saved.lost]
        for gap in lost:
            say.progress_line(
                f"{name}/{gap['partition']}: offsets {gap['first']} to {gap['last']} were gone from the topic "
                f"before they were saved; save more often, or keep records for longer"
            )
    told = {
        "name": name,
        "place": str(place),
        "kind": made.kind,
        "new_bytes": new_bytes,
        "new_records": new_records,
        "bytes": made.size,
        "lost": lost,
    }
    line = f"{name} is saved to {place}: {said}, {size_text(new_bytes)} new, {size_text(made.size)} in all"
    say.result(line, told, json=as_json)


async def _topic(orders: Orders, name: str) -> tuple[str, Topic]:
    topic = await orders.topic(name)
    return orders.client.cluster, topic


# ---- restoring a topic ----


def restore_topic(wanted: Wanted) -> Told:
    manifest, name = wanted.manifest, wanted.name
    there = _target_or_none(wanted)
    with reached(wanted.servers) as cluster:
        if there is None:
            _create(cluster, wanted, partitions=len(manifest.partitions), held_back=HELD_BACK)
            _, there = carry_out(wanted.servers, lambda orders: _topic(orders, name))
        standings = _standings(cluster, wanted, there)
        producer_id = _new_producer_id(cluster)
    target = Target(name, there.id, there.replication)
    returned = carry_out(
        wanted.servers, lambda orders: _return(orders, wanted, target, standings, producer_id)
    )
    _alter(wanted.servers, name, {key: manifest.config.get(key) for key in HELD_BACK})
    for key in LEFT_OUT:
        if key in manifest.config:
            say.progress_line(
                f"{name} is restored without {key}={manifest.config[key]}: it takes nothing from there"
            )
    return _said(wanted, there.id, returned)


def _target_or_none(wanted: Wanted) -> Topic | None:
    """The topic, or group, that is to be filled, if it is there; raises WrongUsage where it should not be."""

    async def look(orders: Orders) -> Topic | None:
        image = await orders.image((wanted.name,))
        return image.topics[0] if image.topics else None

    there = carry_out(wanted.servers, look)
    if there is None:
        return None
    kind = "group of tables" if there.is_tables else "topic"
    if not wanted.resume:
        raise WrongUsage(
            f"there is a {kind} {wanted.name!r} already; restore to another name (--as), or go on with a restore "
            f"that was stopped (--resume)"
        )
    saved = wanted.manifest
    if there.is_tables != (saved.kind == "tables"):
        raise WrongUsage(
            f"{wanted.name!r} is a {kind}, and what was saved is not; choose another name (--as)"
        )
    if not there.is_tables and len(there.ensembles) != len(saved.partitions):
        has = say.counted(len(there.ensembles), "partition")
        raise WrongUsage(
            f"topic {wanted.name!r} has {has}, and {len(saved.partitions)} were saved: no restore has made it; "
            "choose another name (--as)"
        )
    return there


def _create(cluster: Cluster, wanted: Wanted, *, partitions: int, held_back: dict[str, str]) -> None:
    from quorate.client.admin import create_topic

    saved = wanted.manifest
    config = {
        key: value for key, value in saved.config.items() if key not in held_back and key not in LEFT_OUT
    }
    # Not as the cluster has it for new topics: they are taken back, or set, when all is there.
    config |= held_back
    create_topic(
        cluster,
        wanted.name,
        partitions_count=partitions,
        replicas_count=wanted.replicas or saved.replicas,
        config=config | {REPLICATION: saved.replication},
    )


def _standings(cluster: Cluster, wanted: Wanted, there: Topic) -> list[Standing]:
    partitions = wanted.manifest.partitions
    if not wanted.resume:
        return [Standing() for _ in partitions]
    cluster.expect(wanted.name, there.id)
    say.progress_line(f"{wanted.name}: comparing what is there with the backup")
    return [
        standing(cluster, wanted.name, number, wanted.place, partition, wanted.uncommitted[number])
        for number, partition in enumerate(partitions)
    ]


def _new_producer_id(cluster: Cluster) -> int:
    from quorate.client.admin import new_producer_id

    return new_producer_id(cluster)


async def _return(
    orders: Orders, wanted: Wanted, target: Target, standings: list[Standing], producer_id: int
) -> list[Returned]:
    await orders.image((wanted.name,))  # Where the nodes are.
    returning = Returning(
        wanted.place,
        orders.client,
        target,
        throttle=Throttle(wanted.rate, monotonic()),
        progress=Progress(wanted.name, say.progress_line),
        whole=wanted.manifest.size - sum(each.bytes_count for each in standings),
        is_stopped=wanted.is_stopped,
    )
    return await returning.run(wanted.manifest, wanted.uncommitted, standings, producer_id)


def _alter(servers: str, name: str, settings: dict[str, str | None]) -> None:
    from quorate.client.admin import alter_topic

    with reached(servers) as cluster:
        alter_topic(cluster, name, settings)


def _said(wanted: Wanted, topic_id: bytes, returned: list[Returned]) -> Told:
    records = sum(each.records for each in returned)
    moved = sum(each.moved for each in returned)
    not_committed = sum(each.not_committed for each in returned)
    lines = [f"topic {wanted.name} is restored: {_records(records, len(returned))}"]
    for number, each in enumerate(returned):
        if each.moved:
            lines.append(
                f"{wanted.name}/{number}: {say.counted(each.moved, 'record')} at other offsets than before, from "
                f"{each.first_moved} on: offsets that consumers have kept do not fit there"
            )
    if not moved:
        lines.append("every record has the offset that it had")
    if not_committed:
        lines.append(
            f"left out: {say.counted(not_committed, 'record')} of transactions that were aborted, or open when "
            "it was saved"
        )
    told = {
        "name": wanted.name,
        "kind": "topic",
        "id": topic_id.hex(),
        "records": records,
        "not_committed": not_committed,
        "offsets_kept": not moved,
        "partitions": [
            {
                "partition": number,
                "records": each.records,
                "moved": each.moved,
                "first_moved": each.first_moved if each.moved else None,
            }
            for number, each in enumerate(returned)
        ],
    }
    return lines, told


# ---- restoring tables ----


def restore_tables(wanted: Wanted) -> Told:
    manifest = wanted.manifest
    if _target_or_none(wanted) is None:
        with reached(wanted.servers) as cluster:
            _create(cluster, wanted, partitions=1, held_back={})
    with group_of(wanted.servers, wanted.name) as tables:
        returning = snapshot.TablesReturning(
            wanted.place,
            tables,
            manifest,
            throttle=Throttle(wanted.rate, monotonic()),
            progress=Progress(wanted.name, say.progress_line),
            is_stopped=wanted.is_stopped,
        )
        rows = returning.run(resume=wanted.resume)
    line = (
        f"group {wanted.name} is restored: {_rows(rows, len(manifest.tables))}, as of offset "
        f"{manifest.offset}; versions of rows are new ones"
    )
    told = {"name": wanted.name, "kind": "tables", "rows": rows, "tables": list(manifest.tables)}
    return [line], told


# ---- words ----


def _rows(rows: int, tables: int) -> str:
    return f"{say.counted(rows, 'row')} of {say.counted(tables, 'table')}"


def _records(records: int, partitions: int) -> str:
    return f"{say.counted(records, 'record')} in {say.counted(partitions, 'partition')}"
