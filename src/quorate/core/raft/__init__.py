"""Raft: replicas elect their own leader, a majority commits. See README.md in this room."""

from quorate.core.raft import messages
from quorate.core.raft.config import Config, SavedState, Tuning
from quorate.core.raft.replica import Replica

__all__ = ["Config", "Replica", "SavedState", "Tuning", "messages"]
