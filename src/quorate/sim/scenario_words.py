"""How lines of a scenario are written: forms such as `deliver [last] MESSAGE FROM -> TO`, and what fits them.

Lower-case words and signs stand as they are, `a|b` is either of them, `[…]` may be left out. Upper-case words
are places to fill in, with `...` behind them one or more of a kind. The forms are at once the grammar, the
answer to a line that fits none of them, and the reference in docs/SCENARIOS.md, where a test looks for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SIGNS = ("->", "<->", "=")
EXPECT = "expect"
TEXT = "TEXT"
"""The one place that takes words in quotation marks, and nothing else."""

_WORDS = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain><->|->|=|(?:(?!<->|->)[^\s"=])+)|(?P<stray>")')


class Mistake(Exception):
    """A line that cannot be understood; the text says what could stand there."""


class Word(NamedTuple):
    text: str
    quoted: bool = False

    def __str__(self) -> str:
        return f'"{self.text}"' if self.quoted else self.text


class Form(NamedTuple):
    """One way to write a line."""

    pattern: str

    @property
    def opening(self) -> str:
        return self.pattern.split()[0]

    def fit(self, words: Sequence[Word]) -> dict[str, list[Word]] | None:
        """What stands in each place, and the literal words used; None if the line is no such form."""
        for tokens in _expand(self.pattern):
            places: dict[str, list[Word]] = {}
            if _fits(tokens, words, places):
                return places
        return None


def split(line: str) -> list[Word]:
    """The words of a line without its comment."""
    words = []
    for found in _WORDS.finditer(without_comment(line)):
        if found["stray"]:
            raise Mistake("a quotation mark is missing")
        quoted = found["quoted"]
        words.append(Word(quoted, quoted=True) if quoted is not None else Word(found["plain"]))
    return words


def without_comment(line: str) -> str:
    """A comment begins with `#` at the start of a word, outside of quotation marks."""
    inside = False
    for at, letter in enumerate(line):
        if letter == '"':
            inside = not inside
        elif letter == "#" and not inside and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line


def understand(words: Sequence[Word], forms: Sequence[Form]) -> tuple[Form, dict[str, list[Word]]]:
    """The first form that the line fits. Raises Mistake with what could have been written instead."""
    for form in forms:
        places = form.fit(words)
        if places is not None:
            return form, places
    line = " ".join(map(str, words))
    same = [form.pattern for form in forms if form.opening == words[0].text]
    if not same:
        first = list(dict.fromkeys(form.opening for form in forms))
        raise Mistake(f"there is no `{words[0]}`; a line begins with one of: {', '.join(first)}")
    if words[0].text == EXPECT:  # Its second word says what it is about.
        about = words[1].text if len(words) > 1 else ""
        alike = [pattern for pattern in same if pattern.split()[1] == about]
        if not alike:
            known = list(dict.fromkeys(pattern.split()[1] for pattern in same))
            raise Mistake(f"`{line}` is not understood; what can be expected: {', '.join(known)}")
        same = alike
    raise Mistake(f"`{line}` is not understood; write: " + " | ".join(same))


def _expand(pattern: str) -> Iterator[tuple[str, ...]]:
    """The pattern with and without each part that may be left out."""
    found = re.search(r"\[([^\[\]]*)\]", pattern)
    if found is None:
        yield tuple(pattern.split())
        return
    for inside in (found[1], ""):
        yield from _expand(pattern[: found.start()] + inside + pattern[found.end() :])


def _fits(tokens: Sequence[str], words: Sequence[Word], places: dict[str, list[Word]]) -> bool:
    if not tokens or not words:
        return not tokens and not words
    token, rest = tokens[0], tokens[1:]
    if not token[0].isupper():
        if words[0].quoted or words[0].text not in token.split("|"):
            return False
        places[words[0].text] = [words[0]]
        return _fits(rest, words[1:], places)
    name = token.removesuffix("...")
    most = len(words) - len(rest) if token.endswith("...") else 1
    for count in range(most, 0, -1):
        taken = words[:count]
        if all(_may_stand(name, word) for word in taken) and _fits(rest, words[count:], places):
            places[name] = list(taken)
            return True
    return False


def _may_stand(name: str, word: Word) -> bool:
    if name == TEXT:
        return word.quoted
    return not word.quoted and word.text not in SIGNS
