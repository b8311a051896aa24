"""Fetch sessions (KIP-227): what a consumer wants is remembered, so that it names and hears only what changes.

A session belongs to a connection and ends with it: a client whose connection is gone begins anew, as it must when a
broker has restarted. A connection has one; whoever asks for another one gets that in place of it. Each request of a
session has the next epoch: one that was lost, or comes twice, is noticed. What sessions remember is bounded, and
whoever finds no room is answered without one.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode
from msgspec import structs

from quorate.wire.fetch import (
    FIRST_EPOCH,
    LAST_EPOCH,
    NO_ERROR,
    NO_OFFSET,
    NO_SESSION,
    FetchedPartition,
    FetchRequest,
    WantedPartition,
    WantedTopic,
)

PARTITIONS_COUNT_MAX = 200_000
"""That all sessions of a node remember, together."""
EPOCH_MAX = (1 << 31) - 1
SESSION_MAX = (1 << 31) - 1

Key = tuple[str, bytes, int]
"""A partition by its topic's name, or id, and its number."""


class Remembered:
    """A partition of a session: what is wanted of it, and what its client was told last."""

    __slots__ = ("high_watermark", "log_start", "wanted")

    def __init__(self, wanted: WantedPartition) -> None:
        self.wanted = wanted
        self.high_watermark = self.log_start = NO_OFFSET

    def is_news(self, fetched: FetchedPartition) -> bool:
        """Whether the client has to hear of it; it is known to, then."""
        told = (self.high_watermark, self.log_start)
        now = (fetched.high_watermark, fetched.log_start)
        if fetched.error:
            self.high_watermark = self.log_start = NO_OFFSET
            return True
        self.high_watermark, self.log_start = now
        return bool(fetched.batches) or fetched.diverging is not None or now != told


class Session:
    def __init__(self, number: int, room: Room) -> None:
        self.number = number
        self._next_epoch = FIRST_EPOCH + 1
        self._partitions: dict[Key, Remembered] = {}
        self._topics: list[WantedTopic] | None = None
        """As `topics` gives them, until something is other than it was."""
        self._room = room

    def is_next(self, epoch: int) -> bool:
        if epoch != self._next_epoch:
            return False
        self._next_epoch = epoch + 1 if epoch < EPOCH_MAX else FIRST_EPOCH + 1
        return True

    def change(self, request: FetchRequest) -> bool:
        """Remember what the request names, and forget what it says; False: there is no room."""
        if request.topics or request.forgotten:
            self._topics = None
        for name, topic_id, numbers in request.forgotten:
            for number in numbers:
                if self._partitions.pop((name, topic_id, number), None) is not None:
                    self._room.left += 1
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.name, topic.id, wanted.number)
                remembered = self._partitions.get(key)
                if remembered is not None:
                    remembered.wanted = wanted
                elif self._room.left:
                    self._room.left -= 1
                    self._partitions[key] = Remembered(wanted)
                else:
                    return False
        return True

    def topics(self) -> list[WantedTopic]:
        """All that is wanted: whoever got nothing the longest comes first. A topic may be there several times."""
        if self._topics is not None:
            return self._topics
        topics: list[WantedTopic] = []
        for (name, topic_id, _), remembered in self._partitions.items():
            if not topics or (topics[-1].name, topics[-1].id) != (name, topic_id):
                topics.append(WantedTopic(name, topic_id, []))
            topics[-1].partitions.append(remembered.wanted)
        self._topics = topics
        return topics

    def news(self, name: str, topic_id: bytes, fetched: Iterable[FetchedPartition]) -> list[FetchedPartition]:
        """What its client has to hear of a topic's partitions."""
        told = []
        for each in fetched:
            key = (name, topic_id, each.number)
            remembered = self._partitions.get(key)
            if remembered is None or remembered.is_news(each):
                told.append(each)
            if remembered is not None and each.batches:
                self._partitions[key] = self._partitions.pop(key)  # It has had its turn.
                self._topics = None
        return told

    def end(self) -> None:
        self._room.left += len(self._partitions)
        self._partitions.clear()


class Room:
    """What is left for the sessions of a node, and their numbers."""

    def __init__(self, partitions_count: int = PARTITIONS_COUNT_MAX) -> None:
        self.left = partitions_count
        self._last = NO_SESSION

    def number(self) -> int:
        self._last = self._last + 1 if self._last < SESSION_MAX else NO_SESSION + 1
        return self._last


class Sessions:
    """The session of one connection, if it has one."""

    __slots__ = ("_room", "_session")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._session: Session | None = None

    def asked(self, request: FetchRequest) -> tuple[int, Session | None]:
        """An error for the whole request, or the session that it is of; None: it is of none."""
        epoch = request.session_epoch
        if epoch == LAST_EPOCH:
            self.end()
            return NO_ERROR, None
        if epoch == FIRST_EPOCH:
            self.end()
            session = Session(self._room.number(), self._room)
            if session.change(structs.replace(request, forgotten=())):
                self._session = session
            else:
                session.end()
            return NO_ERROR, self._session
        session_now = self._session
        if session_now is None or request.session != session_now.number:
            return ErrorCode.fetch_session_id_not_found, None
        if not session_now.is_next(epoch):
            return ErrorCode.invalid_fetch_session_epoch, None
        if not session_now.change(request):
            self.end()  # Its client begins anew, and is served without one.
            return ErrorCode.fetch_session_id_not_found, None
        return NO_ERROR, session_now

    def end(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None
