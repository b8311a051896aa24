"""Isr: the leader waits for everybody who is in sync; a controller appoints it. See README.md in this room."""

from quorate.core.isr import messages
from quorate.core.isr.config import Config, SavedState, Tuning
from quorate.core.isr.controller import Controller, ControllerTuning
from quorate.core.isr.replica import Replica
from quorate.core.isr.state import Birth, PartitionState

__all__ = [
    "Birth",
    "Config",
    "Controller",
    "ControllerTuning",
    "PartitionState",
    "Replica",
    "SavedState",
    "Tuning",
    "messages",
]
