"""Transactions as `quorate transaction` sees them, by what coordinators and leaders say."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.cli.transaction_view import TransactionView, is_over, not_over
from quorate.core.entry import EntryId, Member, Membership, partition_of
from quorate.machine.metadata import Topic
from quorate.machine.purpose import HOMES, KIND, TRANSACTIONS
from quorate.node.health import Health
from quorate.node.held_back import HoldsBack, OpenTransaction
from quorate.node.requests import Image, ReplicaStatus, Status

NOW_MS = 1_000_000
ONE = (Member(1, 1),)
ORDERS = Topic("orders", bytes(15) + b"o", "raft", (ONE, ONE))
HOME = Topic(HOMES[TRANSACTIONS], bytes(15) + b"h", "raft", (ONE,), config={KIND: TRANSACTIONS})
IMAGE = Image(1, 9, (), (ORDERS, HOME), is_current=True)
PAY = OpenTransaction(7, "pay-7", NOW_MS - 40_000, 60_000)
CLICKS = OpenTransaction(8, "clicks", NOW_MS - 10_000, 60_000, number=41)
ENDING = OpenTransaction(9, "", 0, 0, "committed")


def leader_of(topic: Topic, number: int = 0, **more: Any) -> ReplicaStatus:
    partition = partition_of(topic.id, number)
    head, me = EntryId(4, 120), ONE[0]
    leader = ReplicaStatus(partition, "leader", 1, 4, head, 110, 0, me, Membership(ONE), protocol="raft")
    return msgspec.structs.replace(leader, **more)


def said(*transactions: OpenTransaction, held_by: int = 0, is_home_led: bool = True) -> dict[int, Status]:
    held = HoldsBack(held_by, 101, 40.0) if held_by else None
    replicas = (leader_of(ORDERS, 1, held_back=held), *(leader_of(HOME),) * is_home_led)
    return {1: Status(1, (), 0, replicas, health=Health("1", NOW_MS, 5.0), transactions=transactions)}


def test_whose_they_are_since_when_and_what_they_hold_back() -> None:
    assert not_over(IMAGE, said(CLICKS, ENDING, PAY, held_by=7)) == [
        TransactionView("pay-7", "plain", 7, "open", None, 40.0, 20.0, ["orders/1"]),
        TransactionView("clicks", "joint", 8, "open", 41, 10.0, 50.0),
        TransactionView("", "joint", 9, "committed"),
    ]


def test_one_is_over_when_neither_its_coordinator_nor_a_partition_waits_for_it() -> None:
    assert not is_over(IMAGE, said(PAY), [7])
    assert not is_over(IMAGE, said(held_by=7), [7])
    assert is_over(IMAGE, said(CLICKS, held_by=8), [7])


def test_whether_one_is_over_is_not_known_where_no_coordinator_answers() -> None:
    assert not is_over(IMAGE, said(is_home_led=False), [7])
    assert not is_over(IMAGE, {}, [7])
