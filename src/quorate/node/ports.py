"""Ports for nodes that are to listen on this machine, kept for this process until it ends.

That nobody listens on a port now says nothing of the next moment: two processes that look at once find the
same one free. So whoever chooses a port keeps it, by a name that one socket at a time can have. The kernel
knows that name as it knows the port, in one network namespace and for all users; it leaves no file behind, and
is free again when its process ends, however that ends. Children do not inherit it: the nodes that are started
are what listens there.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from quorate.node.config import Address

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ports that systems hand out by themselves, so that no outgoing connection sits on one."""
ROWS_TRIED_MAX = 1000

_kept: dict[int, socket.socket] = {}


class NoFreePorts(Exception):
    """So many in a row were not found."""


class PortTaken(Exception):
    """Somebody else listens where a node is to; the text says who."""


def keep_row(count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on, and that nobody else keeps."""
    chance = SystemRandom()
    for _ in range(ROWS_TRIED_MAX):
        first = chance.choice(PORTS)
        row = range(first, first + count)
        if all(map(_keep, row)):
            return first
    raise NoFreePorts(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}; free some")


def keep(port: int) -> bool:
    """Whether nobody listens there, and nobody else keeps it: then we do."""
    return _keep(port)


def listen_once(address: Address) -> None:
    """As a node would, for a moment; raises OSError where somebody else does."""
    with socket.socket() as attempt:
        # As the node will: a connection that has just ended does not keep a port.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(address)
        attempt.listen(1)


@contextmanager
def naming_the_holder(address: Address, setting: str = "listen") -> Iterator[None]:
    """Around listening there, because that setting says so; raises PortTaken."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(
            f"port {address.port} is taken{holder(address.port)}; stop that, or let `{setting}` name another port"
        ) from error


def _keep(port: int) -> bool:
    """Whether it could be kept. What is kept of a row that is not taken in the end stays so: there are plenty."""
    if port in _kept:
        return False
    name = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":  # Others have no such names: this process alone does not choose it twice.
            name.bind(f"\0quorate-port-{port}")
        listen_once(Address(HOST, port))
    except OSError:
        name.close()
        return False
    _kept[port] = name
    return True


# ---- who has a port ----

LISTENS = "0A"
"""The state of a listening socket in the kernel's table."""


def holder(port: int) -> str:
    """Which process listens there, where the kernel shows it to us."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(os.readlink(fd) in sockets for fd in (process / "fd").iterdir()):
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:  # It has ended, or belongs to somebody else.
            continue
    return ""


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
