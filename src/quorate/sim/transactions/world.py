"""Time, messages and what goes wrong with them: one heap of things to happen, and one stream of chance."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

import msgspec

from quorate.core.invariant import Violated
from quorate.sim.chance import stream
from quorate.sim.happening import Happening

EVENTS_MAX = 400_000
NODES = (1, 2, 3)


Asked = Callable[[int, Callable[[Any], None]], None]
"""What is called at a node that is asked, with its number and a way to answer."""


class Sleep(msgspec.Struct, frozen=True):
    """What a script yields to wait."""

    seconds: float


class Ask(msgspec.Struct, frozen=True):
    """What a script yields to ask a node something; it gets the answer, or None where none came in time."""

    node: int
    what: Asked
    timeout_s: float = 1.0
    is_ordered: bool = False
    """What the script does not wait for any more does not arrive: it has closed the connection."""


Script = Generator[Sleep | Ask, Any, None]


class World:
    def __init__(self, seed: int, faults: tuple[str, ...], *, trace: bool) -> None:
        self.rng = stream(seed, "transactions")
        self.faults = faults
        self.now = 0.0
        self.events = 0
        self.loss = 0.0
        self.delay_s = 0.01
        self.late_share = 0.0
        """How many messages take seconds instead."""
        self.is_healed = False
        self.up = dict.fromkeys(NODES, True)
        self.paused_until = dict.fromkeys(NODES, 0.0)
        self.skew_ms = dict.fromkeys(NODES, 0)
        self.lives = dict.fromkeys(NODES, 0)
        """What was ordered in an earlier life of a node is not done."""
        self.happenings: list[Happening] | None = [] if trace else None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._pushes = 0

    # --- time ---

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._pushes += 1
        heappush(self._heap, (self.now + seconds, self._pushes, act))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heappop(self._heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violated("endless", f"{EVENTS_MAX} events, and it is still going on")
            act()
        self.now = until

    def wall_ms(self, node: int) -> int:
        return 1_000_000 + int(self.now * 1000) + self.skew_ms[node]

    def tell(self, node: int, what: str, text: str = "", partition: int = -1) -> None:
        if self.happenings is not None:
            self.happenings.append(Happening(self.now, node, what, partition, text))

    # --- messages ---

    def send(self, node: int, act: Callable[[], None]) -> None:
        """Something arrives at a node, or (0) at a client: late, twice, or never."""
        copies = 1
        if not self.is_healed and self.rng.random() < self.loss:
            copies = 0 if self.rng.random() < 0.7 else 2
        for _ in range(copies):
            delay = self.rng.expovariate(1 / self.delay_s)
            if not self.is_healed and self.rng.random() < self.late_share:
                delay += self.rng.uniform(0.2, 6.0)
            self.after(delay, lambda: self._arrive(node, act))

    def _arrive(self, node: int, act: Callable[[], None]) -> None:
        if node and not self.up[node]:
            return
        if node and self.paused_until[node] > self.now:
            self.after(self.paused_until[node] - self.now + 0.001, lambda: self._arrive(node, act))
            return
        act()

    def ask(
        self, node: int, what: Callable[[int, Callable[[Any], None]], None], got: Callable[[Any], None]
    ) -> None:
        """Asked over the network, answered over the network; what comes twice is heard once, or never."""
        heard = False

        def answer(value: Any) -> None:
            self.send(0, lambda: hear(value))

        def hear(value: Any) -> None:
            nonlocal heard
            if not heard:
                heard = True
                got(value)

        self.send(node, lambda: what(node, answer))

    def start(self, script: Script) -> None:
        self._go_on(script, None)

    def _go_on(self, script: Script, value: Any) -> None:
        try:
            wanted = script.send(value)
        except StopIteration:
            return
        if isinstance(wanted, Sleep):
            self.after(wanted.seconds, lambda: self._go_on(script, None))
            return
        over = False

        def once(answer: Any) -> None:
            nonlocal over
            if not over:
                over = True
                self._go_on(script, answer)

        def arrived(node: int, answer: Callable[[Any], None]) -> None:
            if not (wanted.is_ordered and over):
                wanted.what(node, answer)

        self.ask(wanted.node, arrived, once)
        self.after(wanted.timeout_s, lambda: once(None))
