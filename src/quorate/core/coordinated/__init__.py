"""Coordinated: an operator outside of the data path fences, elects and reconfigures. See README.md in this room."""

from quorate.core.coordinated import messages
from quorate.core.coordinated.config import Config, SavedState, Tuning
from quorate.core.coordinated.operator import Operator, OperatorTuning
from quorate.core.coordinated.replica import Replica
from quorate.core.coordinated.shard import Shard, Status

__all__ = [
    "Config",
    "Operator",
    "OperatorTuning",
    "Replica",
    "SavedState",
    "Shard",
    "Status",
    "Tuning",
    "messages",
]
