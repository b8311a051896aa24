"""Pages of docs/ that show what commands print: their blocks of ```console are typed for real, and compared.

A page speaks of machines, directories and a cluster that nobody has. So what it names stands for what is there
(`Typist.stands_for`), on the way in and on the way out. Everything else must be printed as it is shown, line by
line, but for how far apart words stand, and for what can be another thing the next time (VARIES). A line of `…`
stands for any lines above those that follow.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from quorate.bench.cluster_processes import NodeProcess

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```console(?: (?P<scene>[\w-]+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TRIES_COUNT = 5
"""Of a command that has ordered what is not yet so (exit code 1), as on a busy machine."""
LEFT_OUT = "…"
VARIES: tuple[tuple[str, str], ...] = (
    # Who leads the metadata group and partitions of raft, and how often somebody else came to lead.
    (r"\bup (?:leads|votes)(?: \d+)? (\d+) \d+$", r"up votes \1"),
    (r"\bfollows \d+ (\d+) \d+$", r"follows \1"),
    (r"\bdoes not answer votes \d+$", "does not answer votes"),
    (r"^(orders raft 0) \d+ \d+$", r"\1"),
    (r"(?<=; coordinated by node )\d+$", "any"),
    (r"(?<=^orders/0 is led by node )\d+$", "any"),
    (r"^((?:events/\d|the metadata group) is led by node \d) already$", r"\1"),
    (r"\be\d+ \(v\d+\)", "e (v)"),
    (r"^(\d+ \d+) \d+ (?=\d+, )", r"\1 "),
    (r"^(\d+ \d+ (?:leader|follower)) \d+ \d+\.\.\d+ \d+ \d+", r"\1"),
    (r"^(\d+ \d+) (?:prospect|follower) \d+ (?=\d+\.\.\d+ \d+$)", r"\1 "),  # Where nobody leads.
    # When it was typed, and which ids were given out by then.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "then"),
    (r"^(pay-7 plain|clicks joint, number 41) \d+ open .* s(?= |$)", r"\1 open"),
)


class Shown(NamedTuple):
    line: str
    printed: list[str]


class Block(NamedTuple):
    scene: str
    typed: list[Shown]


def blocks_of(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        yield Block(found["scene"] or "", list(_shown(found["text"])))


def _shown(text: str) -> Iterator[Shown]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *printed = part.splitlines()
        yield Shown(line, printed)


class Typist:
    """Types what a page shows, in one directory, at one cluster."""

    def __init__(self, directory: Path, bootstrap: Callable[[], str], **environment: str) -> None:
        self.directory = directory
        self.stands_for: dict[str, str] = {}
        """What a page names: what is there."""
        self.node: NodeProcess | None = None
        """The one that `quorate node data` runs."""
        self._bootstrap = bootstrap
        self._environment = environment

    def type(self, shown: Shown) -> Shown:
        line = shown.line
        for named, there in self.stands_for.items():
            line = line.replace(named, there)
        words = shlex.split(line)[1:]
        if words[0] == "node":
            assert self.node is not None
            self.node.command = (sys.executable, "-m", "quorate", *words)
            self.node.start()
            return Shown(shown.line, [])
        printed = self._printed(words, is_refused=any(row.startswith("quorate: ") for row in shown.printed))
        if shown.printed[:1] == [LEFT_OUT]:
            printed = [LEFT_OUT, *printed[1 - len(shown.printed) :]]
        return Shown(shown.line, printed)

    def _printed(self, words: list[str], *, is_refused: bool) -> list[str]:
        told = {"QUORATE_BOOTSTRAP": self._bootstrap(), "COLUMNS": "110"}
        environment = os.environ | self._environment | told
        codes = (2,) if is_refused else (0, 1) if words[0] == "doctor" else (0,)
        for _ in range(TRIES_COUNT):
            done = subprocess.run(
                [sys.executable, "-m", "quorate", *words],
                cwd=self.directory,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                env=environment,
            )
            if done.returncode != 1 or done.returncode in codes:
                break
        assert done.returncode in codes, f"{words}: {done.stderr}"
        text = done.stdout + (done.stderr if is_refused else "")
        for named, there in self.stands_for.items():
            text = re.sub(rf"{re.escape(there)}(?=  )", named.ljust(len(there)), text).replace(there, named)
        return [row.rstrip() for row in text.strip("\n").splitlines()]


def rewritten(page: str, typed: list[Block]) -> str:
    blocks = iter(typed)

    def block(found: re.Match[str]) -> str:
        scene = f" {found['scene']}" if found["scene"] else ""
        rows = [row for each in next(blocks).typed for row in (f"$ {each.line}", *each.printed)]
        return "\n".join([f"```console{scene}", *rows, "```"])

    return BLOCK.sub(block, page)


def expect_as_shown(shown: Block, typed: Block) -> None:
    for wanted, found in zip(shown.typed, typed.typed, strict=True):
        assert _plain(found.printed) == _plain(wanted.printed), wanted.line


def _plain(rows: list[str]) -> list[str]:
    """Without how far apart words stand, empty lines, and what varies."""
    plain = []
    for row in rows:
        row = re.sub(r"[\s─]+", " ", row).strip()
        for pattern, instead in VARIES:
            row = re.sub(pattern, instead, row)
        if row:
            plain.append(row)
    return plain
