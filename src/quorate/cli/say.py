"""Words and tables for people, on a terminal or without one.

Results are printed to stdout. Progress goes to stderr: live on a terminal, a line now and then elsewhere.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quorate.node.requests import NatsStatus

PLAIN_WIDTH = 110
"""Where nobody's terminal says how wide a line may be."""


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, highlight=False, width=width, soft_wrap=False)


def command() -> str:
    """How a person runs `quorate` from here."""
    if shutil.which("quorate"):
        return "quorate"
    beside = Path(sys.executable).parent / "quorate"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def paragraph(out: Console, text: str, *, indent: int = 3) -> None:
    """Words that wrap where a terminal ends, under their own beginning."""
    from rich.padding import Padding

    out.print(Padding(text, (0, 0, 0, indent)))


def print_json(thing: Any) -> None:
    """One object, for programs."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(thing), indent=2).decode())


def result(lines: str | Sequence[str], thing: Any, *, json: bool) -> None:
    """What a command has brought about: in words, or as one object."""
    if json:
        print_json(thing)
    else:
        for line in [lines] if isinstance(lines, str) else lines:
            print(line)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> Table:
    """A table whose columns numbered in `right` hold numbers, and those in `whole` names that are not broken."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    for number, column in enumerate(columns):
        made.add_column(
            column,
            justify="right" if number in right else "left",
            overflow="fold",
            no_wrap=number in whole,
        )
    for row in rows:
        made.add_row(*row)
    return made


def nats(status: NatsStatus, *, led: Iterable[str] = (), counts: bool = True) -> str:
    """How a node's messages from NATS are coming in, in one line.

    `led`: subjects of topics that it leads. A node that never had a connection does not name them itself.
    """
    how = status.why_not or f"connected to {status.servers}"
    where = f" ({status.servers})" * bool(status.why_not and status.servers)
    subjects = dict.fromkeys((*status.subjects, *(led if status.why_not else ())))
    # A server that forbids a subject says which one, in small letters, and lets the others be read.
    forbidden = [subject for subject in subjects if f'"{subject.lower()}"' in status.why_not]
    unread = forbidden or (list(subjects) if status.why_not else [])
    read = [subject for subject in subjects if subject not in unread]
    said = [f"reads {', '.join(read) or 'no subject'}"] if read or not unread else []
    said += [f"does not read {', '.join(unread)}"] if unread else []
    numbers = f"; {counted(status.written_count, 'message')} written, {status.refused_count:,} not" * counts
    return f"NATS: {how}{where}; {'; '.join(said)}{numbers}"


def progress_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def counted(count: int, what: str, several: str = "") -> str:
    """`1 record`, `1,204 records`; `several`: where that is not the same word with an s."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def rounded(number: float) -> str:
    """Three figures that count, and no more digits than help."""
    size = abs(number)
    if size >= 100:
        return f"{number:,.0f}"
    if size >= 10:
        return f"{number:.1f}"
    if size >= 1:
        return f"{number:.2f}"
    return f"{number:.3g}"


def bytes_count(count: int) -> str:
    """In the largest unit that leaves something in front of the point."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
