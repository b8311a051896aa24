"""SCRAM on the server's side: the RFCs' own conversations, and everything that must not be believed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.cli.user import put_user
from quorate.client.introduction import after
from quorate.client.security import Conversation, NotLetIn, Security, scram
from quorate.kafka.sasl import plain
from quorate.kafka.sasl.credentials import Known, NotAuthenticated, find
from quorate.kafka.sasl.scram import ScramServer
from quorate.machine.metadata import Metadata
from quorate.machine.users import Credential
from quorate.wire.scram import HASHES, bytes_in, derived
from tests.unit.machine.test_metadata import Log

CONVERSATIONS = {
    "sha1": (  # RFC 5802, section 5
        "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "sha256": (  # RFC 7677, section 3
        "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        (
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        ),
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}
ITERATIONS = 4096


def converse(conversation: Conversation, exchange: Callable[[bytes], bytes]) -> None:
    """Until the client has nothing more to say."""
    token = next(conversation, None)
    while token is not None:
        token = after(conversation, exchange(token))


def known(hash_name: str, name: str, password: str, salt: bytes) -> Known:
    keys = derived(hash_name, password.encode(), salt, ITERATIONS)
    return Known(name, Credential("", salt, ITERATIONS, keys.stored, keys.server), 7)


def rfc_server(hash_name: str) -> ScramServer:
    first, answer, _, _ = CONVERSATIONS[hash_name]
    client_nonce = first.partition(",r=")[2]
    nonce, salt = answer.removeprefix(f"r={client_nonce}").split(",")[:2]

    def found(name: str) -> Known:
        assert name == "user"
        return known(hash_name, name, "pencil", bytes_in(salt.removeprefix("s=")))

    return ScramServer("", found, nonce=nonce, hash_name=hash_name)


@pytest.mark.parametrize("hash_name", CONVERSATIONS)
def test_the_rfcs_own_conversation(hash_name: str) -> None:
    first, answer, final, signature = CONVERSATIONS[hash_name]
    server = rfc_server(hash_name)
    assert server.step(first.encode()).decode() == answer
    assert server.step(final.encode()).decode() == signature
    assert server.is_done
    assert (server.known.name, server.known.at) == ("user", 7)


def test_our_client_says_what_the_rfc_says() -> None:
    first, answer, final, signature = CONVERSATIONS["sha256"]
    said: list[bytes] = []
    answers = iter((answer, signature))

    def exchange(token: bytes) -> bytes:
        said.append(token)
        return next(answers).encode()

    converse(scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO"), exchange)
    assert said == [first.encode(), final.encode()]


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.encode("utf-8", "ignore").decode() == name)


@settings(max_examples=20)
@given(mechanism=st.sampled_from(sorted(HASHES)), name=NAMES, password=NAMES, other=NAMES)
def test_client_and_server_agree_about_any_name_and_password(
    mechanism: str, name: str, password: str, other: str
) -> None:
    kept = known(HASHES[mechanism], name, password, bytes(16))

    def find_it(asked: str) -> Known:
        assert asked == name
        return kept

    server = ScramServer(mechanism, find_it)
    converse(scram(mechanism, name, password), server.step)
    assert server.is_done
    if other != password:
        server = ScramServer(mechanism, find_it)
        with pytest.raises(NotAuthenticated, match="a wrong password"):
            converse(scram(mechanism, name, other), server.step)
        assert not server.is_done


FIRST, ANSWER, FINAL, SIGNATURE = CONVERSATIONS["sha256"]


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n,,",
        "n",
        "p=tls-unique,,n=user,r=abc",
        "n,,r=abc,n=user",
        "n,,n=user,r=",
        "n,,n=user,r=\x7f",
        "n,,n=user,n=user,r=abc",
        "n,,m=new,n=user,r=abc",
        "n,,n=us=er,r=abc",
        "n,a=root,n=user,r=abc",
        "n,,n=user,r=" + 2000 * "x",
        "n,,n=user,r=abc,",
    ],
)
def test_a_first_message_that_is_none(message: str) -> None:
    server = rfc_server("sha256")
    with pytest.raises(NotAuthenticated):
        server.step(message.encode())
    assert not server.is_done


@pytest.mark.parametrize(
    "message",
    [
        "",
        FINAL.replace("c=biws", "c=eSws"),  # It said n,, and now says that it said y,,
        FINAL.replace("k0,p", "k1,p"),
        FINAL.replace("r=rOpr", "r=xOpr"),
        FINAL.replace("p=dH", "p=dI"),
        FINAL.partition(",p=")[0],
        FINAL.partition(",p=")[0] + ",p=",
        FINAL.partition(",p=")[0] + ",p=AAAA",
        FINAL.partition(",p=")[0] + ",p=?",
        FINAL.replace("c=biws,", ""),
    ],
)
def test_a_final_message_that_proves_nothing(message: str) -> None:
    server = rfc_server("sha256")
    server.step(FIRST.encode())
    with pytest.raises(NotAuthenticated):
        server.step(message.encode())
    assert not server.is_done


def test_who_acts_for_itself_may_say_so() -> None:
    server = rfc_server("sha256")
    assert server.step(b"y,a=user,n=user,r=abc").startswith(b"r=abc")


def tampered(change: Callable[[str], str], *, answer: int) -> Callable[[bytes], bytes]:
    server, count = rfc_server("sha256"), 0

    def exchange(token: bytes) -> bytes:
        nonlocal count
        count += 1
        said = server.step(token).decode()
        return (change(said) if count == answer else said).encode()

    return exchange


@pytest.mark.parametrize(
    ("answer", "pattern", "new"),
    [
        (1, r"i=\d+", "i=1"),
        (1, r"i=\d+", "i=99999999"),
        (1, r"i=\d+", "i=many"),
        (1, r"r=.", "r=~"),
        (1, r"s=..", "s=??"),
        (1, r"s=[^,]+", "s=AAAA"),
        (2, r"v=....", "v=AAAA"),
        (2, r"v=", "e="),
    ],
)
def test_our_client_does_not_believe_a_server_that_knows_nothing(answer: int, pattern: str, new: str) -> None:
    exchange = tampered(lambda said: re.sub(pattern, new, said, count=1), answer=answer)
    with pytest.raises((NotLetIn, NotAuthenticated)) as raised:
        converse(Security(user="user", password="pencil").tokens(), exchange)
    if raised.type is NotLetIn:
        assert "does not speak SCRAM-SHA-256 as it should" in str(raised.value)
    else:  # With another salt, it is the server that sees a wrong proof.
        assert new == "s=AAAA"


# ---- strangers ----


def image_of(*users: str, iterations: int = 8192) -> Metadata:
    log = Log()
    log.settle(*(put_user(name, f"password of {name}", iterations=iterations) for name in users))
    return log.image


def test_strangers_are_asked_like_anybody_and_always_the_same() -> None:
    image = image_of("ann", "bob", iterations=9000)
    for mechanism in HASHES:
        stranger, again = find(image, "eve", mechanism), find(image, "eve", mechanism)
        ann = find(image, "ann", mechanism)
        assert (stranger.is_stranger, ann.is_stranger) == (True, False)
        assert stranger == again
        assert stranger.credential.iterations == ann.credential.iterations == 9000
        assert len(stranger.credential.salt) == len(ann.credential.salt)
        assert len(stranger.credential.stored_key) == len(ann.credential.stored_key)
        assert stranger.credential.salt != find(image, "mallory", mechanism).credential.salt
    assert find(image_of("ann"), "eve", "SCRAM-SHA-256").credential.salt != stranger.credential.salt


def test_before_there_is_any_user_all_are_strangers() -> None:
    assert find(Metadata(), "ann", "SCRAM-SHA-512").is_stranger


def test_a_stranger_is_refused_at_the_end_and_told_the_same() -> None:
    image = image_of("ann")
    refusals = set()
    for name in ("ann", "eve"):
        for mechanism in HASHES:
            server = ScramServer(mechanism, partial(find, image, mechanism=mechanism))
            with pytest.raises(NotAuthenticated) as refused:
                converse(scram(mechanism, name, "wrong"), server.step)
            refusals.add(str(refused.value))
    assert refusals == {"a wrong password, or no such user"}


def test_a_plain_password_of_a_stranger_takes_as_long() -> None:
    image = image_of("ann", iterations=100_000)
    ann, eve = (find(image, name, "SCRAM-SHA-256") for name in ("ann", "eve"))
    assert plain.is_right(ann, b"password of ann")

    def took(who: Known) -> float:
        began = perf_counter()
        assert not plain.is_right(who, b"wrong")
        return perf_counter() - began

    assert min(took(eve) for _ in range(3)) > 0.5 * min(took(ann) for _ in range(3))


@pytest.mark.parametrize(
    "message", [b"", b"ann", b"\0ann", b"\0ann\0", b"\0\0pw", b"bob\0ann\0pw", b"\0ann\0pw\0", b"\0\xff\0pw"]
)
def test_no_plain_message(message: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        plain.parse(message)


def test_a_plain_message() -> None:
    assert plain.parse(b"\0ann\0pw") == plain.parse(b"ann\0ann\0pw") == ("ann", b"pw")
