"""Records as people type and read them; and what `quorate produce` makes of input that is odd."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.cli import producing
from quorate.cli.producing import Settings, write_all
from quorate.cli.record_lines import BadLine, Incoming, Outgoing, from_json, from_keyed, from_plain, to_json
from quorate.cli.times import as_ms
from quorate.cli.wrong import WrongUsage

TIME_MAX = (1 << 63) - 1


class Producer:
    """In place of aiokafka's: everything is written at once, to partition 0, or nobody says where."""

    def __init__(self, *, acks: str | int, **_: Any) -> None:
        self._acks = acks

    async def start(self) -> None: ...

    async def flush(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None if self._acks == 0 else SimpleNamespace(partition=0))
        return future


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(producing, "AIOKafkaProducer", Producer)
    return Settings("topic", 1, None, (), None, "all", is_compacted=False)


def written(file: Path, settings: Settings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert write_all("127.0.0.1:1", settings, descriptor, from_plain, size=file.stat().st_size) == 0
    finally:
        os.close(descriptor)
    return [line.split(" bytes")[0] for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_counted_whoever_says_that_they_are_written(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], acks: str
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n")
    assert written(file, settings._replace(acks=acks), capsys) == ["2 records written, 2"]


def test_an_empty_file_is_said_to_be_nothing(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty"
    file.touch()
    assert written(file, settings, capsys) == ["0 records written, 0"]


def test_progress_is_told_as_a_share_of_the_file(
    tmp_path: Path,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(producing, "CHUNK_BYTES", 4)
    file = tmp_path / "lines"
    file.write_bytes(b"abc\ndef\n")
    shares = [line.split()[0] for line in written(file, settings, capsys)[:-1]]
    assert shares == ["50%", "100%"]


def test_input_that_cannot_be_read_ends_the_command_in_one_line(tmp_path: Path, settings: Settings) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(WrongUsage, match="cannot read the lines: is a directory"):
            write_all("127.0.0.1:1", settings, descriptor, from_plain)
    finally:
        os.close(descriptor)


def test_what_is_printed_as_json_is_taken_as_json() -> None:
    record = Incoming("topic", 2, 17, 5000, b"\xff", None, (("name", b"value"), ("none", None)))
    assert from_json(to_json(record)) == Outgoing(None, b"\xff", 2, 5000, record.headers)


@pytest.mark.parametrize("number", ["-1", "1.5", "true", '"7"', str(TIME_MAX + 1), "9" * 400])
def test_a_time_that_no_record_can_have_is_refused(number: str) -> None:
    with pytest.raises(BadLine, match=r"^timestamp is |^no JSON"):
        from_json(b'{"value": "x", "timestamp": %s}' % number.encode())


def test_the_latest_time_that_a_record_can_have_is_taken() -> None:
    assert from_json(b'{"value": "x", "timestamp": %d}' % TIME_MAX).timestamp == TIME_MAX


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"7", b"{}", b'{"value": 1, "other": 2}', b'{"value": {"base64": "*"}}', b"\xff\xfe"],
)
def test_lines_that_are_no_records_are_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        from_json(line)


def test_a_line_without_its_separator_is_refused() -> None:
    assert from_keyed(b"::")(b"key::a::b") == Outgoing(b"a::b", b"key")
    with pytest.raises(BadLine, match="there is no '::' between a key and a value"):
        from_keyed(b"::")(b"key:value")


def test_times_before_there_were_any_are_the_beginning_or_refused() -> None:
    assert as_ms(datetime(2026, 11, 18, tzinfo=UTC), "--from") == 1_794_960_000_000
    assert as_ms(datetime(1960, 1, 1, tzinfo=UTC), "--from") == 0
    with pytest.raises(WrongUsage, match=r"^--to-time 0001-01-01T00:00:00: no clock"):
        as_ms(datetime(1, 1, 1), "--to-time")
