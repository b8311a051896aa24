"""Confirm: writes apply at once, and are settled by CONFIRM and ROLLBACK. See README.md in this room."""

from quorate.core.confirm import messages
from quorate.core.confirm.config import Config, SavedState, Tuning
from quorate.core.confirm.replica import Replica

__all__ = ["Config", "Replica", "SavedState", "Tuning", "messages"]
