"""Worlds in which partitions are table groups: one state machine, whatever the way to agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core.entry import Header, Kind, Rollback
from quorate.host.replicas import MACHINES
from quorate.machine import Payload
from quorate.machine.table import Tables
from quorate.machine.table_wire import decode, encode
from quorate.sim.faults import PROFILES
from quorate.sim.run import Run, Sum, Verdict, plan_seed, run_seed, run_seeds
from quorate.tables import SCAN_ROWS_MAX, Level, Row, Transaction, Values
from tests.simulation.test_seeds import chunks, expect_nothing_broken

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = 4
PROOF = 100
CHUNK = 2
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
    expect_nothing_broken(run_tables(range(1, 2), "confirm", profile))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_topics_and_tables_in_one_world(protocol: str) -> None:
    total = run_tables(range(20, 22), protocol, tables_share=0.5, partitions_count=4)
    expect_nothing_broken(total)


def test_snapshots_of_tables_take_the_place_of_the_log() -> None:
    expect_nothing_broken(run_tables(range(3), "confirm", snapshot_every=5, keep_behind=0, chunk_bytes=64))


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


class Broken(Tables):
    """Does something else than what the log says."""

    def settle(self, header: Header, checksum: int, payload: Payload) -> None:
        if header.kind == Kind.RECORDS:
            payload = encode(self.changed(header, decode(payload)))
        super().settle(header, checksum, payload)

    def changed(self, header: Header, transaction: Transaction) -> Transaction:
        return transaction


class Half(Broken):
    def changed(self, header: Header, transaction: Transaction) -> Transaction:
        done = 1 if header.offset % 11 == 0 else len(transaction.operations)
        return Transaction(transaction.id, transaction.operations[:done], transaction.conditions)


class Twice(Broken):
    def changed(self, header: Header, transaction: Transaction) -> Transaction:
        known = self.result(transaction.id) is not None
        id_ = (header.offset | 1 << 100).to_bytes(16, "big") if known else transaction.id
        return Transaction(id_, transaction.operations, transaction.conditions)


class Unconditional(Broken):
    def changed(self, header: Header, transaction: Transaction) -> Transaction:
        return Transaction(transaction.id, transaction.operations)


class Dirty(Tables):
    def scan(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        limit: int = SCAN_ROWS_MAX,
        level: Level = Level.COMMITTED,
    ) -> list[Row]:
        return super().scan(table, first, last, limit, Level.LOCAL)


class WithoutRollbacks(Tables):
    def append(self, header: Header, payload: Payload) -> None:
        control = None if isinstance(header.control, Rollback) else header.control
        super().append(msgspec.structs.replace(header, control=control), payload)


@pytest.mark.parametrize(
    ("machine", "protocol", "shown"),
    [
        pytest.param(Half, "raft", {"table-total", "table-torn", "table-read"}),
        pytest.param(Twice, "raft", {"table-read"}),
        pytest.param(Unconditional, "raft", {"table-read", "table-total"}),
        pytest.param(Dirty, "confirm", {"table-read"}, marks=pytest.mark.behaviour("TT-3")),
        pytest.param(
            WithoutRollbacks, "confirm", {"table-read", "assertion"}, marks=pytest.mark.behaviour("TT-38")
        ),
    ],
)
def test_broken_machine_is_noticed(
    machine: type[Tables], protocol: str, shown: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MACHINES, "tables", machine)
    found = set[str]()
    for seed in range(1, 12):
        total = run_tables(range(seed, seed + 1), protocol)
        found |= {each.invariant for each in total.violations}
        if found:
            break
    assert found & shown


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_proof_of_every_promised_seed(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_tables(seeds, protocol))
