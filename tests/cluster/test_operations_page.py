"""docs/OPERATIONS.md shows what its commands print: they are typed here, in its order, into a real cluster.

Only blocks of ```console are typed. Numbers, and how wide a table is, may differ from what the page shows. `pytest
--rewrite` puts what was printed into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.growing import GrowingCluster
from tests.cluster.support import run

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

PAGE = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ONE_MORE_NODE = "$ quorate node data"
"""Where the page has a fourth node, this cluster gets one."""
TRIES_COUNT = 5
"""Of a command that has ordered what is not yet so (exit code 1), as on a busy machine."""


def test_the_page_shows_what_commands_print(tmp_path: Path, rewrite: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    typed = run(_type_all(tmp_path, page))
    if rewrite:
        blocks = iter(typed)
        PAGE.write_text(BLOCK.sub(lambda _: f"```console\n{next(blocks)}```", page), encoding="utf-8")
        return
    for shown, printed in zip(BLOCK.findall(page), typed, strict=True):
        assert _shape(shown) == _shape(printed)


async def _type_all(directory: Path, page: str) -> list[str]:
    with GrowingCluster(directory) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            typed = []
            for found in re.finditer(rf"{BLOCK.pattern}|^{re.escape(ONE_MORE_NODE)}$", page, BLOCK.flags):
                if found.group(1) is None:
                    if 4 not in cluster.nodes:
                        cluster.join(4, client)
                        await cluster.until_registered(client)
                else:
                    commands = list(_commands(found.group(1)))
                    typed.append("".join(f"$ {line}\n{_type(line, cluster.bootstrap)}" for line in commands))
        return typed


def _commands(block: str) -> Iterator[str]:
    for line in block.splitlines():
        if line.startswith("$ "):
            yield line.removeprefix("$ ")


def _type(line: str, bootstrap: str) -> str:
    environment = os.environ | {"QUORATE_BOOTSTRAP": bootstrap, "COLUMNS": "110"}
    command = [sys.executable, "-m", "quorate", *line.split()[1:]]
    for _ in range(TRIES_COUNT):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        if done.returncode != 1:
            break
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return "".join(f"{each.rstrip()}\n" for each in done.stdout.strip("\n").splitlines())


def _shape(text: str) -> list[str]:
    """Without numbers and ids, and how far apart words stand; which node happens to lead changes nothing."""
    text = re.sub(r"(?<=^Cluster )\S+", "ID", text, flags=re.MULTILINE)
    text = re.sub(r"\d+(\.\d+)*", "#", text)
    lines = (re.sub(r"[\s─]+", " ", line.removesuffix(" already")).strip() for line in text.splitlines())
    return sorted(line for line in lines if line)
