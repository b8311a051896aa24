"""A node of an older version, which knows one feature level less: older_node.py ARGUMENTS…"""

from __future__ import annotations

import sys

from quorate.kafka import guests
from quorate.node import metadata
from quorate.node.__main__ import main

if __name__ == "__main__":
    metadata.KNOWN_LEVEL -= 1  # type: ignore[attr-defined]
    sys.exit(main(guests=guests))
