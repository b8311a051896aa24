"""What is saved of a replica beside its log: by its protocol, and as readable as ever."""

from __future__ import annotations

from random import Random

import msgspec

from quorate.core import coordinated, isr, raft
from quorate.core.entry import EntryId, Member, partition_of
from quorate.host import Hosted, HostSettings, ReplicaRecord
from quorate.host.replicas import PROTOCOLS, decode_record, encode_record

ME, OTHER = Member(1, 1), Member(2, 1)
PARTITION = partition_of(bytes(16), 0)

AS_WRITTEN_BEFORE_THERE_WERE_TWO_PROTOCOLS = {
    "protocol": "raft",
    "me": {"node": 1, "incarnation": 1},
    "voters": [{"node": 1, "incarnation": 1}, {"node": 2, "incarnation": 1}],
    "learners": [],
    "state": {
        "epoch": 3,
        "vote": {"node": 2, "incarnation": 1},
        "owed": {"epoch": 2, "offset": 7},
    },
    "purpose": "topic",
    "preferred": 0,
}


def test_raft_record_is_read_and_written_as_ever() -> None:
    data = msgspec.msgpack.encode(AS_WRITTEN_BEFORE_THERE_WERE_TWO_PROTOCOLS)
    record = decode_record(data)
    assert record.state == raft.SavedState(3, OTHER, EntryId(2, 7))
    assert encode_record(record) == data


def test_state_comes_back_as_that_of_its_protocol() -> None:
    state = coordinated.SavedState(4, EntryId(3, 9), (ME, OTHER))
    record = ReplicaRecord("coordinated", ME, (), state=state)
    assert decode_record(encode_record(record)) == record


def test_new_replica_is_saved_with_the_state_it_begins_with() -> None:
    for protocol, room in PROTOCOLS.items():
        assert decode_record(encode_record(ReplicaRecord(protocol, ME, (ME,)))).state == room.SavedState()


def test_replica_is_of_the_protocol_that_its_record_says() -> None:
    settings = HostSettings(
        coordinated=coordinated.Tuning(chunk_bytes=7), metadata=raft.Tuning(chunk_bytes=8)
    )
    made = {}
    for protocol, purpose in (*((name, "topic") for name in PROTOCOLS), ("raft", "metadata")):
        record = ReplicaRecord(protocol, ME, (ME,), purpose=purpose)
        tuning = settings.tuning(protocol=protocol, purpose=purpose)
        made[protocol, purpose] = Hosted(PARTITION, record, tuning, Random(1)).replica
    assert isinstance(made["raft", "topic"], raft.Replica)
    assert isinstance(made["coordinated", "topic"], coordinated.Replica)
    assert made["coordinated", "topic"].config == coordinated.Config(ME, settings.coordinated)
    assert isinstance(made["isr", "topic"], isr.Replica)
    assert made["isr", "topic"].config == isr.Config(ME, settings.isr)
    assert made["raft", "metadata"].config.tuning == settings.metadata
