"""Whether a node's directory is still where it was opened.

A process goes on writing to files that somebody has removed: they are flushed and acknowledged, nobody finds them
again, and after the next start they are gone. So it is looked at again and again, by name. What is compared is the
lock file: it is open as long as the node runs, so no other file is given its number meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.node.directory import store_directory
from quorate.storage.real_disk import LOCK_FILE

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 1.0


class Vanished:
    """Made when the directory is locked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = store_directory(node.config).absolute() / LOCK_FILE
        self._opened = _file_at(self._lock)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        try:
            found = _file_at(self._lock)
        except OSError:
            return  # Nothing can be told. What a disk refuses, the store finds out.
        if found is None or found != self._opened:
            self._node.fail(self._what_happened(is_another=found is not None))

    def _what_happened(self, *, is_another: bool) -> str:
        directory, node = self._lock.parent.parent, self._node.id
        what = "is another directory than the one that was opened" if is_another else "is gone"
        return (
            f"{directory} {what}: somebody removed or moved it while this node ran; put it back as it was, or, if "
            "it is lost, make it anew with `quorate format … --replaces`, start the node, and "
            f"`quorate cluster replace {node}` lets it count again"
        )


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file has this name; None: there is none. Raises OSError where that cannot be told."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
