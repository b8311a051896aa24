"""Times, sizes and limits of one run, drawn from its seed: small ones, so that every edge is near."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from quorate.core import confirm, coordinated, isr
from quorate.core.coordinated import OperatorTuning
from quorate.core.keeping import KEEP_ALL
from quorate.core.raft import Tuning
from quorate.host import HostSettings
from quorate.host.detector import DetectorSettings
from quorate.sim.chance import stream
from quorate.sim.disk import SimDiskSettings
from quorate.sim.network import Weather
from quorate.sim.workload import Manners
from quorate.storage.settings import KIB, TINY, StoreSettings


class Oversight(msgspec.Struct, frozen=True):
    """Of operators, where there are some."""

    operator: OperatorTuning = OperatorTuning()
    operators_count: int = 1
    store_latency_s: float = 0.002
    suspect_after_s: float = 0.3
    """What is wrong for this long, operators are told."""
    whole: bool = False
    """The store is the metadata group, on the same nodes, instead of a dictionary."""
    controller: isr.ControllerTuning = isr.ControllerTuning()
    watched: bool = True
    """Controllers are told who is gone; otherwise they have only what replicas report."""
    min_isr_share: float = 0.0
    """How many must be in sync, between as few as is fair (0) and all (1)."""


class Tunables(msgspec.Struct, frozen=True):
    """What one run is made of, beside its nodes and faults."""

    pace_s: float = 0.15
    """The election time-out: the measure of everything that takes time."""
    seconds: float = 4.0
    """How long the safety phase lasts."""
    partitions_count: int = 1
    tables_share: float = 0.0
    """Of the partitions: those that are table groups. Outside of `confirm` none are, unless this is set."""
    clocks_wild: bool = False
    """Clocks run at any rate and jump: nobody promises anything about leases then."""
    weather: Weather = Weather()
    disk: SimDiskSettings = SimDiskSettings()
    host: HostSettings = HostSettings()
    manners: Manners = Manners()
    oversight: Oversight = Oversight()
    old_nodes: int = 0
    """So many have the first version's code in the beginning, and are upgraded in the middle (`confirm`, TT-41)."""


def draw(seed: int, overrides: Mapping[str, Any] | None = None) -> Tunables:
    """`overrides`: fields by name, of whichever part has them. Raises ValueError for a name nobody has."""
    rng = stream(seed, "tunables")
    pace = rng.choice((0.05, 0.1, 0.15, 0.3))
    raft = draw_more_raft(seed, draw_raft(rng, pace))
    parts: dict[str, Any] = {
        "raft": raft,
        "coordinated": as_coordinated(raft),
        "isr": draw_isr(stream(seed, "isr tuning"), raft),
        "confirm": draw_confirm(stream(seed, "confirm tuning"), raft),
        "controller": draw_controller(stream(seed, "controller tuning"), pace),
        "operator": draw_operator(stream(seed, "operator tuning"), pace),
        "oversight": draw_oversight(stream(seed, "oversight"), pace),
        "store": draw_store(rng, pace),
        "detector": DetectorSettings(
            ping_s=pace * rng.choice((0.3, 1.0)), suspect_s=pace * rng.choice((1.5, 4.0))
        ),
        "disk": draw_disk(rng, pace),
        "weather": draw_weather(rng, pace),
        "manners": msgspec.structs.replace(
            draw_manners(rng, pace),
            # By a chance of its own: where nobody has a producer id, worlds are what they were before.
            producers_share=stream(seed, "producers").choice((0.0, 0.5, 1.0)),
            readers_count=stream(seed, "readers").choice((0, 1, 2, 4)),
        ),
        "tunables": Tunables(
            pace_s=pace,
            seconds=pace * rng.choice((20.0, 40.0, 80.0)),
            partitions_count=rng.choice((1, 1, 2, 3, 4)),
            clocks_wild=stream(seed, "clocks").random() < 0.25,
            old_nodes=draw_old_nodes(stream(seed, "old nodes")),
            tables_share=stream(seed, "tables share").choice((0.0, 0.5, 0.5, 1.0)),
        ),
    }
    for name, value in (overrides or {}).items():
        owners = [part for part, settings in parts.items() if name in settings.__struct_fields__]
        if not owners:
            raise ValueError(f"no part of a run has a setting {name!r}")
        for owner in owners:
            parts[owner] = msgspec.structs.replace(parts[owner], **{name: value})
    if parts["tunables"].old_nodes and "feature_level" not in (overrides or {}):
        parts["confirm"] = msgspec.structs.replace(
            parts["confirm"], feature_level=confirm.config.FIRST_VERSION
        )
    tunables: Tunables = msgspec.structs.replace(
        parts["tunables"],
        weather=parts["weather"],
        disk=parts["disk"],
        manners=parts["manners"],
        host=HostSettings(
            store=parts["store"],
            raft=parts["raft"],
            metadata=parts["raft"],
            coordinated=parts["coordinated"],
            isr=parts["isr"],
            confirm=parts["confirm"],
            detector=parts["detector"],
        ),
        oversight=msgspec.structs.replace(
            parts["oversight"], operator=parts["operator"], controller=parts["controller"]
        ),
    )
    return tunables


def keeping_all(tunables: Tunables) -> Tunables:
    """Where things expire, nothing else makes a log shorter."""
    return _with(tunables, keep_behind=KEEP_ALL)


def pacing(tunables: Tunables) -> Tunables:
    """Where there is a rate, what copies are sent that do not count yet waits its turn."""
    return _with(tunables, paced=True)


def _with(tunables: Tunables, **more: Any) -> Tunables:
    host = tunables.host
    names = ("raft", "coordinated", "isr", "confirm")
    tuned = {name: msgspec.structs.replace(getattr(host, name), **more) for name in names}
    return msgspec.structs.replace(tunables, host=msgspec.structs.replace(host, **tuned))


# ---- what may be set instead ----

LEAST: dict[str, int | float] = {
    "pace_s": 0.05,
    **dict.fromkeys(("patience_s", "watch_s"), 0.1),
    **dict.fromkeys(("suspect_after_s", "lag_s", "report_s"), 0.01),
    **dict.fromkeys(("pause_s", "retry_s", "repair_retry_s"), 0.001),
    **dict.fromkeys(("election_timeout_s", "heartbeat_s", "ping_s", "suspect_s"), 0.001),
    "store_latency_s": 0.0001,
    **dict.fromkeys(("partitions_count", "operators_count", "align_bytes", "chunk_bytes"), 1),
    **dict.fromkeys(("message_bytes_max", "message_entries_max", "uncommitted_entries_max"), 1),
    **dict.fromkeys(("inflight_bytes_max", "inflight_messages_max"), 1),
    **dict.fromkeys(("journal_bytes", "marks_bytes"), 4 * KIB),
}
"""Below this, time stands still or nothing is ever done; 0 where nothing is said."""
MOST: dict[str, int] = {
    "partitions_count": 64,
    "operators_count": 9,
    "min_isr_share": 1,
    "tables_share": 1,
    "feature_level": 2,
    "old_nodes": 9,
    **dict.fromkeys(("clients_count", "readers_count"), 1_000),
}
"""Above this, a world does not fit into a machine, or means nothing."""
OF_CONTROLLERS = ("watched", "min_isr_share")
"""What operators of `coordinated` do not have."""
OF_CONFIRM = ("old_nodes",)
"""What only worlds of `confirm` have."""


def numbers_of(protocol: str) -> dict[str, int | float]:
    """The tunables that a run of this protocol has, by name, each with some value that it may have.

    Those of raft are the others', too: their store may be a raft group.
    """
    drawn = draw(0)
    host, oversight = drawn.host, drawn.oversight
    parts: list[msgspec.Struct] = [drawn, drawn.weather, drawn.disk, drawn.manners]
    parts += [host.store, host.raft, host.detector]
    if protocol in ("coordinated", "turning"):
        parts += [host.coordinated, oversight, oversight.operator]
    if protocol in ("isr", "turning"):
        parts += [host.isr, oversight, oversight.controller]
    if protocol in ("confirm", "turning"):
        parts.append(host.confirm)
    left_out = (OF_CONTROLLERS if protocol not in ("isr", "turning") else ()) + (
        OF_CONFIRM if protocol != "confirm" else ()
    )
    found = {name: getattr(part, name) for part in parts for name in part.__struct_fields__}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and name not in left_out
    }


def check_overrides(protocol: str, overrides: Mapping[str, Any], *, seed: int) -> None:
    """Raises ValueError, with a line for a person, for names and numbers that make no world."""
    numbers = numbers_of(protocol)
    for name, value in overrides.items():
        if name not in numbers:
            raise ValueError(f"{name}: no part of a run of {protocol} has a setting of this name")
        if isinstance(numbers[name], int) and not isinstance(value, int):
            raise ValueError(f"{name}: {value} is not a whole number")
        least, most = LEAST.get(name, 0), 1 if isinstance(numbers[name], bool) else MOST.get(name)
        if value < least or (most is not None and value > most):
            bounds = f"between {least} and {most}" if most is not None else f"at least {least}"
            raise ValueError(f"{name}: {value} is not {bounds}")
    host = draw(seed, overrides).host
    for part, shorter, longer in (
        (host.raft, "heartbeat_s", "election_timeout_s"),
        (host.detector, "ping_s", "suspect_s"),
    ):
        if getattr(part, shorter) >= getattr(part, longer):
            values = f"{getattr(part, shorter):g} and {getattr(part, longer):g}"
            raise ValueError(
                f"{shorter} must be below {longer}; they are {values} in the world of seed {seed}"
            )


# ---- what is drawn ----


def draw_raft(rng: Random, pace: float) -> Tuning:
    return Tuning(
        election_timeout_s=pace,
        heartbeat_s=pace * rng.choice((0.1, 0.25, 0.4)),
        message_bytes_max=rng.choice((1, 300, 2_000, 1 << 20)),
        message_entries_max=rng.choice((1, 2, 8, 256)),
        inflight_bytes_max=rng.choice((1, 2_000, 20_000, 1 << 20)),
        inflight_messages_max=rng.choice((1, 2, 8, 64)),
        uncommitted_entries_max=rng.choice((1, 4, 64, 1024)),
        snapshot_every=rng.choice((0, 5, 20, 60)),
        keep_behind=rng.choice((0, 3, 20)),
        chunk_bytes=rng.choice((16, 64, 1 << 16)),
        repair_retry_s=pace * rng.choice((0.5, 2.0)),
    )


def draw_more_raft(seed: int, tuning: Tuning) -> Tuning:
    """What came later, each from a stream of its own, so that nothing else is drawn differently."""
    pace = tuning.election_timeout_s
    ceilings = stream(seed, "ceiling")
    return msgspec.structs.replace(
        tuning,
        catch_up_max=stream(seed, "catch-up").choice((1, 4, 64)),
        clock_drift_max=stream(seed, "drift").choice((0.05, 0.1, 0.3)),
        read_wait_s=pace * stream(seed, "read-wait").choice((0.5, 3.0, 10.0)),
        ceiling_s=pace * ceilings.choice((0.5, 3.0)) if ceilings.random() < 0.3 else 0.0,
        prefer_snapshots=stream(seed, "prefer-snapshots").random() < 0.3,
    )


def as_coordinated(tuning: Tuning) -> coordinated.Tuning:
    """The same bounds for the other protocol."""
    names = [name for name in coordinated.Tuning.__struct_fields__ if name in Tuning.__struct_fields__]
    return coordinated.Tuning(**{name: getattr(tuning, name) for name in names})


def draw_isr(rng: Random, tuning: Tuning) -> isr.Tuning:
    """The same bounds, and times of its own."""
    pace = tuning.election_timeout_s
    shared = [name for name in isr.Tuning.__struct_fields__ if name in Tuning.__struct_fields__]
    return isr.Tuning(
        **{name: getattr(tuning, name) for name in shared},
        lag_s=pace * rng.choice((1.0, 2.0, 6.0)),
        suspect_s=pace * rng.choice((1.0, 2.0, 4.0)),
    )


def draw_confirm(rng: Random, tuning: Tuning) -> confirm.Tuning:
    """The same bounds; in some worlds nobody stands unasked.

    Where followers are sent one small message at a time, the limbo is small, too: asynchronous transactions are
    answered early, and what would have gathered when everything heals would take longer to settle than worlds last.
    """
    shared = {name: getattr(tuning, name) for name in Tuning.__struct_fields__}
    if tuning.inflight_messages_max < 8 and min(tuning.message_bytes_max, tuning.inflight_bytes_max) <= 300:
        shared["uncommitted_entries_max"] = min(64, tuning.uncommitted_entries_max)
    return confirm.Tuning(
        **shared,
        automatic=rng.random() < 0.75,
        alone_timeouts=rng.choice((0.0, 1.0, 5.0, 20.0)),
    )


def draw_old_nodes(rng: Random) -> int:
    """Mostly none; else one, or several."""
    return rng.choice((1, 1, 2, 3)) if rng.random() < 0.12 else 0


def draw_controller(rng: Random, pace: float) -> isr.ControllerTuning:
    return isr.ControllerTuning(
        retry_s=pace * rng.choice((0.3, 1.0)),
        patience_s=pace * rng.choice((2.0, 5.0)),
        watch_s=pace * rng.choice((2.0, 8.0)),
        report_s=pace * rng.choice((3.0, 10.0)),
    )


def draw_operator(rng: Random, pace: float) -> OperatorTuning:
    return OperatorTuning(
        retry_s=pace * rng.choice((0.3, 1.0)),
        patience_s=pace * rng.choice((2.0, 5.0)),
        watch_s=pace * rng.choice((2.0, 8.0)),
    )


def draw_oversight(rng: Random, pace: float) -> Oversight:
    return Oversight(
        operators_count=rng.choice((2, 2, 3)),
        store_latency_s=pace * rng.choice((0.005, 0.05, 0.2)),
        suspect_after_s=pace * rng.choice((1.0, 3.0)),
        whole=rng.random() < 1 / 3,
        watched=rng.random() < 0.5,
        min_isr_share=rng.choice((0.0, 0.0, 0.5, 1.0)),
    )


def draw_store(rng: Random, pace: float) -> StoreSettings:
    return msgspec.structs.replace(
        TINY,
        journal_bytes=KIB * rng.choice((32, 64, 256)),
        marks_bytes=KIB * rng.choice((16, 64)),
        align_bytes=rng.choice((64, 128, 512)),
        journal_entry_max=rng.choice((200, 1_000, 16_000)),
        round_bytes_max=KIB * rng.choice((2, 8, 64)),
        write_back_bytes=KIB * rng.choice((1, 6, 64)),
        carry_bytes_max=KIB * rng.choice((1, 4)),
        segment_bytes=KIB * rng.choice((1, 4, 64)),
        index_bytes=rng.choice((256, 2_048)),
        tail_bytes=rng.choice((0, 2_000, 16_000, 1 << 20)),
        read_bytes=KIB * rng.choice((1, 4, 64)),
        headers_max=rng.choice((4, 64, 2_048)),
        mark_delay_s=pace * rng.choice((0.05, 0.3)),
        retry_s=pace * rng.choice((0.2, 1.0)),
    )


def draw_disk(rng: Random, pace: float) -> SimDiskSettings:
    return SimDiskSettings(
        latency_min=0.0001,
        latency_max=pace * rng.choice((0.005, 0.02, 0.1)),
        slow_factor=rng.choice((5.0, 20.0, 100.0)),
        sector_bytes=rng.choice((64, 512)),
    )


def draw_weather(rng: Random, pace: float) -> Weather:
    """What is normal: delays only. Losing and doubling are faults."""
    return Weather(delay_min=0.0001, delay_mean=pace * rng.choice((0.003, 0.01, 0.04)))


def draw_manners(rng: Random, pace: float) -> Manners:
    return Manners(
        clients_count=rng.choice((2, 4, 8)),
        patience_s=pace * rng.choice((2.0, 5.0, 10.0)),
        pause_s=pace * rng.choice((0.05, 0.2, 0.5)),
        reads_share=rng.choice((0.1, 0.3, 0.5)),
        value_bytes_max=rng.choice((10, 200, 1_000)),
        large_share=rng.choice((0.0, 0.02, 0.2)),
        large_bytes=rng.choice((2_000, 20_000)),
        delay_s=pace * rng.choice((0.005, 0.05)),
    )
