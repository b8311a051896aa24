"""PLAIN (RFC 4616): the password itself, in one message. It is compared with what SCRAM keeps of it.

That takes some milliseconds, which the node has no time for: they pass in another thread.
"""

from __future__ import annotations

import hmac

from quorate.kafka.sasl.credentials import Known, NotAuthenticated
from quorate.wire.scram import HASHES, derived

PLAIN = "PLAIN"


def parse(message: bytes) -> tuple[str, bytes]:
    """Name and password; raises NotAuthenticated."""
    parts = message.split(b"\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise NotAuthenticated("no name and password")
    acting_as, name, password = parts
    if acting_as not in (b"", name):
        raise NotAuthenticated("nobody acts for somebody else")
    try:
        return name.decode(), password
    except UnicodeDecodeError:
        raise NotAuthenticated("a name is not UTF-8") from None


def is_right(known: Known, password: bytes) -> bool:
    """Whether it is that user's; as slow for strangers."""
    kept = known.credential
    keys = derived(HASHES[kept.mechanism], password, kept.salt, kept.iterations)
    return hmac.compare_digest(keys.stored, kept.stored_key) and not known.is_stranger
