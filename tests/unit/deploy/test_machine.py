"""The systemd unit and the image: what they run is there, and nothing more is allowed than is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import RawConfigParser
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from quorate.cli.entry import app
from quorate.node.config import NodeConfig, load_config
from quorate.node.settings import from_environment
from tests.unit.deploy.files import CONTAINER, DOCKERFILE, ROOT, UNIT, tool
from tests.unit.kafka.harness import Served, serve

EXPOSURE_MAX = 2.0
"""As `systemd-analyze security` counts: 10 for a unit that says nothing."""


class Unit(RawConfigParser):
    """Keys as they are written; of a key that is there twice, the last."""

    def __init__(self) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",))
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read_string(UNIT.read_text(encoding="utf-8"))


def quorate_takes(*words: str) -> str:
    asked = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert asked.exit_code == 0, asked.output
    return asked.output


# ---- systemd ----


def with_a_program_that_is_there(room: Path) -> Path:
    text = UNIT.read_text(encoding="utf-8")
    copy = room / UNIT.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text), encoding="utf-8")
    return copy


def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = with_a_program_that_is_there(tmp_path)
    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    said = subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)
    about_it = [line for line in said.stderr.splitlines() if UNIT.stem in line]
    assert (said.returncode, about_it) == (0, [])


def test_a_line_that_systemd_does_not_know_is_seen(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    unit = with_a_program_that_is_there(tmp_path)
    unit.write_text(
        unit.read_text(encoding="utf-8").replace("ProtectHome=", "ProtectHouse="), encoding="utf-8"
    )
    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    said = subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)
    assert "ProtectHouse" in said.stderr


def test_the_unit_is_allowed_little(tmp_path: Path) -> None:
    unit = with_a_program_that_is_there(tmp_path)
    command = [tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)
    found = re.search(r"Overall exposure level for \S+ ([\d.]+)", said.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze does not look at files: {said.stderr.strip()}")
    assert float(found[1]) <= EXPOSURE_MAX


def test_the_unit_starts_what_quorate_has() -> None:
    service = Unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert Path(program).name == "quorate"
    assert "--config" in quorate_takes(words[0])
    assert words[1] == "--config"
    assert service["RestartPreventExitStatus"] == "2"
    page = " ".join(quorate_takes("node").split())
    assert "2 it could not start" in page


# ---- the image ----


def found_in_the_dockerfile(text: str) -> subprocess.CompletedProcess[str]:
    """What a linter finds; what the shell would make of its RUN lines is looked at, too."""
    command = [tool("hadolint"), "--no-color", "-"]
    return subprocess.run(command, check=False, input=text, text=True, capture_output=True, timeout=60)


def test_a_linter_finds_nothing_in_the_dockerfile() -> None:
    found = found_in_the_dockerfile(DOCKERFILE.read_text(encoding="utf-8"))
    assert (found.returncode, found.stdout) == (0, "")


def test_a_misspelt_instruction_is_found() -> None:
    """Else the test above could not fail."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    found = found_in_the_dockerfile(text.replace("STOPSIGNAL", "STOPSIGNALS"))
    assert found.returncode == 1
    line = text[: text.index("STOPSIGNAL")].count("\n") + 1
    assert f":{line}:" in found.stdout


def instructions() -> list[tuple[str, str]]:
    """Each with what it says, its continued lines joined; comments left out."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def last(word: str) -> str:
    return [rest for name, rest in instructions() if name == word][-1]


def ignored(path: str) -> bool:
    """As the file beside the Dockerfile says: the last line that fits decides."""
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    is_ignored = False
    for line in lines:
        pattern = line.removeprefix("!")
        if (
            pattern
            and not line.startswith("#")
            and (fnmatch(path, pattern) or path.startswith(f"{pattern}/"))
        ):
            is_ignored = not line.startswith("!")
    return is_ignored


def test_every_file_that_the_image_is_made_from_is_there_and_is_sent() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    files = [file for each in copied for file in each]
    assert "src" in files
    for file in files:
        assert (ROOT / file).exists(), file
        assert not ignored(file), file
    assert ignored("tests/conftest.py")
    assert ignored(".git/config")


def test_the_image_is_not_root_and_never_leaves_assertions_out() -> None:
    user = last("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), (
        "a number, so that Kubernetes can tell that it is not root"
    )
    assert [name for name, _ in instructions()].count("FROM") == 2
    for name, rest in instructions():
        assert name != "ENV" or "PYTHONOPTIMIZE" not in rest


def test_the_image_starts_what_quorate_has_with_the_file_that_it_holds() -> None:
    assert msgspec.json.decode(last("ENTRYPOINT")) == ["quorate"]
    words = msgspec.json.decode(last("CMD"))
    (config,) = [rest.split()[1] for name, rest in instructions() if rest.startswith("deploy/container.toml")]
    assert words == ["node", "--config", config]
    assert "--config" in quorate_takes("node")
    assert "--config" in quorate_takes("format")
    variables = {
        "QUORATE_NODE": "1",
        "QUORATE_LISTEN": "127.0.0.1:9092",
        "QUORATE_PEERS": "2=n2:9092,3=n3:9092",
    }
    told = load_config(CONTAINER, from_environment(variables, NodeConfig))
    assert last("VOLUME") == str(Path(told.directory).parent)
    assert last("EXPOSE").split() == ["9092", told.http.rpartition(":")[2]]


def test_the_health_check_tells_a_node_that_lives_from_one_that_does_not(tmp_path: Path) -> None:
    _, _, command = last("HEALTHCHECK").partition("CMD ")
    python, *words = msgspec.json.decode(command)
    assert python == "python"
    results: list[int] = []

    async def look(served: Served) -> None:
        import asyncio

        (port,) = [found[1] for line in served.said if (found := re.search(r"HTTP on 127.0.0.1:(\d+)", line))]
        here = [word.replace(":9192/", f":{port}/") for word in words]
        assert here != words
        results.append(await (await asyncio.create_subprocess_exec(sys.executable, *here)).wait())

    serve(tmp_path, look, http="127.0.0.1:0")
    assert results == [0]
    nobody = [word.replace(":9192/", ":1/") for word in words]
    done = subprocess.run([sys.executable, *nobody], check=False, capture_output=True, timeout=60)
    assert done.returncode != 0
