"""A node on a machine that is not like the others: odd_node.py FILE ARGUMENTS…

FILE is JSON: `version` is what the node says it is, `ahead_ms` how far its clock is ahead, `free_share` how much of
its disk is free. The latter two are read whenever they are asked for; without FILE all is as it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import quorate

SIGN = Path(sys.argv[1])

time_ns, statvfs = time.time_ns, os.statvfs


def odd(what: str, else_: Any) -> Any:
    try:
        return json.loads(SIGN.read_text(encoding="utf-8")).get(what, else_)
    except FileNotFoundError:
        return else_


def odd_time_ns() -> int:
    return time_ns() + int(odd("ahead_ms", 0)) * 1_000_000


def odd_statvfs(path: str) -> os.statvfs_result:
    found = statvfs(path)
    if (share := odd("free_share", None)) is None:
        return found
    free = int(found.f_blocks * share)
    return os.statvfs_result((*found[:3], free, free, *found[5:]))


if __name__ == "__main__":
    quorate.__version__ = odd("version", quorate.__version__)
    from quorate.kafka import guests
    from quorate.node.__main__ import main

    time.time_ns = odd_time_ns
    os.statvfs = odd_statvfs  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:], guests=guests))
