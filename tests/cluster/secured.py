"""A cluster as on real machines: clients with TLS and passwords, nodes among themselves with certificates."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S, ClusterFailed, NodeProcess, free_ports
from tests.cluster.support import QUICK_RAFT

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no `openssl` to make certificates with"
)

POLL_S = 0.05
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates, in one directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        directory.mkdir(exist_ok=True)
        self._openssl(
            *("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
        self.ca = str(directory / f"{name}.pem")

    def sign(self, whom: str, *hosts: str) -> dict[str, str]:
        """A certificate for those hosts, and its key."""
        names = ",".join(
            f"IP:{host}" if host[0].isdigit() else f"DNS:{host}" for host in hosts or ("localhost",)
        )
        extensions = self._directory / f"{whom}.ext"
        extensions.write_text(f"subjectAltName={names}\n", encoding="utf-8")
        self._openssl(
            *("req", *NEW_KEY, "-subj", f"/CN={whom}"),
            *("-keyout", f"{whom}.key", "-out", f"{whom}.csr"),
        )
        self._openssl(
            *(
                "x509",
                "-req",
                "-in",
                f"{whom}.csr",
                "-CA",
                f"{self._name}.pem",
                "-CAkey",
                f"{self._name}.key",
            ),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions.name, "-out", f"{whom}.pem"),
        )
        return {"cert": str(self._directory / f"{whom}.pem"), "key": str(self._directory / f"{whom}.key")}

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self._directory, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode()


class ListeningCluster:
    """Nodes that serve Kafka clients, each with the listeners that it is given."""

    def __init__(
        self,
        directory: Path,
        listeners: Sequence[dict[str, Any]],
        peers: dict[int, str],
        command: Mapping[int, Sequence[str]] | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        """`peers`: where each node is for the others; `command`: what runs a node's process, in front of it."""
        self.directory = directory
        self.nodes: dict[int, NodeProcess] = {}
        for node, own in enumerate(listeners, 1):
            config = {
                "cluster": "secured",
                "node": node,
                "directory": f"n{node}",
                "listeners": own,
                "peers": {str(peer): address for peer, address in peers.items() if peer != node},
                "voters": list(peers),
                "raft": QUICK_RAFT,
                "insecure": insecure,
            }
            process = NodeProcess(directory, node, 0, config)
            process.command = (*(command or {}).get(node, ()), process.command[0], "-m", "quorate.kafka")
            self.nodes[node] = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.kill()

    def start(self) -> None:
        for node in self.nodes.values():
            node.format()
            node.start()
        for node in self.nodes.values():
            self.until_said(node.node, ": registered")

    def said(self, node: int) -> str:
        return self.nodes[node].output.read_text(encoding="utf-8")

    def until_said(self, node: int, words: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while words not in self.said(node):
            if time.monotonic() > deadline or not self.nodes[node].is_running:
                raise ClusterFailed(f"node {node} has not said {words!r}, but: {self.said(node)[-2000:]}")
            time.sleep(POLL_S)


class SecuredCluster(ListeningCluster):
    """Nodes on loopback: `nodes` and `shown` with mutual TLS, `outside` with TLS and passwords."""

    def __init__(self, directory: Path, *, count: int = 3) -> None:
        certificates = directory / "certificates"
        self.nodes_authority = Authority(certificates, "nodes-ca")
        self.authority = Authority(certificates, "ca")
        numbers = range(1, count + 1)
        self.nodes_ports = dict(zip(numbers, free_ports(count), strict=True))
        self.ports = dict(zip(numbers, free_ports(count), strict=True))
        self.shown_ports = dict(zip(numbers, free_ports(count), strict=True))
        listeners = []
        for node in numbers:
            inside = self.nodes_authority.sign(f"inside-{node}", "127.0.0.1")
            outside = self.authority.sign(f"outside-{node}", "127.0.0.1", "localhost")
            listeners.append(
                {
                    "nodes": {
                        "bind": f"127.0.0.1:{self.nodes_ports[node]}",
                        "tls": {**inside, "ca": self.nodes_authority.ca},
                    },
                    "outside": {"bind": f"127.0.0.1:{self.ports[node]}", "tls": outside, "sasl": True},
                    "shown": {
                        "bind": f"127.0.0.1:{self.shown_ports[node]}",
                        "tls": {**outside, "ca": self.authority.ca},
                    },
                }
            )
        peers = {node: f"127.0.0.1:{port}" for node, port in self.nodes_ports.items()}
        super().__init__(directory, listeners, peers)
        self.admin = self.nodes_authority.sign("admin")
        self.access = directory / "access.toml"
        self.write_access()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def write_access(self, *, user: str = "", password: str = "", nodes: bool = True) -> Path:
        tls = {"ca": self.authority.ca}
        lines = [f'user = "{user}"', f'password = "{password}"', f"tls = {_toml(tls)}"]
        if nodes:
            servers = ",".join(f"127.0.0.1:{port}" for port in self.nodes_ports.values())
            tls = {**self.admin, "ca": self.nodes_authority.ca}
            lines += ["[nodes]", f'servers = "{servers}"', f"tls = {_toml(tls)}"]
        self.access.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.access

    def client_settings(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """As librdkafka has them."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }


def _toml(table: dict[str, str]) -> str:
    return (
        "{"
        + ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in table.items())
        + "}"
    )
