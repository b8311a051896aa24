"""What a node is told: a JSON or TOML file, read once; and whatever stands in variables or flags in its place.

```json
{
  "cluster": "b0a1…",                 any string; the same on every node and client of a cluster
  "node": 1,
  "directory": "data/n1",             relative to the file
  "listen": "127.0.0.1:7001",
  "advertise": "",                    where clients find it, if that is not where it listens
  "listeners": {},                    in place of these two: see listeners.py
  "insecure": false,                  true: others than this machine may reach it without TLS and passwords
  "peers": {"2": "127.0.0.1:7002", "3": "127.0.0.1:7003"},
  "voters": [1, 2, 3],                the first voters of the metadata group; those that vote now, it knows itself
  "nats": "nats://127.0.0.1:4222",    a NATS server, or several with commas between them; none if left out
  "rack": "",                         where it stands: copies of a partition are put into different ones
  "http": "127.0.0.1:9192",           health, metrics and state for whoever watches; nowhere if left out
  "log_format": "text",               or json: a line for each event, for machines
  "topics": [{"id": "000102…0f", "partitions": 100, "voters": [1, 2, 3], "learners": []}],
  "raft": {"election_timeout_s": 1.0},  and coordinated, isr, confirm: how the copies of such topics behave
  "store": {},
  "detector": {}
}
```

`topics` are there from the start and for good: for tests and measurements. All others are created by clients,
and stand in the metadata group. Without `voters` there is no such group.

`peers` are those that this node connects to from the start. Others, which join later, it finds by the address
that they registered with; for those named here, this one goes first.

`raft`, `coordinated`, `isr` and `confirm` take the fields of the `Tuning` of their room in `core/`, `store` and
`detector` those of `storage.StoreSettings` and `host.DetectorSettings`; whatever is left out has its default.
Unknown fields are refused. `raft.priority` says how much this node is wanted as a leader: a leader hands over to
a current follower of a higher one, and a node of priority 0 stands only where nobody else has come to lead for a
while.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from quorate.core import confirm, coordinated, isr, raft
from quorate.core.entry import Member, Partition, partition_of
from quorate.core.keeping import KEEP_ALL
from quorate.host import HostSettings, ReplicaRecord
from quorate.host.detector import DetectorSettings
from quorate.machine.metadata import FIRST_INCARNATION, METADATA, METADATA_TOPIC
from quorate.node import settings
from quorate.node.address import Address, BadConfig, parse_address
from quorate.node.bounds import check_bounds
from quorate.node.listeners import (
    CLIENT,
    ListenerConfig,
    check_advertised,
    check_listeners,
    clients_listener,
    letters_listener,
)
from quorate.node.logs import LOG_FORMATS, TEXT
from quorate.storage.store import StoreSettings

__all__ = [
    "Address",
    "BadConfig",
    "NodeConfig",
    "TopicConfig",
    "check_config",
    "load_config",
    "parse_address",
]

NATS_SCHEMES = ("nats", "tls")
PARTITIONS_COUNT_MAX = 100_000
TOPIC_SNAPSHOT_EVERY = 200_000
METADATA_SNAPSHOT_EVERY = 1000
METADATA_KEEP_BEHIND = 1000
HOME_SNAPSHOT_EVERY = 20_000
"""A snapshot holds every group that lives there: it costs more than a few thousand commands."""

_RACK = re.compile(r"(?!\s)[^\x00-\x1f\x7f]{0,100}(?<!\s)")


def check_nats(servers: str) -> None:
    """Raises BadConfig; what it says repeats no password."""
    several = servers.split(",")
    for number, server in enumerate(several, 1):
        try:
            parts = urlsplit(server)
            good = parts.scheme in NATS_SCHEMES and bool(parts.hostname) and parts.port != 0
            good = good and not (parts.path or parts.query or parts.fragment)
        except ValueError:  # A port that is none.
            good = False
        if not good:
            # Where there is a password, it may be what was cut in two: at a comma, or at what ends a host.
            shown = repr(server) if "@" not in servers else f"number {number} of {len(several)}"
            raise BadConfig(f"nats: {shown} is no NATS server: write nats://HOST:PORT or tls://HOST:PORT")


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions 0 … `partitions` - 1 of one topic, all with the same ensemble."""

    id: str
    partitions: int
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()

    @property
    def topic_id(self) -> bytes:
        return bytes.fromhex(self.id)

    def members(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """(voters, learners), sorted."""
        voters = tuple(Member(node, FIRST_INCARNATION) for node in sorted(self.voters))
        learners = tuple(Member(node, FIRST_INCARNATION) for node in sorted(self.learners))
        return voters, learners


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    node: int
    directory: str
    listen: str = ""
    advertise: str = ""
    listeners: dict[str, ListenerConfig] = {}
    insecure: bool = False
    peers: dict[int, str] = {}
    voters: tuple[int, ...] = ()
    nats: str = ""
    rack: str = ""
    http: str = ""
    log_format: str = TEXT
    topics: tuple[TopicConfig, ...] = ()
    raft: raft.Tuning = raft.Tuning()
    coordinated: coordinated.Tuning = coordinated.Tuning()
    isr: isr.Tuning = isr.Tuning()
    confirm: confirm.Tuning = confirm.Tuning()
    store: StoreSettings = StoreSettings()
    retention_every_s: float = 60.0
    compaction_every_s: float = 15.0
    compaction_bytes: int = 256 * 1024 * 1024
    """How much of a partition's log is newly compacted at once: its keys are in memory then."""
    detector: DetectorSettings = DetectorSettings()
    scrub_every_s: float = 86_400.0
    """How often everything on the disk is read and verified; 0: never."""

    def host_settings(self) -> HostSettings:
        """Snapshots of a topic's machine spare a restart the reading of all its log, which stays."""

        def of_topics(tuning: Any) -> Any:
            every = tuning.snapshot_every or TOPIC_SNAPSHOT_EVERY
            return msgspec.structs.replace(tuning, snapshot_every=every, keep_behind=KEEP_ALL, paced=True)

        return HostSettings(
            store=self.store,
            raft=of_topics(self.raft),
            # What is read of a topic is its log: a snapshot would stand for what nobody could read any more.
            coordinated=msgspec.structs.replace(of_topics(self.coordinated), whole_logs=True),
            isr=of_topics(self.isr),
            confirm=of_topics(self.confirm),
            homes=msgspec.structs.replace(
                self.raft,
                snapshot_every=self.raft.snapshot_every or HOME_SNAPSHOT_EVERY,
                keep_behind=METADATA_KEEP_BEHIND,
                prefer_snapshots=True,
                paced=True,
                ceiling_s=0.0,
            ),
            metadata=msgspec.structs.replace(
                self.raft,
                snapshot_every=self.raft.snapshot_every or METADATA_SNAPSHOT_EVERY,
                keep_behind=METADATA_KEEP_BEHIND,
                prefer_snapshots=True,
                ceiling_s=0.0,  # Nobody asks when a topic was made.
            ),
            detector=self.detector,
        )

    def all_listeners(self) -> dict[str, ListenerConfig]:
        """By name; `listen` is short for one."""
        return self.listeners or {CLIENT: ListenerConfig(self.listen, self.advertise)}

    @property
    def client_address(self) -> Address:
        """What is said of this node to whoever did not ask on a listener of its own."""
        listeners = self.all_listeners()
        return listeners[clients_listener(listeners)].advertised

    @property
    def own_address(self) -> Address:
        """Where this node finds itself. A certificate is for the name that others know."""
        listeners = self.all_listeners()
        listener = listeners[letters_listener(listeners)]
        return listener.bound if listener.tls is None else listener.advertised

    def peer_addresses(self) -> dict[int, Address]:
        return {node: parse_address(text) for node, text in sorted(self.peers.items())}

    def replicas(self, incarnation: int) -> list[tuple[Partition, ReplicaRecord]]:
        """What this node holds from the start, in this life of its disk."""
        held = []
        if self.voters:
            everybody = {self.node, *self.peers}
            voters, learners = (
                tuple(Member(node, FIRST_INCARNATION) for node in sorted(nodes))
                for nodes in (self.voters, everybody.difference(self.voters))
            )
            me = Member(self.node, incarnation)
            held.append((METADATA, ReplicaRecord("raft", me, voters, learners, purpose="metadata")))
        for topic in self.topics:
            if self.node not in topic.voters + topic.learners:
                continue
            voters, learners = topic.members()
            record = ReplicaRecord("raft", Member(self.node, incarnation), voters, learners)
            held += [(partition_of(topic.topic_id, number), record) for number in range(topic.partitions)]
        return held


def load_config(path: Path, others: Iterable[settings.Given] = ()) -> NodeConfig:
    """Read and check a configuration, with `others` in place of what it says of them; raises BadConfig."""
    given = [_beside(path.parent, one) for one in settings.from_file(path, NodeConfig)]
    return make_config([*given, *others], file=str(path))


def make_config(given: Iterable[settings.Given], *, file: str = "") -> NodeConfig:
    """From settings, wherever they stand, the weightiest last; raises BadConfig, which names where."""
    settled = settings.settle(NodeConfig, given, file=file)
    config = settings.convert(NodeConfig, settled)
    with settled.naming():
        check_config(config)
    return config


def _beside(directory: Path, one: settings.Given) -> settings.Given:
    """What a file says of other files is relative to itself."""
    is_file = one.path == ("directory",) or (one.path[0] == "listeners" and one.path[2:3] == ("tls",))
    if is_file and isinstance(one.value, str) and one.value:
        return one._replace(value=str(directory / one.value))
    return one


def check_config(config: NodeConfig) -> None:
    """What types cannot say; raises BadConfig."""
    if not config.cluster or len(config.cluster) > 100:
        raise BadConfig("cluster: name the cluster, in at most 100 characters")
    if config.node < 1 or any(peer < 1 for peer in config.peers):
        raise BadConfig("node and peers: nodes are numbered from 1")
    if config.node in config.peers:
        raise BadConfig(f"peers: node {config.node} is this node itself; name the others only")
    _check_listening(config)
    for peer, address in config.peers.items():
        _expect_address(f"peers.{peer}", address)
    if config.http:
        _expect_address("http", config.http)
        if parse_address(config.http) in [listener.bound for listener in config.all_listeners().values()]:
            raise BadConfig(f"http: a listener is at {config.http}; give it a port of its own")
    if not _RACK.fullmatch(config.rack):
        raise BadConfig(
            "rack: at most 100 characters, none of them a space at the ends or a control character"
        )
    if config.log_format not in LOG_FORMATS:
        raise BadConfig(f"log_format: {config.log_format!r} is unknown; there are: {', '.join(LOG_FORMATS)}")
    if not config.scrub_every_s >= 0:
        raise BadConfig("scrub_every_s: seconds, or 0 for never")
    if not config.retention_every_s > 0:
        raise BadConfig("retention_every_s: seconds, above 0")
    if not config.compaction_every_s > 0 or config.compaction_bytes < 1:
        raise BadConfig("compaction_every_s: seconds, above 0; compaction_bytes: above 0")
    if config.nats:
        check_nats(config.nats)
    known = {config.node, *config.peers}
    if not known.issuperset(config.voters) or len(set(config.voters)) < len(config.voters):
        raise BadConfig("voters: each is this node or a peer, and named once")
    for topic in config.topics:
        _check_topic(topic, known)
    if sum(topic.partitions for topic in config.topics) > PARTITIONS_COUNT_MAX:
        raise BadConfig(f"topics: more than {PARTITIONS_COUNT_MAX} partitions")
    if len({topic.id.lower() for topic in config.topics}) < len(config.topics):
        raise BadConfig("topics: an id is there twice")
    check_bounds(
        raft_=config.raft,
        coordinated_=config.coordinated,
        isr_=config.isr,
        confirm_=config.confirm,
        store=config.store,
        detector=config.detector,
    )


def _check_listening(config: NodeConfig) -> None:
    if config.listeners:
        if config.listen or config.advertise:
            raise BadConfig(
                "listen and advertise are short for one listener; leave them out beside `listeners`"
            )
        check_listeners(config.listeners)
        return
    if not config.listen:
        raise BadConfig("listen: say where, host:port; or name `listeners`")
    _expect_address("listen", config.listen)
    if config.advertise:
        _expect_address("advertise", config.advertise)
    check_advertised("advertise", config.client_address)


def _expect_address(key: str, text: str) -> None:
    try:
        parse_address(text)
    except BadConfig as bad:
        raise BadConfig(f"{key}: {bad}") from None


def _check_topic(topic: TopicConfig, known: set[int]) -> None:
    if not re.fullmatch(r"[0-9a-fA-F]{32}", topic.id):
        raise BadConfig(f"topics: id {topic.id!r} is not 32 hexadecimal digits")
    if topic.topic_id == METADATA_TOPIC:
        raise BadConfig(f"topics: {topic.id} is the metadata group's id")
    if topic.partitions < 1:
        raise BadConfig(f"topics: {topic.id} has {topic.partitions} partitions; 1 is the least")
    members = topic.voters + topic.learners
    if not topic.voters or len(set(members)) < len(members):
        raise BadConfig(f"topics: {topic.id} needs voters, and each node in it once")
    if not known.issuperset(members):
        raise BadConfig(f"topics: {topic.id} names a node that is neither this one nor a peer")
