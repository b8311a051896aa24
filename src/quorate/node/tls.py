"""TLS as a node speaks it: what its files must be, and what it asks of others.

Every file is opened when the node starts, and one that will not do is named, with the key that it stands under.
A key under a passphrase is refused: a node has nobody to ask.
"""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path

from quorate.node.address import BadConfig
from quorate.node.certificates import certificates_of
from quorate.node.listeners import Listeners, TlsConfig, letters_listener

VERSION_LEAST = ssl.TLSVersion.TLSv1_2


class Security:
    """How a node speaks with others, by its configuration. Raises BadConfig."""

    def __init__(self, listeners: Listeners) -> None:
        self.from_others: dict[str, ssl.SSLContext] = {}
        """Who connects, by listener; those that are not here speak without TLS."""
        self.to_nodes: ssl.SSLContext | None = None
        """This node connects to others; None: without TLS."""
        self.certificates = certificates_of(listeners)
        """Those that are used until the node is started anew, whatever becomes of their files."""
        for name, listener in listeners.items():
            if listener.tls is None:
                continue
            self.from_others[name] = server_context(f"listeners.{name}.tls", listener.tls)
            if name == letters_listener(listeners):
                self.to_nodes = client_context(f"listeners.{name}.tls", listener.tls)


def server_context(where: str, tls: TlsConfig) -> ssl.SSLContext:
    """For those who connect to us. With `ca`, nobody is heard without a certificate. Raises BadConfig."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, where, tls)
    if tls.ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(where: str, tls: TlsConfig) -> ssl.SSLContext:
    """For those whom we connect to: they must be who they are called. Raises BadConfig."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, where, tls)
    return context


def _load(context: ssl.SSLContext, where: str, tls: TlsConfig) -> None:
    context.minimum_version = VERSION_LEAST
    if tls.cert:
        _expect_readable(f"{where}.cert", tls.cert)
        _expect_readable(f"{where}.key", tls.key)
        _load_own(context, where, tls)
    if tls.ca:
        _expect_readable(f"{where}.ca", tls.ca)
        try:
            context.load_verify_locations(tls.ca)
        except ssl.SSLError as error:
            raise BadConfig(f"{where}.ca: {tls.ca} holds no certificates in PEM format") from error


def _load_own(context: ssl.SSLContext, where: str, tls: TlsConfig) -> None:
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(tls.cert, tls.key, passphrase)
    except ssl.SSLError as error:
        if asked:
            why = f"{where}.key: {tls.key} is under a passphrase, which nobody could type; store it without"
        elif error.reason == "KEY_VALUES_MISMATCH":
            why = f"{where}.key: {tls.key} does not belong to the certificate in {tls.cert}"
        elif not _holds_certificate(tls.cert):
            why = f"{where}.cert: {tls.cert} holds no certificate in PEM format"
        else:
            why = f"{where}.key: {tls.key} holds no private key in PEM format"
        raise BadConfig(why) from error


def _holds_certificate(file: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return False
    return True


def _expect_readable(key: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise BadConfig(f"{key}: {file}: {error.strerror}") from error


def why_failed(error: Exception) -> str:
    """A handshake that did not come about, in words for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        plain = reason in (
            "wrong version number",
            "http request",
            "unexpected message",
            "record layer failure",
        )
        return f"{reason}; does it speak TLS?" if plain else reason
    if isinstance(error, ConnectionRefusedError):
        return os.strerror(errno.ECONNREFUSED)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
