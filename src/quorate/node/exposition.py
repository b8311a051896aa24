"""What a node counts, and what can be looked up when somebody asks, in Prometheus' text format.

Times are in seconds, sizes in bytes, and a counter ends with `_total`, as its users expect. Nothing has a label for
each partition: with thousands of them that would cost whoever collects it more than it tells. `/state` has these.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from quorate import __version__
from quorate.core.entry import Partition
from quorate.node.health import health_of
from quorate.node.metrics import BOUNDS_S, Histogram
from quorate.node.state import why_not_ready

if TYPE_CHECKING:
    from quorate.node.node import Node

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
BEGAN = time.time()
"""When this process did, nearly enough."""


class Page:
    """Families of samples, one after another."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._family = ""

    def family(self, name: str, kind: str, what: str) -> None:
        self._family = name
        self._lines += (f"# HELP {name} {what}", f"# TYPE {name} {kind}")

    def sample(self, value: float, suffix: str = "", **labels: object) -> None:
        named = ",".join(f'{name}="{escaped(str(label))}"' for name, label in labels.items())
        number = int(value) if value == int(value) else value
        self._lines.append(f"{self._family}{suffix}{f'{{{named}}}' if named else ''} {number}")

    def only(self, name: str, kind: str, what: str, value: float) -> None:
        """A family of one."""
        self.family(name, kind, what)
        self.sample(value)

    def histogram(self, times: Histogram, **labels: object) -> None:
        count = 0
        for bound, here in zip((*BOUNDS_S, float("inf")), times.counts, strict=True):
            count += here
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            self.sample(count, "_bucket", **labels, le=le)
        self.sample(times.sum_s, "_sum", **labels)
        self.sample(count, "_count", **labels)

    def __str__(self) -> str:
        return "\n".join([*self._lines, ""])


def escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def exposition(node: Node) -> str:
    page = Page()
    _identity(page, node)
    _requests(page, node)
    _proposals(page, node)
    _replicas(page, node)
    _connections(page, node)
    _groups(page, node)
    _process(page)
    return str(page)


def _identity(page: Page, node: Node) -> None:
    config = node.config
    page.family("quorate_info", GAUGE, "Which node this is; always 1.")
    page.sample(1, version=__version__, cluster=config.cluster, node=node.id, rack=config.rack)
    page.only("quorate_ready", GAUGE, "Whether clients can be sent here.", not why_not_ready(node))
    page.only("quorate_disk_full", GAUGE, "Whether the disk had no room lately.", node.host.store.is_full)
    health = health_of(node)
    page.only(
        "quorate_disk_total_bytes", GAUGE, "Of the disk that its directory is on.", health.disk_total_bytes
    )
    page.only("quorate_disk_free_bytes", GAUGE, "What it may still use of it.", health.disk_free_bytes)
    if config.voters:
        metadata = node.metadata
        page.only(
            "quorate_metadata_leader", GAUGE, "Who leads the metadata group; 0: nobody.", metadata.controller
        )
        page.only("quorate_metadata_version", GAUGE, "Of the image.", metadata.image.version)
        page.only("quorate_nodes", GAUGE, "Registered nodes.", len(metadata.image.nodes))
        page.only("quorate_topics", GAUGE, "Topics in the cluster.", len(metadata.image.topics))


def _requests(page: Page, node: Node) -> None:
    metrics = node.metrics
    for name, what, value in (
        ("produce_requests", "Produce requests of Kafka clients.", metrics.produce_requests),
        ("produce_batches", "Record batches that these brought.", metrics.produce_batches),
        ("produce_bytes", "Bytes of these batches.", metrics.produce_bytes),
        ("compactions", "Logs that have let go of what was compacted.", metrics.compactions),
        ("damaged", "Places that were found damaged when they were read.", metrics.damaged),
        (
            "mended_offsets",
            "Offsets that were written anew as other copies have them.",
            metrics.mended_offsets,
        ),
        ("scrubs", "Logs that were read from end to end to find damage.", metrics.scrubs),
        ("joint_repeated", "Joint commits of a number that was already in.", metrics.joint_repeated),
        ("fetch_requests", "Fetch requests of Kafka clients.", metrics.fetch_requests),
        ("fetch_batches", "Record batches that were sent to them.", metrics.fetch_batches),
        ("fetch_bytes", "Bytes of these batches.", metrics.fetch_bytes),
    ):
        page.only(f"quorate_{name}_total", COUNTER, what, value)
    for name, what, counted in (
        ("requests", "Requests of Kafka clients, by the name that they give themselves.", "requests"),
        ("request_bytes", "Bytes of these requests.", "request_bytes"),
        ("answer_bytes", "Bytes of what they were answered.", "answer_bytes"),
    ):
        page.family(f"quorate_client_{name}_total", COUNTER, what)
        for client, counts in sorted(metrics.clients.items()):
            page.sample(getattr(counts, counted), client=client)
    page.family(
        "quorate_request_errors_total", COUNTER, "Partitions for which clients were told of an error."
    )
    for (request, error), count in sorted(metrics.errors.items()):
        page.sample(count, request=request, error=error)


def _proposals(page: Page, node: Node) -> None:
    metrics = node.metrics
    page.family("quorate_proposals_total", COUNTER, "Proposals to replicas here, by what became of them.")
    for protocol, proposals in sorted(metrics.proposals.items()):
        for outcome, count in proposals.outcomes.items():
            page.sample(count, protocol=protocol, outcome=outcome.value)
    page.family("quorate_commit_seconds", HISTOGRAM, "From a proposal to the reply that it is settled.")
    for protocol, proposals in sorted(metrics.proposals.items()):
        page.histogram(proposals.commit, protocol=protocol)
    page.family("quorate_flush_seconds", HISTOGRAM, "A round of the journal, written and flushed.")
    page.histogram(metrics.flush)


def _replicas(page: Page, node: Node) -> None:
    counts: dict[tuple[str, str], int] = {}
    halted = leaderless = faulty_offsets = 0
    unsettled_s = held_back_s = 0.0
    behind: dict[int, list[int]] = {}
    for replica in node.status().replicas:
        hosted = node.host.hosted[Partition(replica.partition)]
        record = hosted.record
        protocol = record.protocol if record.purpose != "metadata" else record.purpose
        counts[protocol, replica.role] = counts.get((protocol, replica.role), 0) + 1
        halted += hosted.halted is not None
        leaderless += not hosted.leader
        faulty_offsets += sum(last - first + 1 for first, last in replica.faulty)
        unsettled_s = max(unsettled_s, replica.unsettled_s)
        if replica.held_back is not None and replica.role == "leader":
            held_back_s = max(held_back_s, replica.held_back.age_s)
        for peer, lag in replica.lags.items():
            behind.setdefault(peer, []).append(lag)
    page.family("quorate_replicas", GAUGE, "Replicas here.")
    for (protocol, role), count in sorted(counts.items()):
        page.sample(count, protocol=protocol, role=role)
    page.only("quorate_replicas_leaderless", GAUGE, "Replicas here that know of no leader.", leaderless)
    page.only(
        "quorate_replicas_halted", GAUGE, "Replicas here that an entry could not be applied to.", halted
    )
    what = "Offsets that cannot be read here; they are fetched from other copies."
    page.only("quorate_faulty_offsets", GAUGE, what, faulty_offsets)
    what = "How long the oldest entry waits that is led here and not settled."
    page.only("quorate_unsettled_seconds", GAUGE, what, unsettled_s)
    what = "How long readers of committed records are held back by an open transaction in what is led here."
    page.only("quorate_held_back_seconds", GAUGE, what, held_back_s)
    page.family("quorate_follower_lag_offsets", GAUGE, "Offsets led here that a node has not confirmed.")
    for peer, offsets in sorted(behind.items()):
        page.sample(sum(offsets), peer=peer)
    page.family("quorate_follower_lag_max_offsets", GAUGE, "The same of the partition where it is most.")
    for peer, offsets in sorted(behind.items()):
        page.sample(max(offsets), peer=peer)


def _connections(page: Page, node: Node) -> None:
    page.family("quorate_connections", GAUGE, "Connections that others have made, by what they are for.")
    page.sample(sum(door.peer > 0 for door in node.doors), kind="peer")
    page.sample(sum(door.is_client for door in node.doors), kind="client")
    for kind, count_now in sorted(node.metrics.connections.items()):
        page.sample(count_now(), kind=kind)
    page.only("quorate_peers", GAUGE, "Other nodes that are known.", len(node.peers))
    page.only("quorate_peers_connected", GAUGE, "Those to whom a link is up.", len(node.connected))
    sent, dropped = node.links.sent_count, node.links.dropped_count
    page.only("quorate_parcels_sent_total", COUNTER, "Messages to other nodes.", sent)
    page.only("quorate_parcels_dropped_total", COUNTER, "Those that found no link, or a full one.", dropped)
    pacer = node.host.pacer
    moved = "Bytes read for copies that do not count yet."
    page.only("quorate_moved_bytes_total", COUNTER, moved, pacer.moved_bytes)
    waiting = "Reads for them that wait for their turn (quorate.moving.rate)."
    page.only("quorate_moves_waiting", GAUGE, waiting, pacer.waiting_count)
    page.family("quorate_waiting_bytes", GAUGE, "Bytes in memory until somebody takes them.")
    page.sample(node.host.store.waiting_bytes, where="disk")
    page.sample(node.links.unsent_bytes, where="peers")
    page.sample(node.receiving_bytes, where="letters")
    for where, bytes_now in sorted(node.metrics.waiting_bytes.items()):
        page.sample(bytes_now(), where=where)


def _groups(page: Page, node: Node) -> None:
    page.family("quorate_groups", GAUGE, "Consumer groups that are coordinated here.")
    for stage, count in sorted(node.metrics.groups().items()):
        page.sample(count, state=stage)
    what = (
        "Settled offsets ahead of a group that is coordinated here, of partitions with a copy here; the most."
    )
    page.family("quorate_group_lag_offsets", GAUGE, what)
    for group, lag in sorted(node.metrics.group_lags().items()):
        page.sample(lag, group=group)


def _process(page: Page) -> None:
    """By the names that every process has."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = used.ru_utime + used.ru_stime
    page.only("process_cpu_seconds_total", COUNTER, "User and system time.", spent_s)
    page.only("process_start_time_seconds", GAUGE, "When it began, since 1970.", BEGAN)
    page.only("process_max_fds", GAUGE, "Descriptors allowed.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident_bytes = pages * resource.getpagesize()
        page.only("process_resident_memory_bytes", GAUGE, "Resident memory.", resident_bytes)
        page.only("process_open_fds", GAUGE, "Open descriptors.", len(os.listdir("/proc/self/fd")))
    except OSError:
        return  # Only Linux says so.
