"""A node's configuration: read from JSON or TOML, and refused in one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.core.entry import Member, partition_of
from quorate.node.config import Address, BadConfig, load_config, parse_address

TOPIC = {"id": "00" * 15 + "07", "partitions": 2, "voters": [3, 1, 2]}
GOOD: dict[str, Any] = {
    "cluster": "c",
    "node": 1,
    "directory": "n1",
    "listen": "127.0.0.1:7001",
    "peers": {"2": "127.0.0.1:7002", "3": "[::1]:7003"},
    "topics": [TOPIC],
    "raft": {"election_timeout_s": 2.0},
}


def written(directory: Path, content: dict[str, Any]) -> Path:
    path = directory / "node.json"
    path.write_bytes(msgspec.json.encode(content))
    return path


def test_json_is_read_with_defaults_for_what_is_left_out(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    assert config.directory == str(tmp_path / "n1")
    assert config.raft.election_timeout_s == 2.0
    assert config.raft.heartbeat_s == 0.2
    assert config.peer_addresses() == {2: Address("127.0.0.1", 7002), 3: Address("::1", 7003)}


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        """
        cluster = "c"
        node = 1
        directory = "n1"
        listen = "127.0.0.1:7001"
        peers = {2 = "127.0.0.1:7002", 3 = "[::1]:7003"}
        topics = [{id = "00000000000000000000000000000007", partitions = 2, voters = [3, 1, 2]}]
        raft = {election_timeout_s = 2.0}
        """,
        encoding="utf-8",
    )
    assert load_config(path) == load_config(written(tmp_path, GOOD))


def test_replicas_have_sorted_ensembles_and_this_disks_incarnation(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    voters = (Member(1, 1), Member(2, 1), Member(3, 1))
    replicas = config.replicas(incarnation=9)
    assert [partition for partition, _ in replicas] == [
        partition_of(bytes(15) + b"\x07", number) for number in (0, 1)
    ]
    assert all(record.me == Member(1, 9) and record.voters == voters for _, record in replicas)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster": ""}, "name the cluster"),
        ({"node": 0}, "numbered from 1"),
        ({"node": 2}, "is this node itself"),
        ({"node": "one"}, "node"),
        ({"listen": "nowhere"}, "write host:port"),
        ({"listen": "127.0.0.1:70000"}, "write host:port"),
        ({"listen": "two..dots:70"}, "write host:port"),
        ({"peers": {"2": "x"}}, "write host:port"),
        ({"topics": [TOPIC | {"id": "../../etc"}]}, "32 hexadecimal digits"),
        ({"topics": [TOPIC | {"partitions": 0}]}, "1 is the least"),
        ({"topics": [TOPIC | {"partitions": 10**9}]}, "more than"),
        ({"topics": [TOPIC | {"voters": []}]}, "needs voters"),
        ({"topics": [TOPIC | {"voters": [1, 1]}]}, "each node in it once"),
        ({"topics": [TOPIC | {"voters": [1, 9]}]}, "neither this one nor a peer"),
        ({"topics": [TOPIC, TOPIC]}, "twice"),
        ({"raft": {"heartbeat_s": 5.0}}, "heartbeat_s"),
        ({"raft": {"message_bytes_max": 1 << 40}}, "larger than"),
        ({"surprise": 1}, "surprise"),
        ({"confirm": {"heartbeat_s": 5.0}}, "confirm: heartbeat_s must lie between"),
        ({"confirm": {"feature_level": 9}}, "confirm.feature_level: from 1 to 2, not 9"),
        ({"isr": {"message_bytes_max": 1 << 30}}, "isr: a message would be larger than"),
        ({"isr": {"lag_s": -1.0}}, "isr.lag_s: from 0.001 to 31622400, not -1"),
        ({"coordinated": {"uncommitted_entries_max": 0}}, "coordinated.uncommitted_entries_max: from 1 to"),
        ({"raft": {"inflight_bytes_max": -1}}, "raft.inflight_bytes_max: from 1 to"),
        ({"store": {"journal_bytes": 1}}, "store.journal_bytes: from 65536 to 1099511627776, not 1"),
        ({"store": {"segment_bytes": -5}}, "store.segment_bytes: from 4096 to"),
        ({"store": {"align_bytes": 1000}}, "store.align_bytes: a power of two, not 1000"),
        ({"store": {"mark_delay_s": 0.0}}, "store.mark_delay_s: from 0.001 to"),
        ({"detector": {"ping_s": 0.0}}, "detector.ping_s: from 0.001 to"),
        ({"detector": {"ping_s": 5.0}}, "detector.ping_s: below suspect_s"),
        ({"scrub_every_s": -1.0}, "scrub_every_s: seconds, or 0 for never"),
        ({"http": "127.0.0.1:7001"}, "http: a listener is at 127.0.0.1:7001"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, GOOD | change)
    with pytest.raises(BadConfig) as refused:
        load_config(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("node.json", "node.toml"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadConfig):
            load_config(path)
    with pytest.raises(BadConfig, match="No such file"):
        load_config(tmp_path / "none.json")


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("127.0.0.1:1", "[::1]:65535", "a-host.example:80"):
        assert str(parse_address(text)) == text
