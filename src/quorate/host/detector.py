"""One failure detector per pair of nodes, for all the replicas they share.

Groups with nothing to do fall silent and trust this to wake them: a node that has not been heard from for
`suspect_s`, or that comes back in another life, is reported, and reported again as long as that lasts (a
group may fall silent while its leader is already suspected).
"""

from __future__ import annotations

import msgspec


class DetectorSettings(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    ping_s: float = 0.25
    suspect_s: float = 1.5


class Detector:
    __slots__ = ("_boots", "_next_ping", "_peers", "_settings", "_suspicion", "deadline")

    def __init__(self, settings: DetectorSettings) -> None:
        self._settings = settings
        self._peers: tuple[int, ...] = ()
        self._boots: dict[int, int] = {}
        self._suspicion: dict[int, float] = {}
        """When to report a peer (again) unless it is heard from."""
        self._next_ping: float | None = None
        self.deadline: float | None = None
        """When to tick. Hearing from a peer does not move it: an early tick costs less than keeping count."""

    def watch(self, now: float, peers: tuple[int, ...]) -> None:
        """These are the nodes that share replicas with us."""
        for peer in peers:
            if peer not in self._suspicion:
                self._suspicion[peer] = now + self._settings.suspect_s
        self._peers = peers
        if peers and self._next_ping is None:
            self._next_ping = self.deadline = now

    def heard(self, now: float, peer: int) -> None:
        if peer in self._suspicion:
            self._suspicion[peer] = now + self._settings.suspect_s

    def pinged(self, now: float, peer: int, boot: int) -> bool:
        """True if the peer has been restarted since: its replicas have forgotten that they were at rest."""
        self.heard(now, peer)
        restarted = self._boots.get(peer, boot) != boot
        self._boots[peer] = boot
        return restarted

    def tick(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(whom to ping, whom to suspect)."""
        if self._next_ping is None:
            return (), ()
        ping: tuple[int, ...] = ()
        if now >= self._next_ping:
            self._next_ping = now + self._settings.ping_s
            ping = self._peers
        suspected = tuple(peer for peer in self._peers if now >= self._suspicion[peer])
        for peer in suspected:
            self._suspicion[peer] = now + self._settings.suspect_s
        self.deadline = min([self._next_ping, *(self._suspicion[peer] for peer in self._peers)])
        return ping, suspected
