"""No byte of a backup can change, go or come without being found."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.backup.checking import problems
from quorate.backup.errors import BackupError
from quorate.backup.manifest import newest
from quorate.backup.place import Directory
from quorate.batch import decode_records, is_same_but_for_producer, verify, with_producer
from tests.unit.backup.making import batch_at, tables_backup, topic_backup

MAKERS = {"orders": topic_backup, "bank": tables_backup}


@contextmanager
def backup(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        MAKERS[name](Path(directory))
        yield Path(directory)


def is_sound(directory: Path, name: str) -> bool:
    place = Directory(directory)
    try:
        return problems(place, newest(place, name)) == []
    except BackupError:
        return False


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", MAKERS)
def test_a_flip_of_any_byte_of_any_file_is_found(name: str) -> None:
    with backup(name) as directory:
        assert is_sound(directory, name)
        for path in files_of(directory):
            content = path.read_bytes()
            for at in range(len(content)):
                path.write_bytes(content[:at] + bytes((content[at] ^ 1 << at % 8,)) + content[at + 1 :])
                assert not is_sound(directory, name), f"byte {at} of {path.name}"
            path.write_bytes(content)
        assert is_sound(directory, name)


@pytest.fixture(scope="module")
def both() -> Iterator[Path]:
    """Of both kinds in one place; whoever damages one mends it."""
    with backup("orders") as directory:
        tables_backup(directory)
        yield directory


@given(st.sampled_from(sorted(MAKERS)), st.data())
def test_any_other_damage_is_found(both: Path, name: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(both / name)))
    content = path.read_bytes()
    first = data.draw(st.integers(0, len(content)))
    last = data.draw(st.integers(first, len(content)))
    damaged = content[:first] + data.draw(st.binary(max_size=20)) + content[last:]
    path.write_bytes(damaged)
    try:
        assert is_sound(both, name) == (damaged == content)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_that_is_gone_is_found(name: str) -> None:
    with backup(name) as directory:
        for path in files_of(directory):
            moved = directory.parent / f"{directory.name}-moved"
            shutil.move(path, moved)
            assert not is_sound(directory, name), path.name
            shutil.move(moved, path)
        assert is_sound(directory, name)


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=5),
    st.integers(-1, 1 << 60),
    st.integers(-1, 1 << 14),
    st.integers(-1, (1 << 31) - 1),
)
def test_a_batch_of_another_producer_has_the_same_records(
    values: list[bytes], producer_id: int, epoch: int, sequence: int
) -> None:
    batch = batch_at(7, *values, producer_id=3, producer_epoch=1, base_sequence=9)
    other = with_producer(batch, producer_id=producer_id, epoch=epoch, sequence=sequence)
    header = verify(other)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, sequence)
    assert decode_records(other) == decode_records(batch)
    assert is_same_but_for_producer(batch, other)
    assert not is_same_but_for_producer(batch, batch_at(7, *values, b"more"))
