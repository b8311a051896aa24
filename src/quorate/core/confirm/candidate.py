"""The nominee: asks for votes by its row of `_voting` (TT-15 to TT-19).

As raft's candidate, but that a NAY ends it (TT-18): whoever says it has what the nominee lacks, and is the better
leader. Those who cannot be better end nothing by it: a damaged log, one that does not count for now, one that is
asynchronous, and one whose AYE went to somebody else. Without enough AYEs, time does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import effects
from quorate.core.confirm.config import TOO_NEW
from quorate.core.confirm.voting import Says
from quorate.core.effects import Outcome
from quorate.core.entry import Member
from quorate.core.raft import candidate, follower

if TYPE_CHECKING:
    from quorate.core.confirm.replica import Replica


class Candidate(candidate.Candidate):
    replica: Replica

    def _ask(self) -> None:
        replica = self.replica
        replica.settled_elsewhere = replica.commit
        replica.stand(ordered=self.handed_over)

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is not Says:
            super().receive(sender, message)
        elif message.row.nominee == self.replica.me.node:
            self._voted(sender, message)

    def _voted(self, sender: Member, message: Says) -> None:
        replica = self.replica
        forces = replica.promotion is not None and replica.promotion.roll_back
        if message.commit is not None:
            replica.settled_elsewhere = max(replica.settled_elsewhere, message.commit)
        elif message.row.aye and forces:
            # The level is not raised there yet: what that voter has settled could be taken back (TT-41).
            self._withdraw(Outcome.REFUSED, TOO_NEW)
            return
        if message.row.aye:
            self._count(sender)
        elif sender in replica.voters and message.last > replica.log.head and not message.faulty:
            self._withdraw(
                Outcome.REFUSED, f"node {sender.node} said NAY: it has entries that this one lacks"
            )

    def woke(self) -> None:
        replica = self.replica
        ayes = sorted(member.node for member in self._votes)
        why = f"incomplete quorum: only nodes {ayes} said AYE, of {replica.membership}"
        replica.emit(effects.Report(why, member=replica.me))
        if replica.promotion is None and replica.may_stand():
            super().woke()
        else:
            self._withdraw(Outcome.TIMED_OUT, why)

    def _withdraw(self, outcome: Outcome, why: str) -> None:
        """The nomination is taken back; its epoch is spent."""
        replica = self.replica
        replica.answer_promotion(outcome, why)
        replica.stand_down()
        replica.withdrew()
        assert isinstance(replica.role, follower.Follower)
        replica.role.restart_clock(patience=2.0)  # Whoever has more goes first.
