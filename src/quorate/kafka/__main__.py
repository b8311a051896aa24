"""A node that serves Kafka clients, as a process: `python -m quorate.kafka --config FILE`.

Its options and exit statuses are those of `python -m quorate.node`.
"""

from __future__ import annotations

import sys

from quorate.kafka import guests
from quorate.node.__main__ import main

if __name__ == "__main__":
    sys.exit(main(guests=guests, program="python -m quorate.kafka"))
