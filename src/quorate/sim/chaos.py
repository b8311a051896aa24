"""Carries out a schedule of faults on a world, and undoes everything when they heal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from quorate.sim.compaction import Compaction
from quorate.sim.confirm_steward import ConfirmSteward
from quorate.sim.expiry import Expiry
from quorate.sim.faults import ACTS, CHANGES, CLOCK_RATES, LEADER, ORDERS, Fault, around, between
from quorate.sim.harm import Harm
from quorate.sim.invariants import Invariants
from quorate.sim.isr_planner import IsrPlanner
from quorate.sim.moving import Moving
from quorate.sim.network import CALM
from quorate.sim.operators import Operators
from quorate.sim.planner import Planner
from quorate.sim.steward import Steward
from quorate.sim.trouble import Trouble
from quorate.sim.world import RESTART_SECONDS, World

NOTICED = 0.6
"""How many of the others find out at once that a process has ended."""


class Toll(msgspec.Struct):
    """What was thrown at a world."""

    partitions: int = 0
    storms: int = 0
    crashes: int = 0
    power_losses: int = 0
    pauses: int = 0
    clock_changes: int = 0
    flush_errors: int = 0
    damaged: int = 0
    filled: int = 0
    slowed: int = 0
    wiped: int = 0
    changes: int = 0
    changes_settled: int = 0
    transfers: int = 0
    transfers_settled: int = 0
    orders: int = 0
    """To replicas of `confirm`, beside changes and transfers: rollbacks, promotions and the like."""
    orders_settled: int = 0
    operators_crashed: int = 0
    rumours: int = 0
    """Operators were told of a node that it is gone, and it was not."""
    store_troubles: int = 0
    expired: int = 0
    """How often something of a log was not to be kept any longer."""
    compactions: int = 0
    """How often a log was to be compacted."""
    rates: int = 0
    """How often copies that do not count yet were to be sent data at another rate."""


class Chaos:
    def __init__(
        self,
        world: World,
        faults: Sequence[Fault],
        invariants: Invariants | None = None,
        operators: Operators | None = None,
        steward: Any = None,
    ) -> None:
        """`steward`: whoever commands this world, if that is not as usual for its protocol."""
        self.world = world
        self.faults = faults
        self.invariants = invariants
        self.toll = Toll()
        self.harm = Harm(world, self.toll, invariants)
        self.expiry = Expiry(world)
        self.steward: Any
        if steward is not None:
            self.steward = steward
        elif operators is None:
            kind = ConfirmSteward if world.setup.protocol == "confirm" else Steward
            self.steward = kind(world, self.toll, invariants)
        else:
            planner = IsrPlanner if world.setup.protocol == "isr" else Planner
            self.steward = planner(operators, self.toll, invariants)
        self.compaction = Compaction(world, self.steward.members)
        self.moving = Moving(world, self.steward)
        self.trouble = (
            Trouble(operators, self.toll, self._later, self._cut) if operators is not None else None
        )
        self._compacts = any(fault.kind == "compact" for fault in faults)
        self.healed = False
        self._storms = 0
        self._full: dict[int, int] = {}
        self._slow: dict[int, int] = {}
        self._begin: dict[str, Callable[[Fault], None]] = {
            "partition": self._partition,
            "isolate": self._isolate,
            "strand": self._strand,
            "mute": self._isolate,
            "deaf": self._isolate,
            "storm": self._storm,
            "crash": self._crash,
            "power": self._power,
            "pause": self._pause,
            "clock-rate": self._clock_rate,
            "clock-jump": self._clock_jump,
            "flush-error": self._flush_error,
            "damage": self.harm.begin,
            "full-disk": self._fill,
            "slow-disk": self._slow_down,
            "wipe": self._wipe,
            "expire": self._expire,
            "compact": self._compact,
            "pace": self._change_rate,
            "transfer": self.steward.strike,
            **{f"change-{way}": self.steward.strike for way in CHANGES},
            **{f"order-{way}": self.steward.strike for way in ORDERS},
            **{f"act-{way}": self.steward.strike for way in ACTS},
            **(self.trouble.kinds if self.trouble is not None else {}),
        }
        self.harm.keep_down = self._keep_down
        world.on_stop = lambda number: self._keep_down(number, world.tunables.pace_s)

    def begin(self) -> None:
        self.steward.begin()
        for fault in self.faults:
            self.world.after(fault.at - self.world.now, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if not self.healed:
            self._begin[fault.kind](fault)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        def act(_: None) -> None:
            if not self.healed:
                undo()

        self.world.after(seconds, act, None)

    def _targets(self, fault: Fault) -> list[int]:
        """The nodes that it hits: who leads is known only now."""
        found = []
        for number in fault.nodes:
            if number != LEADER:
                found.append(number)
                continue
            rng = Random(fault.chance)
            partition = rng.randrange(len(self.world.partitions))
            leaders = self.world.leaders(partition)
            found.append(rng.choice(leaders) if leaders else rng.choice(self.world.setup.nodes))
        return found

    def _tell(self, node: int, what: str, text: str = "") -> None:
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, node, what, text=text)

    # --- the network ---

    def _partition(self, fault: Fault) -> None:
        self._cut(fault.links, fault.seconds)

    def _isolate(self, fault: Fault) -> None:
        for number in self._targets(fault):
            self._cut(around(fault.kind, number, self.world.setup.everybody), fault.seconds)

    def _strand(self, fault: Fault) -> None:
        """A leader is cut off together with as many others as are still a minority."""
        nodes = self.world.setup.nodes
        for number in self._targets(fault):
            others = [other for other in nodes if other != number]
            group = (number, *Random(fault.chance).sample(others, max(0, (len(nodes) - 1) // 2 - 1)))
            self._cut(between(group, self.world.setup.everybody), fault.seconds)

    def _cut(self, links: tuple[tuple[int, int], ...], seconds: float) -> None:
        self.toll.partitions += 1
        text = " ".join(f"n{source}>n{target}" for source, target in links)
        self._tell(0, "partitioned", text)
        self.world.network.cut(links)

        def mend() -> None:
            self.world.network.mend(links)
            self._tell(0, "healed", text)

        self._later(seconds, mend)

    def _storm(self, fault: Fault) -> None:
        assert fault.weather is not None
        self.toll.storms += 1
        self._storms += 1
        number = self._storms
        weather = fault.weather
        self._tell(
            0,
            "storm",
            f"drops {weather.drop:.2f} doubles {weather.duplicate:.2f} replays {weather.replay:.2f}"
            f" stalls {weather.stall:.2f} delay {weather.delay_mean:.4f}s",
        )
        self.world.network.storm(number, weather)
        self._later(fault.seconds, lambda: self.world.network.pass_over(number))

    # --- processes ---

    def _crash(self, fault: Fault) -> None:
        for number in self._targets(fault):
            if self.trouble is not None and number in self.world.setup.operators:
                self.trouble.crash(number, fault.seconds)
                continue
            if self.world.crash(number):
                self.toll.crashes += 1
                self._let_others_notice(fault, number)
            self._keep_down(number, fault.seconds)

    def _let_others_notice(self, fault: Fault, number: int) -> None:
        """The machine goes on, and says to some of them that nobody listens there any more."""
        rng = Random(fault.chance + number)
        for other in self.world.nodes:
            delay_s = self.world.tunables.pace_s * rng.random()
            if other != number and rng.random() < NOTICED:
                self._later(delay_s, partial(self.world.refused, other, number))

    def _power(self, fault: Fault) -> None:
        for number in self._targets(fault):
            self.world.power_loss(number)
            self.toll.power_losses += 1
            self._keep_down(number, fault.seconds)

    def _wipe(self, fault: Fault) -> None:
        for number in self._targets(fault):
            self.wipe(number)
            self._keep_down(number, fault.seconds)

    def wipe(self, number: int) -> None:
        self.toll.wiped += 1
        self.world.wipe(number)
        if self.invariants is not None:
            self.invariants.wiped(number)

    def _expire(self, fault: Fault) -> None:
        if not self._compacts:  # A log that is compacted starts where it does: nothing of it expires.
            self.toll.expired += self.expiry.strike(fault)

    def _compact(self, fault: Fault) -> None:
        self.toll.compactions += self.compaction.strike(fault)

    def _change_rate(self, fault: Fault) -> None:
        self.toll.rates += 1
        self._tell(0, "rate changed", f"to {fault.amount:g} bytes a second")
        self.moving.strike(fault)

    def _keep_down(self, number: int, seconds: float) -> None:
        """Start the node again after a while, unless something else keeps it down for longer."""
        node = self.world.nodes[number]
        node.down_until = max(node.down_until, self.world.now + seconds)

        def start() -> None:
            if node.host is None and self.world.now >= node.down_until:
                self.world.start(number)

        self._later(node.down_until - self.world.now, start)

    def _pause(self, fault: Fault) -> None:
        for number in self._targets(fault):
            if self.trouble is not None and number in self.world.setup.operators:
                self.trouble.pause(number, fault.seconds)
                continue
            self.toll.pauses += 1
            self.world.pause(number, fault.seconds)

    # --- clocks ---

    def _clock_rate(self, fault: Fault) -> None:
        rate = fault.amount
        if not self.world.tunables.clocks_wild:
            rate = within(rate, self.world.tunables.host.raft.clock_drift_max)
        for number in fault.nodes:
            self.toll.clock_changes += 1
            self._tell(number, "clock changed", f"runs at {rate:.2f}")
            self.world.nodes[number].clock.change(self.world.now, rate=rate)
            self.world.clock_changed(number)

    def _clock_jump(self, fault: Fault) -> None:
        """The time of day is set anew. What measures how much has passed jumps only where clocks are wild: no
        real one does, but nothing except leases may depend on that."""
        for number in fault.nodes:
            self.toll.clock_changes += 1
            self._tell(number, "clock jumped", f"by {fault.amount:.6f}s")
            self.world.nodes[number].wall.change(self.world.now, jump=fault.amount)
            if not self.world.tunables.clocks_wild:
                continue
            self.world.nodes[number].clock.change(self.world.now, jump=fault.amount)
            self.world.clock_changed(number)
            # A clock that falls back takes as long, or longer if it is slow, to be where it was.
            waits = max(0.0, -fault.amount) / min(CLOCK_RATES)
            self.harm.troubled_at[number] = max(
                self.harm.troubled_at.get(number, 0.0), self.world.now + waits
            )

    # --- disks ---

    def _flush_error(self, fault: Fault) -> None:
        for number in fault.nodes:
            self.toll.flush_errors += 1
            self._tell(number, "disk failing", "its next flush will fail")
            self.world.nodes[number].disk.fail_next_flush()

    def _fill(self, fault: Fault) -> None:
        for number in self._targets(fault):
            self.toll.filled += 1
            self._full[number] = self._full.get(number, 0) + 1
            self.harm.troubled_at[number] = self.world.now + fault.seconds
            self._tell(number, "disk filled")
            self.world.nodes[number].disk.set_full(True)
            self._later(fault.seconds, partial(self._empty, number))

    def _empty(self, number: int) -> None:
        self._full[number] -= 1
        if not self._full[number]:
            self.world.nodes[number].disk.set_full(False)
            self._tell(number, "disk has room")

    def _slow_down(self, fault: Fault) -> None:
        for number in self._targets(fault):
            self.toll.slowed += 1
            self._slow[number] = self._slow.get(number, 0) + 1
            # A job that begins at the end of it is slow to its own end (seed 374).
            disk = self.world.tunables.disk
            until = self.world.now + fault.seconds + disk.latency_max * disk.slow_factor
            self.harm.troubled_at[number] = max(self.harm.troubled_at.get(number, 0.0), until)
            self._tell(number, "slowed", "its disk")
            self.world.nodes[number].disk.set_slow(True)
            self._later(fault.seconds, partial(self._speed_up, number))

    def _speed_up(self, number: int) -> None:
        self._slow[number] -= 1
        if not self._slow[number]:
            self.world.nodes[number].disk.set_slow(False)

    # --- the end ---

    def heal(self) -> None:
        """No more faults: the network is whole, disks and clocks are normal, every process runs."""
        self.healed = self.harm.over = True
        self._tell(0, "healed", "everything")
        self.world.network.heal(CALM)
        self.moving.heal()
        for number, node in self.world.nodes.items():
            node.paused_until = min(node.paused_until, self.world.now)
            node.disk.heal()
            node.clock.change(self.world.now, rate=1.0)
            self.world.clock_changed(number)
            if node.host is None:
                self.world.start(number)
        self.world.on_stop = self._restart_soon
        if self.trouble is not None:
            self.trouble.heal()
        if isinstance(self.steward, ConfirmSteward):
            self.steward.healed = True

    def _restart_soon(self, number: int) -> None:
        def start(_: None) -> None:
            if self.world.nodes[number].host is None:
                self.world.start(number)

        self.world.after(RESTART_SECONDS, start, None)


def within(rate: float, drift_max: float) -> float:
    """One of `CLOCK_RATES`, as far from 1 as the stated bound allows, and half as far."""
    share = 1.0 if rate in (min(CLOCK_RATES), max(CLOCK_RATES)) else 0.5
    return 1.0 + drift_max * share * (1.0 if rate > 1.0 else -1.0)
