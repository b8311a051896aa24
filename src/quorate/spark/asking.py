"""What a query reads, asked of the cluster: which partitions there are, and which offsets are meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from quorate.client.cluster import EARLIEST, LATEST, Cluster, TopicInfo
from quorate.client.errors import ClientError, TopicGone, TopicReplaced, UnknownTopic
from quorate.spark.options import (
    EARLIEST_NAME,
    LATEST_NAME,
    Positions,
    Selection,
    Times,
    Where,
    WrongOption,
)
from quorate.spark.planning import joined


class Found(NamedTuple):
    """What was selected, as the cluster has it now."""

    ids: dict[str, str]
    numbers: dict[str, tuple[int, ...]]
    """Topic → its partitions, or those of them that were assigned."""


Known = Mapping[str, Collection[int]]
"""Topic → partitions of it that a query has read."""
NOTHING_KNOWN: Known = {}


def find(
    cluster: Cluster,
    selection: Selection,
    gone: Callable[[str], None] | None = None,
    known: Known = NOTHING_KNOWN,
) -> Found:
    """Raises UnknownTopic, TopicGone, TopicReplaced and WrongOption. With `gone` the first three are told instead:
    a topic that is not there is left out, one that was created anew is taken as it is now.

    What is `known` and not in an answer is asked for again for a while: a node that is behind is no loss.
    Partitions that are not there then are left out.
    """
    while True:
        try:
            return _selected(cluster, selection, known)
        except UnknownTopic as error:
            wrong: ClientError = TopicGone(error.topic) if error.topic in known else error
            if gone is None:
                raise wrong from error
            gone(str(wrong))
            selection, known = _without(selection, error.topic), _but(known, error.topic)
        except TopicReplaced as error:
            if gone is None:
                raise
            gone(str(error))
            cluster.expect_any(error.topic)
            known = _but(known, error.topic)


def selects(selection: Selection, topic: str) -> bool:
    if selection.pattern is not None:
        return re.fullmatch(selection.pattern, topic) is not None
    return topic in selection.topics or topic in dict(selection.partitions)


def resolve(cluster: Cluster, found: Found, where: Where, option: str, *, unnamed: str) -> Positions:
    """Real offsets, for every partition. `unnamed`: where those are that JSON does not name."""
    if isinstance(where, dict):
        check_named(where, found.numbers, option)
    positions: Positions = {}
    for topic, numbers in sorted(found.numbers.items()):
        latest = _latest(cluster, topic, numbers)
        if where == LATEST_NAME:
            positions[topic] = latest
        elif where == EARLIEST_NAME:
            positions[topic] = _asked(cluster, topic, dict.fromkeys(numbers, EARLIEST), latest)
        elif isinstance(where, int):
            # No record that young: from the end on.
            positions[topic] = _asked(cluster, topic, dict.fromkeys(numbers, where), latest)
        else:
            assert isinstance(where, dict)
            usual = EARLIEST if unnamed == EARLIEST_NAME else LATEST
            given = dict.fromkeys(numbers, usual) | where.get(topic, {})
            if isinstance(where, Times):
                positions[topic] = _asked(cluster, topic, given, latest)
            else:
                positions[topic] = _given(cluster, topic, given, latest, option)
    return positions


def earliest(cluster: Cluster, topic: str, numbers: Iterable[int]) -> dict[int, int]:
    found = cluster.offsets(topic, dict.fromkeys(numbers, EARLIEST))
    return {number: offset or 0 for number, offset in found.items()}


def check_named(
    where: Mapping[str, Mapping[int, int]], numbers: Mapping[str, tuple[int, ...]], option: str
) -> None:
    """Only partitions that are read can be named; not all of them must be."""
    for topic, given in where.items():
        if topic not in numbers:
            raise WrongOption(f"option {option!r} names topic {topic!r}, which is not subscribed")
        for number in sorted(given):
            if number not in numbers[topic]:
                known = ", ".join(map(str, numbers[topic]))
                raise WrongOption(
                    f"option {option!r} names {topic}-{number}; read are its partitions {known}"
                )


def check_order(begin: Positions, end: Positions) -> None:
    """Raises WrongOption."""
    for topic, number, first, last in joined(begin, end):
        if first > last:
            raise WrongOption(f"{topic}-{number} would start at offset {first} and end at {last}, before it")


# ---- helpers ----


def _selected(cluster: Cluster, selection: Selection, known: Known) -> Found:
    assigned = dict(selection.partitions)
    counts = {topic: max(numbers, default=-1) + 1 for topic, numbers in {**known, **assigned}.items()}
    if selection.pattern is not None:
        return _found(_matching(cluster, selection, counts).values())
    names = selection.topics or tuple(assigned)
    if not names:
        return Found({}, {})
    found = _found(cluster.topics(names, counts).values())
    there = {
        topic: _there(found, topic, numbers, known.get(topic, ())) for topic, numbers in assigned.items()
    }
    return found._replace(numbers={**found.numbers, **there})


def _matching(cluster: Cluster, selection: Selection, counts: Mapping[str, int]) -> dict[str, TopicInfo]:
    found = {name: topic for name, topic in cluster.every_topic().items() if selects(selection, name)}
    lacking = [
        name for name, count in counts.items() if name not in found or len(found[name].partitions) < count
    ]
    return found | cluster.topics(lacking, counts) if lacking else found


def _there(found: Found, topic: str, assigned: tuple[int, ...], known: Collection[int]) -> tuple[int, ...]:
    """A number that never was one is a mistake; one that was there and is gone is told by whoever knew it."""
    numbers = found.numbers[topic]
    for number in assigned:
        if number not in numbers and number not in known:
            raise WrongOption(
                f"option 'assign': topic {topic!r} has no partition {number}; it has {len(numbers)}, counted "
                f"from 0"
            )
    return tuple(number for number in assigned if number in numbers)


def _but(known: Known, topic: str) -> Known:
    return {name: numbers for name, numbers in known.items() if name != topic}


def _found(topics: Iterable[TopicInfo]) -> Found:
    kept = sorted(topics)
    numbers = {topic.name: tuple(part.number for part in topic.partitions) for topic in kept}
    return Found({topic.name: topic.id.hex() for topic in kept}, numbers)


def _without(selection: Selection, topic: str) -> Selection:
    return Selection(
        tuple(name for name in selection.topics if name != topic),
        selection.pattern,
        tuple(each for each in selection.partitions if each[0] != topic),
    )


def _latest(cluster: Cluster, topic: str, numbers: Iterable[int]) -> dict[int, int]:
    bounds = cluster.offsets(topic, dict.fromkeys(numbers, LATEST), committed=True)
    return {number: offset or 0 for number, offset in bounds.items()}


def _asked(
    cluster: Cluster, topic: str, wanted: Mapping[int, int], latest: Mapping[int, int]
) -> dict[int, int]:
    found = cluster.offsets(topic, wanted)
    return {number: latest[number] if offset is None else offset for number, offset in found.items()}


def _given(
    cluster: Cluster, topic: str, given: Mapping[int, int], latest: Mapping[int, int], option: str
) -> dict[int, int]:
    """Offsets as a person wrote them; -2 is the earliest and -1 the latest, as in Spark's Kafka source."""
    first = [number for number, offset in given.items() if offset == EARLIEST]
    named = earliest(cluster, topic, first) if first else {}
    for number, offset in given.items():
        if offset > latest[number]:
            raise WrongOption(
                f"option {option!r}: {topic}-{number} ends at offset {latest[number]}, before {offset}"
            )
        if offset == LATEST:
            named[number] = latest[number]
        elif offset >= 0:
            named[number] = offset
    return named
