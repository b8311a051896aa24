"""Make the project's own environment: `.venv`, with every package at its locked version.

Run by `make setup` with whatever `python3` the machine has, so it uses the standard library only and says
in one line what is missing. Running it again brings an old environment up to date.

Spark is part of it, as tests and demo run on it: some 600 MB, and a package that pip builds from its source.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
# Holds the directory that the environment was made for: its scripts do not work from a copy elsewhere.
READY = VENV / ".ready"
DEV_LOCK = ROOT / "requirements" / "dev.lock"
LOCAL_LOCK = ROOT / "requirements" / "local.lock"
FAILURE_LINES_MAX = 15
SILENCE_MAX_S = 8.0
"""Nobody looks at a still screen for longer than this."""


def main() -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        stop("this Python cannot make a venv; install the module (Debian, Ubuntu: apt install python3-venv)")
    python = make_venv()
    install(python, DEV_LOCK, "runtime and development packages")
    install(python, LOCAL_LOCK, "Spark and a Java, some 600 MB")
    say("installing quorate itself, editable")
    pip(python, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    READY.write_text(f"{ROOT}\n", encoding="utf-8")
    say("ready: .venv/bin/quorate")


def make_venv() -> Path:
    """The environment's Python. One of another Python version, or copied from elsewhere, is made anew."""
    python = VENV / "bin" / "python"
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    moved = READY.exists() and READY.read_text(encoding="utf-8").strip() != str(ROOT)
    if not moved and version_of(python) == wanted:
        say(f"bringing .venv up to date (Python {wanted})")
        return python
    say(f"making .venv (Python {wanted})")
    made = run(sys.executable, "-m", "venv", "--clear", str(VENV))
    if made.returncode != 0:
        stop(f"could not make .venv: {last_lines(made.stdout)}")
    return python


def version_of(python: Path) -> str:
    if not python.exists():
        return ""
    asked = run(str(python), "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])")
    return asked.stdout.strip() if asked.returncode == 0 else ""


def install(python: Path, lock: Path, what: str) -> None:
    pins = sum("==" in line for line in lock.read_text(encoding="utf-8").splitlines())
    say(f"fetching what is missing of {pins} locked packages ({what})")
    # The lock is complete, so there is nothing to resolve; its hashes make pip check every file.
    pip(python, "install", "--no-deps", "--requirement", str(lock))


def pip(python: Path, *arguments: str) -> None:
    """Run pip with one line of ours for each package it fetches, and its own output only when it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    output: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        assert running.stdout is not None
        with heartbeat() as speaker:
            for line in running.stdout:
                output.append(line)
                if line.startswith("Collecting "):
                    speaker.tell("fetching", line.split()[1].replace("==", " "))
                elif line.strip().startswith("Building wheel for ") and "started" in line:
                    speaker.tell("building", line.split()[3])
                elif line.startswith("Installing collected packages"):
                    names = line.partition(":")[2].split(",")
                    speaker.tell(
                        "unpacking", names[0].strip() if len(names) == 1 else f"{len(names)} packages"
                    )
    if running.returncode != 0:
        stop(f"pip failed (is a package index in reach?); its last words:\n{last_lines(''.join(output))}")


class Speaker:
    """Says what is being done, once when it begins and again while it lasts."""

    def __init__(self) -> None:
        self.doing = "working"
        self.began = self.spoke = time.monotonic()

    def tell(self, what: str, of: str) -> None:
        self.doing, self.began = f"{what} {of}", time.monotonic()
        self.spoke = self.began
        say(f"  {self.doing}")

    def remind(self) -> None:
        now = time.monotonic()
        if now - self.spoke >= SILENCE_MAX_S:
            self.spoke = now
            say(f"  still {self.doing}: {now - self.began:.0f} s")


@contextmanager
def heartbeat() -> Iterator[Speaker]:
    """A speaker that is never silent for long: one package alone is 450 MB, and pip is mute meanwhile."""
    speaker, over = Speaker(), Event()

    def beat() -> None:
        while not over.wait(0.5):
            speaker.remind()

    beating = Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield speaker
    finally:
        over.set()
        beating.join()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def last_lines(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-FAILURE_LINES_MAX:])


def say(what: str) -> None:
    print(f"setup: {what}", flush=True)


def stop(why: str) -> NoReturn:
    print(f"setup: {why}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
