"""What can go wrong with a directory, done to its bytes. Each harm says what an audit has to tell of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
from crc32c import crc32c

from quorate.audit.findings import Finding
from quorate.audit.places import Place
from quorate.batch import stamp
from quorate.core.entry import Partition
from quorate.storage.frame import FRAME_HEAD_BYTES, FRAME_MAGIC, build, parse
from quorate.storage.journal import ROUND_MAGIC
from quorate.storage.snapshot_file import id_of
from tests.unit.audit.stores import record

Edit = Callable[[bytearray], object]
Harm = Callable[[Place, Partition], Finding]

AT = 3
"""The entry of a log that is harmed, of the first segment, in which entry and frame have the same number."""

SAVED = record(state=77)
"""What was saved last by a replica whose state is to be harmed."""
_EPOCH_AT, _OFFSET_AT = 28, 36
_CHECKED_BYTES = FRAME_HEAD_BYTES - 4


# ---- where things are ----


def directory(place: Place, partition: Partition) -> Path:
    name = f"{partition[:16].hex()}-{int.from_bytes(partition[16:], 'big')}"
    return Path(place.store) / "partitions" / name


def segments(place: Place, partition: Partition) -> list[Path]:
    return sorted(directory(place, partition).glob("0*.log"))


def newest(place: Place, name: str) -> Path:
    """The journal (or second place) of the generation that lives."""
    return max(Path(place.store).glob(f"{name}.?"), key=lambda path: path.read_bytes()[8:16])


def frames(content: bytes | bytearray) -> list[int]:
    return _all(content, FRAME_MAGIC)


def rounds(content: bytes | bytearray) -> list[int]:
    return _all(content, ROUND_MAGIC)


def _all(content: bytes | bytearray, magic: bytes) -> list[int]:
    found, at = [], content.find(magic)
    while at >= 0:
        found.append(at)
        at = content.find(magic, at + 1)
    return found


# ---- edits ----


def change(path: Path, edit: Edit) -> None:
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(bytes(content))


def flip(at_frame: int, byte: int) -> Edit:
    def edit(content: bytearray) -> None:
        content[frames(content)[at_frame] + byte] ^= 1

    return edit


def doubled(content: bytearray) -> None:
    """The entry before it was written over it."""
    starts = frames(content)
    content[starts[AT] : starts[AT + 1]] = content[starts[AT - 1] : starts[AT]]


def of_an_older_epoch(content: bytearray) -> None:
    at = frames(content)[AT]
    struct.pack_into(">Q", content, at + _EPOCH_AT, 0)
    struct.pack_into(">I", content, at + _CHECKED_BYTES, crc32c(bytes(content[at : at + _CHECKED_BYTES])))


def of_before_it_was_cut(content: bytearray) -> None:
    """An entry that stood there in an older epoch: what was written over it has never reached the disk."""
    at, whole = frames(content)[AT], bytes(content)
    frame, end = parse(whole, at)
    before, _ = parse(whole, frames(whole)[AT - 1])
    payload = bytes(stamp(bytes(before.payload), offset=AT, epoch=before.header.epoch))
    header = msgspec.structs.replace(before.header, offset=AT)
    assert before.header.epoch < frame.header.epoch
    stale = build(frame.partition, header, payload, frame.prev, frame.prev_checksum)
    assert stale.size == frame.size
    content[at:end] = stale.head + payload


def left_out(content: bytearray) -> None:
    """Two entries, and what is behind them moved up."""
    starts = frames(content)
    del content[starts[AT] : starts[AT + 2]]


# ---- harms ----


def _edits(kind: str, edit: Edit, *, last: int = AT) -> Harm:
    def harm(place: Place, partition: Partition) -> Finding:
        change(segments(place, partition)[0], edit)
        return Finding(place.replica, partition.hex(), kind, AT, last)

    return harm


def _second_segment(kind: str, do: Callable[[Path], object]) -> Harm:
    def harm(place: Place, partition: Partition) -> Finding:
        path, following = segments(place, partition)[1:3]
        do(path)
        return Finding(place.replica, partition.hex(), kind, int(path.stem), int(following.stem) - 1)

    return harm


def _short(place: Place, partition: Partition) -> Finding:
    """Cut within an entry: that one is gone, and whatever is behind it in the segment."""
    path, following = segments(place, partition)[:2]
    change(path, lambda content: content.__delitem__(slice(frames(content)[AT] + 100, None)))
    return Finding(place.replica, partition.hex(), "short", AT, int(following.stem) - 1)


def _footer(place: Place, partition: Partition) -> Finding:
    change(segments(place, partition)[0], lambda content: content.__setitem__(-20, content[-20] ^ 1))
    return Finding(place.replica, partition.hex(), "footer", 0, 0)


def _snapshot(place: Place, partition: Partition) -> Finding:
    (path,) = directory(place, partition).glob("snapshot-*")
    change(path, lambda content: content.__setitem__(-1, content[-1] ^ 1))
    last = id_of(path.name)
    assert last is not None
    return Finding(place.replica, partition.hex(), "snapshot", last.offset, last.offset)


def _stranger(place: Place, partition: Partition) -> Finding:
    other = directory(place, partition)
    other.mkdir()
    (other / "00000000000000000000.log").write_bytes(b"x")
    return Finding(place.replica, partition.hex(), "stranger")


def _lost(place: Place, partition: Partition) -> Finding:
    """Entries that only the journal had: those that it begins with."""
    path = newest(place, "journal")
    content = bytearray(path.read_bytes())
    offsets: list[int] = []
    for at in frames(content):
        if bytes(content[at + 8 : at + _EPOCH_AT]) == partition:
            (offset,) = struct.unpack_from(">q", content, at + _OFFSET_AT)
            if offsets and offset != offsets[-1] + 1:
                break  # What the file held in an earlier generation.
            offsets.append(offset)
            content[at : at + FRAME_HEAD_BYTES] = bytes(FRAME_HEAD_BYTES)
    path.write_bytes(bytes(content))
    return Finding(place.replica, partition.hex(), "lost", offsets[0], offsets[-1])


def _state(place: Place, partition: Partition) -> Finding:
    """In both places."""
    for name in ("journal", "marks"):
        path = newest(place, name)
        content = path.read_bytes()
        assert SAVED in content
        path.write_bytes(content.replace(SAVED, bytes(len(SAVED))))
    return Finding(place.replica, partition.hex(), "state")


def _journal(place: Place, partition: Partition) -> Finding:
    """A round of the second place, which others come behind: the journal has what it had."""

    def edit(content: bytearray) -> None:
        content[rounds(content)[1] + 60] ^= 1

    change(newest(place, "marks"), edit)
    return Finding(place.replica, "", "journal")


def _store(place: Place, partition: Partition) -> Finding:
    for name in ("journal", "marks"):
        for path in Path(place.store).glob(f"{name}.?"):
            path.write_bytes(bytes(1000))
    return Finding(place.replica, "", "store")


HARMS: dict[str, Harm] = {
    "store": _store,
    "journal": _journal,
    "lost": _lost,
    "state": _state,
    "missing": _second_segment("missing", Path.unlink),
    "short": _short,
    "frame": _edits("frame", flip(AT, 30)),
    "payload": _edits("payload", flip(AT, FRAME_HEAD_BYTES + 200)),
    "chain": _edits("chain", doubled),
    "gap": _edits("gap", left_out, last=AT + 1),
    "epochs": _edits("epochs", of_an_older_epoch),
    "footer": _footer,
    "snapshot": _snapshot,
    "stranger": _stranger,
}
"""By the kind of finding that each makes of a directory."""
