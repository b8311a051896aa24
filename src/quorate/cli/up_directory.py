"""The directory of a cluster on this machine, as `quorate up` makes it and finds it again.

    DIR/cluster.json    the cluster's id and where its nodes listen
    DIR/n1, DIR/n2, …   each node's own directory (node/directory.py), its output in node.log
    DIR/lock            held by the `quorate up` that runs here

`cluster.json` is written last. A directory that has it had all its nodes: where one is missing now, its disk
is lost, and it is not made again as if it had never voted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import msgspec

from quorate.cli.format import make, new_cluster_id
from quorate.cli.wrong import WrongUsage
from quorate.node.child import NodeChild
from quorate.node.config import Address, BadConfig, check_nats, load_config
from quorate.node.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    WrongDirectory,
    read_identity,
    write_durably,
)
from quorate.node.ports import HOST, NoFreePorts, holder, keep, keep_row, listen_once

CLUSTER_FILE = "cluster.json"
LOCK_FILE = "lock"
OUTPUT_FILE = "node.log"
PORT_MAX = 65535
VOTERS_COUNTS = (5, 3)
"""One more than these makes every change of metadata slower, and no cluster safer."""
HTTP_ABOVE = 100
"""How far a node's HTTP port lies above the one that it listens on."""
_CLUSTER_BYTES_MAX = 65536


class LocalCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster whose nodes all run here, on ports one after another."""

    cluster: str
    nodes: int
    port: int

    def addresses(self) -> dict[int, Address]:
        return {node: Address(HOST, self.port + node - 1) for node in range(1, self.nodes + 1)}

    def voters(self) -> dict[int, Address]:
        """Who votes in the metadata group: five, or three where there are fewer. The rest follow."""
        count = next((each for each in VOTERS_COUNTS if each <= self.nodes), self.nodes)
        return dict(list(self.addresses().items())[:count])

    def bootstrap(self) -> str:
        return ",".join(map(str, self.addresses().values()))

    def watched_at(self) -> dict[int, Address]:
        """Where each node answers over HTTP: a little above its port, or elsewhere where that is taken."""
        return {
            node: Address(HOST, _kept(address.port + HTTP_ABOVE))
            for node, address in self.addresses().items()
        }

    def children(
        self, directory: Path, *, watched_at: dict[int, Address], nats: str | None = None
    ) -> dict[int, NodeChild]:
        children = {
            node: NodeChild(
                node,
                address,
                config=node_directory(directory, node) / CONFIG_FILE,
                output=node_directory(directory, node) / OUTPUT_FILE,
            )
            for node, address in self.addresses().items()
        }
        for child in children.values():
            settings = [f"http={watched_at[child.node]}", *([f"nats={nats}"] if nats is not None else ())]
            child.command = (*child.command, *(word for each in settings for word in ("--set", each)))
        return children


def node_directory(directory: Path, node: int) -> Path:
    return directory / f"n{node}"


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """No other `quorate up` on this directory meanwhile; the directory is made if it is not there."""
    if directory.exists() and not directory.is_dir():
        raise WrongUsage(f"{str(directory)!r} is a file; name a directory with --dir")
    _expect_ours(directory)
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            raise WrongUsage(
                f"another `quorate up` runs in {str(directory)!r}, process {holder or '(unknown)'}; "
                "stop it, or choose another --dir and --port"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


def _expect_ours(directory: Path) -> None:
    """Nothing is put beside the files of somebody else."""
    if not directory.exists() or (directory / CLUSTER_FILE).exists():
        return
    if any(entry.name != LOCK_FILE for entry in directory.iterdir()):
        raise WrongUsage(
            f"{str(directory)!r} is not empty and holds no cluster; empty it, or choose another --dir"
        )


def found(directory: Path, *, nodes: int | None, port: int | None) -> LocalCluster | None:
    """The cluster that lives there, if it is the one that is wanted."""
    path = directory / CLUSTER_FILE
    try:
        with path.open("rb") as file:
            cluster = msgspec.json.decode(file.read(_CLUSTER_BYTES_MAX), type=LocalCluster)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WrongUsage(f"{path} is unreadable: put it back ({error})") from error
    if nodes not in (None, cluster.nodes) or port not in (None, cluster.port):
        raise WrongUsage(
            f"{str(directory)!r} holds a cluster of {cluster.nodes} nodes from port {cluster.port} on; "
            "leave --nodes and --port out, or choose another --dir"
        )
    for node in cluster.addresses():
        if why_not := why_not_there(directory, cluster, node):
            raise WrongUsage(why_not)
    return cluster


def why_not_there(directory: Path, cluster: LocalCluster, node: int) -> str:
    """Why a node cannot be run: it is gone, or another than it was; empty if it can.

    A lost one is not begun anew by itself, as if it had promised nothing.
    """
    place = node_directory(directory, node)
    try:
        if not _is_made(place):
            what = _what_to_do(directory, cluster, node)
            return f"{place} is gone, and what node {node} promised with it: {what}"
        config = load_config(place / CONFIG_FILE)
        read_identity(config)
    except (BadConfig, WrongDirectory) as error:
        return str(error)
    except OSError as error:  # Its disk fails, say: that is no reason to end the others.
        return f"{place}: {error.strerror or error}"
    if config.cluster != cluster.cluster or config.node != node:
        return f"{place} is node {config.node} of cluster {config.cluster!r}: put node {node}'s back"
    return ""


def _what_to_do(directory: Path, cluster: LocalCluster, node: int) -> str:
    gone = [each for each in cluster.addresses() if not _is_made(node_directory(directory, each))]
    if len(cluster.voters().keys() & set(gone)) > (len(cluster.voters()) - 1) // 2:
        return "put it back, or, with another --dir, begin a new cluster: without it there is no majority"
    place = node_directory(directory, node)
    voters = ",".join(f"{each}={address}" for each, address in cluster.voters().items())
    listen = "" if node in cluster.voters() else f"--listen {cluster.addresses()[node]} "
    others = ",".join(str(address) for each, address in cluster.addresses().items() if each not in gone)
    remove = f"remove what is left of {place}, and " if place.exists() else ""
    return (
        f"put it back, or, if it is lost, {remove}make it anew with `quorate format {quote(str(place))} "
        f"--node {node} {listen}--voters {voters} --cluster {cluster.cluster} --replaces`; `quorate up` starts it, "
        f"and `quorate cluster replace {node} -b {others}` lets it count again"
    )


def _is_made(place: Path) -> bool:
    return (place / IDENTITY_FILE).exists()


def planned(*, nodes: int, port: int) -> LocalCluster:
    if port + nodes - 1 > PORT_MAX:
        raise WrongUsage(f"--port {port}: {nodes} nodes need as many ports, and {PORT_MAX} is the last")
    return LocalCluster(new_cluster_id(), nodes, port)


def make_all(directory: Path, cluster: LocalCluster) -> None:
    """Every node's directory, and then the file that says that all were made."""
    addresses = cluster.addresses()
    for node in addresses:
        place = node_directory(directory, node)
        make(place, cluster=cluster.cluster, node=node, voters=cluster.voters(), listen=addresses[node])
    write_durably(directory / CLUSTER_FILE, msgspec.json.encode(cluster))


def expect_nats(servers: str) -> None:
    """Say what is wrong with an address before anything is started."""
    try:
        check_nats(servers)
    except BadConfig as bad:
        raise WrongUsage(f"--{bad}") from bad


# ---- ports ----


def expect_free(addresses: dict[int, Address]) -> None:
    """Say who has a port before anything is started."""
    for address in addresses.values():
        try:
            listen_once(address)
        except OSError as error:
            raise WrongUsage(
                f"port {address.port} is taken{holder(address.port)}; stop that, or choose another --port"
            ) from error


def _kept(port: int) -> int:
    """This one, or another: it is for looking, and no reason not to start."""
    return port if port <= PORT_MAX and keep(port) else free_row(1)


def free_row(count: int) -> int:
    """The first of so many neighbouring ports that nobody has, and that are this process's until it ends."""
    try:
        return keep_row(count)
    except NoFreePorts as none:
        raise WrongUsage(str(none)) from none
