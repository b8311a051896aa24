"""The benchmark of tables as a program. Figures are for `quorate bench table`."""

from __future__ import annotations

import pytest

from quorate.bench import table
from quorate.tables import Level


def test_a_little_of_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROWS": 500, "TRANSACTIONS": 5120, "SNAPSHOT_ROWS": 40_000, "UNDONE": 50}.items():
        monkeypatch.setattr(table, name, value)
    found = table.run(quick=True)
    assert [claim.wanted for claim in found.claims] == ["≥ 150,000", "≤ 2", "≤ 2", "≤ 20"]
    assert all(figure.median > 0 for figure in found.figures)


def test_what_is_measured_is_really_done() -> None:
    log = table.Log()
    tables = table.filled(log, 2500)
    assert len(tables.scan("accounts")) == 2500
    before = tables.digest()
    entries = log.replaces(10, 2500, each=3)
    table.undo(tables, entries)
    assert tables.digest(Level.LOCAL) == before
    table.replaces(tables, entries)
    assert tables.digest() != before
    assert tables.settled == tables.appended == entries[-1][0].offset
    stops = table.snapshot(tables, log, 2500)
    assert len(stops) > 3
    assert all(stop.busy > 0 for stop in stops)
