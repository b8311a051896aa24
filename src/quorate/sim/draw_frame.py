"""Around the story: title, how to read it, the legend, the heads of the lanes, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorate.sim import draw_ink as ink
from quorate.sim.draw_lanes import Look, is_named, lane_piece, looks, pill
from quorate.sim.draw_moments import CONTROLLER, OPERATOR, UNKNOWN, Sort, State
from quorate.sim.draw_sheet import HEADS_HEIGHT, LINE, MARGIN, Sheet, note_lines
from quorate.sim.draw_story import Row
from quorate.sim.draw_words import FAULT_MARKS, check_of
from quorate.sim.happening import OPERATOR_FIRST

HOW_TO_READ = (
    "Each vertical line is one node, and time runs downwards. Every row is one moment; the words on its "
    "right tell it once more. A slanted arrow is a message, from the node that sent it to the node that "
    "received it later; one that ends in a red cross never arrived. The nodes keep copies of one log of "
    "numbered entries. A thick line leads: it takes the clients' writes, and the others get them from it. "
    "The colour is the epoch, the number of a leadership: a higher epoch wins, and whoever led in an older "
    "one must yield. Beside a line stands what has just changed: the role and its epoch, the offsets that "
    "the log holds, and commit, up to which everything is settled for good. The distance between rows is "
    "not to scale. Point at an arrow to see its whole message."
)
EPOCHS_SHOWN_MAX = 8
THEME_WIDTH = 110.0
SAMPLE_WIDTH = 54.0
LEGEND_LINE = 27.0

FAULT_NAMES = {
    "crash": "crashed",
    "power": "power lost, and unflushed writes",
    "restart": "started",
    "pause": "paused",
    "resume": "resumed",
    "damage": "bytes on disk damaged",
    "wipe": "disk wiped",
    "trouble": "other trouble",
    "violation": "here the promise broke",
}

OVERSIGHT = {
    OPERATOR: ("fenced: takes no part until it is told to", "fences, elects and reconfigures"),
    CONTROLLER: ("waiting: knows of nobody to follow", "says who leads, and agrees to who is in sync"),
}
"""How a replica is called that neither leads nor follows, and what its overseer does."""

Sample = Callable[[float, float], str]
"""Draws a legend's example around a point, about 44 wide."""


def head(sheet: Sheet, *, title: str, subtitle: str, violation: str | None) -> tuple[float, str]:
    """Title, verdict, explanation and legend; and where the lanes can begin."""
    room = sheet.width - 2 * MARGIN
    parts = [ink.words(MARGIN, 46, ink.shorten(title, room, 23), "title")]
    y = 70.0
    several = sheet.story.partition >= 0 and not sheet.is_scripted
    scope = f"partition {sheet.story.partition}" if several else ""
    if sheet.story.in_store:
        scope = "the operators' store, itself a raft group"
    for line in ink.wrap([(" · ".join(filter(None, [subtitle, scope])), "")], room, 14):
        parts.append(ink.run_words(MARGIN, y, line, "big muted"))
        y += 19
    if violation is not None:
        first = ink.shorten(violation.splitlines()[0] if violation else "", room - 220, 14)
        parts.append(ink.words(MARGIN, y + 2, f"It ends in a violation: {first}", "big alarm"))
        y += 21
    y += 8
    box_top = y
    y += 22
    inside = [ink.words(MARGIN + 6, y, "How to read this", "bold big")]
    y += 19
    for line in ink.wrap([(HOW_TO_READ, "")], room - 12, 12.5):
        inside.append(ink.run_words(MARGIN + 6, y, line))
        y += 17
    y, legend_parts = legend(sheet, y + 6, room)
    box = ink.rectangle(MARGIN - 8, box_top, room + 16, y - box_top, rx=8, fill="#f3f6fa", stroke="#d7dee6")
    return y + 18, "".join([*parts, box, *inside, *legend_parts])


# ---- the legend ----


def legend(sheet: Sheet, top: float, room: float) -> tuple[float, list[str]]:
    """What occurs in this picture, with an example of each, by theme."""
    parts = []
    y = top + LEGEND_LINE / 2
    for theme, samples in themes(sheet):
        x = MARGIN + 6 + THEME_WIDTH
        parts.append(ink.words(MARGIN + 6, y + 4, theme, "bold"))
        for sample, words in samples:
            wide = SAMPLE_WIDTH + ink.width_of(words) + 22
            if x + wide > MARGIN + room:
                x = MARGIN + 6 + THEME_WIDTH
                y += LEGEND_LINE
            parts.append(sample(x + 22, y) + ink.words(x + SAMPLE_WIDTH, y + 4, words))
            x += wide
        y += LEGEND_LINE
    return y - LEGEND_LINE / 2 + 12, parts


def themes(sheet: Sheet) -> Iterator[tuple[str, list[tuple[Sample, str]]]]:
    epochs = epochs_of(sheet)
    some = epochs[-1] if epochs else 1
    sorts = [sort for row in shown(sheet) for sort in sheet.story.moments[row.first].sorts]
    yield "Colours", [(epoch_sample(epoch), f"epoch {epoch}") for epoch in epochs[-EPOCHS_SHOWN_MAX:]]
    yield "Lines", list(line_samples(some, sorts, overseer=overseer_of(sheet)))
    yield "Arrows", list(arrow_samples(some, clients=sheet.has_clients))
    yield (
        "Beside a line",
        [
            (pill_sample(some), "new role or epoch"),
            (label_sample("log 3..9", "bold"), "holds offsets 3 to 9; bold: just changed"),
            (label_sample("commit 8", "muted"), "settled up to 8; pale: as before"),
            (label_sample("log 3..7", "alarm"), "red: its log was cut, or worse"),
        ],
    )
    marks = [(mark_sample(name), FAULT_NAMES[name]) for sort, name in FAULT_MARKS.items() if sort in sorts]
    if marks:
        yield "Marks", marks


def overseer_of(sheet: Sheet) -> str:
    """What whoever says who leads is called here; empty where replicas elect their leaders."""
    if max(sheet.lanes, default=0) < OPERATOR_FIRST:
        return ""
    controlled = any(moment.after.role == CONTROLLER for moment in sheet.story.moments)
    return CONTROLLER if controlled else OPERATOR


def line_samples(epoch: int, sorts: list[Sort], *, overseer: str) -> Iterator[tuple[Sample, str]]:
    yield lane_sample(Look("leader", epoch)), "leader"
    yield lane_sample(Look("follower", epoch)), "follower"
    if overseer:
        idle, does = OVERSIGHT[overseer]
        yield lane_sample(Look(idle.partition(":")[0], epoch)), idle
        yield lane_sample(Look(overseer, epoch)), f"{overseer}: {does}"
        yield lane_sample(Look("", epoch)), "not known yet"
    else:
        yield lane_sample(Look("candidate", epoch)), "candidate: asks for votes"
        yield lane_sample(Look("learner", epoch)), "learner (does not count), or not known yet"
    if Sort.CRASHED in sorts or Sort.POWER_LOST in sorts:
        yield lane_sample(Look(condition="down")), "down"
    if Sort.PAUSED in sorts:
        yield lane_sample(Look("follower", epoch, "paused")), "paused: stands still"
    if Sort.LINK_CUT in sorts:
        yield rail_sample, "cut off from other nodes"


def arrow_samples(epoch: int, *, clients: bool) -> Iterator[tuple[Sample, str]]:
    yield arrow_sample(epoch), "message"
    yield lost_sample(epoch), "lost message"
    if clients:
        yield client_sample(asked=True), "a client asks"
        yield client_sample(asked=False), "a client is answered"
    yield gap_sample, "rows left out, with their count"


def shown(sheet: Sheet) -> list[Row]:
    return [row for row in sheet.story.rows if not row.gap]


def epochs_of(sheet: Sheet) -> list[int]:
    """Those of the rows that are shown; and of the lanes, which go on through what is left out."""
    found = {sheet.story.moments[row.first].after.epoch for row in shown(sheet)}
    found.update(lane_epochs(sheet))
    return sorted(epoch for epoch in found if epoch > 0)


def lane_epochs(sheet: Sheet) -> Iterator[int]:
    """Those in whose colour a lane comes to a row, or leaves one; what is inside a gap is too short to be seen."""
    places = [row.first for row in shown(sheet)]
    for node in sheet.lanes:
        found = looks(sheet, node)
        ends = [place for place, _ in found[1:]]
        for (first, look), end in zip(found, [*ends, len(sheet.story.moments)], strict=True):
            if look.condition != "down" and any(first <= place <= end for place in places):
                yield look.epoch


def epoch_sample(epoch: int) -> Sample:
    return lambda x, y: (
        ink.rectangle(x - 18, y - 7, 36, 14, rx=7, fill=ink.colour_of(epoch))
        + ink.words(x, y + 4, f"e{epoch}", "small middle white")
    )


def pill_sample(epoch: int) -> Sample:
    state = State(role="leader", epoch=epoch)
    return lambda x, y: pill(x + 26, y + 4, f"role e{epoch}", state, right=False)


def label_sample(text: str, style: str) -> Sample:
    return lambda x, y: ink.words(x + 24, y + 4, text, f"small end {style}")


def lane_sample(look: Look) -> Sample:
    return lambda x, y: lane_piece(x, y - 11, y + 11, look)


def arrow_sample(epoch: int) -> Sample:
    return lambda x, y: ink.arrow(x - 22, y - 6, x + 22, y + 6, colour=ink.colour_of(epoch), tip="a message")


def lost_sample(epoch: int) -> Sample:
    return lambda x, y: ink.lost_arrow(
        x - 22, y - 6, x + 14, y + 4, colour=ink.colour_of(epoch), tip="a lost message"
    )


def client_sample(*, asked: bool) -> Sample:
    if asked:
        return lambda x, y: ink.arrow(x - 22, y, x + 22, y, colour=ink.INK, tip="a client asks")
    return lambda x, y: ink.arrow(
        x + 22, y, x - 22, y, colour=ink.INK, tip="a client is answered", stroke_dasharray="7 3"
    )


def mark_sample(name: str) -> Sample:
    return lambda x, y: ink.mark(name, x, y)


def rail_sample(x: float, y: float) -> str:
    return ink.rectangle(x - 3, y - 11, 6, 22, fill="url(#cut)")


def gap_sample(x: float, y: float) -> str:
    return ink.line(x - 22, y, x + 22, y, stroke=ink.FAINT, stroke_width=6, stroke_dasharray="1.5 7")


# ---- the lanes' two ends ----


def lane_heads(sheet: Sheet) -> str:
    parts = []
    y = sheet.top - HEADS_HEIGHT / 2
    times = "line, seconds" if sheet.is_scripted else "seconds"
    parts.append(ink.words(sheet.time_x, y + 4, times, "small muted end"))
    if sheet.has_clients:
        parts.append(name_box(sheet.client_x, y, "clients", 60))
    for node, x in sheet.lanes.items():
        name = sheet.story.names.of(node)
        parts.append(name_box(x, y, name, name_width(name)))
    parts.append(ink.words(sheet.words_x, y + 4, "What happened", "bold big"))
    return "".join(parts)


def name_width(name: str) -> float:
    return max(46.0, ink.width_of(name, 14, bold=True) + 16)


def name_box(x: float, y: float, text: str, wide: float, fill: str = ink.INK) -> str:
    return ink.rectangle(x - wide / 2, y - 13, wide, 26, rx=6, fill=fill) + ink.words(
        x, y + 5, text, "big middle white"
    )


def last_states(sheet: Sheet) -> dict[int, State]:
    states = dict.fromkeys(sheet.lanes, UNKNOWN)
    for moment in sheet.story.moments:
        if moment.node in states:
            states[moment.node] = moment.after
    return states


def ending(sheet: Sheet, violation: str | None) -> tuple[float, str]:
    """How every node stood at the end, the violation, what is left out; and the height of the sheet."""
    y = sheet.bottom + 18
    parts = []
    for node, state in last_states(sheet).items():
        x = sheet.lanes[node]
        name = sheet.story.names.of(node)
        fill = ink.ALARM if is_named(name, violation or "") else ink.INK
        parts.append(name_box(x, y, name, name_width(name), fill))
        down = "down; was " if looks(sheet, node)[-1][1].condition == "down" else ""
        notes = note_lines(sheet.story.names.put(state.notes))
        lines = [f"{down}{state.title}", state.log, state.settled, *notes]
        for place, text in enumerate(text for text in lines if text and state != UNKNOWN):
            parts.append(
                ink.words(x, y + 30 + place * LINE, text, "small middle" + (" bold" if not place else ""))
            )
    parts.append(ink.words(sheet.words_x, y + 4, "How they stood at the end", "bold"))
    y += 30 + 5 * LINE
    if violation is not None:
        y, banner_part = banner(sheet, y + 8, violation)
        parts.append(banner_part)
    if sheet.story.elsewhere:
        note = f"{sheet.story.elsewhere} happenings of other partitions are not drawn."
        parts.append(ink.words(MARGIN, y + 18, note, "small muted"))
        y += 20
    return y + MARGIN, "".join(parts)


def banner(sheet: Sheet, top: float, violation: str) -> tuple[float, str]:
    """What must never happen and did, and what the check that saw it is about."""
    room = sheet.width - 2 * MARGIN
    paragraphs = [(text, "big white") for text in violation.splitlines()]
    if check := check_of(violation):
        paragraphs.append((f"What is checked: {check}", "white plain"))
    lines = [(line, style) for text, style in paragraphs for line in ink.wrap([(text, "")], room - 190, 15)]
    height = 26 + max(1, len(lines)) * 20
    parts = [ink.rectangle(MARGIN - 8, top, room + 16, height, rx=8, fill=ink.ALARM)]
    parts.append(ink.words(MARGIN + 10, top + 28, "VIOLATION", "title white"))
    for place, (line, style) in enumerate(lines):
        parts.append(ink.run_words(MARGIN + 160, top + 27 + place * 20, line, style))
    return top + height, "".join(parts)
