"""Messages of any kind, made up: what a schema of kio allows."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from quorate.wire.entities import without_none
from quorate.wire.messages import Api

KIO_FROM = {Api.PRODUCE: 3}
"""kio has no schemas for the versions that carry the old message sets."""

TEXT = st.text(max_size=12)
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(
        lambda ms: datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=ms)
    ),
    "timedelta_i64": st.integers(0, 2**41).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "string": TEXT,
    "bytes": st.binary(max_size=40),
    "records": st.binary(max_size=40),
    "uuid": st.uuids(),
}


def entities(entity: type[Any]) -> st.SearchStrategy[Any]:
    fields = {field.name: _field(field) for field in dataclasses.fields(entity)}
    return st.builds(entity, **fields)


def _field(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    kind, nullable = without_none(field.type)
    is_array = get_origin(kind) is tuple
    if is_array:
        kind, _ = without_none(get_args(kind)[0])
    is_entity = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    inner = entities(kind) if is_entity else _PRIMITIVES[field.metadata["kafka_type"]]
    if is_array:
        inner = st.lists(inner, max_size=2).map(tuple)
    # A tagged field is missing, never null.
    return st.none() | inner if nullable and "tag" not in field.metadata else inner
