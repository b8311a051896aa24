"""Logs that are compacted, in a world: whoever leads decides, every node hears of it sooner or later, and each lets
go of what it had only when all have made the same ready (docs/decisions/020-compaction-keeps-the-chain.md).

As in real nodes (node/compaction.py) a generation is of sealed segments and of what is settled; its files end where
the leader's do, some of them put together. Whoever is a member and has not made it ready holds it up. Nodes are
told again and again, each when it happens to hear of it.

- compacted-alike: two replicas made something else of the same generation;
- last-value-kept: a replica does not have exactly what survives: of every key, its newest settled record at least.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core.entry import Member
from quorate.core.generation import Generation
from quorate.core.invariant import Violated
from quorate.host import Host, Hosted
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.world import World

JOINED = 0.4
"""How likely two files of a generation become one."""


class Compaction:
    def __init__(self, world: World, members: Callable[[int], tuple[int, ...]]) -> None:
        self.agreed: dict[int, Generation] = {}
        """By partition: what everybody had ready last."""
        self.wanted: dict[int, Generation] = {}
        self.count = 0
        self._members = members
        self._ready: dict[int, dict[Member, int]] = {}
        self._world = world
        self._rng = stream(world.setup.seed, "hears of compaction")
        self._reminding = False

    # --- the leader ---

    def strike(self, fault: Fault) -> bool:
        """Let a partition that is led be compacted; whether there is anything to compact."""
        world, rng = self._world, Random(fault.chance)
        topics = [number for number in world.setup.shards if number not in world.setup.tables]
        if not topics or (world.setup.protocol == "confirm" and world.tunables.old_nodes):
            # The previous release would not know what is wanted of it.
            return False
        partition = rng.choice(topics)
        leaders = world.leaders(partition)
        if not leaders or partition in self.wanted:
            return False
        node = rng.choice(leaders)
        hosted = world.hosted(node, partition)
        generation = self._generation(rng, node, partition, hosted) if hosted is not None else None
        if generation is None:
            return False
        self.wanted[partition] = generation
        self._ready[partition] = {}
        if not self._reminding:
            self._reminding = True
            self._remind(None)
        return True

    def _generation(self, rng: Random, node: int, partition: int, hosted: Hosted) -> Generation | None:
        host = self._world.nodes[node].host
        assert host is not None
        known = self.agreed.get(partition)
        upto = -1 if known is None else known.upto
        if hosted.replica.log.compacted != upto or hosted.replica.log.faulty:
            return None
        sealed = host.store.stretches(hosted.partition)[:-1]
        places = [stretch for stretch in sealed if upto < stretch.last.offset <= hosted.commit]
        if not places:
            return None
        last = rng.choice(places)
        ends = [stretch.last.offset for stretch in sealed if stretch.last.offset < last.last.offset]
        ends = [end for end in ends if rng.random() >= JOINED]
        deleted_upto = -1 if known is None else rng.choice((known.deleted_upto, known.upto))
        start = host.store.compactor.start(hosted.partition)
        return Generation(*start, last.last, last.checksum, deleted_upto, (*ends, last.last.offset))

    # --- everybody ---

    def _remind(self, _: Any) -> None:
        """Each a little later than the other, and for as long as the world lasts."""
        world = self._world
        pace = world.tunables.pace_s
        world.after(pace * 2, self._remind, None)
        for partition in sorted({*self.wanted, *self.agreed}):
            for node in world.setup.holders[partition]:
                world.after(pace * 2 * self._rng.random(), self._hear, (node, partition))

    def _hear(self, what: tuple[int, int]) -> None:
        node, partition = what
        agreed, wanted = self.agreed.get(partition), self.wanted.get(partition)
        hosted = self._world.hosted(node, partition)
        if hosted is None:
            return
        if agreed is not None and not self._compact(node, partition, agreed):
            self._prepare(node, partition, agreed, hosted)
        elif wanted is not None:
            self._prepare(node, partition, wanted, hosted)

    def _prepare(self, node: int, partition: int, generation: Generation, hosted: Hosted) -> None:
        world, me = self._world, hosted.record.me
        host = world.nodes[node].host
        assert host is not None
        crc = host.store.compactor.crc(hosted.partition, generation)

        def tell_host(host: Host, now: float) -> None:
            host.prepare_compaction(now, hosted.partition, generation, bytes, done)

        def done(crc: int | None) -> None:
            if crc is not None:
                self._is_ready(partition, generation, me, crc)

        if crc is not None:
            done(crc)
        else:
            world.ask(node, partition, tell_host)

    def _compact(self, node: int, partition: int, generation: Generation) -> bool:
        """Let a node know that everybody has it ready. Whether its log is of that generation now."""
        said: list[bool] = []

        def tell_host(host: Host, now: float) -> None:
            said.append(host.compact(now, self._world.partitions[partition], generation))

        self._world.ask(node, partition, tell_host)
        return said == [True]

    def _is_ready(self, partition: int, generation: Generation, me: Member, crc: int) -> None:
        if self.wanted.get(partition) != generation:
            return
        ready = self._ready[partition]
        ready[me] = crc
        if len(set(ready.values())) > 1:
            made = ", ".join(f"n{member.node} {crc:08x}" for member, crc in sorted(ready.items()))
            raise Violated("compacted-alike", f"p{partition}: of {generation} they made {made}")
        members = self._members(partition)
        here = [self._world.hosted(node, partition) for node in members]
        if members and all(hosted is not None and hosted.record.me in ready for hosted in here):
            self.agreed[partition] = self.wanted.pop(partition)
            self.count += 1

    def behind(self, partition: int, hosted: Hosted) -> str:
        """In what a copy is behind what was agreed; empty if it is not."""
        agreed = self.agreed.get(partition)
        if agreed is None or hosted.replica.log.compacted == agreed.upto:
            return ""
        return f"is compacted up to {hosted.replica.log.compacted}, not up to {agreed.upto}"

    def unfinished(self) -> list[str]:
        return [f"p{partition} up to {generation.upto}" for partition, generation in self.wanted.items()]
