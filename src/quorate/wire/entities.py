"""Messages read by kio's schemas, with a reader of our own.

kio's compiled reader believes the counts that it reads: an array of two billion elements, announced in five
bytes, makes it ask for 32 GiB and end the whole process, which no `except` can catch. So its schemas say
what a message looks like, its writers write, and reading goes through our bounded Cursor. Only the calls
that are rare go this way; Produce and Fetch have readers written by hand.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode

from quorate.wire.cursor import BadMessage, Cursor

Read = Callable[[Cursor], Any]
NULL_ENTITY = -1
NO_TIME_MS = -1
"""Said of what has not happened, also where Kafka's schema does not say that it may be missing."""
YEAR_9999_MS = 253_402_300_799_000


def entity_reader(entity: type[Any]) -> Read:
    """What reads one `entity` from a cursor; raises BadMessage."""
    if entity not in _readers:
        _readers[entity] = _made_reader(entity)
    return _readers[entity]


def make(entity: type[Any], values: dict[str, Any]) -> Any:
    """An `entity` from plain values, with dicts for the structures inside.

    Values for which this version of the message has no field are left out: a handler says all that it
    knows, once, and each version of the protocol carries what it can.
    """
    made = {}
    for name, inner in _inner_entities(entity).items():
        if name not in values:
            continue
        value = values[name]
        if inner is not None and isinstance(value, list | tuple):
            value = tuple([make(inner, element) for element in value])
        elif isinstance(value, list):
            value = tuple(value)
        made[name] = value
    return entity(**made)


def _inner_entities(entity: type[Any]) -> dict[str, type[Any] | None]:
    """The fields of an entity, each with the entity that it is a list of, if it is."""
    if entity in _inner:
        return _inner[entity]
    inner: dict[str, type[Any] | None] = {}
    for field in dataclasses.fields(entity):
        kind, _ = without_none(field.type)
        element = without_none(get_args(kind)[0])[0] if get_origin(kind) is tuple else None
        inner[field.name] = (
            element if isinstance(element, type) and dataclasses.is_dataclass(element) else None
        )
    _inner[entity] = inner
    return inner


_inner: dict[type[Any], dict[str, type[Any] | None]] = {}
_readers: dict[type[Any], Read] = {}


def _made_reader(entity: type[Any]) -> Read:
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        tag = field.metadata.get("tag")
        # kio writes a client id the old way in every header version, as Kafka does.
        old_spelling = entity.__name__ == "RequestHeader" and field.name == "client_id"
        read = _field_reader(field, flexible=flexible and not old_spelling, nullable_as_bytes=tag is None)
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[int(tag)] = (field.name, read)
            defaults[field.name] = _tagged_default(field)

    def read_entity(cursor: Cursor) -> Any:
        values = dict(defaults)
        for name, read in plain:
            values[name] = read(cursor)
        if flexible:
            _read_tags(cursor, tagged, values)
        return entity(**values)

    return read_entity


def _read_tags(cursor: Cursor, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(cursor.tags()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        start = cursor.skip(size)
        if tag not in known:
            continue
        name, read = known[tag]
        inner = Cursor(cursor.buffer, start, start + size, elements_max=cursor.elements_left)
        values[name] = read(inner)
        inner.finish()


def _field_reader(field: dataclasses.Field[Any], *, flexible: bool, nullable_as_bytes: bool) -> Read:
    kind, nullable = without_none(field.type)
    is_array = get_origin(kind) is tuple
    if is_array:
        kind, inner_nullable = without_none(get_args(kind)[0])
        nullable = nullable or inner_nullable
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        read = entity_reader(kind)
        if nullable and not is_array and nullable_as_bytes:
            read = _nullable_entity(read)
    else:
        read = _primitive(field.metadata["kafka_type"], flexible=flexible, nullable=nullable and not is_array)
    return _array(read, flexible=flexible, nullable=nullable) if is_array else read


def without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is not UnionType:
        return kind, False
    (inner,) = (argument for argument in get_args(kind) if argument is not NoneType)
    return inner, True


def _array(read: Read, *, flexible: bool, nullable: bool) -> Read:
    def read_array(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.array(flexible=flexible)
        if count is None:
            if not nullable:
                raise BadMessage(f"a list before byte {cursor.at} is null, and must not be")
            return None
        return tuple([read(cursor) for _ in range(count)])

    return read_array


def _nullable_entity(read: Read) -> Read:
    """A structure that may be missing has a byte in front of it (KIP-893)."""
    return lambda cursor: None if cursor.i8() == NULL_ENTITY else read(cursor)


def _primitive(kafka_type: str, *, flexible: bool, nullable: bool) -> Read:
    if kafka_type in _NUMBERS:
        return _NUMBERS[kafka_type]
    if kafka_type == "datetime_i64":
        return lambda cursor: _moment(cursor.i64(), nullable=nullable)
    assert kafka_type in ("string", "bytes", "records")

    def read(cursor: Cursor) -> str | bytes | None:
        value: str | bytes | None
        if kafka_type == "string":
            value = cursor.string(flexible=flexible)
        else:
            view = cursor.records(flexible=flexible)
            value = None if view is None else bytes(view)
        if value is None and not nullable:
            raise BadMessage(f"a field before byte {cursor.at} is null, and must not be")
        return value

    return read


def _error_code(cursor: Cursor) -> ErrorCode:
    number = cursor.i16()
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def _topic_id(cursor: Cursor) -> uuid.UUID | None:
    number = cursor.uuid()
    return uuid.UUID(bytes=number) if any(number) else None


def _lifetime(time_ms: int) -> datetime.timedelta:
    """-1 is said where nobody wants to say."""
    if not -1 <= time_ms <= YEAR_9999_MS:
        raise BadMessage(f"{time_ms} is no time")
    return datetime.timedelta(milliseconds=time_ms)


def _moment(time_ms: int, *, nullable: bool) -> datetime.datetime | None:
    if time_ms == -1 and nullable:
        return None
    if not NO_TIME_MS <= time_ms <= YEAR_9999_MS:
        raise BadMessage(f"{time_ms} is no time")
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(milliseconds=time_ms)


_NUMBERS: dict[str, Read] = {
    "bool": lambda cursor: cursor.i8() != 0,
    "int8": Cursor.i8,
    "int16": Cursor.i16,
    "int32": Cursor.i32,
    "int64": Cursor.i64,
    "uint16": lambda cursor: cursor.i16() & 0xFFFF,
    "float64": Cursor.f64,
    "error_code": _error_code,
    "timedelta_i32": lambda cursor: datetime.timedelta(milliseconds=cursor.i32()),
    "timedelta_i64": lambda cursor: _lifetime(cursor.i64()),
    "uuid": _topic_id,
}


def _tagged_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    kind, _ = without_none(field.type)
    if not dataclasses.is_dataclass(kind):
        return {"string": "", "bool": False, "uuid": None}.get(field.metadata["kafka_type"], 0)
    assert isinstance(kind, type)
    return kind(**{inner.name: _tagged_default(inner) for inner in dataclasses.fields(kind)})
