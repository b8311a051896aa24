"""Scenarios: small stories about replicas, written as text and run against the real code (docs/SCENARIOS.md).

A scenario fails where the world is not as a line says, where a command cannot be carried out, or where an
invariant breaks; each time with file, line and what was found. What cannot be understood is found before
anything runs.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import msgspec

from quorate.core.invariant import Violated
from quorate.sim.scenario_acts import ACTS, Act, Play
from quorate.sim.scenario_confirm import CONFIRM_ACTS, CONFIRM_EXPECTATIONS
from quorate.sim.scenario_expect import EXPECTATIONS, Expectation
from quorate.sim.scenario_script import EXPECT_ERROR, EXPECT_TRACE, GIVEN, Problem, Script, Statement, parse
from quorate.sim.scenario_stage import Refused, Stage
from quorate.sim.trace import Trace

ALL_ACTS: dict[str, Act] = CONFIRM_ACTS | ACTS
ALL_EXPECTATIONS: dict[str, Expectation] = EXPECTATIONS | CONFIRM_EXPECTATIONS
PATTERNS = (*GIVEN, *ALL_ACTS, *ALL_EXPECTATIONS, EXPECT_ERROR)
"""Every form a line can have."""
INDENT = "    "
REMARK = "  # "


class Result(msgspec.Struct, frozen=True):
    """How a scenario went."""

    path: str
    problems: tuple[Problem, ...]
    commands_count: int = 0
    expectations_count: int = 0
    rewritten: str = ""
    """The text with every `expect trace` as it should be."""

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def misunderstood(self) -> bool:
        return any(problem.misunderstood for problem in self.problems)

    def lines(self) -> list[str]:
        """One line for each problem: file, line, what was expected and what was found."""
        return [f"{self.path}:{problem.line}: {problem.what}" for problem in self.problems]


def run_text(
    text: str, path: str = "scenario", *, rewrite: bool = False, trace: Trace | None = None
) -> Result:
    """Run a scenario. With `rewrite`, whatever its traces say is right. `trace` gets all that happens."""
    script = parse(text, (*ALL_ACTS, *ALL_EXPECTATIONS))
    if script.problems:
        return Result(path, tuple(script.problems), rewritten=text)
    performance = _Performance(script, text, rewrite=rewrite, trace=trace)
    performance.run()
    expectations = sum(statement.form.opening == "expect" for statement in script.statements)
    return Result(
        path,
        tuple(performance.problems),
        commands_count=len(script.statements) - expectations,
        expectations_count=expectations,
        rewritten=performance.rewritten(),
    )


def run_scenario(path: Path | str, *, rewrite: bool = False, trace: Trace | None = None) -> Result:
    """Run a file; raises OSError or UnicodeError. With `rewrite`, traces that differ are written anew."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    result = run_text(text, str(path), rewrite=rewrite, trace=trace)
    if rewrite and result.passed and result.rewritten != text:
        path.write_text(result.rewritten, encoding="utf-8")
    return result


def run_files(
    paths: Iterable[Path | str],
    *,
    rewrite: bool = False,
    trace: Trace | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run files, say how it went, and return the exit code: 0 as expected, 1 not, 2 not even understood."""
    out, err = out or sys.stdout, err or sys.stderr
    worst = 0
    for path in paths:
        try:
            result = run_scenario(path, rewrite=rewrite, trace=trace)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
            print(f"{path}: cannot be read: {reason}", file=err)
            worst = 2
            continue
        for line in result.lines():
            print(line, file=err)
        if result.passed:
            did = f"{result.commands_count} commands, {result.expectations_count} expectations"
            print(f"{path}: as expected ({did})", file=out)
        worst = max(worst, 2 if result.misunderstood else 0 if result.passed else 1)
    return worst


class _Performance:
    """One run of one script."""

    def __init__(self, script: Script, text: str, *, rewrite: bool, trace: Trace | None) -> None:
        self.script = script
        self.problems: list[Problem] = []
        self._rewrite = rewrite
        self._lines = text.splitlines()
        self._traces: list[tuple[Statement, list[str]]] = []
        self._stage = Stage(script.cast, trace)

    def run(self) -> None:
        play = Play(self._stage)
        for statement in self.script.statements:
            what = self._perform(play, statement)
            if what is not None:
                self._stage.note(0, "not as expected", f"line {statement.line}: {what}")
                self.problems.append(Problem(statement.line, what))
                if statement.form.opening != "expect":
                    return  # What follows a command that failed says nothing.

    def _perform(self, play: Play, statement: Statement) -> str | None:
        """What is wrong, if anything is."""
        try:
            if not self._stage.begun:
                self._stage.begin()
            if statement.form.opening == "expect":
                return self._expect(play, statement)
            self._stage.note(0, f"line {statement.line}", statement.source + self._remark(statement.line))
            ALL_ACTS[statement.form.pattern](play, statement.said)
        except Refused as refused:
            return _failed(statement, str(refused))
        except Violated as violated:
            return _failed(
                statement, f"invariant {violated.invariant} is broken: {self._named(violated.detail)}"
            )
        except AssertionError as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return _failed(statement, f"assertion failed in {where}: {str(error) or place.line}")
        if statement.fails_with is not None:
            return f'expected `{statement.source}` to fail with "{statement.fails_with}", and it did not'
        return None

    def _remark(self, line: int) -> str:
        """The comment directly above a line: what it is about."""
        above = line - 1
        while above and self._lines[above - 1].startswith("#"):
            above -= 1
        remark = " ".join(said.lstrip("# ") for said in self._lines[above : line - 1])
        return REMARK + remark if remark else ""

    def _named(self, detail: str) -> str:
        """Invariants speak of p0 n2, and know only offsets from 0."""
        cast = self.script.cast
        told = re.sub(r"\b(?:operator|controller) (\d+)\b", r"n\1", detail)
        told = self._stage.teller.named(told)
        return told.replace("p0 ", "") + (" (offsets from 0)" if cast.origin else "")

    def _expect(self, play: Play, statement: Statement) -> str | None:
        if statement.form.pattern == EXPECT_TRACE:
            return self._expect_trace(statement)
        found = ALL_EXPECTATIONS[statement.form.pattern](play, statement.said)
        return (
            f"expected {statement.source.removeprefix('expect ')}, found {found}"
            if found is not None
            else None
        )

    def _expect_trace(self, statement: Statement) -> str | None:
        found = self._stage.narrator.take()
        self._traces.append((statement, found))
        expected = statement.block or []
        if self._rewrite or found == expected:
            return None
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            if one != other:
                return f"expected `{one}` in line {statement.block_at + index} of the trace, found `{other}`"
        if len(expected) > len(found):
            return f"expected the trace to go on with `{expected[len(found)]}`, found its end"
        return f"expected the trace to end, found `{found[len(expected)]}`"

    def rewritten(self) -> str:
        lines = list(self._lines)
        for statement, found in reversed(self._traces):
            first = statement.block_at - 1
            lines[first : first + len(statement.block or [])] = [INDENT + line for line in found]
        return "\n".join(lines) + "\n"


def _failed(statement: Statement, why: str) -> str | None:
    if statement.fails_with is None:
        return f"`{statement.source}` failed: {why}"
    if statement.fails_with in why:
        return None
    return f'expected `{statement.source}` to fail with "{statement.fails_with}", found "{why}"'
