"""Settings from files, environment variables and flags, each checked where it stands.

    node.toml                               [raft] election_timeout_s = 2
    QUORATE_RAFT__ELECTION_TIMEOUT_S=2      two underscores between levels
    --set raft.election_timeout_s=2

A flag goes before a variable, and that before a file. What is wrong is said with where it stands and which setting
it is, and whoever misspells one hears which is nearest.

The tree of settings is that of the struct they are for; nothing here knows which ones there are. As text, a list is
`1,2,3`, a table `2=this,3=that`, and either may be JSON.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from quorate.node.address import BadConfig

PREFIX = "QUORATE_"
LEVELS = "__"
NO_SETTINGS = frozenset({"QUORATE_CONFIG", "QUORATE_BOOTSTRAP", "QUORATE_ACCESS", "QUORATE_PASSWORD"})
"""Variables of ours that say something else: where the file is, what commands connect to, and as whom."""
_OF_KUBERNETES = re.compile(
    r"QUORATE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP)(_\w+)?)"
)
"""Put there for whoever calls a service `quorate…`, whether anybody wants it or not."""
LISTED_COUNT_MAX = 12
NEAR, VERY_NEAR = 0.6, 0.8

Place = tuple[str, ...]
Config = TypeVar("Config", bound=msgspec.Struct)


class Given(NamedTuple):
    """One setting, as somebody has written it."""

    path: Place
    value: Any
    where: str
    """The file, the variable or the flag."""
    is_text: bool
    """It was written as text, whatever it is to be."""


# --- where settings come from ---


def from_file(path: Path, kind: type[msgspec.Struct]) -> list[Given]:
    """TOML, or JSON; raises BadConfig."""
    try:
        content = path.read_bytes()
        raw = tomllib.loads(content.decode()) if path.suffix == ".toml" else msgspec.json.decode(content)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise BadConfig(f"{path}: expected a table of settings, got {type(raw).__name__}")
    return list(_spread(raw, kind, (), str(path), kind))


def from_environment(variables: Mapping[str, str], kind: type[msgspec.Struct]) -> list[Given]:
    """Raises BadConfig for those that look like ours and are not."""
    given = []
    for name, value in sorted(variables.items()):
        if name.startswith(PREFIX) and name not in NO_SETTINGS and not _OF_KUBERNETES.fullmatch(name):
            path = tuple(name.removeprefix(PREFIX).lower().split(LEVELS))
            given += from_text(path, value, name, kind)
    return given


def from_text(path: Place, text: str, where: str, kind: type[msgspec.Struct]) -> list[Given]:
    """One setting from a variable or a flag; raises BadConfig."""
    wanted = _type_at(kind, path, where)
    if text[:1] in ("{", "[") and not _is_plain(wanted):
        try:
            value = msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise BadConfig(f"{_place(where, path)}: {error}") from None
        return list(_spread(value, wanted, path, where, kind))
    if get_origin(wanted) is dict and text:
        return [one for part in text.split(",") for one in _from_pair(path, part.strip(), where, kind)]
    return [Given(path, text, where, is_text=True)]


def from_pair(text: str, where: str, kind: type[msgspec.Struct]) -> list[Given]:
    """`raft.heartbeat_s=0.1`; raises BadConfig."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadConfig(f"{where}: {text!r} is no setting; write KEY=VALUE, as in raft.heartbeat_s=0.1")
    return from_text(tuple(key.strip().split(".")), value, f"{where} {key.strip()}", kind)


def _from_pair(path: Place, text: str, where: str, kind: type[msgspec.Struct]) -> list[Given]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadConfig(f"{_place(where, path)}: {text!r} is no pair; write KEY=VALUE,KEY=VALUE, …")
    return from_text((*path, key.strip()), value, where, kind)


def _spread(value: Any, wanted: Any, path: Place, where: str, top: Any) -> Iterator[Given]:
    """Everything below a table, each by itself: some may be said elsewhere, too."""
    if not isinstance(value, dict) or not _is_table(wanted) or (path and not value):
        yield Given(path, value, where, is_text=False)
        return
    wanted = _without_none(wanted)
    for key, below in value.items():
        name = str(key)
        yield from _spread(below, _type_of(wanted, name, path, where, top), (*path, name), where, top)


# --- what they come to ---


class Settled(NamedTuple):
    """All settings as one tree, and where each comes from."""

    tree: dict[str, Any]
    origins: dict[Place, str]
    file: str

    @contextmanager
    def naming(self) -> Iterator[None]:
        """A BadConfig that begins with the name of a setting is told with where that stands."""
        try:
            yield
        except BadConfig as bad:
            raise BadConfig(self._with_place(str(bad))) from bad

    def _with_place(self, text: str) -> str:
        """What is named first counts; of several below it, the one that was said last."""
        key, _, what = text.partition(":")
        named = tuple(key.split("."))
        below = {path: origin for path, origin in self.origins.items() if path[: len(named)] == named}
        meant = [path for path in below if path[-1] in what] or list(below)
        return f"{_place(below[meant[-1]], named)}:{what}" if meant else f"{self.place}: {text}"

    @property
    def place(self) -> str:
        return self.file or "settings"


def settle(kind: type[msgspec.Struct], given: Iterable[Given], *, file: str = "") -> Settled:
    """The later one counts where a setting is given twice; raises BadConfig. `file`: where most of them stand."""
    tree: dict[str, Any] = {}
    origins: dict[Place, str] = {}
    for one in given:
        wanted = _type_at(kind, one.path, one.where)
        # What an empty table lacks may be said elsewhere.
        value = {} if one.value == {} and _is_table(wanted) else _converted(one, wanted)
        at = tree
        for part in one.path[:-1]:
            if not isinstance(at.get(part), dict):
                at[part] = {}
            at = at[part]
        at[one.path[-1]] = value
        for path in [path for path in origins if path[: len(one.path)] == one.path]:
            del origins[path]  # The order says which was last.
        origins[one.path] = one.where
    return Settled(tree, origins, file)


def convert(kind: type[Config], settled: Settled) -> Config:
    """The struct; raises BadConfig where something is missing."""
    for path in _missing(kind, settled.tree, ()):
        variable, dotted = PREFIX + LEVELS.join(path).upper(), ".".join(path)
        there = "write it there, or " if settled.file else ""
        raise BadConfig(
            f"{settled.place}: {dotted} is missing; {there}say {variable} or --set {dotted}=VALUE"
        )
    try:
        return msgspec.convert(settled.tree, kind, strict=False)
    except msgspec.ValidationError as error:  # What no single setting can be blamed for.
        raise BadConfig(_in_words(error, (), settled.place)) from None


def _missing(wanted: Any, tree: dict[str, Any], path: Place) -> Iterator[Place]:
    """Settings without a default that nobody gave, below what somebody did."""
    wanted = _without_none(wanted)
    if get_origin(wanted) is dict:
        for key, below in tree.items():
            if isinstance(below, dict):
                yield from _missing(get_args(wanted)[1], below, (*path, key))
    elif _is_struct(wanted):
        for field in msgspec.structs.fields(wanted):
            below = tree.get(field.name)
            if isinstance(below, dict):
                yield from _missing(field.type, below, (*path, field.name))
            elif field.name not in tree and field.required:
                yield (*path, field.name)


def _converted(one: Given, wanted: Any) -> Any:
    """Checked by itself, so that what is wrong can be named."""
    place = _place(one.where, one.path)
    if _is_struct(_without_none(wanted)) and not isinstance(one.value, dict):
        raise BadConfig(f"{place}: expected a table, got {type(one.value).__name__}")
    value = one.value
    if one.is_text and get_origin(_without_none(wanted)) in (tuple, list):
        value = [part.strip() for part in value.split(",")] if value else []
    elif one.is_text and get_origin(_without_none(wanted)) is dict:
        value = {}  # An empty text: none of them.
    try:
        converted = msgspec.to_builtins(msgspec.convert(value, wanted, strict=not one.is_text))
    except msgspec.ValidationError as error:
        if one.is_text and _is_plain(wanted):
            raise BadConfig(f"{place}: expected {_without_none(wanted).__name__}, got {value!r}") from None
        raise BadConfig(_in_words(error, one.path, one.where)) from None
    if isinstance(converted, float) and not isfinite(converted):
        raise BadConfig(f"{place}: {converted} is no number to count with")
    return converted


# --- the tree of settings ---


def _type_at(kind: Any, path: Place, where: str) -> Any:
    wanted = kind
    for depth, part in enumerate(path):
        wanted = _type_of(_without_none(wanted), part, path[:depth], where, kind)
    return wanted


def _type_of(wanted: Any, key: str, path: Place, where: str, top: Any) -> Any:
    """What a setting is to be; raises BadConfig where there is none, and says what `top` has instead."""
    if get_origin(wanted) is dict:
        key_type, value_type = get_args(wanted)
        try:
            msgspec.convert(key, key_type, strict=False)
        except msgspec.ValidationError:
            named = f"{_place(where, path)}: {key!r}"
            raise BadConfig(f"{named} is no {key_type.__name__}, by which these are named") from None
        return value_type
    if not _is_struct(wanted):
        place = _place(where, path)
        raise BadConfig(f"{place}: there is nothing below this setting, and no {key!r} either")
    fields = {field.name: field.type for field in msgspec.structs.fields(wanted)}
    if key in fields:
        return fields[key]
    place = _place(where, (*path, key))
    meant = _nearest(key, path, tuple(fields), top, where)
    raise BadConfig(f"{place}: there is no such setting; {meant}")


def _nearest(key: str, path: Place, here: Sequence[str], top: Any, where: str) -> str:
    """What may have been meant: beside it, or anywhere under that name."""
    near = [(*path, name) for name in get_close_matches(key, here, n=1, cutoff=NEAR)]
    everywhere = dict.fromkeys(_all_paths(top, ()))
    near = near or [other for other in everywhere if other[-1] == key]
    if not near:
        dotted = {".".join(other): other for other in everywhere if len(other) > 1}
        wanted = ".".join((*path, key))
        near = [dotted[name] for name in get_close_matches(wanted, dotted, n=1, cutoff=VERY_NEAR)]
    if near:
        in_variable = where.startswith(PREFIX)
        meant = PREFIX + LEVELS.join(near[0]).upper() if in_variable else ".".join(near[0])
        return f"did you mean {meant}?"
    listed = ", ".join(here[:LISTED_COUNT_MAX])
    return f"there are: {listed}{', …' if len(here) > LISTED_COUNT_MAX else ''}"


def _all_paths(wanted: Any, path: Place) -> Iterator[Place]:
    wanted = _without_none(wanted)
    if _is_struct(wanted):
        for field in msgspec.structs.fields(wanted):
            yield (*path, field.name)
            yield from _all_paths(field.type, (*path, field.name))


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


def _is_table(wanted: Any) -> bool:
    wanted = _without_none(wanted)
    return _is_struct(wanted) or get_origin(wanted) is dict


def _is_plain(wanted: Any) -> bool:
    return _without_none(wanted) in (str, int, float, bool)


def _without_none(wanted: Any) -> Any:
    if get_origin(wanted) in (UnionType, Union):
        others = [each for each in get_args(wanted) if each is not NoneType]
        return others[0] if len(others) == 1 else wanted
    return wanted


# --- in words ---


def _place(where: str, path: Place) -> str:
    """Where it stands and which setting it is; a flag says both."""
    dotted = ".".join(path)
    said_already = not dotted or where.endswith(f" {dotted}") or where == f"--{dotted.replace('_', '-')}"
    return where if said_already else f"{where}: {dotted}"


_AT = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")


def _in_words(error: msgspec.ValidationError, path: Place, where: str) -> str:
    """msgspec's words: "Expected `float`, got `str` - at `$.voters[0]`"."""
    text = str(error)
    found = _AT.search(text)
    what = _AT.sub("", text).replace("`", "")
    dotted = ".".join(path) + (found[1] if found else "")
    return f"{_place(where, (dotted.removeprefix('.'),))}: {what[:1].lower()}{what[1:]}"
