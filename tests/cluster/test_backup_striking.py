"""Backups are made and put back under load, and whoever has to do with it is killed, at each stage of it.

Killed are the node that leads the metadata group, the one that leads the partition at hand, and the command itself.
A stage is what is to be seen in the place of the backup, or in the topic that comes back: nothing yet, some
of it, or all of it but for what makes it count.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Message

from quorate.machine.metadata import METADATA, REPLICATIONS
from quorate.node.client import Client
from tests.cluster.fault_support import PARTITIONS_COUNT, everything
from tests.cluster.following import Reader, Record, read_along
from tests.cluster.growing import GrowingCluster
from tests.cluster.support import expect_no_traceback, freeze_when, run, until_caught
from tests.cluster.test_backup import Log, Person, expect_same, produce, until_there

pytestmark = pytest.mark.cluster

VICTIMS = ("operator", "source", "command")
SAVING = ("before its first file", "between its files", "before its manifest")
RESTORING = {"as it begins": 20, "half-way": 150, "near its end": 250}
"""So many offsets are there, of 300 records."""
RECORDS_COUNT = 300
AT_ONCE_COUNT = 10
VALUE_BYTES = 1000
SLOWLY, SLOW = "50k", "150k"
"""Of 300 KB: slowly enough to be told of before the first file is there; and to be seen at all."""
TRIES_MAX = 8
"""A manifest is there some milliseconds after the last file: whoever looks too late tries again."""


@asynccontextmanager
async def more_coming(servers: str, topic: str) -> AsyncIterator[None]:
    """Records come all the time, and are read along, through whatever happens."""
    is_over = threading.Event()
    failed: list[BaseException] = []
    done_count = RECORDS_COUNT

    def write() -> None:
        nonlocal done_count
        try:
            while not is_over.is_set():
                produce(servers, topic, done_count, AT_ONCE_COUNT, value_bytes=10)
                done_count += AT_ONCE_COUNT
        except BaseException as error:
            failed.append(error)
            raise

    def sent_count() -> int:
        return done_count + AT_ONCE_COUNT

    reader = Reader(
        servers, {topic: sent_count}, partitions_count=PARTITIONS_COUNT, number_of=number_in_headers
    )
    thread = threading.Thread(target=write)
    with read_along(reader):
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        assert not failed
        placed = await asyncio.to_thread(everything, servers, topic, number_in_headers)
        assert len(placed) == done_count
        await reader.expect_all(topic, placed)


def number_in_headers(record: Message | Record) -> int:
    headers = record.headers() if isinstance(record, Message) else record.headers
    said = dict(headers or ())["n"]
    assert isinstance(said, bytes)
    return int(said)


class Backups:
    """A cluster with a topic `a`, written to, and a person who saves and restores."""

    def __init__(self, cluster: GrowingCluster, client: Client, directory: Path) -> None:
        self.cluster, self.client, self.directory = cluster, client, directory
        self.servers = cluster.bootstrap
        self.person = Person(self.servers)

    async def types(self, *words: str) -> str:
        return await asyncio.to_thread(self.person.types, *words)

    async def create(self, kind: str, *names: str) -> None:
        await self.cluster.until_registered(self.client)
        for name in names:
            await self.types("topic", "create", name, "--partitions", "2", "--replication", kind)
            await asyncio.to_thread(produce, self.servers, name, 0, RECORDS_COUNT, value_bytes=VALUE_BYTES)

    async def strike(
        self, victim: str, topic: str, number: int, command: subprocess.Popen[str]
    ) -> subprocess.Popen[str] | None:
        """The command if it is still there: then it comes to its end."""
        if victim == "command":
            command.kill()
            await asyncio.to_thread(command.communicate)
            return None
        (found,) = (await self.client.image(1, (topic,))).topics
        led = METADATA if victim == "operator" else found.partitions()[number]
        hit = await self.cluster.leader(self.client, led)
        self.cluster.nodes[hit].kill()
        command.send_signal(signal.SIGCONT)
        self.cluster.nodes[hit].start()
        return command

    async def succeeds(self, command: subprocess.Popen[str]) -> str:
        out, complaint = await asyncio.to_thread(command.communicate, timeout=120)
        assert command.returncode == 0, complaint
        await self.cluster.until_registered(self.client)
        return out


class Saving:
    """One `quorate backup create` into a place of its own, watched there."""

    def __init__(self, backups: Backups, place: Path, stage: str) -> None:
        self._stage = stage
        self._place = place / "a"
        rate = SLOWLY if stage == SAVING[0] else SLOW
        self.command = backups.person.begins("backup", "create", "a", str(place), "--rate", rate)

    def _files(self) -> int:
        return len(list(self._place.glob("data/*.batches")))

    def _has_manifest(self) -> bool:
        return any(self._place.glob("manifest-*.json"))

    def until_seen(self) -> bool:
        """Whether it stands still now where it is to be."""
        if self._stage == SAVING[0]:
            assert self.command.stderr is not None
            assert self.command.stderr.readline().startswith("a: "), "it tells how far it is"
        files_count = SAVING.index(self._stage)

        def is_so_far() -> bool:
            if self._files() >= files_count:
                return True
            assert self.command.poll() is None, f"it ended before it was seen {self._stage}"
            return False

        freeze_when(is_so_far, self.command.send_signal, f"a backup to be seen {self._stage}")
        return self._files() == files_count and not self._has_manifest()


async def caught(backups: Backups, stage: str) -> tuple[Saving, Path]:
    before, numbers = len(list(backups.directory.iterdir())), count()

    async def attempt() -> tuple[Saving, Path] | None:
        place = backups.directory / f"{before}-{next(numbers)}"
        saving = Saving(backups, place, stage)
        if await asyncio.to_thread(saving.until_seen):
            return saving, place
        saving.command.kill()
        saving.command.communicate()
        return None

    return await until_caught(f"it was never seen {stage}", attempt, TRIES_MAX)


@pytest.mark.proof
@pytest.mark.parametrize("stage", SAVING)
@pytest.mark.parametrize("kind", REPLICATIONS)
def test_whoever_is_killed_while_a_topic_is_saved(tmp_path: Path, kind: str, stage: str) -> None:
    async def main() -> None:
        (tmp_path / "places").mkdir()
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                backups = Backups(cluster, client, tmp_path / "places")
                await backups.create(kind, "a")
                places: list[str] = []
                async with more_coming(backups.servers, "a"):
                    for victim in VICTIMS:
                        saving, where = await caught(backups, stage)
                        number = 0 if stage == SAVING[0] else 1
                        left = await backups.strike(victim, "a", number, saving.command)
                        if left is not None:
                            await backups.succeeds(left)
                        places.append(str(where))
                for victim, place in zip(VICTIMS, places, strict=True):
                    await backups.types("backup", "create", "a", place)
                    assert "every byte is as it was written" in await backups.types("backup", "verify", place)
                    words = ("backup", "restore", "a", place, "--as", victim, "--json")
                    told = json.loads(await backups.types(*words))
                    kept = told["offsets_kept"]
                    await asyncio.to_thread(expect_same, backups.servers, "a", victim, offsets=kept)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.parametrize(
    ("kind", "stage", "victims"),
    [
        ("isr", "half-way", ("source",)),
        *(
            pytest.param(kind, stage, VICTIMS, marks=pytest.mark.proof)
            for kind in REPLICATIONS
            for stage in RESTORING
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "all" if len(given) > 1 else "sample",
)
def test_whoever_is_killed_while_a_topic_is_restored(
    tmp_path: Path, kind: str, stage: str, victims: Sequence[str]
) -> None:
    """Another topic is written to meanwhile: this one is nobody's before it is there."""

    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                backups = Backups(cluster, client, tmp_path)
                place = str(tmp_path / "place")
                await backups.create(kind, "a", "other")
                await backups.types("backup", "create", "a", place)
                saved = await asyncio.to_thread(logs, backups.servers, "a")
                async with more_coming(backups.servers, "other"):
                    for victim in victims:
                        await restored(backups, place, victim, stage, saved)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def logs(servers: str, topic: str) -> list[Log]:
    return [Log(servers, topic, number) for number in range(2)]


async def restored(backups: Backups, place: str, victim: str, stage: str, saved: list[Log]) -> None:
    """`saved`: what it was then; whoever comes to lead it afterwards writes that at its end."""
    words = ("backup", "restore", "a", place, "--as", victim, "--json")
    command = backups.person.begins(*words, "--rate", SLOW)
    await asyncio.to_thread(until_there, backups.servers, victim, RESTORING[stage])
    assert command.poll() is None, f"it was done before it was seen {stage}"
    left = await backups.strike(victim, victim, 0, command)
    if left is not None:
        told = json.loads(await backups.succeeds(left))
        assert told["records"] == RECORDS_COUNT
    else:
        told = json.loads(await backups.types(*words, "--resume"))
        assert 0 < told["records"] < RECORDS_COUNT
    for before, after in zip(saved, await asyncio.to_thread(logs, backups.servers, victim), strict=True):
        assert after.records == before.records
        if told["offsets_kept"]:
            assert after.offsets == before.offsets
            assert after.end >= before.end
