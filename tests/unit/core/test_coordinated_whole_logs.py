"""Where the log itself is what people read, whoever is new gets every entry of it before it counts."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects
from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AddEntryRequest,
    AddEntryResponse,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
)
from quorate.core.entry import NOWHERE, Member
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    TUNING,
    Bench,
    Desk,
    Kind,
    Phase,
    Reconfiguration,
    at,
    expand,
    flushed,
    lead,
    leader,
    of_kind,
    propose,
    sent,
    steady,
    swap,
    written,
)

WHOLE = msgspec.structs.replace(TUNING, whole_logs=True)
N3_ANEW = Member(3, 9)


def prepared(change: Reconfiguration) -> Bench:
    """Up to 1 everything is settled; the newcomer is asked what it has."""
    bench = leader(tuning=WHOLE)
    ordered = bench.receive(OPERATOR, PrepareReconfigurationRequest(3, change)) + bench.persist()
    assert change.new is not None
    assert sent(ordered, change.new) == [AddEntryRequest(3, at("3-2"), -1)]
    assert of_kind(ordered, effects.TakeSnapshot) == []
    assert sent(ordered, OPERATOR) == []
    return bench


def says_it_is_empty(bench: Bench, newcomer: Member) -> list[effects.Effect]:
    return bench.receive(newcomer, AddEntryResponse(3, False, 2, -1, -1, NOWHERE))


@pytest.mark.parametrize("change", [swap(N3, N4), swap(N3, N3_ANEW), expand(N4)], ids=str)
def test_a_newcomer_gets_everything_from_the_beginning_and_then_it_is_prepared(
    change: Reconfiguration,
) -> None:
    bench = prepared(change)
    assert change.new is not None
    ordered = says_it_is_empty(bench, change.new)
    (probe,) = sent(ordered, change.new)
    assert probe == AddEntryRequest(3, NOWHERE, bench.replica.commit)
    ordered = bench.receive(change.new, AddEntryResponse(3, True, -1, -1, -1, NOWHERE))
    (entries,) = sent(ordered, change.new)
    assert isinstance(entries, AddEntryRequest)
    assert [header.offset for header in entries.headers] == [0, 1, 2]
    again = PrepareReconfigurationRequest(3, change)
    flushed(bench, change.new, 0)
    waiting = PrepareReconfigurationResponse(3, prepared=True, ready=False)
    assert sent(bench.receive(OPERATOR, again), OPERATOR) == [waiting], (
        "1 is settled, and it has not flushed that"
    )
    flushed(bench, change.new, 1)
    assert sent(bench.receive(OPERATOR, again), OPERATOR) == [
        PrepareReconfigurationResponse(3, prepared=True)
    ]


def test_whoever_follows_and_does_not_count_settles_nothing() -> None:
    bench = prepared(expand(N4))
    propose(bench)
    bench.persist()
    before = bench.replica.commit
    flushed(bench, N4, 3)
    assert bench.replica.commit == before
    flushed(bench, N2, 3)
    assert bench.replica.commit == 3


def test_once_it_is_committed_it_counts() -> None:
    bench = prepared(swap(N3, N4))
    flushed(bench, N4, 2)
    done = swap(N3, N4, Phase.COMMIT)
    bench.receive(OPERATOR, CommitReconfigurationRequest(3, done))
    assert lead(bench).ensemble == (N1, N2, N4)
    flushed(bench, N4, 2)
    assert bench.replica.commit == 2
    answer = bench.receive(OPERATOR, CommitReconfigurationRequest(3, done))
    assert sent(answer, OPERATOR) == [CommitReconfigurationResponse(3, leads=True, done=True)]


def test_what_is_called_off_leaves_nobody_behind_who_follows() -> None:
    bench = prepared(expand(N4))
    bench.receive(OPERATOR, AbortReconfigurationRequest(3, expand(N4, Phase.ABORT)))
    assert sorted(lead(bench).cursors) == [2, 3]
    bench = prepared(swap(N3, N3_ANEW))
    bench.receive(OPERATOR, AbortReconfigurationRequest(3, swap(N3, N3_ANEW, Phase.ABORT)))
    assert lead(bench).cursors[3].member == N3


def test_an_operator_commits_where_no_snapshot_is_to_be_installed() -> None:
    desk = Desk(steady(1, (N1, N2, N3)))
    desk.start()
    desk.order(Kind.EXPAND, new=N4)
    ordered = desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True))
    (shard,) = written(ordered)
    assert shard.reconfiguration == expand(N4, Phase.COMMIT)
