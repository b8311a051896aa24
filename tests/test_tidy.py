"""The house rules. Each complaint says where, what, and what to do instead; tools/tidy.py has the rules."""

from __future__ import annotations

import ast
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from quorate.cli.entry import run
from tools import behaviours, tidy

ROOT = Path(__file__).resolve().parent.parent
TEXT_ROOTS = (".ci", "deploy", "docs", "requirements", "src", "tests", "tools")
TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".lock", ".md", ".patch", ".py", ".service", ".svg", ".toml", ".txt", ".yaml"}
)
LICENSE = "LICENSE"  # not our words


@cache
def text_files() -> dict[str, str]:
    """Every text file of the project by its path from the root, in order."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for root in TEXT_ROOTS:
        below = (ROOT / root).rglob("*")
        paths += [path for path in below if path.is_file() and "__pycache__" not in path.parts]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if path.suffix in TEXT_SUFFIXES and path.name != LICENSE
    }


@cache
def tree_of(where: str) -> ast.Module:
    return ast.parse(text_files()[where], filename=where)


def python_files(*roots: str) -> dict[str, ast.Module]:
    return {
        where: tree_of(where)
        for where in text_files()
        if where.endswith(".py") and where.split("/")[0] in roots
    }


def source_files() -> Iterator[tuple[str, str, ast.Module]]:
    """Module name, path and tree of everything under src."""
    for where, tree in python_files("src").items():
        module = where.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        yield module, where, tree


def markdown_files() -> dict[str, str]:
    return {where: source for where, source in text_files().items() if where.endswith(".md")}


def expect_tidy(complaints: Iterable[str]) -> None:
    found = list(complaints)
    assert not found, "\n" + "\n".join(found)


# ---- the house ----


def test_imports_point_one_way() -> None:
    expect_tidy(
        complaint
        for module, where, tree in source_files()
        for complaint in tidy.check_layering(module, where, tree)
    )


ROOM = "quorate.core.coordinated"
NODES = "config fenced follower leader messages reconfiguring replica roles shard".split()
"""What nodes of `coordinated` are made of,"""
OPERATORS = "answering electing gathering operator orders reshaping tending".split()
"""and what is their operator's alone."""
OVERSEERS = {"quorate.core.metadata", "quorate.core.overseeing"}
"""As is what those of other protocols have, too."""


def operators_things_in(where: str, tree: ast.Module) -> Iterator[str]:
    """Nodes neither read nor write shard metadata, and know of no operator but who speaks to them (OX-1)."""
    theirs = OVERSEERS | {
        ROOM,
        *(f"{ROOM}.{name}" for name in OPERATORS),
    }  # The room itself imports them all.
    for node in tidy.imports_in(tree):
        names = tidy.imported_modules(node)
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (
            f"{where}:{node.lineno}: a node must not import {name}; it does what the operator's messages say"
            for name in names
            if name in theirs
        )


@pytest.mark.behaviour("OX-1")
def test_nodes_of_coordinated_know_nothing_of_shard_metadata() -> None:
    modules = {module: (where, tree) for module, where, tree in source_files()}
    expect_tidy(complaint for name in NODES for complaint in operators_things_in(*modules[f"{ROOM}.{name}"]))
    beside = {"", "invariants", "operator_invariants"}
    inside = {module.removeprefix(ROOM).removeprefix(".") for module in modules if module.startswith(ROOM)}
    assert inside - beside == {*NODES, *OPERATORS}, "every module is a node's or an operator's: say which"


@pytest.mark.parametrize(
    "line",
    [
        "from quorate.core.metadata import WriteShard",
        "import quorate.core.coordinated.operator",
        "from quorate.core.coordinated import orders",
        "from quorate.core.coordinated import Operator",
        "def f():\n    from quorate.core.coordinated.electing import Electing",
    ],
)
def test_operators_things_are_refused_to_nodes(line: str) -> None:
    assert list(operators_things_in("sample.py", ast.parse(line)))


def test_what_nodes_are_told_and_keep_passes() -> None:
    line = "from quorate.core.coordinated.messages import FenceRequest\nfrom quorate.core import events"
    assert not list(operators_things_in("sample.py", ast.parse(line)))


def test_modules_and_functions_fit_in_a_head() -> None:
    expect_tidy(
        complaint
        for where, tree in python_files("src", "tests", "tools").items()
        for complaint in tidy.check_sizes(where, text_files()[where], tree)
    )


def test_nothing_is_pickled() -> None:
    expect_tidy(
        complaint
        for where, tree in python_files("src", "tests", "tools").items()
        for complaint in tidy.check_picklers(where, tree)
    )


def test_no_exception_is_swallowed_unnamed() -> None:
    expect_tidy(
        complaint
        for where, tree in python_files("src", "tests", "tools").items()
        for complaint in tidy.check_swallowed(where, tree)
    )


def test_tests_wait_for_events_and_not_for_clocks() -> None:
    expect_tidy(
        complaint
        for where, tree in python_files("tests").items()
        for complaint in tidy.check_sleeps(where, tree)
    )


def test_one_word_per_thing() -> None:
    expect_tidy(
        complaint
        for module, where, tree in source_files()
        if tidy.layer_of(module) in tidy.WORDS_LAYERS
        for complaint in tidy.check_words(where, tree)
    )


def test_text_is_finished_and_names_no_machine_and_no_package_index() -> None:
    expect_tidy(
        complaint for where, source in text_files().items() for complaint in tidy.check_text(where, source)
    )


def test_links_lead_somewhere() -> None:
    def exists(path: PurePosixPath) -> bool:
        inside = Path(os.path.normpath(ROOT / path))
        return inside.is_relative_to(ROOT) and inside.exists()

    expect_tidy(
        complaint
        for where, source in markdown_files().items()
        for complaint in tidy.check_links(where, source, exists)
    )


# ---- the documents ----


def test_behaviours_page_is_current() -> None:
    try:
        current = behaviours.render()
    except behaviours.Misnamed as wrong:
        pytest.fail(str(wrong))
    assert behaviours.OUTPUT.read_text(encoding="utf-8") == current, (
        "docs/BEHAVIOURS.md is stale: run `make behaviours`"
    )


def test_the_documents_of_a_newcomer_stand() -> None:
    wanted = (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/ARCHITECTURE.md",
        "docs/SCENARIOS.md",
        LICENSE,
    )
    missing = [name for name in wanted if not (ROOT / name).is_file()]
    assert not missing, f"still to be written: {', '.join(missing)}"


def test_make_commands_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", text_files()["Makefile"], flags=re.MULTILINE))
    expect_tidy(
        f"{where}:{line}: there is no target {word} in the Makefile"
        for where, source in markdown_files().items()
        for line, words in tidy.shell_commands(source)
        if words[0] == "make"
        for word in words[1:]
        if "=" not in word and not word.startswith("-") and word not in targets
    )


def test_quorate_commands_in_documents_exist() -> None:
    expect_tidy(
        f"{where}:{line}: {complaint}"
        for where, source in markdown_files().items()
        for line, words in tidy.shell_commands(source)
        if PurePosixPath(words[0]).name == "quorate"
        for complaint in complaints_about_command(words[1:])
    )


def complaints_about_command(words: list[str]) -> Iterator[str]:
    # Brackets as in a synopsis are for people: `[--json]`.
    arguments = [word.strip("[]") for word in words]
    words_count = 2 if arguments[:1] in (["topic"], ["cluster"], ["table"], ["user"], ["backup"]) else 1
    subcommand = [word for word in arguments[:words_count] if not word.startswith("-")]
    status, page = help_page(*subcommand)
    if status != 0:
        yield f"`quorate {' '.join(subcommand)} --help` exits {status}"
        return
    for option in (word.split("=")[0] for word in arguments if word.startswith("--")):
        if not re.search(rf"{re.escape(option)}(?![\w-])", page):
            yield f"`quorate {' '.join(subcommand)}` has no {option}"


@cache
def help_page(*subcommand: str) -> tuple[int, str]:
    page = io.StringIO()
    with redirect_stdout(page), pytest.MonkeyPatch.context() as environment:
        for name, value in {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}.items():
            environment.setenv(name, value)
        status = run([*subcommand, "--help"])
    return status, page.getvalue()


def test_make_help_lists_every_target() -> None:
    lines = text_files()["Makefile"].splitlines()
    expect_tidy(
        f"Makefile: {line.split(':')[0]} says nothing about itself: add '## …'"
        for line in lines
        if re.match(r"[a-z]+:", line) and " ## " not in line
    )


# ---- the rules themselves: each catches what it is there for, and lets its neighbour pass ----


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("quorate.core.raft", "import asyncio"),
        ("quorate.core.raft", "from os import path"),
        ("quorate.core.raft", "import random"),
        ("quorate.core.raft", "from random import choice"),
        ("quorate.core.raft", "from quorate.storage import journal"),
        ("quorate.core.raft", "from quorate import host"),
        ("quorate.core.raft", "import crc32c"),
        ("quorate.core.raft", "from .messages import Vote"),
        ("quorate.storage.journal", "from quorate.host import Host"),
        ("quorate.machine.producers", "from quorate.storage import journal"),
        ("quorate.host.host", "import time"),
        ("quorate.host.host", "from quorate.node import loop"),
        ("quorate.sim.world", "from quorate.node import loop"),
        ("quorate.node.loop", "from quorate.sim import world"),
        ("quorate.node.loop", "from quorate.cli import main"),
        ("quorate.batch", "from quorate.core import entry"),
        ("quorate.attic.boxes", "import enum"),
    ],
)
def test_layering_refuses(module: str, line: str) -> None:
    assert list(tidy.check_layering(module, "sample.py", ast.parse(line)))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("quorate.core.raft", "from random import Random"),
        ("quorate.core.raft", "import msgspec"),
        ("quorate.core.raft", "from quorate.core.entry import Header"),
        ("quorate.core.raft", "from collections.abc import Iterator"),
        ("quorate.storage.journal", "import crc32c, os, threading"),
        ("quorate.storage.journal", "from quorate import batch"),
        ("quorate.host.host", "from quorate.machine import producers"),
        ("quorate.sim.world", "from quorate.host import Host"),
        ("quorate.node.loop", "import asyncio, uvloop"),
        ("quorate.cli.main", "from quorate import __version__, sim"),
    ],
)
def test_layering_lets_pass(module: str, line: str) -> None:
    assert not list(tidy.check_layering(module, "sample.py", ast.parse(line)))


def test_sizes_refuse_long_modules_and_functions() -> None:
    long_function = "def f():\n" + "    x = 1\n" * tidy.FUNCTION_LINES_MAX
    long_module = "x = 1\n" * tidy.MODULE_LINES_MAX
    assert len(list(tidy.check_sizes("sample.py", long_function, ast.parse(long_function)))) == 1
    assert len(list(tidy.check_sizes("sample.py", long_module, ast.parse(long_module)))) == 1


def test_picklers_are_refused() -> None:
    assert list(tidy.check_picklers("sample.py", ast.parse("from pickle import loads")))
    assert not list(tidy.check_picklers("sample.py", ast.parse("import msgspec")))


def test_swallowing_is_refused_unless_named() -> None:
    wide = ast.parse("try:\n    f()\nexcept Exception:\n    pass")
    named = ast.parse("try:\n    f()\nexcept FileNotFoundError:\n    pass")
    assert list(tidy.check_swallowed("sample.py", wide))
    assert not list(tidy.check_swallowed("sample.py", named))


def test_long_sleeps_are_refused() -> None:
    assert list(tidy.check_sleeps("sample.py", ast.parse("time.sleep(0.5)")))
    assert list(tidy.check_sleeps("sample.py", ast.parse("await asyncio.sleep(1)")))
    assert not list(tidy.check_sleeps("sample.py", ast.parse("time.sleep(0.01)")))


@pytest.mark.parametrize("name", ["term", "current_term", "CurrentTerm", "LSN", "last_lsn", "high_watermark"])
def test_foreign_words_are_refused(name: str) -> None:
    assert list(tidy.check_words("sample.py", ast.parse(f"self.{name} = 1")))


@pytest.mark.parametrize("name", ["terminal", "determine", "epoch", "TerminalWidth"])
def test_words_that_only_sound_alike_pass(name: str) -> None:
    assert not list(tidy.check_words("sample.py", ast.parse(f"self.{name} = 1")))


@pytest.mark.parametrize(
    "line",
    [
        "# TO" + "DO later",
        "cd /" + "root/quorate",
        'x = "/' + 'home/me"',
        "--index-" + "url https://example.org",
    ],
)
def test_unfinished_or_foreign_text_is_refused(line: str) -> None:
    assert list(tidy.check_text("sample.md", line))


@pytest.mark.parametrize("line", ["src/workers/x", "a spark/root pool", "$(ROOT)/root_page", "todo list"])
def test_ordinary_text_passes(line: str) -> None:
    assert not list(tidy.check_text("sample.md", line))


def test_links_are_followed_from_their_file() -> None:
    def exists(path: PurePosixPath) -> bool:
        return path.as_posix() == "docs/a.md"

    assert not list(tidy.check_links("docs/b.md", "[a](a.md#part) [web](https://example.org)", exists))
    assert list(tidy.check_links("docs/b.md", "[c](c.md)", exists))


def test_shell_commands_are_found_in_fences_only() -> None:
    page = "make no\n```sh\n$ make demo   # so\nquorate sim raft && make test\n```\n```python\nmake()\n```\n"
    commands = [words for _, words in tidy.shell_commands(page)]
    assert commands == [["make", "demo"], ["quorate", "sim", "raft"], ["make", "test"]]


# ---- the map from promises to tests ----


def test_markers_are_found_on_functions_classes_and_files() -> None:
    source = (
        'pytestmark = pytest.mark.behaviour("OR-1")\n'
        '@pytest.mark.behaviour("OR-2", "OR-3")\n'
        "def test_a(): ...\n"
        "class TestB:\n"
        '    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.behaviour("OR-4"))])\n'
        "    def test_c(self, x): ...\n"
    )
    found = [(mention.test, mention.behaviour) for mention in behaviours.mentions_in_python("t.py", source)]
    assert found == [("t.py", "OR-1"), ("test_a", "OR-2"), ("test_a", "OR-3"), ("TestB.test_c", "OR-4")]


def test_a_marker_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(behaviours.Misnamed, match=r"t\.py:1"):
        list(behaviours.mentions_in_python("t.py", "pytestmark = pytest.mark.behaviour(*IDS)"))


def test_scenarios_name_behaviours_in_a_comment() -> None:
    found = behaviours.mentions_in_scenario(
        "tests/scenarios/raft/keep.txt", "# keep\n# behaviour: OR-5 OR-7\n"
    )
    assert [(mention.line, mention.test, mention.behaviour) for mention in found] == [
        (2, "keep.txt", "OR-5"),
        (2, "keep.txt", "OR-7"),
    ]
