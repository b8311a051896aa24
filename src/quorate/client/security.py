"""How a client shows who it is, and makes sure of who answers: TLS, and SASL with a password (SCRAM or PLAIN)."""

from __future__ import annotations

import hmac
import socket
import ssl
from collections.abc import Generator
from dataclasses import dataclass, field
from secrets import token_urlsafe

from quorate.client.errors import ClientError
from quorate.wire.scram import (
    HASHES,
    NO_BINDING,
    BadScram,
    attributes,
    bytes_in,
    decoded,
    derived,
    escaped,
    text_of,
    xor,
)

PLAIN = "PLAIN"
MECHANISMS = (*HASHES, PLAIN)
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""A server that asks for less wants to know the password; one that asks for more, our time."""
NONCE_BYTES = 24

Conversation = Generator[bytes, bytes, None]
"""Tokens for the server; what it answers to each is sent in."""


class NotLetIn(ClientError):
    """The node does not believe that we are who we say, or is not whom we trust. Trying again does not mend it."""


@dataclass(frozen=True)
class Security:
    """As the listener that is asked wants it."""

    tls: bool = False
    ca: str = ""
    """A file of those who may sign a node's certificate; empty: whoever this system trusts."""
    cert: str = ""
    key: str = ""
    """Our own certificate, where one must be shown."""
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = "SCRAM-SHA-256"

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism {self.mechanism!r} is unknown; there are: {', '.join(MECHANISMS)}")
        if bool(self.user) != bool(self.password):
            raise ValueError("a user and a password belong together; give both or none")
        if bool(self.cert) != bool(self.key):
            raise ValueError("a certificate and its key belong together; give both or none")

    def wrapped(self, connection: socket.socket, host: str) -> socket.socket:
        """Within the socket's own time-out; raises NotLetIn and OSError."""
        if not self.tls:
            return connection
        try:
            return self.context().wrap_socket(connection, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise untrusted(host, error) from error

    def context(self) -> ssl.SSLContext:
        """Raises NotLetIn."""
        context = ssl.create_default_context()
        try:
            if self.ca:
                context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key, lambda: "")
        except OSError as error:
            files = ", ".join(file for file in (self.ca, self.cert, self.key) if file)
            raise NotLetIn(
                f"the files for TLS ({files}) cannot be used: {error.strerror or error}"
            ) from error
        return context

    def tokens(self) -> Conversation:
        """Raises NotLetIn where the node's answers prove nothing."""
        if self.mechanism == PLAIN:
            yield b"\0%s\0%s" % (self.user.encode(), self.password.encode())
            return
        try:
            yield from scram(self.mechanism, self.user, self.password)
        except BadScram as bad:
            raise NotLetIn(f"the node does not speak {self.mechanism} as it should: {bad}") from bad


def untrusted(host: str, error: ssl.SSLCertVerificationError) -> NotLetIn:
    return NotLetIn(
        f"{host} shows a certificate that is not trusted ({error.verify_message}); name who signed it, or "
        f"connect to the name that it is for"
    )


def scram(mechanism: str, user: str, password: str, *, nonce: str | None = None) -> Conversation:
    """RFC 5802, the client's side: the server has to prove that it knows us, too. Raises BadScram."""
    hash_name = HASHES[mechanism]
    own_nonce = nonce or token_urlsafe(NONCE_BYTES)
    first = f"n={escaped(user)},r={own_nonce}"
    answer = decoded((yield (NO_BINDING + first).encode()))
    given = attributes(answer)
    if list(given)[:3] != ["r", "s", "i"] or not given["i"].isdecimal():
        raise BadScram("a nonce, a salt and a number of iterations come first")
    if not given["r"].startswith(own_nonce) or given["r"] == own_nonce:
        raise BadScram("another conversation's nonce")
    if not ITERATIONS_MIN <= int(given["i"]) <= ITERATIONS_MAX:
        raise BadScram(f"{given['i']} iterations")
    keys = derived(hash_name, password.encode(), bytes_in(given["s"]), int(given["i"]))
    final = f"c={text_of(NO_BINDING.encode())},r={given['r']}"
    said = f"{first},{answer},{final}".encode()
    proof = xor(keys.client, hmac.digest(keys.stored, said, hash_name))
    signature = attributes(decoded((yield f"{final},p={text_of(proof)}".encode()))).get("v", "")
    if not hmac.compare_digest(bytes_in(signature), hmac.digest(keys.server, said, hash_name)):
        raise BadScram("the node does not know the password itself")
