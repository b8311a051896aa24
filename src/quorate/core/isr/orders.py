"""What a person, or whoever plans for one, can order of a controller. Each is answered by a `Reply`."""

from __future__ import annotations

import msgspec

from quorate.core.entry import Member


class ChangeReplicas(msgspec.Struct, frozen=True, gc=False):
    """Let `old` hold the partition no more, or `new` hold it, too, or both at once.

    Who is new is not in sync at first. To have a copy in sync before another goes, order the one, and then the
    other. How many must be in sync stays what it was when the partition was born.
    """

    request: int
    old: Member | None = None
    new: Member | None = None


class MoveLeader(msgspec.Struct, frozen=True, gc=False):
    """Let this member lead, or, if none is named, somebody other than who leads now."""

    request: int
    to: Member | None = None


class ElectUncleanly(msgspec.Struct, frozen=True, gc=False):
    """Let this replica lead though it may lack what is settled. What only the others have is lost."""

    request: int
    to: Member


Order = ChangeReplicas | MoveLeader | ElectUncleanly
