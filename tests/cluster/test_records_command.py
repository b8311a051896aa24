"""`quorate produce` and `quorate consume` against a real cluster, as a person and a script use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli.demo_cluster import DemoCluster

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60
INTERRUPTED = 130


class Shell:
    def __init__(self, servers: str) -> None:
        self._servers = servers

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "quorate", *arguments, "-b", self._servers]

    def __call__(
        self, *arguments: str, stdin: bytes = b"", expect: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        ended = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert ended.returncode == expect, ended
        return ended

    def reads(self, *arguments: str) -> list[bytes]:
        ended = self("consume", *arguments)
        assert ended.stderr == b""
        return ended.stdout.splitlines()

    def is_refused(self, *arguments: str, stdin: bytes = b"") -> str:
        """In one line, behind what was written before that."""
        ended = self(*arguments, stdin=stdin, expect=2)
        *summary, why = ended.stderr.decode().splitlines()
        assert all("written" in line for line in summary), ended
        return why.removeprefix("quorate: ")

    def starts(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        yield Shell(cluster.bootstrap)


def test_lines_go_in_and_come_out_as_they_were(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "lines")
    said = shell("produce", "lines", stdin=b"one\n\ntwo \xff\xfe\nlast without an end").stderr.decode()
    assert said.startswith("4 records written, ")
    values = [b"one", b"", b"two \xff\xfe", b"last without an end"]
    assert shell.reads("lines") == values
    many = [b"line %d" % number for number in range(3000)]
    file = tmp_path / "many.txt"
    file.write_bytes(b"\n".join(many) + b"\n")
    for compression in ("gzip", "zstd"):
        said = shell("produce", "lines", "--file", str(file), "--compression", compression).stderr.decode()
        assert said.startswith("3,000 records written, ")
    assert shell.reads("lines", "--count", "3004") == [*values, *many]
    assert shell.reads("lines", "--from", "3003", "--count", "2") == many[-2:]
    assert shell.reads("lines", "--from", "end") == []
    assert len(shell.reads("lines", "--from", "2001-01-01")) == 6004
    assert shell.reads("lines", "--from", "2099-01-01T12:00") == []


def test_odd_input_is_taken_or_refused_in_one_line(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "odd")
    empty = tmp_path / "empty"
    empty.touch()
    assert shell("produce", "odd", "--file", str(empty)).stderr.startswith(b"0 records written, ")
    said = shell("produce", "odd", "--acks", "0", stdin=b"a\nb\n").stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(b"2 records written, ")
    late = b'{"value": "x", "timestamp": 9223372036854775808}'
    assert "line 1: timestamp is " in shell.is_refused("produce", "odd", "--json", stdin=late)
    assert "no standard input" in closed_input(shell, "produce", "odd")
    for name in ("", "g" * 1001):
        assert "its name has 1 to 1000 characters" in shell.is_refused("consume", "odd", "--group", name)
    assert "no clock was that early" in shell.is_refused("consume", "odd", "--from", "0001-01-01")
    nobody = ("group", "delete-offsets", "nobody", "--topic", "odd")
    assert "group nobody has no positions" in shell.is_refused(*nobody)
    reset = ("group", "reset-offsets", "old", "--topic", "odd", "--to-time")
    assert "no clock was that early" in shell.is_refused(*reset, "0001-01-01")
    shell(*reset, "1960-01-01")


def closed_input(shell: Shell, *arguments: str) -> str:
    """What a command says whose standard input somebody has closed."""
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *shell.command(*arguments)]
    ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, text=True)
    assert ended.returncode == 2, ended
    (line,) = ended.stderr.splitlines()
    return line


@pytest.mark.proof
def test_keys_headers_and_json_go_round(shell: Shell) -> None:
    shell("topic", "create", "keyed", "--partitions", "3")
    shell("topic", "create", "copied")
    lines = b"".join(b"key-%d:value:%d\n" % (number % 7, number) for number in range(70))
    said = shell("produce", "keyed", "-k", ":", "-H", "from=a test", stdin=lines).stderr.decode()
    assert "70 records written into " in said
    assert sorted(shell.reads("keyed", "-k", ":")) == sorted(lines.splitlines())
    shown = [json.loads(line) for line in shell.reads("keyed", "--format", "json")]
    where = {record["key"]: record["partition"] for record in shown}
    assert len(set(where.values())) > 1
    assert all(where[record["key"]] == record["partition"] for record in shown)
    assert {tuple(record["headers"].items()) for record in shown} == {(("from", "a test"),)}
    typed = (
        b'{"value": {"a": 1}, "key": null, "timestamp": 5000}\n'
        b'{"value": {"base64": "//4="}, "headers": {"h": null}}\n'
        b'{"value": null, "key": "gone"}\n'
    )
    shell("produce", "copied", "--json", stdin=typed)
    first, second, third = (json.loads(line) for line in shell.reads("copied", "--format", "json"))
    assert (first["value"], first["key"], first["timestamp"]) == ('{"a":1}', None, 5000)
    assert (second["value"], second["headers"]) == ({"base64": "//4="}, {"h": None})
    assert (third["value"], third["key"]) == (None, "gone")
    again = shell("consume", "copied", "--format", "json").stdout
    shell("produce", "copied", "--json", "--acks", "1", stdin=again)
    assert [json.loads(line)["value"] for line in shell.reads("copied", "--format", "json")][3:] == [
        first["value"],
        second["value"],
        third["value"],
    ]


def test_who_follows_hears_of_each_line_and_ends_well_when_interrupted(shell: Shell) -> None:
    shell("topic", "create", "followed", "--partitions", "2")
    shell("produce", "followed", "--partition", "1", stdin=b"before\n")
    with (
        shell.starts("consume", "followed", "--follow") as reader,
        shell.starts("produce", "followed") as writer,
    ):
        assert reader.stdout is not None
        assert writer.stdin is not None
        assert reader.stdout.readline() == b"before\n"
        for line in (b"now\n", b"and then\n"):
            writer.stdin.write(line)
            writer.stdin.flush()
            assert reader.stdout.readline() == line
        for process, code in ((reader, 0), (writer, INTERRUPTED)):
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == code, said
            assert b"Traceback" not in said
        assert b"2 records written" in said


@pytest.mark.proof
def test_what_cannot_be_done_is_said_in_one_line(shell: Shell) -> None:
    shell("topic", "create", "there", "--config", "max.message.bytes=2000")
    assert "there is no topic 'nowhere'" in shell.is_refused("produce", "nowhere").lower().replace('"', "'")
    assert "has no partition 3" in shell.is_refused("consume", "there", "--partition", "3")
    assert "line 2: there is no ':'" in shell.is_refused("produce", "there", "-k", ":", stdin=b"a:b\nc\n")
    assert "line 1: no JSON" in shell.is_refused("produce", "there", "--json", stdin=b"{\n")
    assert "line 1: there is no partition 9" in shell.is_refused(
        "produce", "there", "--json", stdin=b'{"value": "x", "partition": 9}'
    )
    shell("topic", "create", "compacted", "--config", "cleanup.policy=compact")
    assert "line 1: topic compacted is compacted" in shell.is_refused("produce", "compacted", stdin=b"a\n")
    assert "--from 'yesterday'" in shell.is_refused("consume", "there", "--from", "yesterday")
    assert "partition 0 ends before offset" in shell.is_refused("consume", "there", "--from", "900")
    assert "cannot read" in shell.is_refused("produce", "there", "--file", "/no/such/file")
    assert shell.reads("there", "-k", ":") == [b"a:b"]
    too_large = shell("produce", "there", stdin=b"x" * 5000, expect=1)
    assert b"1 record was not written: " in too_large.stderr


@pytest.mark.proof
def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    shell("topic", "create", "grouped", "--partitions", "2")
    for lines in ([b"one", b"two", b"three"], [b"four"]):
        shell("produce", "grouped", stdin=b"\n".join(lines) + b"\n")
        assert sorted(shell.reads("grouped", "--group", "readers")) == sorted(lines)
    assert shell.reads("grouped", "--group", "readers") == []
    assert "choose one of them" in shell.is_refused("consume", "grouped", "--group", "readers", "-p", "0")
