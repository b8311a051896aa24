"""Chance in a made-up world: one seed, and a stream of its own for every concern.

A link, a disk, a client and the schedule of faults each draw from their own stream, so that leaving out one
fault disturbs as little as possible of the rest: that is what lets a failing seed be shrunk.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def stream(seed: int, *names: str | int) -> Random:
    """The stream of one concern. Not Python's `hash`, which differs from process to process."""
    text = "/".join(str(name) for name in (seed, *names))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))
