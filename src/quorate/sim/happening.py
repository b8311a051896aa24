"""One line of a simulated world's story. The trace prints them, the story diagram draws them."""

from __future__ import annotations

import msgspec


class Happening(msgspec.Struct, frozen=True, gc=False):
    """Something that happened at one virtual moment, on one node or (node 0) to the world."""

    at: float
    """Virtual seconds since the world began."""
    node: int
    what: str
    """A verb in the past tense: sent, received, lost, woke, flushed, proposed, answered, crashed, restarted, …"""
    partition: int = -1
    """The partition's number; -1 where it concerns the whole node."""
    text: str = ""
    message: int = 0
    """Joins both ends of one message's journey; 0 where there is none."""
    peer: int = 0
    """The other end of a message, or the other side of a cut link."""
    state: str = ""
    """The replica afterwards, in one line: `n2 leader e7 log 3..19 commit 17`."""

    def __str__(self) -> str:
        where = f"n{self.node}" if self.node else "world"
        partition = f" p{self.partition}" if self.partition >= 0 else ""
        message = f" #{self.message}" if self.message else ""
        peer = f" n{self.peer}" if self.peer else ""
        text = f" {self.text}" if self.text else ""
        state = f"   [{self.state}]" if self.state else ""
        return f"{self.at:10.6f} {where}{partition} {self.what}{peer}{message}{text}{state}"
