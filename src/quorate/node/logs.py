"""What a node says to people: one event after another, each in a line of its own.

    2026-03-01T12:00:00.123Z info     node 1: registered
    {"time":"2026-03-01T12:00:00.123Z","level":"info","node":1,"event":"registered"}

The first is for a terminal, and in colours there; the second, `log_format = "json"`, for machines. Whatever an
event is about besides (`partition=events/3`) stands behind its text, unless that says so, or in fields of its own.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

OFFENCE_AGAIN_S = 10.0
OFFENCES_COUNT_MAX = 100
"""Told in that time, whatever strangers do: who fills a log fills a disk."""
TEXT, JSON = "text", "json"
LOG_FORMATS = (TEXT, JSON)
INFO, WARNING, ERROR = "info", "warning", "error"

_COLOURS = {INFO: "", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_FURTHER = "\n  | "
"""Only what begins with a time is an event: strangers may have put a line's end into what they sent."""
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F) if code != 0x0A}
"""Nor may what they sent steer a terminal."""


class Event(msgspec.Struct, frozen=True, gc=False):
    time: float
    """In seconds since 1970."""
    level: str
    node: int
    text: str
    fields: dict[str, Any] = {}

    def __str__(self) -> str:
        fields = self.fields.items()
        about = "".join(f"  {name}={value}" for name, value in fields if f"{name} {value}" not in self.text)
        return f"node {self.node}: {self.text}{about}"


Sink = Callable[[Event], None]
"""Where events go."""


class Say(Protocol):
    """How the parts of a node tell of an event."""

    def __call__(self, text: str, *, level: str = INFO, **fields: Any) -> None: ...


def to_stderr(log_format: str = TEXT) -> Sink:
    """Where that cannot be written, to a full disk or to nobody, a node goes on all the same."""
    in_colour = sys.stderr is not None and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    shaped = as_json if log_format == JSON else as_colours if in_colour else as_text

    def write(event: Event) -> None:
        with suppress(OSError, ValueError):
            print(shaped(event), file=sys.stderr, flush=True)

    return write


def as_text(event: Event) -> str:
    return f"{_moment(event)} {event.level:<8} {_shown(event)}"


def as_colours(event: Event) -> str:
    colour = _COLOURS.get(event.level, "")
    level = f"{colour}{event.level:<8}{_PLAIN}" if colour else f"{event.level:<8}"
    return f"{_DIM}{_moment(event)}{_PLAIN} {level} {_shown(event)}"


def as_json(event: Event) -> str:
    said = {"time": _moment(event), "level": event.level, "node": event.node, "event": event.text}
    return msgspec.json.encode(event.fields | said).decode()


def _moment(event: Event) -> str:
    moment = datetime.fromtimestamp(event.time, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def _shown(event: Event) -> str:
    return str(event).translate(_SHOWN).replace("\n", _FURTHER)


class Speaker:
    """A node's voice: what people should hear of it."""

    def __init__(self, number: int, sink: Sink) -> None:
        self.id = number
        self._sink = sink
        self._offence = ""
        self._offence_told = 0.0
        self._offences_since = 0.0
        self._offences_count = 0

    def log(self, text: str, *, level: str = INFO, **fields: Any) -> None:
        self._sink(Event(time.time(), level, self.id, text, fields))

    def log_bug(self, error: BaseException) -> None:
        """With all that is needed to find it."""
        self.log("".join(traceback.format_exception(error)).rstrip(), level=ERROR)

    def log_offence(self, line: str) -> None:
        """What somebody outside did wrong: said again only after a while, as they may go on doing it."""
        now = time.monotonic()
        if line == self._offence and now - self._offence_told < OFFENCE_AGAIN_S:
            return
        if now - self._offences_since >= OFFENCE_AGAIN_S:
            left_out = self._offences_count - OFFENCES_COUNT_MAX
            if left_out > 0:
                self.log(f"{left_out} more lines of that kind were left out", level=WARNING)
            self._offences_since, self._offences_count = now, 0
        self._offences_count += 1
        if self._offences_count <= OFFENCES_COUNT_MAX:
            self._offence, self._offence_told = line, now
            self.log(line, level=WARNING)
