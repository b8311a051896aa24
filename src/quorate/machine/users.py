"""Who may speak to the cluster: names, and what is kept of their passwords.

A password itself is nowhere. For each way of asking for it (SCRAM with SHA-256 or SHA-512) there is a salt and
two keys, from which it can be told whether somebody knows the password, and from which nobody can pretend to
(RFC 5802).
"""

from __future__ import annotations

import re

import msgspec

ITERATIONS_MIN, ITERATIONS_MAX = 8192, 200_000
"""How often a password is hashed: guessing one costs as much each time, and so does asking for it."""
USERS_COUNT_MAX = 10_000
NAME_BYTES_MAX = 100
SALT_BYTES_MIN, SALT_BYTES_MAX = 16, 64
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 64
KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


class Credential(msgspec.Struct, frozen=True, gc=False):
    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class User(msgspec.Struct, frozen=True):
    credentials: tuple[Credential, ...]
    at: int = 0
    """Where in the log its password was set: two settings are never taken for each other."""

    def credential(self, mechanism: str) -> Credential | None:
        return next((each for each in self.credentials if each.mechanism == mechanism), None)


class PutUser(msgspec.Struct, frozen=True, tag="put user"):
    """That user, new or not, has this password from now on."""

    name: str
    credentials: tuple[Credential, ...]
    secret: bytes
    """Taken as the cluster's own where there is none yet."""


class RemoveUser(msgspec.Struct, frozen=True, tag="remove user"):
    name: str


class Users(msgspec.Struct):
    by_name: dict[str, User] = {}
    secret: bytes = b""
    """Strangers get salts, too, made from this: nobody can tell from a salt whether there is such a user."""


def change_users(users: Users, command: PutUser | RemoveUser, offset: int) -> bool:
    """Whether it changed anything."""
    if isinstance(command, RemoveUser):
        return users.by_name.pop(command.name, None) is not None
    is_new = command.name not in users.by_name
    if (
        why_not_named(command.name)
        or not _are_good(command)
        or (is_new and len(users.by_name) >= USERS_COUNT_MAX)
    ):
        return False
    users.by_name[command.name] = User(command.credentials, offset)
    users.secret = users.secret or command.secret
    return True


def why_not_named(name: str) -> str:
    """Why nobody can be called that; empty if somebody can."""
    if not _NAME.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        return (
            f"{name[:NAME_BYTES_MAX]!r} is no user's name: letters, digits and . _ @ -, a letter or digit first, "
            f"at most {NAME_BYTES_MAX}"
        )
    return ""


def _are_good(command: PutUser) -> bool:
    mechanisms = [each.mechanism for each in command.credentials]
    return (
        bool(mechanisms)
        and len(set(mechanisms)) == len(mechanisms)
        and all(map(_is_good, command.credentials))
        and SECRET_BYTES_MIN <= len(command.secret) <= SECRET_BYTES_MAX
    )


def _is_good(credential: Credential) -> bool:
    size = KEY_BYTES.get(credential.mechanism)
    return (
        size == len(credential.stored_key) == len(credential.server_key)
        and SALT_BYTES_MIN <= len(credential.salt) <= SALT_BYTES_MAX
        and ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX
    )
