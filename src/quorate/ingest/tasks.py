"""Tasks that have an owner: the node."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.node import Node


def start(node: Node, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """If it fails, the node does: that is our bug, and whatever it kept going would stand still, unnoticed."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            node.log("".join(traceback.format_exception(error)).rstrip())
            node.fail(f"{name}: {type(error).__name__}: {error}")

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task
