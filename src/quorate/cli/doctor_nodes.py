"""What is wrong with nodes: those that are silent or apart, their disks, clocks, versions and certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorate.cli import say
from quorate.cli.doctor_facts import (
    CRITICAL,
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
    start_again,
)
from quorate.cli.how_far import stands_still
from quorate.cli.options import NATS_SUBJECT
from quorate.core.entry import Member
from quorate.core.quorum import majority

START_COMMAND = "quorate node --config node.toml"
FREE_SHARE_LOW, FREE_SHARE_LAST = 0.15, 0.05
"""Of a disk: below the first there is time to do something, below the second hardly."""
CLOCKS_APART_MS = 500
DAY_MS = 24 * 3600 * 1000
ENDS_SOON_DAYS, ENDS_AT_ONCE_DAYS = 30, 7
YOUNG_S = 300.0


def node_findings(facts: Facts) -> Iterator[Finding]:
    yield from _metadata(facts)
    yield from _silent(facts)
    yield from _new_disks(facts)
    yield from _apart(facts)
    yield from _disks(facts)
    yield from _clocks(facts)
    yield from _certificates(facts)
    yield from _versions(facts)
    yield from _nats(facts)
    yield from _restarted(facts)


def _metadata(facts: Facts) -> Iterator[Finding]:
    voters = tuple(sorted(member.node for member in facts.voters()))
    away = tuple(node for node in voters if node not in facts.statuses)
    if not facts.image.is_current:
        who = f"; {nodes_named(away)} {does(away, 'does', 'do')} not answer" if away else ""
        yield Finding(
            "metadata-no-majority",
            CRITICAL,
            THE_METADATA_GROUP,
            f"nobody leads it: of its {len(voters)} voters {majority(len(voters))} must hear each "
            f"other{who}. Topics are written and read where their copies allow it, but nothing can be "
            "created, deleted or moved, and what is said here may be old",
            f"{start_again(away)}, or put back {does(away, 'its disk', 'their disks')} as they were"
            if away
            else "wait for a moment and look again; where that does not help, see whether the voters reach "
            "each other",
            (START_COMMAND,) if away else ("quorate cluster status",),
            nodes=away,
        )
    elif away:
        left = len(voters) - len(away) - majority(len(voters))
        yield Finding(
            "voters-away",
            WARNING,
            THE_METADATA_GROUP,
            f"{len(away)} of {len(voters)} voters {does(away, 'does', 'do')} not answer: {nodes_named(away)}. "
            + (f"{left} more may go" if left > 0 else "If one more goes, nothing can be created or moved"),
            f"{start_again(away)}; if {does(away, 'it is', 'one is')} gone for good, let another vote in its "
            "place",
            (START_COMMAND, *_voter_instead(facts, away)),
            nodes=away,
        )


def _voter_instead(facts: Facts, away: tuple[int, ...]) -> tuple[str, ...]:
    voters = {member.node for member in facts.voters()}
    spare = [node for node in sorted(facts.infos) if node in facts.statuses and node not in voters]
    if not spare:
        return ()
    return (f"quorate cluster add {spare[0]}", f"quorate cluster remove {away[0]}")


def _silent(facts: Facts) -> Iterator[Finding]:
    for node in facts.silent_nodes:
        copies, to_come = [], []
        for place in facts.partitions():
            topic, number = place.topic, place.number
            if any(member.node == node for member in topic.ensembles[number]):
                copies.append(place.name)
            elif any(member.node == node for member in topic.holders(number)):
                to_come.append(place.name)
        votes = any(member.node == node for member in (*facts.voters(), *facts.wanted_voters()))
        why = facts.silent.get(node, "")
        holds = f"It holds {say.counted(len(copies), 'copy', 'copies')}"
        if to_come:
            holds += f", and is, or was, to hold {len(to_come)} more"
        if copies or to_come or votes:
            do = (
                f"{start_again((node,))}. If its disk is as it was, nothing else is needed; if that is lost, make "
                "its directory anew first (`quorate format … --replaces`); if the node is gone for good, another "
                f"takes its place (`quorate cluster replace {node} --with NODE`)"
            )
            commands: tuple[str, ...] = (START_COMMAND,)
        else:
            do, commands = (
                "start it again, or say that it is gone for good",
                (START_COMMAND, f"quorate cluster forget {node}"),
            )
        yield Finding(
            "node-silent",
            WARNING,
            f"node {node}",
            f"it does not answer{f' ({why})' if why else ''}. {holds}{' and a vote' if votes else ''}",
            do,
            commands,
            nodes=(node,),
            partitions=(*copies, *to_come),
        )


def _new_disks(facts: Facts) -> Iterator[Finding]:
    topics = {topic.name: topic for topic in facts.image.topics}
    lost: dict[int, list[Place]] = {}
    for name, number, node in sorted({*facts.image.lost, *facts.image.lost_now}):
        # What nobody can lead has nothing that a copy could be made from: that is told by itself.
        if (place := Place(topics[name], number)).name not in facts.lost_for_good:
            lost.setdefault(node, []).append(place)
    votes = {node for node, life in _lives(facts.voters()).items() if _is_another(facts, node, life)}
    ordered = _lives(facts.wanted_voters())
    for node in sorted(votes.union(lost)):
        if node not in facts.statuses:
            continue
        places = lost.get(node, [])
        names = tuple(sorted(place.name for place in places))
        is_voting = node not in votes or not _is_another(facts, node, ordered.get(node, 0))
        if is_voting and all(facts.is_made_anew(place, node) for place in places):
            yield _filled(facts, node, places, names)
            continue
        yield Finding(
            "disk-lost",
            WARNING,
            f"node {node}",
            f"it runs with a directory made anew, which counts nowhere yet: {len(places):,} of its copies, "
            "and its vote where it had one, are missing until a person says so",
            "let it count again, if the old disk will not come back",
            (f"quorate cluster replace {node}",),
            nodes=(node,),
            partitions=names,
        )


def _filled(facts: Facts, node: int, places: Sequence[Place], names: tuple[str, ...]) -> Finding:
    """Somebody has said so."""
    is_held_up = any(stands_still(facts.image, place.topic, place.number) for place in places)
    do, commands = how_it_goes_on(is_held_up=is_held_up, look="quorate cluster status")
    what = f"it runs with a directory made anew, and is ordered to count again: {len(places):,} of its copies"
    return Finding(
        "disk-lost",
        WARNING,
        f"node {node}",
        f"{what}, and its vote where it had one, do not count until they have everything",
        do,
        commands,
        nodes=(node,),
        partitions=names,
    )


def _lives(members: Sequence[Member]) -> dict[int, int]:
    return {member.node: member.incarnation for member in members}


def _is_another(facts: Facts, node: int, life: int) -> bool:
    """Whether a node is there with a directory other than that one."""
    return node in facts.infos and facts.infos[node].incarnation != life


def _apart(facts: Facts) -> Iterator[Finding]:
    """Between nodes that answer here: who is down is said elsewhere."""
    for node, status in sorted(facts.statuses.items()):
        earlier = facts.earlier.get(node)
        others = [other for other in sorted(facts.infos) if other != node and other in facts.statuses]
        unlinked = [
            other
            for other in others
            if other not in status.connected and (earlier is None or other not in earlier.connected)
        ]
        unheard = [
            other
            for other in others
            if status.health is not None
            and other not in status.health.heard
            and (earlier is None or earlier.health is None or other not in earlier.health.heard)
        ]
        apart = tuple(sorted({*unlinked, *unheard}))
        if not apart:
            continue
        infos = facts.infos
        tried = [f"nc -vz {' '.join(map(str, infos[other].for_nodes))}" for other in apart]
        how = [f"it has no link to {nodes_named(unlinked)}"] if unlinked else []
        how += [f"it hears nothing of {nodes_named(unheard)}"] if unheard else []
        yield Finding(
            "nodes-apart",
            WARNING,
            f"node {node}",
            f"{' and '.join(how)}, though {does(apart, 'that one answers', 'these answer')} here: copies "
            "there fall behind, and leaders may change again and again",
            f"on the machine of node {node}, and the other way round, see what is between them: a firewall, "
            "a name, an address that was advertised wrongly",
            tuple(tried),
            nodes=(node, *apart),
        )


def _disks(facts: Facts) -> Iterator[Finding]:
    for node, health in facts.healths.items():
        room = f"{say.bytes_count(health.disk_free_bytes)} of {say.bytes_count(health.disk_total_bytes)} are free"
        look = (f"df -h {health.directory}", f"du -sh {health.directory}")
        do = (
            "make room on its machine, let topics keep less (`quorate topic alter TOPIC --config "
            "retention.ms=…`), or move copies to other nodes"
        )
        share = health.disk_free_bytes / health.disk_total_bytes if health.disk_total_bytes else 1.0
        if health.is_full:
            what = (
                f"its disk has refused to take more ({room}). Nothing is lost: others lead meanwhile, and it "
                "goes on by itself when there is room"
            )
            yield Finding("disk-full", CRITICAL, f"node {node}", what, do, look, nodes=(node,))
        elif share < FREE_SHARE_LOW:
            severity = CRITICAL if share < FREE_SHARE_LAST else WARNING
            what = f"{room}. When it is full, it takes nothing more, and its copies fall behind"
            yield Finding("disk-filling", severity, f"node {node}", what, do, look, nodes=(node,))


def _clocks(facts: Facts) -> Iterator[Finding]:
    """A node read its clock somewhere between question and answer: only what is apart for certain is said."""
    offsets = {
        node: (health.wall_ms - clock.answered_ms, health.wall_ms - clock.asked_ms)
        for node, health in facts.healths.items()
        if (clock := facts.clocks.get(node)) is not None
    }
    if len(offsets) < 2:
        return
    ahead = max(offsets, key=lambda node: offsets[node][0])
    behind = min(offsets, key=lambda node: offsets[node][1])
    apart_ms = offsets[ahead][0] - offsets[behind][1]
    if apart_ms < CLOCKS_APART_MS:
        return
    yield Finding(
        "clocks-apart",
        WARNING,
        nodes_named(sorted((ahead, behind))),
        f"the clock of node {ahead} is {say.duration(apart_ms / 1000)} or more ahead of that of node "
        f"{behind}. Nothing is lost by it, but records go too early or too late by `retention.ms`, and a new "
        "leader that gives out timestamps waits for as long",
        "let a time service run on every machine",
        ("timedatectl status", "chronyc tracking"),
        nodes=tuple(sorted((ahead, behind))),
    )


def _certificates(facts: Facts) -> Iterator[Finding]:
    for node, health in facts.healths.items():
        for certificate in health.certificates:
            left_days = (certificate.ends_ms - facts.now_ms) / DAY_MS
            if left_days >= ENDS_SOON_DAYS:
                continue
            when = (
                f"ends in {left_days:.0f} days" if left_days >= 2 else f"ends in {left_days * 24:.0f} hours"
            )
            if left_days <= 0:
                when = "has ended"
            yield Finding(
                "certificate-ends",
                CRITICAL if left_days < ENDS_AT_ONCE_DAYS else WARNING,
                f"node {node}, {certificate.key}",
                f"a certificate in {certificate.file} {when}: from then on nobody who checks it speaks with "
                "this node, but on connections that are open",
                "put a new one into that file, and start the node anew: files are read when it starts",
                (f"openssl x509 -noout -enddate -in {certificate.file}",),
                nodes=(node,),
            )


def _versions(facts: Facts) -> Iterator[Finding]:
    versions: dict[str, list[int]] = {}
    for node, status in sorted(facts.statuses.items()):
        versions.setdefault(status.health.version if status.health else "an older version", []).append(node)
    if len(versions) > 1:
        said = ", ".join(f"{nodes_named(nodes)}: {version}" for version, nodes in sorted(versions.items()))
        yield Finding(
            "versions-differ",
            WARNING,
            "the cluster",
            f"nodes run different versions ({said}). They work together, but for what only the newest knows; "
            "an upgrade was not brought to its end",
            "install the same version on every node, one after the other",
            ("quorate --version",),
            nodes=tuple(node for nodes in versions.values() for node in nodes),
        )
    level, knows = facts.image.cluster.level, {info.node: info.knows for info in facts.image.nodes}
    least, newest = min(knows.values(), default=level), max(knows.values(), default=level)
    if least < newest:
        older = tuple(node for node, known in sorted(knows.items()) if known < newest)
        yield Finding(
            "levels-differ",
            WARNING,
            "the cluster",
            f"{nodes_named(older)} {does(older, 'knows', 'know')} less than feature level {newest}, which "
            f"others know: until all do, the cluster goes by {level}, and what came with {newest} is refused",
            f"install the newer version on {nodes_named(older)}",
            ("quorate cluster status",),
            nodes=older,
        )
    elif least > level:
        yield Finding(
            "level-behind",
            NOTE,
            "the cluster",
            f"it goes by feature level {level}, and every node knows {least}. What came since is refused "
            "until it is raised",
            "raise it, when you will not go back to the older version: that cannot be taken back",
            (f"quorate cluster alter --feature-level {least}",),
        )


def _nats(facts: Facts) -> Iterator[Finding]:
    for node, status in sorted(facts.statuses.items()):
        leads = {replica.partition for replica in status.replicas if replica.role == "leader"}
        fed = [
            topic.name
            for topic in facts.image.topics
            if NATS_SUBJECT in topic.config and leads.intersection(topic.partitions())
        ]
        if status.nats is None or not status.nats.why_not or not fed:
            continue
        yield Finding(
            "nats-silent",
            WARNING,
            f"node {node}",
            f"messages of NATS do not come in for {named(fed)}: {status.nats.why_not}. What is published "
            "meanwhile is lost",
            "see whether the NATS server runs and lets this node in",
            (f"quorate topic describe {fed[0]}",),
            nodes=(node,),
            partitions=tuple(f"{name}/0" for name in fed),
        )


def _restarted(facts: Facts) -> Iterator[Finding]:
    young = tuple(node for node, health in facts.healths.items() if health.uptime_s < YOUNG_S)
    if not young or len(young) == len(facts.healths):
        return
    said = ", ".join(f"node {node} {say.duration(facts.healths[node].uptime_s)}" for node in young)
    yield Finding(
        "node-restarted",
        NOTE,
        nodes_named(young),
        f"{does(young, 'it runs', 'they run')} only for a short time: {said} ago",
        "if nobody did that, see what the node said last before it ended",
        ("quorate cluster status",),
        nodes=young,
    )
