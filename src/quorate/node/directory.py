"""Whose directory is this? One small file says so, and nothing is served from a directory without it.

    DIRECTORY/node.json      cluster, node, incarnation, and the cluster's first voters
    DIRECTORY/config.json    what the node is told (node/config.py), where `format_node` made the directory
    DIRECTORY/store/         the store of all its replicas

An empty directory may be a new node's, or that of a node whose disk was lost and that has voted before: only
a person knows. So a directory is made once, on purpose (`format_directory`), and a lost one comes back as
another incarnation, which does not count as the one it was (rule 4). The identity is written last: it says
that a store was there, and where it is gone nothing new is put in its place.

The first voters of the metadata group are named once, when the cluster is born. They are part of what every
node agreed to, so a configuration that names others is refused: who votes now stands in the group's own log, and
is changed there (`quorate cluster`).
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import msgspec

from quorate.core.entry import Partition, Span
from quorate.machine.metadata import ADDED_MAX, FIRST_INCARNATION
from quorate.node.config import Address, NodeConfig, check_config
from quorate.storage.open_files import flush_descriptor, flush_directory
from quorate.storage.real_disk import RealDisk
from quorate.storage.recovery import FILES as STORE_FILES
from quorate.storage.store import Store

IDENTITY_FILE = "node.json"
CONFIG_FILE = "config.json"
STORE_DIRECTORY = "store"
_IDENTITY_BYTES_MAX = 4096


class WrongDirectory(Exception):
    """The directory is not this node's."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    node: int
    incarnation: int
    voters: tuple[int, ...] = ()
    disk: int = 0
    """Another one each time that a directory is made: two of one incarnation are a mistake, and told apart."""
    format: int = 1


def store_directory(config: NodeConfig) -> Path:
    return Path(config.directory) / STORE_DIRECTORY


def format_node(
    directory: Path,
    *,
    cluster: str,
    node: int,
    voters: dict[int, Address],
    listen: Address,
    replaces: bool,
    rng: Random,
) -> Identity:
    """Make the directory of one of a cluster's first voters, or of one more node, with its configuration.

    Raises WrongDirectory, BadConfig, DirectoryInUse, and what the disk raises.
    """
    told = {
        "cluster": cluster,
        "node": node,
        "directory": ".",
        "listen": str(listen),
        "peers": {str(peer): str(address) for peer, address in sorted(voters.items()) if peer != node},
        "voters": sorted(voters),
    }
    config = msgspec.convert(told | {"directory": str(directory)}, NodeConfig, strict=False)
    check_config(config)
    _expect_unmade(config)
    content = msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"
    return format_directory(config, replaces=replaces, rng=rng, config_file=content)


def _expect_unmade(config: NodeConfig) -> None:
    """A directory that was made already is named for what it is."""
    if not (Path(config.directory) / IDENTITY_FILE).exists():
        return
    identity = read_identity(config)
    with RealDisk(store_directory(config), lambda completion: None) as disk:
        disk.lock_now()
    raise WrongDirectory(
        f"{config.directory} is that of node {identity.node} of cluster {identity.cluster!r} already: "
        f"run it, or choose another directory; if what was there before it is lost, remove {config.directory} "
        f"first, and make it with --replaces"
    )


def format_directory(
    config: NodeConfig, *, replaces: bool, rng: Random, config_file: bytes | None = None
) -> Identity:
    """Make the directory of a new node; with `replaces`, of one whose disk is lost.

    Raises WrongDirectory, and what the disk raises.
    """
    directory = Path(config.directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise WrongDirectory(f"{directory} is there already: choose another directory, or empty this one")
    # Never the first: an incarnation that voted must not come back without its votes. And none that could be
    # taken for that of a replica which was added to a partition.
    incarnation = rng.randrange(ADDED_MAX, 1 << 63) if replaces else FIRST_INCARNATION
    voters, number = tuple(sorted(config.voters)), rng.randrange(1, 1 << 63)
    identity = Identity(config.cluster, config.node, incarnation, voters, disk=number)
    with RealDisk(store_directory(config), lambda completion: None) as disk:
        disk.lock_now()
        if (directory / IDENTITY_FILE).exists():  # Somebody was quicker.
            raise WrongDirectory(f"{directory} has just been made by another process")
        Store.open(disk, config.store, _Nobody()).close()
        if config_file is not None:
            write_durably(directory / CONFIG_FILE, config_file)
        write_durably(directory / IDENTITY_FILE, msgspec.json.encode(identity))
    return identity


def read_identity(config: NodeConfig) -> Identity:
    """Who lives there, if it is who the configuration says; raises WrongDirectory."""
    directory, store = Path(config.directory), store_directory(config)
    try:
        with (directory / IDENTITY_FILE).open("rb") as file:
            content = file.read(_IDENTITY_BYTES_MAX)
        identity = msgspec.json.decode(content, type=Identity)
    except FileNotFoundError:
        if directory.is_dir() and any(directory.iterdir()):
            raise WrongDirectory(f"{directory} is not a node's: choose another directory") from None
        raise WrongDirectory(
            f"{directory} is empty or not there: make it with `quorate format`, and with --replaces if it was lost"
        ) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WrongDirectory(f"{directory / IDENTITY_FILE} is unreadable: put it back ({error})") from error
    if identity.cluster != config.cluster:
        raise WrongDirectory(
            f"{directory} is of cluster {identity.cluster!r}, not {config.cluster!r}: choose another directory"
        )
    if identity.node != config.node:
        raise WrongDirectory(
            f"{directory} is of node {identity.node}, not {config.node}: choose another directory"
        )
    if identity.voters != tuple(sorted(config.voters)):
        raise WrongDirectory(
            f"{directory} is of a cluster whose first voters are {_listed(identity.voters)}, "
            f"not {_listed(config.voters)}: put the configuration back as it was"
        )
    if not any((store / name).exists() for name in STORE_FILES):  # A lock, or a new file system, is no store.
        raise WrongDirectory(
            f"{store} is gone: put it back, or remove {directory} and make it with `quorate format … --replaces`"
        )
    return identity


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "nobody"


def write_durably(path: Path, content: bytes) -> None:
    """All of it or nothing (rule 6)."""
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, content)
        flush_descriptor(fd)
    finally:
        os.close(fd)
    os.rename(new, path)
    flush_directory(path.parent)


class _Nobody:
    """A new store has nothing to tell."""

    def persisted(self, partition: Partition, io: int) -> None:
        raise AssertionError("nothing was ordered")

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        raise AssertionError(reason)

    def damaged(self, partition: Partition, span: Span) -> None:
        raise AssertionError(span)

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)
