"""Whose directory is this? One small file says so, and nothing is served from a directory without it.

An empty directory may be a new node's, or that of a node whose disk was lost and that has voted before: only
a person knows. So a directory is made once, on purpose (`format_directory`), and a lost one comes back as
another incarnation, which does not count as the one it was (rule 4).
"""

from __future__ import annotations

from random import Random

import msgspec

from quorate.node.config import FIRST_INCARNATION, NodeConfig
from quorate.storage.disk import Flush, FlushDirectory, Rename, Write
from quorate.storage.real_disk import RealDisk

IDENTITY_FILE = "node.json"
_NEW_FILE = "node.json.new"
_IDENTITY_BYTES_MAX = 4096


class WrongDirectory(Exception):
    """The directory is not this node's."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    node: int
    incarnation: int
    format: int = 1


def format_directory(disk: RealDisk, config: NodeConfig, *, replaces: bool, rng: Random) -> Identity:
    """Make the directory of a new node; with `replaces`, of one whose disk is lost. Raises WrongDirectory."""
    names = disk.list_now("")
    if names:
        raise WrongDirectory(
            f"{config.directory} is not empty (it holds {names[0]}): choose another directory, or empty it"
        )
    # Never the first: an incarnation that voted must not come back without its votes.
    incarnation = rng.randrange(FIRST_INCARNATION + 1, 1 << 63) if replaces else FIRST_INCARNATION
    identity = Identity(config.cluster, config.node, incarnation)
    disk.run_now(
        (
            Write(_NEW_FILE, 0, (msgspec.json.encode(identity),)),
            Flush((_NEW_FILE,)),
            Rename(_NEW_FILE, IDENTITY_FILE),
            FlushDirectory(""),
        )
    )
    return identity


def read_identity(disk: RealDisk, config: NodeConfig) -> Identity:
    """Who lives there, if it is who the configuration says; raises WrongDirectory."""
    where = config.directory
    if disk.size_now(IDENTITY_FILE) is None:
        if disk.list_now(""):
            raise WrongDirectory(f"{where} is not a directory of quorate: choose another one")
        raise WrongDirectory(f"{where} is empty: make it with --format (with --replaces if it was lost)")
    try:
        content = disk.read_now(IDENTITY_FILE, 0, _IDENTITY_BYTES_MAX)
        identity = msgspec.json.decode(content, type=Identity)
    except msgspec.MsgspecError as error:
        raise WrongDirectory(
            f"{where}/{IDENTITY_FILE} is unreadable ({error}): put its content back"
        ) from error
    if identity.cluster != config.cluster:
        raise WrongDirectory(f"{where} is of cluster {identity.cluster!r}, not {config.cluster!r}")
    if identity.node != config.node:
        raise WrongDirectory(f"{where} is of node {identity.node}, not {config.node}")
    return identity
