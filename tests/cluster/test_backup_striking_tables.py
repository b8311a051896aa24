"""Groups of tables are saved and put back under load, and whoever has to do with it is killed, at each stage of it.

As test_backup_striking.py does with topics; money goes round meanwhile, and what is saved is of one moment: the sum
is always the same. The places are directories, and buckets of an object store (moto's).
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import pytest

from quorate.client import Consistency, TableGroup, UnknownGroup, Unreachable, create_group
from quorate.machine.metadata import REPLICATIONS
from quorate.tables import Column, CreateTable, Insert, Table, Type
from tests.cluster.growing import GrowingCluster
from tests.cluster.support import expect_no_traceback, freeze_when, run, until_caught
from tests.cluster.test_backup import ACCOUNTS_COUNT, BALANCE, WAIT_S, Person, transfers
from tests.cluster.test_backup_striking import TRIES_MAX, VICTIMS, Backups
from tests.unit.backup.object_store import BUCKET, CREDENTIALS, object_store

pytestmark = pytest.mark.cluster

GROUP = "bank"
ACCOUNTS = Table(
    "accounts",
    (Column("id", Type.INT), Column("balance", Type.INT), Column("note", Type.STR)),
    ("id",),
)
NOTE = "n" * 1000
SLOW = "300k"
"""Of 1.5 MB: seconds, in some seven pieces."""
HALF_WAY, WRITTEN = "half-way", "before its manifest"
RESTORING = {"as it begins": 0, HALF_WAY: ACCOUNTS_COUNT // 2, "near its end": ACCOUNTS_COUNT * 3 // 4}
"""The row of this key is there, and the last one, in a later transaction, is not."""
S3 = pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")


class Place(NamedTuple):
    words: tuple[str, ...]
    directory: Path | None = None
    """None: a bucket, into which nobody looks."""


class Places:
    """Places that are empty, in a directory or in an object store."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        self._directory = directory
        self._endpoint = endpoint
        self._count = 0

    def one_more(self) -> Place:
        self._count += 1
        if self._endpoint:
            return Place((f"s3://{BUCKET}/{self._count}", "--endpoint", self._endpoint))
        directory = self._directory / f"place-{self._count}"
        return Place((str(directory),), directory)


@asynccontextmanager
async def a_bank(directory: Path, kind: str, where: str) -> AsyncIterator[tuple[Backups, Places]]:
    with ExitStack() as stack:
        endpoint = stack.enter_context(object_store()) if where == "s3" else ""
        cluster = stack.enter_context(GrowingCluster(directory))
        cluster.start()
        async with cluster.client() as client:
            backups = Backups(cluster, client, directory)
            backups.person = Person(cluster.bootstrap, **CREDENTIALS)
            await cluster.until_registered(client)
            await asyncio.to_thread(open_accounts, cluster.bootstrap, kind)
            yield backups, Places(directory, endpoint)
            await cluster.until_registered(client)
        expect_no_traceback(*cluster.nodes.values())


def open_accounts(servers: str, kind: str) -> None:
    create_group(servers, GROUP, replication=kind)
    with TableGroup(servers, GROUP) as bank:
        bank.execute(CreateTable(ACCOUNTS))
        for first in range(0, ACCOUNTS_COUNT, 500):
            bank.execute(
                *(Insert("accounts", (number, BALANCE, NOTE)) for number in range(first, first + 500))
            )


def accounts_of(servers: str, group: str) -> list[tuple[object, ...]]:
    with TableGroup(servers, group) as bank:
        return [tuple(row.values) for row in bank.iterate("accounts", consistency=Consistency.LINEARIZABLE)]


def expect_of_one_moment(rows: list[tuple[object, ...]]) -> None:
    assert [row[0] for row in rows] == list(range(ACCOUNTS_COUNT))
    assert sum(int(str(row[1])) for row in rows) == ACCOUNTS_COUNT * BALANCE


# ---- saving ----


class Saving:
    """One `quorate backup create` into a place of its own, which stands still where it is to be."""

    def __init__(self, backups: Backups, place: Place) -> None:
        self._place = place
        self.command = backups.person.begins("backup", "create", GROUP, *place.words, "--rate", SLOW)

    def _has_files(self) -> bool:
        return self._place.directory is not None and any(self._place.directory.rglob("*.tables"))

    def _has_manifest(self) -> bool:
        return self._place.directory is not None and any(self._place.directory.rglob("manifest-*.json"))

    def is_seen(self, stage: str) -> bool:
        if stage == HALF_WAY:
            assert self.command.stderr is not None
            assert self.command.stderr.readline().startswith(f"{GROUP}: "), "it tells how far it is"
        else:
            assert self._place.directory is not None

        def is_so_far() -> bool:
            assert self.command.poll() is None, f"it ended before it was seen {stage}"
            return stage == HALF_WAY or self._has_files()

        freeze_when(is_so_far, self.command.send_signal, f"a backup to be seen {stage}")
        return self._has_files() == (stage == WRITTEN) and not self._has_manifest()


async def caught(backups: Backups, places: Places, stage: str) -> tuple[Saving, Place]:
    async def attempt() -> tuple[Saving, Place] | None:
        place = places.one_more()
        saving = Saving(backups, place)
        with suppress(AssertionError):
            if await asyncio.to_thread(saving.is_seen, stage):
                return saving, place
        saving.command.kill()
        saving.command.communicate()
        return None

    return await until_caught(f"it was never seen {stage}", attempt, TRIES_MAX)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "stage", "where"),
    [
        *((kind, stage, "directory") for kind in REPLICATIONS for stage in (HALF_WAY, WRITTEN)),
        pytest.param("confirm", HALF_WAY, "s3", marks=S3),
    ],
)
def test_whoever_is_killed_while_tables_are_saved(tmp_path: Path, kind: str, stage: str, where: str) -> None:
    async def main() -> None:
        async with a_bank(tmp_path, kind, where) as (backups, places):
            saved: list[Place] = []
            with transfers(backups.servers, GROUP) as counted:
                for victim in VICTIMS:
                    before = counted[0]
                    saving, place = await caught(backups, places, stage)
                    left = await backups.strike(victim, GROUP, 0, saving.command)
                    if left is not None:
                        await backups.succeeds(left)
                    else:
                        await backups.types("backup", "create", GROUP, *place.words)
                    assert counted[0] > before
                    saved.append(place)
            for victim, place in zip(VICTIMS, saved, strict=True):
                assert "every byte is as it was written" in await backups.types(
                    "backup", "verify", *place.words
                )
                await backups.types("backup", "restore", GROUP, *place.words, "--as", victim)
                expect_of_one_moment(await asyncio.to_thread(accounts_of, backups.servers, victim))
            await backups.types("backup", "create", GROUP, *saved[-1].words)
            await backups.types("backup", "restore", GROUP, *saved[-1].words, "--as", "last")
            now = await asyncio.to_thread(accounts_of, backups.servers, GROUP)
            assert await asyncio.to_thread(accounts_of, backups.servers, "last") == now

    run(main())


@pytest.mark.proof
def test_tables_are_saved_from_another_copy_when_one_is_gone_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_bank(tmp_path, "raft", "directory") as (backups, places):
            saving, place = await caught(backups, places, HALF_WAY)
            (group,) = (await backups.client.image(1, (GROUP,))).topics
            hit = backups.cluster.nodes[await backups.cluster.leader(backups.client, group.partitions()[0])]
            hit.kill()
            saving.command.send_signal(signal.SIGCONT)
            out, complaint = await asyncio.to_thread(saving.command.communicate, timeout=120)
            assert saving.command.returncode == 0, complaint
            assert "rows of 1 table at" in out
            hit.start()
            await backups.cluster.until_registered(backups.client)
            await backups.types("backup", "restore", GROUP, *place.words, "--as", "back")
            expect_of_one_moment(await asyncio.to_thread(accounts_of, backups.servers, "back"))

    run(main())


# ---- putting back ----


def until_row(servers: str, group: str, key: int) -> None:
    deadline = monotonic() + WAIT_S
    with TableGroup(servers, group) as bank:
        while True:
            with suppress(UnknownGroup, Unreachable):
                if any(table.name == "accounts" for table in bank.tables()) and bank.get("accounts", (key,)):
                    assert bank.get("accounts", (ACCOUNTS_COUNT - 1,)) is None, "it was too quick"
                    return
            assert monotonic() < deadline, f"waited {WAIT_S} s for row {key} of {group}"
            sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "stage", "where", "victims"),
    [
        ("confirm", HALF_WAY, "directory", ("source",)),
        *(
            pytest.param(kind, stage, "directory", VICTIMS, marks=pytest.mark.proof)
            for kind in REPLICATIONS
            for stage in RESTORING
        ),
        pytest.param("raft", HALF_WAY, "s3", VICTIMS, marks=[pytest.mark.proof, S3]),
    ],
    ids=lambda given: given if isinstance(given, str) else "all" if len(given) > 1 else "sample",
)
def test_whoever_is_killed_while_tables_are_restored(
    tmp_path: Path, kind: str, stage: str, where: str, victims: Sequence[str]
) -> None:
    async def main() -> None:
        async with a_bank(tmp_path, kind, where) as (backups, places):
            place = places.one_more().words
            await backups.types("backup", "create", GROUP, *place)
            saved = await asyncio.to_thread(accounts_of, backups.servers, GROUP)
            expect_of_one_moment(saved)
            with transfers(backups.servers, GROUP):
                for victim in victims:
                    await restored(backups, place, victim, stage)
                    assert await asyncio.to_thread(accounts_of, backups.servers, victim) == saved

    run(main())


async def restored(backups: Backups, place: tuple[str, ...], victim: str, stage: str) -> None:
    words = ("backup", "restore", GROUP, *place, "--as", victim, "--json")
    command = backups.person.begins(*words, "--rate", SLOW)
    await asyncio.to_thread(until_row, backups.servers, victim, RESTORING[stage])
    assert command.poll() is None, f"it was done before it was seen {stage}"
    left = await backups.strike(victim, victim, 0, command)
    if left is not None:
        told = json.loads(await backups.succeeds(left))
    else:
        refused = await asyncio.to_thread(backups.person.types, *words, expect=2)
        assert "already" in refused
        told = json.loads(await backups.types(*words, "--resume"))
    assert told["rows"] == ACCOUNTS_COUNT
