"""Listeners as they are written down, and every way to get them wrong, each told in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.node.__main__ import EXIT_NOT_STARTED, EXIT_STOPPED, main
from quorate.node.config import Address, BadConfig, load_config
from quorate.node.listeners import (
    ListenerConfig,
    check_exposure,
    clients_listener,
    letters_listener,
    takes_clients,
    takes_letters,
)
from quorate.node.tls import Security
from tests.cluster.secured import Authority, needs_openssl

NODES = {"bind": "127.0.0.1:9091"}
TLS = {"cert": "c.pem", "key": "k.pem"}
MUTUAL = {**TLS, "ca": "ca.pem"}
BASE: dict[str, Any] = {"cluster": "c", "node": 1, "directory": "n1", "voters": [1]}


def written(directory: Path, content: dict[str, Any]) -> Path:
    path = directory / "node.json"
    path.write_bytes(msgspec.json.encode(content))
    return path


def test_toml_as_the_documentation_has_it(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        """
        cluster = "c"
        node = 1
        directory = "n1"

        [listeners.nodes]
        bind = "10.0.0.1:9091"
        tls = {cert = "n1.pem", key = "n1.key", ca = "nodes-ca.pem"}

        [listeners.inside]
        bind = "127.0.0.1:9092"

        [listeners.outside]
        bind = "0.0.0.0:9093"
        advertise = "n1.example.com:9093"
        tls = {cert = "n1.pem", key = "n1.key"}
        sasl = true
        """,
        encoding="utf-8",
    )
    config = load_config(path)
    listeners = config.all_listeners()
    assert list(listeners) == ["nodes", "inside", "outside"]
    assert listeners["outside"].advertised == Address("n1.example.com", 9093)
    tls = listeners["nodes"].tls
    assert tls is not None
    assert (tls.cert, tls.ca) == (str(tmp_path / "n1.pem"), str(tmp_path / "nodes-ca.pem"))
    assert (letters_listener(listeners), clients_listener(listeners)) == ("nodes", "inside")
    assert [name for name in listeners if takes_letters(name, listeners)] == ["nodes"]
    assert [name for name in listeners if takes_clients(name)] == ["inside", "outside"]
    assert config.own_address == Address("10.0.0.1", 9091)
    assert config.client_address == Address("127.0.0.1", 9092)
    check_exposure(listeners)


def test_listen_is_short_for_one_listener_that_takes_everything(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, {**BASE, "listen": "127.0.0.1:7001", "advertise": "n1:7"}))
    listeners = config.all_listeners()
    assert listeners == {"client": ListenerConfig("127.0.0.1:7001", "n1:7")}
    assert takes_letters("client", listeners)
    assert (config.own_address, config.client_address) == (Address("127.0.0.1", 7001), Address("n1", 7))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "listen: say where, host:port; or name `listeners`"),
        ({"listen": "h:1", "listeners": {"a": NODES}}, "leave them out beside `listeners`"),
        ({"advertise": "h:1", "listeners": {"a": NODES}}, "leave them out beside `listeners`"),
        ({"listen": "0.0.0.0:1"}, "advertise: nobody finds 0.0.0.0"),
        ({"listeners": {"nodes": NODES}}, "add one for clients, beside `nodes`"),
        ({"listeners": {"A": NODES}}, "'A' is no name"),
        ({"listeners": {"a b": NODES}}, "'a b' is no name"),
        ({"listeners": {"x" * 32: NODES}}, "is no name"),
        ({"listeners": {f"l{n}": {"bind": f"h:{n + 1}"} for n in range(17)}}, "17 are too many"),
        ({"listeners": {"a": {}}}, "bind"),
        ({"listeners": {"a": {"bind": "h:1", "tsl": {}}}}, "tsl"),
        ({"listeners": {"a": {"bind": "h"}}}, "listeners.a.bind: 'h' is not an address"),
        ({"listeners": {"a": {"bind": "h:1", "advertise": "h"}}}, "listeners.a.advertise: 'h' is not an"),
        ({"listeners": {"a": {"bind": "[::]:1"}}}, "listeners.a.advertise: nobody finds ::"),
        ({"listeners": {"a": {"bind": "h:0"}}}, "listeners.a.advertise: others must know its port"),
        ({"listeners": {"a": {"bind": "h:1", "connections_max": 0}}}, "listeners.a.connections_max: from 1"),
        ({"listeners": {"a": NODES, "b": NODES}}, "two of them bind the same address"),
        ({"listeners": {"a": {"bind": "h:1", "sasl": True}}}, "add a listener `nodes`"),
        ({"listeners": {"a": {"bind": "h:1"}, "nodes": {**NODES, "sasl": True}}}, "nodes have no passwords"),
        ({"listeners": {"a": {"bind": "h:1"}, "nodes": {**NODES, "tls": TLS}}}, "listeners.nodes.tls.ca"),
        ({"listeners": {"a": {"bind": "h:1", "tls": TLS}}}, "listeners.a.tls.ca: nodes speak here"),
        ({"listeners": {"a": {"bind": "h:1", "tls": {"cert": "c"}}}}, "key"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = written(tmp_path, BASE | change)
    with pytest.raises(BadConfig) as bad:
        load_config(path)
    assert words in str(bad.value)
    assert str(bad.value).startswith(f"{path}: ")
    assert "\n" not in str(bad.value)


OUT = {"bind": "10.0.0.1:9092"}


@pytest.mark.parametrize(
    ("listeners", "missing"),
    [
        ({"client": OUT}, "listeners.client.tls, listeners.client.sasl = true, a listener `nodes`;"),
        ({"client": {"bind": "quorate.example:1"}}, "other machines reach quorate.example"),
        ({"client": {"bind": "[2001:db8::1]:1"}}, "other machines reach 2001:db8::1"),
        ({"client": {"bind": "0.0.0.0:1", "advertise": "h:1"}}, "other machines reach 0.0.0.0"),
        ({"client": {**OUT, "tls": TLS}, "nodes": NODES}, "set listeners.client.sasl = true;"),
        ({"client": {**OUT, "tls": MUTUAL}, "nodes": NODES}, "set listeners.client.sasl = true;"),
        ({"client": {**OUT, "sasl": True}, "nodes": NODES}, "set listeners.client.tls;"),
        ({"client": {"bind": "localhost:1"}, "nodes": OUT}, "set listeners.nodes.tls;"),
        ({"client": {"bind": "127.9.9.9:1"}, "nodes": {"bind": "[::1]:1"}}, ""),
        ({"client": {**OUT, "sasl": True, "tls": TLS}, "nodes": NODES}, ""),
        ({"client": {**OUT, "sasl": True, "tls": TLS}, "nodes": {"bind": "h:1", "tls": MUTUAL}}, ""),
    ],
)
def test_nothing_is_open_to_other_machines_by_mistake(listeners: dict[str, Any], missing: str) -> None:
    made = msgspec.convert(listeners, dict[str, ListenerConfig])
    if not missing:
        check_exposure(made)
        return
    with pytest.raises(BadConfig) as bad:
        check_exposure(made)
    assert missing in str(bad.value)
    assert str(bad.value).endswith("or listen on 127.0.0.1, or say --insecure (insecure = true)")


def test_a_node_that_would_be_open_to_others_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {**BASE, "listen": "10.255.255.1:7001"})
    assert main(["--config", str(path), "--format"]) == EXIT_STOPPED
    assert main(["--config", str(path)]) == EXIT_NOT_STARTED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{path}: listeners.client: other machines reach 10.255.255.1" in said
    # Told to, it tries; this machine has no such address.
    assert main(["--config", str(path), "--insecure"]) == EXIT_NOT_STARTED
    assert "other machines" not in capsys.readouterr().err
    written(tmp_path, {**BASE, "listen": "10.255.255.1:7001", "insecure": True})
    assert main(["--config", str(path)]) == EXIT_NOT_STARTED
    assert "other machines" not in capsys.readouterr().err


# ---- files ----


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    authority = Authority(directory, "ca")
    authority.sign("one", "127.0.0.1")
    authority.sign("two", "127.0.0.1")
    (directory / "garbage").write_bytes(b"\0garbage")
    (directory / "empty").write_bytes(b"")
    command = [
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:secret",
        "-in",
        "one.key",
        "-out",
        "locked.key",
    ]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)
    return directory


@needs_openssl
@pytest.mark.parametrize(
    ("cert", "key", "ca", "words"),
    [
        ("none", "one.key", "ca.pem", "tls.cert: {}/none: No such file or directory"),
        ("one.pem", "none", "ca.pem", "tls.key: {}/none: No such file or directory"),
        ("one.pem", "one.key", "none", "tls.ca: {}/none: No such file or directory"),
        ("one.pem", "one.key", ".", "tls.ca: {}: Is a directory"),
        ("garbage", "one.key", "ca.pem", "tls.cert: {}/garbage holds no certificate in PEM format"),
        ("one.key", "one.key", "ca.pem", "tls.cert: {}/one.key holds no certificate in PEM format"),
        ("one.pem", "garbage", "ca.pem", "tls.key: {}/garbage holds no private key in PEM format"),
        ("one.pem", "one.pem", "ca.pem", "tls.key: {}/one.pem holds no private key in PEM format"),
        (
            "one.pem",
            "two.key",
            "ca.pem",
            "tls.key: {0}/two.key does not belong to the certificate in {0}/one.pem",
        ),
        ("one.pem", "locked.key", "ca.pem", "tls.key: {}/locked.key is under a passphrase"),
        ("one.pem", "one.key", "garbage", "tls.ca: {}/garbage holds no certificates in PEM format"),
        ("one.pem", "one.key", "empty", "tls.ca: {}/empty holds no certificates in PEM format"),
    ],
)
def test_a_file_that_will_not_do_is_named_with_its_key(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cert: str, key: str, ca: str, words: str
) -> None:
    tls = {"cert": str(files / cert), "key": str(files / key), "ca": str(files / ca)}
    content = {**BASE, "listeners": {"client": {"bind": "127.0.0.1:7001"}, "nodes": {**NODES, "tls": tls}}}
    path = written(tmp_path, content)
    assert main(["--config", str(path), "--format"]) == EXIT_STOPPED
    assert main(["--config", str(path)]) == EXIT_NOT_STARTED
    said = capsys.readouterr().err
    assert f"{path}: listeners.nodes.{words.format(files)}" in said
    assert said.count("\n") == 1


@needs_openssl
def test_good_files_make_what_is_needed_on_each_side(files: Path) -> None:
    tls = {"cert": str(files / "one.pem"), "key": str(files / "one.key")}
    listeners = {
        "nodes": {**NODES, "tls": {**tls, "ca": str(files / "ca.pem")}},
        "client": {**OUT, "tls": tls},
        "plain": {"bind": "127.0.0.1:3"},
    }
    security = Security(msgspec.convert(listeners, dict[str, ListenerConfig]))
    assert {name: context.verify_mode.name for name, context in security.from_others.items()} == {
        "nodes": "CERT_REQUIRED",
        "client": "CERT_NONE",
    }
    assert security.to_nodes is not None
    assert security.to_nodes.check_hostname
    assert security.to_nodes.verify_mode.name == "CERT_REQUIRED"
