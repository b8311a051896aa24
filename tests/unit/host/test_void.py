"""Void entries: no reader sees them, none is stuck before them, and no producer is remembered for them."""

from __future__ import annotations

import msgspec
import pytest

from quorate.batch import encode_records, parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import EntryId, NoOp, Rollback
from quorate.host import fetching
from quorate.host import replicas as replicas_module
from quorate.host.producing import Desk, Leading
from quorate.machine.producers import Numbered, Producers
from quorate.storage.frame import Frame
from quorate.storage.settings import TINY
from tests.unit.host.puppet import PARTITION, Stage, use_puppet

WHOLE = [0, 2, 5, 6, 7]
"""Offsets of what is not void below: records, and controls wherever they are."""


@pytest.fixture(params=["from memory", "from the disk"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """a at 0, void ones at 1, 3 and 4 with a control in between, the Rollback at 5, and b and c behind it."""
    use_puppet(monkeypatch)
    monkeypatch.setitem(replicas_module.MACHINES, "tables", Producers)
    made = Stage(msgspec.structs.replace(TINY, journal_entry_max=1))
    made.add()
    made.take(b"a", b"v", NoOp(1), b"v", b"v", Rollback(1), b"b", b"c")
    made.settle()
    if request.param == "from the disk":
        made.restart()
    made.commit(7)
    made.settle()
    return made


def fetched_once(stage: Stage, offset: int, bytes_max: int) -> list[Frame]:
    got: list[tuple[list[Frame], int]] = []
    stage.host.fetch(stage.now, PARTITION, offset, bytes_max, lambda *answer: got.append(answer))
    stage.settle()
    ((frames, commit),) = got
    assert commit == stage.hosted.commit
    return frames


def fetched(stage: Stage, offset: int, bytes_max: int = 1 << 20) -> list[int]:
    """Offsets of what a reader gets that reads on to the end."""
    found: list[int] = []
    while offset <= stage.hosted.commit:
        frames = fetched_once(stage, offset, bytes_max)
        assert frames, "a reader would ask the same for ever"
        found += [frame.header.offset for frame in frames]
        offset = frames[-1].header.last + 1
    return found


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
@pytest.mark.parametrize("offset", range(8))
def test_readers_get_what_is_not_void_and_get_past_the_rest(
    stage: Stage, offset: int, bytes_max: int
) -> None:
    assert fetched(stage, offset, bytes_max) == [other for other in WHOLE if other >= offset]


def test_what_left_the_log_while_it_was_read_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it went the Rollback that said that it is void."""
    use_puppet(monkeypatch)
    made = Stage(msgspec.structs.replace(TINY, journal_entry_max=1))
    made.add()
    made.take(b"v", Rollback(0), b"a")
    made.settle()
    made.restart()
    made.commit(2)
    made.settle()
    got: list[list[Frame]] = []
    frames = made.host.store.frames
    monkeypatch.setattr(made.host.store, "frames", lambda *_: None)
    fetching.fetch(made.host.store, made.hosted, 0, 1, lambda found, _: got.append(found))
    monkeypatch.setattr(made.host.store, "frames", frames)
    made.puppet.log.remove_prefix(EntryId(1, 1))
    made.settle()
    assert got == [[]]


def produced(sequence: int) -> bytes:
    return encode_records([(None, b"=x")], producer_id=5, producer_epoch=0, base_sequence=sequence)


def test_a_void_batch_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    use_puppet(monkeypatch)
    monkeypatch.setitem(replicas_module.MACHINES, "tables", Producers)
    made = Stage()
    made.add()
    made.host.propose(made.now, PARTITION, [produced(0)], made.replies.append)
    made.take(Rollback(0))
    made.settle()
    made.commit(1)
    assert made.hosted.applied == EntryId(1, 1)
    assert made.machine.get(5) is None
    assert made.hosted.tally.counts.records == 0


def numbered(sequence: int) -> Numbered:
    header = parse_batch_header(produced(sequence))
    return Numbered(header.producer_id, header.producer_epoch, sequence, sequence)


@pytest.mark.behaviour("TT-38")
def test_whoever_waits_with_a_repetition_hears_that_its_batch_was_rolled_back() -> None:
    """And so do those behind it; then the same batch is new again."""
    desk = Desk(Producers())
    leader = Leading(1, 1, 0, 0)
    heard: list[tuple[int, Outcome]] = []

    def answer(reply: Reply) -> None:
        heard.append((reply.request, reply.outcome))

    first = desk.admit(1, numbered(0), answer, leader)
    assert desk.admit(2, numbered(0), answer, leader) is None
    behind = desk.admit(3, numbered(1), answer, leader)
    assert first is not None
    assert behind is not None
    first(Reply(1, Outcome.ROLLED_BACK, 1))
    behind(Reply(3, Outcome.ROLLED_BACK, 2))
    assert heard == [(number, Outcome.ROLLED_BACK) for number in (1, 2, 3)]
    assert desk.admit(4, numbered(1), answer, leader) is None
    assert heard[-1] == (4, Outcome.OUT_OF_ORDER)
    assert desk.admit(5, numbered(0), answer, leader) is not None
