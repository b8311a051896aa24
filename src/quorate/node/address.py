"""Where something listens, as people write it: host:port."""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = r"[A-Za-z0-9_-]{1,63}"
_ADDRESS = re.compile(rf"(?:\[([0-9a-fA-F:.]+)\]|({_LABEL}(?:\.{_LABEL})*)):(\d{{1,5}})")


class BadConfig(Exception):
    """The configuration cannot be used, and the text says what to change."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise BadConfig(f"{text!r} is not an address: write host:port")
    return Address(found[1] or found[2], int(found[3]))
