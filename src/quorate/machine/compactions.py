"""Compaction as the image says it: what is wanted of a partition, who has it ready, and what everybody has.

A generation is wanted by whoever leads. Each holder says when it has made it ready, and a checksum of what it made;
when all have, and the same, it is *agreed*, and from then on nobody needs what there was before. One at a time: as
long as somebody is away, the next is not wanted (docs/decisions/020-compaction-keeps-the-chain.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from quorate.core.entry import Member, Partition
from quorate.core.generation import Generation

if TYPE_CHECKING:
    from quorate.machine.metadata import Topic

CLEANUP_POLICY = "cleanup.policy"
COMPACT = "compact"
STEPS_KEPT_MAX = 64
"""Generations that are remembered by when they were wanted: tombstones go by them."""


def compacts(config: Mapping[str, str | None]) -> bool:
    return config.get(CLEANUP_POLICY) == COMPACT


class Compaction(msgspec.Struct, frozen=True):
    """Of one partition."""

    agreed: Generation | None = None
    """What everybody had ready: each log is of it, or about to be."""
    wanted: Generation | None = None
    wanted_ms: int = 0
    """When, by the clock of whoever wanted it."""
    ready: tuple[tuple[Member, int], ...] = ()
    """Who has made what is wanted, and its checksum."""
    steps: tuple[tuple[int, int], ...] = ()
    """(up to which offset, when it was wanted) of generations that were agreed on, the newest last."""

    def made(self, holders: Collection[Member]) -> dict[Member, int]:
        """What those have made who hold a copy now: whoever was replaced is not asked any more."""
        return {member: crc for member, crc in self.ready if member in holders}

    def differs(self, holders: Collection[Member]) -> bool:
        """Whether two have made something else of the same: nothing goes, and somebody has to look."""
        return len(set(self.made(holders).values())) > 1

    def odd(self, holders: Collection[Member]) -> list[Member]:
        """Who has made something else than most of the others; nobody, where that cannot be told."""
        made = self.made(holders)
        (most, count), *_ = Counter(made.values()).most_common(1) or [(0, 0)]
        return (
            sorted(member for member, crc in made.items() if crc != most) if 2 * count > len(holders) else []
        )

    def missing(self, holders: Collection[Member]) -> list[Member]:
        """Who holds up what is wanted."""
        have = self.made(holders)
        return sorted(member for member in holders if member not in have) if self.wanted is not None else []

    def deleted_upto(self, *, before_ms: int) -> int:
        """Up to where tombstones may go: readers have seen them for long enough since they were compacted."""
        old = [upto for upto, wanted_ms in self.steps if wanted_ms <= before_ms]
        least = -1 if self.agreed is None else self.agreed.deleted_upto
        return max([least, *old])


class LetCompact(msgspec.Struct, frozen=True, tag="let compact"):
    """Let these be compacted, each with when that was wanted. Left alone where something is still under way."""

    wishes: tuple[tuple[Partition, Generation, int], ...]


class Ready(msgspec.Struct, frozen=True, gc=False):
    partition: Partition
    upto: int
    member: Member
    crc: int


class NoteReady(msgspec.Struct, frozen=True, tag="note ready"):
    """These replicas have made what is wanted."""

    notes: tuple[Ready, ...]


Step = Callable[[Compaction, Mapping[str, str], Collection[Member]], Compaction]
"""What a command makes of a partition's compaction, by its topic's settings and by who holds it."""


def stepped(topic: Topic, number: int, step: Step) -> Topic | None:
    """The topic with that for one of its partitions; None: nothing is to change."""
    known = topic.compactions.get(number, Compaction())
    changed = step(known, topic.config, topic.holders(number))
    if changed == known:
        return None
    return msgspec.structs.replace(topic, compactions={**topic.compactions, number: changed})


def steps_of(command: LetCompact | NoteReady) -> list[tuple[Partition, Step]]:
    if isinstance(command, NoteReady):
        return [(note.partition, partial(_noting, note)) for note in command.notes]
    return [
        (partition, partial(_wanting, generation, wanted_ms))
        for partition, generation, wanted_ms in command.wishes
    ]


def _wanting(
    generation: Generation,
    wanted_ms: int,
    known: Compaction,
    config: Mapping[str, str],
    _: Collection[Member],
) -> Compaction:
    """As it was if it is not to be: it would go back, or another is under way from the same start."""
    newest = max((found.upto for found in (known.agreed, known.wanted) if found is not None), default=-1)
    is_open = known.wanted is not None and known.wanted.start == generation.start
    if not compacts(config) or generation.upto <= newest or is_open or not _is_sound(generation):
        return known
    return msgspec.structs.replace(known, wanted=generation, wanted_ms=wanted_ms, ready=())


def _is_sound(generation: Generation) -> bool:
    ends = generation.ends
    rises = all(one < two for one, two in pairwise((generation.start.offset, *ends)))
    return bool(ends) and ends[-1] == generation.upto and rises and generation.deleted_upto <= generation.upto


def _noting(note: Ready, known: Compaction, _: Mapping[str, str], holders: Collection[Member]) -> Compaction:
    """Agreed, if everybody has the same."""
    if known.wanted is None or known.wanted.upto != note.upto or note.member not in holders:
        return known
    ready = {**known.made(holders), note.member: note.crc}
    known = msgspec.structs.replace(known, ready=tuple(sorted(ready.items())))
    if known.missing(holders) or known.differs(holders):
        return known
    steps = (*known.steps, (note.upto, known.wanted_ms))[-STEPS_KEPT_MAX:]
    return Compaction(agreed=known.wanted, steps=steps)


def without_wishes(known: Mapping[int, Compaction]) -> dict[int, Compaction]:
    """The topic is not to be compacted any more."""
    return {number: msgspec.structs.replace(each, wanted=None, ready=()) for number, each in known.items()}
