"""What is said of a node and its NATS server: which subjects it reads, and which it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.backup.place import Directory
from quorate.backup.returning import Returned
from quorate.cli import backup_work, cluster_status, say
from quorate.core.entry import EntryId, Member, partition_of
from quorate.machine.metadata import Topic
from quorate.node.requests import Image, NatsStatus, ReplicaStatus, Status
from tests.unit.backup.making import manifest_of

SERVER = "127.0.0.1:4222"
FORBIDDEN = 'permissions violation for subscription to "orders.eu"'


@pytest.mark.parametrize(
    ("why_not", "subjects", "led", "said"),
    [
        ("", ("a", "b"), (), f"connected to {SERVER}; reads a, b"),
        ("", (), (), f"connected to {SERVER}; reads no subject"),
        ("", ("a",), ("a", "b"), f"connected to {SERVER}; reads a"),
        ("Connection refused", ("a",), (), f"Connection refused ({SERVER}); does not read a"),
        ("Connection refused", ("a",), ("a", "b"), f"Connection refused ({SERVER}); does not read a, b"),
        ("Connection refused", (), (), f"Connection refused ({SERVER}); reads no subject"),
        (FORBIDDEN, ("a", "Orders.EU"), (), f"{FORBIDDEN} ({SERVER}); reads a; does not read Orders.EU"),
    ],
)
def test_what_is_not_read_is_not_said_to_be_read(
    why_not: str, subjects: tuple[str, ...], led: tuple[str, ...], said: str
) -> None:
    status = NatsStatus(SERVER, why_not, subjects, 1204, 3)
    assert say.nats(status, led=led, counts=False) == f"NATS: {said}"
    assert say.nats(status, led=led) == f"NATS: {said}; 1,204 messages written, 3 not"


def test_a_node_without_a_server_does_not_read_the_subjects_of_what_it_leads() -> None:
    topics = tuple(
        Topic(name, bytes(15) + bytes([number]), "raft", ((Member(1, 1),),), config)
        for number, (name, config) in enumerate(
            {
                "led": {"quorate.nats.subject": "orders.*"},
                "not-led": {"quorate.nats.subject": "others"},
                "not-fed": {},
            }.items()
        )
    )
    roles = ("leader", "follower", "leader")
    replicas = tuple(
        ReplicaStatus(partition_of(topic.id, 0), role, 1, 1, EntryId(1, 0), 0, 0)
        for topic, role in zip(topics, roles, strict=True)
    )
    led = cluster_status._subjects(Image(1, 9, (), topics), Status(1, (), 0, replicas))
    assert led == ["orders.*"]
    none_named = NatsStatus("", "no NATS server was named (--nats)", (), 0, 0)
    assert say.nats(none_named, led=led, counts=False) == (
        "NATS: no NATS server was named (--nats); does not read orders.*"
    )


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies"), (1204, "1,204 copies")]
)
def test_one_is_one_and_more_are_many(count: int, said: str) -> None:
    assert say.counted(count, "copy", "copies") == said
    assert say.counted(count, "record") == said.replace("copies", "records").replace("copy", "record")


def test_a_restore_of_one_record_is_told_in_the_singular() -> None:
    place, manifest = Directory(Path("backups")), manifest_of("orders")
    wanted = backup_work.Wanted(place, manifest, [], "h:1", "orders", False, None, None, lambda: False)
    lines, _ = backup_work._said(wanted, bytes(16), [Returned(1, 1, 7, not_committed=1)])
    nowhere = "offsets that consumers have kept do not fit there"
    assert lines == [
        "topic orders is restored: 1 record in 1 partition",
        f"orders/0: 1 record at other offsets than before, from 7 on: {nowhere}",
        "left out: 1 record of transactions that were aborted, or open when it was saved",
    ]
    assert backup_work._rows(1, 1) == "1 row of 1 table"
