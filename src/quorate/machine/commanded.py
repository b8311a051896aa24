"""What machines of homes have in common: their entries are commands, and each command has a result.

A command is the value of a record, in msgpack. It is decided when it is settled, in the order of the log, by
what the machine is then and by nothing else: the time, where it matters, is in the command. One that cannot be
read changes nothing. Whoever proposed a command asks for its result once it is applied (node/homes.py), by its
offset. Results are no state: a copy that began with a snapshot does not know them, and whoever asks it hears
that nobody knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec

from quorate import batch
from quorate.core.entry import Header, Kind
from quorate.machine import Payload

RESULTS_KEPT_MAX = 8192
"""Of the newest commands. Far more than a leader lets wait for their quorum."""

_encode = msgspec.msgpack.Encoder().encode


def commands_batch(commands: Iterable[Any]) -> bytes:
    """Commands as what is proposed."""
    return batch.encode_records([(None, _encode(command)) for command in commands])


class Commanded(ABC):
    """A machine that is one `Machine`; who inherits says what a command does, and what a snapshot holds."""

    def __init__(self, commands: Any, state: Any) -> None:
        """`commands` and `state` are the types of both."""
        self._decode_command = msgspec.msgpack.Decoder(commands).decode
        self._decode_state = msgspec.msgpack.Decoder(state).decode
        self._results: dict[int, Any] = {}

    @abstractmethod
    def apply(self, command: Any) -> Any:
        """Do it; what came of it, for whoever proposed it."""

    @abstractmethod
    def state(self) -> Any:
        """All that a snapshot holds."""

    @abstractmethod
    def become(self, state: Any) -> None:
        """Be what a snapshot says."""

    def result(self, offset: int) -> Any:
        """What came of the command there; None: it could not be read, or nobody knows any more."""
        return self._results.get(offset)

    # --- as a machine ---

    def settle(self, header: Header, checksum: int, payload: Payload) -> None:
        if header.kind == Kind.CONTROL:
            return
        try:
            values = [record.value or b"" for record in batch.decode_records(payload)]
        except batch.BadBatch:
            return
        for offset, value in enumerate(values, header.offset):
            try:
                command = self._decode_command(value)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self._results[offset] = self.apply(command)
        while len(self._results) > RESULTS_KEPT_MAX:
            del self._results[next(iter(self._results))]

    def snapshot(self) -> bytes:
        return _encode(self.state())

    def restore(self, data: bytes) -> None:
        self._results.clear()
        self.become(self._decode_state(data))
