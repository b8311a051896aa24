"""What a node counts: times in their places, and a page that whoever collects it can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.core.effects import Outcome, Reply
from quorate.node.exposition import COUNTER, GAUGE, HISTOGRAM, Page
from quorate.node.metrics import BOUNDS_S, CLIENTS_COUNT_MAX, OTHERS, Histogram, Metrics, TimedDisk
from quorate.storage.disk import Flush, Write
from quorate.storage.real_disk import RealDisk
from tests.unit.node.exposition_reading import Exposition


def test_a_time_is_counted_up_to_its_bound_and_one_above_all_in_the_last_place() -> None:
    times = Histogram()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], 1e6):
        times.observe(seconds)
    assert times.counts[:2] == [2, 1]
    assert times.counts[-2:] == [1, 1]
    assert sum(times.counts) == 5
    assert times.sum_s == pytest.approx(BOUNDS_S[0] * 2.01 + BOUNDS_S[-1] + 1e6)


def test_only_what_is_settled_has_a_commit_time_and_everything_an_outcome() -> None:
    metrics, replies = Metrics(), list[Reply]()
    for outcome in (Outcome.SETTLED, Outcome.BUSY, Outcome.SETTLED):
        metrics.timed("isr", 0.0, replies.append)(Reply(1, outcome))
    proposals = metrics.proposals["isr"]
    assert [reply.outcome for reply in replies] == [Outcome.SETTLED, Outcome.BUSY, Outcome.SETTLED]
    assert sum(proposals.commit.counts) == 2
    assert proposals.outcomes[Outcome.BUSY] == 1
    assert "raft" not in metrics.proposals


def test_so_many_clients_are_told_apart_and_the_rest_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(CLIENTS_COUNT_MAX + 50):
        metrics.client(f"client-{number}").requests += 1
    metrics.client("client-0").requests += 1
    assert len(metrics.clients) == CLIENTS_COUNT_MAX + 1
    assert metrics.client("client-0").requests == 2
    assert metrics.client(OTHERS).requests == 50
    assert metrics.client("x" * 1000) is metrics.client(OTHERS)
    assert Metrics().client(None) is not Metrics().client("x" * 1000)


def test_flushes_of_one_lane_are_timed_and_nothing_else(tmp_path: Path) -> None:
    times = Histogram()
    done: list[Exception | None] = []
    with RealDisk.polled(tmp_path) as disk:
        timed = TimedDisk(disk, "journal", times)
        write, flush = Write("file", 0, (b"content",)), Flush(("file",))
        for lane, operations in (
            ("journal", (write, flush)),
            ("journal", (write,)),
            ("journal", ()),
            ("segments", (write, flush)),
        ):
            timed.submit(lane, operations, lambda error, _: done.append(error))
        while len(done) < 4:
            disk.poll(None)
        assert timed.read_now("file", 0, 100) == b"content"
    assert done == [None] * 4
    assert sum(times.counts) == 1
    assert times.sum_s > 0


def test_a_page_is_read_back_as_it_was_meant() -> None:
    page, times = Page(), Histogram()
    times.observe(0.0003)
    times.observe(99.0)
    page.only("a_total", COUNTER, "One.", 1 << 60)
    page.family("b", GAUGE, "Two.")
    page.sample(0.25, name='quo"te', path="back\\slash\nline")
    page.sample(-1)
    page.family("c_seconds", HISTOGRAM, "Three.")
    page.histogram(times, protocol="raft")
    read = Exposition(str(page))
    assert read.value("a_total") == float(1 << 60)
    assert read.value("b", name=r"quo\"te", path=r"back\\slash\nline") == 0.25
    assert read.value("b") == -1
    assert read.value("c_seconds_bucket", protocol="raft", le="0.00025") == 0
    assert read.value("c_seconds_bucket", protocol="raft", le="0.0005") == 1
    assert read.value("c_seconds_bucket", protocol="raft", le="10") == 1
    assert read.value("c_seconds_count", protocol="raft") == 2
    assert read.value("c_seconds_sum", protocol="raft") == pytest.approx(99.0003)


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a A.\n# TYPE a gauge\na 1",
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total -1\n",
        "# HELP a A.\n# TYPE a gauge\na 1\na 2\n",
        '# HELP a A.\n# TYPE a gauge\na{b="c} 1\n',
        '# HELP a A.\n# TYPE a gauge\na{b="c",b="d"} 1\n',
        '# HELP a A.\n# TYPE a histogram\na_bucket{le="+Inf"} 1\na_sum 1\na_count 2\n',
    ],
)
def test_whoever_reads_pages_here_sees_what_is_wrong_with_one(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        Exposition(text)
