"""Pictures of worlds with operators: what they do is shown, fits its place, and everybody has one name."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from quorate.sim.draw import draw
from quorate.sim.draw_frame import epochs_of
from quorate.sim.draw_ink import width_of
from quorate.sim.draw_sheet import Sheet
from quorate.sim.draw_story import Story, choose_partition, tell
from quorate.sim.happening import Happening
from quorate.sim.operators import FIRST
from quorate.sim.run import Verdict, run_seed

SVG = "{http://www.w3.org/2000/svg}"
MEMBERS = "{n1,n2,n3}"


def operator(at: float, what: str, text: str = "", state: str = "", **others: int) -> Happening:
    state = f"operator {state}" if state else ""
    return Happening(at, FIRST, what, 0, text, state=state, **others)  # type: ignore[arg-type]


def reconfiguration(at: float) -> list[Happening]:
    """A swap from its order to its end, as an operator and its leader tell it."""
    swap = "swap n3 for n3/2"
    prepare, commit = f"{MEMBERS} led by n1, {swap} (prepare)", f"{MEMBERS} led by n1, {swap} (commit)"
    ask = f"prepare-reconfiguration-request epoch 2 reconfiguration {swap} (prepare)"
    answer = "commit-reconfiguration-response epoch 2 leads yes done yes"
    return [
        operator(at, "commanded", f"request 1: {swap}", f"e1 v3 waiting: {MEMBERS} led by n1"),
        operator(at + 0.1, "wrote to the store", "version 4", f"e2 v4 reshaping {prepare}"),
        operator(at + 0.1, "sent", ask, message=1, peer=1),
        Happening(at + 0.2, 1, "received", 0, ask, 1, FIRST, "n1 leader e2 log 0..9 commit 8"),
        operator(at + 0.3, "wrote to the store", "version 5", f"e2 v5 reshaping {commit}"),
        operator(at + 0.4, "received", answer, f"e2 v5 waiting: {commit}", message=2, peer=1),
        operator(at + 0.5, "wrote to the store", "version 6", "e2 v6 tending {n1,n2,n3/2} led by n1"),
    ]


def writing(at: float, count: int) -> list[Happening]:
    return [
        Happening(at + number / 1000, 1, "flushed", 0, state=f"n1 leader e2 log 0..{number} commit {number}")
        for number in range(count)
    ]


@cache
def world() -> Verdict:
    return run_seed(1, protocol="coordinated", faults="membership", trace=True)


def texts(picture: str) -> list[str]:
    return ["".join(found.itertext()) for found in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def says(picture: str, words: str) -> bool:
    return words in re.sub(r"\s+", " ", " ".join(texts(picture)))


def shown(story: Story) -> list[str]:
    """The verbs of the rows, with whatever begins their text."""
    heads = [story.moments[row.first].happenings[0] for row in story.rows if not row.gap]
    return [f"{head.what} {head.text.split(' ', 1)[0]}".strip() for head in heads]


def test_a_reconfiguration_is_shown_from_its_order_to_its_end_however_long_the_story() -> None:
    story = tell([*writing(0.0, 50), *reconfiguration(1.0), *writing(2.0, 900)], rows_max=40)
    assert [verb for verb in shown(story) if verb != "flushed"] == [
        "commanded request",
        "wrote to the store version",
        "received prepare-reconfiguration-request",
        "wrote to the store version",
        "received commit-reconfiguration-response",
        "wrote to the store version",
    ]


def test_other_turns_do_not_push_a_reconfiguration_out() -> None:
    crashes = [
        Happening(2.0 + number, 1 + number % 2, what)
        for number in range(200)
        for what in ("crashed", "restarted")
    ]
    story = tell([*reconfiguration(1.0), *crashes, *writing(300.0, 900)], rows_max=40)
    assert "commanded request" in shown(story)
    assert "received commit-reconfiguration-response" in shown(story)


def test_an_order_that_is_refused_at_once_turns_nothing() -> None:
    told = [
        operator(0.0, "commanded", "request 1: add n4", f"e1 v3 tending {MEMBERS} led by n1"),
        operator(0.0, "answered", "request 1: refused (it is there already)"),
    ]
    assert not tell(told).moments[0].reshapes
    assert tell(told[:1]).moments[0].reshapes


def test_a_world_that_counts_reconfigurations_is_drawn_with_some() -> None:
    verdict = world()
    story = tell(verdict.happenings or ())
    assert verdict.reconfigurations
    ends = [
        moment
        for moment in (story.moments[row.first] for row in story.rows if not row.gap)
        if moment.before.shard and moment.after.shard.split("}")[0] != moment.before.shard.split("}")[0]
    ]
    assert ends


def test_the_partition_is_the_one_whose_ensemble_changed() -> None:
    busy = [Happening(0.001 * number, 1, "woke", 1) for number in range(100)]
    assert choose_partition([*busy, *reconfiguration(1.0)], None) == 0
    assert choose_partition([*busy, *reconfiguration(1.0)[:2]], None) == 1


def test_what_stands_beside_an_operator_never_reaches_into_the_words() -> None:
    sheet = Sheet(tell(world().happenings or ()))
    notes = [
        label.runs[0][0]
        for spot in sheet.spots
        for label in spot.labels
        if sheet.story.moments[spot.row.first].node == FIRST
    ]
    assert any("led by" in note for note in notes)
    room = sheet.words_x - sheet.beside(FIRST, right=True, gap=18)
    assert all(width_of(note, 11, bold=True) <= room for note in notes)


def test_the_lanes_names_fit_into_their_boxes_wherever_they_stand() -> None:
    picture = ElementTree.fromstring(draw(world().happenings or (), title="t"))
    found = list(picture)
    boxes = [
        (float(box.attrib["width"]), "".join(name.itertext()), name.attrib["class"])
        for box, name in pairwise(found)
        if box.tag == f"{SVG}rect" and name.tag == f"{SVG}text" and "".join(name.itertext()) == "operator 1"
    ]
    assert len(boxes) > 2
    for width, name, style in boxes:
        assert width_of(name, 14 if "big" in style else 12, bold=True) < width


def test_an_operator_has_one_name_and_nothing_is_a_minus_one() -> None:
    violation = f"order-answered-wrongly: p1 settled to add n4 of p1 by operator {FIRST}"
    picture = draw(world().happenings or (), title="t", violation=violation)
    assert says(picture, "operator 1")
    assert not re.search(rf"\b(n|operator ){FIRST}\b", picture)
    assert not re.search(r"[a-z] -1\b", picture)
    assert says(picture, "of p1 by operator 1")


def test_nothing_is_said_twice() -> None:
    said = " ".join(draw(world().happenings or (), title="t").split())
    for word in ("shard", "snapshot", "standing", "reconfiguration"):
        assert f"{word} {word}" not in said
    assert "frames" not in said


@pytest.mark.parametrize("state", ["e0 v0 knowing nothing yet", ""])
def test_whatever_an_operator_was_before_a_restart_nothing_dangles(state: str) -> None:
    told = [
        operator(0.0, "started", state=state),
        Happening(0.5, FIRST, "crashed"),
        Happening(1.0, FIRST, "restarted"),
        operator(1.0, "started", state="e0 v0 knowing nothing yet"),
    ]
    picture = draw(told, title="t")
    assert not any(re.search(r"before:\s*$", text) for text in texts(picture))
    assert says(picture, "knowing nothing yet")


def test_the_store_is_called_so() -> None:
    told = Happening(0.0, 1, "woke", 3, state="n1 follower e1 log 0..2 commit 2", in_store=True)
    picture = draw([told], title="t", subtitle="s", violation="commit-regressed: p3 n1: from 2 to 1")
    assert says(picture, "s · the operators' store, itself a raft group")
    assert says(picture, "commit-regressed: store n1: from 2 to 1")
    assert not says(picture, "partition 3")


def test_orders_for_other_partitions_are_not_told() -> None:
    told = [
        Happening(0.0, 1, "woke", 0, state="n1 follower e1 log 0..2 commit 2"),
        Happening(0.1, 0, "commanded", text=f"operator {FIRST}: p1 swap without n1 with n4/1"),
        Happening(0.2, 0, "commanded", text=f"operator {FIRST}: p0 call off"),
    ]
    picture = draw(told, title="t", partition=0)
    assert says(picture, "operator 1: p0 call off")
    assert not says(picture, "swap without")


# ---- of isr ----

TOLD = "partition-told epoch 2 state e2 (v3) led by n1, isr {n1,n2} of {n1,n2} answer yes"
CONTROLLER_NOW = "controller v3 e2 (v3) led by n1, isr {n1,n2} of {n1,n2}"
FETCHED = "fetch-response epoch 2 session 5 number 1 prev 2-0 commit 0"


def controlled() -> list[Happening]:
    return [
        Happening(0.0, FIRST, "started", 0, state=CONTROLLER_NOW),
        Happening(0.1, 1, "started", 0, state="n1 waiting e2 log 0..0 commit 0"),
        Happening(0.2, 2, "started", 0, state="n2 follower e2 log 0..0 commit 0"),
    ]


def fetching(at: float, count: int) -> list[Happening]:
    """A follower is answered again and again that there is nothing new."""
    return [
        Happening(at + 0.001 * number, 2, "received", 0, FETCHED, 100 + number, 1) for number in range(count)
    ]


def test_answers_to_fetches_are_routine_and_no_refusals() -> None:
    picture = draw([*controlled(), *fetching(1.0, 40)], title="t")
    assert "refused" not in picture
    assert says(picture, "40 happenings left out")


@pytest.mark.parametrize(
    "text", [TOLD, "alter-isr epoch 2 partition_epoch 3 isr (n1)", "report-leader epoch 2"]
)
def test_what_is_said_to_and_by_a_controller_gets_a_row(text: str) -> None:
    told = Happening(1.5, 2, "received", 0, text, 99, FIRST)
    story = tell([*controlled(), *fetching(1.0, 40), told, *fetching(2.0, 40)])
    assert f"received {text.split()[0]}" in shown(story)


def test_a_controller_that_repeats_itself_to_nobody_gets_no_rows() -> None:
    repeated = [
        Happening(1.0 + number, FIRST, what, 0, text, message, peer)
        for number in range(9)
        for what, text, message, peer in (("woke", "", 0, 0), ("sent", TOLD, 50 + number, 2))
    ]
    assert "woke" not in shown(tell([*controlled(), *repeated]))


def test_the_legend_speaks_of_controllers_where_there_are_some() -> None:
    picture = draw(controlled(), title="t")
    assert says(picture, "controller: says who leads, and agrees to who is in sync")
    assert says(picture, "waiting: knows of nobody to follow")
    assert not says(picture, "fences, elects")
    assert says(draw(world().happenings or (), title="t"), "operator: fences, elects and reconfigures")


def test_the_legend_has_every_epoch_in_which_a_lane_comes_to_a_row() -> None:
    """Epoch 5 begins in what a long story leaves out, and is a lane's colour below it."""
    early = [
        Happening(0.001 * number, 2, "woke", 0, state=f"n2 follower e{epoch} log 0..0 commit 0")
        for epoch in range(3, 6)
        for number in range(10 * epoch, 10 * epoch + 10)
    ]
    story = tell([*early, *writing(1.0, 900)], rows_max=4)
    hidden = [place for row in story.rows if row.gap for place in range(row.first, row.last + 1)]
    assert all(place in hidden for place, moment in enumerate(story.moments) if moment.node == 2)
    assert epochs_of(Sheet(story)) == [2, 5]
