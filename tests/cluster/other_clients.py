"""Clients that come from other registries: kafkajs, Kafka's own tools in Java, and Spark's own `format("kafka")`.

What each needs is fetched once into a cache directory, by the client of its registry; where that is not possible,
the reason is told, and nothing is run.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "clients"
CACHE = Path(os.environ.get("QUORATE_CLIENTS_CACHE", Path.home() / ".cache" / "quorate-clients"))
FETCH_S = 600.0
RUN_S = 90.0

Pair = tuple[str, str]


class NotThere(Exception):
    """Why a client cannot be run here."""


def fetched(name: str, command: list[str], proof: str) -> Path:
    """A directory with what `command` fetches there; `proof` is there when it has.

    It comes to be as a whole, made by one of those who run tests side by side.
    """
    target = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_as_wanted(name, target) and (target / proof).exists():
            return target
        if shutil.which(command[0]) is None:
            raise NotThere(f"{command[0]} is not on the PATH")
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as making:
            made = Path(making) / name
            shutil.copytree(HERE / name, made)
            _fetch(name, command, made)
            if not (made / proof).exists():
                raise NotThere(f"{command[0]} has fetched no {proof}")
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
    return target


def _is_as_wanted(name: str, target: Path) -> bool:
    wanted = {file.name: file.read_bytes() for file in sorted((HERE / name).iterdir())}
    return all((target / each).is_file() and (target / each).read_bytes() == wanted[each] for each in wanted)


def _fetch(name: str, command: list[str], where: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotThere(f"{command[0]} did not fetch {name} within {FETCH_S:g} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise NotThere(f"{command[0]} cannot fetch {name}: {said[-1] if said else 'it says nothing'}")


def jars(name: str) -> list[Path]:
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    return sorted((fetched(name, command, "jars") / "jars").glob("*.jar"))


def version_of(found: list[Path], artifact: str) -> str:
    versions = (jar.stem.removeprefix(f"{artifact}-") for jar in found if jar.stem.startswith(f"{artifact}-"))
    return next(version for version in versions if version[0].isdigit())


def run(command: list[str], given: str = "") -> str:
    """What it prints; its last words where it fails."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, (command[0], done.stdout[-1000:], done.stderr[-2000:])
    return done.stdout


# ---- kafkajs ----


class Kafkajs:
    def __init__(self, bootstrap: str) -> None:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        self._place = fetched("npm", command, "node_modules/kafkajs")
        self._brokers = bootstrap.split(",")

    @property
    def version(self) -> str:
        package = self._place / "node_modules" / "kafkajs" / "package.json"
        return str(json.loads(package.read_text())["version"])

    def run(self, **asked: object) -> str:
        told = json.dumps({"brokers": self._brokers, **asked})
        return run(["node", str(self._place / "client.js"), told])


# ---- Kafka's own tools ----


class JavaTools:
    def __init__(self, bootstrap: str) -> None:
        if shutil.which("java") is None:
            raise NotThere("java is not on the PATH")
        self._jars = jars("java")
        self._bootstrap = bootstrap
        self.version = version_of(self._jars, "kafka-tools")

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """A class of `org.apache.kafka.tools`."""
        return self._run(tool, "--bootstrap-server", self._bootstrap, *arguments, given=given)

    def write_in_transactions(self, topic: str, count: int, name: str) -> None:
        """So many records, over as many transactions as there is time for."""
        what = ("--topic", topic, "--num-records", str(count), "--record-size", "20", "--throughput", "-1")
        how = ("--transactional-id", name, "--transaction-duration-ms", "20")
        self._run(
            "ProducerPerformance", *what, *how, "--producer-props", f"bootstrap.servers={self._bootstrap}"
        )

    def _run(self, tool: str, *arguments: str, given: str = "") -> str:
        classes = os.pathsep.join(map(str, self._jars))
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, f"org.apache.kafka.tools.{tool}"]
        return run([*command, *arguments], given)
