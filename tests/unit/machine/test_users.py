"""Users in the metadata image: what is kept, what is refused, and images from before there were any."""

from __future__ import annotations

import msgspec
import pytest

from quorate import batch
from quorate.core.entry import Header, Kind
from quorate.machine import users
from quorate.machine.metadata import Metadata, NodeInfo, RegisterNode, command_batch
from quorate.machine.users import Credential, PutUser, RemoveUser
from tests.unit.machine.test_metadata import Log

SECRET = bytes(range(32))
GOOD = Credential("SCRAM-SHA-256", bytes(16), 8192, b"s" * 32, b"k" * 32)
LONG = Credential("SCRAM-SHA-512", bytes(16), 8192, b"s" * 64, b"k" * 64)
ANN = PutUser("ann", (GOOD, LONG), SECRET)


def test_a_user_is_put_changed_and_removed() -> None:
    log = Log()
    log.settle(ANN)
    assert log.image.users["ann"].credential("SCRAM-SHA-512") == LONG
    assert (log.image.users["ann"].at, log.image.version) == (0, 0)
    log.settle(PutUser("ann", (GOOD,), b"x" * 32))
    assert log.image.users["ann"].credential("SCRAM-SHA-512") is None
    assert log.image.users["ann"].at == 1
    assert log.image.users_secret == SECRET
    log.settle(RemoveUser("ann"), RemoveUser("ann"))
    assert log.image.users == {}
    assert (log.image.version, log.image.users_secret) == (2, SECRET)


@pytest.mark.parametrize("name", ["", " ", "-ann", "ann bob", "ann,", "a=b", "ä", "x" * 101, "a\n", "a\0b"])
def test_no_name(name: str) -> None:
    log = Log()
    log.settle(PutUser(name, (GOOD,), SECRET))
    assert log.image.users == {}
    assert "is no user's name" in users.why_not_named(name)


@pytest.mark.parametrize("name", ["a", "Ann.B-1_2@example.com", "7"])
def test_a_name(name: str) -> None:
    assert users.why_not_named(name) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 8191},
        {"iterations": 200_001},
        {"salt": bytes(15)},
        {"salt": bytes(65)},
        {"stored_key": bytes(31)},
        {"server_key": bytes(33)},
        {"mechanism": "PLAIN"},
    ],
)
def test_what_would_be_no_protection_is_refused(change: dict[str, object]) -> None:
    log = Log()
    log.settle(PutUser("ann", (msgspec.structs.replace(GOOD, **change),), SECRET))
    log.settle(
        PutUser("ann", (), SECRET), PutUser("ann", (GOOD, GOOD), SECRET), PutUser("ann", (GOOD,), b"short")
    )
    assert log.image.users == {}
    assert log.image.version == -1


def test_users_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "USERS_COUNT_MAX", 2)
    log = Log()
    log.settle(*(PutUser(name, (GOOD,), SECRET) for name in ("a", "b", "c")))
    assert list(log.image.users) == ["a", "b"]
    log.settle(PutUser("a", (LONG,), SECRET))
    assert log.image.users["a"].credentials == (LONG,)


def test_snapshots_hold_users_and_those_from_before_do_not() -> None:
    log = Log()
    log.settle(ANN, RegisterNode(NodeInfo(1, 1, "h", 9, listeners={"nodes": ("i", 8), "left": ("l", 7)})))
    copy = Metadata()
    copy.restore(log.image.snapshot())
    assert copy.users == log.image.users
    assert copy.users_secret == SECRET
    assert copy.nodes[1].for_nodes == ("i", 8)
    old = msgspec.msgpack.decode(log.image.snapshot())
    del old["users"]
    for info in old["nodes"].values():
        del info["listeners"]
    copy.restore(msgspec.msgpack.encode(old))
    assert copy.users == {}
    assert copy.nodes[1] == NodeInfo(1, 1, "h", 9)
    # Nobody's state is shared with the next one's.
    payload = command_batch(ANN)
    copy.settle(Header(1, 9, kind=Kind.RECORDS, size=len(payload)), 0, payload)
    assert list(copy.users) == ["ann"]
    assert Metadata().users == {}


def test_a_command_that_is_not_known_changes_nothing() -> None:
    log = Log()
    payload = batch.encode_records([(None, msgspec.msgpack.encode({"type": "rename user", "name": "x"}))])
    log.settle_payload(payload)
    assert log.image.version == -1


def test_where_a_node_is_depends_on_who_asks() -> None:
    plain = NodeInfo(1, 1, "h", 9)
    assert (plain.on_listener("client"), plain.on_listener("left")) == (("h", 9), None)
    assert plain.for_nodes == ("h", 9)
    named = NodeInfo(1, 1, "h", 9, listeners={"nodes": ("i", 8), "left": ("h", 9)})
    assert (named.on_listener("left"), named.on_listener("client")) == (("h", 9), None)
    assert named.for_nodes == ("i", 8)
