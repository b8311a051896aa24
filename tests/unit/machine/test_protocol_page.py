"""docs/PROTOCOL.md says of the metadata group's records what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from quorate.machine import cluster, metadata
from quorate.node.requests import Request

PAGE = (Path(__file__).parents[3] / "docs" / "PROTOCOL.md").read_text()
COMMANDS: dict[str, type] = {kind.__struct_config__.tag: kind for kind in metadata.Command.__args__}


def records_below(kind: Any) -> dict[str, type]:
    """Every struct that a value of that type may hold, and itself."""
    found: dict[str, type] = {}

    def look(info: Any) -> None:
        if isinstance(info, inspect.StructType):
            if info.cls.__name__ in found:
                return
            found[info.cls.__name__] = info.cls
            for field in info.fields:
                look(field.type)
        for attribute in ("types", "item_types"):
            for below in getattr(info, attribute, None) or ():
                look(below)
        for attribute in ("item_type", "key_type", "value_type"):
            if (below := getattr(info, attribute, None)) is not None:
                look(below)

    look(inspect.type_info(kind))
    return found


RECORDS = records_below(metadata._State)


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the first table under that heading, by the first."""
    section = PAGE.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def fields(kind: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_command_is_there_and_none_that_is_not() -> None:
    assert set(rows("### Commands")) == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_has_its_level_and_its_fields(command: str) -> None:
    level, told, *_ = rows("### Commands")[command]
    assert int(level.split(";")[0]) == cluster.COMMAND_LEVELS[command]
    assert named(told) == fields(COMMANDS[command])


def test_every_record_of_the_image_is_there_and_none_that_is_not() -> None:
    assert set(rows("### What the image holds")) == set(RECORDS)


@pytest.mark.parametrize("record", sorted(RECORDS))
def test_a_record_of_the_image_has_its_fields(record: str) -> None:
    assert named(rows("### What the image holds")[record][0]) == fields(RECORDS[record])


def test_every_private_request_is_there_and_none_that_is_not() -> None:
    told = [name for cell in rows("## Private requests") for name in cell.replace("`", "").split(", ")]
    assert sorted(told) == sorted(kind.__struct_config__.tag for kind in get_args(Request))


def test_every_feature_level_is_there() -> None:
    section = PAGE.split("## Versions", 1)[1].split("**Within", 1)[0]
    told = dict(re.findall(r"^\| (\d+) \| (.+) \|$", section, re.MULTILINE))
    assert told == {str(level): words for level, words in cluster.LEVELS.items()}
