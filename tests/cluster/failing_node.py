"""A node whose disk refuses to flush as soon as a certain file is there: failing_node.py FILE ARGUMENTS…"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from quorate.node.__main__ import main
from quorate.storage import open_files
from quorate.storage.kernel_flush import KernelFlush

SIGN = Path(sys.argv[1])

flush_descriptor = open_files.flush_descriptor
kernel_done = KernelFlush.done


def flush_or_fail(fd: int) -> None:
    if SIGN.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    flush_descriptor(fd)


def done_or_failed(flushes: KernelFlush) -> list[tuple[int, OSError | None]]:
    failure = OSError(errno.EIO, os.strerror(errno.EIO)) if SIGN.exists() else None
    return [(number, failure or own) for number, own in kernel_done(flushes)]


if __name__ == "__main__":
    from quorate.storage import real_disk

    real_disk.flush_descriptor = flush_or_fail  # type: ignore[attr-defined]
    KernelFlush.done = done_or_failed  # type: ignore[method-assign, assignment]
    sys.exit(main(sys.argv[2:]))
