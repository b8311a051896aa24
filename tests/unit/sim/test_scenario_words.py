"""The forms of lines: what fits them, and what is said about a line that fits none."""

from __future__ import annotations

import pytest

from quorate.sim.scenario_words import Form, Mistake, Word, split, understand


def texts(line: str) -> list[str]:
    return [str(word) for word in split(line)]


def fit(pattern: str, line: str) -> dict[str, list[str]] | None:
    places = Form(pattern).fit(split(line))
    if places is None:
        return None
    return {place: [word.text for word in words] for place, words in places.items()}


def test_words_are_split_at_spaces_and_signs() -> None:
    assert texts("deliver append R1->R3") == ["deliver", "append", "R1", "->", "R3"]
    assert texts("log R1=3-0 3-1") == ["log", "R1", "=", "3-0", "3-1"]
    assert texts("cut R1<->R2") == ["cut", "R1", "<->", "R2"]
    assert texts("   ") == []


def test_quoted_words_keep_their_spaces_and_signs() -> None:
    assert split('propose R1 "a = b -> c # d" as w') == [
        Word("propose"),
        Word("R1"),
        Word("a = b -> c # d", quoted=True),
        Word("as"),
        Word("w"),
    ]


def test_a_comment_ends_the_line() -> None:
    assert texts("elect R1 # with everybody") == ["elect", "R1"]
    assert texts("# all of it") == []
    assert texts("w#1") == ["w#1"]


def test_a_lonely_quotation_mark_is_a_mistake() -> None:
    with pytest.raises(Mistake, match="quotation mark"):
        split('propose R1 "x as w')


def test_places_take_words_and_repeated_places_take_several() -> None:
    assert fit("log NODE... = ENTRIES...", "log R1 R2 = 1-0 1-1") == {
        "NODE": ["R1", "R2"],
        "ENTRIES": ["1-0", "1-1"],
        "log": ["log"],
        "=": ["="],
    }


def test_parts_in_brackets_may_be_left_out() -> None:
    pattern = "deliver [last] [MESSAGE] FROM -> TO"
    for line, expected in [
        ("deliver R1 -> R2", {"FROM", "TO"}),
        ("deliver append R1 -> R2", {"MESSAGE", "FROM", "TO"}),
        ("deliver last append R1 -> R2", {"last", "MESSAGE", "FROM", "TO"}),
    ]:
        places = fit(pattern, line)
        assert places is not None
        assert set(places) - {"deliver", "->"} == expected


def test_alternatives_are_either_word() -> None:
    assert fit("cut FROM ->|<-> TO", "cut R1 <-> R2") is not None
    assert fit("cut FROM ->|<-> TO", "cut R1 = R2") is None


def test_only_text_takes_quoted_words_and_only_such() -> None:
    assert fit("propose NODE [TEXT...] as NAME", 'propose R1 "x" "y" as w') is not None
    assert fit("propose NODE [TEXT...] as NAME", "propose R1 x as w") is None
    assert fit("wake NODE", 'wake "R1"') is None


def test_a_line_that_fits_nothing_is_answered_with_what_would() -> None:
    forms = [
        Form("elect NODE [with VOTER...]"),
        Form("expect log NODE... = ENTRIES..."),
        Form("expect no leader"),
    ]
    with pytest.raises(Mistake, match=r"`elect` is not understood; write: elect NODE \[with VOTER...\]$"):
        understand(split("elect"), forms)
    with pytest.raises(Mistake, match=r"write: expect log NODE... = ENTRIES...$"):
        understand(split("expect log R1 5-0"), forms)
    with pytest.raises(Mistake, match=r"there is no `vote`; a line begins with one of: elect, expect$"):
        understand(split("vote R1"), forms)
    with pytest.raises(Mistake, match=r"`expect nothing` is not .*; what can be expected: log, no$"):
        understand(split("expect nothing"), forms)
