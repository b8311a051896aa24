"""The settings of a topic: what each may say, what it says where nobody has given it, and which can be altered.

What a topic is told is honoured, or it is refused by name: a setting that is accepted and ignored is a lie. The few
that only say how Kafka itself does something are taken from tools that set them, and whoever sets or describes one
is told that it has no effect here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.ingest import SUBJECT, why_bad_subject
from quorate.kafka.group_coordinator import (
    INITIAL_DELAY,
    MEMBERS_MAX,
    RETENTION_MINUTES,
    RETENTION_MINUTES_DEFAULT,
    SESSION_GREATEST,
    SESSION_LEAST,
)
from quorate.kafka.terms import (
    APPEND_TIME,
    CREATE_TIME,
    FLUSH,
    FLUSH_LEADER,
    FLUSH_QUORUM,
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
    TIMESTAMP_TYPE,
)
from quorate.kafka.transactions import TIMEOUT_MS_MAX, TIMEOUT_SETTING
from quorate.machine.cluster import MOVING_RATE
from quorate.machine.compactions import CLEANUP_POLICY, COMPACT
from quorate.machine.metadata import PARTITIONS_COUNT_MAX, REPLICATIONS, Metadata, Topic
from quorate.machine.purpose import KIND, RECORDS, TABLES, TOPIC
from quorate.machine.turning import MIN_ISR
from quorate.node.compaction import DELETE_RETENTION_MS_DEFAULT, DIRTY_RATIO_DEFAULT, LAG_MS_DEFAULT
from quorate.node.homes import HOME_PARTITIONS_COUNT, HOME_SETTINGS
from quorate.node.metadata import (
    PARTITIONS_COUNT,
    PARTITIONS_SETTING,
    REPLICAS_COUNT,
    REPLICAS_SETTING,
)
from quorate.node.retention import (
    DELETE_RETENTION_MS,
    DIRTY_RATIO,
    LAG_MS,
    OF_RECORDS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_MS,
    SEGMENT_MS_DEFAULT,
)
from quorate.node.transactions import APP_IDLE_MS, APP_IDLE_SETTING, PLAIN_IDLE_MS, PLAIN_IDLE_SETTING
from quorate.storage.settings import StoreSettings

REPLICATION = "quorate.replication"
REPLICATION_DEFAULT = "raft"
MESSAGE_BYTES_LEAST = 1024
MESSAGE_BYTES_GREATEST = 16 << 20
SEGMENT_BYTES_LEAST = 16 << 10
"""Files that are smaller cost more than what is in them."""
SEGMENT_BYTES_GREATEST = 1 << 30
LONG_MAX = 1 << 62
WHY_MAX = 1000
BY_DEFAULT = -1


class Refused(Exception):
    """Something of a request that cannot be done: the error code, and why in words."""

    def __init__(self, error: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.error = error
        # It quotes the client, and a string of the older versions has room for 32 KiB.
        self.why = why[:WHY_MAX]


class Kind(IntEnum):
    """What a value is, in Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Who gave a value, in Kafka's numbers."""

    TOPIC = 1
    CLUSTER = 3
    DEFAULT = 5


class Setting(NamedTuple):
    kind: Kind
    says: str
    default: str = ""
    """Empty: there is none, and it is not named where nobody has given it."""
    values: tuple[str, ...] = ()
    """Where only these are possible."""
    numbers: range | None = None
    """Where one of these is."""
    is_settled: bool = False
    """Whether it is what it is from a topic's creation on."""


SETTINGS: dict[str, Setting] = {
    REPLICATION: Setting(Kind.STRING, "How its copies agree.", REPLICATION_DEFAULT, REPLICATIONS),
    KIND: Setting(Kind.STRING, "What its log holds.", RECORDS, (RECORDS, TABLES), is_settled=True),
    SUBJECT: Setting(
        Kind.STRING, "The NATS subject whose messages it takes, too.", is_settled=True
    ),  # Looked at by `check_subject`.
    MESSAGE_BYTES_MAX: Setting(
        Kind.INT,
        "The largest batch that is taken.",
        str(MESSAGE_BYTES_DEFAULT),
        numbers=range(MESSAGE_BYTES_LEAST, MESSAGE_BYTES_GREATEST + 1),
    ),
    FLUSH: Setting(
        Kind.STRING,
        "Who must have flushed what is acknowledged: a quorum, or its leader alone, and then it may be lost.",
        FLUSH_QUORUM,
        (FLUSH_QUORUM, FLUSH_LEADER),
    ),
    MIN_ISR: Setting(Kind.INT, "How many copies must be in sync for anything to be taken or settled."),
    CLEANUP_POLICY: Setting(
        Kind.LIST,
        "What becomes of what is old: it goes by age and size, or where a newer record has its key.",
        "delete",
        ("delete", COMPACT),
    ),
    DIRTY_RATIO: Setting(
        Kind.DOUBLE,
        "A partition is compacted when so much of its sealed segments is new.",
        DIRTY_RATIO_DEFAULT,
    ),
    LAG_MS: Setting(
        Kind.LONG,
        "Segments with a record younger than this are not compacted.",
        LAG_MS_DEFAULT,
        numbers=range(LONG_MAX),
    ),
    DELETE_RETENTION_MS: Setting(
        Kind.LONG,
        "So long after it was compacted, a record without a value stays for those who read from the start.",
        DELETE_RETENTION_MS_DEFAULT,
        numbers=range(LONG_MAX),
    ),
    "compression.type": Setting(Kind.STRING, "Batches stay as they come.", "producer", ("producer",)),
    TIMESTAMP_TYPE: Setting(
        Kind.STRING,
        "Which time records have: their producer's, or when they were taken.",
        CREATE_TIME,
        (CREATE_TIME, APPEND_TIME),
    ),
    RETENTION_MS: Setting(
        Kind.LONG,
        "Segments whose newest record is older go; -1: none does.",
        "-1",
        numbers=range(-1, LONG_MAX),
    ),
    RETENTION_BYTES: Setting(
        Kind.LONG,
        "The oldest segments of a partition with more go; -1: none does.",
        "-1",
        numbers=range(-1, LONG_MAX),
    ),
    SEGMENT_BYTES: Setting(
        Kind.INT,
        "Another segment is begun when one has this size.",
        str(StoreSettings().segment_bytes),
        numbers=range(SEGMENT_BYTES_LEAST, SEGMENT_BYTES_GREATEST + 1),
    ),
    SEGMENT_MS: Setting(
        Kind.LONG,
        "And when a record is so much younger than the segment's first one.",
        str(SEGMENT_MS_DEFAULT),
        numbers=range(1, LONG_MAX),
    ),
    "unclean.leader.election.enable": Setting(
        Kind.BOOLEAN, "Nobody leads who may lack what is settled.", "false", ("false",)
    ),
    "flush.messages": Setting(Kind.LONG, "Everything is flushed before it is acknowledged.", "1", ("1",)),
}

_NO_EFFECT: dict[str, tuple[Kind, str]] = {
    "file.delete.delay.ms": (Kind.LONG, "Files go when nobody reads them any more."),
    "flush.ms": (Kind.LONG, "Everything is flushed before it is acknowledged."),
    "follower.replication.throttled.replicas": (Kind.LIST, "See quorate.moving.rate of the cluster."),
    "index.interval.bytes": (Kind.INT, "Indexes are a node's own business: see store.index_bytes."),
    "leader.replication.throttled.replicas": (Kind.LIST, "See quorate.moving.rate of the cluster."),
    "preallocate": (Kind.BOOLEAN, "Segments grow as they are written."),
    "segment.index.bytes": (Kind.INT, "Indexes grow with their segments."),
    "segment.jitter.ms": (Kind.LONG, "Segments end with a record, not at a time of day."),
}
NO_EFFECT = "It has no effect here: "
SETTINGS |= {
    name: Setting(
        kind,
        NO_EFFECT + why,
        values=("false", "true") if kind is Kind.BOOLEAN else (),
        numbers=range(LONG_MAX) if kind in (Kind.INT, Kind.LONG) else None,
    )
    for name, (kind, why) in _NO_EFFECT.items()
}

COPIES_COUNT_MAX = 9
AUTO_CREATE = "auto.create.topics.enable"
DAY_MS = 24 * 3600 * 1000
MEMBERS_COUNT_MAX = 10_000
HOME_PARTITIONS_COUNT_MAX = 100
CLUSTER_SETTINGS: dict[str, Setting] = {
    PARTITIONS_SETTING: Setting(
        Kind.INT,
        "How many partitions a topic gets.",
        str(PARTITIONS_COUNT),
        numbers=range(1, PARTITIONS_COUNT_MAX + 1),
    ),
    REPLICAS_SETTING: Setting(
        Kind.INT,
        "How many copies its partitions get, or as many as there are nodes.",
        str(REPLICAS_COUNT),
        numbers=range(1, COPIES_COUNT_MAX + 1),
    ),
    **{
        name: Setting(
            Kind.INT,
            f"How many partitions the home of {kind} gets, when it is made.",
            str(HOME_PARTITIONS_COUNT),
            numbers=range(1, HOME_PARTITIONS_COUNT_MAX + 1),
        )
        for kind, name in HOME_SETTINGS.items()
    },
    AUTO_CREATE: Setting(
        Kind.BOOLEAN,
        "Whether a topic comes about when a client asks for it by name.",
        "false",
        ("false", "true"),
    ),
    SESSION_LEAST: Setting(
        Kind.INT, "The shortest session of a member of a group.", "1000", numbers=range(10, DAY_MS + 1)
    ),
    SESSION_GREATEST: Setting(Kind.INT, "And the longest.", "1800000", numbers=range(10, DAY_MS + 1)),
    INITIAL_DELAY: Setting(
        Kind.INT,
        "How long the first member of a group waits for others.",
        "500",
        numbers=range(DAY_MS + 1),
    ),
    MEMBERS_MAX: Setting(
        Kind.INT, "How many members a group can have.", "1000", numbers=range(1, MEMBERS_COUNT_MAX + 1)
    ),
    RETENTION_MINUTES: Setting(
        Kind.INT,
        "How long positions of a group without members are kept.",
        str(RETENTION_MINUTES_DEFAULT),
        numbers=range(1, 1 << 31),
    ),
    TIMEOUT_SETTING: Setting(
        Kind.INT,
        "The longest time that a transaction may ask for before it is aborted.",
        str(TIMEOUT_MS_MAX),
        numbers=range(1, 1 << 31),
    ),
    PLAIN_IDLE_SETTING: Setting(
        Kind.INT,
        "How long a transactional id that nobody uses is kept.",
        str(PLAIN_IDLE_MS),
        numbers=range(1, 1 << 31),
    ),
    APP_IDLE_SETTING: Setting(
        Kind.LONG,
        "How long the last number of an app is kept when nobody uses it.",
        str(APP_IDLE_MS),
        numbers=range(1, LONG_MAX),
    ),
    MOVING_RATE: Setting(
        Kind.LONG,
        "Bytes a second that a node sends to copies that do not count yet; -1: as many as go, 0: none.",
        "-1",
        numbers=range(-1, LONG_MAX),
    ),
    **{name: setting for name, setting in SETTINGS.items() if name not in (KIND, SUBJECT, *_NO_EFFECT)},
}
"""What new topics are, where whoever makes them does not say; and how fast copies move."""
OF_TABLES = (REPLICATION, MIN_ISR)
"""Those that groups of tables go by, too."""

UNKNOWN = Setting(Kind.STRING, "A newer node knows what this says.", is_settled=True)


# ---- what is possible ----


def check_config(config: Mapping[str, str], copies: int, *, replication: str = REPLICATION_DEFAULT) -> None:
    """Only what is honoured, or says what is done anyway; raises Refused."""
    for name, value in config.items():
        _check(_setting(name), name, value, copies, replication)
        if config.get(KIND) == TABLES:
            check_of_records(name)


def check_altered(topic: Topic, altered: Mapping[str, str | None]) -> dict[str, str | None]:
    """What is to be altered of a topic that is there; None: let it be as by default. Raises Refused."""
    now, default, copies = values_of(topic), defaults_of(topic), min(map(len, topic.ensembles))
    possible: dict[str, str | None] = {}
    for name, value in altered.items():
        setting = _setting(name)
        if value is not None:
            _check(setting, name, value, copies, topic.replication)
            if topic.purpose != TOPIC:
                check_of_records(name)
        if name == REPLICATION:
            to = value or REPLICATION_DEFAULT
            if to != (topic.turning.to if topic.turning is not None else topic.replication):
                possible[name] = to
        elif not is_settled(name, setting, topic):
            possible[name] = value
        elif (default.get(name) if value is None else value) != now.get(name):
            so = f"{name} of topic {topic.name} is {now.get(name) or 'not given'}, and stays so"
            raise Refused(ErrorCode.invalid_config, f"{so} {_what_instead(topic, name, value, copies)}")
    return possible


def _what_instead(topic: Topic, name: str, value: str | None, copies: int) -> str:
    if name != MIN_ISR or (value is not None and int(value) > _majority(copies)):
        return "from its creation on; make another topic"
    # Of other kinds it is only a setting, and is taken over when a topic becomes one of isr.
    alter = f"`quorate topic alter {topic.name}"
    change = f"--config {name}={value}" if value is not None else f"--reset {name}"
    return (
        f"while it is replicated by isr; {alter} --replication raft`, {alter} {change}` and "
        f"{alter} --replication isr`, one after the other, alter it while the topic is in use"
    )


def is_settled(name: str, setting: Setting, topic: Topic) -> bool:
    """How many must be in sync is stored with the state of each partition of `isr` when that begins."""
    kinds = (topic.replication, topic.turning.to if topic.turning is not None else "")
    return setting.is_settled or (name == MIN_ISR and "isr" in kinds)


def _majority(copies: int) -> int:
    return copies // 2 + 1


def _check(setting: Setting, name: str, value: str, copies: int, replication: str) -> None:
    numbers = setting.numbers
    if name == MIN_ISR:
        # Elsewhere a majority settles, so up to that many copies are sure whatever is said here.
        numbers = range(1, (copies if replication == "isr" else _majority(copies)) + 1)
    if numbers is not None and (not re.fullmatch(r"-1|[0-9]{1,19}", value) or int(value) not in numbers):
        raise Refused(
            ErrorCode.invalid_config, f"{name}={value}; from {numbers[0]} to {numbers[-1]} is possible"
        )
    if setting.kind is Kind.DOUBLE and not re.fullmatch(r"0(\.[0-9]{1,9})?|1(\.0{1,9})?", value):
        raise Refused(ErrorCode.invalid_config, f"{name}={value}; from 0 to 1 is possible")
    if setting.values and value not in setting.values:
        possible = " or ".join(setting.values)
        raise Refused(ErrorCode.invalid_config, f"{name}={value} is not done here; only {possible}")


def check_of_records(name: str) -> None:
    """What a machine is made from is kept whole, or in snapshots; raises Refused."""
    if name == FLUSH:
        raise Refused(
            ErrorCode.invalid_config,
            f"{name} is for topics of records: a table says itself whether it is asynchronous",
        )
    if name in OF_RECORDS:
        raise Refused(
            ErrorCode.invalid_config,
            f"{name} is for topics of records: nothing of tables goes for its age or size; delete rows instead",
        )


def without_effect(names: Iterable[str]) -> str | None:
    """In words: which of these are taken and have no effect; None: all have one."""
    found = sorted(name for name in names if name in _NO_EFFECT)
    return f"without effect here: {', '.join(found)}" if found else None


def _setting(name: str) -> Setting:
    if name not in SETTINGS:
        raise Refused(ErrorCode.invalid_config, f"{name} is not a setting of topics here")
    return SETTINGS[name]


def check_cluster(altered: Mapping[str, str | None]) -> None:
    """What is to be altered of the cluster; raises Refused."""
    for name, value in altered.items():
        if name not in CLUSTER_SETTINGS:
            raise Refused(
                ErrorCode.invalid_config,
                f"{name} is not a setting of clusters here; there are: {', '.join(sorted(CLUSTER_SETTINGS))}",
            )
        if value is not None:
            # A topic that it does not fit is refused when it is made.
            _check(CLUSTER_SETTINGS[name], name, value, COPIES_COUNT_MAX, "isr")


def with_defaults(image: Metadata, given: Mapping[str, str]) -> dict[str, str]:
    """What a new topic is set to: what its maker says, and what the cluster says in place of the rest."""
    of_topics = OF_TABLES if given.get(KIND) == TABLES else tuple(SETTINGS)
    told = {name: value for name, value in image.cluster.config.items() if name in of_topics}
    return {**told, **given}


def check_subject(subject: str, partitions_count: int, *, has_server: bool) -> None:
    """Raises Refused."""
    why = why_bad_subject(subject)
    if not why and partitions_count not in (1, BY_DEFAULT):
        # Each leader would take every message.
        why = f"a topic with a NATS subject has one partition, not {partitions_count}"
    if not why and not has_server:
        why = "this node was told of no NATS server; start nodes with --nats URL"
    if why:
        raise Refused(ErrorCode.invalid_config, f"{SUBJECT}={subject}: {why}")


# ---- what is ----


def values_of(topic: Topic) -> dict[str, str]:
    """Every setting that says something of a topic, given or not."""
    return {**defaults_of(topic), **topic.config, REPLICATION: topic.replication}


def defaults_of(topic: Topic) -> dict[str, str]:
    majority = min(map(len, topic.ensembles)) // 2 + 1
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default}
    return {**defaults, MIN_ISR: str(majority)}


def described(topic: Topic) -> list[dict[str, Any]]:
    """All of them, as Kafka's messages have it."""
    default = defaults_of(topic)
    configs = []
    for name, value in sorted(values_of(topic).items()):
        setting = SETTINGS.get(name, UNKNOWN)
        is_given = name in topic.config or value != default.get(name)
        one = _described(setting, name, topic.config.get(name), default.get(name), Source.TOPIC)
        configs.append(
            one
            | {
                "value": value,
                "read_only": is_settled(name, setting, topic) or len(setting.values) == 1,
                "config_source": Source.TOPIC if is_given else Source.DEFAULT,
            }
        )
    return configs


def cluster_described(image: Metadata) -> list[dict[str, Any]]:
    """What new topics are set to where nobody says, as Kafka's messages have it."""
    config = image.cluster.config
    return [
        _described(setting, name, config.get(name), setting.default or None, Source.CLUSTER)
        for name, setting in sorted(CLUSTER_SETTINGS.items())
        if name in config or setting.default
    ]


def _described(
    setting: Setting, name: str, given: str | None, default: str | None, source: Source
) -> dict[str, Any]:
    told = {source: given, Source.DEFAULT: default}
    synonyms = [{"name": name, "value": each, "source": of} for of, each in told.items() if each is not None]
    return {
        "name": name,
        "value": default if given is None else given,
        "read_only": len(setting.values) == 1,
        "config_source": Source.DEFAULT if given is None else source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": setting.kind,
        "documentation": setting.says,
    }
