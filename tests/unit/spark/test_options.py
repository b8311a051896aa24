"""The options of format("quorate"): what they mean, and what a wrong one is told."""

from __future__ import annotations

import pytest

from quorate.client.records import COLUMN_NAMES
from quorate.client.security import Security
from quorate.spark.options import (
    Selection,
    Times,
    WrongOption,
    parse_options,
    parse_table_options,
    parse_write_options,
)

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "events"}
PASSWORD = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.username": "ann",
    "kafka.sasl.password": "correct horse",
}


def test_the_least_that_is_needed() -> None:
    options = parse_options(LEAST)
    assert options.bootstrap == "localhost:9092"
    assert options.selection.topics == ("events",)
    assert options.starting is None
    assert options.ending == "latest"
    assert options.offsets_per_trigger_max is None
    assert options.fail_on_data_loss
    assert options.columns == tuple(name for name in COLUMN_NAMES if name != "headers")
    assert options.timeout_s == 60.0


def test_short_names_and_any_case() -> None:
    options = parse_options({"BOOTSTRAP": "a:1,b:2", "topic": "x, y", "maxoffsetspertrigger": "10"})
    assert options.bootstrap == "a:1,b:2"
    assert options.selection.topics == ("x", "y")
    assert options.offsets_per_trigger_max == 10


def test_offsets_are_names_json_or_times() -> None:
    assert parse_options(LEAST | {"startingOffsets": "Earliest"}).starting == "earliest"
    assert parse_options(LEAST | {"startingOffsets": '{"events": {"0": 5, "1": -2}}'}).starting == {
        "events": {0: 5, 1: -2}
    }
    assert parse_options(LEAST | {"startingTimestamp": "1700000000000"}).starting == 1_700_000_000_000
    assert parse_options(LEAST | {"endingTimestamp": "0"}).ending == 0


def test_partitions_are_named_matched_or_assigned() -> None:
    bootstrap = {"bootstrap": "localhost:9092"}
    assert parse_options(bootstrap | {"subscribePattern": "ev.*"}).selection == Selection(pattern="ev.*")
    assigned = parse_options(bootstrap | {"assign": '{"b": [1, 0], "a": [2, 2]}'}).selection
    assert assigned == Selection(partitions=(("a", (2,)), ("b", (0, 1))))


def test_times_for_partitions_are_not_taken_for_offsets() -> None:
    starting = parse_options(LEAST | {"startingOffsetsByTimestamp": '{"events": {"0": 5}}'}).starting
    assert isinstance(starting, Times)
    assert starting == {"events": {0: 5}}


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("500 ms", 0.5), ("250", 0.25), ("2h", 7200), ("30s", 30)]
)
def test_a_delay_is_written_as_spark_writes_it(text: str, seconds: float) -> None:
    assert parse_options(LEAST | {"maxTriggerDelay": text}).trigger_delay_max_s == seconds


def test_columns_are_kept_in_the_order_asked_for() -> None:
    assert parse_options(LEAST | {"columns": "offset, key"}).columns == ("offset", "key")
    assert parse_options(LEAST | {"includeHeaders": "true"}).columns == COLUMN_NAMES


OF_A_KAFKA_SOURCE = LEAST | {
    "kafka.isolation.level": "read_committed",
    "kafka.client.id": "totals",
    "groupIdPrefix": "spark-totals",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "kafka.max.poll.records": "5000",
    "kafka.fetch.max.bytes": "1048576",
    "startingOffsetsByTimestamp": '{"events": {"0": 5}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "maxOffsetsPerTrigger": "100000",
    "failOnDataLoss": "false",
}
OF_A_KAFKA_SINK = {
    "kafka.bootstrap.servers": "localhost:9092",
    "topic": "totals",
    "checkpointLocation": "checkpoints/totals",
    "kafka.acks": "all",
    "kafka.linger.ms": "5",
    "kafka.batch.size": "65536",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "zstd",
    "includeHeaders": "true",
}


def test_a_query_of_kafka_moves_by_changing_one_word() -> None:
    bare = {name: OF_A_KAFKA_SOURCE[name] for name in ("startingOffsetsByTimestamp", "maxOffsetsPerTrigger")}
    assert parse_options(OF_A_KAFKA_SOURCE) == parse_options(LEAST | bare | {"failOnDataLoss": "false"})
    needed = ("kafka.bootstrap.servers", "topic", "kafka.compression.type")
    assert parse_write_options(OF_A_KAFKA_SINK) == parse_write_options(
        {name: OF_A_KAFKA_SINK[name] for name in needed}
    )


def test_what_kafka_has_for_reading_is_not_taken_for_writing() -> None:
    with pytest.raises(WrongOption, match=r"no option 'kafka.max.poll.records'"):
        parse_write_options(OF_A_KAFKA_SINK | {"kafka.max.poll.records": "1"})
    with pytest.raises(WrongOption, match=r"no option 'kafka.ack'; did you mean 'kafka.acks'"):
        parse_write_options(OF_A_KAFKA_SINK | {"kafka.ack": "all"})


def test_security_is_as_librdkafka_calls_it() -> None:
    assert parse_options(LEAST).security is None
    assert parse_options(LEAST | PASSWORD | {"kafka.ssl.ca.location": "ca.pem"}).security == Security(
        tls=True, ca="ca.pem", user="ann", password="correct horse"
    )
    plain = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
    assert parse_options(LEAST | PASSWORD | plain).security == Security(
        user="ann", password="correct horse", mechanism="PLAIN"
    )
    assert parse_options(LEAST | {"kafka.security.protocol": "SSL"}).security == Security(tls=True)
    assert "horse" not in repr(parse_options(LEAST | PASSWORD))


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="ann" password="correct horse";',
}
JAAS = "kafka.sasl.jaas.config"
STORE = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "ca.pem"}


def test_security_may_be_as_java_calls_it() -> None:
    store = {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.truststore.type": "PEM"}
    of_kafka = LOGIN | store | {"kafka.sasl.mechanism": "SCRAM-SHA-512"}
    expected = Security(
        tls=True, ca="ca.pem", user="ann", password="correct horse", mechanism="SCRAM-SHA-512"
    )
    assert parse_options(LEAST | of_kafka).security == expected
    assert parse_write_options(OF_A_KAFKA_SINK | of_kafka).security == expected
    table = {"bootstrap": "localhost:9092", "table": "bank/accounts"}
    assert parse_table_options(table | of_kafka, writes=True).security == expected
    assert "horse" not in repr(parse_options(LEAST | of_kafka))


@pytest.mark.parametrize(
    ("text", "user", "password", "mechanism"),
    [
        (f'{SCRAM_MODULE} required username="ann" password="pw";', "ann", "pw", "SCRAM-SHA-256"),
        (f'{PLAIN_MODULE} required\n  username="ann"\n  password="pw";\n', "ann", "pw", "PLAIN"),
        (f"kafkashaded.{PLAIN_MODULE} Sufficient password = 'p\"w' username=ann ;", "ann", 'p"w', "PLAIN"),
        (rf'{PLAIN_MODULE} required username="a\"n" password="\\;=\x\101\n";', 'a"n', "\\;=xA\n", "PLAIN"),
    ],
)
def test_who_logs_in_is_read_as_java_reads_it(text: str, user: str, password: str, mechanism: str) -> None:
    assert parse_options(LEAST | LOGIN | {JAAS: text}).security == Security(
        tls=True, user=user, password=password, mechanism=mechanism
    )


@pytest.mark.parametrize(
    "text",
    [
        "secret",
        f'{PLAIN_MODULE} username="ann" password="secret";',
        f'{PLAIN_MODULE} required username="ann" password="secret"',
        f'{PLAIN_MODULE} required username="ann" password="secret;',
        f'{PLAIN_MODULE} required username="ann"password="secret";',
        f'{PLAIN_MODULE} required username="" password="secret";',
        f'{PLAIN_MODULE} required username="ann" password="secret"; {PLAIN_MODULE} required;',
    ],
)
def test_a_login_that_cannot_be_read_is_said_without_the_password_that_is_in_it(text: str) -> None:
    with pytest.raises(WrongOption, match=r"'kafka.sasl.jaas.config' is not of this form: org\.") as raised:
        parse_options(LEAST | LOGIN | {JAAS: text})
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.bootstrap.servers": ""}, "'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "localhost"}, "'localhost' is no address"),
        ({"bootstrap": "other:1"}, "say different things"),
        ({"subscribe": ""}, "'subscribe' is missing"),
        ({"subscribe": ","}, "names no topic"),
        ({"subscribePattern": "ev.*"}, "'subscribe' and 'subscribePattern' both say what is read"),
        ({"subscribe": "", "subscribePattern": "ev("}, "'ev(' is no pattern"),
        ({"subscribe": "", "assign": '{"events": [true]}'}, "does not name partitions"),
        ({"subscribe": "", "assign": '{"events": []}'}, "does not name partitions"),
        ({"subscribe": "", "assign": "[" * 100_000}, "does not name partitions"),
        ({"startingOffsetsByTimestamp": '{"events": {"0": -1}}'}, "does not give times"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than 'maxOffsetsPerTrigger' 8"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "is behind 'endingTimestamp' 8"),
        ({"maxTriggerDelay": "soon"}, "'soon' is no time such as 15m"),
        ({"maxRecordsPerPartition": "0"}, "not a whole number from 1"),
        ({"kafka.isolation.level": "read_uncommitted"}, "only what is committed is read; leave it out"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "'error' is not done here"),
        ({"kafka.client.ids": "a"}, "did you mean 'kafka.client.id'"),
        ({"kafka.acks": "all"}, "no option 'kafka.acks'"),
        ({"kafka.auto.offset.reset": "latest"}, "no option 'kafka.auto.offset.reset'"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.security.protocl": "SSL"}, "did you mean 'kafka.security.protocol'"),
        ({"kafka.security.protocol": "TLS"}, "'TLS' is unknown; there is: PLAINTEXT, SSL,"),
        (
            {"kafka.sasl.username": "ann"},
            "'kafka.sasl.username' says nothing with 'kafka.security.protocol' PLAINTEXT",
        ),
        ({"kafka.ssl.ca.location": "x"}, "'kafka.ssl.ca.location' says nothing with"),
        (PASSWORD | {"kafka.sasl.password": ""}, "SASL_SSL needs the options 'kafka.sasl.username'"),
        (PASSWORD | {"kafka.sasl.mechanism": "GSSAPI"}, "mechanism 'GSSAPI' is unknown"),
        (PASSWORD | {"kafka.ssl.key.location": "k"}, "a certificate and its key belong together"),
        (LOGIN | {"kafka.security.protocol": "SSL"}, "'kafka.sasl.jaas.config' says nothing with"),
        (
            LOGIN | {JAAS: "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"},
            "com.sun.security.auth.module.Krb5LoginModule is not done here; there is: org.apache.kafka.common.",
        ),
        (
            LOGIN | {JAAS: f'{SCRAM_MODULE} required username="a" password="b" tokenauth="true";'},
            "'tokenauth' is not done here, only 'username' and 'password'",
        ),
        (
            LOGIN | {"kafka.sasl.mechanism": "PLAIN"},
            "ScramLoginModule is not for 'kafka.sasl.mechanism' PLAIN",
        ),
        (LOGIN | {"kafka.sasl.username": "bob"}, "'kafka.sasl.username' say the same; give one of them"),
        (STORE, "only Java reads stores of type JKS; write its certificates to a file in PEM format"),
        (STORE | {"kafka.ssl.truststore.type": "PKCS12"}, "stores of type PKCS12"),
        (
            STORE | {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.password": "changeit"},
            "'kafka.ssl.truststore.password': a file in PEM format has none; leave it out",
        ),
        (STORE | {"kafka.ssl.ca.location": "x"}, "'kafka.ssl.ca.location' say the same; give one of them"),
        ({"kafka.ssl.truststore.location": "x"}, "'kafka.ssl.truststore.location' says nothing with"),
        ({"startingOffsets": "first"}, "'first' is not earliest, latest, or offsets"),
        ({"startingOffsets": '{"events": 5}'}, "is not earliest"),
        ({"startingOffsets": '{"events": {"0": -3}}'}, "is not earliest"),
        ({"startingOffsets": '{"events": {"x": 3}}'}, "is not earliest"),
        ({"startingOffsets": '{"events": {"0": true}}'}, "is not earliest"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "exclude each other"),
        ({"endingTimestamp": "yesterday"}, "no time in milliseconds"),
        ({"maxOffsetsPerTrigger": "0"}, "not a whole number from 1"),
        ({"minPartitions": "1.5"}, "not a whole number from 1"),
        ({"failOnDataLoss": "yes"}, "neither true nor false"),
        ({"timeoutSeconds": "-1"}, "not a number of seconds"),
        ({"timeoutSeconds": "nan"}, "not a number of seconds"),
        ({"valueFormat": "avro"}, "'avro' is unknown; there is: raw, json, arrow"),
        ({"valueFormat": "json"}, "needs 'valueSchema'"),
        ({"valueSchema": "a int"}, "say nothing without 'valueFormat'"),
        ({"valueFormat": "json", "valueSchema": "a int", "badRecords": "drop"}, "neither error nor column"),
        ({"valueFormat": "json", "valueSchema": "a int", "columns": "key"}, "leaves the value out"),
        ({"groupId": "a", "kafka.group.id": "b"}, "say different things"),
        ({"columns": "kye"}, "no column 'kye'"),
        ({"maxOffsetsPerTrigger": "9" * 5000}, "not a whole number from 1"),
        ({"maxOffsetsPerTrigger": str(1 << 63)}, "not a whole number from 1"),
        ({"startingTimestamp": "9" * 5000}, "no time in milliseconds"),
        ({"startingOffsets": f'{{"events": {{"{"9" * 5000}": 1}}}}'}, "is not earliest"),
        ({"maxTriggerDelay": "9" * 5000}, "is no time such as 15m"),
        ({"subscribe": "", "subscribePattern": "(" * 100_000}, "is no pattern"),
        ({"lake": "lake/"}, "'lake' says nothing without 'tiered'"),
        ({"columns": ","}, "names no column"),
        ({"provider": "quorate"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(WrongOption) as raised:
        parse_options(LEAST | given)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_lake_may_be_switched_off() -> None:
    assert parse_options(LEAST | {"tiered": "false", "lake": "lake/"}).lake == ""
    assert parse_options(LEAST | {"tiered": "true", "lake": "lake/"}).lake == "lake/"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"transactionTimeout": "0"}, "is not a time above 0, of a day at most"),
        ({"transactionTimeout": "25h"}, "is not a time above 0, of a day at most"),
        ({"txnAppId": "a", "txnVersion": "9" * 5000}, "not a whole number from 0"),
    ],
)
def test_what_is_wrong_in_writing_is_said_before_a_task_begins(given: dict[str, str], said: str) -> None:
    with pytest.raises(WrongOption, match=said):
        parse_write_options({"bootstrap": "localhost:9092", "topic": "events", **given})


def test_a_table_of_spark_is_refused_of_tables_as_of_topics() -> None:
    given = {"bootstrap": "localhost:9092", "table": "bank/accounts", "option.table": "bank/accounts"}
    with pytest.raises(WrongOption, match="CREATE TEMPORARY VIEW"):
        parse_table_options({**given, "provider": "quorate"}, writes=False)


@pytest.mark.parametrize("offset", ["9" * 5000, str(1 << 63)])
def test_changes_of_a_table_begin_at_an_offset_that_there_can_be(offset: str) -> None:
    given = {"bootstrap": "localhost:9092", "table": "bank/accounts", "startingOffsets": offset}
    with pytest.raises(WrongOption, match="or one offset"):
        parse_table_options(given, writes=False)
