"""`quorate --access FILE` and `quorate user`: what is read, and what is wrong with it, in one line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli import access, access_file
from quorate.cli.entry import run
from quorate.cli.user import put_user
from quorate.cli.wrong import WrongUsage
from quorate.client import Security
from quorate.machine.users import PutUser
from quorate.node.address import Address
from quorate.wire.scram import HASHES, derived
from tests.cluster.secured import Authority, needs_openssl
from tests.unit.cli.test_wrong_usage import complaint

GOOD = """
user = "ann"
password = "correct horse"
mechanism = "SCRAM-SHA-512"

[nodes]
servers = "127.0.0.1:1, 127.0.0.1:2"
"""


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(access.VARIABLE, raising=False)
    yield
    access.choose(None)


def written(directory: Path, text: str) -> Path:
    path = directory / "access.toml"
    path.write_text(text, encoding="utf-8")
    return path


def read(directory: Path, text: str) -> access_file.Given:
    access.choose(written(directory, text))
    return access.access()


def test_without_a_file_nobody_says_who_he_is() -> None:
    found = access.access()
    assert (found.security, found.nodes) == (None, None)


def test_what_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert found.security == Security(user="ann", password="correct horse", mechanism="SCRAM-SHA-512")
    assert found.nodes is not None
    assert found.nodes.servers == (Address("127.0.0.1", 1), Address("127.0.0.1", 2))
    assert (found.nodes.tls, found.letters_tls()) == (None, None)


@needs_openssl
def test_files_are_found_from_where_the_file_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "ca")
    authority.sign("ann")
    names = 'cert = "certificates/ann.pem", key = "certificates/ann.key", ca = "certificates/ca.pem"'
    found = read(tmp_path, f"tls = {{{names}}}\n[nodes]\nservers = 'h:1'\ntls = {{{names}}}\n")
    assert found.security is not None
    assert found.security.cert == str(tmp_path / "certificates" / "ann.pem")
    assert found.letters_tls() is not None
    assert found.nodes is not None
    assert found.nodes.tls is not None


def test_a_password_may_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access_file.PASSWORD, "from there")
    found = read(tmp_path, 'user = "ann"')
    assert found.security == Security(user="ann", password="from there")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user", "access.toml: "),
        ('usr = "ann"', "unknown field `usr`"),
        ('user = "ann"', "a user and a password belong together"),
        ('user = "ann"\npassword = "x"\nmechanism = "GSSAPI"', "mechanism 'GSSAPI' is unknown"),
        ('tls = {cert = "x"}', "a certificate and its key belong together"),
        ('tls = {ca = "none.pem"}', "the files for TLS"),
        ("[nodes]", "missing required field `servers`"),
        ('[nodes]\nservers = "here"', "nodes.servers: 'here' is not an address"),
        ('[nodes]\nservers = "h:1"\ntls = {cert = "x"}', "missing required field `key`"),
    ],
)
def test_what_is_wrong_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        read(tmp_path, text)
    assert words in str(wrong.value)
    assert str(tmp_path / "access.toml") in str(wrong.value)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "--access", str(tmp_path / "none"), "user", "list")
    assert "none': no such file or directory; name a file as docs/SECURITY.md has it" in line


def test_nodes_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, GOOD)
    line = complaint(capsys, "--access", str(path), "user", "list")
    assert line.startswith("quorate: 127.0.0.1:1: Connection refused; is the cluster up, and is ")


def test_certificates_of_nodes_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = 'tls = {cert = "a.pem", key = "a.key", ca = "ca.pem"}'
    path = written(tmp_path, GOOD + tls)
    line = complaint(capsys, "--access", str(path), "cluster", "status")
    assert f"{path}: nodes.tls.cert: {tmp_path / 'a.pem'}: No such file or directory" in line


# ---- users ----


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("ann bob", "correct horse\n", "'ann bob' is no user's name"),
        ("", "correct horse\n", "'' is no user's name"),
        ("ann", "short\n", "at least 8 characters"),
        ("ann", "", "at least 8 characters"),
        ("ann", 2000 * "x", "at most 1000 bytes"),
        ("ann", "correct\thorse\n", "characters that can be printed"),
    ],
)
def test_names_and_passwords_that_cannot_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, password: str, words: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(password))
    assert words in complaint(capsys, "user", "add", name)


def test_a_file_with_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    line = complaint(capsys, "user", "add", "ann", "--password-file", str(tmp_path / "password"))
    assert "it is not text in UTF-8" in line
    line = complaint(capsys, "user", "add", "ann", "--password-file", str(tmp_path / "none"))
    assert "no such file or directory; name a file that can be read" in line
    assert "8192" in complaint(capsys, "user", "add", "ann", "--iterations", "4096")


def test_a_password_is_kept_as_what_it_comes_to() -> None:
    command, again = put_user("ann", "correct horse"), put_user("ann", "correct horse")
    assert isinstance(command, PutUser)
    assert [each.mechanism for each in command.credentials] == list(HASHES)
    for kept, other in zip(command.credentials, again.credentials, strict=True):
        keys = derived(HASHES[kept.mechanism], b"correct horse", kept.salt, kept.iterations)
        assert (kept.stored_key, kept.server_key) == (keys.stored, keys.server)
        assert kept.iterations >= 8192
        assert kept.salt != other.salt
    assert command.secret != again.secret


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["user", "add", "--help"]) == 0
    assert "quorate user add ann" in capsys.readouterr().out
