"""`quorate format`: a node's directory is made once, completely, and never over anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quorate.cli.entry import run
from quorate.cli.format import new_cluster_id, parse_voters
from quorate.cli.wrong import WrongUsage
from quorate.node.config import Address, load_config
from quorate.node.directory import read_identity
from quorate.storage.real_disk import RealDisk

VOTERS = "1=127.0.0.1:9092,2=127.0.0.1:9093,3=127.0.0.1:9094"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refusal is."""
    assert run(["format", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("quorate: ")
    assert said.err.count("\n") == 1
    return said.err


def format_it(directory: Path, *more: str, node: int = 2, cluster: str = "home") -> None:
    assert (
        run(["format", str(directory), "--node", str(node), "--voters", VOTERS, "--cluster", cluster, *more])
        == 0
    )


def test_the_directory_holds_a_configuration_that_the_identity_agrees_with(tmp_path: Path) -> None:
    format_it(tmp_path / "n2")
    config = load_config(tmp_path / "n2" / "config.json")
    assert (config.cluster, config.node, config.listen) == ("home", 2, "127.0.0.1:9093")
    assert config.peers == {1: "127.0.0.1:9092", 3: "127.0.0.1:9094"}
    assert config.voters == (1, 2, 3)
    assert read_identity(config).voters == (1, 2, 3)


def test_it_can_be_moved(tmp_path: Path) -> None:
    format_it(tmp_path / "n2")
    moved = (tmp_path / "n2").rename(tmp_path / "elsewhere")
    assert read_identity(load_config(moved / "config.json")).node == 2


def test_without_a_cluster_id_one_is_made_and_the_other_nodes_commands_are_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["format", str(tmp_path / "n1"), "--node", "1", "--voters", VOTERS]) == 0
    said = capsys.readouterr().out
    cluster = load_config(tmp_path / "n1" / "config.json").cluster
    for node in (2, 3):
        assert f"quorate format DIR --node {node} --voters {VOTERS} --cluster {cluster}" in said
    assert f"quorate node {tmp_path / 'n1'}" in said


def test_cluster_ids_differ_and_never_look_like_an_option() -> None:
    names = [new_cluster_id() for _ in range(500)]
    assert len(set(names)) == 500
    assert all(name[0].isalnum() for name in names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no voter"),
        ("127.0.0.1:9092", "is no voter"),
        ("one=127.0.0.1:9092", "is no voter"),
        ("0=127.0.0.1:9092", "is no voter"),
        ("1=127.0.0.1", "host:port"),
        ("1=127.0.0.1:0", "0 is none"),
        ("1=127.0.0.1:99999", "host:port"),
        ("1=a:1,1=a:2", "node 1 is there twice"),
        ("1=a:1,2=a:1", "an address is there twice"),
        (",".join(f"{node}=a:{node}" for node in range(1, 11)), "10 are too many"),
    ],
)
def test_wrong_voters_are_named(text: str, expected: str) -> None:
    with pytest.raises(WrongUsage, match=expected):
        parse_voters(text)


def test_voters_are_sorted_by_number() -> None:
    found = parse_voters("3=[::1]:9094, 1=a:9092")
    assert list(found.items()) == [(1, Address("a", 9092)), (3, Address("::1", 9094))]


def test_a_node_that_is_not_a_voter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, str(tmp_path / "n4"), "--node", "4", "--voters", VOTERS)
    assert "--node 4 is not among the voters 1, 2, 3" in said
    assert not (tmp_path / "n4").exists()


def test_a_foreign_directory_is_refused_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    said = refused(capsys, str(tmp_path), "--node", "1", "--voters", VOTERS)
    assert "is there already: choose another directory" in said
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_nodes_directory_is_named_for_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    format_it(tmp_path / "n2")
    capsys.readouterr()
    again = [str(tmp_path / "n2"), "--voters", VOTERS]
    assert "node 2 of cluster 'home' already" in refused(capsys, *again, "--node", "2", "--cluster", "home")
    assert "of cluster 'home', not 'away'" in refused(capsys, *again, "--node", "2", "--cluster", "away")
    assert "of node 2, not 1" in refused(capsys, *again, "--node", "1", "--cluster", "home")


def test_a_running_nodes_directory_is_refused_with_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    format_it(tmp_path / "n2")
    capsys.readouterr()
    with RealDisk(tmp_path / "n2" / "store", lambda completion: None) as disk:
        disk.lock_now()
        again = [str(tmp_path / "n2"), "--voters", VOTERS, "--node", "2", "--cluster", "home"]
        assert "is in use by process" in refused(capsys, *again)


def test_a_replacement_names_its_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [str(tmp_path / "n2"), "--node", "2", "--voters", VOTERS, "--replaces"]
    assert "name that with --cluster" in refused(capsys, *wanted)
    format_it(tmp_path / "n2", "--replaces")
    assert read_identity(load_config(tmp_path / "n2" / "config.json")).incarnation > 1


def test_running_what_was_never_formatted_says_how_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", str(tmp_path)]) == 2
    assert "make it with `quorate format`" in capsys.readouterr().err


def test_one_more_node_for_a_cluster_that_runs_knows_the_first_voters_and_is_none(tmp_path: Path) -> None:
    format_it(tmp_path / "n4", "--listen", "127.0.0.1:9095", node=4)
    config = load_config(tmp_path / "n4" / "config.json")
    assert (config.node, config.listen, config.voters) == (4, "127.0.0.1:9095", (1, 2, 3))
    assert sorted(config.peers) == [1, 2, 3]
    ((_, record),) = config.replicas(incarnation=1)
    assert record.me not in record.voters


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--node", "4", "--cluster", "home"], "say where this node is with --listen HOST:PORT"),
        (["--node", "4", "--listen", "127.0.0.1:9095"], "name that with --cluster"),
        (["--node", "4", "--listen", "here", "--cluster", "home"], "--listen: 'here' is not an address"),
        (["--node", "4", "--listen", "h:0", "--cluster", "home"], "0 is none"),
        (
            ["--node", "2", "--listen", "h:1", "--cluster", "home"],
            "among the voters, node 2 is at 127.0.0.1:9093",
        ),
    ],
)
def test_a_node_that_cannot_join_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], expected: str
) -> None:
    assert expected in refused(capsys, str(tmp_path / "n4"), "--voters", VOTERS, *more)
    assert not (tmp_path / "n4").exists()


def test_a_voter_may_be_told_where_it_listens_if_that_is_where_it_is(tmp_path: Path) -> None:
    format_it(tmp_path / "n2", "--listen", "127.0.0.1:9093")
    assert load_config(tmp_path / "n2" / "config.json").listen == "127.0.0.1:9093"


def test_the_directory_of_a_whole_cluster_is_no_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").touch()
    assert run(["node", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"`quorate up --dir {tmp_path}`" in said
    assert f"`quorate node {tmp_path / 'n1'}`" in said


def test_a_taken_port_and_a_node_that_could_not_start_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["--node", "1", "--voters", f"1=127.0.0.1:{port}"]
        assert run(["format", str(tmp_path / "n1"), *arguments]) == 0
        capsys.readouterr()
        assert run(["node", str(tmp_path / "n1")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"quorate node: port {port} is taken")
