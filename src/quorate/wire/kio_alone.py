"""kio, imported without hypothesis.

Where hypothesis is installed, kio teaches it its types as it is imported. That takes a third of the time in which a
node starts, and nobody asks a node to make up examples. A process that uses hypothesis has imported it before, and
keeps it.
"""

from __future__ import annotations

import sys

NAME = "hypothesis"

if NAME not in sys.modules:
    sys.modules[NAME] = None  # type: ignore[assignment]  # How Python is told that there is no such module.
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules[NAME]
