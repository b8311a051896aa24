"""Every kind of damage to one directory is found, and only that; whatever is whole is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.audit import segment
from quorate.audit.findings import KINDS, Finding
from quorate.audit.places import NotANode, Place, places_in
from quorate.audit.replica import Looked
from quorate.audit.segment import Damage, Scan, Stretch
from quorate.core.entry import EntryId
from quorate.storage.frame import FRAME_HEAD_BYTES
from tests.unit.audit.harm import (
    AT,
    HARMS,
    SAVED,
    change,
    directory,
    flip,
    frames,
    of_before_it_was_cut,
    segments,
)
from tests.unit.audit.stores import Made, bare, found_in, keyed, number, records, usual

P = number(0)


def made() -> Made:
    store = Made()
    store.add(P, usual())
    store.rest()
    return store


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return made().write(tmp_path / "n1")


def said(kind: str, first: int = -1, last: int = -1, *, partition: str | None = None) -> list[Finding]:
    assert kind in KINDS
    return [Finding("n1", P.hex() if partition is None else partition, kind, first, last)]


def test_what_is_whole_is_clean(place: Place) -> None:
    assert found_in(place) == []
    looked = Looked(place)
    facts = looked.facts[P]
    assert (facts.protocol, facts.purpose, facts.commit) == ("raft", "topic", 39)
    assert len(facts.stretches) > 2


def test_every_segment_byte_is_looked_at(place: Place) -> None:
    """Whatever byte of a sealed segment is not what it was, something is found there; nothing elsewhere."""
    path = segments(place, P)[1]
    whole = path.read_bytes()
    for at in range(0, len(whole), 61):
        change(path, lambda content, at=at: content.__setitem__(at, content[at] ^ 4))  # type: ignore[misc]
        found = found_in(place)
        assert len(found) == 1, at
        assert found[0].kind in ("frame", "payload", "chain", "footer"), at
        path.write_bytes(whole)


@pytest.mark.parametrize("block_bytes", [1, 500, 1009, 4096])
def test_wherever_blocks_end(place: Place, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Frames reach from one block of what is read into the next."""
    monkeypatch.setattr(segment, "BLOCK_BYTES", block_bytes)
    assert found_in(place) == []
    looked = Looked(place)
    read = [
        offset
        for stretch in looked.facts[P].stretches
        for entries in Scan(looked.disk, P, stretch).entries()
        for offset in entries.offset.tolist()
    ]
    assert sorted(read) == list(range(40))
    change(segments(place, P)[0], flip(3, FRAME_HEAD_BYTES + 200))
    assert bare(found_in(place)) == said("payload", 3, 3)


WRITTEN_FIRST = "journal", "lost", "state", "snapshot"
"""To harm these, something has to be written to the journal, or saved, that the usual place has not: see below."""


@pytest.mark.parametrize("kind", [kind for kind in HARMS if kind not in WRITTEN_FIRST])
def test_what_is_harmed_is_told_and_nothing_else(place: Place, kind: str) -> None:
    partition = number(9) if kind == "stranger" else P
    harmed = HARMS[kind](place, partition)
    assert harmed.kind == kind
    assert bare(found_in(place)) == [harmed]


def test_the_entry_that_is_harmed_is_named(place: Place) -> None:
    change(segments(place, P)[0], flip(5, 30))
    assert bare(found_in(place)) == said("frame", 5, 5)


def test_a_stale_entry_is_told_by_the_one_behind_it(tmp_path: Path) -> None:
    """It fits what is before it: which of the two is stale, other copies say."""
    store = Made()
    store.add(P, [records(n, epoch=1 if n < AT else 2) for n in range(40)])
    store.rest()
    place = store.write(tmp_path / "n1")
    change(segments(place, P)[0], of_before_it_was_cut)
    assert bare(found_in(place)) == said("chain", AT + 1, AT + 1)


def test_two_places_are_two_findings(place: Place) -> None:
    change(segments(place, P)[0], flip(2, 30))
    change(segments(place, P)[0], flip(6, 200))
    assert bare(found_in(place)) == said("frame", 2, 2) + said("payload", 6, 6)


def test_a_segment_that_is_gone_or_cut(place: Place) -> None:
    first, second, third = segments(place, P)[:3]
    second.unlink()
    offsets = int(second.stem), int(third.stem) - 1
    assert bare(found_in(place)) == said("missing", *offsets)
    second.write_bytes(b"")
    assert bare(found_in(place)) == said("short", *offsets)
    second.unlink()
    change(first, lambda content: content.__delitem__(slice(1000, None)))
    assert [each.kind for each in found_in(place)] == ["missing", "short"]


def test_entries_that_end_elsewhere(place: Place) -> None:
    path = segments(place, P)[0]
    starts = frames(path.read_bytes())
    file = str(path.relative_to(place.store))
    short = Stretch(file, 0, EntryId(0, -1), 0, starts[2], EntryId(1, 5), 7)
    scan = Scan(Looked(place).disk, P, short)
    assert sum(len(entries) for entries in scan.entries()) == 2
    (ends_elsewhere,) = scan.damage
    assert isinstance(ends_elsewhere, Damage)
    assert (ends_elsewhere.kind, ends_elsewhere.first, ends_elsewhere.last) == ("chain", 2, 5)


def test_what_is_behind_a_gap_is_read(place: Place) -> None:
    HARMS["gap"](place, P)
    looked = Looked(place)
    scan = Scan(looked.disk, P, looked.facts[P].stretches[0])
    read = [offset for entries in scan.entries() for offset in entries.offset.tolist()]
    assert read == [0, 1, 2, 5, 6, 7, 8]
    assert [(each.kind, each.first, each.last) for each in scan.damage] == [("gap", 3, 4)]


def test_a_snapshot_that_is_damaged(tmp_path: Path) -> None:
    store = made()
    head = store.world.store.head(P)
    store.save_snapshot(P, head, 7, b"state" * 1000)
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    harmed = HARMS["snapshot"](place, P)
    assert bare(found_in(place)) == [harmed] == said("snapshot", head.offset, head.offset)


def test_damage_that_the_node_knows_of(tmp_path: Path) -> None:
    store = made()
    store.learn_of_damage(P, flip(3, 30))
    assert bare(found_in(store.write(tmp_path / "n1"))) == said("known", 3, 3)


def test_entries_that_the_journal_has_lost(tmp_path: Path) -> None:
    store = made()
    for number_ in range(3):
        store.append(P, records(number_, epoch=2))
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    harmed = HARMS["lost"](place, P)
    assert bare(found_in(place)) == [harmed] == said("lost", 40, 42)


def test_a_journal_that_is_damaged_where_nothing_is_lost(tmp_path: Path) -> None:
    store = made()
    for number_ in range(3):
        store.append(P, records(number_, epoch=2))
    place = store.write(tmp_path / "n1")
    harmed = HARMS["journal"](place, P)
    assert bare(found_in(place)) == [harmed] == said("journal", partition="")


def test_a_state_that_neither_place_has(tmp_path: Path) -> None:
    store = made()
    store.save(P, SAVED)
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    harmed = HARMS["state"](place, P)
    assert bare(found_in(place)) == [harmed] == said("state")


def test_files_that_the_journal_does_not_know(place: Place) -> None:
    HARMS["stranger"](place, number(9))
    (found,) = found_in(place)
    assert (found.kind, found.detail) == ("stranger", f"partitions/{directory(place, number(9)).name}")


def test_nothing_is_written(place: Place) -> None:
    def picture() -> dict[str, tuple[bytes, int]]:
        files = (path for path in Path(place.store).rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = picture()
    found_in(place)
    assert picture() == before


def test_directories_are_found_or_refused(tmp_path: Path, place: Place) -> None:
    assert places_in(Path(place.store)) == [place]
    with pytest.raises(NotANode, match="is not a directory"):
        places_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotANode, match="no node's directory"):
        places_in(tmp_path / "empty")
    (tmp_path / "node.json").write_text('{"node": 5}', encoding="utf-8")
    assert places_in(tmp_path) == [Place("n5", str(tmp_path / "store"))]


def compacted() -> Made:
    store = Made()
    store.add(P, keyed())
    store.compact(P)
    return store


def test_what_compaction_left_is_whole_or_not_as_well(tmp_path: Path) -> None:
    place = compacted().write(tmp_path / "n1")
    assert found_in(place) == []
    assert Looked(place).facts[P].is_compacted
    path = segments(place, P)[0]
    assert "-" in path.stem, "a file that compaction made"
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        change(path, lambda content, at=at: content.__setitem__(at, content[at] ^ 4))  # type: ignore[misc]
        (found,) = found_in(place)
        assert found.kind in ("frame", "payload", "chain", "footer"), at
        path.write_bytes(whole)
