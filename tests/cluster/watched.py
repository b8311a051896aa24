"""A command that a person watches, and interrupts: what it says of its progress, line by line, while it runs."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S

INTERRUPTED = 130
"""As a shell reports whoever was ended by Ctrl-C."""


class Watched:
    """Runs from the start; use `until_says` and then `interrupted` or `ends`."""

    def __init__(self, line: str, servers: str) -> None:
        self.line = line
        self.said: list[str] = []
        """On stderr, so far."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quorate", *line.split(), "--bootstrap", servers],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reads = threading.Thread(target=self._read, daemon=True)
        self._reads.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said.append(line.rstrip("\n"))

    async def until_says(self, what: str) -> str:
        """The first line with this in it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            is_over = self.process.poll() is not None
            if is_over:
                self._reads.join()
            for line in list(self.said):
                if what in line:
                    return line
            assert not is_over, f"{self.line} ended without {what!r}: {self.said}"
            assert loop.time() < deadline, f"{self.line} has not said {what!r}: {self.said}"
            await asyncio.sleep(POLL_S)

    async def ends(self) -> int:
        """Nodes talk through proxies of this loop, so it goes on meanwhile."""
        code = await asyncio.to_thread(self.process.wait, 2 * START_TIMEOUT_S)
        self._reads.join()
        return code

    async def interrupted(self) -> str:
        """Ctrl-C: it ends at once, and the line before the last says what becomes of what was ordered."""
        self.process.send_signal(signal.SIGINT)
        assert await self.ends() == INTERRUPTED, f"{self.line}: {self.said}"
        assert self.said[-1] == "quorate: interrupted", self.said
        assert not any("Traceback" in line for line in self.said), self.said
        return self.said[-2]


def advised(line: str) -> list[str]:
    """The commands that it names, without `quorate`."""
    return re.findall("`quorate ([^`]+)`", line)
