"""What a query that reads or writes Kafka may say, and what is so here by itself.

Such an option is taken and means nothing, so that a query moves by changing one word. Not taken is what asks for
something that is not done here: a query would go on and do another thing than it says.
"""

from __future__ import annotations

from collections.abc import Mapping

ISOLATION = "kafka.isolation.level"
STRATEGY = "startingOffsetsByTimestampStrategy"
ONLY = {
    ISOLATION: ("read_committed", "only what is committed is read"),
    STRATEGY: ("latest", "where no record is as young, the end is where reading begins"),
}
"""The one value that they may have, and why."""
_CONNECTING = (
    "kafka.client.id",
    "kafka.client.dns.lookup",
    "kafka.connections.max.idle.ms",
    "kafka.metadata.max.age.ms",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.request.timeout.ms",
    "kafka.retry.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.send.buffer.bytes",
    "kafka.socket.connection.setup.timeout.max.ms",
    "kafka.socket.connection.setup.timeout.ms",
)
READING = (
    *ONLY,
    *_CONNECTING,
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafka.check.crcs",
    "kafka.default.api.timeout.ms",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.heartbeat.interval.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.session.timeout.ms",
    "kafkaConsumer.pollTimeoutMs",
)
WRITING = (
    *_CONNECTING,
    "includeHeaders",
    "kafka.acks",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.request.size",
    "kafka.retries",
)


def not_done_here(options: Mapping[str, str]) -> str | None:
    """What is wrong, in one line."""
    for name, (value, why) in ONLY.items():
        if options.get(name, "").lower() not in ("", value):
            return f"option {name!r}: {options[name]!r} is not done here, {why}; leave it out, or set {value}"
    return None
