"""What is said of a node and its NATS server: which subjects it reads, and which it does not."""

from __future__ import annotations

import pytest

from quorate.cli import cluster_status, say
from quorate.core.entry import EntryId, Member, partition_of
from quorate.machine.metadata import Topic
from quorate.node.requests import Image, NatsStatus, ReplicaStatus, Status

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
