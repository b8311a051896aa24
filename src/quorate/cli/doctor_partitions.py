"""What is wrong with partitions: nobody leads, copies are away, behind, damaged or stuck, something is not settled.

Partitions with the same trouble for the same reason are one finding: a node that is down may have thousands. What
passes by itself (an election, a copy that is being made) counts only where it was so in an earlier look, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quorate.cli import say
from quorate.cli.copies_there import (
    DISK_LOST,
    MADE_ANEW,
    NO_ANSWER,
    NO_COPY,
    OUT_OF_SYNC,
    LostForGood,
    counting,
    standing,
    why_away,
)
from quorate.cli.doctor_facts import (
    CRITICAL,
    GOES_ON,
    NOTE,
    THE_METADATA_GROUP,
    WARNING,
    Facts,
    Finding,
    Place,
    does,
    how_it_goes_on,
    named,
    nodes_named,
    partitions_of,
    start_again,
)
from quorate.cli.doctor_nodes import START_COMMAND
from quorate.cli.how_far import is_unheard, phase, stands_still, voters_phase
from quorate.core.entry import Partition
from quorate.core.isr import PartitionState
from quorate.core.quorum import sizes
from quorate.machine.metadata import METADATA
from quorate.node.requests import ReplicaStatus

UNSETTLED_S = 10.0
"""A write that waits so long does not wait for a slow disk or an election."""

Ranges = tuple[tuple[int, int], ...]


def partition_findings(facts: Facts) -> Iterator[Finding]:
    yield from _leaderless(facts)
    yield from _away(facts)
    yield from _behind(facts)
    yield from _damaged(facts)
    yield from _stuck(facts)
    yield from _unsettled(facts)
    yield from _changes(facts)


def _counting(facts: Facts, place: Place) -> tuple[int, ...]:
    """The nodes whose copies count; of the metadata group also of those that only follow, as they mend others."""
    if place.is_metadata:
        return tuple(sorted(facts.infos))
    leader, stored = facts.found.leader(place.partition), facts.image.stored.get(place.partition)
    return tuple(member.node for member in counting(place.topic, place.number, leader, stored))


# ---- nobody leads ----


def _leaderless(facts: Facts) -> Iterator[Finding]:
    alike: dict[tuple[tuple[int, ...], bool], list[Place]] = {}
    for place in facts.partitions():
        if lost := facts.lost_for_good.get(place.name):
            yield _lost(place, lost)
        elif facts.is_leaderless(place):
            away = tuple(node for node in _counting(facts, place) if node not in facts.statuses)
            alike.setdefault((away, place.topic.is_tables), []).append(place)
    for (away, _), places in alike.items():
        yield _nobody_leads(facts, away, places)


def _lost(place: Place, lost: LostForGood) -> Finding:
    return Finding(
        "partition-lost",
        CRITICAL,
        place.name,
        f"{lost.why}. What was acknowledged may be gone, and nothing that is left can tell",
        "what was registered in place of these disks has made them void, even if they turn up: give the topic up, "
        "and restore a backup, if there is one (`quorate backup restore`)",
        (f"quorate topic describe {place.name}", f"quorate topic delete {place.topic.name}"),
        nodes=lost.nodes,
        partitions=(place.name,),
    )


def _nobody_leads(facts: Facts, away: tuple[int, ...], places: Sequence[Place]) -> Finding:
    names, first = [place.name for place in places], places[0]
    commands: tuple[str, ...] = (f"quorate topic describe {first.name}",)
    if away:
        why = f"{nodes_named(away)} {does(away, 'holds a copy and does', 'hold copies and do')} not answer"
        do, commands = f"{start_again(away)}: nothing is lost then", (START_COMMAND, *commands)
    else:
        why = "all nodes with copies answer"
        do = "look again in a moment; if it stays so, see whether these nodes hear each other, and what they say"
        best = _furthest(facts, first)
        if first.topic.is_tables and first.topic.protocol(first.number) == "confirm" and best:
            do += "; where leaders change by order only (`confirm.automatic = false`), promote one"
            commands += (f"quorate table promote {first.topic.name} --node {best}",)
    return Finding(
        "partition-leaderless",
        CRITICAL,
        named(names),
        f"nobody leads {'it' if len(names) == 1 else 'them'}: nothing is written or read there. "
        f"{why.capitalize()}",
        do,
        commands,
        nodes=away,
        partitions=tuple(names),
    )


def _furthest(facts: Facts, place: Place) -> int:
    """Who has most of it and nothing that is damaged; 0: nobody."""
    held = {node: each for node, each in facts.found.held(place.partition).items() if not each.faulty}
    return max(held, key=lambda node: (held[node].head.epoch, held[node].head.offset), default=0)


# ---- copies that are not there ----


class _Lack(NamedTuple):
    missing: tuple[tuple[int, str], ...]
    """Nodes, and why their copies do not count just now."""
    there: int
    of: int
    needed: int


def _away(facts: Facts) -> Iterator[Finding]:
    alike: dict[_Lack, list[str]] = {}
    for place in facts.partitions():
        leader = facts.found.leader(place.partition)
        if leader is not None and (lack := _lack(facts, place, leader)).missing:
            alike.setdefault(lack, []).append(place.name)
    for lack, names in alike.items():
        yield _copies_away(lack, names)


def _lack(facts: Facts, place: Place, leader: ReplicaStatus) -> _Lack:
    stored = facts.image.stored.get(place.partition)
    nodes = [member.node for member in standing(place.topic, place.number, leader, stored)]
    earlier = facts.found_earlier if facts.earlier else None
    whys = [(node, why_away(facts.found, place.topic, place.number, node, earlier)) for node in nodes]
    missing = tuple((node, why) for node, why in whys if why)
    needed = sizes(leader.membership.quorums, len(nodes))[0]
    if stored is not None and isinstance(stored.shard, PartitionState):
        needed = stored.shard.min_isr
    return _Lack(missing, len(nodes) - len(missing), len(nodes), needed)


def _copies_away(lack: _Lack, names: Sequence[str]) -> Finding:
    nodes = tuple(node for node, _ in lack.missing)
    whys = ", ".join(f"node {node}: {why}" for node, why in lack.missing)
    copies = f"{lack.there} of {lack.of} copies {'is' if lack.there == 1 else 'are'} there ({whys})"
    commands: list[str] = []
    todo: list[str] = []
    if silent := [node for node, why in lack.missing if why == NO_ANSWER]:
        todo.append(start_again(silent))
        commands.append(START_COMMAND)
    for node, why in lack.missing:
        if why == DISK_LOST:
            todo.append(f"let the new disk of node {node} count")
            commands.append(f"quorate cluster replace {node}")
    if any(why == MADE_ANEW for _, why in lack.missing):
        todo.append("wait for the copies that are being made")
    if any(why in (OUT_OF_SYNC, NO_COPY) for _, why in lack.missing):
        todo.append("see what holds it up: its disk, the network, or what the node says")
    commands.append(f"quorate topic describe {names[0]}")
    if lack.there < lack.needed:
        what = f"{copies}, and {lack.needed} must be: nothing can be written until then"
        identity, severity = "too-few-copies", CRITICAL
    else:
        spare = lack.there - lack.needed
        rest = "if one more goes, nothing can be written" if not spare else f"{spare} more may go"
        what, identity, severity = f"{copies}: {rest}", "copies-away", WARNING
    return Finding(
        identity,
        severity,
        named(names),
        what,
        "; ".join(todo),
        tuple(commands),
        nodes=nodes,
        partitions=tuple(names),
    )


# ---- copies that do not keep up ----


def _behind(facts: Facts) -> Iterator[Finding]:
    if not facts.earlier:
        return
    found: dict[int, list[tuple[Place, int]]] = {}
    for place in facts.places():
        for node in _counting(facts, place):
            # What was on a lost disk does not catch up: it is away until somebody replaces it.
            if not facts.is_lost(place, node) and (lag := _lasting_lag(facts, place.partition, node)):
                found.setdefault(node, []).append((place, lag))
    for node, lags in sorted(found.items()):
        places = [place for place, _ in lags]
        most = max(lag for _, lag in lags)
        yield Finding(
            "copy-behind",
            WARNING,
            f"node {node}",
            f"its copies of {named([place.name for place in places])} do not keep up: {most:,} offsets behind "
            "where that is most. It takes over from nobody, and what is written rests on the others",
            "see whether its disk or its processor is busy, or the network to it; it catches up by itself",
            (places[0].look,),
            nodes=(node,),
            partitions=partitions_of(places),
        )


def _lasting_lag(facts: Facts, partition: Partition, node: int) -> int:
    """How many offsets it lacks, if it lacks something that its leader had at the earlier look already; else 0."""
    now, before = facts.found.leader(partition), facts.found_earlier.leader(partition)
    if node not in facts.statuses or node not in facts.earlier or now is None or before is None:
        return 0
    if (now.me, now.epoch) != (before.me, before.epoch) or node not in now.lags:
        return 0
    if now.protocol == "isr" and node not in now.in_sync:
        return 0  # Out of sync is away.
    if is_unheard(now, node):
        return now.head.offset - now.base if is_unheard(before, node) else 0
    confirmed = now.head.offset - now.lags[node]
    return now.lags[node] if confirmed < before.head.offset else 0


# ---- copies that cannot be read, or go on ----


def _damaged(facts: Facts) -> Iterator[Finding]:
    damaged: dict[int, list[Place]] = {}
    for place in facts.places():
        held = facts.found.held(place.partition)
        nodes = _counting(facts, place)
        nowhere = _in_all(_not_there(facts, place, [held[node] for node in nodes if node in held]))
        if nowhere:
            yield _damaged_everywhere(place, nowhere, tuple(node for node in nodes if node not in held))
            continue
        for node, replica in sorted(held.items()):
            if replica.faulty:
                damaged.setdefault(node, []).append(place)
    for node, places in sorted(damaged.items()):
        yield Finding(
            "copy-damaged",
            WARNING,
            f"node {node}",
            f"something of {named([place.name for place in places])} cannot be read on its disk. Other copies "
            "have it: it is fetched from there, and nobody reads it here meanwhile",
            "wait until it is mended; and look after that disk: what damaged it may do so again",
            (places[0].look,),
            nodes=(node,),
            partitions=partitions_of(places),
        )


def _damaged_everywhere(place: Place, ranges: Ranges, away: tuple[int, ...]) -> Finding:
    said = named([f"{first}..{last}" for first, last in ranges])
    if away:
        do = f"{start_again(away)}: {does(away, 'its copy', 'their copies')} may have it"
    elif place.is_metadata:
        do = (
            "where a disk was set aside, put that back; else save the topics that can be read (`quorate backup "
            "create`), and restore them in a new cluster"
        )
    else:
        do = (
            "restore it from a backup, or, where a disk was set aside, put that back; what is lost is never "
            "guessed: consumers can go on behind it"
        )
    return Finding(
        "every-copy-damaged",
        CRITICAL,
        place.name,
        f"offsets {said} cannot be read on any copy that is there: whoever reads there gets no further",
        do,
        (*([START_COMMAND] if away else []), place.look),
        nodes=away,
        partitions=partitions_of([place]),
    )


def _not_there(facts: Facts, place: Place, copies: Sequence[ReplicaStatus]) -> list[Ranges]:
    """What is damaged in each copy; where nobody leads, also what it lacks of the furthest, and gives nobody.

    Where somebody leads, what its log does not have was never settled, and the others' damage there is cut.
    """
    if not copies or not facts.is_leaderless(place):
        return [copy.faulty for copy in copies]
    end = max(copy.head.offset for copy in copies)
    behind = [((copy.head.offset + 1, end),) if copy.head.offset < end else () for copy in copies]
    return [copy.faulty + lacks for copy, lacks in zip(copies, behind, strict=True)]


def _in_all(copies: Sequence[Ranges]) -> Ranges:
    """What is damaged, or lacks, in every one of them."""
    if not copies or not all(copies):
        return ()
    common = copies[0]
    for other in copies[1:]:
        common = tuple(
            (max(first, begin), min(last, end))
            for first, last in common
            for begin, end in other
            if max(first, begin) <= min(last, end)
        )
    return common


def _stuck(facts: Facts) -> Iterator[Finding]:
    for place in facts.places():
        for node, replica in sorted(facts.found.held(place.partition).items()):
            if not replica.halted:
                continue
            leads = replica.role == "leader"
            do, commands = _gets_on(facts, place, replica, node)
            yield Finding(
                "copy-stuck",
                CRITICAL if leads else WARNING,
                f"{place.name} on node {node}",
                f"what is settled there cannot be applied: {replica.halted}. Nothing behind it is read from "
                "this copy" + (", and it leads" if leads else ""),
                "let another lead, if it leads; compare this node's version with the others'; " + do,
                commands,
                nodes=(node,),
                partitions=partitions_of([place]),
            )


def _gets_on(facts: Facts, place: Place, replica: ReplicaStatus, node: int) -> tuple[str, tuple[str, ...]]:
    """What gets such a copy on, and the commands."""
    leads = replica.role == "leader"
    if not place.is_metadata:
        transfer = [f"quorate topic transfer {place.name}"] if leads else []
        again = (f"quorate topic {verb} {place.name} --node {node}" for verb in ("remove", "add"))
        return "then make the copy anew", (*transfer, *again)
    heirs = [
        member.node
        for member in facts.voters()
        if (other := facts.found.held(METADATA).get(member.node)) is not None and not other.halted
    ]
    transfer = [f"quorate cluster transfer --to {heir}" for heir in heirs[:1] if leads]
    return "then start it with a version that knows it", (*transfer, place.look)


# ---- what is not settled ----


def _unsettled(facts: Facts) -> Iterator[Finding]:
    """Transactions of tables, and writes. Those of Kafka producers have a module of their own."""
    for place in facts.partitions():
        leader = facts.found.leader(place.partition)
        if leader is None or leader.unsettled_s < UNSETTLED_S:
            continue
        lack = _lack(facts, place, leader)
        count = leader.head.offset - leader.commit
        what = "transaction" if place.topic.is_tables else "write"
        silent = [node for node, why in lack.missing if why == NO_ANSWER]
        do = start_again(silent) if silent else "see why the other copies do not confirm it"
        commands = [START_COMMAND] * bool(silent) + [f"quorate topic describe {place.name}"]
        if place.topic.is_tables and place.topic.protocol(place.number) == "confirm":
            do += "; or give up what waits, which loses it: its clients were never told that it is done"
            commands.append(
                f"quorate table promote {place.topic.name} --node {leader.me.node} --roll-back",
            )
        yield Finding(
            "unsettled",
            CRITICAL,
            place.name,
            f"a {what} waits for {say.duration(leader.unsettled_s)} to be on enough copies ({lack.there} of "
            f"{lack.of} are there, {lack.needed} must confirm it); {count:,} offsets from "
            f"{leader.commit + 1} on are not settled, and nobody reads them",
            do,
            tuple(commands),
            nodes=(leader.me.node,),
            partitions=(place.name,),
        )


# ---- what is under way ----


class _Waits(NamedTuple):
    """What a change waits for."""

    away: tuple[int, ...]
    stands_still: bool


def _changes(facts: Facts) -> Iterator[Finding]:
    alike: dict[_Waits, list[Place]] = {}
    for place in facts.partitions():
        topic, number = place.topic, place.number
        if number in topic.changes and place.name not in facts.lost_for_good:
            wanted = [member.node for member in topic.wanted(number)]
            away = tuple(sorted(node for node in wanted if node not in facts.statuses))
            waits = _Waits(away, stands_still(facts.image, topic, number))
            alike.setdefault(waits, []).append(place)
    for waits, places in alike.items():
        yield _change_open(facts, waits, places)
    if facts.found.leader(METADATA) is not None and (said := voters_phase(facts.statuses)):
        silent = tuple(member.node for member in facts.wanted_voters() if member.node not in facts.statuses)
        yield Finding(
            "change-open",
            WARNING if silent else NOTE,
            THE_METADATA_GROUP,
            f"{said.split(': ', 1)[1]}; not yet so",
            _start_or_order(silent) if silent else GOES_ON,
            ("quorate cluster status",),
            nodes=silent,
        )


def _start_or_order(away: Sequence[int]) -> str:
    return f"{start_again(away)}; or order something else, which takes its place"


def _change_open(facts: Facts, waits: _Waits, places: Sequence[Place]) -> Finding:
    names, first = [place.name for place in places], places[0]
    what = phase(first.topic, first.number, facts.image, facts.statuses)
    look = f"quorate topic describe {first.name}"
    if len(places) > 1:
        what, look = (
            f"copies move, in {len(places):,} partitions; {first.name} is {what}",
            "quorate cluster status",
        )
    do, commands = how_it_goes_on(is_held_up=waits.stands_still, look=look)
    if waits.away:
        do = _start_or_order(waits.away)
    return Finding(
        "change-open",
        WARNING if waits.away else NOTE,
        named(names),
        f"{what}; not yet so",
        do,
        commands,
        nodes=waits.away,
        partitions=tuple(names),
    )
