"""Whose directory it is: made once, on purpose; never taken for another's, never begun anew by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import msgspec
import pytest

from quorate.machine.metadata import FIRST_INCARNATION
from quorate.node import directory
from quorate.node.config import Address, NodeConfig
from quorate.node.directory import IDENTITY_FILE, WrongDirectory, format_directory, read_identity


def config_of(place: Path, **changes: object) -> NodeConfig:
    config = NodeConfig("c", 1, str(place), "127.0.0.1:7001")
    return msgspec.structs.replace(config, **changes)


def test_a_formatted_directory_is_known_again(tmp_path: Path) -> None:
    config = config_of(tmp_path / "n1")
    made = format_directory(config, replaces=False, rng=Random(1))
    assert made.incarnation == FIRST_INCARNATION
    assert read_identity(config) == made


def test_a_replacement_is_never_the_first_incarnation(tmp_path: Path) -> None:
    found = set()
    for seed in range(3):
        config = config_of(tmp_path / f"n{seed}")
        found.add(format_directory(config, replaces=True, rng=Random(seed)).incarnation)
    assert len(found) == 3
    assert FIRST_INCARNATION not in found


def test_nothing_is_formatted_over(tmp_path: Path) -> None:
    config = config_of(tmp_path / "n1")
    format_directory(config, replaces=False, rng=Random(1))
    with pytest.raises(WrongDirectory, match="there already"):
        format_directory(config, replaces=True, rng=Random(1))
    (tmp_path / "file").touch()
    with pytest.raises(WrongDirectory, match="there already"):
        format_directory(config_of(tmp_path / "file"), replaces=False, rng=Random(1))


def test_an_empty_or_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongDirectory, match="make it with `quorate format`"):
        read_identity(config_of(tmp_path))
    (tmp_path / "letter.txt").touch()
    with pytest.raises(WrongDirectory, match="not a node's"):
        read_identity(config_of(tmp_path))


def test_anothers_directory_is_refused(tmp_path: Path) -> None:
    format_directory(config_of(tmp_path / "n1"), replaces=False, rng=Random(1))
    with pytest.raises(WrongDirectory, match="of cluster 'c', not 'd'"):
        read_identity(config_of(tmp_path / "n1", cluster="d"))
    with pytest.raises(WrongDirectory, match="of node 1, not 2"):
        read_identity(config_of(tmp_path / "n1", node=2))


def test_a_configuration_with_other_first_voters_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path / "n1", peers={2: "a:1", 3: "a:2"}, voters=(3, 1, 2))
    made = format_directory(config, replaces=False, rng=Random(1))
    assert made.voters == (1, 2, 3)
    assert read_identity(msgspec.structs.replace(config, voters=(2, 1, 3))) == made
    with pytest.raises(WrongDirectory, match="first voters are 1, 2, 3, not 1, 2"):
        read_identity(msgspec.structs.replace(config, voters=(1, 2)))
    with pytest.raises(WrongDirectory, match="not nobody"):
        read_identity(msgspec.structs.replace(config, voters=()))


def test_the_identity_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power lost before that leaves a directory that nobody takes for a node's."""
    written = []
    write = directory.write_durably

    def noted(path: Path, content: bytes) -> None:
        written.append((path.name, sorted(entry.name for entry in path.parent.iterdir())))
        write(path, content)

    monkeypatch.setattr(directory, "write_durably", noted)
    voters = {1: Address("a", 1)}
    directory.format_node(
        tmp_path / "n1", cluster="c", node=1, voters=voters, listen=voters[1], replaces=False, rng=Random(1)
    )
    assert written == [("config.json", ["store"]), (IDENTITY_FILE, ["config.json", "store"])]


def test_a_store_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    config = config_of(tmp_path / "n1")
    format_directory(config, replaces=False, rng=Random(1))
    shutil.rmtree(tmp_path / "n1" / "store")
    with pytest.raises(WrongDirectory, match="is gone"):
        read_identity(config)


def test_an_unreadable_identity_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path / "n1")
    format_directory(config, replaces=False, rng=Random(1))
    (tmp_path / "n1" / IDENTITY_FILE).write_bytes(b"{}")
    with pytest.raises(WrongDirectory, match="unreadable"):
        read_identity(config)


@pytest.mark.parametrize("left", ["lock", "lost+found"])
def test_a_store_of_which_only_a_lock_or_a_new_file_system_is_left_is_gone(tmp_path: Path, left: str) -> None:
    config = config_of(tmp_path / "n1")
    format_directory(config, replaces=False, rng=Random(1))
    store = tmp_path / "n1" / "store"
    shutil.rmtree(store)
    store.mkdir()
    (store / left).mkdir()
    with pytest.raises(WrongDirectory, match="is gone"):
        read_identity(config)


def test_who_forgot_replaces_is_told_to_remove_the_directory_first(tmp_path: Path) -> None:
    place, here = tmp_path / "n1", Address("a", 1)

    def make(*, replaces: bool) -> None:
        directory.format_node(
            place, cluster="c", node=1, voters={1: here}, listen=here, replaces=replaces, rng=Random(1)
        )

    make(replaces=False)
    with pytest.raises(WrongDirectory, match=r"remove .*n1 first, and make it with --replaces"):
        make(replaces=True)
    shutil.rmtree(place)
    make(replaces=True)
