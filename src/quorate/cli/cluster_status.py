"""`quorate cluster status`: the nodes, what they hold, and what of it somebody should look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from quorate.cli import say
from quorate.cli.options import NATS_SUBJECT, SERVERS, Json, Servers

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.cli.topic_view import Found
    from quorate.core.entry import Member
    from quorate.machine.metadata import NodeInfo, Topic
    from quorate.node.requests import Image, ReplicaStatus, Status

NAMED_COUNT_MAX = 5
"""Of many partitions, so many are named in a line."""

DISK_LOST = "disk lost, does not count"

View = dict[str, Any]
"""The cluster, as one object."""


def register(cluster_app: typer.Typer) -> None:
    cluster_app.command("status")(status)


def status(servers: Servers = SERVERS, json: Json = False) -> None:
    """Show the nodes, what they hold, and who votes in the metadata group."""
    from quorate.cli.orders import carry_out

    view, lines = carry_out(servers, _looked_at)
    if json:
        say.print_json(view)
        return
    nodes = view["nodes"]
    columns = ["node", "address", "state", "metadata", "behind", "copies", "leads"]
    rare = [column for column in ("rack", "faulty") if any(node[column] for node in nodes)]
    rows = [[*_words(node), *(str(node[column] or "") for column in rare)] for node in nodes]
    out = say.console()
    out.print(say.table(f"Cluster {view['cluster']}", [*columns, *rare], rows, right=(0, 4, 5, 6)))
    for line in lines:
        out.print(line, markup=False)


def _words(node: View) -> list[str]:
    behind = f"{node['behind']:,}" if isinstance(node["behind"], int) else node["behind"] or ""
    counts = ["" if node[count] is None else f"{node[count]:,}" for count in ("copies", "leads")]
    return [str(node["node"]), node["address"], node["state"], node["metadata"], behind, *counts]


async def _looked_at(orders: Orders) -> tuple[View, list[str]]:
    """The cluster, and lines about it: changes that are open, partitions to look after, the use of NATS."""
    from quorate.cli.how_far import phase, voters_phase
    from quorate.cli.orders import MAY_BE_OLD
    from quorate.cli.topic_view import Found
    from quorate.machine.metadata import METADATA

    image, statuses = await orders.image(even_old=True), await orders.statuses()
    found = Found(image, statuses)
    metadata = found.leader(METADATA)
    changes = [
        f"{topic.name}/{number} {phase(topic, number, image, statuses)}"
        for topic in image.topics
        for number in sorted(topic.changes)
    ]
    if metadata is not None and (voters_change := voters_phase(statuses)):
        changes.insert(0, voters_change)
    nats = [
        f"node {node}, {say.nats(each.nats, led=_subjects(image, each))}"
        for node, each in sorted(statuses.items())
        if each.nats
    ]
    partitions = _partitions(found)
    view = {
        "cluster": orders.client.cluster,
        "is_current": image.is_current,
        "feature_level": image.cluster.level,
        "config": image.cluster.config,
        "metadata": _metadata(metadata),
        "nodes": [
            {
                **_node(info, image, statuses.get(info.node), metadata),
                "registered_at": image.lives.get(info.node),
            }
            for info in image.nodes
        ],
        "topics": len(image.topics),
        **partitions,
        "changes": changes,
        "nats": nats,
    }
    old = [] if image.is_current else [MAY_BE_OLD]
    return view, [*old, *_level(image), *_settings(image), *changes, *_troubles(partitions), *nats]


def _level(image: Image) -> list[str]:
    """What everybody goes by, and whether they could go by more."""
    level, known = image.cluster.level, min((info.knows for info in image.nodes), default=0)
    if known > level:
        could = f"; every node knows {known}: `quorate cluster alter --feature-level {known}`"
        return [f"feature level {level}{could}"]
    newer = [str(info.node) for info in image.nodes if info.knows > level]
    more = f"; nodes {', '.join(newer)} know more, the others do not yet" if newer else ""
    return [f"feature level {level}{more}"]


def _settings(image: Image) -> list[str]:
    from quorate.cli.how_far import STAND_STILL
    from quorate.machine.cluster import MOVING_RATE, drained_nodes, drained_setting, moving_rate

    config = image.cluster.config
    others = {MOVING_RATE, *(drained_setting(info.node) for info in image.nodes)}
    said = ", ".join(f"{name}={value}" for name, value in sorted(config.items()) if name not in others)
    lines = [f"new topics: {said}"] if said else []
    if (rate := moving_rate(config)) == 0:
        lines.append(STAND_STILL)
    elif rate > 0:
        lines.append(f"copies are made with at most {say.bytes_count(rate)}/s from each node")
    if drained := drained_nodes(config, image.lives):
        several = len(drained) > 1
        which = f"nodes {', '.join(map(str, drained))} are" if several else f"node {drained[0]} is"
        lines.append(f"{which} to have no copies (`quorate cluster drain`)")
    return lines


# ---- partitions ----


def _partitions(found: Found) -> View:
    """How many there are, and which of them somebody should look after."""
    leaderless, incomplete, faulty = [], [], []
    count = 0
    for topic in found.image.topics:
        for number, partition in enumerate(topic.partitions()):
            name, leader = f"{topic.name}/{number}", found.leader(partition)
            count += 1
            if leader is None:
                leaderless.append(name)
            elif _lacks_copies(found, topic, number, leader):
                incomplete.append(name)
            if any(replica.faulty for replica in found.held(partition).values()):
                faulty.append(name)
    return {"partitions": count, "leaderless": leaderless, "incomplete": incomplete, "faulty": faulty}


def _lacks_copies(found: Found, topic: Topic, number: int, leader: ReplicaStatus) -> bool:
    """Whether a copy that counts is away. A little behind is not away; where there is an ISR, that says."""
    from quorate.cli.copies_there import standing, why_away
    from quorate.core.entry import partition_of

    stored = found.image.stored.get(partition_of(topic.id, number))
    nodes = [member.node for member in standing(topic, number, leader, stored)]
    return any(why_away(found, topic, number, node) for node in nodes)


def _troubles(partitions: View) -> list[str]:
    said = {
        "leaderless": "nobody leads {}",
        "incomplete": "copies are away, or out of sync, of {}",
        "faulty": "something cannot be read, and is being mended, of {}",
    }
    return [line.format(_named(partitions[kind])) for kind, line in said.items() if partitions[kind]]


def _named(partitions: Sequence[str]) -> str:
    more = len(partitions) - NAMED_COUNT_MAX
    return ", ".join(partitions[:NAMED_COUNT_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _subjects(image: Image, status: Status) -> list[str]:
    """NATS subjects of the topics that a node leads."""
    leads = {replica.partition for replica in status.replicas if replica.role == "leader"}
    return [
        topic.config[NATS_SUBJECT]
        for topic in image.topics
        if NATS_SUBJECT in topic.config and leads.intersection(topic.partitions())
    ]


# ---- nodes ----


def _metadata(leader: ReplicaStatus | None) -> View | None:
    """As the leader of the metadata group says."""
    if leader is None:
        return None

    def nodes(members: Sequence[Member]) -> list[int]:
        return [member.node for member in members]

    return {
        "leader": leader.me.node,
        "epoch": leader.epoch,
        "commit": leader.commit,
        "voters": nodes(leader.membership.ensemble),
        "learners": nodes(leader.membership.learners),
        "in_sync": list(leader.in_sync),
    }


def _node(info: NodeInfo, image: Image, status: Status | None, metadata: ReplicaStatus | None) -> View:
    from quorate.cli.how_far import is_unheard
    from quorate.machine.metadata import METADATA

    role: str = "unknown"
    behind: int | str | None = None
    if metadata is not None:
        lives = {member.node: member.incarnation for member in metadata.membership.voters}
        if info.node == metadata.me.node:
            role = "leads"
        elif info.node not in lives:
            role = DISK_LOST if _has_lost_copies(image, info.node) else "follows"
        else:
            role = "votes" if lives[info.node] == info.incarnation else DISK_LOST
        if info.node in metadata.lags:
            behind = "not heard yet" if is_unheard(metadata, info.node) else metadata.lags[info.node]
    view = {
        "node": info.node,
        "address": f"{info.host}:{info.port}",
        "rack": info.rack,
        "incarnation": info.incarnation,
        "knows": info.knows,
        "state": "up" if status is not None else "does not answer",
        "metadata": role,
        "behind": behind,
        "copies": None,
        "leads": None,
        "faulty": None,
        "connected": None,
    }
    if status is None:
        return view
    replicas = [replica for replica in status.replicas if replica.partition != METADATA]
    return view | {
        "copies": len(replicas),
        "leads": sum(replica.role == "leader" for replica in replicas),
        "faulty": sum(bool(replica.faulty) for replica in status.replicas),
        "connected": list(status.connected),
    }


def _has_lost_copies(image: Image, node: int) -> bool:
    return any(lost == node for _, _, lost in (*image.lost, *image.lost_now))
