"""Unified diffs, applied exactly or not at all.

A hunk's old lines must stand in the file as they are written. They may stand at another line than the diff
says, since code above them comes and goes, but then at one place only: a bug planted at the wrong spot proves
nothing.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import msgspec


class BadPatch(Exception):
    """The text is no unified diff that we understand."""


class DoesNotApply(Exception):
    """The code has changed since the patch was made."""


class Hunk(msgspec.Struct, frozen=True):
    number: int
    """The first of a file is 1."""
    line: int
    """Where its old lines began when the diff was made, counted from 1."""
    old: tuple[str, ...]
    new: tuple[str, ...]


class Change(msgspec.Struct, frozen=True):
    """What is changed in one file."""

    file: str
    hunks: tuple[Hunk, ...]


HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def parse(text: str, *, where: str) -> tuple[str, tuple[Change, ...]]:
    """What stands above the diff, and the diff."""
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    changes: list[Change] = []
    at = start
    while at < len(lines) and lines[at]:
        at, change = _parse_change(lines, at, where)
        changes.append(change)
    if not changes or any(lines[at:]):
        raise BadPatch(f"{where}:{min(at, len(lines) - 1) + 1}: a diff was expected here")
    return "\n".join(lines[:start]), tuple(changes)


def _parse_change(lines: list[str], at: int, where: str) -> tuple[int, Change]:
    old_name, new_name = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
    file = old_name.removeprefix("--- ")
    if not old_name.startswith("--- ") or new_name != f"+++ {file}" or not is_inside(file):
        raise BadPatch(f"{where}:{at + 1}: expected '--- FILE' and '+++ FILE', a Python file of the package")
    at += 2
    hunks: list[Hunk] = []
    while at < len(lines) and (found := HUNK.match(lines[at])):
        number = len(hunks) + 1
        at, hunk = _parse_hunk(lines, at + 1, found, f"{where}:{at + 1}: hunk {number} of {file}", number)
        hunks.append(hunk)
    if not hunks:
        raise BadPatch(f"{where}:{at + 1}: nothing is changed in {file}")
    return at, Change(file, tuple(hunks))


def _parse_hunk(lines: list[str], at: int, found: re.Match[str], where: str, number: int) -> tuple[int, Hunk]:
    old_count, new_count = int(found[2] or 1), int(found[3] or 1)
    old: list[str] = []
    new: list[str] = []
    while len(old) < old_count or len(new) < new_count:
        sign, line = (lines[at][:1], lines[at][1:]) if at < len(lines) else ("end", "")
        if sign not in ("", " ", "-", "+"):
            raise BadPatch(
                f"{where}: its lines start with a space, - or +, and this one does not: {sign}{line}"
            )
        if sign != "+":
            old.append(line)
        if sign != "-":
            new.append(line)
        at += 1
    if len(old) != old_count or len(new) != new_count:
        raise BadPatch(f"{where}: it announces {old_count} and {new_count} lines, and has others")
    if not old:
        raise BadPatch(f"{where}: without a line of what was there nobody knows where it goes")
    return at, Hunk(number, int(found[1]), tuple(old), tuple(new))


def is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return path.suffix == ".py" and not path.is_absolute() and ".." not in path.parts


def apply(changes: tuple[Change, ...], root: Path) -> None:
    """Change the files below `root`. Raises DoesNotApply, naming file and hunk, and changes nothing then."""
    changed: dict[Path, str] = {}
    for change in changes:
        path = root / change.file
        if not path.is_file():
            raise DoesNotApply(f"{change.file}: there is no such file any more")
        lines = path.read_text(encoding="utf-8").split("\n")
        drift = 0
        for hunk in change.hunks:
            at = _place(lines, hunk, hunk.line - 1 + drift, change.file)
            lines[at : at + len(hunk.old)] = hunk.new
            drift = at + len(hunk.new) - (hunk.line - 1) - len(hunk.old)
        changed[path] = "\n".join(lines)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")


def _place(lines: list[str], hunk: Hunk, expected: int, file: str) -> int:
    """Where its old lines stand: at the expected line, or at the one other place."""
    old = list(hunk.old)
    places = [at for at in range(len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]
    if expected in places:
        return expected
    if len(places) == 1:
        return places[0]
    wrong = (
        f"its lines stand at {len(places)} places, none of them line {expected + 1}"
        if places
        else f"its lines are not there (they were at line {expected + 1})"
    )
    raise DoesNotApply(f"{file}: hunk {hunk.number} does not apply: {wrong}; make the patch anew")
