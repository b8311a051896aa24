"""Ports are chosen once, by whichever process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from random import SystemRandom

import pytest

from quorate.node import ports
from quorate.node.config import Address
from quorate.node.ports import HOST, NoFreePorts, PortTaken, keep_row, listen_once, naming_the_holder

TAKE_ALL = """
import sys
from quorate.node import ports

ports.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 3)
try:
    print(ports.keep_row(1), flush=True)
except ports.NoFreePorts:
    print("none", flush=True)
sys.stdin.read()
"""


between_processes = pytest.mark.skipif(sys.platform != "linux", reason="no names that a kernel keeps")


def another_process(first: int) -> subprocess.Popen[str]:
    """Takes one of three ports, and has it until its standard input is closed."""
    command = [sys.executable, "-c", TAKE_ALL, str(first)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def taken_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_process_never_chooses_a_port_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = keep_row(3)
    monkeypatch.setattr(ports, "PORTS", range(first, first + 1))
    with pytest.raises(NoFreePorts, match="no 1 free ports in a row"):
        keep_row(1)
    listen_once(Address(HOST, first))  # Nobody else does.


@between_processes
def test_what_this_process_has_chosen_no_other_does() -> None:
    with another_process(keep_row(3)) as other:
        assert taken_by(other) == "none"
        other.communicate()


@between_processes
def test_two_processes_choose_differently_and_a_port_is_free_when_its_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = _row_of_others()
    with another_process(row.start) as one, another_process(row.start) as two:
        chosen = {int(taken_by(one)), int(taken_by(two))}
        assert len(chosen) == 2
        monkeypatch.setattr(ports, "PORTS", range(min(chosen), min(chosen) + 1))
        with pytest.raises(NoFreePorts):
            keep_row(1)
        one.communicate()
        two.communicate()
    assert keep_row(1) == min(chosen)


def _row_of_others() -> range:
    """Three ports that nobody has: between those that are chosen from and those that systems hand out."""
    start = SystemRandom().randrange(ports.PORTS.stop + 10, 32_700, 3)
    return range(start, start + 3)


def test_whoever_cannot_listen_hears_who_does() -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = Address(HOST, taken.getsockname()[1])
        with pytest.raises(PortTaken) as refused, naming_the_holder(address):
            listen_once(address)
    assert str(refused.value).startswith(f"port {address.port} is taken")
    if sys.platform == "linux":
        assert f"by process {os.getpid()} (" in str(refused.value)
    with pytest.raises(OSError, match="another reason"), naming_the_holder(address):
        raise OSError("another reason")
