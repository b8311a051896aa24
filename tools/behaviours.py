"""Write docs/BEHAVIOURS.md: every promise, and the tests that name it.

The promises stand in `docs/behaviours.toml`. Tests name them with `@pytest.mark.behaviour("OX-15", "D1")`,
scenario files with a line `# behaviour: OR-5 OR-7`. Both are read as text, without importing a test.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMISES = ROOT / "docs" / "behaviours.toml"
OUTPUT = ROOT / "docs" / "BEHAVIOURS.md"
TESTS = ROOT / "tests"
SCENARIO_LINE = re.compile(r"^\s*#\s*behaviours?:\s*(.*)$")

HEAD = """\
<!-- Written by `make behaviours` from docs/behaviours.toml and the tests; not edited by hand. -->

# Behaviours

Every line is a promise of Quorate, taken from the designs that it follows and in their words. A promise is
kept when a test that names its id fails without it. {named} of {total} have such a test so far; any others
belong to parts that are still to be built.
"""


@dataclass(frozen=True)
class Section:
    title: str
    about: str
    promises: dict[str, str]


@dataclass(frozen=True, order=True)
class Mention:
    """One test, or one scenario file, that names one promise."""

    path: str
    line: int
    test: str
    behaviour: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


class Misnamed(Exception):
    """A test names its behaviours in a way that cannot be read."""


def main() -> None:
    try:
        text = render()
    except Misnamed as wrong:
        sys.exit(f"behaviours: {wrong}")
    OUTPUT.write_text(text, encoding="utf-8")
    print(f"behaviours: wrote {OUTPUT.relative_to(ROOT)}")


def render() -> str:
    """The page as it should stand; Misnamed if a test names an id that is no promise."""
    sections = load_sections()
    known = [behaviour for section in sections for behaviour in section.promises]
    tests: dict[str, list[Mention]] = {behaviour: [] for behaviour in known}
    for mention in find_mentions():
        if mention.behaviour not in tests:
            raise Misnamed(f"{mention.where}: {mention.behaviour} is not in docs/behaviours.toml")
        tests[mention.behaviour].append(mention)
    named = sum(1 for mentions in tests.values() if mentions)
    parts = [HEAD.format(named=named, total=len(known))]
    for section in sections:
        parts.append(f"\n## {section.title}\n\n{section.about}\n\n")
        parts.append("| id | promise | tests |\n| --- | --- | --- |\n")
        for behaviour, promise in section.promises.items():
            parts.append(f"| {behaviour} | {cell(promise)} | {links(tests[behaviour])} |\n")
    return "".join(parts)


def load_sections(path: Path = PROMISES) -> list[Section]:
    with path.open("rb") as file:
        sections = [Section(**section) for section in tomllib.load(file)["section"]]
    ids = [behaviour for section in sections for behaviour in section.promises]
    assert len(ids) == len(set(ids)), "two sections promise the same id"
    return sections


def find_mentions(tests: Path = TESTS) -> list[Mention]:
    mentions: list[Mention] = []
    for path in sorted(tests.rglob("*.py")):
        name = path.relative_to(tests.parent).as_posix()
        mentions += mentions_in_python(name, path.read_text(encoding="utf-8"))
    for path in sorted((tests / "scenarios").rglob("*.txt")):
        name = path.relative_to(tests.parent).as_posix()
        mentions += mentions_in_scenario(name, path.read_text(encoding="utf-8"))
    return sorted(set(mentions))


def mentions_in_python(path: str, source: str) -> Iterator[Mention]:
    """Each id in `….behaviour("…")`, with what it marks: a function, a class, or the whole file."""

    def walk(node: ast.AST, test: str) -> Iterator[Mention]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            test = f"{test}.{node.name}" if test else node.name
        if isinstance(node, ast.Call) and is_marker(node):
            for argument in node.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise Misnamed(f"{path}:{node.lineno}: write each behaviour's id out, as a string")
                yield Mention(path, node.lineno, test or Path(path).name, argument.value)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, test)

    yield from walk(ast.parse(source, filename=path), "")


def is_marker(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "behaviour"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def mentions_in_scenario(path: str, source: str) -> Iterator[Mention]:
    for number, line in enumerate(source.splitlines(), start=1):
        if found := SCENARIO_LINE.match(line):
            for behaviour in found[1].replace(",", " ").split():
                yield Mention(path, number, Path(path).name, behaviour)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def links(mentions: list[Mention]) -> str:
    shown = dict.fromkeys(f"[{mention.test}](../{mention.path})" for mention in mentions)
    return "<br>".join(shown) or "not yet"


if __name__ == "__main__":
    main()
