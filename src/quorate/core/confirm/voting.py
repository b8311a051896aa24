"""`_voting`: who stands, who said what, who leads (TT-13 to TT-18).

The document keeps it as a space in the log, but a log is appended to by its leader alone, and there is none while
one is being chosen (D7). So each node owns one row: it saves it with its state and sends it to all others, and the
table is a view of the newest row of each that has arrived.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId


class Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one node says in an epoch."""

    epoch: int = 0
    nominee: int = 0
    """Whom it speaks of: itself, if it stands; 0: nobody."""
    aye: bool = False
    leader: int = 0
    """CURRENT_LEADER_ID, as far as this node knows; 0: nobody."""
    former: int = 0
    """FORMER_LEADER_ID."""
    since: int = 0
    """The epoch in which these two were written."""

    def __str__(self) -> str:
        said = f"{'aye' if self.aye else 'nay'} to n{self.nominee}" if self.nominee else "nobody stands"
        return f"e{self.epoch} {said}, leader n{self.leader}, former n{self.former}"


class Voting:
    """The view that one node has of all rows, its own among them."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def take(self, node: int, row: Row) -> None:
        """The newest row of a node counts. Rows may arrive late and twice."""
        known = self.rows.get(node)
        if known is None or (row.epoch, row.since) >= (known.epoch, known.since):
            self.rows[node] = row

    @property
    def newest(self) -> Row:
        """The row that knows best who leads and who led: its `leader` is CURRENT_LEADER_ID, 0 at first."""
        return max(self.rows.values(), key=lambda row: (row.since, not row.leader), default=Row())


class Says(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="voting"):
    """A row of `_voting`, sent by its owner; and, where it is a nomination or a vote, what that rests on."""

    epoch: int
    row: Row
    last: EntryId = NOWHERE
    """A nominee's head, by which it is judged (D6)."""
    stands: bool = False
    """The row is a nomination of its owner."""
    ordered: bool = False
    """Somebody wants this nominee, whoever leads: that the leader is still heard is no reason to refuse."""
    faulty: bool = False
    """A voter's log has damage: it counts as asked, and cannot lead itself."""
    commit: int | None = None
    """What a voter knows to be settled: a forced rollback does not reach below it. None: it does not say."""
