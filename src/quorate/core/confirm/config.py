"""What a confirm replica is told at birth, and what it keeps on disk beside its log: raft's, and a little more."""

from __future__ import annotations

from quorate.core import quorum
from quorate.core.confirm.voting import Row
from quorate.core.entry import Quorums
from quorate.core.raft import config as raft

FIRST_VERSION = 1
CUTTING_LOOSE = 2
"""The feature level at which everybody knows that a replica may follow without counting (`AppendResponse.loose`),
that quorums have sizes (`Membership.quorums`), and that voters say what they know to be settled (`Says.commit`).
A leader that does not would count whom it must not, or by majorities where others go by something else."""
TOO_NEW = "not every node of this cluster knows of that yet: upgrade all of them first"


class SavedState(raft.SavedState, frozen=True, gc=False, omit_defaults=True):
    """Durable before any answer that depends on it."""

    row: Row = Row()
    """What this node last said in `_voting` (D7)."""
    led: int = 0
    """The newest epoch in which this replica took writes: what is cut of that one is kept for people (TT-27)."""
    loose: bool = False
    """It has cut itself loose, and neither votes nor counts until it is joined again (D9)."""


class Tuning(raft.Tuning, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Times and bounds; the same for every replica of a node."""

    automatic: bool = True
    """Replicas that miss their leader stand for election by themselves. If not, somebody promotes one (TT-12)."""
    feature_level: int = CUTTING_LOOSE
    """Up to which version every node of the cluster speaks: what came later is neither said nor done (TT-41)."""
    alone_timeouts: float = 5.0
    """Election time-outs for which a leader that too few follow goes on leading, read-only, until it lets others
    try; where nothing is automatic it goes on until it is told otherwise."""


class Config(raft.Config, frozen=True, gc=False):
    tuning: Tuning = Tuning()
    quorums: Quorums | None = None
    """Those at birth; None: majorities."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.quorums is None or not quorum.why_unsafe(self.quorums, len(self.voters))
