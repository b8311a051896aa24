"""Directories and object stores: what is written is there, wholly, and what cannot be is told in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from quorate.backup.errors import NoBackup, PlaceFailed
from quorate.backup.place import NO_PYARROW, UNFINISHED, Place, open_place
from tests.unit.backup.object_store import BUCKET, CREDENTIALS, object_store

needs_store = pytest.mark.skipif(
    find_spec("moto") is None or find_spec("pyarrow") is None, reason="moto or pyarrow is not installed"
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store() as where:
        yield where


@pytest.fixture(params=["directory", pytest.param("s3", marks=needs_store)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "directory":
        return open_place(str(tmp_path / "new" / "place"))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("endpoint"))
    return open_place(f"s3://{BUCKET}/{tmp_path.name}/prefix/")


def test_what_is_written_is_listed_read_replaced_and_removed(place: Place) -> None:
    assert place.names("") == []
    place.write("a/data/2", b"two")
    place.write("a/data/1", b"one" * 1000)
    place.write("b/1", bytearray(b""))
    assert place.names("") == ["a/data/1", "a/data/2", "b/1"]
    assert place.names("a") == ["a/data/1", "a/data/2"]
    assert place.names("c") == []
    assert place.read("a/data/1") == b"one" * 1000
    assert place.read("b/1") == b""
    place.write("a/data/2", b"other")
    assert place.read("a/data/2") == b"other"
    place.remove("a/data/2")
    place.remove("a/data/2")
    assert place.names("a") == ["a/data/1"]
    with pytest.raises(NoBackup, match="there is no a/data/2"):
        place.read("a/data/2")


def test_every_directory_that_is_made_is_flushed_into_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure takes all that was written, though it was said to be durable (rule 6)."""
    flushed: list[str] = []

    def flush(directory: Path) -> None:
        flushed.append(directory.relative_to(tmp_path).as_posix())

    monkeypatch.setattr("quorate.backup.place._flush_directory", flush)
    where = str(tmp_path / "new" / "place")
    place = open_place(where)
    place.write("a/data/1", b"one")
    assert flushed == [".", "new", "new/place", "new/place/a", "new/place/a/data"]
    flushed.clear()
    place.write("a/data/2", b"two")
    assert flushed == ["new/place/a/data"]
    flushed.clear()
    open_place(where).write("a/data/2", b"whoever made them may have died before they were flushed")
    assert flushed == ["new", "new/place", "new/place/a", "new/place/a/data"]


@needs_store
def test_a_bucket_that_is_not_there_is_named(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlaceFailed, match="there is no bucket 'nothing'"):
        open_place("s3://nothing/here", endpoint=endpoint)


def test_what_was_not_finished_is_not_there(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    place.write("a/1", b"one")
    (tmp_path / "a" / f"2{UNFINISHED}").write_bytes(b"tw")
    assert place.names("") == ["a/1"]


@pytest.mark.parametrize(
    ("text", "endpoint", "why"),
    [
        ("", "", "no place is named"),
        ("s3://", "", "names no bucket"),
        ("s3:///prefix", "", "names no bucket"),
        ("gs://bucket", "", "in a directory, or in s3://BUCKET/PREFIX"),
        ("here", "http://x:1", "--endpoint is for s3:// places"),
    ],
)
def test_what_is_no_place_is_said(text: str, endpoint: str, why: str) -> None:
    with pytest.raises(PlaceFailed, match=why):
        open_place(text, endpoint=endpoint)


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PlaceFailed) as failed:
        open_place("s3://bucket/prefix")
    assert str(failed.value) == NO_PYARROW


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlaceFailed, match="it is a file"):
        open_place(str(tmp_path / "file")).names("")
    with pytest.raises(PlaceFailed, match="is the place right"):
        open_place(str(tmp_path / "file")).write("a/b", b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PlaceFailed, match="may you write there"):
        open_place(str(tmp_path)).write("a/b", b"")
