"""What scenarios must know of each protocol; everything else is the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from quorate.core import confirm, coordinated, isr, raft
from quorate.core.confirm.invariants import ConfirmInvariants
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.entry import Member
from quorate.core.isr.invariants import IsrInvariants
from quorate.core.raft.invariants import RaftInvariants
from quorate.host import HostSettings
from quorate.host.detector import DetectorSettings
from quorate.sim.scenario_words import Mistake
from quorate.sim.tunables import Oversight
from quorate.storage.settings import KIB, StoreSettings

SOMEBODY = Member(0, 0)
"""Got the votes of epochs that were over before the scenario began."""

Members = tuple[Member, ...]


class Room(msgspec.Struct, frozen=True):
    """One protocol."""

    name: str
    messages: Mapping[str, type]
    """By the name that scenarios use: `append-entries`."""
    elections: frozenset[str]
    """Messages that make a leader; empty where somebody else appoints one,"""
    overseers: str
    """and these do."""
    inquiries: frozenset[str]
    """Those of them by which a node finds out whether to stand at all."""
    promised_until: Callable[[Any], float]
    """Until when a replica follows whom it has heard, by its own clock."""
    offset_fields: frozenset[str]
    """Numbers in messages that are offsets."""
    node_fields: frozenset[str]
    """And those that are nodes; 0: none."""
    untold_fields: frozenset[str]
    """And those that tell nobody anything."""
    invariants: Callable[[], Any]
    found: Callable[[int, Members, Members, Mapping[str, float]], Any]
    """What the store has where logs are given: by the last epoch, who copies them, who of those is in sync, and the
    settings."""
    saved_state: Callable[[int, Any], Any]
    """What a replica has saved whose last epoch is this one, while that is stored."""
    tunings: tuple[Any, ...]
    """Of replicas, and of whoever oversees them."""


def message_name(message: type) -> str:
    """AppendEntries: append-entries."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", message.__name__).lower()


class Birth(msgspec.Struct, frozen=True):
    """What a partition of `isr` begins with."""

    min_isr: int = 1


def _raft_state(epoch: int, _: None) -> raft.SavedState:
    # Its vote in that epoch is spent: somebody led it, or will never have.
    return raft.SavedState(epoch, SOMEBODY if epoch else None)


def _isr_found(
    epoch: int, members: Members, in_sync: Members, chosen: Mapping[str, float]
) -> isr.PartitionState:
    birth = with_chosen(Birth(), chosen)
    leader = in_sync[0]
    return isr.PartitionState(epoch, epoch, leader, members, tuple(sorted(in_sync)), min_isr=birth.min_isr)


def _isr_state(epoch: int, stored: isr.PartitionState) -> isr.SavedState:
    return isr.SavedState(epoch, told=stored if stored.leader_epoch == epoch else None)


RAFT = Room(
    name="raft",
    messages={message_name(message): message for message in get_args(raft.messages.Message)},
    elections=frozenset({"gone-request", "gone-response", "vote-request", "vote-response"}),
    overseers="",
    inquiries=frozenset({"gone-request", "gone-response"}),
    promised_until=lambda replica: float(replica.promised_until),
    offset_fields=frozenset({"commit", "probe", "matched", "wants_snapshot"}),
    node_fields=frozenset({"heir"}),
    untold_fields=frozenset({"asked"}),
    invariants=RaftInvariants,
    found=lambda *_: None,
    saved_state=_raft_state,
    tunings=(raft.Tuning(),),
)

COORDINATED = Room(
    name="coordinated",
    messages={message_name(message): message for message in get_args(coordinated.messages.Message)},
    elections=frozenset(),
    overseers="operators",
    inquiries=frozenset(),
    promised_until=lambda replica: 0.0,
    offset_fields=frozenset({"commit", "probe", "matched", "wants_snapshot"}),
    node_fields=frozenset(),
    untold_fields=frozenset({"token"}),
    invariants=CoordinatedInvariants,
    found=lambda epoch, members, *_: coordinated.Shard(epoch, coordinated.Status.ELECTION, members),
    saved_state=lambda epoch, stored: coordinated.SavedState(epoch),
    tunings=(coordinated.Tuning(), coordinated.OperatorTuning()),
)

ISR = Room(
    name="isr",
    messages={message_name(message): message for message in get_args(isr.messages.Message)},
    elections=frozenset(),
    overseers="controllers",
    inquiries=frozenset(),
    promised_until=lambda replica: 0.0,
    offset_fields=frozenset({"commit", "flushed", "wants_snapshot"}),
    node_fields=frozenset(),
    untold_fields=frozenset({"session", "number", "controllers", "lives"}),
    invariants=IsrInvariants,
    found=_isr_found,
    saved_state=_isr_state,
    tunings=(isr.Tuning(), isr.ControllerTuning(), Birth()),
)

CONFIRM = Room(
    name="confirm",
    messages={message_name(message): message for message in get_args(confirm.messages.Message)},
    elections=frozenset({"gone-request", "gone-response", "says"}),
    overseers="",
    inquiries=frozenset({"gone-request", "gone-response"}),
    promised_until=lambda replica: float(replica.promised_until),
    offset_fields=RAFT.offset_fields,
    node_fields=RAFT.node_fields,
    untold_fields=RAFT.untold_fields,
    invariants=ConfirmInvariants,
    found=lambda *_: None,
    saved_state=lambda epoch, _: confirm.SavedState(epoch, SOMEBODY if epoch else None),
    tunings=(confirm.Tuning(),),
)

ROOMS = {room.name: room for room in (RAFT, COORDINATED, ISR, CONFIRM)}

STORE = StoreSettings(
    journal_bytes=256 * KIB,
    marks_bytes=64 * KIB,
    align_bytes=512,
    segment_bytes=256 * KIB,
    write_back_bytes=64 * KIB,
    carry_bytes_max=16 * KIB,
    round_bytes_max=64 * KIB,
)
"""Room for any story, and small enough to make many disks of."""


def check_setting(room: Room, name: str, value: str) -> float:
    """The value of a setting by name; raises Mistake."""
    known = settings_of(room)
    default = known.get(name.replace("-", "_"))
    if default is None:
        names = ", ".join(sorted(known)).replace("_", "-")
        raise Mistake(f"there is no setting {name}; there are: {names}")
    if isinstance(default, bool):
        if value not in ("yes", "no"):
            raise Mistake(f"{name} is yes or no")
        return value == "yes"
    try:
        return type(default)(value)
    except ValueError:
        raise Mistake(f"{name} is {'a whole number' if isinstance(default, int) else 'a number'}") from None


def settings_of(room: Room) -> dict[str, float]:
    """Every setting with its value unless a scenario says otherwise."""
    return {
        name: getattr(part, name)
        for part in (*room.tunings, STORE, DetectorSettings())
        for name in part.__struct_fields__
        if isinstance(getattr(part, name), int | float)
    }


def with_chosen(part: Any, chosen: Mapping[str, float]) -> Any:
    """Some settings, as far as a scenario says otherwise."""
    mine = {name: value for name, value in chosen.items() if name in part.__struct_fields__}
    return msgspec.structs.replace(part, **mine)


def oversight_settings(chosen: Mapping[str, float], copies: int) -> Oversight:
    birth = with_chosen(Birth(), chosen)
    return Oversight(
        operator=with_chosen(coordinated.OperatorTuning(), chosen),
        controller=with_chosen(isr.ControllerTuning(), chosen),
        min_isr_share=(birth.min_isr - 1) / max(1, copies - 1),
    )


def host_settings(chosen: Mapping[str, float]) -> HostSettings:
    return HostSettings(
        store=with_chosen(STORE, chosen),
        raft=with_chosen(raft.Tuning(), chosen),
        coordinated=with_chosen(coordinated.Tuning(), chosen),
        isr=with_chosen(isr.Tuning(), chosen),
        confirm=with_chosen(confirm.Tuning(), chosen),
        detector=with_chosen(DetectorSettings(), chosen),
    )
