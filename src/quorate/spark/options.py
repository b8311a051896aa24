"""The options of `format("quorate")`: names as in Spark's Kafka source, each checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from quorate.client.cluster import parse_bootstrap
from quorate.client.records import COLUMN_NAMES
from quorate.client.security import Security

Positions = dict[str, dict[int, int]]
"""Topic → partition → offset."""

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"
HEADERS = "headers"
TIMEOUT_S = 60.0
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECURITY = {
    "kafka.security.protocol": "",
    "kafka.ssl.ca.location": "ca",
    "kafka.ssl.certificate.location": "cert",
    "kafka.ssl.key.location": "key",
    "kafka.sasl.mechanism": "mechanism",
    "kafka.sasl.username": "user",
    "kafka.sasl.password": "password",
}
"""As librdkafka calls them: files in PEM format, which every executor finds under the same name."""
NAMES = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "subscribe",
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "timeoutSeconds",
    *SECURITY,
)
OF_A_TABLE = "provider"
"""What Spark's SQL adds to the options of a table; those of a view stay as they are."""

Where = str | int | Positions
"""Where to begin or to end: `earliest`, `latest`, a timestamp in milliseconds, or offsets."""


class WrongOption(ValueError):
    """One line: which option, what is wrong with it, what is right."""


@dataclass(frozen=True)
class Options:
    bootstrap: str
    topics: tuple[str, ...]
    starting: Where | None
    """None: what a batch or a stream starts with by itself."""
    ending: Where
    offsets_per_trigger_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    timeout_s: float
    security: Security | None = None


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises WrongOption."""
    if OF_A_TABLE in given:
        # Spark 4.3 keeps no options for the tables of a Python source: it could be made, and never be read.
        raise WrongOption('format("quorate") cannot be a table; use CREATE TEMPORARY VIEW … USING quorate')
    known = {name.lower(): name for name in NAMES}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in known:
            options[known[name.lower()]] = str(value).strip()
        else:
            raise _unknown(name)
    ending = _where(options, "endingOffsets", "endingTimestamp")
    return Options(
        bootstrap=_bootstrap(options),
        topics=_topics(options),
        starting=_where(options, "startingOffsets", "startingTimestamp"),
        ending=LATEST_NAME if ending is None else ending,
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger"),
        partitions_min=_count(options, "minPartitions") or 0,
        fail_on_data_loss=_truth(options, "failOnDataLoss", usually=True),
        columns=_columns(options),
        timeout_s=_seconds(options, "timeoutSeconds", usually=TIMEOUT_S),
        security=_security(options),
    )


def _unknown(name: str) -> WrongOption:
    close = get_close_matches(name.lower(), [known.lower() for known in NAMES], n=1, cutoff=0.6)
    if close:
        meant = next(known for known in NAMES if known.lower() == close[0])
        return WrongOption(f'format("quorate") has no option {name!r}; did you mean {meant!r}?')
    return WrongOption(f'format("quorate") has no option {name!r}; it has: {", ".join(NAMES)}')


def _one_of(options: Mapping[str, str], name: str, alias: str, example: str) -> str:
    both = [each for each in (name, alias) if options.get(each)]
    if len(both) > 1 and options[name] != options[alias]:
        raise WrongOption(f"options {name!r} and {alias!r} say different things; give one of them")
    if not both:
        raise WrongOption(f"option {name!r} is missing; give it, for example {example}")
    return options[both[0]]


def _bootstrap(options: Mapping[str, str]) -> str:
    text = _one_of(options, "kafka.bootstrap.servers", "bootstrap", "localhost:9092")
    try:
        parse_bootstrap(text)
    except ValueError as error:
        raise WrongOption(f"option 'kafka.bootstrap.servers': {error}") from None
    return text


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    text = _one_of(options, "subscribe", "topic", "events, or several with commas between")
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise WrongOption(f"option 'subscribe': {text!r} names no topic")
    return names


def _where(options: Mapping[str, str], name: str, timestamp_name: str) -> Where | None:
    text, timestamp = options.get(name), options.get(timestamp_name)
    if timestamp:
        if text:
            raise WrongOption(f"options {name!r} and {timestamp_name!r} exclude each other; give one of them")
        if not (timestamp.isascii() and timestamp.isdigit()) or int(timestamp) >= 1 << 63:
            raise WrongOption(
                f"option {timestamp_name!r}: {timestamp!r} is no time in milliseconds since 1970"
            )
        return int(timestamp)
    if not text:
        return None
    if text.lower() in (EARLIEST_NAME, LATEST_NAME):
        return text.lower()
    return _positions(name, text)


def _positions(name: str, text: str) -> Positions:
    example = '{"events": {"0": 23, "1": -2}}'
    wrong = WrongOption(f"option {name!r}: {text!r} is not earliest, latest, or offsets such as {example}")
    try:
        read = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(read, dict) or not all(isinstance(each, dict) and each for each in read.values()):
        raise wrong
    positions: Positions = {}
    for topic, partitions in read.items():
        for number, offset in partitions.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and -2 <= offset < 1 << 63
            is_number = number.isascii() and number.isdigit() and int(number) < 1 << 31
            if not is_number or not is_offset:
                raise wrong
            positions.setdefault(topic, {})[int(number)] = offset
    return positions


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise WrongOption(f"option {name!r}: {text!r} is not a whole number from 1 on")
    return int(text)


def _seconds(options: Mapping[str, str], name: str, *, usually: float) -> float:
    text = options.get(name)
    if not text:
        return usually
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86_400:
        raise WrongOption(f"option {name!r}: {text!r} is not a number of seconds within a day")
    return seconds


def _truth(options: Mapping[str, str], name: str, *, usually: bool) -> bool:
    text = options.get(name, "").lower()
    if text in ("true", "false"):
        return text == "true"
    if text:
        raise WrongOption(f"option {name!r}: {options[name]!r} is neither true nor false")
    return usually


def _security(options: Mapping[str, str]) -> Security | None:
    protocol = options.get("kafka.security.protocol", "") or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise WrongOption(
            f"option 'kafka.security.protocol': {protocol!r} is unknown; there is: {', '.join(PROTOCOLS)}"
        )
    given = {field: options[name] for name, field in SECURITY.items() if field and options.get(name)}
    has_tls, has_password = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name, field in SECURITY.items():
        if field in given and not (has_tls if name.startswith("kafka.ssl") else has_password):
            raise WrongOption(
                f"option {name!r} says nothing with 'kafka.security.protocol' {protocol}; change one"
            )
    if has_password and not given.keys() >= {"user", "password"}:
        raise WrongOption(f"{protocol} needs the options 'kafka.sasl.username' and 'kafka.sasl.password'")
    try:
        return Security(tls=has_tls, **given) if has_tls or has_password else None
    except ValueError as error:
        raise WrongOption(f"options 'kafka.ssl.*' and 'kafka.sasl.*': {error}") from None


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _truth(options, "includeHeaders", usually=False)
    text = options.get("columns")
    if not text:
        return tuple(name for name in COLUMN_NAMES if name != HEADERS or with_headers)
    wanted = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in wanted:
        if name not in COLUMN_NAMES:
            raise WrongOption(
                f"option 'columns': there is no column {name!r}; there is: {', '.join(COLUMN_NAMES)}"
            )
    if not wanted:
        raise WrongOption(f"option 'columns': {text!r} names no column")
    return wanted
