"""What a query that reads or writes Kafka may say, and what is so here by itself.

Such an option is taken and means nothing, so that a query moves by changing one word. Not taken is what asks for
something that is not done here: a query would go on and do another thing than it says.

Spark's Kafka source has the options of Java's client for security, and most who know Kafka from Python those of
librdkafka. Both are understood, as far as they say something that is done here.
"""

from __future__ import annotations

import re
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

MECHANISM, USER, PASSWORD = "kafka.sasl.mechanism", "kafka.sasl.username", "kafka.sasl.password"
CA = "kafka.ssl.ca.location"
JAAS = "kafka.sasl.jaas.config"
STORE, STORE_TYPE = "kafka.ssl.truststore.location", "kafka.ssl.truststore.type"
STORE_PASSWORD = "kafka.ssl.truststore.password"
OF_JAVA = (JAAS, STORE, STORE_TYPE, STORE_PASSWORD)
MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
"""And what each is for; the first of these where the mechanism is not said."""
SHADED = "kafkashaded."
"""What these names begin with on Databricks."""
PEM = "PEM"
# As Kafka's JaasConfig reads it, with a StreamTokenizer.
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[\w.$-]+)"""
_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_SETTING = re.compile(rf"\s+([\w.$-]+)\s*=\s*({_VALUE})(?=[\s;])")
_END = re.compile(r"\s*;\s*")
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


def not_done_here(options: Mapping[str, str]) -> str | None:
    """What is wrong, in one line."""
    for name, (value, why) in ONLY.items():
        if options.get(name, "").lower() not in ("", value):
            return f"option {name!r}: {options[name]!r} is not done here, {why}; leave it out, or set {value}"
    return None


def as_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """What is said of security in Java's words, in those of librdkafka; raises ValueError with one line."""
    said = dict(options)
    if options.get(JAAS):
        _refuse_both(options, JAAS, USER, PASSWORD)
        said.update(_login(options[JAAS], options.get(MECHANISM, "")))
    if options.get(STORE):
        _refuse_both(options, STORE, CA)
        if (kind := options.get(STORE_TYPE, "") or "JKS").upper() != PEM:
            raise ValueError(
                f"option {STORE!r}: only Java reads stores of type {kind}; write its certificates to a file in PEM "
                f"format, as `keytool -list -rfc` prints them, and set {STORE_TYPE!r} to {PEM}"
            )
        if options.get(STORE_PASSWORD):
            raise ValueError(f"option {STORE_PASSWORD!r}: a file in PEM format has none; leave it out")
        said[CA] = options[STORE]
    return said


def _refuse_both(options: Mapping[str, str], name: str, *others: str) -> None:
    for other in others:
        if options.get(other):
            raise ValueError(f"options {name!r} and {other!r} say the same; give one of them")


def _login(text: str, mechanism: str) -> dict[str, str]:
    """Nothing of what is written is told again, but a module's name: there is a password in it."""
    wrong = ValueError(
        f"option {JAAS!r} is not of this form: {list(MODULES)[-1]} required "
        'username="ann" password="correct horse";'
    )
    begin = _MODULE.match(text)
    if begin is None:
        raise wrong
    mechanisms = MODULES.get(begin[1].removeprefix(SHADED))
    if mechanisms is None:
        raise ValueError(f"option {JAAS!r}: {begin[1]} is not done here; there is: {', '.join(MODULES)}")
    if mechanism and mechanism not in mechanisms:
        raise ValueError(
            f"option {JAAS!r}: {begin[1]} is not for {MECHANISM!r} {mechanism}, but for {', '.join(mechanisms)}"
        )
    settings: dict[str, str] = {}
    at = begin.end()
    while (found := _SETTING.match(text, at)) is not None:
        settings[found[1]] = _unquoted(found[2])
        at = found.end()
    if _END.fullmatch(text, at) is None or not (settings.get("username") and settings.get("password")):
        raise wrong
    if more := sorted(settings.keys() - {"username", "password"}):
        raise ValueError(f"option {JAAS!r}: {more[0]!r} is not done here, only 'username' and 'password'")
    return {
        USER: settings["username"],
        PASSWORD: settings["password"],
        MECHANISM: mechanism or mechanisms[0],
    }


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return _ESCAPE.sub(_escaped, value[1:-1])


def _escaped(found: re.Match[str]) -> str:
    text = found[1]
    return chr(int(text, 8)) if text[0] in "01234567" else _ESCAPES.get(text, text)
