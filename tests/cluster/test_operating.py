"""`quorate topic` and `quorate cluster` move copies, leaders and votes of a real cluster, as a person uses them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S
from quorate.cli.demo_cluster import DemoCluster
from quorate.cli.up_directory import free_row
from tests.cluster.person import Operator

pytestmark = pytest.mark.cluster


@contextmanager
def fourth_node(
    cluster: DemoCluster, directory: Path, port: int, *, replaces: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Node 4, formatted and run as a person would; ended as a power failure does."""
    voters = ",".join(f"{node}=127.0.0.1:{cluster.port + node - 1}" for node in (1, 2, 3))
    name = next(line.split()[1] for line in cluster.said().splitlines() if line.startswith("Cluster "))
    quorate = [sys.executable, "-m", "quorate"]
    told = ["--node", "4", "--listen", f"127.0.0.1:{port}", "--voters", voters, "--cluster", name]
    subprocess.run(
        [*quorate, "format", str(directory), *told, *["--replaces"] * replaces],
        capture_output=True,
        timeout=START_TIMEOUT_S,
        check=True,
    )
    log = directory / "said.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*quorate, "node", str(directory)], stdout=output, stderr=output)
    try:
        deadline = monotonic() + START_TIMEOUT_S
        while "registered" not in log.read_text(encoding="utf-8"):
            assert monotonic() < deadline, log.read_text(encoding="utf-8")
            sleep(POLL_S)
        yield process
        assert "Traceback" not in log.read_text(encoding="utf-8")
    finally:
        process.kill()  # Also one that was stopped.
        process.wait(START_TIMEOUT_S)


@pytest.mark.proof
@pytest.mark.behaviour("YB-12", "YB-13", "YB-15")
def test_a_fourth_node_joins_copies_leads_votes_and_comes_back_with_a_new_disk(tmp_path: Path) -> None:
    port, directory = free_row(1), tmp_path / "n4"
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        person = Operator(cluster.bootstrap)
        person.does("topic create events --partitions 2")
        with fourth_node(cluster, directory, port):
            assert person.row("cluster status", 4).split()[2:] == ["up", "follows", "0", "0", "0"]
            assert "events/0 is on nodes 1, 2, 3, 4\n" in person.does("topic add events --node 4")
            assert person.brings_about("topic transfer events --to 4").replace(" already", "") == (
                "events/0 is led by node 4\nevents/1 is led by node 4\n"
            )
            assert person.does("topic transfer events/0 --to 4") == "events/0 is led by node 4 already\n"
            assert person.row("topic describe events", 0).startswith("0 4 ")
            person.does("topic remove events/1 --node 1")
            assert "events/1 is on nodes 2, 3, 4 already" in person.does("topic remove events/1 --node 1")
            assert "2, 3, 4" in person.row("topic describe events", 1)
            assert person.does("cluster add 4") == "nodes 1, 2, 3, 4 vote in the metadata group\n"
            assert person.brings_about("cluster transfer --to 4").startswith(
                "the metadata group is led by node 4"
            )
            assert person.does("cluster remove 1") == "nodes 2, 3, 4 vote in the metadata group\n"
            assert person.does("cluster remove 1") == "nodes 2, 3, 4 vote in the metadata group already\n"
            assert " leads " in person.row("cluster status", 4)
            assert " follows " in person.row("cluster status", 1)
        assert "node 4: " in person.row("topic describe events", 0)
        assert "does not answer" in person.row("topic describe events", 0)
        shutil.rmtree(directory)
        with fourth_node(cluster, directory, port, replaces=True):
            assert "disk lost, does not count" in person.row("cluster status", 4)
            assert "`quorate cluster replace 4`" in person.is_refused("cluster add 4")
            assert "`quorate topic replace events --node 4`" in person.is_refused("topic add events --node 4")
            assert "node 4: disk lost" in person.row("topic describe events", 0)
            replaced = person.does("cluster replace 4")
            assert replaced == "node 4 counts in 2 partitions and the metadata group\n"
            assert " votes " in person.row("cluster status", 4)
            nothing = "nothing is left to do: node 4 counts everywhere\n"
            assert person.does("cluster replace 4") == nothing
            person.does("topic remove events/0 --node 4")
            assert person.does("topic replace events/1 --node 4 --with 1") == "events/1 is on nodes 2, 3, 1\n"
            moved = person.does("cluster replace 4 --with 1")
            assert moved == "node 1 counts in 0 partitions and the metadata group in place of node 4\n"


@pytest.mark.proof
def test_an_order_goes_on_whatever_becomes_of_who_gave_it(tmp_path: Path) -> None:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        person = Operator(cluster.bootstrap)
        person.does("topic create events")
        with fourth_node(cluster, tmp_path / "n4", free_row(1)) as fourth:
            fourth.send_signal(signal.SIGSTOP)
            command = [sys.executable, "-m", "quorate", "topic", "add", "events", "--node", "4"]
            with subprocess.Popen(
                [*command, "-b", cluster.bootstrap], stderr=subprocess.PIPE, text=True
            ) as adding:
                assert adding.stderr is not None
                assert adding.stderr.readline().startswith("events/0: to be on 1, 2, 3, 4")
                adding.send_signal(signal.SIGINT)
                said = adding.stderr.read()
            assert (
                "what was ordered stands, and goes on by itself; `quorate topic add events --node 4` goes on"
                in said
            )
            assert said.endswith("quorate: interrupted\n")
            assert adding.returncode == 130
            # Silent for longer than a suspicion takes by now. It has the least to do, and gets nothing to do.
            waiting = person.types("topic add events --node 4 --timeout 3")
            assert waiting.returncode == 1
            assert "events/0: to be on 1, 2, 3, 4: node 4 does not answer\n" in waiting.stderr
            created = person.types("topic create spare --partitions 4")
            assert (created.returncode, created.stderr) == (0, "")
            assert person.shows("topic describe spare/3")["partitions"][0]["nodes"] == [1, 2, 3]
            created = person.types("topic create wide --replicas 4")
            assert created.stderr.startswith("node 4 does not answer, and has copies of wide all the same")
            fourth.send_signal(signal.SIGCONT)
            assert person.does("topic add events --node 4").startswith("events/0 is on nodes 1, 2, 3, 4")
            assert person.does("topic add events --node 4") == "events/0 is on nodes 1, 2, 3, 4 already\n"
            fourth.send_signal(signal.SIGSTOP)
            late = person.types("topic transfer events --to 4")
            assert late.returncode == 1, late.stderr
            assert "node 4 did not take over in time; it may yet" in late.stderr
            fourth.send_signal(signal.SIGCONT)
            assert person.brings_about("topic transfer events --to 4").startswith("events/0 is led by node 4")


@pytest.mark.proof
def test_a_node_that_is_gone_for_good_is_forgotten(tmp_path: Path) -> None:
    port, directory = free_row(1), tmp_path / "n4"
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        person = Operator(cluster.bootstrap)
        person.does("topic create events --partitions 5")
        with fourth_node(cluster, directory, port):
            person.does("topic add events --node 4")
            person.does("cluster add 4")
        voting = person.is_refused("cluster forget 4")
        assert "node 4: it votes in the metadata group; first take its vote away with" in voting
        assert "`quorate cluster remove 4`" in voting
        person.does("cluster remove 4")
        copying = person.is_refused("cluster forget 4")
        assert "it has copies, or is to have them: events/0, events/1, events/2 and 2 more" in copying
        assert "`quorate cluster replace 4 --with NEW`" in copying
        person.does("topic remove events --node 4")
        assert "does not answer" in person.row("cluster status", 4)
        assert person.does("cluster forget 4") == "node 4 is forgotten\n"
        assert "127.0.0.1:" + str(port) not in person.does("cluster status")
        assert person.does("cluster forget 4") == "node 4 is forgotten already\n"
        decommissioned = "node 4 has no copies and no vote, and is forgotten already\n"
        assert person.does("cluster decommission 4") == decommissioned
        assert "there is no node 9; there are: 1, 2, 3" in person.is_refused("cluster decommission 9")
        back = subprocess.run(
            [sys.executable, "-m", "quorate", "node", str(directory)],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert back.returncode == 1
        assert "node 4 was forgotten with `quorate cluster forget`" in back.stderr.splitlines()[-1]
        assert "to let it join again, make another with --replaces" in back.stderr.splitlines()[-1]
        shutil.rmtree(directory)
        with fourth_node(cluster, directory, port, replaces=True):
            assert person.row("cluster status", 4).split()[2:] == ["up", "follows", "0", "0", "0"]
            person.does("topic add events --node 4")


@pytest.mark.proof
def test_what_cannot_be_done_is_said_in_one_line() -> None:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        person = Operator(cluster.bootstrap)
        assert "there is no topic 'x'; there is none at all" in person.is_refused("topic describe x")
        votes = person.is_refused("cluster replace 1 --with 2")
        assert "the metadata group: node 2 votes already" in votes
        person.does("topic create events --partitions 2")
        for line, why in {
            "topic describe evnts": "there is no topic 'evnts'; did you mean 'events'?",
            "topic describe x": "there is no topic 'x'; there is: events",
            "topic add events/2 --node 1": "topic 'events' has no partition 2; it has 2, counted from 0",
            "topic add events/one --node 1": "write NAME, or NAME/PARTITION",
            "topic add events --node one": "write a node's number",
            f"topic add events --node {2**65}": "write a node's number",
            "topic add events --node 0": "write a node's number",
            "topic add events --node 9": "there is no node 9; there are: 1, 2, 3",
            "topic remove events --node 9": "there is no node 9; there are: 1, 2, 3",
            "topic remove events --node 1,2,3": "events/0: the last copy cannot be removed",
            "topic replace events --node 1 --with 2": "events/0: node 2 has a copy already",
            "topic replace events --node 1 --with 9": "events/0: there is no node 9",
            "topic replace events --node 9 --with 1": "there is no node 9",
            "topic transfer events --to 9": "events/0: node 9 has no copy; it is on nodes 1, 2, 3",
            "cluster transfer --to 9": "there is no node 9; there are: 1, 2, 3",
            "cluster add 9": "there is no node 9; there are: 1, 2, 3",
            "cluster remove 9": "there is no node 9; there are: 1, 2, 3",
            "cluster forget 9": "there is no node 9; there are: 1, 2, 3",
            "cluster forget 1": "node 1: it votes in the metadata group",
            "cluster replace 9": "there is no node 9; there are: 1, 2, 3",
            "cluster replace 1 --with 2": "events/0: node 2 has a copy already",
        }.items():
            assert why in person.is_refused(line), line
        # Nothing of it has changed anything, and what is so needs no change.
        votes = person.does("cluster add 1")
        assert votes == "nodes 1, 2, 3 vote in the metadata group already\n"
        assert "events/1 is on nodes 2, 3, 1 already" in person.does("topic add events --node 1")
        assert "events/1 is on nodes 2, 3, 1 already" in person.does("topic replace events --node 1")
        assert person.does("cluster replace 1") == "nothing is left to do: node 1 counts everywhere\n"
        assert "1, 2, 3" in person.row("topic describe events", 0)
        late = person.types("topic remove events --node 3 --timeout 0.1")
        assert late.returncode in (0, 1)  # 1: it is ordered, and goes on by itself.
        assert late.stderr.startswith(
            "events: with 2 copies, nothing can be written while either of their nodes"
        )
        deadline = monotonic() + START_TIMEOUT_S
        while "1, 2, 3" in person.row("topic describe events", 0):
            assert monotonic() < deadline


@pytest.mark.parametrize("line", ["topic describe events", "cluster status", "cluster add 4"])
def test_a_cluster_that_is_not_there_is_said_in_one_line(line: str) -> None:
    said = Operator("127.0.0.1:1").is_refused(line)
    assert "connection refused" in said
    assert "Name its nodes with --bootstrap" in said
