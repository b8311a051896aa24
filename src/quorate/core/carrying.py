"""What a message can have beside it, whatever the protocol.

A message with `headers` travels with the frames of those entries; the host finds them. A message that is a
`CarriesChunk` travels with bytes `at … at + length` of a snapshot.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import Snapshot


class CarriesChunk(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    snapshot: Snapshot
    at: int
    length: int
