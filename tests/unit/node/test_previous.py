"""What nodes of the previous releases say, and write into the metadata group, means the same to this one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from quorate.core.entry import Member
from quorate.machine import metadata
from quorate.node.codec import decode_greeting, decode_parcel
from quorate.node.requests import decode_answer, decode_request
from tools.previous import RELEASES

SAMPLES = [
    pytest.param(sample, id=f"level-{release.level}-{sample['what']}-{sample['type']}")
    for release in RELEASES
    for sample in json.loads(release.letters.read_text(encoding="utf-8"))
]
NUMBER = 7


def read(what: str, raw: bytes) -> Any:
    if what == "parcel":
        parcel = decode_parcel(raw)
        assert parcel.sender == Member(2, 1)
        assert not parcel.to_overseer
        return parcel.message
    if what == "greeting":
        return decode_greeting(raw)
    if what == "request":
        number, request, attachment = decode_request(raw)
        assert (number, len(attachment)) == (NUMBER, 0)
        return request
    if what == "answer":
        number, answer, attachment = decode_answer(raw)
        assert (number, len(attachment)) == (NUMBER, 0)
        return answer
    if what == "command":
        return msgspec.msgpack.decode(raw, type=metadata.Command)
    assert what == "image"
    image = metadata.Metadata()
    image.restore(raw)
    return msgspec.msgpack.decode(image.snapshot(), type=metadata._State)


def lacks(says: Any, said: Any, at: str = "") -> list[str]:
    """Where what was said is not what is read; what came later may be there besides."""
    if isinstance(said, dict) and isinstance(says, dict):
        return [
            what
            for key, value in said.items()
            for what in (
                lacks(says[key], value, f"{at}.{key}") if key in says else [f"{at}.{key} is not read"]
            )
        ]
    if isinstance(said, list) and isinstance(says, list) and len(says) == len(said):
        pairs = zip(says, said, strict=True)
        return [
            what for number, (one, other) in enumerate(pairs) for what in lacks(one, other, f"{at}[{number}]")
        ]
    return [] if says == said else [f"{at}: {said!r} is read as {says!r}"]


@pytest.mark.parametrize("sample", SAMPLES)
def test_everything_that_was_said_is_understood(sample: dict[str, Any]) -> None:
    found = read(sample["what"], bytes.fromhex(sample["hex"]))
    assert type(found).__name__ == sample["type"]
    says = json.loads(msgspec.json.encode(msgspec.to_builtins(found, str_keys=True)))
    assert lacks(says, sample["says"]) == []


def test_a_field_that_is_not_read_any_more_is_seen() -> None:
    """Else the test above could not fail."""
    assert lacks({"a": 1, "b": [1, 2], "c": 9}, {"a": 1, "b": [1, 2]}) == []
    assert lacks({"b": [1, 3]}, {"a": 1, "b": [1, 2]}) == [".a is not read", ".b[1]: 2 is read as 3"]
