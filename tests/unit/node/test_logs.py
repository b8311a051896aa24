"""What a node says: a line for each event, whatever is in it."""

from __future__ import annotations

import io
import sys

import msgspec
import pytest

from quorate.node.logs import (
    ERROR,
    INFO,
    JSON,
    OFFENCE_AGAIN_S,
    OFFENCES_COUNT_MAX,
    TEXT,
    WARNING,
    Event,
    Speaker,
    as_colours,
    as_json,
    as_text,
    to_stderr,
)

AT = 1_772_366_400.1239


def test_an_event_is_a_line_with_its_time_level_and_node() -> None:
    event = Event(AT, INFO, 3, "registered")
    assert as_text(event) == "2026-03-01T12:00:00.123Z info     node 3: registered"
    assert msgspec.json.decode(as_json(event)) == {
        "time": "2026-03-01T12:00:00.123Z",
        "level": "info",
        "node": 3,
        "event": "registered",
    }


def test_what_it_is_about_stands_behind_it_or_in_fields_of_its_own() -> None:
    event = Event(AT, WARNING, 3, "a span is damaged", {"partition": "events/3"})
    assert as_text(event).endswith(" warning  node 3: a span is damaged  partition=events/3")
    assert msgspec.json.decode(as_json(event))["partition"] == "events/3"
    said = Event(AT, WARNING, 3, "partition events/3: damaged", {"partition": "events/3"})
    assert as_text(said).endswith("node 3: partition events/3: damaged")
    assert msgspec.json.decode(as_json(said))["partition"] == "events/3"


def test_fields_do_not_take_the_place_of_what_every_event_has() -> None:
    event = Event(AT, INFO, 3, "true", {"event": "false", "level": "none"})
    assert msgspec.json.decode(as_json(event))["event"] == "true"
    assert msgspec.json.decode(as_json(event))["level"] == "info"


def test_what_strangers_sent_neither_looks_like_an_event_nor_steers_a_terminal() -> None:
    event = Event(AT, WARNING, 1, "topic a\n2026-03-01T12:00:00.123Z info node 1: all is well\x1b[2J\r")
    lines = as_text(event).split("\n")
    assert lines[1].startswith("  | 2026")
    assert lines[1].endswith(r"well\x1b[2J\x0d")
    assert "\n" not in as_json(event)
    assert "\x1b" not in as_json(event)


def test_colours_are_for_what_matters() -> None:
    assert "\x1b[31merror" in as_colours(Event(AT, ERROR, 1, "x"))
    assert "\x1b[33mwarning" in as_colours(Event(AT, WARNING, 1, "x"))
    assert "info     node 1: x" in as_colours(Event(AT, INFO, 1, "x"))


@pytest.mark.parametrize(("log_format", "begins"), [(TEXT, "2026-03-01T"), (JSON, "{")])
def test_events_go_to_stderr_without_colours_where_nobody_looks(
    log_format: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    to_stderr(log_format)(Event(AT, ERROR, 1, "x"))
    said = capsys.readouterr().err
    assert said.startswith(begins)
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_however_much_strangers_do_wrong_little_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    speaker = Speaker(1, lambda event: said.append(event.text))
    now = 100.0
    monkeypatch.setattr("quorate.node.logs.time.monotonic", lambda: now)
    for _ in range(3):
        speaker.log_offence("the same again")
    assert said == ["the same again"]
    for number in range(1000):
        speaker.log_offence(f"wrong {number}")
    assert len(said) == OFFENCES_COUNT_MAX
    now += OFFENCE_AGAIN_S
    speaker.log_offence("another")
    assert said[OFFENCES_COUNT_MAX:] == ["901 more lines of that kind were left out", "another"]


def test_a_stream_that_is_closed_or_full_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    for stream in (Full(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        say = to_stderr()
        if type(stream) is io.StringIO:
            stream.close()
        say(Event(AT, INFO, 1, "x"))
