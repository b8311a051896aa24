"""Topics of one real node, saved and put back: files, gaps, stops, and what does not belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from quorate.backup import manifest as manifests
from quorate.backup.checking import check, problems
from quorate.backup.errors import Damaged, Stopped, WrongBackup
from quorate.backup.manifest import TOPIC, Gap, Manifest
from quorate.backup.pace import Progress, Throttle
from quorate.backup.place import Directory, Place
from quorate.backup.resuming import Standing, standing
from quorate.backup.returning import Returned, Returning, Target
from quorate.backup.saving import Saved, expect_same, save_topic
from quorate.backup.source import Source, source_of
from quorate.batch import decode_records, encode_records, parse_batch_header
from quorate.client import LATEST, ClientError, Cluster, Joint
from quorate.client.admin import new_producer_id
from quorate.client.ranges import Range, batches_between
from quorate.node.address import Address
from quorate.node.client import Client
from quorate.wire.messages import Api
from tests.unit.kafka.harness import POLL_S, TIMEOUT_S, Connection, Served, serve

FILE_BYTES = 300


class Room:
    """A topic, a place, and what can be done with them."""

    def __init__(self, served: Served, connection: Connection, directory: Path) -> None:
        self._served = served
        self._connection = connection
        self.place: Place = Directory(directory)
        self._bootstrap = f"127.0.0.1:{served.port}"
        self.other_key: bytes | None = None

    async def write(self, topic: str, *values: bytes, **more: int) -> None:
        for value in values:
            batch = encode_records([(b"k", value), (self.other_key, value * 2)], 5, **more)
            assert (await self._connection.produce(topic, batch)).error_code == 0

    async def delete_before(self, topic: str, offset: int) -> None:
        partitions = [{"partition_index": 0, "offset": offset}]
        values = {"topics": [{"name": topic, "partitions": partitions}], "timeout": timedelta(seconds=5)}
        answer = await self._connection.ask(Api.DELETE_RECORDS, values)
        assert answer.topics[0].partitions[0].error_code == 0

    async def asking(self, ask: Callable[[Cluster], Any]) -> Any:
        def asked() -> Any:
            with Cluster(self._bootstrap, timeout_s=TIMEOUT_S) as cluster:
                return ask(cluster)

        return await asyncio.to_thread(asked)

    async def save(self, topic: str, **more: Any) -> Saved:
        source = source_of(self._served.node.metadata.image.topics[topic], "test")
        more = {"file_bytes_max": FILE_BYTES} | more
        saved: Saved = await self.asking(lambda cluster: save_topic(self.place, cluster, source, **more))
        return saved

    async def standing(self, manifest: Manifest, topic: str) -> Standing:
        (partition,) = manifest.partitions
        (uncommitted,) = check(self.place, manifest)
        found: Standing = await self.asking(
            lambda cluster: standing(cluster, topic, 0, self.place, partition, uncommitted)
        )
        return found

    async def put_back(
        self,
        manifest: Manifest,
        topic: str,
        at: Standing | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Returned:
        made = self._served.node.metadata.image.topics[topic]
        producer_id = await self.asking(new_producer_id)
        async with Client("test", {1: Address("127.0.0.1", self._served.port)}) as client:
            returning = Returning(
                self.place,
                client,
                Target(topic, made.id, made.replication),
                throttle=Throttle(None, monotonic()),
                progress=Progress(topic, lambda _: None),
                whole=manifest.size,
                is_stopped=is_stopped,
            )
            uncommitted = check(self.place, manifest)
            (returned,) = await returning.run(manifest, uncommitted, [at or Standing()], producer_id)
        return returned

    async def transact(self, topic: str, number: int, **outcomes: bool | None) -> None:
        """One joint transaction; what its attempts write takes turns. False: it does not count; None: everything of
        that number stays open."""

        def write() -> None:
            with Joint(self._bootstrap, "app", "run", timeout_s=TIMEOUT_S) as joint:
                attempts = [joint.open(number, task=task, attempt=0) for task in range(len(outcomes))]
                writers = dict(zip(outcomes, map(joint.writer, attempts), strict=True))
                for turn in range(2):
                    for name, writer in writers.items():
                        value = f"{name}-{turn}".encode()
                        writer.append(topic, {0: encode_records([(b"k", value), (self.other_key, value)], 5)})
                if None not in outcomes.values():
                    joint.commit(
                        number, [writers[name].part() for name, counts in outcomes.items() if counts]
                    )

        await asyncio.to_thread(write)

    async def until_stable(self, topic: str) -> None:
        """Every transaction has its marker."""

        def ends(cluster: Cluster) -> bool:
            return cluster.offsets(topic, {0: LATEST}, committed=True) == cluster.offsets(topic, {0: LATEST})

        await _until(lambda: self.asking(ends))

    async def until_compacted(self, topic: str, records_max: int) -> None:
        async def is_short() -> bool:
            return len(await self.read(topic)) <= records_max

        await _until(is_short)

    async def read(
        self, topic: str, *, committed: bool = False
    ) -> list[tuple[int, bytes | None, bytes | None, int]]:
        """(offset, key, value, timestamp) of every record."""

        def ask(cluster: Cluster) -> list[tuple[int, bytes | None, bytes | None, int]]:
            end = cluster.offsets(topic, {0: LATEST}, committed=committed)[0] or 0
            wanted = Range(topic, 0, 0, end)
            return [
                (record.offset, record.key, record.value, record.timestamp)
                for batch in batches_between(cluster, wanted, committed=committed, missing_is_error=False)
                if not parse_batch_header(batch).is_control
                for record in decode_records(batch)
            ]

        found: list[tuple[int, bytes | None, bytes | None, int]] = await self.asking(ask)
        return found


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(POLL_S)


def in_room(
    tmp_path: Path,
    test: Callable[[Room], Any],
    topics: tuple[str, ...] = ("a", "b"),
    *,
    compaction_every_s: float = 15.0,
    **settings: Any,
) -> None:
    async def main(served: Served) -> None:
        async with await served.connect() as connection:
            for topic in topics:
                assert (await connection.create(topic, **settings)).error_code == 0
            await test(Room(served, connection, tmp_path / "place"))

    serve(tmp_path, main, compaction_every_s=compaction_every_s)


def after(count: int) -> Callable[[], bool]:
    """Somebody wants it to stop after so many looks."""
    looks = iter(range(count))
    return lambda: next(looks, None) is None


@pytest.mark.parametrize("replication", ["raft", "coordinated", "isr", "confirm"])
def test_everything_comes_back_where_it_was(tmp_path: Path, replication: str) -> None:
    async def test(room: Room) -> None:
        await room.write("a", b"1", b"2", producer_id=-1)
        await room.write("a", b"3", producer_id=9, producer_epoch=0, base_sequence=0)
        first = await room.save("a")
        await room.write("a", b"4" * FILE_BYTES, b"5")
        second = await room.save("a")
        assert (first.records, second.records) == (6, 4)
        assert set(first.manifest.files) < set(second.manifest.files)
        assert len(second.manifest.files) >= 4
        assert problems(room.place, second.manifest) == []
        assert (await room.save("a")).records == 0
        returned = await room.put_back(second.manifest, "b")
        assert returned == Returned(10, 0, -1)
        assert await room.read("b") == await room.read("a")
        found = await room.standing(second.manifest, "b")
        assert (found.batches, found.moved) == (5, 0)

    in_room(tmp_path, test, quorate_replication=replication)


@pytest.mark.parametrize("replication", ["raft", "coordinated", "isr", "confirm"])
def test_readers_of_committed_records_see_what_they_saw(tmp_path: Path, replication: str) -> None:
    async def test(room: Room) -> None:
        await room.write("a", b"plain", producer_id=9, producer_epoch=0, base_sequence=0)
        await room.transact("a", 1, one=True, aborted=False, two=True)
        await room.write("a", b"between")
        await room.until_stable("a")
        before = await room.read("a", committed=True)
        await room.transact("a", 2, open=None)
        await room.write("a", b"behind")
        first = (await room.save("a")).manifest
        # What lies behind an open transaction is shown as soon as that is known to have come to nothing.
        behind = [record for record in await room.read("a") if record[2] in (b"behind", b"behind" * 2)]
        returned = await room.put_back(first, "b")
        assert returned == Returned(len(before) + 2, 0, -1, not_committed=4 + 4)
        assert await room.read("b", committed=True) == before + behind
        assert await room.read("b") == before + behind
        whole = await room.standing(first, "b")
        assert (await room.put_back(first, "b", whole)).records == 0

        await room.transact("a", 2, again=True)  # Aborts what was left open.
        await room.until_stable("a")
        second = (await room.save("a")).manifest
        assert (await room.put_back(second, "c")).moved == 0
        assert await room.read("c", committed=True) == await room.read("a", committed=True)

    in_room(tmp_path, test, ("a", "b", "c"), quorate_replication=replication)


def test_a_restore_of_transactions_that_was_stopped_goes_on(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        for number in range(4):
            await room.transact("a", number, one=True, aborted=False, two=True)
        await room.until_stable("a")
        made = (await room.save("a")).manifest
        with pytest.raises(Stopped, match="--resume"):
            await room.put_back(made, "b", is_stopped=after(7))
        found = await room.standing(made, "b")
        assert 0 < found.batches < 16
        returned = await room.put_back(made, "b", found)
        assert (returned.records, returned.moved, returned.not_committed) == (32 - 2 * found.batches, 0, 16)
        assert await room.read("b", committed=True) == await room.read("a", committed=True)

    in_room(tmp_path, test)


def test_what_compaction_has_left_comes_back(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        room.other_key = b"l"  # A compacted topic takes nothing without one.
        await room.transact("a", 1, one=True, aborted=False)
        for number in range(40):
            await room.write("a", b"%04d" % number * 100)
        await room.transact("a", 2, aborted=False, two=True)
        await room.until_stable("a")
        await room.until_compacted("a", 60)
        made = (await room.save("a")).manifest
        returned = await room.put_back(made, "b")
        assert (returned.moved, returned.not_committed) == (0, 8)
        # Both go on being compacted: the newest of each key is what stays.
        newest = [
            {key: record for record in await room.read(topic, committed=True) for key in record[1:2]}
            for topic in ("a", "b")
        ]
        assert newest[0] == newest[1]
        assert [record[2] for record in newest[1].values()] == [b"two-1", b"two-1"]

    policy: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_bytes": "16384",
        "min_cleanable_dirty_ratio": "0.1",
    }
    in_room(tmp_path, test, compaction_every_s=0.05, **policy)


def test_what_is_gone_before_it_is_saved_is_told_and_leaves_its_place(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", *(b"%d" % number for number in range(10)))
        await room.delete_before("a", 5)
        first = await room.save("a")
        assert first.lost == []
        assert first.manifest.partitions[0].start == 5
        await room.write("a", b"lost", b"lost", b"kept")
        end = max(offset for offset, *_ in await room.read("a")) + 1
        await room.delete_before("a", end - 2)
        second = await room.save("a")
        saved_end = first.manifest.partitions[0].end
        assert second.lost == [(0, Gap(saved_end, end - 2))]
        assert second.records == 2
        assert problems(room.place, second.manifest) == []
        returned = await room.put_back(second.manifest, "b")
        assert returned.moved == 0
        records = await room.read("b")
        assert [offset for offset, *_ in records] == [*range(5, saved_end), end - 2, end - 1]
        assert records[-1][2] == b"keptkept"

    in_room(tmp_path, test)


def test_nothing_is_added_to_a_backup_that_is_not_whole(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", b"1", b"2")
        made = (await room.save("a")).manifest
        room.place.remove(made.files[0].name)
        await room.write("a", b"3")
        with pytest.raises(Damaged, match=r"is not there any more \(1 of \d+ files are missing\)"):
            await room.save("a")
        assert manifests.newest(room.place, "a") == made

    in_room(tmp_path, test)


def test_a_first_try_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        source = Source("gone", bytes(16), "test", "raft", 1, 1, {})
        with pytest.raises(ClientError):
            await room.asking(lambda cluster: save_topic(room.place, cluster, source))
        assert room.place.names("") == []

    in_room(tmp_path, test)


def test_a_manifest_that_is_lost_later_was_no_first_try(tmp_path: Path) -> None:
    """Also where whoever made it died before it could say that it was done, and there was nothing new since."""

    async def test(room: Room) -> None:
        await room.write("a", b"1")
        made = (await room.save("a")).manifest
        room.place.write(manifests.begun_name("a"), b"")
        assert (
            expect_same(room.place, Source("a", bytes.fromhex(made.id), "", "raft", 1, 1, {}), TOPIC) == made
        )
        (name,) = (name for name in room.place.names("a") if "/manifest-" in name)
        room.place.remove(name)
        with pytest.raises(WrongBackup, match="has no manifest"):
            await room.save("a")

    in_room(tmp_path, test)


def test_whoever_saves_and_is_stopped_goes_on(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", *(b"%d" % number for number in range(20)))
        with pytest.raises(Stopped, match="the same command goes on"):
            await room.save("a", is_stopped=after(12))
        stopped = manifests.newest(room.place, "a")
        assert not stopped.complete
        assert 0 < stopped.records < 40
        assert problems(room.place, stopped) == []
        saved = await room.save("a")
        assert saved.manifest.complete
        assert saved.records == 40 - stopped.records
        assert set(stopped.files) < set(saved.manifest.files)

    in_room(tmp_path, test)


def test_whoever_restores_and_is_stopped_goes_on_under_the_same_id(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", *(b"%d" % number for number in range(20)))
        made = (await room.save("a")).manifest
        with pytest.raises(Stopped, match="--resume"):
            await room.put_back(made, "b", is_stopped=after(12))
        found = await room.standing(made, "b")
        assert 0 < found.batches < 20
        assert found.producer_id >= 0
        returned = await room.put_back(made, "b", found)
        assert returned.records == 40 - 2 * found.batches
        assert await room.read("b") == await room.read("a")
        whole = await room.standing(made, "b")
        assert (whole.producer_id, whole.batches) == (found.producer_id, 20)
        assert (await room.put_back(made, "b", whole)).records == 0
        assert await room.read("b") == await room.read("a")

    in_room(tmp_path, test)


def test_what_was_on_its_way_when_a_restore_ended_is_not_there_twice(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", *(b"%d" % number for number in range(8)))
        made = (await room.save("a")).manifest
        await room.put_back(made, "b")
        whole = await room.standing(made, "b")
        # As if the last four had come after somebody had looked how far it is.
        looked = whole._replace(batches=4, sequence=whole.sequence - 8)
        returned = await room.put_back(made, "b", looked)
        assert returned == Returned(8, 0, -1)
        assert await room.read("b") == await room.read("a")

    in_room(tmp_path, test)


def test_offsets_that_are_taken_are_told(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", b"1", b"2")
        made = (await room.save("a")).manifest
        await room.write("b", b"already there")
        returned = await room.put_back(made, "b")
        assert returned == Returned(4, 4, 1)
        assert [offset for offset, *_ in await room.read("b")] == [1, 2, 3, 4, 5, 6]

    in_room(tmp_path, test)


def test_a_topic_that_no_restore_has_written_is_refused(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        await room.write("a", b"1", b"2")
        made = (await room.save("a")).manifest
        await room.write("b", b"1")
        with pytest.raises(WrongBackup, match="no restore has written that"):
            await room.standing(made, "b")
        await room.write("c", b"9", producer_id=3, producer_epoch=0, base_sequence=0)
        with pytest.raises(WrongBackup, match="is not what this backup holds"):
            await room.standing(made, "c")

    in_room(tmp_path, test, ("a", "b", "c"))
