"""The real disk: jobs in order, errors in our words, and nothing half done that looks whole."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorate.storage import open_files, real_disk
from quorate.storage.disk import (
    Allocate,
    Buffer,
    DiskFailed,
    DiskFull,
    Flush,
    FlushDirectory,
    Operation,
    ReadAt,
    Rename,
    Truncate,
    Unlink,
    Write,
)
from quorate.storage.open_files import BadName
from quorate.storage.real_disk import DirectoryInUse, PolledDisk, RealDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PolledDisk]:
    with RealDisk.polled(tmp_path / "data") as disk:
        yield disk


def run(disk: PolledDisk, *operations: Operation) -> list[bytes]:
    """Submit one job and wait for it."""
    answers: list[tuple[Exception | None, list[bytes]]] = []
    disk.submit("lane", operations, lambda error, results: answers.append((error, results)))
    while not answers:
        disk.poll(None)
    error, results = answers[0]
    if error is not None:
        raise error
    return results


def content(disk: PolledDisk, file: str) -> bytes:
    return disk.read_now(file, 0, 1 << 30)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_what_was_written_and_flushed_is_read_back(disk: PolledDisk) -> None:
    results = run(
        disk,
        Write("journal.a", 0, (b"one", bytearray(b"two"), memoryview(b"three!")[:5], b"")),
        Write("journal.a", 3, (b"TWO",)),
        Flush(("journal.a",)),
        FlushDirectory(""),
        ReadAt("journal.a", 0, 6),
        ReadAt("journal.a", 6, 1 << 40),
        ReadAt("journal.a", 100, 5),
    )
    assert results == [b"oneTWO", b"three", b""]
    assert disk.size_now("journal.a") == 11


def test_a_gap_reads_as_zeros(disk: PolledDisk) -> None:
    run(disk, Write("file", 4, (b"x",)))
    assert content(disk, "file") == b"\0\0\0\0x"


def test_directories_are_made_when_needed_and_flushed_into_their_parents(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = open_files.flush_directory

    def noting(directory: Path) -> None:
        flushed.append(directory.name)
        real(directory)

    monkeypatch.setattr(open_files, "flush_directory", noting)
    run(disk, Write("partitions/0a-3/0.log", 0, (b"x",)), Write("partitions/0a-3/1.log", 0, (b"y",)))
    assert flushed == ["data", "partitions"]
    assert disk.list_now("") == ["partitions"]
    assert disk.list_now("partitions/0a-3") == ["0.log", "1.log"]
    assert disk.list_now("no/such") == []
    assert disk.size_now("no/such") is None


def test_allocated_files_are_zeros_and_really_there(disk: PolledDisk, tmp_path: Path) -> None:
    size = 3 * 1024 * 1024 + 17
    run(disk, Write("journal.a", 0, (b"old",)), Allocate("journal.a", size), Flush(("journal.a",)))
    assert content(disk, "journal.a") == bytes(size)
    assert (tmp_path / "data/journal.a").stat().st_blocks * 512 >= size


def test_renamed_unlinked_and_truncated_files_are_what_later_jobs_see(disk: PolledDisk) -> None:
    run(disk, Write("new", 0, (b"new content",)), Write("old", 0, (b"old",)), Rename("new", "old"))
    run(disk, Write("old", 0, (b"NEW",)), Truncate("old", 7), Flush(("old",)))
    assert content(disk, "old") == b"NEW con"
    assert disk.list_now(".") == ["old"]
    run(disk, Unlink("old"), Unlink("old"), Write("old", 0, (b"again",)))
    assert content(disk, "old") == b"again"


def test_an_operation_on_a_missing_file_fails_the_job_and_ends_it(disk: PolledDisk) -> None:
    for operation in (ReadAt("no", 0, 1), Flush(("no",)), Truncate("no", 0), Rename("no", "yes")):
        with pytest.raises(DiskFailed, match=r"no.*No such file"):
            run(disk, operation, Write("after", 0, (b"x",)))
    assert disk.size_now("after") is None
    run(disk, Write("after", 0, (b"x",)), Flush(("after",)))


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../b", "a/..", ".", "a//b", "a/", "a\0", "ä", "a b"]
)
def test_names_that_could_leave_the_directory_are_refused(disk: PolledDisk, name: str) -> None:
    for operation in (Write(name, 0, (b"x",)), ReadAt(name, 0, 1), Unlink(name), Allocate(name, 1)):
        with pytest.raises(BadName):
            run(disk, operation)
    with pytest.raises(BadName):
        run(disk, Rename("a", name))
    with pytest.raises(BadName):
        disk.size_now(name)
    with pytest.raises(BadName):
        disk.list_now("../x")


def test_a_link_out_of_the_directory_is_not_followed(disk: PolledDisk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "data/journal.a").symlink_to(tmp_path / "secret")
    with pytest.raises(DiskFailed):
        run(disk, Write("journal.a", 0, (b"x",)))
    assert (tmp_path / "secret").read_text() == "secret"


def test_jobs_of_a_lane_are_done_in_order(disk: PolledDisk) -> None:
    finished: list[int] = []
    for number in range(200):
        write = Write("file", number % 7, (b"%d" % number,))
        disk.submit("lane", (write,), lambda _, __, number=number: finished.append(number))  # type: ignore[misc]
    while len(finished) < 200:
        disk.poll(None)
    assert finished == list(range(200))


def test_a_busy_lane_does_not_hold_up_another(disk: PolledDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    real = os.fdatasync

    def waiting(fd: int) -> None:
        go_on.wait(10)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", waiting)
    finished: list[str] = []
    disk.submit("slow", (Write("a", 0, (b"x",)), Flush(("a",))), lambda *_: finished.append("slow"))
    disk.submit("quick", (Write("b", 0, (b"x",)),), lambda *_: finished.append("quick"))
    while not finished:
        disk.poll(None)
    assert finished == ["quick"]
    go_on.set()
    disk.poll(None)
    assert finished == ["quick", "slow"]


def test_files_are_flushed_side_by_side(disk: PolledDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=10)
    names = ("a", "b", "c")
    run(disk, *(Write(name, 0, (b"x",)) for name in names))
    monkeypatch.setattr(os, "fdatasync", lambda _: together.wait())
    run(disk, Flush(names))


def test_completion_is_never_called_from_inside_submit_or_another_thread(disk: PolledDisk) -> None:
    threads: list[threading.Thread] = []
    disk.submit("lane", (), lambda *_: threads.append(threading.current_thread()))
    assert threads == []
    disk.poll(None)
    assert threads == [threading.current_thread()]
    assert disk.poll() == 0
    assert disk.poll(0.01) == 0


def test_an_event_loop_is_told_in_its_own_thread(tmp_path: Path) -> None:
    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[bytes]] = loop.create_future()
        with RealDisk(tmp_path, loop.call_soon_threadsafe) as disk:
            job = (Write("file", 0, (b"hello",)), ReadAt("file", 1, 3))
            disk.submit("lane", job, lambda _, results: answer.set_result(results))
            return (await answer)[0]

    assert asyncio.run(scenario()) == b"ell"


def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    with RealDisk.polled(tmp_path) as disk:
        for number in range(50):
            disk.submit("lane", (Write("file", number, (b"x",)),), lambda *_: None)
    assert (tmp_path / "file").read_bytes() == b"x" * 50
    with pytest.raises(AssertionError, match="closed"):
        disk.submit("lane", (), lambda *_: None)
    disk.close()


def test_short_writes_are_continued_and_many_buffers_split(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    calls: list[int] = []

    def short(fd: int, buffers: Sequence[Buffer], at: int) -> int:
        calls.append(len(buffers))
        return real(fd, [b"".join(buffers)[:1000]], at)

    monkeypatch.setattr(os, "pwritev", short)
    parts = tuple(bytes([number % 251]) * (number % 5) for number in range(3000))
    run(disk, Write("file", 10, parts))
    assert content(disk, "file") == bytes(10) + b"".join(parts)
    assert max(calls) <= 1024


def test_on_a_full_disk_nothing_of_a_write_is_kept(disk: PolledDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    run(disk, Write("file", 0, (b"kept",)))
    real = os.pwritev

    def filling(fd: int, buffers: Sequence[Buffer], at: int) -> int:
        if at >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, [b"".join(buffers)[: 6 - at]], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", filling)
        with pytest.raises(DiskFull, match="file: No space left on device"):
            run(disk, Write("file", 4, (b"too much",)))
        assert content(disk, "file") == b"kept"
    run(disk, Write("file", 4, (b" and more",)), Flush(("file",)))
    assert content(disk, "file") == b"kept and more"


def test_without_room_only_the_own_growth_is_taken_back(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(disk, Write("file", 0, (b"",)))
    entered, go_on = threading.Event(), threading.Event()
    real = open_files.write_whole

    def filling(fd: int, at: int, buffers: Sequence[Buffer]) -> None:
        if at < 100:
            real(fd, at, buffers)
            return
        real(fd, at, (b"half of it",))
        entered.set()
        go_on.wait(10)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(real_disk, "write_whole", filling)
    finished: dict[str, Exception | None] = {}
    disk.submit("early", (Write("file", 100, (b"x" * 50,)),), lambda error, _: finished.update(early=error))
    assert entered.wait(10)
    disk.submit("round", (Write("file", 0, (b"a" * 100,)),), lambda error, _: finished.update(round=error))
    disk.poll(0.1)
    go_on.set()
    while len(finished) < 2:
        disk.poll(None)
    assert isinstance(finished["early"], DiskFull)
    assert finished["round"] is None
    assert content(disk, "file") == b"a" * 100


def test_without_room_an_allocated_file_does_not_appear(disk: PolledDisk) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 1024 * 1024, hard))
    try:
        with pytest.raises(DiskFull):
            run(disk, Allocate("journal.a", 3 * 1024 * 1024))
        assert disk.size_now("journal.a") is None
        with pytest.raises(DiskFull):
            run(disk, Write("file", 0, (bytes(3 * 1024 * 1024),)))
        assert disk.size_now("file") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_flush_is_final(disk: PolledDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 5: the kernel drops the pages, and a second flush would succeed without them."""
    run(disk, Write("file", 0, (b"x",)), Write("other", 0, (b"x",)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(DiskFailed, match="file: Input/output error"):
            run(disk, Flush(("file",)))
    for operation in (Flush(("file",)), Flush(("other", "file")), FlushDirectory(".")):
        with pytest.raises(DiskFailed, match="an earlier flush failed: file: Input/output error"):
            run(disk, operation)
    assert run(disk, ReadAt("other", 0, 1)) == [b"x"]


def test_a_flush_that_fails_for_lack_of_space_is_a_failure_too(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(disk, Write("file", 0, (b"x",)))
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(DiskFailed):
        run(disk, Flush(("file",)))


def test_open_files_are_bounded_and_unflushed_ones_flushed_before_they_are_closed(
    disk: PolledDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "FILES_OPEN_MAX", 4)
    flushes: list[int] = []
    real = os.fdatasync

    def counting(fd: int) -> None:
        flushes.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counting)
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        run(disk, Write(f"file-{number}", 0, (b"%d" % number,)))
    assert len(os.listdir("/dev/fd")) <= before + 4
    assert len(flushes) == 16
    assert [content(disk, f"file-{number}") for number in range(20)] == [b"%d" % n for n in range(20)]
    assert len(flushes) == 17  # clean files make room first, and need no flush for that


def test_a_directory_in_use_is_refused_to_a_second_process(tmp_path: Path) -> None:
    with RealDisk.polled(tmp_path) as disk:
        disk.lock_now()
        assert disk.list_now("") == []
        with RealDisk.polled(tmp_path) as second, pytest.raises(DirectoryInUse):
            second.lock_now()
        program = (
            "import sys; from quorate.storage.real_disk import *\n"
            "try: RealDisk.polled(sys.argv[1]).lock_now()\n"
            "except DirectoryInUse as error: print(error)"
        )
        arguments = [sys.executable, "-c", program, str(tmp_path)]
        answer = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        assert f"{tmp_path} is in use by process {os.getpid()}" in answer
        assert "choose another directory" in answer
    with RealDisk.polled(tmp_path) as disk:
        disk.lock_now()
