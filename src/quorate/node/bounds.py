"""Within which bounds the numbers of a configuration lie: what types cannot say of how copies and disks behave.

What stands outside of them would end a node much later, in the middle of something else, and with other words.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.core import confirm, coordinated, isr, raft
from quorate.core.confirm.config import CUTTING_LOOSE
from quorate.host.detector import DetectorSettings
from quorate.node.address import BadConfig
from quorate.node.letters import ATTACHMENT_BYTES_MAX
from quorate.storage.frame import FRAME_HEAD_BYTES
from quorate.storage.settings import TINY, StoreSettings

PRIORITY_MAX = 1000
CEILING_MAX_S = 60.0
"""A leader that follows one with a higher ceiling would have to wait for longer than anybody wants."""
SECONDS_MIN, SECONDS_MAX = 0.001, 366 * 86_400.0
NUMBER_MAX = 1 << 40

_MAY_BE_NOTHING = frozenset(("snapshot_every", "keep_behind", "catch_up_max", "early_bytes", "ceiling_s"))
_LEAST = {
    name: getattr(TINY, name) for name in ("journal_bytes", "marks_bytes", "align_bytes", "segment_bytes")
}
"""Where simulations run with no less, neither does anybody else."""

Tuning = raft.Tuning | coordinated.Tuning | isr.Tuning


def check_bounds(
    *,
    raft_: raft.Tuning,
    coordinated_: coordinated.Tuning,
    isr_: isr.Tuning,
    confirm_: confirm.Tuning,
    store: StoreSettings,
    detector: DetectorSettings,
) -> None:
    """Raises BadConfig, which begins with the name of the setting."""
    _check_elections("raft", raft_)
    _check_elections("confirm", confirm_)
    tunings: dict[str, Tuning] = {
        "raft": raft_,
        "coordinated": coordinated_,
        "isr": isr_,
        "confirm": confirm_,
    }
    for where, tuning in tunings.items():
        _check_numbers(where, tuning)
        _check_messages(where, tuning)
    level = confirm_.feature_level
    if not 1 <= level <= CUTTING_LOOSE:
        raise BadConfig(f"confirm.feature_level: from 1 to {CUTTING_LOOSE}, not {level}")
    _check_numbers("store", store)
    if store.align_bytes & (store.align_bytes - 1):
        raise BadConfig(f"store.align_bytes: a power of two, not {store.align_bytes}")
    _check_numbers("detector", detector)
    if detector.ping_s >= detector.suspect_s:
        raise BadConfig("detector.ping_s: below suspect_s, or everybody is silent between two of them")


def _check_elections(where: str, tuning: raft.Tuning) -> None:
    if not 0 < tuning.heartbeat_s < tuning.election_timeout_s:
        raise BadConfig(f"{where}: heartbeat_s must lie between 0 and election_timeout_s")
    if not 0 <= tuning.priority <= PRIORITY_MAX:
        raise BadConfig(f"{where}: priority lies between 0 and {PRIORITY_MAX}")
    if not 0 <= tuning.ceiling_s <= CEILING_MAX_S:
        raise BadConfig(f"{where}: ceiling_s lies between 0 (no timestamps) and {CEILING_MAX_S}")
    if not 0 <= tuning.clock_drift_max < 1 or tuning.read_wait_s <= 0 or tuning.catch_up_max < 0:
        raise BadConfig(
            f"{where}: clock_drift_max is a share below 1, read_wait_s above 0, catch_up_max not below 0"
        )


def _check_numbers(where: str, settings: Any) -> None:
    for field in msgspec.structs.fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if isinstance(value, bool) or name in ("priority", "clock_drift_max", "feature_level"):
            continue
        if isinstance(value, float):
            least, greatest = 0.0 if name in _MAY_BE_NOTHING else SECONDS_MIN, SECONDS_MAX
        else:
            least, greatest = 0 if name in _MAY_BE_NOTHING else _LEAST.get(name, 1), NUMBER_MAX
        if not least <= value <= greatest:
            raise BadConfig(f"{where}.{name}: from {least:.15g} to {greatest:.15g}, not {value:.15g}")


def _check_messages(where: str, tuning: Tuning) -> None:
    message = tuning.message_bytes_max + tuning.message_entries_max * FRAME_HEAD_BYTES
    if max(message, tuning.chunk_bytes) > ATTACHMENT_BYTES_MAX:
        raise BadConfig(f"{where}: a message would be larger than {ATTACHMENT_BYTES_MAX} bytes")
