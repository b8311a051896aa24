"""When the certificates end that a node was started with.

Python's `ssl` tells that only of somebody else's certificate, after a handshake; so the one place in a certificate
where its end stands is looked up here (RFC 5280, 4.1).
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from quorate.node.listeners import Listeners

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17
_TIME_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_BEFORE_VALIDITY = 3
"""Serial number, signature algorithm, issuer."""


class Certificate(msgspec.Struct, frozen=True, gc=False):
    key: str
    """Where the configuration names it."""
    file: str
    ends_ms: int
    """Of all in that file, the one that ends first; since 1970."""


def certificates_of(listeners: Listeners) -> tuple[Certificate, ...]:
    """Of every file that is named and holds some. What cannot be told is left out: TLS itself judges files."""
    found = []
    for name, listener in listeners.items():
        if listener.tls is None:
            continue
        for kind, file in (("cert", listener.tls.cert), ("ca", listener.tls.ca)):
            ends = ends_in(Path(file)) if file else []
            if ends:
                found.append(Certificate(f"listeners.{name}.tls.{kind}", file, min(ends)))
    return tuple(found)


def ends_in(file: Path) -> list[int]:
    """Of each certificate in a file, in its order, the millisecond since 1970 after which it is not good."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        return [_end_of(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (OSError, ValueError, IndexError):
        return []


def _end_of(certificate: bytes) -> int:
    """Raises ValueError or IndexError where it is none."""
    _, whole = _item(certificate, 0)
    _, signed = _item(certificate, whole.start)
    at = signed.start
    if certificate[at] == _VERSION:
        at = _item(certificate, at)[1].stop
    for _ in range(_BEFORE_VALIDITY):
        at = _item(certificate, at)[1].stop
    _, validity = _item(certificate, at)
    _, begin = _item(certificate, validity.start)
    tag, end = _item(certificate, begin.stop)
    if tag not in _TIME_FORMATS:
        raise ValueError(f"no time: {tag}")
    said = certificate[end].decode("ascii")
    when = datetime.strptime(said, _TIME_FORMATS[tag]).replace(tzinfo=UTC)
    if tag == _UTC_TIME and when.year >= 2050:  # Two digits: 50 to 99 are of the last century.
        when = when.replace(year=when.year - 100)
    return int(when.timestamp() * 1000)


def _item(data: bytes, at: int) -> tuple[int, slice]:
    """The tag of the item that begins there, and where its content is (DER, X.690)."""
    tag, length, begin = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[begin : begin + count])
        begin += count
    if begin + length > len(data):
        raise ValueError("it is cut short")
    return tag, slice(begin, begin + length)
