"""How far a long step is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from quorate.cli import say

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY_S = 5.0

Show = Callable[[float, str], None]
"""The share that is done, from 0 to 1, and words."""


@contextmanager
def shown(out: Console) -> Iterator[Show]:
    """Lines that are printed on the same console meanwhile stay above the bar."""
    if not out.is_terminal:
        yield _Plain()
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("  "), BarColumn(bar_width=30), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("", total=1.0, words="")
        yield lambda done, words: progress.update(task, completed=done, words=words)


class _Plain:
    def __init__(self) -> None:
        self._told = monotonic()

    def __call__(self, done: float, words: str) -> None:
        if monotonic() - self._told >= PLAIN_EVERY_S and done < 1:
            self._told = monotonic()
            say.progress_line(f"   {done:4.0%}  {words}")
