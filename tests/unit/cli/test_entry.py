"""The command itself: help, version, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quorate import __version__
from quorate.cli.entry import app, run

COMMANDS = (
    "up",
    "format",
    "node",
    "sim",
    "sweep",
    "mutants",
    "scenario",
    "bench",
    "demo",
    "doctor",
    "consume",
    "produce",
    "tier",
    "audit",
)
QUORATE = (sys.executable, "-m", "quorate")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"quorate {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(command in page for command in COMMANDS)


def test_alone_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert "Example" in page
    assert f"quorate {command}" in page


@pytest.mark.parametrize("command", ["sim", "sweep", "mutants"])
def test_help_has_an_example_of_each_protocol(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--help"]) == 0
    _, _, examples = capsys.readouterr().out.partition("Examples")
    assert f"quorate {command} coordinated" in examples


def test_help_needs_nothing_of_the_house() -> None:
    """It answers at once because only the parser is imported."""
    code = (
        "import sys; from quorate.cli.entry import run; run(['sim', '--help']);"
        "print([name for name in sys.modules if name.startswith(('quorate.', 'msgspec', 'crc32c'))"
        " and not name.startswith('quorate.cli')])"
    )
    asked = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    assert asked.stdout.splitlines()[-1] == "[]"


def test_an_interrupt_is_one_line_and_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quorate.cli.bench.show", interrupted)
    monkeypatch.setitem(sys.modules["quorate.cli.bench"].BENCHES, "core", interrupted)
    assert run(["bench", "core"]) == 130
    assert capsys.readouterr().err == "quorate: interrupted\n"


def test_a_polite_end_has_its_own_exit_code() -> None:
    command = [*QUORATE, "sim", "raft", "--seeds", "0:100000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        assert b"seeds 0 to 99999" in child.stderr.readline()
        child.terminate()
        assert child.wait(timeout=30) == 143
        assert child.stderr.read() == b""


def test_a_reader_that_leaves_is_no_reason_to_complain() -> None:
    with subprocess.Popen([*QUORATE, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=30) == 141


def test_commands_are_registered_once() -> None:
    names = [command.name for command in app.registered_commands]
    assert sorted(names) == sorted(set(names)) == sorted(COMMANDS)  # type: ignore[type-var]
