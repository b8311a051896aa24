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
TESTS = ("tests/cluster/test_client_matrix.py", "tests/cluster/test_transactions.py")
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
TRIED = {
    "records": """\
## Records

Each client writes fifty records with keys and a header into a topic of three copies, by its own means and its
own compression, and reads them again; once where records have their producer's time, and once where they have the
time at which they were taken.
""",
    "compacted": """\
## Compacted topics

The same fifty records, of five keys, into a topic with `cleanup.policy=compact`. When it is compacted, the client
reads the newest record of each key, in order, and nothing older. A record without a key is refused.
""",
    "transactions": """\
## Transactions

Six transactions over two partitions, two of them aborted: a reader of what is committed sees the others whole and
in order. kcat has one transaction, which it commits. Of Kafka's own tools one has a producer that commits
(`ProducerPerformance`): it runs with those that look at transactions. Spark's connector has none.
""",
}
WITHOUT = {"transactions": ("Kafka's own tools (Java)", 'Spark\'s format("kafka")')}
"""Who is not in which table."""
TOP = """\
# Kafka clients that were tried

Written by `tools/clients.py`, which runs `{0}` and
`{1}` against three real processes. What was not run says so.
"""
TABLE = """
| client | version | {heads} |
| --- | --- |{lines}
"""
END = """
aiokafka, confluent-kafka and kafka-python read by assignment; kafkajs as a member of a group, which is the only
way it has. Kafka's own tools are its console producer and consumer. Spark's `format("kafka")` is its own
connector, not ours: the batch sink writes one half, the streaming sink the other, and the batch source and the
streaming source both read all of it.

More of confluent-kafka, aiokafka, kafka-python and kcat is in `tests/cluster/test_kafka_clients.py`: every
compression, offsets by time, settings, more partitions, a killed leader. Groups are in
`tests/cluster/test_groups.py`. Kafka's tools for topics, offsets, records, groups, leaders, reassignments,
transactions, disks and the quorum run in `tests/cluster/test_client_matrix.py`, too.
"""


def main(replications: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"
        chosen = " or ".join(replications)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            *TESTS,
            *(["-k", chosen] if chosen else []),
        ]
        ended = subprocess.run(
            command, cwd=HOME, env=os.environ | {"QUORATE_CLIENTS_REPORT": str(report)}, check=False
        )
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    PAGE.write_text(page([tuple(json.loads(line)) for line in lines]), encoding="utf-8")
    return ended.returncode


def page(notes: list[tuple[str, ...]]) -> str:
    """The last note of each client, protocol and trial counts."""
    versions = {client: version for client, version, _, _, _ in notes if version}
    became = {(client, replication, tried): what for client, _, replication, tried, what in notes}
    heads = " | ".join(f"`{replication}`" for replication in REPLICATIONS)
    parts = [TOP.format(*TESTS)]
    for tried, says in TRIED.items():
        parts += ["\n", says, TABLE.format(heads=heads, lines=" --- |" * len(REPLICATIONS))]
        for client in CLIENTS:
            if client not in WITHOUT.get(tried, ()):
                cells = [became.get((client, each, tried), NOT_YET) for each in REPLICATIONS]
                parts.append("| " + " | ".join((client, versions.get(client, "–"), *cells)) + " |\n")
    return "".join(parts) + END


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
