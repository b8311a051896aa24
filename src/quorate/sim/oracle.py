"""Knows what was promised to whom: what was proposed, what was acknowledged, and what anybody has ever read.

Every entry that a client proposes is unique, so its bytes say whose it is. A value is *placed* at an offset
by an acknowledgement or by a read of settled entries, and may never be found anywhere else, nor anything else
in its place. The checks:

- acknowledged-lost: where an acknowledged entry stood, another one is found, or nothing;
- placed-twice: one entry at two offsets, though it was accepted once;
- read-changed: one offset with two settled entries;
- order: an entry proposed after another was acknowledged stands below it;
- phantom: an entry that nobody proposed, or that every node refused;
- void-read: an entry that was rolled back (`confirm`);
- read-gap, read-unsettled, read-regressed: a read that skips entries, shows unsettled ones, or whose node
  has forgotten what was settled.

Batches of producers with ids are proposed again and again, until somebody says that they are settled. Of these
every settled entry is seen, also one that nobody reads:

- producer-repeated: one batch is settled twice;
- producer-order: a batch is settled before those that come before it, or behind one of a newer epoch;
- producer-answer: a client hears of an offset that its batch does not have, or that it was settled long ago or
  is fenced, and neither is true.

Readers ask up to where they may read. A partition's log is one object with two operations: `append`, which has
the offset where the entry stands as its result, and `read`, which has the settled end that it saw. A history of
both is linearizable if each operation can be given a moment between its beginning and its answer so that the
results are those of a single log. Order appends by their offsets, and put a read that saw X behind the append
that holds X and before the next one: that is the only order that explains the results, and it is one if X is an
end that the one settled log had. So the history is linearizable exactly if this order contradicts nothing that
anybody could have seen: if one operation was answered before another began, it does not come after it. With two
kinds of operations these are four checks, and it is enough to compare with the highest of all that was answered:

- order (above): an append after an append;
- read-stale: a read after an append, or after another read, that does not see as much;
- read-future: an append after a read that had already seen its place; or a read of what is not settled;
- read-not-applied: the node that answered cannot show, at that moment, what it said may be read.

An append that was never answered may take place at any time after it began, or never; that it does not come
before a read that was answered earlier follows from the reads' ends being settled when they are answered.

A read from a lease is such a read as long as clocks run within the stated bounds; where they do not, it is
checked like a read at an offset: settled, applied, and at least as far as was asked for.

- timestamp-overlap: timestamps of settled entries do not rise with the log, over all leaders (YB-14).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from quorate.batch import HEAD_BYTES, parse_batch_header
from quorate.core.effects import Outcome
from quorate.core.entry import Kind
from quorate.core.events import ReadLevel
from quorate.core.invariant import Violated
from quorate.sim.survival import Survival
from quorate.storage.frame import Frame


class Fate(StrEnum):
    """What a client knows of its proposal."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Numbers(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    epoch: int
    sequence: int
    """Of its first record."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.sequence} of producer {self.producer_id}"


class Proposal(msgspec.Struct):
    """Entries that a client wants to be appended, one after the other, in one go."""

    number: int
    partition: int
    payloads: tuple[bytes, ...]
    counts: tuple[int, ...]
    floor: int
    """The highest acknowledged offset when it was first proposed: it must stand above (order)."""
    fate: Fate = Fate.OPEN
    offset: int = -1
    attempts_open: int = 0
    """Attempts whose outcome nobody knows: each may yet be settled."""
    numbers: Numbers | None = None
    """Of a batch with a producer id: its place among the others."""
    settled_at: int = -1
    """Where the log has it, known for a batch with a producer id."""
    seen: int = -1
    """The highest end that a read had seen when it was first proposed: it must stand above (read-future)."""


class Asked(msgspec.Struct, frozen=True):
    """A read that has begun."""

    partition: int
    level: ReadLevel
    offset: int
    floor: int
    """What it must see: everything that was acknowledged or seen before it began."""

    def __str__(self) -> str:
        at = f" {self.offset}" if self.offset >= 0 else ""
        return f"p{self.partition}: a read ({self.level}{at})"


class Placed(msgspec.Struct, gc=False):
    """An entry that was seen settled."""

    offset: int
    proposal: Proposal
    acknowledged: bool


class Oracle:
    def __init__(self, partitions_count: int) -> None:
        self.acknowledged_count = 0
        self.reads_count = 0
        self.highest = [-1] * partitions_count
        """The highest acknowledged offset of each partition."""
        self.seen = [-1] * partitions_count
        """The highest end that a read of each partition has seen."""
        self.ends_count = 0
        """Reads that were told an end."""
        self.settled_end: Callable[[int], int] = lambda partition: 1 << 62
        """Up to where anybody has settled a partition."""
        self.is_void: Callable[[int, int], bool] = lambda partition, offset: False
        """Whether what is settled there was rolled back: nobody reads that, and a read goes on behind it."""
        self.on_proposed: Callable[[Proposal], None] = lambda proposal: None
        self.on_acknowledged: Callable[[Proposal], None] = lambda proposal: None
        """Told of each proposal once, and once when it is acknowledged."""
        self.survival: Survival | None = None
        """Where logs are compacted: what is to be left of them."""
        self.leases_hold = True
        """Clocks keep within the bounds that leases rely on."""
        self._stamps: list[list[tuple[int, int, int]]] = [[] for _ in range(partitions_count)]
        """Of each partition: (offset, epoch of the leader, timestamp) of what was acknowledged, in order."""
        self._origins: dict[bytes, tuple[Proposal, int]] = {}
        self._placed: list[dict[int, Placed]] = [{} for _ in range(partitions_count)]
        self._offsets: dict[bytes, int] = {}
        self._commits: dict[tuple[int, int, int], int] = {}
        self._numbered: dict[int, Proposal] = {}
        """Batches with a producer id, by their CRC."""
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        """By partition and producer id: the epoch and sequence that the settled log goes on with."""
        self._producer_epochs: dict[tuple[int, int], int] = {}
        """By partition and producer id: the newest epoch that was ever proposed."""

    # --- what clients do ---

    def proposed(
        self, number: int, partition: int, payloads: Sequence[bytes], counts: Sequence[int]
    ) -> Proposal:
        proposal = Proposal(
            number,
            partition,
            tuple(payloads),
            tuple(counts),
            self.highest[partition],
            seen=self.seen[partition],
        )
        for index, payload in enumerate(payloads):
            body = payload[HEAD_BYTES:]
            assert body not in self._origins
            self._origins[body] = (proposal, index)
        self.on_proposed(proposal)
        if self.survival is not None:
            self.survival.proposed(payloads)
        header = parse_batch_header(payloads[0])
        if header.producer_id >= 0:
            assert len(payloads) == 1
            assert header.crc not in self._numbered
            proposal.numbers = Numbers(header.producer_id, header.producer_epoch, header.base_sequence)
            self._numbered[header.crc] = proposal
            self._producer_epochs[partition, header.producer_id] = header.producer_epoch
        return proposal

    def acknowledged(self, proposal: Proposal, offset: int) -> None:
        """A node has told a client that the proposal is settled at `offset`."""
        who = f"p{proposal.partition}: proposal {proposal.number}"
        if proposal.numbers is not None and proposal.settled_at != offset:
            where = f"at {proposal.settled_at}" if proposal.settled_at >= 0 else "nowhere"
            raise Violated(
                "producer-answer",
                f"{who} ({proposal.numbers}) was acknowledged at {offset}, and is settled {where}",
            )
        if offset <= proposal.floor:
            raise Violated(
                "order",
                f"{who} was acknowledged at {offset}, but {proposal.floor} was before it began",
            )
        if offset <= proposal.seen:
            raise Violated(
                "read-future",
                f"{who} was acknowledged at {offset}, and a read had seen {proposal.seen} before it began",
            )
        if proposal.fate is Fate.ACKNOWLEDGED:
            if proposal.offset != offset:
                raise Violated("placed-twice", f"{who} was acknowledged at {proposal.offset} and at {offset}")
            return
        proposal.fate = Fate.ACKNOWLEDGED
        proposal.offset = offset
        self.acknowledged_count += 1
        self.on_acknowledged(proposal)
        for payload, count in zip(proposal.payloads, proposal.counts, strict=True):
            self._place(proposal, payload[HEAD_BYTES:], offset, acknowledged=True)
            offset += count
        if offset - 1 > self.highest[proposal.partition]:
            self.highest[proposal.partition] = offset - 1

    def stamped(self, partition: int, offset: int, epoch: int, timestamp: int) -> None:
        """A leader of `epoch` has given an acknowledged entry a timestamp."""
        stamps = self._stamps[partition]
        stamp = (offset, epoch, timestamp)
        place = bisect_left(stamps, stamp)
        if place < len(stamps) and stamps[place] == stamp:
            return
        insort(stamps, stamp)
        for one, two in pairwise(stamps[max(0, place - 1) : place + 2]):
            if two[2] <= one[2]:
                raise Violated(
                    "timestamp-overlap",
                    f"p{partition}: {one[2]} was given to {one[1]}-{one[0]}, and {two[2]} to {two[1]}-{two[0]}",
                )

    def refused(self, proposal: Proposal, outcome: Outcome) -> None:
        """A node has told a producer that it does not append this, and why."""
        numbers = proposal.numbers
        assert numbers is not None
        newest = self._producer_epochs[proposal.partition, numbers.producer_id]
        untrue = (outcome is Outcome.DUPLICATE and proposal.settled_at < 0) or (
            outcome is Outcome.FENCED and numbers.epoch == newest
        )
        if untrue:
            who = f"p{proposal.partition}: proposal {proposal.number} ({numbers})"
            raise Violated("producer-answer", f"{who} was told: {outcome}; that is not true")

    # --- what the log says ---

    def settled(self, partition: int, offset: int, crc: int) -> None:
        """Every entry of the settled log, once, in the order of the log."""
        if self.survival is not None:
            self.survival.settled(partition, offset, crc)
        proposal = self._numbered.get(crc)
        if proposal is None:
            return
        numbers = proposal.numbers
        assert numbers is not None
        who = f"p{partition}: {offset} holds {numbers}"
        if proposal.settled_at >= 0:
            raise Violated("producer-repeated", f"{who}, which {proposal.settled_at} holds already")
        proposal.settled_at = offset
        epoch, sequence = self._next.get((partition, numbers.producer_id), (-1, 0))
        due = sequence if numbers.epoch == epoch else 0
        if numbers.epoch < epoch or numbers.sequence != due:
            raise Violated("producer-order", f"{who}, and {max(epoch, numbers.epoch)}/{due} was due")
        sequence = numbers.sequence + proposal.counts[0]
        self._next[partition, numbers.producer_id] = (numbers.epoch, sequence)

    # --- up to where readers may read ---

    def asked(self, partition: int, level: ReadLevel, offset: int = -1) -> Asked:
        """A read begins."""
        floor = max(self.highest[partition], self.seen[partition])
        return Asked(partition, level, offset, floor)

    def told(self, read: Asked, end: int, *, applied: int) -> None:
        """A node has answered; `applied` is up to where it can show what is settled."""
        self.ends_count += 1
        settled = self.settled_end(read.partition)
        if end > settled:
            raise Violated("read-future", f"{read} was told {end}, and {settled} is settled")
        if end > applied:
            raise Violated("read-not-applied", f"{read} was told {end}, and its node shows {applied}")
        if end < read.offset:
            raise Violated("read-stale", f"{read} was told {end}")
        linear = read.level is ReadLevel.LINEARIZABLE or (read.level is ReadLevel.LEASE and self.leases_hold)
        if not linear:
            return
        if end < read.floor:
            raise Violated("read-stale", f"{read} was told {end}; {read.floor} was known before it began")
        self.seen[read.partition] = max(end, self.seen[read.partition])

    # --- what readers see ---

    def known_commit(self, reader: tuple[int, int, int]) -> int:
        """What (node, life, partition) has already said to be settled: a read that begins now says no less."""
        return self._commits.get(reader, -1)

    def fetched(
        self,
        reader: tuple[int, int, int],
        first: int,
        frames: Sequence[Frame],
        commit: int,
        base: int,
        known: int = -1,
    ) -> int:
        """`known` was the commit when the read began. Returns the offset behind the last entry read."""
        node, life, partition = reader
        who = f"p{partition}: a read of n{node} from {first}"
        self.reads_count += 1
        if commit < known:
            raise Violated("read-regressed", f"{who} says commit {commit}; life {life} said {known} before")
        self._commits[reader] = max(commit, self.known_commit(reader))
        expected = max(first, base + 1)
        for index, frame in enumerate(frames):
            header = frame.header
            if expected < header.offset:
                expected = self._behind_void(partition, expected, header.offset)
            fits = header.offset == expected if index else header.offset <= expected <= header.last
            if not fits:
                raise Violated("read-gap", f"{who} gave {header} where {expected} was due")
            if header.last > commit:
                raise Violated("read-unsettled", f"{who} gave {header} above commit {commit}")
            expected = header.last + 1
            if frame.is_part:
                assert self.survival is not None
                self.survival.read(partition, frame, who)
            elif header.kind == Kind.RECORDS:
                if self.is_void(partition, header.offset):
                    raise Violated("void-read", f"{who} gave {header}, which was rolled back")
                self._read(partition, frame, who)
            elif header.offset in self._placed[partition]:
                raise self._changed(partition, header.offset, f"{who} found the control entry {header}")
        return expected

    def _behind_void(self, partition: int, expected: int, found: int) -> int:
        """Where a read that leaves out what was rolled back goes on."""
        return found if all(self.is_void(partition, at) for at in range(expected, found)) else expected

    def lost_below(self, partition: int, offset: int, who: str) -> None:
        """A replica's log ends at `offset` for good: nothing acknowledged may lie above."""
        if self.highest[partition] > offset:
            raise Violated(
                "acknowledged-lost",
                f"p{partition}: {who} ends at {offset}, and {self.highest[partition]} was acknowledged",
            )

    def _read(self, partition: int, frame: Frame, who: str) -> None:
        body = bytes(frame.payload[HEAD_BYTES:])
        origin = self._origins.get(body)
        if origin is None:
            raise Violated("phantom", f"{who} gave {frame.header}, which nobody proposed")
        proposal, _ = origin
        if proposal.partition != partition:
            raise Violated("phantom", f"{who} gave an entry that was proposed to p{proposal.partition}")
        if proposal.fate is Fate.REFUSED:
            raise Violated("phantom", f"{who} gave {frame.header}: proposal {proposal.number} was refused")
        if int.from_bytes(frame.payload[:8], "big") != frame.header.offset:
            raise Violated("phantom", f"{who} gave {frame.header}, whose batch is stamped for another offset")
        self._place(proposal, body, frame.header.offset, acknowledged=False)

    def _place(self, proposal: Proposal, body: bytes, offset: int, *, acknowledged: bool) -> None:
        partition = proposal.partition
        known = self._offsets.get(body)
        if known is not None and known != offset:
            raise Violated(
                "placed-twice",
                f"p{partition}: one entry of proposal {proposal.number} is at {known} and at {offset}",
            )
        self._offsets[body] = offset
        placed = self._placed[partition].get(offset)
        if placed is None:
            self._placed[partition][offset] = Placed(offset, proposal, acknowledged)
        elif placed.proposal is not proposal:
            raise self._changed(partition, offset, f"now there is proposal {proposal.number}")
        elif acknowledged:
            placed.acknowledged = True

    def _changed(self, partition: int, offset: int, what: str) -> Violated:
        placed = self._placed[partition][offset]
        name = "acknowledged-lost" if placed.acknowledged else "read-changed"
        return Violated(name, f"p{partition}: {offset} held proposal {placed.proposal.number}; {what}")
