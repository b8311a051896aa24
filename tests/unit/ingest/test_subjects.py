"""What a NATS subject may look like."""

from __future__ import annotations

import pytest

from quorate.ingest.subjects import has_wildcard, why_bad_subject
from quorate.node.config import BadConfig, check_nats


@pytest.mark.parametrize("subject", ["a", "a.b.c", "a.*", "*.b", "a.>", ">", "a-b_1.c", "a.$b"])
def test_good_subjects(subject: str) -> None:
    assert why_bad_subject(subject) == ""


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a.", ".a", "a..b", "a b", "a\r\nSUB", "a.>.b", "a>", "a*b", "é", "$SYS.a", "a" * 256],
)
def test_bad_subjects(subject: str) -> None:
    assert why_bad_subject(subject)


@pytest.mark.parametrize(("subject", "has"), [("a.b", False), ("a.*", True), ("*.b", True), ("a.>", True)])
def test_wildcards(subject: str, *, has: bool) -> None:
    assert has_wildcard(subject) is has


@pytest.mark.parametrize(
    "servers", ["nats://h:4222", "nats://h", "tls://u:p@h:1", "nats://[::1]:1,nats://b:2"]
)
def test_good_servers(servers: str) -> None:
    check_nats(servers)


@pytest.mark.parametrize(
    "servers",
    ["h:1", "nats://", "ws://h:1", "nats://h:0", "nats://h:x", "nats://h/x", "nats://h?x", "nats://h#x", ","],
)
def test_bad_servers(servers: str) -> None:
    with pytest.raises(BadConfig, match="is no NATS server"):
        check_nats(servers)


@pytest.mark.parametrize("sign", [",", "/", "#", "?", "@/"])
def test_no_part_of_a_password_is_repeated_whatever_it_was_cut_at(sign: str) -> None:
    with pytest.raises(BadConfig) as refused:
        check_nats(f"nats://h:1,nats://user:half{sign}other@host:4222")
    assert "number 2 of " in str(refused.value)
    assert "half" not in str(refused.value)
    assert "other" not in str(refused.value)
