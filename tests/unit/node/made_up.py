"""Values of any type, as a stranger would make them up: of the right shape, and wrong in every other way."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import inspect

NUMBERS = (0, 1, 1, 2, 3, 7, 100, -1, -2, 1 << 31, 1 << 53, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63))
FLOATS = (0.0, 1.5, -1.0, 1e300, float("inf"), float("nan"))
TEXTS = ("", "a", "raft", "../../etc", "\0" * 10, "x" * 2000)


class Maker:
    def __init__(self, rng: Random, known: list[bytes]) -> None:
        """`known`: bytes that mean something there, such as partitions."""
        self._rng = rng
        self._known = [*known, b"", b"x" * 20, bytes(20), b"y" * 3]

    def one_of(self, kind: type) -> Any:
        """As msgpack has it."""
        return self._made(inspect.type_info(kind))

    def _made(self, info: inspect.Type) -> Any:
        rng = self._rng
        match info:
            case inspect.IntType():
                return rng.choice(NUMBERS)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.FloatType():
                return rng.choice(FLOATS)
            case inspect.StrType():
                return rng.choice(TEXTS)
            case inspect.BytesType():
                return rng.choice(self._known)
            case inspect.NoneType():
                return None
            case inspect.EnumType():
                return rng.choice(list(info.cls)).value
            case inspect.LiteralType():
                return rng.choice(info.values)
            case inspect.UnionType():
                return self._made(rng.choice(info.types))
            case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
                return [self._made(info.item_type) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            case inspect.TupleType():
                return [self._made(each) for each in info.item_types]
            case inspect.NamedTupleType():
                return [self._made(field.type) for field in info.fields]
            case inspect.DictType():
                return {
                    self._made(info.key_type): self._made(info.value_type)
                    for _ in range(rng.choice((0, 1, 2)))
                }
            case inspect.StructType():
                return self._made_struct(info)
        raise AssertionError(info)

    def _made_struct(self, info: inspect.StructType) -> Any:
        values = {field.encode_name: self._made(field.type) for field in info.fields}
        if info.array_like:
            return [*[info.tag] * (info.tag is not None), *values.values()]
        if info.tag is not None and info.tag_field is not None:
            values[info.tag_field] = info.tag
        return values
