"""The demo's events: sales in a dozen cities, sent by an idempotent Kafka producer, every answer counted."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

TOPIC = "sales"
PARTITIONS_COUNT = 6
COPIES_COUNT = 3
RESULTS = {kind: f"totals-{kind}" for kind in ("coordinated", "isr", "confirm")}
"""The events go into a topic whose copies agree by raft; their totals into one of each other kind."""
TABLE = "shop/cities"
COUNTRIES = {
    "Bergen": "Norway",
    "Cusco": "Peru",
    "Dakar": "Senegal",
    "Hanoi": "Vietnam",
    "Izmir": "Türkiye",
    "Kyoto": "Japan",
    "Lagos": "Nigeria",
    "Lima": "Peru",
    "Oslo": "Norway",
    "Porto": "Portugal",
    "Quito": "Ecuador",
    "Turin": "Italy",
}
CITIES = tuple(COUNTRIES)
CENTS_MAX = 10_000
CREATE_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 90.0
PACE_S = 20.0
"""The events are spread over so long, for a person to see what happens meanwhile."""
TURN_S = 0.02
FIRST_SHARE = 0.01
"""Sent at once: Spark compiles its query with the first events that it sees, which takes a while."""


@dataclass(frozen=True)
class Sum:
    """Of one city."""

    count: int = 0
    cents: int = 0

    def plus(self, cents: int) -> Sum:
        return Sum(self.count + 1, self.cents + cents)


class Sender(Thread):
    """Sends in a thread of its own, and knows what was acknowledged, what was not, and when."""

    def __init__(self, bootstrap: str, events_count: int, *, seed: int) -> None:
        super().__init__(name="events", daemon=True)
        self.events_count = events_count
        self.acknowledged = dict.fromkeys(CITIES, Sum())
        self.unknown = dict.fromkeys(CITIES, Sum())
        """Told as failed, or not answered at all: it may be there or not."""
        self.acknowledged_count = 0
        self.why_unknown = ""
        self.flowing = Event()
        """Set when the rest may follow the first few."""
        self.over = Event()
        """Set to end before all is sent."""
        self.began = 0.0
        """When the events began to flow."""
        self.seconds = 0.0
        self._servers = bootstrap
        self._rng = Random(seed)
        self._last = [0.0] * PARTITIONS_COUNT
        self._longest_s = [0.0] * PARTITIONS_COUNT

    def run(self) -> None:
        from confluent_kafka import KafkaException, Producer

        self.began = monotonic()
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # That a node is gone is what this is about.
            }
        )
        try:
            self._send_all(producer)
        except KafkaException as error:
            self.why_unknown = str(error)
        self.seconds = monotonic() - self.began

    def _send_all(self, producer: Producer) -> None:
        sent_count = 0
        while sent_count < self.events_count and not self.over.is_set():
            while sent_count < self._due_count():
                self._send(producer)
                sent_count += 1
            producer.poll(TURN_S)
        if not self.over.is_set():
            producer.flush(DELIVERY_TIMEOUT_S)

    def _due_count(self) -> int:
        if not self.flowing.is_set():
            self.began = monotonic()
            return int(self.events_count * FIRST_SHARE)
        share = FIRST_SHARE + (monotonic() - self.began) / PACE_S
        return int(self.events_count * min(1.0, share))

    def _send(self, producer: Producer) -> None:
        number = self._rng.randrange(len(CITIES))
        city, cents = CITIES[number], self._rng.randrange(1, CENTS_MAX)
        self.unknown[city] = self.unknown[city].plus(cents)
        while True:
            try:
                producer.produce(
                    TOPIC,
                    value=b'{"cents": %d}' % cents,
                    key=city.encode(),
                    partition=number % PARTITIONS_COUNT,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:  # More waits than the client holds: let answers come in.
                producer.poll(TURN_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.why_unknown = error.str()
            return
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        city, cents = key.decode(), int(value[value.rindex(b" ") : -1])
        self.acknowledged[city] = self.acknowledged[city].plus(cents)
        before = self.unknown[city]
        self.unknown[city] = Sum(before.count - 1, before.cents - cents)
        self.acknowledged_count += 1
        self._note_time(message.partition() or 0)

    def _note_time(self, partition: int) -> None:
        now = monotonic()
        self._longest_s[partition] = max(self._longest_s[partition], now - self._last[partition])
        self._last[partition] = now

    def forget_gaps(self) -> None:
        """From now on count how long a partition has acknowledged nothing."""
        self._last = [monotonic()] * PARTITIONS_COUNT
        self._longest_s = [0.0] * PARTITIONS_COUNT

    def longest_gap_s(self, partitions: list[int]) -> float:
        return max((self._longest_s[number] for number in partitions), default=0.0)


def create_topics(bootstrap: str) -> None:
    """One for the events, and one of each other kind for what becomes of them; raises WrongUsage."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    wanted = [NewTopic(TOPIC, PARTITIONS_COUNT, COPIES_COUNT, config={"quorate.replication": "raft"})]
    wanted += [
        NewTopic(topic, 1, COPIES_COUNT, config={"quorate.replication": kind})
        for kind, topic in RESULTS.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for topic, made in admin.create_topics(wanted).items():
        try:
            made.result(CREATE_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise WrongUsage(f"the topic {topic!r} was not created: {error}") from error


def create_table(bootstrap: str) -> None:
    """Where each city lies; raises WrongUsage."""
    from quorate.client import ClientError, TableGroup, create_group
    from quorate.tables import Column, CreateTable, Insert, Table, Type

    group, _, name = TABLE.partition("/")
    columns = (Column("city", Type.STR), Column("country", Type.STR))
    try:
        create_group(bootstrap, group, replication="confirm")
        with TableGroup(bootstrap, group) as shop:
            shop.execute(CreateTable(Table(name, columns, key=("city",))))
            shop.execute(*(Insert(name, each) for each in COUNTRIES.items()))
    except ClientError as error:
        raise WrongUsage(f"the table {TABLE!r} was not created: {error}") from error
