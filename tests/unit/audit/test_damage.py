"""Every kind of damage to one directory is found, and only that; whatever is whole is clean."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from quorate.audit import segment
from quorate.audit.findings import KINDS, Finding
from quorate.audit.places import NotANode, Place, places_in
from quorate.audit.replica import Looked
from quorate.audit.segment import Damage, Scan, Stretch
from quorate.core.entry import EntryId
from quorate.storage.frame import FRAME_HEAD_BYTES, parse
from tests.unit.audit.stores import (
    Made,
    bare,
    change,
    found_in,
    frames,
    keyed,
    number,
    record,
    records,
    rounds,
    segments,
    usual,
)

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


def flip(at_frame: int, byte: int) -> Callable[[bytearray], object]:
    def edit(content: bytearray) -> None:
        content[frames(content)[at_frame] + byte] ^= 1

    return edit


def doubled(content: bytearray) -> None:
    starts = frames(content)
    content[starts[3] : starts[4]] = content[starts[2] : starts[3]]


def of_an_older_epoch(content: bytearray) -> None:
    at = frames(content)[3]
    struct.pack_into(">Q", content, at + 28, 0)
    struct.pack_into(">I", content, at + 76, crc32c(bytes(content[at : at + 76])))


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("frame", flip(3, 30)),
        ("payload", flip(3, FRAME_HEAD_BYTES + 200)),
        ("chain", doubled),
        ("epochs", of_an_older_epoch),
    ],
)
def test_damage_inside_of_a_segment(place: Place, kind: str, edit: Callable[[bytearray], object]) -> None:
    change(segments(place, P)[0], edit)
    assert bare(found_in(place)) == said(kind, 3, 3)


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


def test_a_footer_that_is_damaged(place: Place) -> None:
    path = segments(place, P)[0]
    change(path, lambda content: content.__setitem__(-20, content[-20] ^ 1))
    assert bare(found_in(place)) == said("footer", 0, 0)


def test_entries_missing_between_others(tmp_path: Path, place: Place) -> None:
    path = segments(place, P)[0]
    content = path.read_bytes()
    starts = frames(content)
    kept = content[starts[0] : starts[2]] + content[starts[4] : starts[6]]
    path.write_bytes(kept)
    last, _ = parse(content, starts[5])
    disk = Looked(place).disk
    file = str(path.relative_to(place.store))
    scan = Scan(disk, P, Stretch(file, 0, EntryId(0, -1), 0, len(kept), last.header.id, last.checksum))
    read = [offset for entries in scan.entries() for offset in entries.offset.tolist()]
    assert read == [0, 1, 4, 5]
    assert [(each.kind, each.first, each.last) for each in scan.damage] == [("gap", 2, 3)]
    short = Stretch(file, 0, EntryId(0, -1), 0, starts[2], EntryId(1, 5), 7)
    other = Scan(disk, P, short)
    assert sum(len(entries) for entries in other.entries()) == 2
    (ends_elsewhere,) = other.damage
    assert isinstance(ends_elsewhere, Damage)
    assert (ends_elsewhere.kind, ends_elsewhere.first, ends_elsewhere.last) == ("chain", 2, 5)


def test_a_snapshot_that_is_damaged(tmp_path: Path) -> None:
    store = made()
    head = store.world.store.head(P)
    done: list[Exception | None] = []
    store.world.store.save_snapshot(P, head, 7, b"state" * 1000, done.append)
    store.world.run()
    assert done == [None]
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    (path,) = segments(place, P)[0].parent.glob("snapshot-*")
    change(path, lambda content: content.__setitem__(1000, content[1000] ^ 1))
    assert bare(found_in(place)) == said("snapshot", head.offset, head.offset)


def test_damage_that_the_node_knows_of(tmp_path: Path) -> None:
    store = made()
    name = next(name for name in store.world.disk.files() if name.endswith("/00000000000000000000.log"))
    files = {each: store.world.disk.content(each) for each in store.world.disk.files()}
    content = bytearray(files[name])
    flip(3, 30)(content)
    damaged = Made()
    damaged.world = type(store.world)(files={**files, name: bytes(content)})
    damaged.world.open()
    (span,) = damaged.world.check(P)
    assert (span.first_offset, span.last.offset) == (3, 3)
    damaged.rest()
    assert bare(found_in(damaged.write(tmp_path / "n1"))) == said("known", 3, 3)


def newest(place: Place, name: str) -> Path:
    """The journal (or second place) of the generation that lives."""
    return max(Path(place.store).glob(f"{name}.?"), key=lambda path: path.read_bytes()[8:16])


def test_entries_that_the_journal_has_lost(tmp_path: Path) -> None:
    store = made()
    for number_ in range(3):
        store.append(P, records(number_, epoch=2))
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    journal = newest(place, "journal")

    def wipe(content: bytearray) -> None:
        for start in rounds(content)[1:]:
            content[start : start + 400] = bytes(400)

    change(journal, wipe)
    found = found_in(place)
    assert [(each.kind, each.last) for each in found] == [("lost", 42)]


def test_a_journal_that_is_damaged_where_nothing_is_lost(tmp_path: Path) -> None:
    store = made()
    for number_ in range(3):
        store.append(P, records(number_, epoch=2))
    place = store.write(tmp_path / "n1")
    marks = newest(place, "marks")
    change(
        marks,
        lambda content: content.__setitem__(rounds(content)[1] + 60, content[rounds(content)[1] + 60] ^ 1),
    )
    assert bare(found_in(place)) == said("journal", partition="")


def test_a_state_that_neither_place_has(tmp_path: Path) -> None:
    store = made()
    store.world.save(record(state=77), P)
    store.world.run()
    place = store.write(tmp_path / "n1")
    assert found_in(place) == []
    wanted = record(state=77)
    for name in ("journal", "marks"):
        path = newest(place, name)
        content = path.read_bytes()
        path.write_bytes(content.replace(wanted, bytes(len(wanted))))
    assert bare(found_in(place)) == said("state")


def test_a_store_of_which_nothing_is_left(place: Place) -> None:
    for path in Path(place.store).glob("journal.?"):
        path.write_bytes(bytes(1000))
    for path in Path(place.store).glob("marks.?"):
        path.write_bytes(bytes(1000))
    assert bare(found_in(place)) == said("store", partition="")


def test_files_that_the_journal_does_not_know(place: Place) -> None:
    other = Path(place.store) / "partitions" / f"{bytes(16).hex()}-9"
    other.mkdir()
    (other / "00000000000000000000.log").write_bytes(b"x")
    (found,) = found_in(place)
    assert (found.kind, found.detail) == ("stranger", f"partitions/{other.name}")


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
