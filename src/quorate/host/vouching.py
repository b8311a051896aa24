"""Whose transactions a leader may take batches of: those that their coordinator has said to be open (KIP-890).

A batch that comes too late, when its transaction has ended, would open it again, and nobody would ever end it: all
readers of committed records would stand still there. So a leader asks before the first batch that it takes of a
transaction; what earlier leaders heard does not count. Between the question and its answer a marker may have ended
the transaction: then the answer is about the past, and the leader asks again.
"""

from __future__ import annotations

from quorate.machine.producers import Numbered


class Vouching:
    """Of one leader; forgotten when another leadership begins."""

    __slots__ = ("_asked", "_epoch", "_questions", "_vouched")

    def __init__(self) -> None:
        self._epoch = 0
        self._questions = 0
        self._asked: dict[int, int] = {}
        """The newest question about each producer that nothing has overtaken."""
        self._vouched: dict[int, int] = {}
        """The epoch of each producer that was vouched for."""

    def vouches(self, batch: Numbered, epoch: int) -> bool:
        """Whether batches of this producer may be taken, by the leader of this epoch."""
        return epoch == self._epoch and self._vouched.get(batch.producer_id) == batch.epoch

    def ask(self, producer_id: int, epoch: int) -> int:
        """The number of a question that the leader of this epoch is about to ask."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._asked.clear()
            self._vouched.clear()
        self._questions += 1
        self._asked[producer_id] = self._questions
        return self._questions

    def answered(self, batch: Numbered, question: int, *, is_open: bool) -> bool:
        """The coordinator has answered; whether the producer is vouched for now."""
        if self._asked.get(batch.producer_id) != question:
            return False
        del self._asked[batch.producer_id]
        if is_open:
            self._vouched[batch.producer_id] = batch.epoch
        return is_open

    def end(self, producer_id: int) -> None:
        """Its transaction ends, or is counted: whatever was said, or is being said, is about the past."""
        self._asked.pop(producer_id, None)
        self._vouched.pop(producer_id, None)
