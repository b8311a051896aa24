"""File systems of their own, small ones, so that a disk is full as the kernel says it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BALLAST = "ballast"


def why_not() -> str:
    """Why none can be made here; empty if they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root mounts file systems"
    if shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        return "needs mkfs.ext4 and mount"
    tried = subprocess.run(["losetup", "--find"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no loop device can be had here"


@contextmanager
def file_system(image: Path, at: Path, *, size: int) -> Iterator[None]:
    """An ext4 in a sparse file, there while this is."""
    at.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    # No blocks are kept for root, who runs the nodes of these tests.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(at))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(at))  # Whatever went wrong above may still have a file open.
        image.unlink()


def fill(at: Path) -> None:
    """Take all room that is left there."""
    with (at / BALLAST).open("wb") as file:
        step, offset = 1 << 20, 0
        while step >= os.statvfs(at).f_frsize:
            try:
                os.posix_fallocate(file.fileno(), offset, step)
            except OSError:
                step //= 2
            else:
                offset += step


def make_room(at: Path) -> None:
    (at / BALLAST).unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
