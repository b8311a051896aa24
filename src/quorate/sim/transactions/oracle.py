"""What readers of committed records see in the end, against what clients were told.

| invariant | |
| --- | --- |
| `lost` | what was answered as committed is seen |
| `duplicate` | nothing is seen twice |
| `aborted-read` | nothing is seen that was aborted, given up, or never listed |
| `torn` | of a transaction all is seen, or nothing |
| `decided-twice` | under (app, number) one commit is seen, and it is the one that was answered |
| `stable-stuck` | once faults end, every transaction ends: readers get to the end of every log |
| `reader-order` | whoever reads while it happens sees the same, in the same order |
"""

from __future__ import annotations

from collections import Counter

from quorate.batch import decode_records
from quorate.core.invariant import Violated
from quorate.sim.transactions.clients import Book
from quorate.sim.transactions.logs import Entry, Log, filtered
from quorate.sim.transactions.serving import Cluster
from quorate.sim.transactions.world import World


def values_of(entries: list[Entry]) -> list[bytes]:
    return [record.value or b"" for entry in entries for record in decode_records(entry.payload)]


class Reader:
    """Reads one partition as it grows, wherever somebody believes to lead."""

    def __init__(self, world: World, log: Log) -> None:
        self.world = world
        self.log = log
        self.at = 0
        self.seen: list[bytes] = []
        self.reads = 0
        self._read()

    def _read(self) -> None:
        self.world.after(self.world.rng.expovariate(1 / 0.5), self._read)
        leaders = [
            node
            for node, replica in self.log.replicas.items()
            if replica.believes and self.world.up[node] and replica.end >= self.at
        ]
        if leaders:
            self.read_at(self.world.rng.choice(leaders))

    def read_at(self, node: int) -> None:
        entries, aborted, self.at = self.log.committed(node, self.at)
        self.seen += values_of(filtered(entries, aborted))
        self.reads += 1


def judge(cluster: Cluster, book: Book, readers: list[Reader]) -> None:
    """Raises Violated."""
    seen: dict[int, list[bytes]] = {}
    for log in cluster.topics:
        node = log.leader
        log.replicas[node].catch_up()
        entries, aborted, end = log.committed(node, 0)
        if end != log.end:
            raise Violated("stable-stuck", f"p{log.number} is stable up to {end} only, and ends at {log.end}")
        seen[log.number] = values_of(filtered(entries, aborted))
    for reader in readers:
        reader.read_at(reader.log.leader)
        if reader.seen != seen[reader.log.number]:
            raise Violated("reader-order", f"p{reader.log.number} was read as something else than it is")
    _check_values(seen, book)
    _check_plain(seen, book)
    _check_joint(seen, book)


def _check_values(seen: dict[int, list[bytes]], book: Book) -> None:
    counts = Counter(value for values in seen.values() for value in values)
    twice = sorted(value for value, count in counts.items() if count > 1)
    if twice:
        raise Violated("duplicate", f"{twice[0].decode()} is seen {counts[twice[0]]} times")
    never = sorted(book.never & counts.keys())
    if never:
        raise Violated("aborted-read", f"{never[0].decode()} is seen, and no commit has listed it")


def _check_plain(seen: dict[int, list[bytes]], book: Book) -> None:
    for mine in book.plain:
        found = {number: [each for each in values if each in mine.sent] for number, values in seen.items()}
        found = {number: values for number, values in found.items() if values}
        whole = {number: values for number, values in mine.acked.items() if values}
        if mine.outcome == "committed" and found != whole:
            kind = "torn" if found else "lost"
            raise Violated(kind, f"{mine.name} was committed, and {found} is seen of {whole}")
        if mine.outcome in ("aborted", "open") and found:
            raise Violated("aborted-read", f"{mine.name} was never committed, and {found} is seen")
        if mine.outcome == "unknown" and found and found != whole:
            raise Violated("torn", f"of {mine.name}, {found} is seen of {whole}")


def _check_joint(seen: dict[int, list[bytes]], book: Book) -> None:
    for app, number in sorted({(each.app, each.number) for each in book.joint}):
        asked = [each for each in book.joint if (each.app, each.number) == (app, number)]
        found = []
        for each in asked:
            wanted = {value for values in each.listed.values() for value in values}
            there = {value for values in seen.values() for value in values if value in wanted}
            if there and there != wanted:
                raise Violated(
                    "torn", f"{app} {number}: {len(there)} of {len(wanted)} listed records are seen"
                )
            if there:
                found.append(each)
            elif each.outcome == "committed" and wanted:
                raise Violated("lost", f"{app} {number} was committed, and nothing of it is seen")
            if there and each.outcome == "failed":
                raise Violated("aborted-read", f"{app} {number} failed, and is seen")
        if len(found) > 1:
            raise Violated("decided-twice", f"{app} {number}: {len(found)} commits are seen")
        if not found and any(each.outcome == "already in" and each.listed for each in asked):
            raise Violated("lost", f"{app} {number} was answered as already in, and nothing of it is seen")
