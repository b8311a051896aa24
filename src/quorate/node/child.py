"""A node as a process of ours: started, watched, killed and stopped by whoever holds it.

It reads standard input, which we hold open: where we die, however suddenly, it stops by itself. A Ctrl-C at
the terminal reaches us alone, so that nodes end in the order and the way that we choose.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from quorate.node.config import Address

STOP_TIMEOUT_S = 10.0
OUTPUT_BYTES_MAX = 16 << 20
"""What a node said is kept up to here, and once more as much in a file beside it."""
SAID_BYTES = 2000
LAST_WORDS_MAX = 300


class ChildFailed(Exception):
    """A node did not do what it must; the text says what, and what it said last."""


class NodeChild:
    """One node: its configuration, where its output goes and, while it runs, its process."""

    def __init__(
        self, node: int, address: Address, *, config: Path, output: Path, module: str = "quorate.kafka"
    ) -> None:
        self.node = node
        self.address = address
        self.config = config
        self.output = output
        self.command: Sequence[str] = (sys.executable, "-m", module)
        self.process: subprocess.Popen[bytes] | None = None
        self._output_began = 0

    def start(self) -> None:
        assert self.process is None
        self._turn_output_over()
        with self.output.open("ab") as output:
            self._output_began = output.tell()
            self.process = self._spawn(output)

    def _turn_output_over(self) -> None:
        if self.output.exists() and self.output.stat().st_size > OUTPUT_BYTES_MAX:
            self.output.replace(self.output.with_suffix(".old"))

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, "--config", str(self.config), "--stop-with-stdin"],
            stdin=subprocess.PIPE,  # Held until the node has ended, or we have.
            stdout=output,
            stderr=output,
            process_group=0,
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power switch for the process: nothing in it runs any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As a person would; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait(STOP_TIMEOUT_S)
            raise ChildFailed(f"node {self.node} did not stop in {STOP_TIMEOUT_S} s: {self.said()}") from None

    def wait(self, timeout_s: float) -> int:
        """The exit status of a process that ends by itself."""
        assert self.process is not None
        status = self.process.wait(timeout_s)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process = None
        return status

    def ended(self) -> int | None:
        """The exit status, once, of a process that has ended; a signal's number is negative."""
        if self.process is None or self.process.poll() is None:
            return None
        return self.wait(STOP_TIMEOUT_S)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def said(self) -> str:
        """The end of all that it said, in all its lives."""
        return self._read_output(0) or "(nothing)"

    def last_words(self) -> str:
        """The last line that it said since it was last started."""
        lines = self._read_output(self._output_began).splitlines()
        return lines[-1][:LAST_WORDS_MAX] if lines else "nothing"

    def _read_output(self, began: int) -> str:
        try:
            with self.output.open("rb") as output:
                output.seek(0, 2)
                output.seek(max(began, output.tell() - SAID_BYTES))
                return output.read(SAID_BYTES).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""


def how_it_ended(status: int) -> str:
    """An exit status, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"
