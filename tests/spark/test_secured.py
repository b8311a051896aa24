"""format("quorate") on a cluster with TLS and passwords: reading and writing, in batches and as streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.cluster.secured import SecuredCluster, needs_openssl
from tests.spark.conftest import TIMEOUT_S
from tests.spark.test_batch import numbered
from tests.spark.test_streaming import finish

pytestmark = [pytest.mark.cluster, needs_openssl]

ANN, PASSWORD = "ann", "correct horse"


def test_a_stream_reads_and_writes_with_tls_and_a_password(spark: SparkSession, tmp_path: Path) -> None:
    with SecuredCluster(tmp_path, count=1) as cluster:
        cluster.start()
        command = [sys.executable, "-m", "quorate", "--access", str(cluster.access), "user", "add", ANN]
        subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, timeout=TIMEOUT_S)
        admin = AdminClient(cluster.client_settings(ANN, PASSWORD))
        for made in admin.create_topics([NewTopic(name, 2, 1) for name in ("source", "target")]).values():
            made.result(TIMEOUT_S)
        # As librdkafka calls them, behind a word; and as Spark's Kafka source has them, which are Java's.
        options = {f"kafka.{name}": value for name, value in cluster.client_settings(ANN, PASSWORD).items()}

        rows = spark.createDataFrame([(value,) for value in numbered(100)], "value binary")
        rows.write.format("quorate").options(topic="source", **options).mode("append").save()
        read = {"subscribe": "source", "startingOffsets": "earliest", "columns": "value", **options}
        frame = spark.readStream.format("quorate").options(**read).load()
        writer = frame.writeStream.format("quorate").options(topic="target", **options)
        checkpoint = str(tmp_path / "checkpoint")
        finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())

        of_java = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": cluster.authority.ca,
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ANN}" password="{PASSWORD}";',
        }
        found = spark.read.format("quorate").options(subscribe="target", **of_java).load().collect()
        assert sorted(bytes(row.value) for row in found) == numbered(100)
        wrong = read | {"kafka.sasl.password": "battery staple"}
        with pytest.raises(PySparkException, match="does not let 'ann' in"):
            spark.read.format("quorate").options(**wrong).load().collect()
