"""Where a node listens, and on what terms.

```toml
[listeners.nodes]                   # the other nodes, and whoever administers the cluster
bind = "10.0.0.1:9091"
tls = {cert = "n1.pem", key = "n1.key", ca = "nodes-ca.pem"}

[listeners.inside]                  # any other name: Kafka clients
bind = "127.0.0.1:9092"

[listeners.outside]
bind = "0.0.0.0:9093"
advertise = "n1.example.com:9093"   # what clients that ask here are told
tls = {cert = "n1.pem", key = "n1.key"}
sasl = true
```

Where there is a listener `nodes`, the nodes' own protocol is spoken there alone, and nothing else is. Where
there is none, every listener carries both; `listen` and `advertise` are short for one such listener, `client`.

With `ca`, whoever connects must show a certificate that it has signed. The nodes' own protocol knows no
passwords: it is protected by such certificates or not at all, so a node that asks clients for passwords keeps
it apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec

from quorate.node.address import Address, BadConfig, parse_address

CLIENT, NODES = "client", "nodes"
"""The listener that `listen` stands for, and the one that only nodes speak on."""
COUNT_MAX = 16
CONNECTIONS_MAX = 2000
"""On one listener, and of clients on a node: descriptors are needed for files and peers, too."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM format, relative to the configuration; `cert` holds the chain, this node's own first."""

    cert: str
    key: str
    ca: str = ""
    """Who must have signed the certificates of others; empty: they need none."""


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bind: str
    advertise: str = ""
    """Where others find it, if that is not where it listens."""
    tls: TlsConfig | None = None
    sasl: bool = False
    """Clients must say who they are, with a password (`quorate user`)."""
    connections_max: int = CONNECTIONS_MAX

    @property
    def bound(self) -> Address:
        return parse_address(self.bind)

    @property
    def advertised(self) -> Address:
        return parse_address(self.advertise or self.bind)

    def beside(self, directory: Path) -> ListenerConfig:
        """With its files found from there."""
        if self.tls is None:
            return self
        tls = TlsConfig(
            *(str(directory / file) if file else "" for file in msgspec.structs.astuple(self.tls))
        )
        return msgspec.structs.replace(self, tls=tls)


Listeners = Mapping[str, ListenerConfig]
"""By name."""


def letters_listener(listeners: Listeners) -> str:
    """The name of the one on which other nodes find this one."""
    return NODES if NODES in listeners else clients_listener(listeners)


def clients_listener(listeners: Listeners) -> str:
    """The name of the one that is told to whoever did not ask on any: the first for clients."""
    return CLIENT if CLIENT in listeners else next((name for name in listeners if name != NODES), NODES)


def takes_letters(name: str, listeners: Listeners) -> bool:
    return name == NODES or NODES not in listeners


def takes_clients(name: str) -> bool:
    return name != NODES


# ---- what is wrong ----


def check_listeners(listeners: Listeners) -> None:
    """What types cannot say; raises BadConfig."""
    if len(listeners) > COUNT_MAX:
        raise BadConfig(f"listeners: {len(listeners)} are too many; {COUNT_MAX} can be")
    for name, listener in listeners.items():
        if not _NAME.fullmatch(name):
            raise BadConfig(
                f"listeners: {name!r} is no name: up to 31 small letters, digits and '-', a letter first"
            )
        _check(name, listener, listeners)
    bound = [listener.bound for listener in listeners.values()]
    if len(set(bound)) < len(bound):
        raise BadConfig("listeners: two of them bind the same address; give each its own port")
    if set(listeners) == {NODES}:
        raise BadConfig("listeners: nobody could write or read: add one for clients, beside `nodes`")


def _check(name: str, listener: ListenerConfig, listeners: Listeners) -> None:
    where = f"listeners.{name}"
    for key, text in (("bind", listener.bind), ("advertise", listener.advertise or listener.bind)):
        try:
            parse_address(text)
        except BadConfig as bad:
            raise BadConfig(f"{where}.{key}: {bad}") from bad
    check_advertised(f"{where}.advertise", listener.advertised)
    if not 1 <= listener.connections_max <= CONNECTIONS_MAX:
        raise BadConfig(
            f"{where}.connections_max: from 1 to {CONNECTIONS_MAX}, not {listener.connections_max}"
        )
    if listener.sasl and name == NODES:
        raise BadConfig(f"{where}.sasl: nodes have no passwords; give {where}.tls a `ca` instead")
    if listener.sasl and NODES not in listeners:
        raise BadConfig(
            f"{where}.sasl: nodes have no passwords, and would speak here, too; add a listener `nodes` for them"
        )
    if listener.tls is not None and not listener.tls.ca and takes_letters(name, listeners):
        raise BadConfig(f"{where}.tls.ca: nodes speak here; name who signs their certificates")


def check_advertised(key: str, address: Address) -> None:
    if is_everywhere(address.host):
        raise BadConfig(
            f"{key}: nobody finds {address.host}; say by which name or address others reach this node"
        )
    if not address.port:
        raise BadConfig(f"{key}: others must know its port; 0 is none")


def check_exposure(listeners: Listeners) -> None:
    """Nothing that other machines can reach is open to everybody by mistake; raises BadConfig."""
    for name, listener in listeners.items():
        host, where = listener.bound.host, f"listeners.{name}"
        has_tls = listener.tls is not None and (name != NODES or bool(listener.tls.ca))
        missing = [f"{where}.tls"] * (not has_tls)
        if takes_clients(name) and not listener.sasl:
            missing.append(f"{where}.sasl = true")
            missing += ["a listener `nodes`"] * (NODES not in listeners)
        if missing and not is_loopback(host):
            raise BadConfig(
                f"{where}: other machines reach {host}, and anybody could read and write; set "
                f"{', '.join(missing)}; or listen on 127.0.0.1, or say --insecure (insecure = true)"
            )


def is_loopback(host: str) -> bool:
    """A name may mean anything tomorrow, but for this one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_everywhere(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
