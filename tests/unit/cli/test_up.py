"""`quorate up` before anything runs: what it refuses, and how it looks after processes that end."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from quorate.bench.cluster_processes import free_ports
from quorate.cli import up_directory, up_supervisor
from quorate.cli.entry import run
from quorate.cli.up import command_again
from quorate.cli.up_directory import CLUSTER_FILE, LocalCluster, found, free_row, make_all, planned
from quorate.cli.up_supervisor import State, Supervisor, Watched
from quorate.cli.wrong import WrongUsage
from quorate.node.child import NodeChild, how_it_ended
from quorate.node.config import Address, load_config
from quorate.node.requests import Status
from tests.cluster.support import until


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refusal is."""
    assert run(["up", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


# ---- the directory ----


def made(directory: Path, *, nodes: int, port: int) -> LocalCluster:
    cluster = planned(nodes=nodes, port=port)
    make_all(directory, cluster)
    return cluster


@pytest.mark.parametrize(
    ("nodes", "voters"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3]), (9, [1, 2, 3, 4, 5])]
)
def test_three_or_five_nodes_vote_and_the_rest_follow(tmp_path: Path, nodes: int, voters: list[int]) -> None:
    made(tmp_path, nodes=nodes, port=19092)
    configs = [load_config(tmp_path / f"n{node}" / "config.json") for node in range(1, nodes + 1)]
    assert all(list(config.voters) == voters for config in configs)
    assert [config.listen for config in configs] == [f"127.0.0.1:{19092 + each}" for each in range(nodes)]


def test_a_taken_port_is_named_with_its_process_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = free_row(2)
    port = first + 1
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen(1)
        said = refused(capsys, "--dir", str(tmp_path / "d"), "--port", str(first), "--nodes", "2")
    assert f"port {port} is taken" in said
    assert "choose another --port" in said
    if Path("/proc/net/tcp").exists():
        assert f"by process {os.getpid()} (" in said
    assert not (tmp_path / "d" / "n1").exists()


def test_a_foreign_directory_is_refused_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").touch()
    assert "holds no cluster" in refused(capsys, "--dir", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert "is a file" in refused(capsys, "--dir", str(tmp_path / "letter.txt"))


def test_the_second_up_on_a_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with up_directory.held(tmp_path):
        said = refused(capsys, "--dir", str(tmp_path))
    assert f"another `quorate up` runs in {str(tmp_path)!r}, process {os.getpid()}" in said


def test_a_cluster_is_found_again_and_no_other_is_taken_for_it(tmp_path: Path) -> None:
    cluster = made(tmp_path, nodes=2, port=19_000)
    assert found(tmp_path, nodes=None, port=None) == cluster
    assert found(tmp_path, nodes=2, port=19_000) == cluster
    for nodes, port in ((3, None), (None, 9092)):
        with pytest.raises(WrongUsage, match="holds a cluster of 2 nodes from port 19000 on"):
            found(tmp_path, nodes=nodes, port=port)


def test_a_lost_node_is_not_made_anew_as_if_it_had_never_voted(tmp_path: Path) -> None:
    cluster = made(tmp_path, nodes=3, port=19_000)
    shutil.rmtree(tmp_path / "n2")
    with pytest.raises(WrongUsage, match="n2 is gone") as refused:
        found(tmp_path, nodes=None, port=None)
    assert not (tmp_path / "n2").exists()
    # What it says to do, done.
    assert "`quorate cluster replace 2 -b 127.0.0.1:19000,127.0.0.1:19002`" in str(refused.value)
    (command,) = re.findall("`quorate (format [^`]+)`", str(refused.value))
    assert run(command.split()) == 0
    assert found(tmp_path, nodes=None, port=None) == cluster


def test_where_no_majority_is_left_no_replacement_is_advised(tmp_path: Path) -> None:
    made(tmp_path, nodes=3, port=19_000)
    shutil.rmtree(tmp_path / "n2")
    shutil.rmtree(tmp_path / "n3")
    with pytest.raises(WrongUsage, match="begin a new cluster") as refused:
        found(tmp_path, nodes=None, port=None)
    assert "--replaces" not in str(refused.value)


def test_a_nodes_directory_in_anothers_place_is_refused(tmp_path: Path) -> None:
    made(tmp_path, nodes=2, port=19_000)
    (tmp_path / "n1").rename(tmp_path / "kept")
    (tmp_path / "n2").rename(tmp_path / "n1")
    (tmp_path / "kept").rename(tmp_path / "n2")
    with pytest.raises(WrongUsage, match="put node 1's back"):
        found(tmp_path, nodes=None, port=None)


def test_a_half_made_cluster_is_nobodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Power lost while it was made: the cluster's file, written last, is not there."""
    made(tmp_path, nodes=1, port=19_000)
    (tmp_path / CLUSTER_FILE).unlink()
    assert "holds no cluster" in refused(capsys, "--dir", str(tmp_path))


def test_an_unreadable_cluster_file_is_named(tmp_path: Path) -> None:
    (tmp_path / CLUSTER_FILE).write_bytes(b"{}")
    with pytest.raises(WrongUsage, match=r"cluster\.json is unreadable"):
        found(tmp_path, nodes=None, port=None)


@pytest.mark.parametrize(
    ("directory", "nats", "command"),
    [
        ("quorate-data", None, "quorate up"),
        ("my data", None, "quorate up --dir 'my data'"),
        ("d", "nats://127.0.0.1:4222", "quorate up --dir d --nats nats://127.0.0.1:4222"),
        ("d", "tls://me:secret@host:4222", "quorate up --dir d --nats URL"),
    ],
)
def test_what_starts_it_again_is_said_with_what_is_not_remembered(
    directory: str, nats: str | None, command: str
) -> None:
    assert command_again(Path(directory), nats) == command


def test_ports_beyond_the_last_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "65535 is the last" in refused(capsys, "--dir", str(tmp_path / "d"), "--port", "65534")


# ---- processes that end ----


def child_that(does: str, directory: Path) -> NodeChild:
    """A real process in the place of a node."""
    address = Address("127.0.0.1", free_ports(1)[0])
    child = NodeChild(1, address, config=directory / "config.json", output=directory / "node.log")
    child.command = (sys.executable, "-c", does)
    return child


def test_what_a_killed_node_had_said_before_is_not_told_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_supervisor, "RESTART_FIRST_S", 0.01)
    said: list[str] = []
    dies = "import os; print('node 4 was forgotten', flush=True); os.kill(os.getpid(), 9)"

    async def main() -> None:
        await Supervisor("c", {1: child_that(dies, tmp_path)}, said.append).run()

    asyncio.run(main())
    assert said[0] == "node 1 was ended by SIGKILL: it starts again in 0.0 s"


def test_a_node_that_never_starts_is_left_down_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_supervisor, "RESTART_FIRST_S", 0.01)
    said: list[str] = []
    child = child_that("import sys; print('first'); sys.exit('no room here')", tmp_path)

    async def main() -> None:
        supervisor = Supervisor("c", {1: child}, said.append)
        await supervisor.run()
        assert supervisor.is_lost
        assert not supervisor.is_ready

    asyncio.run(main())
    assert len(said) == up_supervisor.FAILED_STARTS_MAX
    assert all("node 1 ended with status 1" in line for line in said)
    assert all(line.endswith("its last words: no room here") for line in said)
    assert ["left down" in line for line in said] == [False] * 3 + [True]
    assert ["starts again in" in line for line in said] == [True] * 3 + [False]


def test_a_node_that_does_not_stop_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_supervisor, "STOP_TIMEOUT_S", 0.2)
    said: list[str] = []
    sign = tmp_path / "deaf"
    child = child_that(
        "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(sign)!r}).touch(); signal.pause()",
        tmp_path,
    )

    async def main() -> None:
        supervisor = Supervisor("c", {1: child}, said.append)
        running = asyncio.create_task(supervisor.run())
        await until(sign.exists, "the process to be deaf")
        supervisor.ask_to_stop()
        await running

    asyncio.run(main())
    assert said == ["node 1 did not stop in 0.2 s and is killed"]
    assert child.process is None


def test_pauses_grow_while_a_node_keeps_ending_and_are_forgotten_once_it_is_steady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(up_supervisor, "monotonic", lambda: now)
    child = child_that("", tmp_path)
    monkeypatch.setattr(child, "start", lambda: None)
    watched = Watched(child)
    status = Status(1, (), 0, ())
    pauses = []
    for ran_s in [0.0] * 7 + [60.0]:
        watched.start()
        watched.answered(status)
        now += ran_s
        watched.ended()
        assert watched.state is State.DOWN
        pauses.append(watched.restart_due - now)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 0.5]


def test_ready_means_that_every_node_knows_every_node_and_the_metadata_leader(tmp_path: Path) -> None:
    async def main() -> None:
        children = {node: child_that("", tmp_path) for node in (1, 2)}
        supervisor = Supervisor("c", children, lambda line: None)

        def ready() -> bool:
            return supervisor.is_ready

        first, second = supervisor.nodes.values()
        first.state = second.state = State.STARTING
        first.answered(Status(1, (2,), 0, (), metadata_leader=1, registered=(1, 2)))
        assert not ready()
        second.answered(Status(2, (1,), 0, (), metadata_leader=0, registered=(1, 2)))
        assert not ready()
        second.answered(Status(2, (1,), 0, (), metadata_leader=1, registered=(1,)))
        assert not ready()
        second.answered(Status(2, (1,), 0, (), metadata_leader=1, registered=(1, 2)))
        assert ready()
        second.answered(None)
        assert not ready()
        assert [watched.state for watched in supervisor.nodes.values()] == [State.UP, State.SILENT]

    asyncio.run(main())


def test_how_a_process_ended_is_said_in_words() -> None:
    assert how_it_ended(-9) == "was ended by SIGKILL"
    assert how_it_ended(2) == "ended with status 2"
    assert how_it_ended(-200) == "was ended by signal 200"


def test_output_is_turned_over_before_it_grows_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.node.child.OUTPUT_BYTES_MAX", 100)
    child = child_that("print('hello')", tmp_path)
    child.output.write_text("x" * 200)
    child.start()
    assert child.wait(30) == 0
    assert child.output.read_text() == "hello\n"
    assert (tmp_path / "node.old").read_text() == "x" * 200
    assert child.last_words() == "hello"


def test_a_node_whose_directory_is_gone_starts_when_it_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_supervisor, "LOOK_FOR_DIRECTORY_S", 0.01)
    said: list[str] = []
    there = tmp_path / "there"
    child = child_that(
        f"import pathlib, signal; pathlib.Path({str(there)!r} + '-ran').touch(); signal.pause()", tmp_path
    )
    other = child_that("import signal; signal.pause()", tmp_path)

    async def main() -> None:
        supervisor = Supervisor(
            "c",
            {1: child, 2: other},
            said.append,
            why_not_there=lambda node: "it is gone" if node == 1 and not there.exists() else "",
        )
        running = asyncio.create_task(supervisor.run())
        await until(lambda: len(said) == 1, "its directory to be missed")
        assert supervisor.nodes[1].state is State.LEFT_DOWN
        there.touch()
        await until(lambda: Path(f"{there}-ran").exists(), "it to run")
        supervisor.ask_to_stop()
        supervisor.ask_to_stop()
        await running

    asyncio.run(main())
    assert said == ["node 1 is left down: it is gone", "killing what still runs"]
