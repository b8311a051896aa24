"""`quorate up` as a person has it: started, used, a node killed, stopped, and the data still there."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.cli.up_directory import free_row

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60.0
POLL_S = 0.02
TOPIC = "letters"


class Up:
    """A running `quorate up`, and what it has said so far."""

    def __init__(self, directory: Path, port: int, output: Path, *more: str) -> None:
        self.directory = directory
        self.output = output
        self.port = port
        command = [sys.executable, "-m", "quorate", "up", "--dir", str(directory), "--port", str(port), *more]
        with output.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, f"waited {TIMEOUT_S} s for {what}: {self.said()}"
            assert self.process.poll() is None, f"it ended, waiting for {what}: {self.said()}"
            time.sleep(POLL_S)

    def until_said(self, text: str, *, after: str = "") -> None:
        """`after`: below those words, as a node that is slow to answer may have been said to be up before."""
        self.until(lambda: text in (said := self.said())[said.find(after) :], repr(text))

    def pid(self, node: int) -> int:
        """Whoever holds the node's directory."""
        return int((self.directory / f"n{node}" / "store" / "lock").read_text())

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


@contextmanager
def running(directory: Path, port: int, *more: str) -> Iterator[Up]:
    up = Up(directory, port, directory.parent / "said.txt", *more)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait(TIMEOUT_S)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def write(port: int, count: int) -> None:
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{port}"}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(TOPIC, 2, 3)])[TOPIC].result(TIMEOUT_S)
    failed: list[object] = []
    producer = Producer(servers | {"acks": "all", "enable.idempotence": True})
    for number in range(count):
        producer.produce(
            TOPIC, str(number).encode(), on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def read(port: int, count: int) -> list[int]:
    """Sorted; a little longer than until the last one, to see one that should not be there."""
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "-", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(2)])
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b""))
        while (message := consumer.poll(0.2)) is not None:
            if message.error() is None:
                found.append(int(message.value() or b""))
    finally:
        consumer.close()
    return sorted(found)


def test_a_cluster_is_up_survives_a_kill_stops_and_comes_back_with_its_data(tmp_path: Path) -> None:
    port = free_row(3)
    directory = tmp_path / "d"
    with running(directory, port) as up:
        up.until_said("is up: 3 nodes")
        for words in (
            f"127.0.0.1:{port},127.0.0.1:{port + 1}",
            "kcat -b",
            "/metrics, and /health, /ready, /state; node 2: 127.0.0.1:",
            'format("quorate")',
            str(directory),
        ):
            up.until_said(words)  # Its lines come one after another.
        write(port, 500)

        second = subprocess.run(
            up.process.args, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert second.returncode == 2
        assert f"another `quorate up` runs in {str(directory)!r}, process {up.process.pid}" in second.stderr
        assert second.stderr.count("\n") == 1

        killed = up.pid(2)
        up.until_said(f", node 2: {killed}, ")
        os.kill(killed, signal.SIGKILL)
        up.until_said("node 2 was ended by SIGKILL: it starts again in 0.5 s")
        up.until_said("node 2 is up, process", after="node 2 was ended by SIGKILL")
        assert up.pid(2) != killed
        assert is_gone(killed)
        assert read(port, 500) == list(range(500))

        pids = [up.pid(node) for node in (1, 2, 3)]
        assert up.stop() == 0
        assert f"stopped; `quorate up --dir {directory}` starts it again" in up.said()
        assert all(map(is_gone, pids))
    with running(directory, port) as up:
        up.until(lambda: up.said().count("is up: 3 nodes") == 2, "the second start")
        assert read(port, 500) == list(range(500))
        assert up.stop(signal.SIGTERM) == 0
    assert "Traceback" not in up.said()
    for node in (1, 2, 3):
        assert "Traceback" not in (directory / f"n{node}" / "node.log").read_text(encoding="utf-8")


def test_nodes_never_outlive_a_killed_up(tmp_path: Path) -> None:
    with running(tmp_path / "d", free_row(3)) as up:
        up.until_said("is up: 3 nodes")
        pids = [up.pid(node) for node in (1, 2, 3)]
        up.process.kill()
        up.process.wait(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not all(map(is_gone, pids)):
            assert time.monotonic() < deadline
            time.sleep(POLL_S)


@pytest.mark.proof
def test_a_node_whose_disk_is_lost_is_left_down_until_it_is_made_anew_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    port = free_row(3)
    directory = tmp_path / "d"
    with running(directory, port) as up:
        up.until_said("is up: 3 nodes")
        write(port, 10)
        third = up.pid(3)
        shutil.rmtree(directory / "n3")
        os.kill(third, signal.SIGKILL)
        up.until_said("node 3 is left down: ")
        up.until_said("lets it count again")
        assert read(port, 10) == list(range(10))
        make, count = re.findall("`(quorate (?:format|cluster replace) [^`]+)`", up.said())
        as_advised(make)
        up.until_said("node 3 is up, process", after="node 3 is left down: ")
        assert re.search(r"node 3 counts in \d+ partitions and the metadata group", as_advised(count))
        third = up.pid(3)
        shutil.rmtree(directory / "n3")
        os.kill(third, signal.SIGKILL)
        up.until(lambda: up.said().count("node 3 is left down: ") == 2, "the second loss")
        assert up.stop() == 1
        assert "not every node ended as it should: node 3" in up.said()


def as_advised(command: str) -> str:
    """Do what a message says, word by word."""
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_on_a_terminal_a_table_shows_how_the_nodes_are(tmp_path: Path) -> None:
    here, there = pty.openpty()
    port = free_row(3)
    command = [sys.executable, "-m", "quorate", "up", "--dir", str(tmp_path / "d"), "--port", str(port)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    shown = b""
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as up:
        os.close(there)
        deadline = time.monotonic() + TIMEOUT_S
        while b"follows node" not in shown:
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            shown += os.read(here, 65536)
        up.send_signal(signal.SIGINT)
        while b"starts it again" not in shown:
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            shown += os.read(here, 65536)
        assert up.wait(TIMEOUT_S) == 0
    os.close(here)
    for words in ("process", "connected to", f"127.0.0.1:{port + 2}", "leads"):
        assert words.encode() in shown


@pytest.mark.proof
def test_a_second_interrupt_kills_a_node_that_hangs(tmp_path: Path) -> None:
    with running(tmp_path / "d", free_row(3)) as up:
        up.until_said("is up: 3 nodes")
        hanging = up.pid(2)
        os.kill(hanging, signal.SIGSTOP)
        up.until_said("node 2 does not answer, process")
        up.process.send_signal(signal.SIGINT)
        up.until_said("stopping")
        assert up.stop() == 1
        assert "killing what still runs" in up.said()
        assert is_gone(hanging)


@pytest.mark.proof
@pytest.mark.parametrize("has_nohup", [True, False])
def test_only_with_nohup_it_outlives_its_terminal(tmp_path: Path, has_nohup: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if has_nohup else signal.SIG_DFL)  # Is inherited.
    try:
        with running(tmp_path / "d", free_row(1), "--nodes", "1") as up:
            up.until_said("is up: 1 node")
            up.process.send_signal(signal.SIGHUP)
            if has_nohup:
                os.kill(up.pid(1), signal.SIGKILL)
                up.until_said("node 1 is up, process", after="node 1 was ended by SIGKILL")
                up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(TIMEOUT_S) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.proof
def test_nodes_that_were_formatted_one_by_one_find_each_other(tmp_path: Path) -> None:
    port = free_row(2)
    voters = f"1=127.0.0.1:{port},2=127.0.0.1:{port + 1}"
    quorate = [sys.executable, "-m", "quorate"]
    nodes = []
    for node in (1, 2):
        place = str(tmp_path / f"n{node}")
        made = [*quorate, "format", place, "--node", str(node), "--voters", voters, "--cluster", "pair"]
        subprocess.run(made, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        nodes.append(subprocess.Popen([*quorate, "node", place, "--stop-with-stdin"], stdin=subprocess.PIPE))
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port},127.0.0.1:{port + 1}", "log_level": 0})
        deadline = time.monotonic() + TIMEOUT_S
        while len(admin.list_topics(timeout=TIMEOUT_S).brokers) < 2:
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        admin.create_topics([NewTopic(TOPIC, 1, 2)])[TOPIC].result(TIMEOUT_S)
        nodes[0].send_signal(signal.SIGTERM)
        nodes[1].communicate(timeout=TIMEOUT_S)  # Its standard input is closed.
        assert [node.wait(TIMEOUT_S) for node in nodes] == [0, 0]
    finally:
        for process in nodes:
            process.kill()
            process.communicate()
