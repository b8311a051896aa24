"""What `quorate doctor` says of a transaction that holds readers back: whose it is, and what ends it."""

from __future__ import annotations

from quorate.cli.doctor_facts import CRITICAL, WARNING
from tests.unit.cli.test_doctor import NOW_MS, found, well, with_health, with_transaction


def test_whose_transaction_it_is_and_when_it_ends_by_itself_is_said() -> None:
    finding = found(with_transaction(well(), began_ms=NOW_MS - 45_000))["transaction-open"]
    assert finding.what == (
        "the transaction of producer 7 (transactional id 'pay-7') is open for 45 s: readers of committed records "
        "(`read_committed`) see nothing of t/0 from offset 101 on, 20 offsets by now"
    )
    assert finding.do.endswith("where there is none, abort it. It is aborted by itself in 14 min 15 s")
    assert finding.commands == ("quorate topic describe t/0", "quorate transaction abort pay-7")
    assert finding.partitions == ("t/0",)
    assert found(with_transaction(well())) == {}, "it has just begun"
    joint = found(with_transaction(well(), age_s=60.0, name="clicks", number=41))["transaction-open"]
    assert "(joint app 'clicks', number 41) is open for 60 s" in joint.what, "renewed: it began before"
    assert "a new run aborts what the one before has open" in joint.do
    assert joint.commands[-1] == "quorate transaction abort clicks"
    spaced = found(with_transaction(well(), age_s=60.0, name="pay day"))["transaction-open"]
    assert spaced.commands[-1] == "quorate transaction abort 'pay day'", "it can be pasted"


def test_a_transaction_whose_end_cannot_be_written_or_that_nobody_coordinates_is_critical() -> None:
    decided = with_transaction(well(), age_s=60.0, decided="committed")
    finding = found(decided)["transaction-open"]
    assert finding.severity == CRITICAL
    assert "is committed, and that has not been written there for 60 s" in finding.what
    assert finding.commands[-1] == "quorate topic describe __transaction_state"
    unknown = found(with_transaction(well(), age_s=60.0, producer_id=8))["transaction-open"]
    assert unknown.severity == CRITICAL
    assert "no coordinator that answers knows it" in unknown.do
    mixed = with_health(with_transaction(well(), age_s=60.0, producer_id=8), 2, version="0.9")
    assert found(mixed)["transaction-open"].severity == WARNING, "an older version does not say what it knows"
