"""Which offsets are read next, and how the work is cut into tasks. Plain numbers; asks nobody.

A streaming offset, as Spark keeps it in its checkpoint, is JSON: {"events": {"0": 123}}, one behind the last
offset read of each partition. Topic names hold no '#', so keys with one are ours:

- `#initial` marks where a query that has no checkpoint begins. Spark asks for it twice and keeps neither.
- `#start` in the end of the first batch is where that batch begins, so that replaying it reads the same; in the end
  of a later one, where partitions begin that are new in it.
- `#ids` are the topics' ids: a topic that was created anew is not read on as if it were the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from quorate.client.ranges import Range
from quorate.spark.options import Positions

INITIAL, START, IDS = "#initial", "#start", "#ids"
TASK_OFFSETS_MAX = 500_000
"""A longer range is shared by several tasks."""
TASKS_MAX = 10_000


class StreamOffset(NamedTuple):
    positions: Positions
    ids: dict[str, str]
    is_initial: bool = False
    first_start: Positions | None = None

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = _numbers_as_text(self.positions)
        made[IDS] = dict(sorted(self.ids.items()))
        if self.is_initial:
            made[INITIAL] = True
        if self.first_start is not None:
            made[START] = _numbers_as_text(self.first_start)
        return made


def read_stream_offset(read: dict[str, Any]) -> StreamOffset:
    positions = {topic: _numbers(parts) for topic, parts in read.items() if not topic.startswith("#")}
    start = read.get(START)
    first_start = {topic: _numbers(parts) for topic, parts in start.items()} if start is not None else None
    return StreamOffset(positions, dict(read.get(IDS, {})), bool(read.get(INITIAL)), first_start)


def begin_of(start: StreamOffset, end: StreamOffset) -> Positions:
    """Where a batch begins. For the first one, and for new partitions, its own end knows best.

    A topic that was created anew since (and whoever asked accepts that) is new from its beginning on.
    """
    told = end.first_start or {}
    if start.is_initial and end.first_start is not None:
        return told
    same = [topic for topic in start.positions if start.ids.get(topic) == end.ids.get(topic)]
    begin = {topic: dict(start.positions[topic]) for topic in same}
    for topic, parts in told.items():
        begin[topic] = {**parts, **begin.get(topic, {})}
    return begin


def at_least(positions: Positions, least: Positions) -> Positions:
    """Never backwards: a leader that is behind may know less than what was read already.

    A partition that `least` does not know is new, and read from its very beginning.
    """
    return {
        topic: {number: max(offset, least.get(topic, {}).get(number, 0)) for number, offset in parts.items()}
        for topic, parts in positions.items()
    }


def with_others(positions: Positions, others: Positions) -> Positions:
    """And what only `others` has: partitions that are not there now, where reading them would go on."""
    topics = {**positions, **others}
    return {topic: {**others.get(topic, {}), **positions.get(topic, {})} for topic in topics}


def at_most(positions: Positions, most: Positions) -> Positions:
    """Partitions that `most` does not know did not exist then: nothing of them is read."""
    return {
        topic: {number: min(offset, most.get(topic, {}).get(number, 0)) for number, offset in parts.items()}
        for topic, parts in positions.items()
    }


def limited(begin: Positions, end: Positions, offsets_max: int) -> Positions:
    """As far as so many offsets reach, shared out in proportion to what each partition has.

    Every partition that has something gets one at least, so that none starves; where the limit is too small
    even for that, those that have most.
    """
    lengths = {(topic, number): last - first for topic, number, first, last in joined(begin, end)}
    waiting = sorted((key for key in lengths if lengths[key] > 0), key=lambda key: (-lengths[key], key))
    total = sum(lengths[key] for key in waiting)
    if total <= offsets_max:
        return end
    served = waiting[:offsets_max]
    # Where nobody has more than one, nothing is left to share out.
    spare, rest = offsets_max - len(served), max(total - len(waiting), 1)
    made: Positions = {}
    for topic, number, first, _ in joined(begin, end):
        length = lengths[topic, number]
        share = 1 + spare * (length - 1) // rest if (topic, number) in served else 0
        made.setdefault(topic, {})[number] = first + share
    return made


def cut_into_tasks(
    begin: Positions, end: Positions, tasks_min: int = 0, task_records_max: int | None = None
) -> list[Range]:
    """One task for a partition, several where it is long or where more or shorter tasks are asked for."""
    wholes = [Range(*part) for part in joined(begin, end) if part[3] > part[2]]
    total = sum(whole.end - whole.first for whole in wholes)
    if not total:
        return []
    length_max = task_records_max or TASK_OFFSETS_MAX
    if tasks_min:
        length_max = min(length_max, -(-total // tasks_min))
    length_max = max(length_max, -(-total // TASKS_MAX))
    return [part for whole in wholes for part in _cut(whole, length_max)]


def joined(begin: Positions, end: Positions) -> Iterator[tuple[str, int, int, int]]:
    """Topic, partition, where it begins and where it ends; one that is new begins at 0."""
    for topic, parts in sorted(end.items()):
        for number, last in sorted(parts.items()):
            yield topic, number, begin.get(topic, {}).get(number, 0), last


def count_between(begin: Positions, end: Positions) -> int:
    return sum(max(last - first, 0) for _, _, first, last in joined(begin, end))


def _cut(whole: Range, length_max: int) -> list[Range]:
    length = whole.end - whole.first
    count = -(-length // length_max)
    edges = [whole.first + length * step // count for step in range(count + 1)]
    return [whole._replace(first=edges[step], end=edges[step + 1]) for step in range(count)]


def _numbers(parts: dict[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in parts.items()}


def _numbers_as_text(positions: Positions) -> dict[str, Any]:
    return {
        topic: {str(number): offset for number, offset in sorted(parts.items())}
        for topic, parts in sorted(positions.items())
    }
