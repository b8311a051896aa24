"""The machine that a figure was measured on, without its name; and a place on a real disk."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def describe(directory: Path | None = None) -> dict[str, str]:
    machine = {
        "cores": str(os.cpu_count() or 1),
        "processor": _first_line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    if memory := _first_line("/proc/meminfo", "MemTotal"):
        machine["memory"] = f"{round(int(memory.split()[0]) / 2**20)} GiB"
    if directory is not None:
        machine["filesystem"] = filesystem_of(directory) or "unknown"
    return machine


def filesystem_of(directory: Path) -> str | None:
    """The type of the file system that holds a directory; None where the system does not say."""
    path = directory.resolve()
    best, kind = -1, None
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for mount in mounts:
        _, where, found, *_ = mount.split()
        where = where.replace("\\040", " ")
        if path.is_relative_to(where) and len(where) >= best:
            best, kind = len(where), found
    return kind


@contextmanager
def scratch(directory: Path | None) -> Iterator[Path]:
    """An empty directory, gone afterwards. One in memory flushes nothing, so a real disk is preferred."""
    if directory is None:
        directory = Path(tempfile.gettempdir())
        if filesystem_of(directory) in IN_MEMORY:
            directory = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="quorate-bench-", dir=directory) as made:
        yield Path(made)


def resident_bytes() -> int:
    """This process's memory now; its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024


def _first_line(file: str, key: str) -> str:
    try:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return ""
