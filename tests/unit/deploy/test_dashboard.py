"""The Grafana dashboard asks for nothing that nodes do not say."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.batch import encode_records
from quorate.node.exposition import exposition
from quorate.node.state import why_not_ready
from tests.unit.deploy.files import DASHBOARD
from tests.unit.kafka.harness import Served, serve, until
from tests.unit.node.exposition_reading import OF_HISTOGRAMS, Exposition

METRIC = re.compile(r"\b(?:quorate|process)_[a-z_]+\b")
BY = re.compile(r"\bby \(([^)]*)\)")
SELECTED = re.compile(r"(\w+)=~?\"")
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that whoever collects adds, and that of buckets."""
ERRORS = "quorate_request_errors_total"


def board() -> dict[str, Any]:
    return msgspec.json.decode(DASHBOARD.read_bytes())


def queries() -> Iterator[str]:
    for panel in board()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def asked_for() -> set[str]:
    variables = [one["definition"] for one in board()["templating"]["list"] if "definition" in one]
    return {name for query in (*queries(), *variables) for name in METRIC.findall(query)}


def page_of_a_node(directory: Path) -> Exposition:
    """With a topic that was written to, and a client that was told of an error."""
    pages: list[Exposition] = []

    async def look(served: Served) -> None:
        await until(lambda: not why_not_ready(served.node))
        async with await served.connect() as client:
            await client.create("events", partitions=1)
            (partition,) = served.node.metadata.image.topics["events"].partitions()
            await until(lambda: served.node.leads_with_all(partition))
            batch = encode_records([(None, b"x")])
            assert (await client.produce("events", batch)).error_code == 0
            assert (await client.produce("nowhere", batch)).error_code == 3
        pages.append(Exposition(exposition(served.node)))

    serve(directory, look)
    return pages[0]


def left_out_by_grafana(dashboard: dict[str, Any]) -> list[str]:
    """Read by the types that Grafana publishes and written down again: what they do not know is gone."""
    sdk = pytest.importorskip(
        "grafana_foundation_sdk",
        reason="grafana-foundation-sdk is not installed: the dashboard is not compared with Grafana's types",
    )
    importlib.import_module(f"{sdk.__name__}.cog.plugins").register_default_plugins()
    types = importlib.import_module(f"{sdk.__name__}.models.dashboard")
    encoder = importlib.import_module(f"{sdk.__name__}.cog.encoder").JSONEncoder
    again = msgspec.json.decode(encoder().encode(types.Dashboard.from_json(dashboard)))
    return list(missing(dashboard, again, ""))


def missing(ours: Any, again: Any, place: str) -> Iterator[str]:
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(again, dict) or key not in again:
                yield f"{place}/{key}"
            else:
                yield from missing(value, again[key], f"{place}/{key}")
    elif isinstance(ours, list):
        if not isinstance(again, list) or len(again) != len(ours):
            yield place
        else:
            for n, (one, other) in enumerate(zip(ours, again, strict=True)):
                yield from missing(one, other, f"{place}/{n}")
    elif ours != again:
        yield place


def test_grafanas_own_types_know_all_of_it() -> None:
    """But for the text of a variable's query, which only its editor shows."""
    assert [place for place in left_out_by_grafana(board()) if not place.endswith("/definition")] == []


def test_a_misspelt_field_is_left_out_by_grafanas_types() -> None:
    """Else the test above could not fail."""
    misspelt = board()
    panel = next(panel for panel in misspelt["panels"] if "fieldConfig" in panel)
    panel["fieldConfig"]["defaults"]["unitt"] = panel["fieldConfig"]["defaults"].pop("unit")
    assert any(place.endswith("/unitt") for place in left_out_by_grafana(misspelt))


def test_every_metric_and_label_that_is_asked_for_is_on_a_nodes_page(tmp_path: Path) -> None:
    page = page_of_a_node(tmp_path)
    known = set(page.kinds)
    for name, kind in page.kinds.items():
        if kind == "histogram":
            known |= {name + suffix for suffix in OF_HISTOGRAMS}
    assert asked_for() - known == set()
    labels = (
        OF_PROMETHEUS
        | {"peer", "state", "group"}
        | {label for _, pairs in page.samples for label, _ in pairs}
    )
    for query in queries():
        named = {label.strip() for group in BY.findall(query) for label in group.split(",")}
        named |= set(SELECTED.findall(query))
        assert named <= labels, query


def test_every_family_of_ours_is_shown(tmp_path: Path) -> None:
    """A metric that is added is put on the dashboard, too, or named here with a reason."""
    shown = asked_for()
    missing = {
        name
        for name in page_of_a_node(tmp_path).kinds
        if not {name, *(name + suffix for suffix in OF_HISTOGRAMS)} & shown
    }
    assert missing == set()


def test_counters_are_looked_at_as_rates_and_gauges_as_they_are() -> None:
    for query in queries():
        for name in METRIC.findall(query):
            is_counter = name.endswith(("_total", *OF_HISTOGRAMS))
            assert is_counter == (f"rate({name}{{" in query), query


def test_panels_lie_beside_each_other_and_have_numbers_of_their_own() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
