"""What became of each client with each protocol, told to `tools/clients.py` if it listens."""

from __future__ import annotations

import json
import os
from pathlib import Path

REPORT = "QUORATE_CLIENTS_REPORT"

RECORDS, COMPACTED, TRANSACTIONS = "records", "compacted", "transactions"
"""What was tried."""


def note(client: str, replication: str, tried: str, what: str, *, version: str = "") -> None:
    """The last word on the same thing counts."""
    if REPORT in os.environ:
        with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
            report.write(json.dumps([client, version, replication, tried, what]) + "\n")
