"""A node that nobody has upgraded yet (TT-41): whatever reaches it or leaves it goes through the first version's
own messages (first_version.py), there and back.

- old-node-confused: it was sent something that the first version does not know. The real one would have broken off
  the connection, and taken the entry for damage.
- old-node-misread: what the first version says means something else to whoever hears it now.
"""

from __future__ import annotations

import msgspec

from quorate.batch import decode_control
from quorate.core.confirm import messages
from quorate.core.entry import Control
from quorate.core.invariant import Violated
from quorate.host import Parcel
from quorate.sim import first_version
from quorate.storage.frame import Frame

_encode = msgspec.msgpack.Encoder().encode
_decode_message: msgspec.msgpack.Decoder[messages.Message] = msgspec.msgpack.Decoder(messages.Message)
_decode_control: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def as_old(parcel: Parcel) -> Parcel:
    """The parcel as it is once a node of the first version has read it, or written it."""
    if parcel.partition is None:
        return parcel  # From node to node: no protocol's.
    for frame in parcel.frames:
        if frame.header.control is not None:
            _read_control(frame)
    message = parcel.message
    name = type(message).__name__
    try:
        again = _decode_message.decode(first_version.heard(_encode(message)))
    except msgspec.ValidationError as error:
        raise Violated("old-node-confused", f"{name}: {error}") from error
    if again != message:
        raise Violated("old-node-misread", f"{name}: {message} has become {again}")
    return msgspec.structs.replace(parcel, message=again)


def _read_control(frame: Frame) -> None:
    """Entries travel as they lie on a disk: their bytes are not written again, only understood."""
    name = f"{type(frame.header.control).__name__} at {frame.header.id}"
    record = decode_control(frame.payload)[1]
    try:
        again = _decode_control.decode(first_version.read_control(record))
    except msgspec.ValidationError as error:
        raise Violated("old-node-confused", f"{name}: {error}") from error
    if again != frame.header.control:
        raise Violated("old-node-misread", f"{name}: {frame.header.control} has become {again}")
