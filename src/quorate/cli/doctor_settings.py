"""What is set so that it contradicts itself, or what somebody wanted: copies, racks, retention, votes.

And what was set for a while, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from quorate.cli import say
from quorate.cli.doctor_facts import (
    NOTE,
    THE_METADATA_GROUP,
    WARNING,
    Facts,
    Finding,
    Place,
    named,
    nodes_named,
    start_again,
)
from quorate.cli.how_far import LET_THEM_GO_ON, waits_for_copies
from quorate.cli.moving import nodes_of
from quorate.core.quorum import majority
from quorate.machine.cluster import MOVING_RATE, drained_nodes, moving_rate
from quorate.machine.compactions import Compaction
from quorate.machine.purpose import TOPIC
from quorate.machine.turning import MIN_ISR, min_isr
from quorate.node.metadata import REPLICAS_COUNT, REPLICAS_SETTING
from quorate.node.placement import rack_of
from quorate.node.retention import (
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_MS,
    SEGMENT_MS_DEFAULT,
    UNLIMITED,
)
from quorate.storage.settings import StoreSettings

REPLICATION = "quorate.replication"
SEGMENT_BYTES_LEAST = 16 << 10
VOTERS_WANTED = COPIES_WANTED = 3
COMPACTION_PATIENCE_MS = 600_000


def setting_findings(facts: Facts) -> Iterator[Finding]:
    yield from _copies(facts)
    yield from _in_sync(facts)
    yield from _defaults(facts)
    yield from _retention(facts)
    yield from _compaction(facts)
    yield from _racks(facts)
    yield from _voters(facts)
    yield from _rate(facts)
    yield from _drained(facts)


def _copies(facts: Facts) -> Iterator[Finding]:
    """A topic that is to have more is not told so again."""
    alike: dict[int, list[Place]] = {}
    for place in facts.partitions():
        alike.setdefault(len(place.topic.wanted(place.number)), []).append(place)
    takes = sorted(nodes_of(facts.image, facts.statuses).takes)
    wanted = min(COPIES_WANTED, len(takes))
    for count, identity in ((1, "one-copy"), (2, "two-copies")):
        places = alike.get(count, [])
        if not places:
            continue
        names = tuple(dict.fromkeys(place.topic.name for place in places))
        commands = tuple(dict.fromkeys(_copied_by(place, takes, wanted) for place in places))
        what = "a lost disk loses everything, and nothing is written or read while that node is away"
        if count == 2:
            what = "nothing can be written while either node is away"
        is_bad = count == 1 and len(facts.image.nodes) > 1
        yield Finding(
            identity,
            WARNING if is_bad else NOTE,
            named(names),
            f"{'a single copy' if count == 1 else 'two copies'}: {what}",
            f"let {'three' if wanted == COPIES_WANTED else 'two'} nodes copy it"
            if wanted > count
            else f"three copies need three nodes that answer and are not drained: {_more_nodes(facts)}",
            commands if wanted > count else (),
            partitions=tuple(place.name for place in places),
        )


def _more_nodes(facts: Facts) -> str:
    """What to do where too few nodes answer."""
    return f"{start_again(facts.silent_nodes)}, or add nodes" if facts.silent_nodes else "add nodes"


def _copied_by(place: Place, takes: Sequence[int], wanted: int) -> str:
    """The command that gives it so many copies, and takes none from other partitions of its topic."""
    topic = place.topic
    if max(len(topic.wanted(number)) for number in range(len(topic.ensembles))) <= wanted:
        return f"quorate topic alter {topic.name} --replicas {wanted}"
    held = _nodes(place)
    free = [node for node in takes if node not in held][: wanted - len(held)]
    return f"quorate topic add {place.name} --node {','.join(map(str, free))}"


def _in_sync(facts: Facts) -> Iterator[Finding]:
    for topic in facts.image.topics:
        counts = [len(ensemble) for ensemble in topic.ensembles]
        asked = topic.config.get(MIN_ISR)
        if topic.replication == "isr":
            tight = [
                number
                for number, count in enumerate(counts)
                # With two a majority is both: that is said of two copies.
                if count > 2 and min_isr(topic, number) == count
            ]
            if tight:
                spare = [
                    node for node in sorted(facts.statuses) if node not in _nodes(Place(topic, tight[0]))
                ]
                yield Finding(
                    "min-insync-all",
                    WARNING,
                    topic.name,
                    f"{MIN_ISR} is {asked}, and it has as many copies: whenever one of them is away, nothing "
                    "can be written",
                    "let it have one copy more; the setting itself can be altered only while the topic is "
                    "replicated in another way",
                    tuple(f"quorate topic add {topic.name} --node {node}" for node in spare[:1]),
                    partitions=tuple(f"{topic.name}/{number}" for number in tight),
                )
        elif asked is not None and asked.isdecimal() and int(asked) > majority(min(counts)):
            yield Finding(
                "min-insync-unheeded",
                WARNING,
                topic.name,
                f"{MIN_ISR} is {asked}, but of {min(counts)} copies {majority(min(counts))} settle a write "
                f"in topics of {topic.replication}: no more than that are sure to have it",
                "say what is so, or let it have more copies",
                (f"quorate topic alter {topic.name} --reset {MIN_ISR}",),
            )


def _defaults(facts: Facts) -> Iterator[Finding]:
    """What new topics get must fit together, or each of them is refused."""
    config = facts.image.cluster.config
    copies = min(int(config.get(REPLICAS_SETTING, REPLICAS_COUNT)), max(len(facts.image.nodes), 1))
    asked = config.get(MIN_ISR)
    if asked is None:
        return
    possible = copies if config.get(REPLICATION) == "isr" else majority(copies)
    if int(asked) > possible:
        yield Finding(
            "defaults-contradict",
            WARNING,
            "new topics",
            f"they get {copies} {'copy' if copies == 1 else 'copies'} and {MIN_ISR}={asked}, of which "
            f"{possible} is the most that is possible: whoever creates one without saying otherwise is refused",
            "let one of the two be another",
            (f"quorate cluster alter --config {MIN_ISR}={possible}",),
        )


def _retention(facts: Facts) -> Iterator[Finding]:
    for topic in facts.image.topics:
        if topic.purpose == TOPIC and (finding := _kept_for_longer(topic.config, topic.name)):
            yield finding
    if finding := _kept_for_longer(facts.image.cluster.config, ""):
        yield finding


def _kept_for_longer(config: Mapping[str, str], topic: str) -> Finding | None:
    """Whole segments go: one that spans more than is to be kept keeps its oldest record until all of it may go."""
    alter = f"quorate topic alter {topic}" if topic else "quorate cluster alter"
    whats: list[str] = []
    settings: list[str] = []
    keep_ms = int(config.get(RETENTION_MS, UNLIMITED))
    segment_ms = int(config.get(SEGMENT_MS, SEGMENT_MS_DEFAULT))
    if 0 <= keep_ms < segment_ms:
        whats.append(
            f"{RETENTION_MS} is {say.duration(keep_ms / 1000)}, but a segment takes records for "
            f"{say.duration(segment_ms / 1000)} ({SEGMENT_MS})"
        )
        settings.append(f"--config {SEGMENT_MS}={max(1, keep_ms)}")
    keep_bytes = int(config.get(RETENTION_BYTES, UNLIMITED))
    segment_bytes = int(config.get(SEGMENT_BYTES, StoreSettings().segment_bytes))
    if 0 <= keep_bytes < segment_bytes:
        whats.append(
            f"{RETENTION_BYTES} is {say.bytes_count(keep_bytes)}, but a segment grows to "
            f"{say.bytes_count(segment_bytes)} ({SEGMENT_BYTES})"
        )
        settings.append(f"--config {SEGMENT_BYTES}={max(SEGMENT_BYTES_LEAST, keep_bytes)}")
    if not settings:
        return None
    return Finding(
        "retention-below-segment",
        WARNING,
        topic or "new topics",
        f"{'; '.join(whats)}: only whole segments go, so more is kept, and for longer, than was asked for",
        "let segments be smaller than what is kept",
        (f"{alter} {' '.join(settings)}",),
    )


def _compaction(facts: Facts) -> Iterator[Finding]:
    """Nobody lets go of what is superseded before every copy has made the same of it."""
    for place in facts.partitions():
        known = place.topic.compactions.get(place.number)
        if known is None or known.wanted is None:
            continue
        where = f"{place.topic.name}/{place.number}"
        holders = place.topic.holders(place.number)
        missing = tuple(sorted({member.node for member in known.missing(holders)}))
        waited_ms = facts.now_ms - known.wanted_ms
        if known.differs(holders):
            yield _compacted_otherwise(facts, place, known)
        elif missing and waited_ms > COMPACTION_PATIENCE_MS:
            names = ", ".join(f"node {node}" for node in missing)
            yield Finding(
                "compaction-held-up",
                WARNING,
                where,
                f"it was to be compacted {say.duration(waited_ms / 1000)} ago, and {names} has not made it ready: "
                "until every copy has, all keep what is superseded",
                "see what keeps that copy away, damaged or behind; or let another node have it",
                nodes=missing,
                partitions=(where,),
            )


def _compacted_otherwise(facts: Facts, place: Place, known: Compaction) -> Finding:
    """Where most have made the same, the others are to be made anew; else nothing here tells which is right."""
    name, holders = place.name, place.topic.holders(place.number)
    made = ", ".join(f"node {member.node} {crc:08x}" for member, crc in known.made(holders).items())
    odd = tuple(member.node for member in known.odd(holders))
    leader = facts.found.leader(place.partition)
    leads = leader is not None and leader.me.node in odd
    anew = [f"quorate topic {verb} {name} --node {node}" for node in odd for verb in ("remove", "add")]
    return Finding(
        "compaction-differs",
        WARNING,
        name,
        f"its copies made different things of the same compaction ({made}): none has let go of anything, "
        "and it is not compacted any further",
        "compare the copies (`quorate audit`), and report this"
        + (f"; then make the copy on {nodes_named(odd)} anew, unlike most others" if odd else ""),
        (*[f"quorate topic transfer {name}"] * leads, *anew),
        nodes=odd,
        partitions=(name,),
    )


# ---- where copies lie ----


def _racks(facts: Facts) -> Iterator[Finding]:
    infos = facts.infos
    unknown = tuple(node for node, info in sorted(infos.items()) if not info.rack)
    if not infos or len(unknown) == len(infos):
        return
    if unknown:
        yield Finding(
            "racks-unknown",
            NOTE,
            nodes_named(unknown),
            "it is not said where they stand, and of other nodes it is: each of them is taken for a rack of "
            "its own",
            "say so in their configuration (`rack`), and start them anew, one after the other",
            ("QUORATE_RACK=b quorate node --config node.toml",),
            nodes=unknown,
        )
    racks = {node: rack_of(info) for node, info in infos.items()}
    crowded: list[str] = []
    commands: list[str] = []
    for place in facts.partitions():
        nodes = [node for node in _nodes(place) if node in racks]
        used = Counter(racks[node] for node in nodes)
        if len(used) >= min(len(nodes), len(set(racks.values()))):
            continue
        crowded.append(place.name)
        free = [node for node in sorted(facts.statuses) if node in racks and racks[node] not in used]
        going = [node for node in nodes if used[racks[node]] > 1]
        if free and going:
            commands.append(f"quorate topic replace {place.name} --node {going[-1]} --with {free[0]}")
    if crowded:
        yield Finding(
            "racks-not-used",
            WARNING,
            named(crowded),
            "copies lie in fewer racks than there are, so one of them may take several at once: they were "
            "placed before there were as many, or moved since",
            "move a copy into a rack that has none",
            tuple(commands),
            partitions=tuple(crowded),
        )


def _nodes(place: Place) -> list[int]:
    return [member.node for member in place.topic.wanted(place.number)]


# ---- votes ----


def _voters(facts: Facts) -> Iterator[Finding]:
    voters = {member.node for member in facts.voters()}
    spare = [node for node in sorted(facts.infos) if node in facts.statuses and node not in voters]
    count, nodes_count = len(voters), len(facts.infos)
    if not count:
        return
    if count < VOTERS_WANTED <= nodes_count:
        who = f"{nodes_named(sorted(voters))} {'votes' if count == 1 else 'vote'}"
        yield Finding(
            "voters-few",
            WARNING,
            THE_METADATA_GROUP,
            f"only {who}: if {'it' if count == 1 else 'one of them'} goes, nothing can be created, deleted "
            f"or moved, though there are {nodes_count} nodes",
            "let three vote"
            if len(spare) >= VOTERS_WANTED - count
            else f"let three vote; for that, {_more_nodes(facts)}",
            tuple(f"quorate cluster add {node}" for node in spare[: VOTERS_WANTED - count]),
            nodes=tuple(sorted(voters)),
        )
    elif count % 2 == 0:
        leader = facts.statuses[min(facts.statuses)].metadata_leader if facts.statuses else 0
        # With a live one gone, and a silent one left, fewer would be there to survive a loss.
        silent_first = sorted(voters, key=lambda node: (node in facts.statuses, -node))
        goes = next((node for node in silent_first if node != leader), 0)
        more = [f"quorate cluster add {spare[0]}"] if spare else []
        fewer = [f"quorate cluster remove {goes}"] if count > VOTERS_WANTED else []
        yield Finding(
            "voters-even",
            NOTE,
            THE_METADATA_GROUP,
            f"{count} nodes vote, and survive the loss of {count - majority(count)}, as {count - 1} would: "
            "one more to wait for, and nothing won",
            "let an odd number vote"
            + ("" if more or fewer else ": a third node is needed for the loss of one to be survived"),
            tuple((more or fewer)[:1]),
            nodes=tuple(sorted(voters)),
        )


# ---- what was set for a while, and stays ----


def _rate(facts: Facts) -> Iterator[Finding]:
    """Where a change stands still for it, that change says so."""
    rate = moving_rate(facts.image.cluster.config)
    waiting = [
        place
        for place in facts.partitions()
        if waits_for_copies(place.topic, place.number) and place.name not in facts.lost_for_good
    ]
    if rate < 0 or bool(waiting) == (rate == 0):
        return
    what = "no copy that is made, or made anew, gets anything: whatever is ordered to move stands still"
    if rate:
        what = (
            f"each node sends no more than {say.bytes_count(rate)}/s to copies that are being made, as of "
            f"{named([place.name for place in waiting])}: if clients write as fast, they never catch up"
        )
    yield Finding(
        "moving-rate",
        NOTE,
        "copies that are made",
        f"{MOVING_RATE} is {rate}: {what}",
        "if that was for a while, let there be no limit any more",
        (LET_THEM_GO_ON,),
        partitions=tuple(place.name for place in waiting),
    )


def _drained(facts: Facts) -> Iterator[Finding]:
    """While its copies go elsewhere nothing has been forgotten."""
    for node in drained_nodes(facts.image.cluster.config, facts.image.lives):
        stay, go = [], []
        for place in facts.partitions():
            if node in _nodes(place):
                stay.append(place.name)
            elif any(member.node == node for member in place.topic.holders(place.number)):
                go.append(place.name)
        if go:
            continue
        undo = f"quorate cluster drain {node} --undo"
        what, do = "it has none", "let it have copies again, or, if it is to go, take it away"
        commands: tuple[str, ...] = (undo, f"quorate cluster decommission {node}")
        if stay:
            what = f"nobody moves {say.counted(len(stay), 'copy', 'copies')} off it"
            do = "let that go on, or let it have copies again"
            commands = (f"quorate cluster drain {node}", undo)
        yield Finding(
            "node-drained",
            NOTE,
            f"node {node}",
            f"it is to have no copies (`quorate cluster drain`), and {what}; new topics are put on others",
            do,
            commands,
            nodes=(node,),
            partitions=tuple(stay),
        )
