"""Where everything stands on the sheet: columns for time, clients, nodes and words; a height for every row.

Time runs downwards and is not to scale: each row takes the room that its words need. Beside a lane a row's
labels stand on the side that has fewer arrows, above those that leave and below those that arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from quorate.sim.draw_ink import width_of, wrap
from quorate.sim.draw_moments import OPERATOR, UNKNOWN, Moment, Sort
from quorate.sim.draw_story import Row, Story
from quorate.sim.draw_words import Run, fault_label, gap_words, kind_of, narrate, time_words
from quorate.sim.happening import Names

MARGIN = 28.0
TIME_WIDTH = 72.0
CLIENT_WIDTH_MIN = 150.0
WORDS_WIDTH = 500.0
LANE_WIDTH_MIN = 150.0
LANE_WIDTH_MAX = 260.0
LINE = 15.0
PAD = 9.0
HEADS_HEIGHT = 44.0
NAMES_EVERY = 700.0
"""Whoever scrolls should not have to scroll back to know the lanes."""
NAMES_HEIGHT = 24.0
IDLE_SECONDS = 0.05
"""A longer silence than this between two rows is pointed out."""
WORDS_LINES_MAX = 4
NOTES_WIDTH = 140.0
"""What an operator does is told in several short lines, or it would reach into the words."""
CLIENT_ARROWS_MAX = 3
"""More answers than this in one moment are told in words only."""


class Label(msgspec.Struct, frozen=True, gc=False):
    """One line beside a lane. `pill` is a role in its epoch's colour; else plain words."""

    runs: tuple[Run, ...]
    pill: bool = False


class Spot(msgspec.Struct):
    """One row on the sheet."""

    row: Row
    top: float = 0.0
    height: float = 0.0
    anchor: float = 0.0
    """Where the row meets its lane."""
    narration: list[list[Run]] = []
    labels: list[Label] = []
    right: bool = True
    """On which side of the lane the labels stand."""
    baseline: float = 4.0
    """Of the first label, from the anchor: above an arrow that leaves, below one that arrives, or level."""
    clients_count: int = 0
    """Arrows from and to clients, one below the other."""
    named: bool = False
    """The lanes' names stand above this row once more."""
    time: str = ""
    """What stands on the left: the second, where it is another than above; or the line of a scenario."""
    silence: str = ""
    """The idle time before this row, if it is worth a word."""


class Sheet:
    """Columns and rows of one story."""

    top = 0.0
    bottom = 0.0

    def __init__(self, story: Story) -> None:
        self.story = story
        self.has_clients = any(
            story.moments[row.first].has(Sort.PROPOSED, Sort.ANSWERED) for row in story.rows if not row.gap
        )
        self.is_scripted = any(moment.has(Sort.SCRIPTED) for moment in story.moments)
        self.has_rails = any(moment.has(Sort.LINK_CUT) for moment in story.moments)
        self.spots = [self._spot(row) for row in story.rows]
        self.lane_width = self._lane_width()
        self.time_x = MARGIN + TIME_WIDTH
        self.client_x = self.time_x + 40
        first = (
            self.time_x + self.lane_width
            if not self.has_clients
            else self.client_x + max(CLIENT_WIDTH_MIN, self.lane_width)
        )
        self.lanes = {node: first + place * self.lane_width for place, node in enumerate(story.nodes)}
        self.words_x = first + len(story.nodes) * self.lane_width - 10
        self.width = self.words_x + WORDS_WIDTH + MARGIN
        self._shown = frozenset(row.first for row in story.rows if not row.gap)
        self._places: list[float] = []

    def y_of(self, place: float) -> float:
        """Where on the sheet a position in the story is: exact for rows, evenly spread inside gaps."""
        low = int(place)
        if place < 0:
            return self.top
        if low >= len(self._places):
            return self.bottom
        if place == low:
            return self._places[low]
        after = self._places[low + 1] if low + 1 < len(self._places) else self.bottom
        return (self._places[low] + after) / 2

    def beside(self, node: int, *, right: bool, gap: float = 12.0) -> float:
        """Where words beside a lane begin (or, on the left, end)."""
        return self.lanes[node] + (gap if right else -gap - (10 if self.has_rails else 0))

    def spot_of(self, place: int) -> Spot:
        """The row that shows a moment, or leaves it out."""
        return self.spots[bisect_right(self.spots, place, key=lambda spot: spot.row.first) - 1]

    def is_shown(self, place: float) -> bool:
        return int(place) in self._shown

    # ---- rows ----

    def _spot(self, row: Row) -> Spot:
        if row.gap:
            return Spot(row, narration=wrap([(gap_words(self.story, row), "muted")], WORDS_WIDTH - 10))
        moment = self.story.moments[row.first]
        narration = wrap(narrate(moment, self.story), WORDS_WIDTH - 10)
        if len(narration) > WORDS_LINES_MAX and not moment.has(Sort.SCRIPTED):
            narration = narration[:WORDS_LINES_MAX]
            text, style = narration[-1][-1]
            narration[-1][-1] = (text.rstrip() + " …", style)
        return Spot(row, narration=narration, labels=list(labels_of(moment, self.story.names)))

    def _lane_width(self) -> float:
        widths = [
            width_of("".join(text for text, _ in label.runs), 12, bold=True)
            for spot in self.spots
            for label in spot.labels
        ]
        return min(max([LANE_WIDTH_MIN, *(width + 44 for width in widths)]), LANE_WIDTH_MAX)

    def stack(self, top: float) -> None:
        """Gives every row its place below `top`, which leaves room for the lanes' heads."""
        top += HEADS_HEIGHT
        self.top = top
        before: float | None = None
        named = top
        time = ""
        for spot in self.spots:
            moment = self.story.moments[spot.row.first]
            if not spot.row.gap:
                now = f"{moment.at:.4f}"
                spot.time = now if now != time else ""
                time = now
            if moment.has(Sort.SCRIPTED):
                spot.time = moment.happenings[0].what
            if before is not None and moment.at - before > IDLE_SECONDS and not spot.row.gap:
                spot.silence = time_words(moment.at - before)
                top += LINE
            before = self.story.moments[spot.row.last].at
            if top - named > NAMES_EVERY:
                spot.named = True
                top += NAMES_HEIGHT
                named = top
            self._arrange(spot, moment)
            spot.top = top
            spot.anchor = top + PAD + 4 + max(0.0, 4 - spot.baseline)
            last = spot.baseline + (len(spot.labels) - 1) * LINE
            tail = LINE if not spot.row.gap and moment.has(Sort.RECEIVED) else 0
            tail = max(tail, (spot.clients_count - 1) * LINE)
            beside = spot.anchor - top + max(last, tail)
            spot.height = max(beside, len(spot.narration) * LINE + 4) + PAD
            top += spot.height
        self.bottom = top + PAD
        self._places = self._place_table()

    def _arrange(self, spot: Spot, moment: Moment) -> None:
        """Chooses the side and the direction for a row's labels."""
        if spot.row.gap or moment.node not in self.lanes:
            return
        leaving = self._goes_right(moment, Sort.SENT)
        coming = self._goes_right(moment, Sort.RECEIVED)
        asked = sum(sort in (Sort.PROPOSED, Sort.ANSWERED) for sort in moment.sorts)
        spot.clients_count = min(asked, CLIENT_ARROWS_MAX)
        both = leaving + coming + [False] * spot.clients_count
        spot.right = both.count(True) <= both.count(False)
        if spot.right in coming:
            # What arrived stands first, at the tip of its arrow.
            spot.labels.insert(0, Label(((kind_of(moment.happenings[0].text), "muted"),)))
            spot.baseline = LINE
        elif not spot.right and spot.clients_count:
            spot.baseline = LINE * spot.clients_count
        elif spot.right in leaving:
            spot.baseline = 6 - len(spot.labels) * LINE

    def _goes_right(self, moment: Moment, sort: Sort) -> list[bool]:
        return [
            happening.peer > moment.node
            for happening, found in moment.pairs
            if found is sort and happening.peer in self.lanes and happening.message
        ]

    def _place_table(self) -> list[float]:
        places: list[float] = []
        for spot in self.spots:
            count = spot.row.last - spot.row.first + 1
            if not spot.row.gap:
                places.append(spot.anchor)
                continue
            step = spot.height / (count + 1)
            places.extend(spot.top + step * (number + 1) for number in range(count))
        return places


def note_lines(notes: str) -> list[str]:
    lines = wrap([(notes, "bold")], NOTES_WIDTH, 11)
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def labels_of(moment: Moment, names: Names) -> Iterator[Label]:
    """What stands beside a lane at a moment: the fault, then what changed of role, epoch, log and commit."""
    if fault := fault_label(moment):
        yield Label(((fault, "alarm" if moment.has(Sort.VIOLATED) else "amber"),))
    if not moment.changes or not moment.node:
        return
    before, after = (UNKNOWN if moment.returns else moment.before), moment.after
    if (before.role, before.epoch) != (after.role, after.epoch):
        yield Label(((after.title, ""),), pill=True)
    runs: list[Run] = []
    if after.log:
        changed = (before.first, before.last) != (after.first, after.last)
        runs.append((after.log, "alarm" if moment.cuts else "bold" if changed else "muted"))
    if after.commit is not None:
        fell = before.commit is not None and after.commit < before.commit
        style = "alarm" if fell else "bold" if after.commit != before.commit else "muted"
        runs.append((f"  {after.settled}", style))
    if runs and (before.first, before.last, before.commit) != (after.first, after.last, after.commit):
        yield Label(tuple(runs))
    if after.notes != before.notes:
        calm = not after.notes or after.role == OPERATOR
        for line in note_lines(names.put(after.notes) or "whole again"):
            yield Label(((line, "bold" if calm else "alarm"),))
