"""Every scenario file, and every example of docs/SCENARIOS.md, runs and ends as it says.

With --rewrite, expected traces are written anew, for a person to read the diff.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.sim.scenario import PATTERNS, run_scenario, run_text
from quorate.sim.scenario_script import EXPECT_ERROR, GIVEN
from quorate.sim.scenario_words import Form, split, understand

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DOCUMENT = ROOT / "docs" / "SCENARIOS.md"
FILES = sorted(HERE.rglob("*.txt"))
FENCE = "```"


def name_of(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_scenario(path: Path, rewrite: bool) -> None:
    result = run_scenario(path, rewrite=rewrite)
    assert not result.problems, "\n" + "\n".join(result.lines())
    assert result.expectations_count, "a scenario that expects nothing proves nothing"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_scenario_tells_its_story_and_names_what_it_proves(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    story = text.split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in story), "a file begins with a comment that tells its story"
    assert len(story) >= 3
    assert re.match(r"# behaviour: \S", story[-1]), "and ends it with the line `# behaviour: …`"


def examples() -> Iterator[tuple[int, str]]:
    """(line of the fence, text) of every example, padded so that line numbers are those of the page."""
    language: str | None = None
    began = 0
    body: list[str] = []
    for number, line in enumerate(DOCUMENT.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith(FENCE):
            body.append(line)
            continue
        if language == "scenario":
            yield began, "\n" * began + "\n".join(body) + "\n"
        language = line.removeprefix(FENCE) if language is None else None
        began, body = number, []


@pytest.mark.parametrize("text", [pytest.param(text, id=f"line {line}") for line, text in examples()])
def test_example_of_the_document(text: str) -> None:
    result = run_text(text, f"docs/{DOCUMENT.name}")
    assert not result.problems, "\n" + "\n".join(result.lines())


def test_the_document_describes_every_form() -> None:
    page = DOCUMENT.read_text(encoding="utf-8").replace("\\|", "|")
    missing = [pattern for pattern in PATTERNS if f"`{pattern}`" not in page]
    assert not missing, f"docs/SCENARIOS.md has no row for: {missing}"


def test_the_document_shows_every_form_in_an_example() -> None:
    forms = [Form(pattern) for pattern in PATTERNS]
    shown = {
        understand(words, forms)[0].pattern
        for _, text in examples()
        for line in text.splitlines()
        if (words := split(line)) and not line[:1].isspace()
    }
    assert not set(PATTERNS) - shown
    assert EXPECT_ERROR in shown
    assert set(GIVEN) <= shown


def test_the_document_names_no_form_that_is_not_there() -> None:
    page = DOCUMENT.read_text(encoding="utf-8").replace("\\|", "|")
    rows = re.findall(r"^\| `([a-z-]+ [^`]*[A-Z][^`]*)` \|", page, flags=re.MULTILINE)
    assert len(rows) > 50
    assert not set(rows) - set(PATTERNS)
