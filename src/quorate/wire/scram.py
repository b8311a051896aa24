"""SCRAM, as in RFC 5802: what both sides compute, and how its messages are written.

The client proves that it knows the password, and the server that it knows what is kept of it; neither travels.

    SaltedPassword := Hi(password, salt, iterations)
    ClientKey := HMAC(SaltedPassword, "Client Key")      StoredKey := H(ClientKey)
    ServerKey := HMAC(SaltedPassword, "Server Key")
    ClientProof := ClientKey XOR HMAC(StoredKey, AuthMessage)
    ServerSignature := HMAC(ServerKey, AuthMessage)

As Kafka and its clients do, names and passwords are taken as the UTF-8 that they are, not prepared (RFC 4013).
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism."""
NO_BINDING = "n,,"
"""What a client's first message begins with that binds nothing to its channel, and acts for itself."""


class BadScram(Exception):
    """A message that is not what the other side must say here."""


class Keys(NamedTuple):
    client: bytes
    stored: bytes
    server: bytes


def derived(hash_name: str, password: bytes, salt: bytes, iterations: int) -> Keys:
    """What a password comes to. It takes as long as `iterations` are many: on purpose."""
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
    client = hmac.digest(salted, b"Client Key", hash_name)
    return Keys(
        client, hashlib.new(hash_name, client).digest(), hmac.digest(salted, b"Server Key", hash_name)
    )


def xor(one: bytes, other: bytes) -> bytes:
    """Both directions: a proof from a client's key, and the key from its proof."""
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


# ---- messages ----


def attributes(message: str) -> dict[str, str]:
    """`n=user,r=nonce`; raises BadScram."""
    found: dict[str, str] = {}
    for part in message.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1 or name in found:
            raise BadScram(f"no attribute: {part[:20]!r}")
        found[name] = value
    return found


def decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise BadScram("a message is not UTF-8") from None


def bytes_in(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadScram("an attribute is not in base 64") from None


def text_of(content: bytes) -> str:
    return b64encode(content).decode()


def escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise BadScram("a name with a sign that must be written otherwise")
    return name.replace("=2C", ",").replace("=3D", "=")
