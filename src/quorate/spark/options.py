"""The options of `format("quorate")`: names as in Spark's Kafka source, each checked before anything is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from quorate.client.cluster import parse_bootstrap
from quorate.client.records import COLUMN_NAMES
from quorate.client.security import Security
from quorate.spark import kafka_options
from quorate.wire.opening import CODECS

Positions = dict[str, dict[int, int]]
"""Topic → partition → offset."""

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"
HEADERS = "headers"
TIMEOUT_S = 60.0
VALUE_FORMATS = ("raw", "json", "arrow")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECURITY = {
    "kafka.security.protocol": "",
    kafka_options.CA: "ca",
    "kafka.ssl.certificate.location": "cert",
    "kafka.ssl.key.location": "key",
    kafka_options.MECHANISM: "mechanism",
    kafka_options.USER: "user",
    kafka_options.PASSWORD: "password",
    **dict.fromkeys(kafka_options.OF_JAVA, ""),
}
"""As librdkafka calls them: files in PEM format, which every executor finds under the same name.
And as Java's client does, whose Spark's Kafka source has.
"""
NAMES = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "subscribe",
    "topic",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "valueFormat",
    "valueSchema",
    "badRecords",
    "groupId",
    "kafka.group.id",
    "timeoutSeconds",
    "tiered",
    "lake",
    *SECURITY,
)
OF_LAKE = "lake."
"""What begins so is a storage option of deltalake."""
WRITE_NAMES = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "topic",
    "txnAppId",
    "txnVersion",
    "transactionTimeout",
    "kafka.compression.type",
    "timeoutSeconds",
    *SECURITY,
)
OF_SPARK = ("checkpointLocation", "path", "queryName")
"""What Spark hands on and means itself."""
OF_A_TABLE = "provider"
"""What Spark's SQL adds to the options of a table; those of a view stay as they are."""

TRANSACTION_MAX_S = 86_400.0
DIGITS_MAX = 19
"""Python refuses to read thousands of them."""
TRIGGER_DELAY_S = TRANSACTION_S = 15 * 60.0
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_DIGITS_MAX = 15
_DURATION = re.compile(rf"(\d{{1,{DURATION_DIGITS_MAX}}})\s*([a-z]*)", re.ASCII)


class Times(dict[str, dict[int, int]]):
    """Topic → partition → milliseconds since 1970."""


Where = str | int | Positions | Times
"""Where to begin or to end: `earliest`, `latest`, a timestamp in milliseconds; or offsets, or such timestamps, for
some or all partitions."""


class WrongOption(ValueError):
    """One line: which option, what is wrong with it, what is right."""


@dataclass(frozen=True)
class Selection:
    """What is read: topics by name, all whose names match, or some partitions. One of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Options:
    bootstrap: str
    selection: Selection
    starting: Where | None
    """None: what a batch or a stream starts with by itself."""
    ending: Where
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_s: float
    """How long a stream waits for so many, at most."""
    partitions_min: int
    task_records_max: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    timeout_s: float
    security: Security | None = None
    group: str = ""
    """The consumer group whose positions say how far a stream is."""
    value_format: str = "raw"
    value_schema: str = ""
    """The columns of a value that is not raw, as Spark writes them: `user string, amount double`."""
    lake: str = ""
    """Where topics are tiered, if that is to be read, too (tiered.py); and how that place is reached."""
    lake_options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class WriteOptions:
    bootstrap: str
    topic: str | None
    """None: each row names its own."""
    app: str | None
    version: int | None
    """Both given: a batch that is written again under them is not."""
    transaction_timeout_s: float
    codec: int
    timeout_s: float
    security: Security | None = None


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises WrongOption."""
    options = _known(given, (*WRITE_NAMES, *OF_SPARK), kafka_options.WRITING)
    app, version = _version(options)
    compression = options.get("kafka.compression.type", "").lower() or "none"
    if compression not in CODECS:
        raise WrongOption(
            f"option 'kafka.compression.type': {compression!r} is unknown; there is: {', '.join(CODECS)}"
        )
    return WriteOptions(
        bootstrap=_bootstrap(options),
        topic=options.get("topic") or None,
        app=app,
        version=version,
        transaction_timeout_s=_transaction_timeout(options),
        codec=CODECS[compression],
        timeout_s=_seconds(options, "timeoutSeconds", usually=TIMEOUT_S),
        security=_security(options),
    )


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises WrongOption."""
    _no_table_of_spark(given)
    lake_options = {
        name[len(OF_LAKE) :]: str(value) for name, value in given.items() if name.lower().startswith(OF_LAKE)
    }
    others = {name: given[name] for name in given if not name.lower().startswith(OF_LAKE)}
    options = _known(others, NAMES, kafka_options.READING)
    if (wrong := kafka_options.not_done_here(options)) is not None:
        raise WrongOption(wrong)
    starting, ending = _where(options, "starting"), _where(options, "ending")
    if isinstance(starting, int) and isinstance(ending, int) and starting > ending:
        raise WrongOption(
            f"option 'startingTimestamp' {starting} is behind 'endingTimestamp' {ending}; change one"
        )
    least, most = _count(options, "minOffsetsPerTrigger"), _count(options, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise WrongOption(
            f"option 'minOffsetsPerTrigger' {least} is more than 'maxOffsetsPerTrigger' {most}; change one"
        )
    form, value_schema, columns = _values(options, _columns(options))
    return Options(
        bootstrap=_bootstrap(options),
        selection=_selection(options),
        starting=starting,
        ending=LATEST_NAME if ending is None else ending,
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_max_s=_duration(options, "maxTriggerDelay", usually=TRIGGER_DELAY_S),
        partitions_min=_count(options, "minPartitions") or 0,
        task_records_max=_count(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_truth(options, "failOnDataLoss", usually=True),
        columns=columns,
        value_format=form,
        value_schema=value_schema,
        group=_group(options),
        timeout_s=_seconds(options, "timeoutSeconds", usually=TIMEOUT_S),
        security=_security(options),
        lake=_lake(options),
        lake_options=tuple(sorted(lake_options.items())),
    )


TABLE_NAMES = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "table",
    "readChangeFeed",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "timeoutSeconds",
    *SECURITY,
)
TABLE_WRITE_NAMES = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "table",
    "txnAppId",
    "txnVersion",
    "timeoutSeconds",
    *SECURITY,
)
SNAPSHOT_NAME = "snapshot"


@dataclass(frozen=True)
class TableOptions:
    """Of a table, read or written."""

    bootstrap: str
    group: str
    table: str
    timeout_s: float
    security: Security | None = None
    changes: bool = False
    starting: str | int = SNAPSHOT_NAME
    """Of its changes: `snapshot`, `earliest`, `latest`, or an offset."""
    offsets_per_trigger_max: int | None = None
    app: str | None = None
    version: int | None = None


def names_table(given: Mapping[str, str]) -> bool:
    """Whether it is about a table, and not about topics."""
    return any(name.lower() == "table" for name in given)


def parse_table_options(given: Mapping[str, str], *, writes: bool) -> TableOptions:
    """Raises WrongOption."""
    _no_table_of_spark(given)
    options = _known(given, (*TABLE_WRITE_NAMES, *OF_SPARK) if writes else TABLE_NAMES)
    group, slash, table = options.get("table", "").partition("/")
    if not (group and slash and table) or "/" in table:
        raise WrongOption(
            f"option 'table': {options.get('table')!r} is not GROUP/TABLE, for example bank/accounts"
        )
    app, version = _version(options)
    starting: str | int = options.get("startingOffsets", "").lower() or SNAPSHOT_NAME
    if isinstance(starting, str) and (offset := _number(starting)) is not None:
        starting = offset
    if isinstance(starting, str) and starting not in (SNAPSHOT_NAME, EARLIEST_NAME, LATEST_NAME):
        raise WrongOption(
            f"option 'startingOffsets': {starting!r} is not {SNAPSHOT_NAME}, {EARLIEST_NAME}, {LATEST_NAME}, or "
            f"one offset: a group of tables has one log"
        )
    return TableOptions(
        bootstrap=_bootstrap(options),
        group=group,
        table=table,
        timeout_s=_seconds(options, "timeoutSeconds", usually=TIMEOUT_S),
        security=_security(options),
        changes=_truth(options, "readChangeFeed", usually=False),
        starting=starting,
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger"),
        app=app,
        version=version,
    )


def _no_table_of_spark(given: Mapping[str, str]) -> None:
    """Spark 4.3 keeps no options for the tables of a Python source: one could be made, and never be read."""
    if OF_A_TABLE in given:
        raise WrongOption('format("quorate") cannot be a table; use CREATE TEMPORARY VIEW … USING quorate')


def _version(options: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Who writes, and its how-many-eth write this is; or neither."""
    app, version = options.get("txnAppId") or None, options.get("txnVersion") or None
    if (app is None) != (version is None):
        raise WrongOption("options 'txnAppId' and 'txnVersion' belong together; give both or none")
    number = None if version is None else _number(version)
    if version is not None and (number is None or number >= 1 << 62):
        raise WrongOption(f"option 'txnVersion': {version!r} is not a whole number from 0 on")
    return app, number


def _known(
    given: Mapping[str, str], names: tuple[str, ...], of_kafka: tuple[str, ...] = ()
) -> dict[str, str]:
    """What was given, under the names as they are written here."""
    known = {name.lower(): name for name in (*names, *of_kafka)}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            raise _unknown(name, [each for each in names if each not in OF_SPARK], of_kafka)
        options[known[name.lower()]] = str(value).strip()
    return options


def _unknown(name: str, names: list[str], of_kafka: tuple[str, ...]) -> WrongOption:
    every = {known.lower(): known for known in (*names, *of_kafka)}
    close = get_close_matches(name.lower(), list(every), n=1, cutoff=0.6)
    if close:
        meant = every[close[0]]
        return WrongOption(f'format("quorate") has no option {name!r}; did you mean {meant!r}?')
    return WrongOption(f'format("quorate") has no option {name!r} here; it has: {", ".join(names)}')


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


def _group(options: Mapping[str, str]) -> str:
    one, other = options.get("groupId", ""), options.get("kafka.group.id", "")
    if one and other and one != other:
        raise WrongOption("options 'groupId' and 'kafka.group.id' say different things; give one of them")
    return one or other


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in ("subscribe", "topic", "subscribePattern", "assign") if options.get(name)]
    if len(given) > 1 and (set(given) != {"subscribe", "topic"} or options["subscribe"] != options["topic"]):
        raise WrongOption(f"options {given[0]!r} and {given[1]!r} both say what is read; give one of them")
    if not given:
        raise WrongOption(
            "option 'subscribe' is missing; give it, for example events, or several with commas between "
            "(or 'subscribePattern', or 'assign')"
        )
    text = options[given[0]]
    if given[0] == "assign":
        return Selection(partitions=_assigned(text))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise WrongOption(f"option 'subscribePattern': {text!r} is no pattern: {error}") from None
        return Selection(pattern=text)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise WrongOption(f"option 'subscribe': {text!r} names no topic")
    return Selection(topics=names)


def _assigned(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    wrong = WrongOption(f"option 'assign': {text!r} does not name partitions as {{\"events\": [0, 1]}} does")
    read = _json_object(text, wrong)
    for numbers in read.values():
        if not isinstance(numbers, list) or not numbers:
            raise wrong
        if not all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
            raise wrong
    return tuple((topic, tuple(sorted(set(numbers)))) for topic, numbers in sorted(read.items()))


def _where(options: Mapping[str, str], which: str) -> Where | None:
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    given = [name for name in names if options.get(name)]
    if len(given) > 1:
        raise WrongOption(f"options {given[0]!r} and {given[1]!r} exclude each other; give one of them")
    if not given:
        return None
    (name,), text = given, options[given[0]]
    if name == names[1]:
        if (time := _number(text)) is None:
            raise WrongOption(f"option {name!r}: {text!r} is no time in milliseconds since 1970")
        return time
    if name == names[2]:
        example = '{"events": {"0": 1700000000000}}'
        wrong = WrongOption(
            f"option {name!r}: {text!r} does not give times in milliseconds as {example} does"
        )
        return Times(_by_partition(text, wrong, least=0))
    if text.lower() in (EARLIEST_NAME, LATEST_NAME):
        return text.lower()
    example = '{"events": {"0": 23, "1": -2}}'
    wrong = WrongOption(f"option {name!r}: {text!r} is not earliest, latest, or offsets such as {example}")
    return _by_partition(text, wrong, least=-2)


def _by_partition(text: str, wrong: WrongOption, *, least: int) -> Positions:
    """Topic → partition → a number, as it stands in JSON; raises `wrong` for anything else."""
    found: Positions = {}
    for topic, partitions in _json_object(text, wrong).items():
        if not isinstance(partitions, dict) or not partitions:
            raise wrong
        for number, given in partitions.items():
            partition = _number(number)
            if partition is None or partition >= 1 << 31:
                raise wrong
            if type(given) is not int or not least <= given < 1 << 63:
                raise wrong
            found.setdefault(topic, {})[partition] = given
    return found


def _json_object(text: str, wrong: WrongOption) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(read, dict) or not read:
        raise wrong
    return read


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if not (count := _number(text)):
        raise WrongOption(f"option {name!r}: {text!r} is not a whole number from 1 on")
    return count


def _number(text: str) -> int | None:
    """None: it is no whole number from 0 on, or more than 64 bits hold."""
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
        return None
    return number if (number := int(text)) < 1 << 63 else None


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


def _duration(options: Mapping[str, str], name: str, *, usually: float) -> float:
    """`15m`, `500 ms`, `1h`; a number alone is of milliseconds, as Spark has it."""
    text = options.get(name, "").lower()
    if not text:
        return usually
    found = _DURATION.fullmatch(text)
    if found is None or (found[2] or "ms") not in UNITS_S:
        raise WrongOption(f"option {name!r}: {options[name]!r} is no time such as 15m, 30s or 500ms")
    return int(found[1]) * UNITS_S[found[2] or "ms"]


def _transaction_timeout(options: Mapping[str, str]) -> float:
    name = "transactionTimeout"
    seconds = _duration(options, name, usually=TRANSACTION_S)
    if not 0 < seconds <= TRANSACTION_MAX_S:
        raise WrongOption(f"option {name!r}: {options[name]!r} is not a time above 0, of a day at most")
    return seconds


def _truth(options: Mapping[str, str], name: str, *, usually: bool) -> bool:
    text = options.get(name, "").lower()
    if text in ("true", "false"):
        return text == "true"
    if text:
        raise WrongOption(f"option {name!r}: {options[name]!r} is neither true nor false")
    return usually


def _values(options: Mapping[str, str], columns: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """How values are read, their schema, and the columns that rows have then."""
    form = options.get("valueFormat", "").lower() or VALUE_FORMATS[0]
    if form not in VALUE_FORMATS:
        raise WrongOption(f"option 'valueFormat': {form!r} is unknown; there is: {', '.join(VALUE_FORMATS)}")
    schema, bad = options.get("valueSchema", ""), options.get("badRecords", "").lower()
    if bad not in ("", "error", "column"):
        raise WrongOption(f"option 'badRecords': {options['badRecords']!r} is neither error nor column")
    if form == VALUE_FORMATS[0]:
        if schema or bad:
            raise WrongOption(
                "options 'valueSchema' and 'badRecords' say nothing without 'valueFormat' json or arrow"
            )
        return form, "", columns
    if not schema:
        raise WrongOption(
            f"option 'valueFormat' {form} needs 'valueSchema', such as: user string, amount double"
        )
    if "value" not in columns:
        raise WrongOption(
            f"option 'valueFormat' {form}: the option 'columns' leaves the value out; change one"
        )
    return form, schema, (*columns, "badValue") if bad == "column" else columns


def _security(options: Mapping[str, str]) -> Security | None:
    protocol = options.get("kafka.security.protocol", "") or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise WrongOption(
            f"option 'kafka.security.protocol': {protocol!r} is unknown; there is: {', '.join(PROTOCOLS)}"
        )
    has_tls, has_password = protocol.endswith("SSL"), protocol.startswith("SASL")
    means = {"security": True, "ssl": has_tls, "sasl": has_password}
    for name in SECURITY:
        if options.get(name) and not means[name.split(".")[1]]:
            raise WrongOption(
                f"option {name!r} says nothing with 'kafka.security.protocol' {protocol}; change one"
            )
    try:
        said = kafka_options.as_librdkafka(options)
    except ValueError as error:
        raise WrongOption(str(error)) from None
    given = {field: said[name] for name, field in SECURITY.items() if field and said.get(name)}
    if has_password and not given.keys() >= {"user", "password"}:
        raise WrongOption(
            f"{protocol} needs the options 'kafka.sasl.username' and 'kafka.sasl.password', or "
            f"{kafka_options.JAAS!r}"
        )
    try:
        return Security(tls=has_tls, **given) if has_tls or has_password else None
    except ValueError as error:
        raise WrongOption(f"options 'kafka.ssl.*' and 'kafka.sasl.*': {error}") from None


def _lake(options: Mapping[str, str]) -> str:
    if not _truth(options, "tiered", usually=False):
        if options.get("lake") and not options.get("tiered"):
            # What is in the lake alone would be missing, and nobody would see it.
            raise WrongOption("option 'lake' says nothing without 'tiered'; set that to true, or to false")
        return ""
    if not options.get("lake"):
        raise WrongOption(
            "option 'tiered' needs 'lake', the place that `quorate tier --lake` keeps topics in"
        )
    return options["lake"]


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
