"""What a person, or whoever plans for one, can order of an operator. Each is answered by a `Reply`."""

from __future__ import annotations

import msgspec

from quorate.core.coordinated.shard import Kind
from quorate.core.entry import Member


class Reconfigure(msgspec.Struct, frozen=True, gc=False):
    """Swap a node for another, add one, or remove one. A leader that must go is moved first."""

    request: int
    kind: Kind
    old: Member | None = None
    new: Member | None = None


class CallOff(msgspec.Struct, frozen=True, gc=False):
    """Whatever is wanted or prepared and not yet being committed is not to be."""

    request: int


class MoveLeader(msgspec.Struct, frozen=True, gc=False):
    """Elect anew; somebody other than the node that leads now, if that can be."""

    request: int


Order = Reconfigure | CallOff | MoveLeader
