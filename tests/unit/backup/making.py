"""Backups made by hand: what a topic or a group of tables would have become, without a cluster."""

from __future__ import annotations

from pathlib import Path

from quorate.backup import manifest as manifests
from quorate.backup.manifest import (
    FORMAT,
    TABLES,
    TOPIC,
    DataFile,
    Gap,
    Manifest,
    PartitionSaved,
    batches_name,
    hashed,
    snapshot_name,
)
from quorate.backup.place import Directory, Place
from quorate.batch import encode_control, encode_records, parse_batch_header, stamp
from quorate.core.entry import Header
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.tables import Column, CreateTable, Insert, Table, Transaction, Type

ACCOUNTS = Table("accounts", (Column("id", Type.INT), Column("owner", Type.STR, nullable=True)), ("id",))
ID = bytes(range(16))


def batch_at(offset: int, *values: bytes, **more: int) -> bytes:
    made = encode_records([(None, value) for value in values], 5, **more)
    return bytes(stamp(made, offset=offset, epoch=1))


def control_at(offset: int) -> bytes:
    return bytes(stamp(encode_control(7, b"x"), offset=offset, epoch=1))


def data_file(place: Place, name: str, number: int, *batches: bytes) -> DataFile:
    headers = [parse_batch_header(batch) for batch in batches]
    content, first = b"".join(batches), headers[0].base_offset
    file = batches_name(name, number, first)
    place.write(file, content)
    end = headers[-1].base_offset + headers[-1].offsets_count
    records = sum(header.record_count for header in headers if not header.is_control)
    return DataFile(file, len(content), hashed(content), first, end, len(headers), records)


def manifest_of(name: str, *partitions: PartitionSaved, number: int = 1, complete: bool = True) -> Manifest:
    return Manifest(
        FORMAT, TOPIC, name, ID.hex(), "c", number, 0, "raft", 3, {"retention.ms": "7"}, complete, partitions
    )


def topic_backup(directory: Path, name: str = "orders") -> Manifest:
    """Two partitions: a log's own entry, records, a gap, and records of a producer."""
    place = Directory(directory)
    one = data_file(place, name, 0, control_at(0), batch_at(1, b"a", b"b"))
    two = data_file(place, name, 0, batch_at(9, b"c", producer_id=5, producer_epoch=0, base_sequence=0))
    other = data_file(place, name, 1, control_at(0), batch_at(1, b"d" * 50))
    made = manifest_of(name, PartitionSaved(0, 10, (one, two), (Gap(3, 9),)), PartitionSaved(0, 2, (other,)))
    manifests.write(place, made)
    return made


def tables_backup(directory: Path, name: str = "bank") -> Manifest:
    place = Directory(directory)
    tables = Tables()
    operations = (CreateTable(ACCOUNTS), Insert("accounts", (1, "Ann")), Insert("accounts", (2, None)))
    tables.settle(Header(1, 0), 0, encode(Transaction(ID, operations)))
    content = tables.snapshot()
    file = snapshot_name(name, tables.settled, 0)
    place.write(file, content)
    made = Manifest(
        FORMAT,
        TABLES,
        name,
        ID.hex(),
        "c",
        1,
        0,
        "confirm",
        3,
        {"quorate.kind": "tables"},
        complete=True,
        offset=tables.settled,
        tables=("accounts",),
        snapshot=(DataFile(file, len(content), hashed(content), records=2),),
    )
    manifests.write(place, made)
    return made
