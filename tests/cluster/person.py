"""A person at a terminal, who looks after a cluster with `quorate`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from time import monotonic
from typing import Any

from quorate.bench.cluster_processes import START_TIMEOUT_S


class Operator:
    """Types commands."""

    def __init__(self, servers: str) -> None:
        """Without `servers`, as the environment says."""
        self.servers = servers

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        return self.types_words(*line.split())

    def types_words(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Each as it is, blanks and all."""
        where = ["--bootstrap", self.servers] if self.servers else []
        command = [sys.executable, "-m", "quorate", *words, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def does(self, line: str) -> str:
        done = self.types(line)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def brings_about(self, line: str) -> str:
        """Typed again while it is ordered and not yet so: where the machine is busy, an heir may be late."""
        deadline = monotonic() + START_TIMEOUT_S
        while (done := self.types(line)).returncode == 1:
            assert monotonic() < deadline, done.stderr
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def shows(self, line: str) -> Any:
        """What a command says to programs."""
        return json.loads(self.does(f"{line} --json"))

    def is_refused(self, line: str) -> str:
        """In one line."""
        refused = self.types(line)
        assert refused.returncode == 2, f"{line}: {refused.stdout} {refused.stderr}"
        assert refused.stdout == ""
        assert refused.stderr.count("\n") == 1
        return refused.stderr

    def row(self, line: str, first: int) -> str:
        """The row of a table that begins with this number, over all its lines, blanks as one."""
        table = re.sub(
            r"\s*\n {15,}(?=\S)", " ", self.does(line)
        )  # What begins so far in goes on from above.
        rows = [re.sub(r"\s+", " ", row).strip() for row in table.splitlines()]
        return next(row for row in rows if row.startswith(f"{first} "))
