"""The file that says who somebody is, in TOML.

```toml
user = "ann"                        # for listeners that ask clients for a password
password = "…"                      # or in the environment, QUORATE_PASSWORD
mechanism = "SCRAM-SHA-512"         # SCRAM-SHA-256 if left out; PLAIN
tls = {ca = "ca.pem"}               # for those with TLS; cert and key where one must be shown

[nodes]                             # for clusters whose nodes have a listener of their own
servers = "10.0.0.1:9091,10.0.0.2:9091"
tls = {cert = "ann.pem", key = "ann.key", ca = "nodes-ca.pem"}
```

Files are relative to this one. What reads and writes topics goes to the listeners of clients; what looks at nodes
and orders things of them (`quorate cluster`, `quorate user`, most of `quorate topic`) to that of the nodes.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from quorate.cli.wrong import WrongUsage, in_words
from quorate.client import NotLetIn, Security
from quorate.node.address import Address, BadConfig, parse_address
from quorate.node.client import Client, Connection, Unreachable
from quorate.node.listeners import TlsConfig
from quorate.node.tls import client_context

PASSWORD = "QUORATE_PASSWORD"


class _Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ca: str = ""
    cert: str = ""
    key: str = ""


class _Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    servers: str
    tls: TlsConfig | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str = ""
    password: str = ""
    mechanism: str = "SCRAM-SHA-256"
    tls: _Tls | None = None
    nodes: _Nodes | None = None


class NodesAccess(NamedTuple):
    """The nodes' own listener."""

    file: Path
    servers: tuple[Address, ...]
    tls: ssl.SSLContext | None

    async def client(self) -> Client:
        """Of the cluster that is there; those of its nodes that do not answer are found by the others."""
        answers = await asyncio.gather(*map(self._met, self.servers))
        found = {
            answer[1]: address
            for answer, address in zip(answers, self.servers, strict=True)
            if isinstance(answer, tuple)
        }
        names = sorted({answer[0] for answer in answers if isinstance(answer, tuple)})
        if len(names) > 1:
            raise WrongUsage(
                f"{self.file}: nodes.servers: they are of different clusters: {', '.join(names)}"
            )
        if not found:
            raise WrongUsage(f"{answers[0]}; is the cluster up, and is {self.file} right about its nodes?")
        return Client(names[0], found, tls=self.tls)

    async def _met(self, address: Address) -> tuple[str, int] | str:
        """The cluster, and the node that is there; or why nobody is."""
        try:
            connection = await Connection.open("", 0, address, tls=self.tls)
        except Unreachable as error:
            return f"{address}: {str(error).removeprefix('node 0').removeprefix(f' at {address}')[2:]}"
        connection.close("it has said who it is")
        welcome = await connection.welcome
        return welcome.cluster, welcome.node


class Given(NamedTuple):
    security: Security | None
    """For listeners of clients."""
    nodes: NodesAccess | None

    def letters_tls(self) -> ssl.SSLContext | None:
        """For nodes that speak where clients do, if that is with TLS."""
        return self.security.context() if self.security is not None and self.security.tls else None


@cache
def read_access(file: Path) -> Given:
    """Raises WrongUsage."""
    try:
        given = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _File)
        password = given.password or (os.environ.get(PASSWORD, "") if given.user else "")
        found = Given(
            Security(
                tls=given.tls is not None,
                user=given.user,
                password=password,
                mechanism=given.mechanism,
                **_beside(file, given.tls),
            ),
            None if given.nodes is None else _nodes_access(file, given.nodes),
        )
        found.letters_tls()  # What is wrong with its files is said before anybody is asked.
    except OSError as error:
        raise WrongUsage(
            f"--access {str(file)!r}: {in_words(error)}; name a file as docs/SECURITY.md has it"
        ) from error
    except (
        ValueError,
        msgspec.MsgspecError,
        BadConfig,
        NotLetIn,
    ) as error:  # ValueError: TOML, UTF-8, Security.
        raise WrongUsage(f"{file}: {error}") from error
    return found


def _nodes_access(file: Path, given: _Nodes) -> NodesAccess:
    try:
        servers = tuple(parse_address(part.strip()) for part in given.servers.split(","))
    except BadConfig as bad:
        raise BadConfig(f"nodes.servers: {bad}") from bad
    tls = None if given.tls is None else client_context("nodes.tls", TlsConfig(**_beside(file, given.tls)))
    return NodesAccess(file, servers, tls)


def _beside(file: Path, tls: _Tls | TlsConfig | None) -> dict[str, str]:
    """The files that are named, found from there."""
    named = {} if tls is None else msgspec.structs.asdict(tls)
    return {key: str(file.parent / name) for key, name in named.items() if name}
