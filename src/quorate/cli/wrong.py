"""What a person got wrong, said in one line: what it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class WrongUsage(Exception):
    """One line for stderr; the command ends with exit code 2."""


class NotYet(Exception):
    """It is ordered, and goes on by itself, or may: one line for stderr; the command ends with exit code 1."""


class NotDone(NotYet):
    """It was asked for rightly, and nothing was changed: the tables refuse it, say."""


def no_such(kind: str, name: str, known: Iterable[str], *, where: str = "") -> WrongUsage:
    """A name that nothing has; the nearest one is suggested, or all are listed."""
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    there = "there are" if len(names) > 1 else "there is"
    advice = f"{there}: {', '.join(names)}" if names else "there is none at all"
    if close:
        advice = f"did you mean {close[0]!r}?"
    return WrongUsage(f"there is no {kind} {name!r}{f' {where}' * bool(where)}; {advice}")


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def write_text(file: Path, text: str) -> None:
    """Write a file that a person named."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WrongUsage(
            f"cannot write {str(file)!r}: {in_words(error)}; name a file in a directory that exists"
        ) from error


def check_writable(file: Path | None) -> None:
    """Say before a long run, not after it, that its result will find no place."""
    if file is None:
        return
    if file.is_dir():
        raise WrongUsage(f"cannot write {str(file)!r}: it is a directory; name a file in it")
    if not file.parent.is_dir():
        raise WrongUsage(
            f"cannot write {str(file)!r}: there is no directory {str(file.parent)!r}; make it first"
        )


def check_picture(file: Path | None) -> None:
    """The same for a picture, which is an SVG whatever its name says."""
    if file is not None and file.suffix.lower() != ".svg":
        raise WrongUsage(f"cannot draw {str(file)!r}: pictures are SVG; name it {file.stem + '.svg'!r}")
    check_writable(file)


def in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
