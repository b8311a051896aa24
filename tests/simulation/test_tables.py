"""Worlds in which partitions are table groups: one state machine, whatever the way to agree."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.machine import table_operations
from quorate.machine.table import Tables
from quorate.machine.table_memory import Memory
from quorate.machine.table_types import Level
from quorate.sim.faults import PROFILES
from quorate.sim.run import Run, Sum, Verdict, plan_seed, run_seed, run_seeds
from tests.simulation.test_seeds import chunks, expect_nothing_broken

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = 6
PROOF = 100
CHUNK = 3
PROOF_CHUNK = 50
PROMISED = "all,membership"
TABLES = {"tables_share": 1}


def run_tables(seeds: range, protocol: str, faults: str = PROMISED, **overrides: Any) -> Sum:
    return run_seeds(seeds, protocol=protocol, faults=faults, overrides=TABLES | overrides)


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_broken_under_all_faults(protocol: str, seeds: range) -> None:
    total = run_tables(seeds, protocol)
    expect_nothing_broken(total)
    assert total.crashes > 0


@pytest.mark.parametrize("profile", [profile for profile in PROFILES if profile != "operator"])
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_tables(range(2), "confirm", profile))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_topics_and_tables_in_one_world(protocol: str) -> None:
    total = run_tables(range(20, 23), protocol, tables_share=0.5, partitions_count=4)
    expect_nothing_broken(total)


def test_snapshots_of_tables_take_the_place_of_the_log() -> None:
    expect_nothing_broken(run_tables(range(4), "raft", snapshot_every=5, keep_behind=0, chunk_bytes=64))


def test_clients_do_and_see_something_of_everything() -> None:
    run = Run(plan_seed(1, faults="none", overrides=TABLES | {"partitions_count": 1}))
    verdict = run.verdict()
    assert not verdict.violations
    (group,) = run.workload.tables.values()
    kinds = {type(operation) for act in group.oracle.acts for operation in act.transaction.operations}
    assert {kind.__name__ for kind in kinds} == {
        *("Insert", "Replace", "Update", "Upsert", "Delete", "CreateTable", "DropTable")
    }
    outcomes = [act.told[0].name for act in group.oracle.acts if act.told is not None]
    assert outcomes.count("DONE") > 20
    assert outcomes.count("REFUSED") > 20
    assert any(act.tries > 1 for act in group.oracle.acts)
    assert any(act.transaction.conditions for act in group.oracle.acts if act.told is not None)
    assert group.oracle.looks_count > 100


def test_worlds_without_tables_are_what_they_were() -> None:
    assert Run(plan_seed(3)).world.setup.tables == ()


def test_same_seed_gives_the_same_story() -> None:
    def lines(verdict: Verdict) -> list[str]:
        return [str(happening) for happening in verdict.happenings or ()]

    runs = [run_seed(3, faults=PROMISED, overrides=TABLES, trace=True) for _ in range(2)]
    assert lines(runs[0]) == lines(runs[1])


@pytest.mark.parametrize("seed", [19, 59])
def test_large_snapshot_is_fetched_however_short_epochs_are(seed: int) -> None:
    """Chunks of a few bytes: it was begun anew with every epoch, and no epoch was long enough."""
    expect_nothing_broken(run_tables(range(seed, seed + 1), "coordinated", chunk_bytes=16))


# --- machines that are broken, and what shows it ---


def violations(seeds: range = range(3), protocol: str = "raft", **overrides: Any) -> set[str]:
    return {each.invariant for each in run_tables(seeds, protocol, **overrides).violations}


def test_transaction_that_is_half_done_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = table_operations.perform

    def half(catalogue: Any, transaction: Any, offset: int, changes: list[Any]) -> None:
        perform(catalogue, transaction, offset, changes)
        if offset % 11 == 0 and len(changes) > 1:
            changed = changes.pop()
            changed[0].revert(changed)

    monkeypatch.setattr(table_operations, "perform", half)
    assert violations() & {"table-total", "table-torn", "table-read"}


def test_transaction_that_is_done_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "find", lambda memory, id_: None)
    assert "table-read" in violations()


def test_refused_transaction_that_changes_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(tables: Tables, transaction: Any, offset: int) -> Any:
        changes: list[Any] = []
        try:
            table_operations.perform(tables._catalogue, transaction, offset, changes)
        except table_operations.Refused as refused:
            return changes, str(refused)
        return changes, None

    monkeypatch.setattr(Tables, "_perform", careless)
    assert violations() & {"table-total", "table-torn", "table-read"}


def test_snapshot_without_results_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Tables.restore

    def forgetful(tables: Tables, data: bytes) -> None:
        restore(tables, data)
        tables._memory = Memory(100)

    monkeypatch.setattr(Tables, "restore", forgetful)
    assert violations(range(6), snapshot_every=5) & {"table-read", "machine-digest"}


@pytest.mark.behaviour("TT-3")
def test_committed_reader_that_sees_what_is_unconfirmed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    get, scan = Tables.get, Tables.scan
    monkeypatch.setattr(Tables, "get", lambda tables, name, key, level: get(tables, name, key, Level.LOCAL))
    monkeypatch.setattr(
        Tables,
        "scan",
        lambda tables, name, first, last, limit, level: scan(tables, name, first, last, limit, Level.LOCAL),
    )
    assert violations(protocol="confirm") == {"table-read"}


@pytest.mark.behaviour("TT-22")
def test_undo_that_forgets_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(tables: Tables, entry: Any) -> None:
        for changed in reversed(entry.changes[1:]):
            changed[0].take_back(changed)
        if entry.remembered is not None:
            tables._memory.take_back(entry.remembered)
        entry.changes, entry.remembered = (), None

    monkeypatch.setattr(Tables, "_take_back", half)
    assert violations(range(6), "confirm") & {"table-read", "table-total", "table-torn", "assertion"}


@pytest.mark.behaviour("TT-38")
def test_rollback_that_takes_nothing_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tables, "_roll_back", lambda tables, rollback, first: None)
    assert violations(range(6), "confirm") & {"table-read", "assertion"}


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_proof_of_every_promised_seed(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_tables(seeds, protocol))
