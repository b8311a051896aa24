"""What a backup consists of, as one JSON object, and where it stands.

    NAME/manifest-00000003-<SHA-256 of its bytes>.json
    NAME/data/00000-00000000000000004711.batches       record batches of a partition, as they were fetched
    NAME/data/00000000000000004711-0000.tables         a snapshot of tables

The manifest with the highest number counts. Its name says what its bytes must be, and it says what the bytes of all
data files must be: so no byte can change without being noticed. Each is written when everything that it names is
there, and never changed; older ones are removed after that.

Before the first manifest there is `NAME/data/begun`. It tells data that nothing has named yet, which the next try
may remove, from that of a backup whose manifest somebody lost, which nobody may.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple

import msgspec

from quorate.backup.errors import Damaged, NoBackup, WrongBackup
from quorate.backup.place import Place

FORMAT = 1
FILE_BYTES_MAX = 64 << 20
"""A data file is closed before it would be larger; a batch that is larger lies in one alone."""
TOPIC, TABLES = "topic", "tables"
_NAME = re.compile(r"(?P<backup>[^/]+)/manifest-(?P<number>[0-9]{8})-(?P<sha256>[0-9a-f]{64})\.json")
_BACKUP = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
_OF_BACKUP = re.compile(r"[^/]+/(?:manifest-.*|data/.*)")
_DATA = re.compile(r"[^/]+/data/(?:[0-9]{5}-[0-9]{20}\.batches|[0-9]{20}-[0-9]{4,}\.tables)")


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int
    sha256: str
    first: int = 0
    """Of batches: the first offset that they cover."""
    end: int = 0
    """And the one behind the last."""
    batches: int = 0
    records: int = 0
    """Without those of the log itself, which readers never see."""


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets that were removed from the topic before they were saved."""

    first: int
    end: int


class PartitionSaved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: int
    """The first offset that the topic had when it was saved first."""
    end: int
    """The one behind the last that is saved."""
    files: tuple[DataFile, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    kind: str
    """`topic` or `tables`."""
    name: str
    id: str
    """Of the topic or group, in hexadecimal: another one of the same name is not added to this."""
    cluster: str
    number: int
    """Counted from 1, with every manifest."""
    saved_at_ms: int
    replication: str
    replicas: int
    config: dict[str, str]
    complete: bool
    """False: whoever made it was stopped before it had all that was there when it began."""
    partitions: tuple[PartitionSaved, ...] = ()
    """Of a topic, by number."""
    offset: int = -1
    """Of tables: everything up to it, and nothing else, is in there."""
    tables: tuple[str, ...] = ()
    snapshot: tuple[DataFile, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        of_partitions = tuple(file for partition in self.partitions for file in partition.files)
        return of_partitions + self.snapshot

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


_NO_MANIFEST = "has no manifest: its first `create` was not finished, or somebody removed it"


class _Format(msgspec.Struct):
    format: int


_decode = msgspec.json.Decoder(Manifest).decode
_decode_format = msgspec.json.Decoder(_Format).decode


class _Found(NamedTuple):
    number: int
    sha256: str
    name: str


def batches_name(backup: str, partition: int, first: int) -> str:
    return f"{backup}/data/{partition:05d}-{first:020d}.batches"


def snapshot_name(backup: str, offset: int, part: int) -> str:
    return f"{backup}/data/{offset:020d}-{part:04d}.tables"


def begun_name(backup: str) -> str:
    return f"{backup}/data/begun"


def hashed(content: bytes | bytearray) -> str:
    return sha256(content).hexdigest()


# ---- reading ----


def backups_in(place: Place) -> list[str]:
    """The names of all backups, those whose manifest is lost included."""
    return sorted({name.split("/")[0] for name in place.names("") if _OF_BACKUP.fullmatch(name)})


def some_backups_in(place: Place) -> list[str]:
    """The same, where nothing would be looked at if there were none: raises NoBackup."""
    if names := backups_in(place):
        return names
    raise NoBackup(
        f"{place}: there is no backup at all; name the place that `quorate backup create` was given"
    )


def newest(place: Place, backup: str) -> Manifest:
    """Raises NoBackup, Damaged and WrongBackup."""
    if not _BACKUP.fullmatch(backup):
        raise NoBackup(f"{backup!r} is no name of a topic or a group of tables")
    found = _manifests(place, backup)
    if not found:
        if place.names(backup):
            raise NoBackup(f"{place}: {backup} {_NO_MANIFEST}")
        others = backups_in(place)
        there = f"there are: {', '.join(others)}" if others else "there is none at all"
        raise NoBackup(f"{place}: there is no backup of {backup!r}; {there}")
    last = found[-1]
    content = place.read(last.name)
    if hashed(content) != last.sha256:
        raise Damaged(f"{place}: {last.name} is damaged: its SHA-256 is not the one in its name")
    return _opened(content, f"{place}: {last.name}", last.number, backup)


def newest_or_none(place: Place, backup: str) -> Manifest | None:
    """None: there is none yet."""
    return newest(place, backup) if _manifests(place, backup) else None


def missing(place: Place, manifest: Manifest) -> list[str]:
    """Of the files that it names."""
    there = set(place.names(manifest.name))
    return [file.name for file in manifest.files if file.name not in there]


def _manifests(place: Place, backup: str) -> list[_Found]:
    matches = filter(None, map(_NAME.fullmatch, place.names(backup)))
    return sorted(_Found(int(match["number"]), match["sha256"], match[0]) for match in matches)


def _opened(content: bytes, where: str, number: int, backup: str) -> Manifest:
    try:
        format_ = _decode_format(content).format
        if format_ != FORMAT:
            raise WrongBackup(f"{where} is of format {format_}; this version of quorate reads {FORMAT}")
        made = _decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{where} is no manifest: {error}") from error
    if made.number != number or made.name != backup:
        raise Damaged(f"{where} is the manifest of {made.name}, number {made.number}: it was renamed")
    return made


# ---- writing ----


def begin(place: Place, backup: str) -> None:
    """A first manifest is to come. Raises WrongBackup where data lies of which none is known."""
    there, begun = place.names(backup), begun_name(backup)
    if begun in there:
        return
    if any(map(_DATA.fullmatch, there)):
        raise WrongBackup(
            f"{place}: {backup} {_NO_MANIFEST}; put it back, choose another place, or remove {backup}/data there"
        )
    place.write(begun, b"")


def has_begun(place: Place, backup: str) -> None:
    """A manifest is there: whoever loses it later must not find that its `create` was only begun."""
    place.remove(begun_name(backup))


def write(place: Place, manifest: Manifest) -> None:
    """From now on this is the backup; what nothing names any more goes.

    Raises WrongBackup where somebody else has written to it meanwhile.
    """
    others = _manifests(place, manifest.name)
    if others and others[-1].number >= manifest.number:
        raise WrongBackup(f"{place}: somebody else is saving {manifest.name} there, too; one at a time")
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    name = f"{manifest.name}/manifest-{manifest.number:08d}-{hashed(content)}.json"
    place.write(name, content)
    named = {name, *(file.name for file in manifest.files)}
    for other in place.names(manifest.name):
        if other not in named and _is_ours(other):
            place.remove(other)


def _is_ours(name: str) -> bool:
    """Whatever else lies there is somebody else's."""
    return bool(_NAME.fullmatch(name) or _DATA.fullmatch(name)) or name == begun_name(name.split("/")[0])
