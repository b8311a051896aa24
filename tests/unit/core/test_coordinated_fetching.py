"""A node fetches a snapshot in chunks: one at a time, from its source, however often that is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import coordinated, events
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    FenceRequest,
    FenceResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorate.core.effects import Append, Effect, InstallSnapshot, Send, StageChunk
from quorate.core.entry import NOWHERE, Member, Snapshot
from quorate.core.fetching import ChunkGone, ChunkRequest, ChunkResponse
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N4,
    OPERATOR,
    THREE,
    Bench,
    at,
    following,
    leader,
    of_kind,
    sent,
)
from tests.unit.core.kit import entries

EPOCH = 3
SNAPSHOT = Snapshot(at("2-7"), 1, 10)
LATER = Snapshot(at("2-9"), 1, 10)
NEXT_OPERATOR = Member(102, 1)


@pytest.fixture
def bench() -> Bench:
    """N4 has nothing, and is told to fetch a snapshot of ten bytes from N1."""
    bench = Bench(N4, epoch=EPOCH)
    assert order(bench) == [Send(1, ChunkRequest(EPOCH, SNAPSHOT, 0))]
    return bench


def order(
    bench: Bench, snapshot: Snapshot = SNAPSHOT, *, source: Member = N1, asker: Member = OPERATOR
) -> list[Effect]:
    return bench.receive(asker, SnapshotRequest(EPOCH, snapshot, source))


def chunk(first: int, length: int = 4, snapshot: Snapshot = SNAPSHOT, *, epoch: int = EPOCH) -> ChunkResponse:
    return ChunkResponse(epoch, snapshot, first, length)


def asked(first: int, snapshot: Snapshot = SNAPSHOT) -> Send:
    return Send(1, ChunkRequest(EPOCH, snapshot, first))


def keep(bench: Bench, first: int, length: int = 4) -> list[Effect]:
    """A chunk comes, and is flushed; what is ordered then."""
    (staged,) = bench.receive(N1, chunk(first, length))
    assert isinstance(staged, StageChunk)
    assert staged.at == first
    return bench.persist()


def fetch(bench: Bench) -> list[Effect]:
    """All of it; what is ordered with the last chunk."""
    assert keep(bench, 0) == [asked(4)]
    assert keep(bench, 4) == [asked(8)]
    return bench.receive(N1, chunk(8, 2))


# ---- all goes well ----


@pytest.mark.behaviour("OX-29", "OX-32")
def test_chunks_are_asked_for_one_at_a_time_and_the_last_one_installs_it(bench: Bench) -> None:
    ordered = fetch(bench)
    assert [type(effect) for effect in ordered] == [StageChunk, InstallSnapshot]
    assert sent(bench.persist(), OPERATOR) == [SnapshotResponse(EPOCH, SNAPSHOT.last, installed=True)]
    assert bench.replica.log.base == SNAPSHOT.last
    assert bench.replica.deadline() is None


def test_next_chunk_is_not_asked_for_before_this_one_is_flushed(bench: Bench) -> None:
    assert sent(bench.receive(N1, chunk(0))) == []
    assert order(bench) == [], "not even by whoever asks again"
    assert bench.persist() == [asked(4)]


@pytest.mark.parametrize(("first", "length"), [(0, 4), (4, 4), (8, 2)])
def test_source_sends_no_more_than_a_chunk(first: int, length: int) -> None:
    source = leader("1-0", tuning=coordinated.Tuning(chunk_bytes=4))
    source.tell(events.SnapshotTaken(Snapshot(at("2-1"), 1, 10)))
    source.persist()
    held = source.replica.snapshot
    assert held is not None
    request = ChunkRequest(2, held, first)
    assert source.receive(N4, request) == [Send(4, ChunkResponse(2, held, first, length))]


def test_source_says_that_it_has_another_one_by_now() -> None:
    source = leader("1-0")
    assert source.receive(N4, ChunkRequest(2, SNAPSHOT, 0)) == [Send(4, ChunkGone(2, SNAPSHOT))]


# ---- chunks get lost ----


def test_lost_chunk_is_asked_for_again_until_it_comes(bench: Bench) -> None:
    keep(bench, 0)
    for _ in range(3):
        before = bench.now
        assert bench.wake() == [asked(4)]
        assert bench.now > before
    assert keep(bench, 4) == [asked(8)]


def test_chunk_that_comes_twice_is_kept_once(bench: Bench) -> None:
    keep(bench, 0)
    assert bench.receive(N1, chunk(0)) == []
    assert bench.wake() == [asked(4)]


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (N2, chunk(4)),
        (N1, chunk(0)),
        (N1, chunk(8, 2)),
        (N1, chunk(4, snapshot=LATER)),
        (N2, ChunkGone(EPOCH, SNAPSHOT)),
        (N1, ChunkGone(EPOCH, LATER)),
    ],
    ids=[
        "of another node",
        "of before",
        "of later",
        "of another snapshot",
        "not its source",
        "another one gone",
    ],
)
def test_foreign_or_stale_chunk_is_ignored(bench: Bench, sender: Member, message: Any) -> None:
    keep(bench, 0)
    assert bench.receive(sender, message) == []
    assert bench.wake() == [asked(4)], "and what is missing is asked for as before"


def test_chunk_that_nobody_asked_for_is_ignored() -> None:
    idle = Bench(N4, epoch=EPOCH)
    assert idle.receive(N1, chunk(0)) == []
    assert idle.receive(N1, ChunkGone(EPOCH, SNAPSHOT)) == []


# ---- it ends early ----


def test_snapshot_that_is_gone_ends_it_and_is_reported(bench: Bench) -> None:
    keep(bench, 0)
    gone = bench.receive(N1, ChunkGone(EPOCH, SNAPSHOT))
    assert gone == [Send(OPERATOR.node, SnapshotResponse(EPOCH, NOWHERE, installed=False))]
    assert bench.replica.deadline() is None
    assert bench.receive(N1, chunk(4)) == [], "it is over"
    assert order(bench, LATER) == [asked(0, LATER)], "and another one begins at its beginning"


@pytest.mark.behaviour("OX-2")
def test_next_operator_that_asks_for_the_same_goes_on_where_it_was(bench: Bench) -> None:
    keep(bench, 0)
    assert order(bench, asker=NEXT_OPERATOR) == [asked(4)]
    keep(bench, 4)
    bench.receive(N1, chunk(8, 2))
    ordered = bench.persist()
    assert len(sent(ordered, NEXT_OPERATOR)) == 1
    assert sent(ordered, OPERATOR) == [], "who asked last hears of it"


def test_asking_again_while_a_chunk_is_under_way_changes_nothing(bench: Bench) -> None:
    assert order(bench) == []
    keep(bench, 0)
    assert order(bench) == []


def test_another_source_is_asked_from_the_beginning(bench: Bench) -> None:
    keep(bench, 0)
    assert order(bench, source=N2) == [Send(2, ChunkRequest(EPOCH, SNAPSHOT, 0))]
    assert bench.receive(N1, chunk(0)) == []
    (staged,) = bench.receive(N2, chunk(0))
    assert isinstance(staged, StageChunk)


def test_another_epoch_pauses_it_until_somebody_wants_the_same_again(bench: Bench) -> None:
    """Otherwise nobody would ever have a snapshot that takes longer than epochs last."""
    keep(bench, 0)
    bench.receive(OPERATOR, FenceRequest(EPOCH + 1, THREE))
    bench.persist()
    assert bench.receive(N1, chunk(4)) == []
    assert bench.replica.deadline() is None
    bench.receive(OPERATOR, FenceRequest(EPOCH + 2, THREE))
    bench.persist()
    ordered = bench.receive(OPERATOR, SnapshotRequest(EPOCH + 2, SNAPSHOT, N1))
    assert ordered == [Send(1, ChunkRequest(EPOCH + 2, SNAPSHOT, 4))]


def test_chunk_that_was_being_flushed_counts_in_the_next_epoch(bench: Bench) -> None:
    bench.receive(N1, chunk(0))
    bench.receive(OPERATOR, FenceRequest(EPOCH + 1, THREE))
    assert bench.receive(OPERATOR, SnapshotRequest(EPOCH + 1, SNAPSHOT, N1)) == []
    assert Send(1, ChunkRequest(EPOCH + 1, SNAPSHOT, 4)) in bench.persist()


@pytest.mark.parametrize(("source", "snapshot"), [(N2, SNAPSHOT), (N1, LATER)])
def test_in_another_epoch_anything_else_begins_anew(bench: Bench, source: Member, snapshot: Snapshot) -> None:
    keep(bench, 0)
    bench.receive(OPERATOR, FenceRequest(EPOCH + 1, THREE))
    bench.persist()
    ordered = bench.receive(OPERATOR, SnapshotRequest(EPOCH + 1, snapshot, source))
    assert ordered == [Send(source.node, ChunkRequest(EPOCH + 1, snapshot, 0))]
    bench.receive(OPERATOR, FenceRequest(EPOCH + 2, THREE))
    bench.persist()
    ordered = bench.receive(OPERATOR, SnapshotRequest(EPOCH + 2, SNAPSHOT, N1))
    assert ordered == [Send(1, ChunkRequest(EPOCH + 2, SNAPSHOT, 0))], "what was paused first is overwritten"


def test_what_is_being_installed_outlives_another_epoch_and_is_told_to_whoever_asks_then(
    bench: Bench,
) -> None:
    (_, install) = fetch(bench)
    assert isinstance(install, InstallSnapshot)
    bench.receive(OPERATOR, FenceRequest(EPOCH + 1, THREE))
    assert bench.receive(NEXT_OPERATOR, SnapshotRequest(EPOCH + 1, SNAPSHOT, N1)) == []
    answers = sent(bench.persist(), NEXT_OPERATOR)
    assert answers == [SnapshotResponse(EPOCH + 1, SNAPSHOT.last, installed=True)]


# ---- the disk refuses it ----


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_disk_that_refuses_a_chunk_ends_it_and_it_begins_anew(bench: Bench, chunks: int) -> None:
    for number in range(chunks):
        keep(bench, 4 * number)
    staged = of_kind(bench.receive(N1, chunk(4 * chunks, min(4, 10 - 4 * chunks))), StageChunk)
    failed = bench.tell(events.Failed(staged[0].io, "no space", head=bench.replica.log.head))
    assert of_kind(failed, Send) == []
    assert not bench.replica.installing
    assert bench.replica.log.head.offset == -1
    bench.persist()
    assert order(bench) == [asked(0)]
    fetch(bench)
    assert sent(bench.persist(), OPERATOR) == [SnapshotResponse(EPOCH, SNAPSHOT.last, installed=True)]


def test_disk_that_refuses_an_entry_meanwhile_ends_it_too() -> None:
    follower = following("1-0", epoch=EPOCH)
    assert order(follower) == [asked(0)]
    (append,) = of_kind(follower.receive(N1, AddEntryRequest(EPOCH, at("1-0"), -1, entries("3-1"))), Append)
    follower.tell(events.Failed(append.io, "no space", head=at("1-0")))
    assert follower.replica.fetching.deadline is None
    assert follower.receive(N1, chunk(0)) == []


# ---- what it is not needed for ----


def test_who_has_settled_more_answers_at_once() -> None:
    rich = Bench(N4, "2-0..7 2-8", epoch=EPOCH, commit=8)
    assert sent(order(rich), OPERATOR) == [SnapshotResponse(EPOCH, at("2-8"), installed=True)]
    assert rich.replica.staging is None


def test_leader_fetches_nothing() -> None:
    assert leader("1-0").receive(OPERATOR, SnapshotRequest(2, SNAPSHOT, N2)) == []


def test_whoever_fetches_does_not_say_how_far_its_log_goes_before_it_has_all(bench: Bench) -> None:
    """The answer would wait for the disk, and come out when the log begins elsewhere."""
    assert keep(bench, 0) == [asked(4)]
    assert keep(bench, 4) == [asked(8)]
    bench.receive(N1, chunk(8, 2))
    ordered = bench.receive(OPERATOR, FenceRequest(EPOCH, THREE)) + bench.persist()
    assert not any(isinstance(message, FenceResponse) for message in sent(ordered, OPERATOR))
    (answer,) = sent(bench.receive(OPERATOR, FenceRequest(EPOCH, THREE)), OPERATOR)
    assert answer.head == SNAPSHOT.last


def test_nor_while_a_chunk_is_being_flushed(bench: Bench) -> None:
    bench.receive(N1, chunk(0))
    ordered = bench.receive(OPERATOR, FenceRequest(EPOCH, THREE))
    bench.receive(N1, chunk(4))
    bench.receive(N1, chunk(8, 2))
    ordered += bench.persist()
    assert not any(isinstance(message, FenceResponse) for message in sent(ordered, OPERATOR))
    (answer,) = sent(bench.receive(OPERATOR, FenceRequest(EPOCH, THREE)), OPERATOR)
    assert answer.head == SNAPSHOT.last
