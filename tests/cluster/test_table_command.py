"""`quorate table` against a real cluster, as a person and a script use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.demo_cluster import DemoCluster

pytestmark = pytest.mark.cluster


class Shell:
    def __init__(self, servers: str) -> None:
        self._servers = servers

    def __call__(self, *arguments: str, stdin: str = "", expect: int = 0, tells: str = "") -> str:
        """What it says: on stdout if all is well, else its one line on stderr, but for what it `tells`."""
        command = [sys.executable, "-m", "quorate", "table", *arguments, "-b", self._servers]
        ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == expect, ended
        said = [line for line in ended.stderr.splitlines() if not (tells and line.startswith(tells))]
        if expect == 0:
            assert said == []
            return ended.stdout
        assert len(said) == 1, said
        assert said[0].startswith("quorate: ")
        return said[0]

    def json(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin))


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def table(servers: str) -> Shell:
    return Shell(servers)


def test_a_bank_from_its_first_account_to_its_end(table: Shell) -> None:
    assert "There are no tables" in table("list")
    said = table("create", "bank/accounts", "id:int", "owner:str?", "balance:int", "--key", "id")
    assert said == "table bank/accounts is created, and group bank\n"
    first = table.json("put", "bank/accounts", "1", "Ann", "100")
    assert first["settled"]
    table("put", "bank/accounts", "2", "null", "-7")
    found = table.json("get", "bank/accounts", "1", "--read", "linearizable")
    assert found == {"version": first["offset"], "row": {"id": 1, "owner": "Ann", "balance": 100}}
    transfer = {
        "operations": [
            {"update": "accounts", "key": 1, "add": {"balance": -30}},
            {"update": "accounts", "key": 2, "add": {"balance": 30}},
        ],
        "conditions": [{"at": "accounts", "key": 1, "version": first["offset"]}],
    }
    done = table.json("txn", "bank", "-", stdin=json.dumps(transfer))
    refused = table("txn", "bank", "-", stdin=json.dumps(transfer), expect=1)
    assert f"accounts 1 is at version {done['offset']}, not {first['offset']}" in refused
    rows = table.json("scan", "bank/accounts", "--from", "1", "--to", "5")
    assert [each["row"]["balance"] for each in rows] == [70, 23]
    assert "Ann" in table("scan", "bank/accounts")
    outcome = table.json("result", "bank", done["id"])
    assert (outcome["outcome"], outcome["offset"]) == ("done", done["offset"])
    table("delete", "bank/accounts", "2")
    assert "there is no row 2 in bank/accounts" in table("get", "bank/accounts", "2", expect=1)
    (group,) = table.json("list")
    assert (group["group"], group["replication"], group["tables"]) == ("bank", "confirm", ["accounts"])
    described = table.json("describe", "bank")
    assert described["copies"] == [1, 2, 3]
    assert described["tables"][0]["columns"] == ["id:int", "owner:str?", "balance:int"]
    demoted = "bank: whoever leads is to settle everything, and to lead no more"
    said = table("demote", "bank", tells=demoted)
    assert said == "the leader of group bank has settled everything, and leads no more\n"
    assert "owner" in table("describe", "bank/accounts")
    assert table("drop", "bank/accounts") == "table bank/accounts is dropped\n"
    assert table("drop", "bank", "--group") == "group bank is dropped\n"
    assert "There are no tables" in table("list")


@pytest.mark.parametrize(
    "replication",
    [
        "coordinated",
        pytest.param("raft", marks=pytest.mark.proof),
        pytest.param("isr", marks=pytest.mark.proof),
    ],
)
def test_groups_of_every_kind(table: Shell, replication: str) -> None:
    name = f"of-{replication}/t"
    table("create", name, "day:str", "data:bytes", "--key", "day", "--replication", replication)
    table("put", name, "today", "0x00ff")
    for node in ("1", "2", "3"):
        found = table.json("get", name, "today", "--node", node)
        assert found["row"] == {"day": "today", "data": "0x00ff"}
    said = table("promote", f"of-{replication}", "--node", "1", expect=2, tells="of-")
    assert f"agree by {replication}: only `confirm` has promote and demote" in said
    said = table("create", name, "day:str", "--key", "day", "--replication", "confirm", expect=2)
    assert f"is there already, with {replication}" in said


@pytest.mark.proof
def test_what_cannot_be_done_is_said_in_one_line(table: Shell) -> None:
    table("create", "errors/t", "id:int", "text:str", "--key", "id")
    for arguments, expect, why in (
        (("create", "errors/t", "id:int", "--key", "id"), 1, "there is a table t already"),
        (("put", "errors/t", "1"), 2, "a row of t has 2 values (id:int text:str), not 1"),
        (("put", "errors/t", "one", "a"), 2, "column id of t is int: 'one' is no integer of 64 bits"),
        (("put", "errors/t", "1", "a", "--if", "5"), 1, "refused, nothing is changed"),
        (("put", "errors/x", "1"), 2, "there is no table 'x' in group 'errors'"),
        (("put", "nothing/x", "1"), 2, "there is no group of tables 'nothing'"),
        (("get", "errors/t", "1", "--node", "9"), 2, "there is no node 9; there are: 1, 2, 3"),
        (("result", "errors", "00" * 16), 1, "nothing is settled under"),
        (("promote", "errors", "--node", "9"), 2, "there is no node 9"),
        (("drop", "nothing", "--group"), 2, "there is no group of tables 'nothing'"),
    ):
        assert why in table(*arguments, expect=expect, tells="errors: "), arguments


# ---- docs/TABLES.md, as it stands there ----

PAGE = (Path(__file__).parents[2] / "docs" / "TABLES.md").read_text(encoding="utf-8")
BOOTSTRAP = "127.0.0.1:9092"


def test_the_commands_of_the_page_run(table: Shell, servers: str) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    quorate = f'quorate() {{ "{sys.executable}" -m quorate "$@" -b {servers}; }}'
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{quorate}\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = "bank: whoever leads is to settle everything, and to lead no more"
    assert (ended.returncode, [line for line in ended.stderr.splitlines() if told not in line]) == (0, [])
    rows = table.json("scan", "bank/accounts")
    assert [tuple(each["row"].values()) for each in rows] == [(1, "Ann", 70), (2, None, 30)]
    table("drop", "bank", "--group")


def test_the_programs_of_the_page_run(servers: str) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    asking = [example for example in examples if BOOTSTRAP in example]
    assert len(asking) == 2
    for example in asking:
        text = example.replace(BOOTSTRAP, servers)
        exec(compile(text, "docs/TABLES.md", "exec"), {"__name__": "example"})
