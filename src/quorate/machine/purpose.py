"""What a topic's log is for: its setting `quorate.kind` says so, and that decides what is built from it.

Users make topics of records and groups of tables. The cluster makes topics of its own, *homes*, in which it keeps
what must not be forgotten of consumer groups and of transactions: one for each kind, made when it is first needed.
Nobody writes to a home but the node that leads the partition in which a group, or a transaction, lives.
"""

from __future__ import annotations

from collections.abc import Mapping

KIND = "quorate.kind"
"""The setting."""
RECORDS, TABLES, GROUPS, TRANSACTIONS = "records", "tables", "groups", "transactions"
"""What it can say. Where nobody has given it, it is records."""

HOMES: dict[str, str] = {GROUPS: "__consumer_offsets", TRANSACTIONS: "__transaction_state"}
"""The names of homes: those that Kafka gave them, so that tools know them for what they are."""

TOPIC = "topic"
"""The purpose of a log of records; all others are called as their kind is."""


def purpose_of(config: Mapping[str, str]) -> str:
    kind = config.get(KIND, RECORDS)
    return TOPIC if kind == RECORDS else kind
