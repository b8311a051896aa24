"""An object store on this machine: moto's server, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from urllib.error import URLError
from urllib.request import Request, urlopen

from quorate.bench.cluster_processes import free_ports

START_S = 60.0
BUCKET = "backups"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@contextmanager
def object_store() -> Iterator[str]:
    """Its address, with a bucket that is empty."""
    (port,) = free_ports(1)
    where = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = monotonic() + START_S
        while True:
            assert server.poll() is None, "moto's server has ended"
            try:
                with urlopen(Request(f"{where}/{BUCKET}", method="PUT"), timeout=5):
                    break
            except (URLError, ConnectionError):
                assert monotonic() < deadline, f"waited {START_S} s for moto's server"
                sleep(0.05)
        yield where
    finally:
        server.terminate()
        server.wait()
