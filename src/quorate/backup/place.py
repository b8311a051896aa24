"""Where backups are: a directory, or `s3://bucket/prefix`.

A place holds named objects. One that is written is there wholly or not at all, and after that it is durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from quorate.backup.errors import NoBackup, PlaceFailed

S3 = "s3://"
NO_PYARROW = (
    "s3:// needs pyarrow, which is not installed: `pip install 'quorate[backup]'`, or name a directory"
)
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
CONNECT_S, REQUEST_S = 10.0, 60.0
UNFINISHED = ".unfinished"


class Place(Protocol):
    """Names have slashes between their parts, whatever the place is."""

    def __str__(self) -> str: ...

    def names(self, under: str) -> list[str]:
        """Of all objects whose name begins with `under/`, in order; `""`: of all."""

    def read(self, name: str) -> bytes:
        """Raises NoBackup where there is no such object, and PlaceFailed."""

    def write(self, name: str, content: bytes | bytearray) -> None:
        """In place of whatever was there."""

    def remove(self, name: str) -> None:
        """If it is there."""


def open_place(text: str, *, endpoint: str = "") -> Place:
    """`endpoint` is for object stores that are not Amazon's. Raises PlaceFailed."""
    if not text:
        raise PlaceFailed(
            "no place is named; write a directory (`.` is the one you are in), or s3://BUCKET/PREFIX"
        )
    if text.startswith(S3):
        return ObjectStore(text, endpoint)
    if endpoint:
        raise PlaceFailed(f"--endpoint is for s3:// places, and {text!r} is a directory; leave it out")
    if "://" in text:
        raise PlaceFailed(f"{text!r}: backups are kept in a directory, or in s3://BUCKET/PREFIX")
    return Directory(Path(text))


class Directory:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = path.absolute()
        self._flushed: set[Path] = set()
        """Directories that are durable, with all above them."""

    def __str__(self) -> str:
        return str(self._path)

    def names(self, under: str) -> list[str]:
        top = self._path / under
        with _told(self):
            if self._path.exists() and not self._path.is_dir():
                raise PlaceFailed(f"{self}: it is a file; backups are kept in a directory")
            found = [
                (Path(where) / file).relative_to(self._path).as_posix()
                for where, _, files in os.walk(top, onerror=_unless_missing)
                for file in files
                if not file.endswith(UNFINISHED)
            ]
        return sorted(found)

    def read(self, name: str) -> bytes:
        with _told(self):
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError as missing:
                raise NoBackup(f"{self}: there is no {name}") from missing

    def write(self, name: str, content: bytes | bytearray) -> None:
        target = self._root / name
        unfinished = target.with_name(target.name + UNFINISHED)
        with _told(self):
            self._make(target.parent)
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(target)
            _flush_directory(target.parent)

    def _make(self, directory: Path) -> None:
        """With all above it, each flushed into the one above, once.

        So are those of this place that were there: whoever made them may have died before. What lies above a
        place is somebody else's, unless it is made here.
        """
        is_there = directory.is_dir()
        if directory in self._flushed or (is_there and not directory.is_relative_to(self._root)):
            return
        above = directory.parent
        if directory != self._root or not is_there:
            self._make(above)
        directory.mkdir(exist_ok=True)
        if not is_there or os.access(above, os.R_OK | os.W_OK):  # Else nobody here has made it.
            _flush_directory(above)
        self._flushed.add(directory)

    def remove(self, name: str) -> None:
        with _told(self):
            (self._path / name).unlink(missing_ok=True)


class ObjectStore:
    """Through pyarrow, which knows where credentials are (AWS_ACCESS_KEY_ID and so on, files, roles)."""

    def __init__(self, text: str, endpoint: str = "") -> None:
        bucket, _, prefix = text.removeprefix(S3).partition("/")
        if not bucket:
            raise PlaceFailed(f"{text!r} names no bucket; write s3://BUCKET/PREFIX")
        try:
            from pyarrow import fs
        except ImportError as error:
            raise PlaceFailed(NO_PYARROW) from error
        self._fs: Any = fs
        self._root = f"{bucket}/{prefix.strip('/')}".rstrip("/")
        options: dict[str, Any] = {"connect_timeout": CONNECT_S, "request_timeout": REQUEST_S}
        if where := endpoint or _first_given(ENDPOINTS):
            scheme, colons, host = where.rpartition("://")
            options["endpoint_override"] = host
            options["scheme"] = scheme if colons else "https"
        if region := _first_given(REGIONS):
            options["region"] = region
        with _told(self):
            self._store: Any = fs.S3FileSystem(**options)
            if self._store.get_file_info(bucket).type == fs.FileType.NotFound:
                raise PlaceFailed(f"{self}: there is no bucket {bucket!r}, or it may not be seen; create it")

    def __str__(self) -> str:
        return S3 + self._root

    def names(self, under: str) -> list[str]:
        top = f"{self._root}/{under}".rstrip("/")
        with _told(self):
            selector = self._fs.FileSelector(top, allow_not_found=True, recursive=True)
            found = [info.path for info in self._store.get_file_info(selector) if info.is_file]
        return sorted(path.removeprefix(self._root + "/") for path in found)

    def read(self, name: str) -> bytes:
        with _told(self):
            try:
                with self._store.open_input_stream(f"{self._root}/{name}") as stream:
                    content: bytes = stream.readall()
            except FileNotFoundError as missing:
                raise NoBackup(f"{self}: there is no {name}") from missing
        return content

    def write(self, name: str, content: bytes | bytearray) -> None:
        with _told(self), self._store.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(content)

    def remove(self, name: str) -> None:
        with _told(self):
            try:
                self._store.delete_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """What the world refuses, in one line."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).partition("\n")[0]
        raise PlaceFailed(f"{place}: {why}; is the place right, and may you write there?") from error


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _flush_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _first_given(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
