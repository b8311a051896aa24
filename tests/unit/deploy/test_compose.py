"""deploy/compose.yaml: three nodes that find each other, and are found from the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from quorate.node.config import BadConfig, NodeConfig, load_config
from quorate.node.listeners import check_exposure
from quorate.node.settings import from_environment
from tests.unit.deploy.files import COMPOSE, CONTAINER, DOCKERFILE, ROOT, documents, tool

NODES = (1, 2, 3)


# ---- what a validator says ----


def compared_with_the_schema(file: Path) -> subprocess.CompletedProcess[str]:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)


def test_it_is_as_the_schema_of_compose_has_it() -> None:
    compared = compared_with_the_schema(COMPOSE)
    assert compared.returncode == 0, compared.stdout


def test_a_misspelt_key_is_seen_by_the_schema(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    misspelt = tmp_path / "compose.yaml"
    text = COMPOSE.read_text(encoding="utf-8")
    misspelt.write_text(text.replace("stop_grace_period", "stop_grace_periods"), encoding="utf-8")
    compared = compared_with_the_schema(misspelt)
    assert compared.returncode == 1
    assert "stop_grace_periods" in compared.stdout


# ---- what it says ----


def services() -> dict[str, Any]:
    (compose,) = documents(COMPOSE)
    return compose["services"]


def told(service: dict[str, Any]) -> NodeConfig:
    """As the node's own code reads its file and these variables; raises BadConfig for any that it does not know."""
    return load_config(CONTAINER, from_environment(service["environment"], NodeConfig))


def test_every_variable_is_a_setting_and_all_three_agree() -> None:
    configs = {name: told(service) for name, service in services().items()}
    assert {name: config.node for name, config in configs.items()} == {f"n{n}": n for n in NODES}
    assert len({(config.cluster, config.voters, config.directory) for config in configs.values()}) == 1
    assert all(config.voters == NODES for config in configs.values())


def test_peers_are_where_the_others_say_they_are() -> None:
    configs = {config.node: config for config in map(told, services().values())}
    for node, config in configs.items():
        inside = {other: configs[other].listeners["client"].advertise for other in configs if other != node}
        assert config.peers == inside
        host, _, port = config.listeners["client"].advertise.partition(":")
        assert services()[f"n{node}"]["hostname"] == host
        assert config.listeners["client"].bind == f"0.0.0.0:{port}"


def test_what_is_advertised_outside_is_published_on_this_machine_alone() -> None:
    for service in services().values():
        config = told(service)
        outside, http = config.listeners["outside"], config.http
        published = {
            inside: f"{host}:{port}"
            for host, port, inside in (entry.split(":") for entry in service["ports"])
        }
        assert published[outside.bind.rpartition(":")[2]] == outside.advertise
        assert published[http.rpartition(":")[2]].startswith("127.0.0.1:")
        assert outside.advertise.startswith("127.0.0.1:")


def test_a_node_without_insecure_would_not_start_here() -> None:
    """So whoever takes the line away hears what to set in its place."""
    config = told(services()["n1"])
    assert config.insecure
    with pytest.raises(BadConfig, match="--insecure"):
        check_exposure(config.all_listeners())


def test_each_node_has_a_volume_of_its_own_where_its_data_goes() -> None:
    (compose,) = documents(COMPOSE)
    volumes = [volume for service in compose["services"].values() for volume in service["volumes"]]
    names, places = zip(*(volume.split(":") for volume in volumes), strict=True)
    assert set(names) == set(compose["volumes"])
    assert len(set(names)) == len(NODES)
    assert set(places) == {"/var/lib/quorate"}
    assert told(compose["services"]["n1"]).directory == "/var/lib/quorate/data"


def test_the_image_is_built_from_files_that_are_there() -> None:
    for service in services().values():
        build = service["build"]
        context = (COMPOSE.parent / build["context"]).resolve()
        assert context == ROOT
        assert context / build["dockerfile"] == DOCKERFILE
