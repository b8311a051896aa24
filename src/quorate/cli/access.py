"""How commands show who they are, where a cluster asks: one file, in TOML.

```toml
user = "ann"                        # for listeners that ask clients for a password
password = "…"                      # or in the environment, QUORATE_PASSWORD
mechanism = "SCRAM-SHA-512"         # SCRAM-SHA-256 if left out; PLAIN
tls = {ca = "ca.pem"}               # for those with TLS; cert and key where one must be shown

[nodes]                             # for clusters whose nodes have a listener of their own
servers = "10.0.0.1:9091,10.0.0.2:9091"
tls = {cert = "ann.pem", key = "ann.key", ca = "nodes-ca.pem"}
```

Files are relative to this one. What reads and writes topics goes to the listeners of clients; what looks at
nodes and orders things of them (`quorate cluster`, `quorate user`, most of `quorate topic`) to that of the
nodes.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.wrong import WrongUsage, in_words

if TYPE_CHECKING:
    from ssl import SSLContext

    from quorate.client import Security
    from quorate.node.client import Client
    from quorate.node.config import Address
    from quorate.node.listeners import TlsConfig

VARIABLE, PASSWORD = "QUORATE_ACCESS", "QUORATE_PASSWORD"

Access = Annotated[
    Path | None,
    typer.Option(
        "--access",
        metavar="FILE",
        envvar=VARIABLE,
        help="Who you are, for clusters with TLS or passwords; docs/SECURITY.md has an example.",
    ),
]

_chosen: Path | None = None


def choose(file: Path | None) -> None:
    """For all that this process does from now on."""
    global _chosen
    _chosen = file


def access() -> Given:
    """What was chosen; nothing, if nothing was. Raises WrongUsage."""
    return Given(None, None) if _chosen is None else _read(_chosen)


class Given:
    def __init__(self, security: Security | None, nodes: NodesAccess | None) -> None:
        self.security = security
        self.nodes = nodes

    def letters_tls(self) -> SSLContext | None:
        """For nodes that speak where clients do, if that is with TLS."""
        from quorate.client import NotLetIn

        try:
            return self.security.context() if self.security is not None and self.security.tls else None
        except NotLetIn as error:
            raise WrongUsage(f"{_chosen}: {error}") from error


class NodesAccess:
    """The nodes' own listener."""

    def __init__(self, servers: list[Address], tls: TlsConfig | None) -> None:
        self._servers = servers
        self._tls = tls

    async def client(self) -> Client:
        """Of the cluster that is there; those of its nodes that do not answer are found by the others."""
        import asyncio

        from quorate.node.address import BadConfig
        from quorate.node.client import Client, Connection, Unreachable
        from quorate.node.tls import client_context

        try:
            context = None if self._tls is None else client_context("nodes.tls", self._tls)
        except BadConfig as bad:
            raise WrongUsage(f"{_chosen}: {bad}") from bad

        async def met(address: Address) -> tuple[str, int] | str:
            try:
                connection = await Connection.open("", 0, address, tls=context)
            except Unreachable as error:
                return f"{address}: {str(error).removeprefix('node 0').removeprefix(f' at {address}')[2:]}"
            connection.close("it has said who it is")
            welcome = await connection.welcome
            return welcome.cluster, welcome.node

        answers = await asyncio.gather(*map(met, self._servers))
        found = {
            answer[1]: address
            for answer, address in zip(answers, self._servers, strict=True)
            if isinstance(answer, tuple)
        }
        names = sorted({answer[0] for answer in answers if isinstance(answer, tuple)})
        if len(names) > 1:
            raise WrongUsage(f"{_chosen}: nodes.servers: they are of different clusters: {', '.join(names)}")
        if not found:
            raise WrongUsage(f"{answers[0]}; is the cluster up, and is {_chosen} right about its nodes?")
        return Client(names[0], found, tls=context)


# ---- the file ----


@cache
def _read(file: Path) -> Given:
    import msgspec

    from quorate.client import Security
    from quorate.node.address import BadConfig, parse_address
    from quorate.node.listeners import TlsConfig

    class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        ca: str = ""
        cert: str = ""
        key: str = ""

    class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        servers: str
        tls: TlsConfig | None = None

    class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        user: str = ""
        password: str = ""
        mechanism: str = "SCRAM-SHA-256"
        tls: Tls | None = None
        nodes: Nodes | None = None

    def beside(tls: Any) -> dict[str, str]:
        return {key: str(file.parent / name) for key, name in msgspec.structs.asdict(tls).items() if name}

    try:
        given = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), File)
        password = given.password or (os.environ.get(PASSWORD, "") if given.user else "")
        tls = {} if given.tls is None else beside(given.tls)
        security = Security(
            tls=given.tls is not None, user=given.user, password=password, mechanism=given.mechanism, **tls
        )
        nodes = None
        if given.nodes is not None:
            servers = [parse_address(part.strip()) for part in given.nodes.servers.split(",")]
            nodes_tls = None if given.nodes.tls is None else TlsConfig(**beside(given.nodes.tls))
            nodes = NodesAccess(servers, nodes_tls)
    except OSError as error:
        raise WrongUsage(
            f"--access {str(file)!r}: {in_words(error)}; name a file as docs/SECURITY.md has it"
        ) from error
    except BadConfig as bad:
        raise WrongUsage(f"{file}: nodes.servers: {bad}") from bad
    except (ValueError, msgspec.MsgspecError) as error:  # Of TOML, of UTF-8, and of what belongs together.
        raise WrongUsage(f"{file}: {error}") from error
    return Given(security, nodes)
