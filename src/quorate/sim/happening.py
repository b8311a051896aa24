"""One line of a simulated world's story. The trace prints them, the story diagram draws them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

OPERATOR_FIRST = 101
"""Whoever has such a number, or a higher one, is an operator and no node."""
SPOKEN_OF = re.compile(r"\b(?:n|operator )(\d+)\b")
"""Somebody, as the code calls everybody: by number."""
FRAMES = re.compile(r" \+(\d+) frames\b")
"""What a message carries beside its fields."""


class Names(msgspec.Struct, frozen=True):
    """What everybody is called, in traces and pictures alike."""

    given: Mapping[int, str] = {}
    """Names that somebody chose, a scenario's."""

    def of(self, number: int) -> str:
        if number in self.given:
            return self.given[number]
        return f"n{number}" if number < OPERATOR_FIRST else f"operator {number - OPERATOR_FIRST + 1}"

    def put(self, text: str) -> str:
        """Words of the code in words for people."""
        text = SPOKEN_OF.sub(lambda found: self.of(int(found[1])), text)
        return FRAMES.sub(lambda found: f" with {found[1]} {'entry' if found[1] == '1' else 'entries'}", text)


USUAL = Names()


def with_store(text: str, partition: int) -> str:
    """Who looks at a world from outside knows partitions by number only, the store's, too."""
    return re.sub(rf"\bp{partition}\b", "store", text)


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
    in_store: bool = False
    """The partition is no shard, but the group of nodes that is the operators' store."""

    def told(self, names: Names) -> str:
        where = names.of(self.node) if self.node else "world"
        partition = " store" if self.in_store else f" p{self.partition}" if self.partition >= 0 else ""
        message = f" #{self.message}" if self.message else ""
        peer = f" {names.of(self.peer)}" if self.peer else ""
        text = f" {names.put(self.text)}" if self.text else ""
        state = f"   [{names.put(self.state)}]" if self.state else ""
        return f"{self.at:10.6f} {where}{partition} {self.what}{peer}{message}{text}{state}"

    def __str__(self) -> str:
        return self.told(USUAL)
