"""What consumers say to each other through their group: which topics each wants, and which partitions it got.

To whoever coordinates it is bytes. It is Kafka's own protocol of the type `consumer`, which all common clients
speak; only who shows it to people, or must know whether a topic is read, looks inside. Later versions add
behind.
"""

from __future__ import annotations

from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage, Buffer, Cursor

CONSUMER = "consumer"
"""The type of protocol whose bytes these are."""


def subscribed(metadata: Buffer) -> list[str]:
    """The topics that a member wants; raises BadMessage."""
    if not len(metadata):
        return []
    cursor = Cursor(metadata, elements_max=REQUEST_ELEMENTS_MAX)
    cursor.i16()
    return [_name(cursor) for _ in range(cursor.array(flexible=False) or 0)]


def assigned(assignment: Buffer) -> dict[str, list[int]]:
    """The partitions that a member got, by topic; raises BadMessage."""
    if not len(assignment):
        return {}
    cursor = Cursor(assignment, elements_max=REQUEST_ELEMENTS_MAX)
    cursor.i16()
    partitions: dict[str, list[int]] = {}
    for _ in range(cursor.array(flexible=False) or 0):
        name = _name(cursor)
        partitions[name] = [cursor.i32() for _ in range(cursor.array(flexible=False) or 0)]
    return partitions


def _name(cursor: Cursor) -> str:
    name = cursor.string(flexible=False)
    if name is None:
        raise BadMessage("a topic without a name")
    return name
