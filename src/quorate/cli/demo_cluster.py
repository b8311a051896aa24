"""The demo's cluster: `quorate up` as a person would start it, in a process and a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from quorate.cli.up_directory import free_row, node_directory, planned
from quorate.cli.wrong import WrongUsage

NODES_COUNT = 3
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
POLL_S = 0.05
SAID_BYTES = 2000


class DemoCluster:
    """Use it in a `with`: it is stopped and its data removed, unless it was asked to be kept."""

    def __init__(self, *, keep: bool) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="quorate-demo-"))
        self._keep = keep
        self.output = self.scratch / "up.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = self.scratch / "data"
        plan = planned(nodes=NODES_COUNT, port=free_row(NODES_COUNT))
        self.port = plan.port
        self.bootstrap = plan.bootstrap()
        self.is_kept = False
        self.is_evidence = False
        """Something was wrong with what it did: it is stopped, and its data and logs stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_kept = self._keep and error is None
        if not self.is_kept:
            self._stop()
            if not self.is_evidence:
                shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Until every node is ready; how long that took."""
        began = monotonic()
        arguments = [
            "up",
            "--nodes",
            str(NODES_COUNT),
            "--dir",
            str(self.directory),
            "--port",
            str(self.port),
        ]
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quorate", *arguments, *["--stop-with-stdin"] * (not self._keep)],
                # Where we die the cluster ends, too, unless it is to be kept.
                stdin=subprocess.DEVNULL if self._keep else subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # A Ctrl-C is ours; we stop the cluster in our own order.
            )
        while "is up: " not in self.said():
            if self._process.poll() is not None or monotonic() - began > READY_TIMEOUT_S:
                raise WrongUsage(f"the cluster did not start: {self.said()[-SAID_BYTES:]}")
            sleep(POLL_S)
        return monotonic() - began

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def node_pid(self, node: int) -> int:
        """The process that holds the node's directory."""
        return int((node_directory(self.directory, node) / "store" / "lock").read_text(encoding="ascii"))

    def kill(self, node: int) -> int:
        """As `kill -9` does; the process that is no more."""
        pid = self.node_pid(node)
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_back(self, node: int) -> bool:
        """It was killed, and has been started again and answers."""
        return f"node {node} is up, process " in self.said()

    def _stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
