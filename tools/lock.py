"""Choose the version of every dependency anew and write them down: `make lock`.

`requirements/dev.lock` is the runtime and the development tools; `requirements/local.lock` is what the extra
`[local]` adds to them. Both hold for every Python and platform that pyproject.toml allows, with hashes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.7"
COMPILE = (
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-header",
    "--annotation-style=line",
    "--upgrade",
    "--no-config",
    "pyproject.toml",
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="quorate-lock-") as scratch:
        print(f"lock: fetching {UV}", flush=True)
        venv.create(scratch, with_pip=True)
        tools = Path(scratch) / "bin"
        subprocess.run([tools / "python", "-m", "pip", "install", "--quiet", UV], check=True)
        print("lock: choosing versions", flush=True)
        dev = compile_lock(tools / "uv", "--group=dev")
        constraints = Path(scratch) / "dev.lock"
        constraints.write_text("".join(dev), encoding="utf-8")
        everything = compile_lock(tools / "uv", "--extra=local", f"--constraints={constraints}")
    known = {name_of(block) for block in dev}
    local = [block for block in everything if name_of(block) not in known]
    write("dev.lock", dev, "The runtime and the development tools.")
    write("local.lock", local, "What the extra [local] adds to dev.lock: Spark, Arrow and a Java.")


def compile_lock(uv: Path, *selection: str) -> list[str]:
    """One block of lines for each package: its pin, then its hashes."""
    # Locks name no index: whoever installs chooses where packages come from.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    command = [str(uv), *COMPILE, *selection]
    made = subprocess.run(command, cwd=ROOT, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    blocks: list[str] = []
    for line in made.stdout.splitlines(keepends=True):
        if line[0].isalnum():
            blocks.append(line)
        else:
            assert blocks, f"a lock starts with a package, not with {line!r}"
            blocks[-1] += line
    return blocks


def name_of(block: str) -> str:
    return block.split("==")[0]


def write(name: str, blocks: list[str], what: str) -> None:
    path = ROOT / "requirements" / name
    head = f"# {what}\n# Made by `make lock` from pyproject.toml; not edited by hand.\n"
    path.write_text(head + "".join(blocks), encoding="utf-8")
    print(f"lock: requirements/{name}: {len(blocks)} packages")


if __name__ == "__main__":
    main()
