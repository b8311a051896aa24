"""Options of Kafka that mean nothing here: those that the documentation names are those that are taken."""

from __future__ import annotations

import re
from pathlib import Path

from quorate.spark.kafka_options import READING, WRITING

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_the_documentation_names_exactly_what_is_taken() -> None:
    text = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    lines = text.split("| options of Kafka | why |")[1].split("\n\n")[0].splitlines()[2:]
    reading, writing = set[str](), set[str]()
    for line in lines:
        for part in line.split("|")[1].split("; "):
            names = set(re.findall(r"`([^`]+)`", part))
            if "writing:" not in line:
                reading |= names
            if "reading:" not in part:
                writing |= names
    assert reading == set(READING)
    assert writing == set(WRITING)
