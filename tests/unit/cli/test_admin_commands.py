"""Every command for a running cluster says where that is, answers programs, and explains itself."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from quorate.cli.entry import app

GROUPS = ("topic", "group", "table", "cluster", "user")


def commands() -> dict[str, Any]:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    found: dict[str, Any] = {"doctor": root.commands["doctor"]}
    for name in GROUPS:
        group = root.commands[name]
        assert isinstance(group, TyperGroup)
        found |= {f"{name} {below}": command for below, command in group.commands.items()}
    return found


COMMANDS = commands()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_takes_json_and_bootstrap_and_every_option_is_explained(name: str) -> None:
    options = {word: each for each in COMMANDS[name].params for word in each.opts}
    assert "--json" in options
    bootstrap = options["--bootstrap"]
    assert (bootstrap.envvar, bootstrap.default) == ("QUORATE_BOOTSTRAP", "127.0.0.1:9092")
    assert COMMANDS[name].help
    assert all(getattr(each, "help", "") for word, each in options.items() if word != "--help")
