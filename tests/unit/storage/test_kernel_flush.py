"""Flushes that the kernel carries out: begun at once, told when they are done, in their lane's order."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorate.storage import real_disk
from quorate.storage.disk import DiskFailed, Flush, Operation, ReadAt, Write
from quorate.storage.kernel_flush import IN_FLIGHT_MAX, KernelFlush
from quorate.storage.real_disk import SHORT_WRITE_BYTES, PolledDisk, RealDisk


def kernel_flushes() -> bool:
    if not hasattr(os, "eventfd"):
        return False
    event_fd = os.eventfd(0)
    flushes = KernelFlush.open(event_fd)
    if flushes is not None:
        flushes.close()
    os.close(event_fd)
    return flushes is not None


pytestmark = pytest.mark.skipif(not kernel_flushes(), reason="this kernel cannot flush asynchronously")


@pytest.fixture
def event_fd() -> Iterator[int]:
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


@pytest.fixture
def flushes(event_fd: int) -> Iterator[KernelFlush]:
    opened = KernelFlush.open(event_fd)
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PolledDisk]:
    with RealDisk.polled(tmp_path / "data") as disk:
        disk.run_now((Write("file", 0, (bytes(100),)), Write("other", 0, (bytes(100),))))
        yield disk


SHORT = (Write("file", 0, (b"short",)), Flush(("file",)))


def test_the_event_says_when_a_flush_is_done(flushes: KernelFlush, event_fd: int, tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x")
        file.flush()
        number = flushes.begin(file.fileno())
        assert select.select([event_fd], [], [], 10)[0] == [event_fd]
        assert flushes.done() == [(number, None)]
        assert flushes.done() == []


def test_a_descriptor_that_cannot_be_flushed_is_not_taken(flushes: KernelFlush) -> None:
    read, write = os.pipe()
    try:
        assert flushes.begin(write) is None
    finally:
        os.close(read)
        os.close(write)


def test_no_more_are_begun_than_the_kernel_was_told_of(flushes: KernelFlush, tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        begun = [flushes.begin(file.fileno()) for _ in range(IN_FLIGHT_MAX + 1)]
    assert begun[-1] is None
    assert None not in begun[:-1]


def test_a_short_write_and_its_flush_take_no_thread(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_disk, "flush_descriptor", lambda _: pytest.fail("a thread flushes"))
    finished: list[Exception | None] = []
    disk.submit("lane", SHORT, lambda error, _: finished.append(error))
    assert finished == [], "never from inside submit"
    assert disk.read_now("file", 0, 5) == b"short"
    while not finished:
        disk.poll(None)
    assert finished == [None]


def test_several_files_are_flushed_at_once_and_told_together(disk: PolledDisk) -> None:
    finished: list[Exception | None] = []
    disk.submit("lane", (SHORT[0], Flush(("file", "other"))), lambda error, _: finished.append(error))
    assert len(disk._begun) == 2
    while not finished:
        disk.poll(None)
    assert finished == [None]
    assert not disk._begun


def test_where_the_kernel_takes_only_some_a_thread_does_all(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = KernelFlush.begin
    calls: list[int] = []

    def once(flushes: KernelFlush, fd: int) -> int | None:
        calls.append(fd)
        return begin(flushes, fd) if len(calls) == 1 else None

    monkeypatch.setattr(KernelFlush, "begin", once)
    finished: list[str] = []
    disk.submit("lane", (SHORT[0], Flush(("file", "other"))), lambda *_: finished.append("first"))
    disk.submit("lane", (Write("file", 0, (b"later",)),), lambda *_: finished.append("second"))
    while len(finished) < 2:
        disk.poll(None)
    assert finished == ["first", "second"]
    assert disk.read_now("file", 0, 5) == b"later"


def test_what_follows_in_the_lane_waits_for_the_flush(disk: PolledDisk) -> None:
    finished: list[str] = []

    def job(name: str, *operations: Operation) -> None:
        disk.submit("lane", operations, lambda *_: finished.append(name))

    job("first", *SHORT)
    job("second", Write("file", 0, (b"later",)))
    job("third", *SHORT)
    assert disk.read_now("file", 0, 5) == b"short", "the second has not begun"
    while len(finished) < 3:
        disk.poll(None)
    job("fourth", *SHORT)
    while len(finished) < 4:
        disk.poll(None)
    assert finished == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize(
    "operations",
    [
        (Write("file", 0, (bytes(SHORT_WRITE_BYTES + 1),)), Flush(("file",))),
        (Write("new", 0, (b"x",)), Flush(("new",))),
        (Write("file", 0, (b"x",)), ReadAt("file", 0, 1)),
    ],
    ids=["long", "a new file", "something else"],
)
def test_everything_else_is_a_threads(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch, operations: tuple[Operation, ...]
) -> None:
    monkeypatch.setattr(KernelFlush, "begin", lambda *_: pytest.fail("the kernel flushes"))
    finished: list[Exception | None] = []
    disk.submit("lane", operations, lambda error, _: finished.append(error))
    while not finished:
        disk.poll(None)
    assert finished == [None]


def test_a_flush_that_the_kernel_does_not_take_is_a_threads(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelFlush, "begin", lambda *_: None)
    finished: list[Exception | None] = []
    disk.submit("lane", SHORT, lambda error, _: finished.append(error))
    while not finished:
        disk.poll(None)
    assert finished == [None]


def test_a_failed_flush_of_the_kernel_is_final(disk: PolledDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 5, whoever flushes."""
    done: Callable[[KernelFlush], list[tuple[int, OSError | None]]] = KernelFlush.done

    def failing(flushes: KernelFlush) -> list[tuple[int, OSError | None]]:
        return [(number, OSError(errno.EIO, os.strerror(errno.EIO))) for number, _ in done(flushes)]

    answers: list[Exception | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(KernelFlush, "done", failing)
        disk.submit("lane", SHORT, lambda error, _: answers.append(error))
        while not answers:
            disk.poll(None)
    disk.submit("lane", SHORT, lambda error, _: answers.append(error))
    while len(answers) < 2:
        disk.poll(None)
    assert [type(answer) for answer in answers] == [DiskFailed, DiskFailed]
    assert "an earlier flush failed: file: Input/output error" in str(answers[1])


def test_closing_waits_for_the_kernel_and_for_what_waits_behind_it(tmp_path: Path) -> None:
    with RealDisk.polled(tmp_path) as disk:
        disk.run_now((Write("file", 0, (bytes(10),)),))
        disk.submit("lane", SHORT, lambda *_: None)
        disk.submit("lane", (Write("file", 5, (b"later",)),), lambda *_: None)
    assert (tmp_path / "file").read_bytes() == b"shortlater"
