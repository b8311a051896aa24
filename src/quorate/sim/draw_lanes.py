"""The body of the story diagram: lanes, what befell them, messages, clients, and the words of every row."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from quorate.sim import draw_ink as ink
from quorate.sim.draw_links import cut_rails, rail_words
from quorate.sim.draw_moments import (
    OVERSEERS,
    UNKNOWN,
    Arrival,
    Journey,
    Moment,
    Sort,
    State,
    links_of,
    split_orders,
)
from quorate.sim.draw_sheet import LINE, MARGIN, NAMES_HEIGHT, Label, Sheet, Spot
from quorate.sim.draw_words import FAULT_MARKS, kind_of

REACH = 7.0
"""Arrows begin and end this far from the middle of a lane."""
NEVER = float("inf")


class Look(msgspec.Struct, frozen=True, gc=False):
    """How a stretch of a lane is drawn."""

    role: str = ""
    epoch: int = 0
    condition: str = "up"


def body(sheet: Sheet) -> str:
    """Everything between the lane heads and the end, back to front."""
    return "".join(
        [
            *rows_ground(sheet),
            *cut_rails(sheet),
            *(part for spot in sheet.spots for part in client_arrows(sheet, spot)),
            *(part for node in sheet.lanes for part in lane(sheet, node)),
            *gap_veils(sheet),
            *rail_words(sheet),
            *(part for journey in sheet.story.journeys.values() for part in messages(sheet, journey)),
            *(part for spot in sheet.spots for part in row(sheet, spot)),
        ]
    )


# ---- the ground ----


def rows_ground(sheet: Sheet) -> Iterator[str]:
    """Stripes and hairlines, so that the eye finds from a lane to the time and the words of its row."""
    inner = sheet.width - 2 * MARGIN + 16
    for place, spot in enumerate(sheet.spots):
        if place % 2 and not spot.row.gap:
            yield ink.rectangle(MARGIN - 8, spot.top, inner, spot.height, fill="#f5f7f9")
    if sheet.has_clients:
        yield ink.line(
            sheet.client_x, sheet.top, sheet.client_x, sheet.bottom, stroke=ink.FAINT, stroke_width=2
        )


def gap_veils(sheet: Sheet) -> Iterator[str]:
    inner = sheet.words_x - MARGIN + 4
    for spot in sheet.spots:
        if spot.row.gap:
            yield ink.rectangle(
                MARGIN - 8, spot.top, inner, spot.height, fill="#ffffff", opacity="0.72"
            ) + ink.line(
                MARGIN - 8,
                spot.top + spot.height / 2,
                sheet.words_x - 8,
                spot.top + spot.height / 2,
                stroke=ink.FAINT,
                stroke_width=6,
                stroke_dasharray="1.5 7",
            )


# ---- lanes ----


def looks(sheet: Sheet, node: int) -> list[tuple[float, Look]]:
    """(from which position on, how) for one node, from the beginning of the story."""
    found: list[tuple[float, Look]] = [(-1, Look())]
    state, condition, until = UNKNOWN, "up", NEVER
    for place, moment in enumerate(sheet.story.moments):
        if moment.at >= until or ends_everything(moment):
            # Nobody tells when a pause is over, and the end of all faults ends it too.
            condition, until = "up" if condition == "paused" else condition, NEVER
            if found[-1][1].condition == "paused":
                found.append((place - 0.5, Look(state.role, state.epoch)))
        if moment.node != node:
            continue
        if moment.has(Sort.CRASHED, Sort.POWER_LOST, Sort.WIPED):
            state, condition, until = UNKNOWN, "down", NEVER
        elif moment.has(Sort.PAUSED):
            condition, until = "paused", moment.at + seconds_in(moment.happenings[0].text)
        elif moment.has(Sort.RESTARTED, Sort.RESUMED):
            condition, until = "up", NEVER
        if condition != "down" and moment.states_itself:
            state = moment.after
        look = Look(state.role, state.epoch, condition)
        if look != found[-1][1]:
            found.append((place, look))
    return found


def ends_everything(moment: Moment) -> bool:
    return moment.has(Sort.LINK_HEALED) and not links_of(moment.happenings[0])


def seconds_in(text: str) -> float:
    """How long `for 0.250s` says; for ever where nothing is said."""
    found = re.search(r"for ([\d.]+) ?s", text)
    return float(found[1]) if found else NEVER


def lane(sheet: Sheet, node: int) -> Iterator[str]:
    x = sheet.lanes[node]
    found = looks(sheet, node)
    ends = [place for place, _ in found[1:]]
    for (place, look), end in zip(found, [*ends, len(sheet.story.moments)], strict=True):
        top, bottom = sheet.y_of(place), sheet.y_of(end)
        if bottom > top:
            yield lane_piece(x, top, bottom, look)


def lane_piece(x: float, top: float, bottom: float, look: Look) -> str:
    colour = ink.colour_of(look.epoch)
    if look.condition == "down":
        return ink.rectangle(
            x - 7, top, 14, bottom - top, fill="url(#down)", stroke="#9aa5ad", stroke_dasharray="3 3"
        )
    shades = ""
    if look.condition == "paused":
        shades = ink.rectangle(x - 9, top, 18, bottom - top, fill="url(#paused)")
    return shades + ink.line(x, top, x, bottom, stroke=colour, **lane_stroke(look.role))


def lane_stroke(role: str) -> dict[str, str | float]:
    if "leader" in role:
        return {"stroke_width": 9.0}
    if role in OVERSEERS:
        return {"stroke_width": 5.0, "stroke_dasharray": "1 4"}
    if role in ("fenced", "waiting"):
        return {"stroke_width": 2.5, "stroke_dasharray": "8 4"}
    if "candidate" in role:
        return {"stroke_width": 5.0, "stroke_dasharray": "5 3"}
    if "learner" in role or not role:
        return {"stroke_width": 2.5, "stroke_dasharray": "2 3"}
    return {"stroke_width": 2.5}


# ---- messages ----


def messages(sheet: Sheet, journey: Journey) -> Iterator[str]:
    """An arrow for every arrival of the message, as far as one of its ends is shown."""
    if journey.sender not in sheet.lanes or journey.receiver not in sheet.lanes:
        return
    sent_shown = journey.sent is not None and sheet.is_shown(journey.sent)
    for arrival in journey.arrivals:
        arrived_shown = not arrival.lost and sheet.is_shown(arrival.place)
        if sent_shown or arrived_shown:
            yield message(sheet, journey, arrival)
    if sent_shown and not journey.arrivals:
        yield underway(sheet, journey)


def ends_of(sheet: Sheet, journey: Journey) -> tuple[float, float, float]:
    """x of both ends, and y of the sending one."""
    source, target = sheet.lanes[journey.sender], sheet.lanes[journey.receiver]
    side = 1.0 if target > source else -1.0
    y = sheet.y_of(journey.sent) if journey.sent is not None else sheet.top
    return source + side * REACH, target - side * REACH, y


def sender_epoch(sheet: Sheet, journey: Journey) -> int:
    return sheet.story.moments[journey.sent].after.epoch if journey.sent is not None else 0


def tip_of(sheet: Sheet, journey: Journey, fate: str) -> str:
    names = sheet.story.names
    way = f"{names.of(journey.sender)} → {names.of(journey.receiver)}"
    return f"{way}: {names.put(journey.text) or 'a message'} (#{journey.number}), {fate}"


def message(sheet: Sheet, journey: Journey, arrival: Arrival) -> str:
    x1, x2, y1 = ends_of(sheet, journey)
    y2 = sheet.y_of(arrival.place)
    colour = ink.colour_of(sender_epoch(sheet, journey))
    tip = tip_of(sheet, journey, "lost on the way" if arrival.lost else "received")
    if not arrival.lost:
        return ink.arrow(x1, y1, x2, y2, colour=colour, tip=tip)
    share = 0.6 if y2 - y1 < 3 * LINE else 0.85
    y2 = min(max(y2, y1 + LINE), y1 + 8 * LINE)
    return ink.lost_arrow(x1, y1, x1 + share * (x2 - x1), y2, colour=colour, tip=tip)


def underway(sheet: Sheet, journey: Journey) -> str:
    """A message that has neither arrived nor been lost when the story ends."""
    x1, x2, y1 = ends_of(sheet, journey)
    tip = tip_of(sheet, journey, "still on its way")
    middle = x1 + 0.45 * (x2 - x1)
    y2 = min(y1 + 2 * LINE, sheet.bottom)
    colour = ink.colour_of(sender_epoch(sheet, journey))
    return ink.arrow(x1, y1, middle, y2, colour=colour, tip=tip, stroke_dasharray="2 4")


# ---- rows ----


def row(sheet: Sheet, spot: Spot) -> Iterator[str]:
    if spot.named:
        yield from lane_names(sheet, spot.top - NAMES_HEIGHT / 2)
    if spot.silence:
        yield ink.words(
            sheet.time_x,
            spot.top - (NAMES_HEIGHT if spot.named else 0) - 3,
            f"≈ {spot.silence} idle",
            "small muted end",
        )
    for number, runs in enumerate(spot.narration):
        y = spot.top + (16 if spot.row.gap else 18) + number * LINE
        yield ink.run_words(sheet.words_x, y, runs, "muted" if spot.row.gap else "")
    if spot.row.gap:
        return
    moment = sheet.story.moments[spot.row.first]
    yield ink.words(sheet.time_x, spot.anchor + 4, spot.time, "small muted end")
    if moment.has(Sort.VIOLATED) and not moment.node:
        yield from guilty_marks(sheet, spot, moment)
    if moment.node not in sheet.lanes:
        return
    x = sheet.lanes[moment.node]
    yield dot(x, spot.anchor, moment)
    yield from arrow_label(sheet, spot, moment)
    yield from labels(sheet, spot, moment)


def lane_names(sheet: Sheet, y: float) -> Iterator[str]:
    """The names of the lanes, in passing."""
    for node, x in sheet.lanes.items():
        name = sheet.story.names.of(node)
        wide = max(30.0, ink.width_of(name, bold=True) + 12)
        yield ink.rectangle(x - wide / 2, y - 9, wide, 18, rx=5, fill="#e4e9ee") + ink.words(
            x, y + 4, name, "bold middle"
        )


def guilty_marks(sheet: Sheet, spot: Spot, moment: Moment) -> Iterator[str]:
    """The world's verdict names nodes: their lanes get the mark."""
    names = sheet.story.names
    for node, x in sheet.lanes.items():
        if is_named(names.of(node), names.put(moment.happenings[0].text)):
            yield ink.mark("violation", x, spot.anchor)


def is_named(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def dot(x: float, y: float, moment: Moment) -> str:
    for sort in moment.sorts:
        if sort in FAULT_MARKS:
            return ink.mark(FAULT_MARKS[sort], x, y)
    colour = ink.colour_of(moment.after.epoch)
    return ink.element("circle", cx=x, cy=y, r=4, fill="#ffffff", stroke=colour, stroke_width=2)


def client_arrows(sheet: Sheet, spot: Spot) -> Iterator[str]:
    """Requests and answers, one below the other; of many, the last arrow says how many more there were."""
    moment = sheet.story.moments[spot.row.first]
    if spot.row.gap or moment.node not in sheet.lanes:
        return
    x, y = sheet.lanes[moment.node], spot.anchor
    room = min(sheet.lanes.values()) - sheet.client_x - 40
    clients = [pair for pair in moment.pairs if pair[1] in (Sort.PROPOSED, Sort.ANSWERED)]
    for number, (happening, sort) in enumerate(clients[: spot.clients_count], start=1):
        asked = sort is Sort.PROPOSED
        ends = (sheet.client_x + 5, x - REACH) if asked else (x - REACH, sheet.client_x + 5)
        name = sheet.story.names.of(moment.node)
        tip = f"client → {name}: " if asked else f"{name} → client: "
        dash: dict[str, str | float] = {} if asked else {"stroke_dasharray": "7 3"}
        yield ink.arrow(ends[0], y, ends[1], y, colour=ink.INK, tip=tip + happening.text, **dash)
        more = len(clients) - number if number == spot.clients_count else 0
        text = f"{more + 1} more answers" if more else split_orders(happening)[0]
        yield ink.words(sheet.client_x + 16, y - 4, ink.shorten(text, room, 11), "small halo")
        y += LINE


def arrow_label(sheet: Sheet, spot: Spot, moment: Moment) -> Iterator[str]:
    """What arrived, at the tip of its arrow, where the labels are on the other side."""
    happening = moment.happenings[0]
    if moment.sorts[0] is not Sort.RECEIVED or happening.peer not in sheet.lanes:
        return
    from_right = happening.peer > moment.node
    if from_right != spot.right:
        x = sheet.beside(moment.node, right=from_right)
        side = "" if from_right else "end "
        yield ink.words(x, spot.anchor + LINE, kind_of(happening.text), f"{side}small muted halo")


def labels(sheet: Sheet, spot: Spot, moment: Moment) -> Iterator[str]:
    gap = 18 if any(sort in FAULT_MARKS for sort in moment.sorts) else 14
    x = sheet.beside(moment.node, right=spot.right, gap=gap)
    for number, label in enumerate(spot.labels):
        y = spot.anchor + spot.baseline + number * LINE
        if label.pill:
            yield pill(x, y, label.runs[0][0], moment.after, right=spot.right)
        else:
            yield label_words(x, y, label, right=spot.right)


def label_words(x: float, y: float, label: Label, *, right: bool) -> str:
    return ink.run_words(x, y, label.runs, "small halo" if right else "small halo end")


def pill(x: float, y: float, text: str, state: State, *, right: bool) -> str:
    """A role and its epoch: filled for a leader, outlined for the others."""
    wide = ink.width_of(text, 11, bold=True) + 14
    left = x if right else x - wide
    colour = ink.colour_of(state.epoch)
    leads = "leader" in state.role
    box = ink.rectangle(
        left, y - 10.5, wide, 14, rx=7, fill=colour if leads else "#ffffff", stroke=colour, stroke_width=1.3
    )
    style = "small middle white" if leads else "small middle bold"
    fill = {} if leads else {"style": f"fill:{colour}"}
    return box + ink.words(left + wide / 2, y, text, style, **fill)
