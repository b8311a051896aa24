"""A node whose disk refuses to flush as soon as a certain file is there: failing_node.py FILE ARGUMENTS…"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from quorate.node.__main__ import main
from quorate.storage import open_files

SIGN = Path(sys.argv[1])

flush_descriptor = open_files.flush_descriptor


def flush_or_fail(fd: int) -> None:
    if SIGN.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    flush_descriptor(fd)


if __name__ == "__main__":
    from quorate.storage import real_disk

    real_disk.flush_descriptor = flush_or_fail  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[2:]))
