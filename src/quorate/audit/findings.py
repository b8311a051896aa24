"""What can be wrong with the copies of a log: each kind has a name, a meaning, and something to do about it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Kind(NamedTuple):
    means: str
    do: str


REPAIRED = "nothing while its peers are whole: the node asks them when it reads there, or scrubs"
KINDS: dict[str, Kind] = {
    "store": Kind(
        "nothing can be proven about what this directory holds",
        "restore it from a backup, or wipe it and let the node come back with `quorate format --replaces`",
    ),
    "journal": Kind(
        "bytes of the journal, or of its second place, are not what was written; nothing was lost with them",
        "look at the disk; the node writes a new generation when it is started",
    ),
    "lost": Kind(
        "entries were flushed, and neither the journal nor a segment has them any more",
        "start the node: it asks its peers for them, and does not count for them until then",
    ),
    "state": Kind(
        "a replica's saved vote or role cannot be read in either place",
        "start the node: the replica comes back as another incarnation, which is told everything anew",
    ),
    "known": Kind("damage that the node knows of and has not repaired yet", "let it run among its peers"),
    "missing": Kind("a segment's file is gone", REPAIRED),
    "short": Kind("a segment's file ends before the entries that it held", REPAIRED),
    "frame": Kind("the header of an entry does not match its checksum", REPAIRED),
    "payload": Kind("the records of an entry do not match their checksum", REPAIRED),
    "chain": Kind(
        "an intact entry does not fit the one before it: one of them is stale, or in the wrong place",
        REPAIRED,
    ),
    "gap": Kind("entries are missing between two that are intact", REPAIRED),
    "epochs": Kind(
        "an entry is of an older epoch than the one before it", "report it: no leader writes that"
    ),
    "footer": Kind(
        "the index at the end of a sealed segment is damaged",
        "nothing: it is made anew by reading the segment",
    ),
    "snapshot": Kind(
        "a snapshot is not what was written", "nothing: the node takes a new one, or asks a peer"
    ),
    "stranger": Kind(
        "files of a partition that the node's journal does not know",
        "move them away; the node never touches them",
    ),
    "differs": Kind(
        "settled entries are not what the other copies have there",
        "stop the node that stands alone, keep its directory for a report, and let it join anew",
    ),
    "value": Kind(
        "two copies hold different entries of one epoch at one offset: two leaders, or a broken one",
        "keep all directories and report it: this must never be",
    ),
    "duplicate": Kind(
        "a producer's batch stands in the log twice", "report it; readers may drop the second by its sequence"
    ),
    "sequence": Kind(
        "a producer's batches do not follow each other: something of it is missing, or out of order",
        "report it",
    ),
    "marker": Kind(
        "the end of a transaction stands in a partition twice",
        "report it; readers go by the first, and lose nothing",
    ),
    "decided": Kind(
        "a transaction is committed here and aborted there: partitions, or one and its coordinator, do not agree",
        "keep all directories and report it: readers of committed records see a part of a transaction",
    ),
    "table": Kind(
        "a state built from the log is not the one that another copy, or a snapshot, has at the same offset",
        "wipe the copy that stands alone and let it join anew; keep its directory for a report",
    ),
}
"""In the order in which they are told."""


class Finding(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One stretch of one replica's log, or one file of it. `replica` is empty where it is about all copies."""

    replica: str
    partition: str
    kind: str
    first: int = -1
    last: int = -1
    detail: str = ""

    def goes_on_with(self, other: Finding) -> bool:
        """Whether the other one is the same, right behind it."""
        same = (self.replica, self.partition, self.kind) == (other.replica, other.partition, other.kind)
        return same and self.last + 1 == other.first

    @property
    def offsets(self) -> str:
        if self.first < 0:
            return ""
        return str(self.first) if self.first >= self.last else f"{self.first}–{self.last}"
