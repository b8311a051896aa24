"""When certificates end, as OpenSSL made them."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from quorate.node.certificates import Certificate, certificates_of, ends_in
from quorate.node.listeners import ListenerConfig, TlsConfig
from tests.cluster.secured import NEW_KEY, Authority, needs_openssl

DAY_MS = 24 * 3600 * 1000


def made(directory: Path, days: int) -> Path:
    """A certificate that is good for so long, from now on."""
    file = directory / f"{days}.pem"
    command = ("openssl", "req", "-x509", *NEW_KEY, "-days", str(days), "-subj", "/CN=n")
    subprocess.run(
        (*command, "-keyout", "n.key", "-out", file.name), cwd=directory, capture_output=True, check=True
    )
    return file


def told_by_openssl(file: Path) -> int:
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    month, day, clock, year, _ = said.removeprefix("notAfter=").split()
    when = parsedate_to_datetime(f"{day} {month} {year} {clock} +0000")
    return int(when.timestamp() * 1000)


@needs_openssl
@pytest.mark.parametrize("days", [2, 20_000], ids=["two digits of a year", "four"])
def test_an_end_is_what_openssl_says(tmp_path: Path, days: int) -> None:
    file = made(tmp_path, days)
    (ends_ms,) = ends_in(file)
    assert ends_ms == told_by_openssl(file)
    assert abs(ends_ms - (time.time() * 1000 + days * DAY_MS)) < DAY_MS
    assert (datetime.fromtimestamp(ends_ms / 1000, UTC).year >= 2050) == (days == 20_000)


@needs_openssl
def test_of_a_chain_the_first_end_counts(tmp_path: Path) -> None:
    long, short = made(tmp_path, 900), made(tmp_path, 3)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(long.read_bytes() + short.read_bytes())
    assert ends_in(chain) == [*ends_in(long), *ends_in(short)]
    tls = TlsConfig(str(chain), "n.key", ca=str(long))
    listeners = {
        "nodes": ListenerConfig("127.0.0.1:9091", tls=tls),
        "inside": ListenerConfig("127.0.0.1:9092"),
    }
    assert certificates_of(listeners) == (
        Certificate("listeners.nodes.tls.cert", str(chain), ends_in(short)[0]),
        Certificate("listeners.nodes.tls.ca", str(long), ends_in(long)[0]),
    )


@needs_openssl
def test_a_leaf_that_an_authority_signed_has_an_end(tmp_path: Path) -> None:
    signed = Authority(tmp_path, "ca").sign("n1")
    assert ends_in(Path(signed["cert"])) == [told_by_openssl(Path(signed["cert"]))]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_has_no_end(tmp_path: Path, text: str) -> None:
    file = tmp_path / "n.pem"
    file.write_text(text, encoding="utf-8")
    assert ends_in(file) == []
    assert ends_in(tmp_path / "not there.pem") == []
