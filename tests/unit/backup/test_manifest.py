"""Which manifest counts, and what none may be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from quorate.backup import manifest as manifests
from quorate.backup.checking import problems
from quorate.backup.errors import Damaged, NoBackup, WrongBackup
from quorate.backup.manifest import Gap, Manifest, PartitionSaved, hashed
from quorate.backup.place import Directory
from tests.unit.backup.making import batch_at, data_file, manifest_of, tables_backup, topic_backup


def written(directory: Path, content: bytes, number: int = 1, name: str = "orders") -> None:
    Directory(directory).write(f"{name}/manifest-{number:08d}-{hashed(content)}.json", content)


def test_the_newest_counts_and_takes_with_it_what_nothing_names(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    first = data_file(place, "orders", 0, batch_at(0, b"a"))
    manifests.write(place, manifest_of("orders", PartitionSaved(0, 1, (first,))))
    left_over = data_file(place, "orders", 0, batch_at(5, b"x"))
    second = data_file(place, "orders", 0, batch_at(1, b"b"))
    newer = manifest_of("orders", PartitionSaved(0, 2, (first, second)), number=2)
    manifests.write(place, newer)
    assert manifests.newest(place, "orders") == newer
    assert left_over.name not in place.names("orders")
    assert len(place.names("orders")) == 3


def test_what_is_not_named_as_ours_stays(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    theirs = ["orders/data/notes.txt", "orders/data/0-1.batches", "orders/manifest-old.json", "orders/readme"]
    for name in theirs:
        place.write(name, b"x")
    manifests.write(place, manifest_of("orders"))
    assert set(theirs) < set(place.names("orders"))


def test_data_of_a_first_try_gives_way_and_that_of_a_lost_manifest_does_not(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    for _ in range(2):  # It was killed, and tried again.
        manifests.begin(place, "orders")
        left_over = data_file(place, "orders", 0, batch_at(5, b"x"))
    first = data_file(place, "orders", 0, batch_at(0, b"a"))
    manifests.write(place, manifest_of("orders", PartitionSaved(0, 1, (first,))))
    assert [name for name in place.names("orders") if "/data/" in name] == [first.name] != [left_over.name]

    for name in place.names("orders"):
        if "/manifest-" in name:
            place.remove(name)
    with pytest.raises(
        WrongBackup, match="somebody removed it; put it back, choose another place, or remove"
    ):
        manifests.begin(place, "orders")
    assert first.name in place.names("orders")


def test_two_who_save_at_once_are_told_so(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    manifests.write(place, manifest_of("orders", number=2))
    with pytest.raises(WrongBackup, match="one at a time"):
        manifests.write(place, manifest_of("orders", number=2, complete=False))
    assert manifests.newest(place, "orders").complete


def test_backups_are_listed_and_nothing_else(tmp_path: Path) -> None:
    topic_backup(tmp_path, "b")
    topic_backup(tmp_path, "a")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "note.txt").write_text("x")
    assert manifests.backups_in(Directory(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("order", "there is no backup of 'order'; there are: orders"),
        ("..", "is no name of a topic"),
        ("../x", "is no name of a topic"),
        ("", "is no name of a topic"),
    ],
)
def test_a_backup_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, name: str, why: str) -> None:
    topic_backup(tmp_path)
    with pytest.raises(NoBackup, match=why):
        manifests.newest(Directory(tmp_path), name)


def test_data_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    data_file(Directory(tmp_path), "orders", 0, batch_at(0, b"a"))
    with pytest.raises(NoBackup, match="was not finished"):
        manifests.newest(Directory(tmp_path), "orders")
    assert manifests.newest_or_none(Directory(tmp_path), "orders") is None


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"format": 2}, WrongBackup, "is of format 2; this version of quorate reads 1"),
        ({"number": 7}, Damaged, "it was renamed"),
        ({"name": "other"}, Damaged, "it was renamed"),
        ({"partitions": 5}, Damaged, "is no manifest"),
        ({"surprise": 5}, Damaged, "is no manifest"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, change: dict[str, object], error: type[Exception], why: str
) -> None:
    made = msgspec.to_builtins(manifest_of("orders")) | change
    written(tmp_path, msgspec.json.encode(made))
    with pytest.raises(error, match=why):
        manifests.newest(Directory(tmp_path), "orders")


def test_a_manifest_that_is_no_json_is_damaged(tmp_path: Path) -> None:
    written(tmp_path, b"\xff\xfe")
    with pytest.raises(Damaged, match="is no manifest"):
        manifests.newest(Directory(tmp_path), "orders")


def test_a_whole_backup_has_no_problems(tmp_path: Path) -> None:
    went: list[int] = []
    for made in (topic_backup(tmp_path), tables_backup(tmp_path)):
        assert problems(Directory(tmp_path), made, went.append) == []
        assert manifests.newest(Directory(tmp_path), made.name) == made
    assert sum(went) == sum(path.stat().st_size for path in tmp_path.rglob("data/*"))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (lambda old: PartitionSaved(0, 10, old.files), "nothing is named that holds offsets 3 to 8"),
        (
            lambda old: PartitionSaved(0, 12, old.files, old.gaps),
            "it ends at offset 9, and its manifest says 11",
        ),
        (lambda old: PartitionSaved(0, 10, old.files[1:], (Gap(3, 9),)), "holds offsets 0 to 2"),
    ],
)
def test_offsets_that_nothing_holds_are_named(tmp_path: Path, part: object, why: str) -> None:
    made = topic_backup(tmp_path)
    assert callable(part)
    partitions = (part(made.partitions[0]), made.partitions[1])
    other: Manifest = msgspec.structs.replace(made, partitions=partitions)
    assert any(why in problem for problem in problems(Directory(tmp_path), other))


def test_a_file_that_is_not_what_its_manifest_says_is_found_though_its_hash_fits(tmp_path: Path) -> None:
    made = topic_backup(tmp_path)
    first = msgspec.structs.replace(made.partitions[1].files[0], records=2)
    other = msgspec.structs.replace(made, partitions=(made.partitions[0], PartitionSaved(0, 2, (first,))))
    (problem,) = problems(Directory(tmp_path), other)
    assert "not what its manifest says" in problem
