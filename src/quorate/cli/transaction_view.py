"""Transactions that are not over, from what their coordinators and the leaders of partitions say."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorate.cli.topic_view import Found
from quorate.core.entry import partition_of
from quorate.machine.purpose import TRANSACTIONS
from quorate.node.held_back import OpenTransaction
from quorate.node.requests import Image, Status

OPEN = "open"
PLAIN, JOINT = "plain", "joint"


class TransactionView(msgspec.Struct):
    transaction: str
    """The transactional id; of joint ones, the app."""
    kind: str
    producer_id: int
    state: str
    """`open`; or `committed` or `aborted`, and markers are being written."""
    number: int | None = None
    """Of the joint commit that it is for."""
    age_s: float | None = None
    left_s: float | None = None
    """Until it is aborted by itself."""
    holds_back: list[str] = []
    """Partitions in which nothing behind it is seen by readers of committed records."""

    @property
    def is_open(self) -> bool:
        return self.state == OPEN


def not_over(image: Image, statuses: dict[int, Status]) -> list[TransactionView]:
    """Those that are open for longest first; of each node, as many as it tells of."""
    held = _held_back(image, statuses)
    views = [
        _view(each, status.health.wall_ms if status.health is not None else None, held)
        for status in statuses.values()
        for each in status.transactions
    ]
    return sorted(views, key=lambda view: (-(view.age_s or 0.0), view.transaction, view.producer_id))


def _view(one: OpenTransaction, now_ms: int | None, held: dict[int, list[str]]) -> TransactionView:
    is_joint = one.number >= 0 or not one.name
    view = TransactionView(
        one.name,
        JOINT if is_joint else PLAIN,
        one.producer_id,
        one.decided or OPEN,
        holds_back=held.get(one.producer_id, []),
    )
    if one.number >= 0:
        view.number = one.number
    if now_ms is not None and one.began_ms:
        view.age_s = max((now_ms - one.began_ms) / 1000, 0.0)
        if view.is_open:
            view.left_s = max(one.timeout_ms / 1000 - view.age_s, 0.0)
    return view


def _held_back(image: Image, statuses: dict[int, Status]) -> dict[int, list[str]]:
    """By producer: the partitions that it holds back."""
    found, held = Found(image, statuses), dict[int, list[str]]()
    for topic in image.topics:
        for number in range(len(topic.ensembles)):
            leader = found.leader(partition_of(topic.id, number))
            if leader is not None and leader.held_back is not None:
                held.setdefault(leader.held_back.producer_id, []).append(f"{topic.name}/{number}")
    return held


def is_over(image: Image, statuses: dict[int, Status], producer_ids: Collection[int]) -> bool:
    """Whether no coordinator and no partition waits for their end any more."""
    found = Found(image, statuses)
    homes = [topic for topic in image.topics if topic.purpose == TRANSACTIONS]
    coordinators = [found.leader(partition) for home in homes for partition in home.partitions()]
    if not coordinators or None in coordinators:
        return False  # Whoever knows does not answer.
    if any(each.producer_id in producer_ids for status in statuses.values() for each in status.transactions):
        return False
    return not any(
        replica.held_back is not None and replica.held_back.producer_id in producer_ids
        for status in statuses.values()
        for replica in status.replicas
        if replica.role == "leader"
    )
