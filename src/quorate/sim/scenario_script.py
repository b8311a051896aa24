"""From the text of a scenario to what is given and what is to be done, every place filled in and checked.

Lines of the first kind (`nodes`, `log`, …) say how the world begins; they stand above the first line that
does something. Everything that can be wrong with a line by itself is found here, all of it at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from quorate.core.effects import Outcome
from quorate.core.entry import Quorums
from quorate.core.quorum import why_unsafe
from quorate.sim.happening import OPERATOR_FIRST
from quorate.sim.scenario_log import Item, check_given, read_entries
from quorate.sim.scenario_room import ROOMS, Room, check_setting
from quorate.sim.scenario_words import Form, Mistake, Word, split, understand

NODES_MAX = 99
ROLES = ("leader", "follower", "fenced", "waiting", "prospect", "candidate", "learner", "outsider", "down")
UNANSWERED = "none"
ANYBODY = 0
"""Instead of a node's number: `*`."""


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with a scenario: the line and a sentence for a person."""

    line: int
    what: str
    misunderstood: bool = False
    """The line could not be understood; otherwise the world was not as it says."""


class Cast(msgspec.Struct):
    """Who takes part, and what everybody has at the beginning."""

    room: Room = ROOMS["raft"]
    numbers: dict[str, int] = {}
    operators: dict[str, int] = {}
    learners: tuple[int, ...] = ()
    outsiders: tuple[int, ...] = ()
    """Hold an empty replica, and are in no ensemble yet."""
    in_sync: tuple[int, ...] = ()
    """By what is stored when logs are given, the last leader first; none: everybody."""
    priorities: dict[int, int] = {}
    origin: int = 0
    """What the file calls the first offset of a log."""
    seed: int = 0
    settings: dict[str, float] = {}
    logs: dict[int, tuple[Item, ...]] = {}
    epochs: dict[int, int] = {}
    quorums: Quorums | None = None
    """At birth, in `confirm`; None: majorities."""
    named: dict[str, int] = {}
    """Names of proposals and other requests, with the line of each."""

    @property
    def names(self) -> dict[int, str]:
        return {number: name for name, number in (self.numbers | self.operators).items()}

    @property
    def voters(self) -> tuple[int, ...]:
        others = self.learners + self.outsiders
        return tuple(number for number in self.numbers.values() if number not in others)


class Said:
    """What a line says, by place."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, tuple[Any, ...]]) -> None:
        self._values = values

    def __contains__(self, place: str) -> bool:
        return place in self._values

    def node(self, place: str = "NODE") -> int:
        number = self._values[place][0]
        assert isinstance(number, int)
        return number

    def nodes(self, place: str = "NODE") -> tuple[int, ...]:
        return self._values[place]

    def number(self, place: str) -> int:
        number = self._values[place][0]
        assert isinstance(number, int)
        return number

    def numbers(self, place: str) -> tuple[int, ...]:
        return self._values[place]

    def seconds(self) -> float:
        seconds = self._values["TIME"][0]
        assert isinstance(seconds, float)
        return seconds

    def word(self, place: str) -> str:
        return str(self._values[place][0])

    def words(self, place: str) -> tuple[str, ...]:
        return self._values[place]

    def items(self) -> tuple[Item, ...]:
        return self._values["ENTRIES"]


class Statement(msgspec.Struct):
    line: int
    form: Form
    said: Said
    source: str
    """The line as it is written, single-spaced and without its comment."""
    fails_with: str | None = None
    """The next line expects this one to fail, with this text."""
    block: list[str] | None = None
    """The indented lines below `expect trace`."""
    block_at: int = 0
    """The number of the first of them."""


class Script(msgspec.Struct):
    cast: Cast
    statements: list[Statement]
    problems: list[Problem]


def parse(text: str, acts: Iterable[str]) -> Script:
    """Read a whole file. `acts`: the forms of lines that do or expect something."""
    reader = _Reader([Form(pattern) for pattern in (*_GIVEN, *acts, *_SPECIAL)])
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        number += 1
        try:
            words = split(lines[number - 1])
            if words:
                number = reader.take(number, words, lines)
        except Mistake as mistake:
            reader.problems.append(Problem(number, str(mistake), misunderstood=True))
    script = Script(reader.cast, reader.statements, reader.problems)
    why = _cannot_begin(script.cast)
    if why and not script.problems:
        script.problems.append(Problem(1, why, misunderstood=True))
    return script


def _cannot_begin(cast: Cast) -> str:
    """What is wrong with all that is given together, if anything is."""
    if not cast.numbers:
        return "a scenario has `nodes`: nodes R1 R2 R3"
    if not 1 <= cast.settings.get("min_isr", 1) <= len(cast.voters):
        return f"min-isr is at least 1, and at most as many as there are nodes: {len(cast.voters)}"
    if cast.quorums is not None and cast.room.name != "confirm":
        return "only in confirm quorums have sizes; write `protocol confirm` above"
    if cast.quorums is not None:
        return why_unsafe(cast.quorums, len(cast.voters))
    if cast.in_sync and not cast.logs and not cast.epochs:
        return "`isr` says who is in sync where logs are given: log R1 = 1-0"
    return ""


class _Reader:
    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = forms
        self.cast = Cast()
        self.statements: list[Statement] = []
        self.problems: list[Problem] = []

    def take(self, number: int, words: list[Word], lines: list[str]) -> int:
        """Take one line, and its block; returns the number of the last line taken."""
        form, places = understand(words, self.forms)
        given = _GIVEN.get(form.pattern)
        if given is not None:
            if self.statements:
                raise Mistake(
                    f"`{form.opening}` says how the world begins: it stands above the first command"
                )
            given(self.cast, places)
            return number
        said = Said({place: fill(self.cast, place, found, number) for place, found in places.items()})
        source = " ".join(map(str, words))
        if form.pattern == EXPECT_ERROR:
            self._expect_error(said)
            return number
        if not self.cast.numbers:
            raise Mistake("who takes part? The first line is: nodes R1 R2 R3")
        statement = Statement(number, form, said, source)
        if form.pattern == EXPECT_TRACE:
            statement.block = []
            statement.block_at = number + 1
            while number < len(lines) and lines[number][:1].isspace() and lines[number].strip():
                statement.block.append(lines[number].strip())
                number += 1
        self.statements.append(statement)
        return number

    def _expect_error(self, said: Said) -> None:
        if not self.statements or self.statements[-1].form.opening == "expect":
            raise Mistake("`expect error` stands directly below the command that must fail")
        self.statements[-1].fails_with = said.word("TEXT")


# ---- what is given ----


def _protocol(cast: Cast, places: dict[str, list[Word]]) -> None:
    name = places["NAME"][0].text
    if name not in ROOMS:
        raise Mistake(f"there is no protocol {name}; there are: {', '.join(ROOMS)}")
    cast.room = ROOMS[name]


def _nodes(cast: Cast, places: dict[str, list[Word]]) -> None:
    _enroll(cast, places["NODE"])


def _learners(cast: Cast, places: dict[str, list[Word]]) -> None:
    cast.learners += _enroll(cast, places["NODE"])


def _outsiders(cast: Cast, places: dict[str, list[Word]]) -> None:
    cast.outsiders += _enroll(cast, places["NODE"])


def _operators(cast: Cast, places: dict[str, list[Word]]) -> None:
    _overseers(cast, "operators", places)


def _controllers(cast: Cast, places: dict[str, list[Word]]) -> None:
    _overseers(cast, "controllers", places)


def _overseers(cast: Cast, called: str, places: dict[str, list[Word]]) -> None:
    if called != cast.room.overseers:
        instead = f"write: {cast.room.overseers}" if cast.room.overseers else "replicas elect their leaders"
        raise Mistake(f"in {cast.room.name} there are no {called}: {instead}")
    for word in places["OPERATOR"]:
        _check_name(cast, word)
        cast.operators[word.text] = OPERATOR_FIRST + len(cast.operators)


def _priority(cast: Cast, places: dict[str, list[Word]]) -> None:
    for word in places["NODE"]:
        cast.priorities[_node(cast, word)] = _number(places["NUMBER"][0])


def _isr(cast: Cast, places: dict[str, list[Word]]) -> None:
    if cast.room.name != "isr":
        raise Mistake(f"in {cast.room.name} nobody has to be in sync; write `protocol isr` above")
    nodes = [_node(cast, word) for word in places["NODE"]]
    if not set(nodes) <= set(cast.voters) or len(set(nodes)) < len(nodes):
        raise Mistake("`isr` names nodes that copy the partition from the beginning, each once")
    cast.in_sync = tuple(nodes)


def _enroll(cast: Cast, words: list[Word]) -> tuple[int, ...]:
    for word in words:
        _check_name(cast, word)
        cast.numbers[word.text] = len(cast.numbers) + 1
    if len(cast.numbers) > NODES_MAX:
        raise Mistake(f"a scenario has at most {NODES_MAX} nodes")
    return tuple(cast.numbers[word.text] for word in words)


def _check_name(cast: Cast, word: Word) -> None:
    if not re.fullmatch(r"[A-Za-z][\w.]*", word.text):
        raise Mistake(f"`{word}` cannot be a node's name: a letter, then letters and digits")
    if word.text in cast.numbers or word.text in cast.operators:
        raise Mistake(f"there are two nodes {word}")


def _offsets(cast: Cast, places: dict[str, list[Word]]) -> None:
    if cast.logs:
        raise Mistake("`offsets from` stands above the logs, which are written with such offsets")
    cast.origin = _number(places["NUMBER"][0])


def _seed(cast: Cast, places: dict[str, list[Word]]) -> None:
    cast.seed = _number(places["NUMBER"][0])


def _setting(cast: Cast, places: dict[str, list[Word]]) -> None:
    name, value = places["NAME"][0].text, places["VALUE"][0].text
    cast.settings[name.replace("-", "_")] = check_setting(cast.room, name, value)


def _quorums(cast: Cast, places: dict[str, list[Word]]) -> None:
    cast.quorums = Quorums(_number(places["COMMIT"][0]), _number(places["PROMOTE"][0]))


def _log(cast: Cast, places: dict[str, list[Word]]) -> None:
    items = read_entries(places["ENTRIES"], cast.origin)
    check_given(items)
    for word in places["NODE"]:
        cast.logs[_node(cast, word)] = items
    check_agreement(cast)


def check_agreement(cast: Cast) -> None:
    """Logs that share an entry id share everything below it, or no protocol could have made them (YB-6)."""
    below: dict[tuple[int, int], tuple[Item, ...]] = {}
    for number, items in cast.logs.items():
        for index, item in enumerate(items):
            prefix = below.setdefault((item.epoch, item.last), items[: index + 1])
            if prefix != items[: index + 1]:
                raise Mistake(
                    f"no run could leave such logs: {cast.names[number]} has {item.epoch}-"
                    f"{item.last + cast.origin} behind other entries than another node has"
                )


def _epoch(cast: Cast, places: dict[str, list[Word]]) -> None:
    for word in places["NODE"]:
        cast.epochs[_node(cast, word)] = _number(places["EPOCH"][0])


_GIVEN: dict[str, Callable[[Cast, dict[str, list[Word]]], None]] = {
    "protocol NAME": _protocol,
    "nodes NODE...": _nodes,
    "learners NODE...": _learners,
    "outsiders NODE...": _outsiders,
    "operators OPERATOR...": _operators,
    "controllers OPERATOR...": _controllers,
    "isr NODE...": _isr,
    "priority NODE... = NUMBER": _priority,
    "offsets from NUMBER": _offsets,
    "seed NUMBER": _seed,
    "setting NAME = VALUE": _setting,
    "quorums COMMIT PROMOTE": _quorums,
    "log NODE... = ENTRIES...": _log,
    "epoch NODE... = EPOCH": _epoch,
}
GIVEN = tuple(_GIVEN)

EXPECT_ERROR = "expect error TEXT"
EXPECT_TRACE = "expect trace"
_SPECIAL = (EXPECT_ERROR,)


# ---- places ----


def fill(cast: Cast, place: str, words: list[Word], line: int) -> tuple[Any, ...]:
    """The values of one place; raises Mistake for what cannot stand there."""
    if place == "ENTRIES":
        return read_entries(words, cast.origin)
    if place == "NAME":
        return (_name(cast, words[0], line),)
    kind = _PLACES.get(place)
    if kind is None:
        return tuple(word.text for word in words)
    return tuple(kind(cast, word) for word in words)


def _node(cast: Cast, word: Word) -> int:
    if word.text not in cast.numbers:
        raise Mistake(f"there is no node {word}; there are: {' '.join(cast.numbers) or 'none yet'}")
    return cast.numbers[word.text]


def _operator(cast: Cast, word: Word) -> int:
    if word.text not in cast.operators:
        raise Mistake(f"there is no operator {word}; there are: {' '.join(cast.operators) or 'none'}")
    return cast.operators[word.text]


def _who(cast: Cast, word: Word) -> int:
    """A node or an operator."""
    return cast.operators[word.text] if word.text in cast.operators else _node(cast, word)


def _end(cast: Cast, word: Word) -> int:
    return ANYBODY if word.text == "*" else _who(cast, word)


def _number(word: Word) -> int:
    if not word.text.isdecimal():
        raise Mistake(f"`{word}` is not a number")
    return int(word.text)


def _offset(cast: Cast, word: Word) -> int:
    if word.text == "none":
        return -1
    offset = _number(word) - cast.origin
    if offset < 0:
        raise Mistake(f"this file counts offsets from {cast.origin}; where there is none, write `none`")
    return offset


def _time(_: Cast, word: Word) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms)", word.text)
    if found is None:
        raise Mistake(f"`{word}` is not a time; write 2s or 300ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def _message(cast: Cast, word: Word) -> str:
    if word.text != "none" and not any(_called(name, word.text) for name in cast.room.messages):
        known = ", ".join(cast.room.messages)
        raise Mistake(f"{cast.room.name} has no message `{word}`; it has: {known} (or their first words)")
    return word.text


def _called(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}-")


def _role(_: Cast, word: Word) -> str:
    if word.text not in ROLES:
        raise Mistake(f"there is no role {word}; there are: {', '.join(ROLES)}")
    return word.text


def _answer_word(_: Cast, word: Word) -> str:
    known = {UNANSWERED, *(part for outcome in Outcome for part in outcome.value.split())}
    if word.text not in known:
        outcomes = ", ".join(outcome.value for outcome in Outcome)
        raise Mistake(f"there is no answer {word}; there are: {outcomes}, and none for not yet")
    return word.text


def _answered(cast: Cast, word: Word) -> str:
    if word.text not in cast.named:
        raise Mistake(f"nothing was asked as {word}; so far: {' '.join(cast.named) or 'nothing'}")
    return word.text


def _name(cast: Cast, word: Word, line: int) -> str:
    if word.text in cast.named:
        raise Mistake(f"{word} is the name of the request in line {cast.named[word.text]}: take another")
    cast.named[word.text] = line
    return word.text


_PLACES: dict[str, Callable[[Cast, Word], Any]] = {
    "NODE": _node,
    "WHO": _who,
    "OPERATOR": _operator,
    "OLD": _node,
    "NEW": _node,
    "VOTER": _node,
    "HEIR": _node,
    "MEMBER": _node,
    "LEARNER": _node,
    "OUTGOING": _node,
    "WANTED": _node,
    "FROM": _end,
    "TO": _end,
    "OFFSET": _offset,
    "EPOCH": lambda _, word: _number(word),
    "NUMBER": lambda _, word: _number(word),
    "COMMIT": lambda _, word: _number(word),
    "PROMOTE": lambda _, word: _number(word),
    "TIME": _time,
    "MESSAGE": _message,
    "ROLE": _role,
    "ANSWER": _answer_word,
    "PROPOSAL": _answered,
    "EARLIER": _answered,
}
