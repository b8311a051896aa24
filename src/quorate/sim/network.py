"""A network that delays, reorders, doubles, replays and drops messages, and whose links can be cut one way.

Every link has a stream of chance of its own and draws two numbers per message, whatever becomes of it: a cut
or a storm that is left out changes nothing on the links and at the times it did not touch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import log
from typing import Any

import msgspec

from quorate.sim.chance import stream

REMEMBERED_MAX = 24
"""Old messages kept per link, to be replayed."""


class Weather(msgspec.Struct, frozen=True, gc=False):
    """How messages fare. Rates are shares of all messages; delays are seconds."""

    delay_min: float = 0.0002
    delay_mean: float = 0.0008
    drop: float = 0.0
    duplicate: float = 0.0
    replay: float = 0.0
    stall: float = 0.0
    """The share of messages that arrive much too late."""
    stall_seconds: float = 0.0


CALM = Weather()


class Link:
    """One direction between two nodes. `cuts` counts the faults that block it."""

    __slots__ = ("cuts", "random", "remembered")

    def __init__(self, seed: int, source: int, target: int) -> None:
        self.random = stream(seed, "link", source, target).random
        self.cuts = 0
        self.remembered: deque[Any] = deque(maxlen=REMEMBERED_MAX)


class Network:
    """Decides when, how often and whether each message arrives."""

    def __init__(self, seed: int, nodes: Iterable[int], weather: Weather) -> None:
        members = tuple(nodes)
        self.links = {
            (source, target): Link(seed, source, target)
            for source in members
            for target in members
            if source != target
        }
        self.calm = weather
        self._storms: dict[int, Weather] = {}
        self._settle(weather)

    def journeys(self, source: int, target: int, parcel: Any) -> list[tuple[float, Any]]:
        """(delay, parcel) of everything that this sending lets arrive; empty if it is lost."""
        link = self.links[source, target]
        luck = link.random()
        spread = link.random()
        remembered = link.remembered
        remembered.append(parcel)
        if link.cuts:
            return []
        delay = self.delay_min - self.delay_mean * log(1.0 - spread)
        if luck >= self.strange:
            return [(delay, parcel)]
        if luck < self.drop:
            return []
        if luck < self.double:
            return [(delay, parcel), (delay * (1.0 + 30.0 * spread), parcel)]
        if luck < self.again:
            old = remembered[int(spread * len(remembered))]
            return [(delay, parcel), (delay * 2.0, old)]
        return [(delay + self.stall_seconds * spread, parcel)]

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        for link in links:
            self.links[link].cuts += 1

    def mend(self, links: Iterable[tuple[int, int]]) -> None:
        for link in links:
            self.links[link].cuts -= 1
            assert self.links[link].cuts >= 0

    def storm(self, number: int, weather: Weather) -> None:
        """From now on, until `pass_over(number)`, the newest storm decides."""
        self._storms[number] = weather
        self._settle(weather)

    def pass_over(self, number: int) -> None:
        self._storms.pop(number, None)
        self._settle(next(reversed(self._storms.values()), self.calm))

    def heal(self, weather: Weather) -> None:
        """Every link whole, no storm, and this weather from now on."""
        for link in self.links.values():
            link.cuts = 0
        self._storms.clear()
        self.calm = weather
        self._settle(weather)

    def _settle(self, weather: Weather) -> None:
        self.delay_min = weather.delay_min
        self.delay_mean = weather.delay_mean
        self.stall_seconds = weather.stall_seconds
        self.drop = weather.drop
        self.double = self.drop + weather.duplicate
        self.again = self.double + weather.replay
        self.strange = self.again + weather.stall
