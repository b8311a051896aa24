"""A node whose disk gives no more room while a certain file is there: full_node.py FILE ARGUMENTS…

What was allocated before can be written. Where it has a metadata group, it serves Kafka clients, too.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from quorate.kafka import guests
from quorate.node.__main__ import main
from quorate.node.config import load_config
from quorate.storage.disk import DiskFull, Write
from quorate.storage.open_files import OpenFile
from quorate.storage.real_disk import RealDisk

SIGN = Path(sys.argv[1])

write_growing, allocate = RealDisk._write_growing, RealDisk._allocate


def write_or_full(disk: RealDisk, opened: OpenFile, operation: Write) -> None:
    if SIGN.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write_growing(disk, opened, operation)


def allocate_or_full(disk: RealDisk, file: str, size: int) -> None:
    if SIGN.exists():
        raise DiskFull(f"{file}: {os.strerror(errno.ENOSPC)}")
    allocate(disk, file, size)


if __name__ == "__main__":
    RealDisk._write_growing = write_or_full  # type: ignore[method-assign, assignment]
    RealDisk._allocate = allocate_or_full  # type: ignore[method-assign, assignment]
    arguments = sys.argv[2:]
    has_topics = load_config(Path(arguments[arguments.index("--config") + 1])).voters
    sys.exit(main(arguments, guests=guests if has_topics else None))
