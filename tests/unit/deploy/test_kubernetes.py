"""deploy/kubernetes: objects as Kubernetes' schemas have them, and a start that makes no directory by mistake."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from quorate.node.config import NodeConfig, load_config
from quorate.node.http import _ANSWERS
from quorate.node.settings import from_environment
from tests.unit.deploy.files import KUBERNETES, documents, kubernetes, tool

SCHEMA_VERSION = "1.32"
NAMESPACE = "somewhere"
DATA = "/var/lib/quorate"
TOLD = "/etc/quorate"
STAND_IN = '#!/bin/sh\necho "$@" && env\n'


def pod() -> dict[str, Any]:
    return kubernetes("StatefulSet")["spec"]["template"]["spec"]


# ---- what validators say ----


def test_objects_are_as_the_schemas_of_kubernetes_have_them() -> None:
    validator = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: objects are not compared with schemas",
    )
    for one in documents(KUBERNETES):
        validator.validate(one, SCHEMA_VERSION, strict=True)


def test_a_misspelt_field_is_seen_by_the_schemas() -> None:
    """Else the test above could not fail."""
    validator = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: objects are not compared with schemas",
    )
    budget = kubernetes("PodDisruptionBudget")
    budget["spec"]["maxUnavailabel"] = budget["spec"].pop("maxUnavailable")
    with pytest.raises(validator.ValidationError):
        validator.validate(budget, SCHEMA_VERSION, strict=True)


def test_kubectl_reads_all_of_it_without_a_cluster(tmp_path: Path) -> None:
    listing = tmp_path / "kustomization.yaml"
    listing.write_text("resources: [quorate.yaml]\n", encoding="utf-8")
    (tmp_path / "quorate.yaml").write_bytes(KUBERNETES.read_bytes())
    read = subprocess.run(
        [tool("kubectl"), "kustomize", tmp_path], check=False, text=True, capture_output=True, timeout=60
    )
    assert read.returncode == 0, read.stderr
    assert read.stdout.count("\nkind: ") == len(documents(KUBERNETES))


# ---- who is meant by whom ----


def test_selectors_and_ports_mean_these_pods() -> None:
    stateful = kubernetes("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    (node,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    headless = kubernetes("Service")["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"], "nodes find each other before they are ready"
    assert stateful["serviceName"] == "quorate"
    assert stateful["podManagementPolicy"] == "Parallel", "one node alone never becomes ready"
    budget = kubernetes("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    for selector in (
        stateful["selector"]["matchLabels"],
        budget["selector"]["matchLabels"],
        headless["selector"],
        kubernetes("Service", "quorate-bootstrap")["spec"]["selector"],
        kubernetes("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    for service in (headless, kubernetes("Service", "quorate-bootstrap")["spec"]):
        assert all(ports[port["targetPort"]] == port["port"] for port in service["ports"])


def test_probes_ask_what_a_node_answers() -> None:
    (node,) = pod()["containers"]
    paths = {
        kind: node[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert set(paths.values()) <= set(_ANSWERS)
    assert {node[kind]["httpGet"]["port"] for kind in paths} == {"http"}


def test_whoever_runs_here_is_not_root_and_writes_to_its_volumes_only() -> None:
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] > 0
    volumes = {volume["name"] for volume in pod()["volumes"]} | {"data"}
    for container in pod()["initContainers"] + pod()["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


# ---- start.sh ----


class Started:
    """What start.sh did in a pod, with a stand-in for `quorate` that says what it was told."""

    def __init__(
        self, room: Path, pod_name: str, what: str, *, format_: str = "new", made: bool = False
    ) -> None:
        told, data = kubernetes("ConfigMap")["data"], room / "data"
        for name, text in (told | {"format": format_}).items():
            (room / name).write_text(text.replace(DATA, str(room)).replace(TOLD, str(room)), encoding="utf-8")
        data.mkdir(exist_ok=True)
        if made:
            (data / "node.json").write_text("{}", encoding="utf-8")
        stand_in = room / "quorate"
        stand_in.write_text(STAND_IN, encoding="utf-8")
        stand_in.chmod(0o755)
        ran = subprocess.run(
            ["sh", room / "start.sh", what],
            env={"PATH": f"{room}:/usr/bin:/bin", "HOSTNAME": pod_name, "POD_NAMESPACE": NAMESPACE},
            check=False,
            text=True,
            capture_output=True,
            timeout=60,
        )
        self.status, self.said = ran.returncode, ran.stderr
        self.command, *lines = [*ran.stdout.splitlines(), ""] if ran.stdout else [""]
        self.variables = dict(line.split("=", 1) for line in lines if line.startswith("QUORATE_"))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_pod_is_told_who_it_is_and_where_the_voters_are(tmp_path: Path, number: int) -> None:
    started = Started(tmp_path, f"quorate-{number}", "node", made=True)
    assert (started.status, started.command) == (0, f"node --config {tmp_path}/node.toml")
    config = load_config(tmp_path / "node.toml", from_environment(started.variables, NodeConfig))
    assert config.node == number
    where = {n: f"quorate-{n}.quorate.{NAMESPACE}.svc:9092" for n in (1, 2, 3, 4)}
    assert config.advertise == where[number]
    assert config.peers == {n: where[n] for n in (1, 2, 3) if n != number}
    assert config.voters == (1, 2, 3)
    (node,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    assert config.listen == f"0.0.0.0:{ports['kafka']}"
    assert config.http == f"0.0.0.0:{ports['http']}"


def test_pods_are_numbered_as_nodes_are() -> None:
    stateful = kubernetes("StatefulSet")["spec"]
    first = stateful["ordinals"]["start"]
    assert [first + n for n in range(stateful["replicas"])] == [1, 2, 3]


def test_an_empty_volume_is_formatted_only_where_a_person_said_so(tmp_path: Path) -> None:
    config = f"--config {tmp_path}/node.toml"
    assert Started(tmp_path, "quorate-2", "format", format_="new").command == f"format {config}"
    assert Started(tmp_path, "quorate-2", "format", format_="lost 2").command == f"format {config} --replaces"
    for never in ("never", "lost 1", "lost 22", ""):
        refused = Started(tmp_path, "quorate-2", "format", format_=never)
        assert (refused.status, refused.command) == (1, "")
        assert f"node 2 has no directory, and format is '{never}'" in refused.said


@pytest.mark.parametrize("format_", ["new", "never", "lost 2"])
def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path, format_: str) -> None:
    started = Started(tmp_path, "quorate-2", "format", format_=format_, made=True)
    assert (started.status, started.command) == (0, "")
