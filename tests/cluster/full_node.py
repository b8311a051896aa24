"""A node whose disk has no room in its segments while a certain file is there: full_node.py FILE ARGUMENTS…"""

from __future__ import annotations

import sys
from pathlib import Path

from quorate.node.__main__ import main
from quorate.storage.disk import DiskFull, Write
from quorate.storage.open_files import OpenFile
from quorate.storage.real_disk import RealDisk

SIGN = Path(sys.argv[1])

write_to = RealDisk._write_to


def write_or_full(disk: RealDisk, opened: OpenFile, operation: Write) -> None:
    if SIGN.exists() and operation.file.startswith("partitions/"):
        raise DiskFull(f"{operation.file}: No space left on device")
    write_to(disk, opened, operation)


if __name__ == "__main__":
    RealDisk._write_to = write_or_full  # type: ignore[method-assign, assignment]
    sys.exit(main(sys.argv[2:]))
