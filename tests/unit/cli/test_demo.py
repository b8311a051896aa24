"""`quorate demo` before and after its long part: what it refuses, and how it judges what it counted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, cast

import pytest

from quorate.cli.demo import keep_evidence, sum_up
from quorate.cli.demo_cluster import DemoCluster
from quorate.cli.demo_events import CITIES, RESULTS, Sum
from quorate.cli.demo_flow import Flow, money
from quorate.cli.entry import run
from quorate.cli.say import console
from quorate.cli.worlds import Totals


def test_a_picture_without_a_place_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--story", "no/such/picture.svg"]) == 2
    assert "there is no directory 'no/such'" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["pyspark", "confluent_kafka"])
def test_without_its_packages_one_line_says_what_to_install(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quorate.cli.demo.find_spec", lambda name: None if name == missing else find_spec(name)
    )
    assert run(["demo"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "`pip install '.[local]'`" in said.err
    assert said.err.count("\n") == 1


@pytest.fixture
def flow() -> Iterator[Flow]:
    """Ten sales of one cent in each city, all acknowledged, all counted."""
    with DemoCluster(keep=False) as cluster:
        made = Flow(cluster, cast(Any, None), 10 * len(CITIES))
        made.written = {topic: dict.fromkeys(CITIES, Sum(10, 10)) for topic in RESULTS.values()}
        made.sender.acknowledged.update(dict.fromkeys(CITIES, Sum(10, 10)))
        yield made


def test_equal_totals_hold(flow: Flow) -> None:
    assert flow.held
    assert (flow.lost_count, flow.doubled_count, flow.unknown_count) == (0, 0, 0)
    assert all("equal" in row[-1] for row in flow.rows())


def test_what_was_acknowledged_and_is_not_there_is_lost(flow: Flow) -> None:
    flow.counted["Oslo"] = Sum(7, 7)
    del flow.counted["Lima"]
    assert not flow.held
    assert (flow.lost_count, flow.doubled_count) == (13, 0)
    assert sum("differs" in row[-1] for row in flow.rows()) == 2


def test_what_is_there_more_often_than_it_can_be_is_doubled(flow: Flow) -> None:
    flow.counted["Oslo"] = Sum(12, 12)
    flow.sender.unknown["Oslo"] = Sum(1, 1)
    assert not flow.held
    assert (flow.lost_count, flow.doubled_count, flow.unknown_count) == (0, 1, 1)


def test_the_same_count_with_another_sum_does_not_hold(flow: Flow) -> None:
    flow.counted["Oslo"] = Sum(10, 11)
    assert not flow.held


def test_a_loss_is_what_the_summary_says_first(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    flow.counted["Oslo"] = Sum(7, 7)
    sum_up(console(), flow, [Totals("raft")], None, 1.0)
    said = capsys.readouterr().out.splitlines()
    assert "3 acknowledged events are lost, 0 are there twice" in said[1]
    assert any("was not caught" in line for line in said)
    assert any("No node was killed" in line for line in said)


def test_money_is_written_as_people_do() -> None:
    assert money(83_398_437) == "833,984.37"


def test_what_came_out_wrong_is_kept_and_said_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with DemoCluster(keep=False) as cluster:
        place = cluster.directory.parent
        keep_evidence(console(), cluster, of_a_bug=False)
        assert not cluster.is_evidence
        for _ in range(2):
            keep_evidence(console(), cluster, of_a_bug=True)
    said = capsys.readouterr().out
    assert said.count(f"its data and logs are left for a look: {place}") == 1
    assert place.is_dir()
    shutil.rmtree(place)
    with DemoCluster(keep=False) as cluster:
        pass
    assert not cluster.directory.parent.exists()
