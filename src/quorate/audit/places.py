"""Which directories are nodes', and what the nodes are called."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quorate.storage.recovery import FILES

IDENTITY_FILE, STORE_DIRECTORY = "node.json", "store"


class NotANode(Exception):
    """One line: what the directory is not."""


class Place(msgspec.Struct, frozen=True):
    """A store, and what its node is called."""

    replica: str
    store: str


def places_in(directory: Path) -> list[Place]:
    """Of a node's directory, of one with nodes in it (`quorate up --dir`), or of a store; raises NotANode."""
    if not directory.is_dir():
        raise NotANode(f"{directory} is not a directory")
    if (directory / IDENTITY_FILE).is_file():
        return [_node(directory)]
    if any((directory / name).is_file() for name in FILES):
        return [Place(directory.name, str(directory))]
    nodes = [_node(path) for path in sorted(directory.iterdir()) if (path / IDENTITY_FILE).is_file()]
    if not nodes:
        raise NotANode(f"{directory} is no node's directory, and none is in it")
    return nodes


def _node(directory: Path) -> Place:
    try:
        said = msgspec.json.decode((directory / IDENTITY_FILE).read_bytes())
        return Place(f"n{int(said['node'])}", str(directory / STORE_DIRECTORY))
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return Place(directory.name, str(directory / STORE_DIRECTORY))
