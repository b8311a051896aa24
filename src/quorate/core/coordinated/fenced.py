"""Fenced: takes no part in replication, until it is told to lead, or the leader of its epoch speaks (OX-7).

Each fencing has a name of its own. A node that is told to lead by the name of an earlier one is not what it was
when it was chosen: it has restarted, say, and lost what it had not flushed, while others have it. Were it to lead
in the same epoch again, two entries could get the same id.
"""

from __future__ import annotations

from quorate.core.coordinated.roles import Role

TOKEN_BITS = 53


class Fenced(Role):
    name = "fenced"

    def enter(self) -> None:
        self.replica.token = self.replica.rng.getrandbits(TOKEN_BITS)
