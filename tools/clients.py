"""Run every Kafka client against topics of every protocol, and write docs/CLIENTS.md from what became of it.

python tools/clients.py            run all (some minutes), and write the page
python tools/clients.py raft       only these protocols; of the others the page says "not yet run"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "CLIENTS.md"
TESTS = "tests/cluster/test_client_matrix.py"
CLIENTS = (
    "confluent-kafka",
    "aiokafka",
    "kafka-python",
    "kcat",
    "kafkajs",
    "Kafka's own tools (Java)",
    'Spark\'s format("kafka")',
)
REPLICATIONS = ("raft", "coordinated", "isr", "confirm")
NOT_YET = "not yet run"
TOP = """\
# Kafka clients that were tried

Written by `tools/clients.py`, which runs `{tests}` against three real processes. Each client writes fifty
records with keys and a header into a topic of three copies, by its own means and its own compression, and reads
them again; once where records have their producer's time, and once where they have the time at which they were
taken. What was not run says so.

| client | version | {heads} |
| --- | --- |{lines}
"""
END = """
aiokafka, confluent-kafka and kafka-python read by assignment; kafkajs as a member of a group, which is the only
way it has. Kafka's own tools are its console producer and consumer. Spark's `format("kafka")` is its own
connector, not ours: the batch sink writes, the streaming source reads.

More of confluent-kafka, aiokafka, kafka-python and kcat is in `tests/cluster/test_kafka_clients.py`: every
compression, offsets by time, settings, more partitions, a killed leader. Kafka's tools for topics, offsets,
disks and the quorum run in `{tests}`, too.
"""


def main(replications: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"
        chosen = " or ".join(replications)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", TESTS, *(["-k", chosen] if chosen else [])]
        ended = subprocess.run(
            command, cwd=HOME, env=os.environ | {"QUORATE_CLIENTS_REPORT": str(report)}, check=False
        )
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    PAGE.write_text(page([tuple(json.loads(line)) for line in lines]), encoding="utf-8")
    return ended.returncode


def page(notes: list[tuple[str, ...]]) -> str:
    """The last note of each client and protocol counts."""
    versions = {client: version for client, version, _, _ in notes if version}
    became = {(client, replication): what for client, _, replication, what in notes}
    rows = [
        "| "
        + " | ".join(
            (
                client,
                versions.get(client, "–"),
                *(became.get((client, replication), NOT_YET) for replication in REPLICATIONS),
            )
        )
        + " |\n"
        for client in CLIENTS
    ]
    heads = " | ".join(f"`{replication}`" for replication in REPLICATIONS)
    top = TOP.format(tests=TESTS, heads=heads, lines=" --- |" * len(REPLICATIONS))
    return top + "".join(rows) + END.format(tests=TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
