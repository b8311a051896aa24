"""How far a sweep is, for a person: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from quorate.cli import say

PLAIN_EVERY_S = 5.0

Told = Callable[[int], None]
"""How many worlds are done."""


@contextmanager
def progress_of(worlds_count: int) -> Iterator[Told]:
    screen = say.console(stderr=True)
    if not screen.is_terminal:
        yield _Plain(worlds_count)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} worlds"),
        BarColumn(bar_width=30),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("sweep", total=worlds_count)
        yield lambda done: progress.update(task, completed=done)


class _Plain:
    """A line now and then, where nobody's terminal shows it live."""

    def __init__(self, worlds_count: int) -> None:
        self._worlds_count = worlds_count
        self._began = self._told = monotonic()
        self._first: int | None = None
        """What was done when it began: by an earlier run."""

    def __call__(self, done: int) -> None:
        now = monotonic()
        if self._first is None:
            self._first = done
        if now - self._told < PLAIN_EVERY_S or done == self._worlds_count:
            return
        self._told = now
        made = done - self._first
        left = (now - self._began) / made * (self._worlds_count - done) if made else None
        said = f", {say.duration(left)} left" if left is not None else ""
        share = done / self._worlds_count
        say.progress_line(f"{share:4.0%}  {done:,} of {self._worlds_count:,} worlds{said}")
