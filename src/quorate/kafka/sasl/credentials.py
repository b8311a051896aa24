"""What is known of a name, in the metadata group's image; of strangers, too.

Somebody who is not there gets a salt and a number of iterations like anybody else, always the same, and is
refused at the end: what is said and how long it takes tell nobody which names there are.
"""

from __future__ import annotations

import hmac
from hashlib import sha512
from secrets import token_bytes
from typing import TYPE_CHECKING, NamedTuple

from quorate.machine.users import ITERATIONS_MIN, KEY_BYTES, SALT_BYTES_MIN, Credential

if TYPE_CHECKING:
    from quorate.machine.metadata import Metadata

_SECRET = token_bytes(32)
"""As long as the cluster has none of its own, it has no users: all are strangers."""


class NotAuthenticated(Exception):
    """Nobody is let in; the text is for the log, and not for them."""


class Known(NamedTuple):
    name: str
    credential: Credential
    at: int
    """Where in the log the password was set; -1: there is no such user, and no password is right."""

    @property
    def is_stranger(self) -> bool:
        return self.at < 0


def find(image: Metadata, name: str, mechanism: str) -> Known:
    user = image.users.get(name)
    credential = user.credential(mechanism) if user is not None else None
    # Made in any case: it takes a moment, and that moment must not be seen.
    stranger = _stranger(image, name, mechanism)
    if user is None or credential is None:
        return Known(name, stranger, -1)
    return Known(name, credential, user.at)


def _stranger(image: Metadata, name: str, mechanism: str) -> Credential:
    secret = image.users_secret or _SECRET
    made = hmac.digest(secret, f"{mechanism} {name}".encode(), sha512)
    size = KEY_BYTES[mechanism]
    return Credential(
        mechanism, made[:SALT_BYTES_MIN], _iterations(image, made[-8:]), made[-size:], made[-size:]
    )


def _iterations(image: Metadata, chosen_by: bytes) -> int:
    """Those of one of the users."""
    users = tuple(image.users.values())
    if not users:
        return ITERATIONS_MIN
    return users[int.from_bytes(chosen_by, "big") % len(users)].credentials[0].iterations
