"""Messages written by hand: what a replica could have sent, though it does not happen to.

Entries come, bytes and all, from the sender's own log, so that nothing is sent that is not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Header
from quorate.host import Parcel
from quorate.host.parcel import packed
from quorate.sim.scenario_log import read_entries
from quorate.sim.scenario_stage import Refused, Stage
from quorate.sim.scenario_words import Mistake, Word
from quorate.storage.frame import Frame

EVERYTHING_BYTES = 1 << 40


def send(stage: Stage, source: int, target: int, called: str, words: tuple[str, ...]) -> None:
    """Put a message on a link: its name, and its fields as `expect message` writes them."""
    replica = stage.acting(source)
    kind = _kind(stage, called)
    values: dict[str, Any] = {"epoch": replica.epoch}
    for part in " ".join(words).split(" and "):
        name, _, text = part.partition(" ")
        field = "headers" if name == "entries" else name.replace("-", "_")
        values[field] = _value(stage, replica, kind, field, text)
    try:
        message = kind(**values)
    except TypeError as error:
        fields = ", ".join(stage.teller.field_name(field.name) for field in msgspec.structs.fields(kind))
        raise Refused(f"{called} has the fields {fields}: {error}") from None
    frames = _frames(stage, source, values.get("headers", ()))
    parcel = Parcel(stage.partitions[0], stage.record(source).me, packed(message), frames)
    stage.put(source, target, parcel)


def _kind(stage: Stage, called: str) -> type:
    messages = stage.cast.room.messages
    if called in messages:
        return messages[called]
    alike = [name for name in messages if name.startswith(f"{called}-")]
    raise Refused(f"write the whole name: {' or '.join(alike)}")


def _value(stage: Stage, replica: Any, kind: type, field: str, text: str) -> Any:
    types = {found.name: found.type for found in msgspec.structs.fields(kind)}
    if field == "headers":
        return _headers(stage, replica, text)
    if not text and types.get(field) is bool:
        return True
    if types.get(field) in (EntryId, EntryId | None):
        return _position(stage, text)
    if field in stage.cast.room.offset_fields and text == "none":
        return -1
    if field in stage.cast.room.node_fields and text in stage.cast.numbers:
        return stage.cast.numbers[text]
    if not text.isdecimal():
        raise Refused(f"`{field} {text}` is not a field of {kind.__name__}, or cannot be written by hand")
    return int(text) - (stage.cast.origin if field in stage.cast.room.offset_fields else 0)


def _position(stage: Stage, text: str) -> EntryId:
    if text == "nothing":
        return NOWHERE
    try:
        item = read_entries([Word(text)], stage.cast.origin)[0]
    except Mistake as mistake:
        raise Refused(str(mistake)) from None
    return EntryId(item.epoch, item.last)


def _headers(stage: Stage, replica: Any, text: str) -> tuple[Header, ...]:
    headers = []
    for word in text.split():
        position = _position(stage, word)
        if not replica.log.holds(position):
            raise Refused(f"{word} is not in that log")
        headers.append(stage.narrator.entries[position.epoch, position.offset])
    return tuple(headers)


def _frames(stage: Stage, source: int, headers: tuple[Header, ...]) -> tuple[Frame, ...]:
    if not headers:
        return ()
    host = stage.nodes[source].host
    assert host is not None
    first, last = headers[0].offset, headers[-1].last
    frames = host.store.frames(stage.partitions[0], first, last, EVERYTHING_BYTES)
    if frames is None:
        read: list[list[Frame]] = []
        host.store.read(stage.partitions[0], first, last, EVERYTHING_BYTES, read.append)
        host.store.pump()
        stage.calm()
        frames = read[0]
    return tuple(frames)
