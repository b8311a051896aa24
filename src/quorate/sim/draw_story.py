"""Which moments of a world's story are drawn: one partition's, without its quiet stretches, and not too many.

A *row* of the picture is one moment, or a *gap*: moments in which nothing changed (heartbeats, mostly), with
their count. Of a long story the end gets rows, and before it only its turns: faults, elections, cuts, changes
of the ensemble.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from quorate.sim.draw_moments import Journey, Moment, Sort, gather, plain, sort_of, state_of
from quorate.sim.happening import OPERATOR_FIRST, USUAL, Happening, Names

ROWS_MAX = 150
GAP_MOMENTS_MIN = 3
"""Fewer quiet moments than this are shown: a gap would take as much room."""
RESHAPING_SHARE = 0.8
"""Of the rows that turns get, at most so many tell how the ensemble changed."""
ALIKE_MAX = 3
"""Of turns that look the same, so many are shown; a full disk can refuse a thousand times."""
TELLING_WORDS = re.compile(
    "vote|elect|reject|refus|conflict|snapshot-chunk|repair|damage|want-|have-|fence|stale"
    "|become-|add-follower|truncate-|reconfiguration-|snapshot-re|write-shard"
    "|partition-told|alter-isr|report-leader",
    re.IGNORECASE,
)
"""A message with one of these is worth a row though it changed nothing."""
REPEATED = "partition-told"
"""Said again and again to whoever does not answer: that somebody woke to say it is no news."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """Moments `first` to `last`: one moment that is shown, or a gap."""

    first: int
    last: int
    gap: bool = False
    quiet: bool = False
    """Of a gap: nothing changed in it."""


class Story(msgspec.Struct, frozen=True):
    partition: int
    nodes: tuple[int, ...]
    moments: tuple[Moment, ...]
    journeys: dict[int, Journey]
    rows: tuple[Row, ...]
    elsewhere: int
    """Happenings of other partitions, which this picture leaves out."""
    names: Names = USUAL
    in_store: bool = False
    """The partition is the operators' store."""


def tell(
    happenings: Sequence[Happening],
    *,
    partition: int | None = None,
    violation: str | None = None,
    rows_max: int = ROWS_MAX,
    names: Names = USUAL,
) -> Story:
    chosen = partition if partition is not None else choose_partition(happenings, violation)
    ours = [happening for happening in happenings if partition_of(happening) in (-1, chosen)]
    nodes = nodes_of(ours, chosen)
    kept = [happening for happening in ours if concerns(happening, nodes)]
    moments, journeys = gather(kept, chosen)
    rows = choose_rows(moments, journeys, rows_max=rows_max, violated=violation is not None)
    return Story(
        partition=chosen,
        nodes=nodes,
        moments=tuple(moments),
        journeys=journeys,
        rows=tuple(rows),
        elsewhere=len(happenings) - len(ours),
        names=names,
        in_store=any(happening.in_store for happening in ours),
    )


ORDERED = re.compile(r": p(\d+) ")


def partition_of(happening: Happening) -> int:
    """Whoever orders something in a world says only in words of which partition."""
    ordered = ORDERED.search(happening.text) if happening.what == "commanded" else None
    return int(ordered[1]) if ordered and happening.partition < 0 else happening.partition


def choose_partition(happenings: Sequence[Happening], violation: str | None) -> int:
    """The partition of the violation; or else the one whose ensemble changed most, or in which most happened."""
    for happening in reversed(happenings):
        if sort_of(happening) is Sort.VIOLATED and happening.partition >= 0:
            return happening.partition
    active = Counter(happening.partition for happening in happenings if happening.partition >= 0)
    named = [int(number) for number in re.findall(r"\bp(?:artition )?(\d+)\b", violation or "")]
    for number in named:
        if number in active:
            return number
    changed = reshaped(happenings)
    return min(active, key=lambda number: (-changed[number], -active[number], number), default=-1)


def reshaped(happenings: Sequence[Happening]) -> Counter[int]:
    """How often the ensemble of each partition changed, as operators know it."""
    found: Counter[int] = Counter()
    ensembles: dict[tuple[int, int], str] = {}
    for happening in happenings:
        if happening.node >= OPERATOR_FIRST and happening.state:
            ensemble, brace, _ = state_of(happening.state).shard.partition("}")
            known = (happening.node, happening.partition)
            if brace:
                found[happening.partition] += ensembles.get(known, ensemble) != ensemble
                ensembles[known] = ensemble
    return found


def nodes_of(happenings: Sequence[Happening], partition: int) -> tuple[int, ...]:
    """The nodes that hold the partition; all of them where none is named."""
    inside = [happening for happening in happenings if happening.partition == partition]
    found = {end for happening in inside for end in (happening.node, happening.peer) if end > 0}
    if not found:
        found = {end for happening in happenings for end in (happening.node, happening.peer) if end > 0}
    return tuple(sorted(found))


def concerns(happening: Happening, nodes: tuple[int, ...]) -> bool:
    return happening.node in (0, *nodes) and happening.peer in (0, *nodes)


# ---- which moments get a row ----


def choose_rows(
    moments: Sequence[Moment], journeys: dict[int, Journey], *, rows_max: int, violated: bool
) -> list[Row]:
    """Everything but the quiet runs; of a story too long for that, its end, and before it the turns."""
    quiet = quiet_moments(moments, journeys)
    rows = fold([not quiet[place] for place in range(len(moments))], quiet)
    if len(rows) <= rows_max:
        return rows
    detail = rows_max * 2 // 3 if violated else rows_max // 2
    tail = rows[-detail:]
    border = tail[0].first
    turns = choose_turns(moments[:border], rows_max - detail)
    return fold_turns(turns, border) + tail


def choose_turns(moments: Sequence[Moment], budget: int) -> list[int]:
    """As many turns as have room, with the gaps between them: how the ensemble changed, then the others, each
    from the latest back."""
    found = different_turns(moments)
    chosen: list[int] = []
    for wanted, room in ((True, budget * RESHAPING_SHARE), (False, budget)):
        for place in found:
            if moments[place].reshapes is not wanted:
                continue
            more = sorted([*chosen, place])
            if len(fold_turns(more, len(moments))) > room:
                break
            chosen = more
    return chosen


def different_turns(moments: Sequence[Moment]) -> list[int]:
    """The turns from the latest back, without those that happened again and again in the same way."""
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[int] = []
    for place in range(len(moments) - 1, -1, -1):
        moment = moments[place]
        if moment.turns:
            head = moment.happenings[0]
            kind = head.text.split(" ", 1)[0] if moment.reshapes else ""
            likeness = (head.node, head.what, kind, moment.after.role, moment.after.epoch)
            seen[likeness] += 1
            if seen[likeness] <= ALIKE_MAX:
                found.append(place)
    return found


def quiet_moments(moments: Sequence[Moment], journeys: dict[int, Journey]) -> list[bool]:
    """Moments in which nothing changed, and none of whose messages changed anything at the other end."""
    quiet = [is_quiet(moment) for moment in moments]
    loud_links = set()
    for journey in journeys.values():
        ends = [end.place for end in journey.arrivals if not end.lost]
        if journey.sent is not None:
            ends.append(journey.sent)
        places = [int(place) for place in ends]
        if any(moments[place].grows for place in places):
            loud_links.update(places)
    return [quiet[place] and place not in loud_links for place in range(len(moments))]


def is_quiet(moment: Moment) -> bool:
    if moment.grows or moment.turns:
        return False
    if moment.has(Sort.ANSWERED) and not moment.has(Sort.PROPOSED):
        return False
    woke = moment.happenings[0].what == "woke"
    return not any(
        TELLING_WORDS.search(plain(happening)) and not (woke and happening.text.startswith(REPEATED))
        for happening in moment.happenings
    )


def fold(shown: list[bool], quiet: list[bool]) -> list[Row]:
    """A row for each shown moment; runs of others become gaps, unless they are too short to be worth one."""
    rows: list[Row] = []
    place = 0
    while place < len(shown):
        end = place
        while end < len(shown) and not shown[end]:
            end += 1
        if end - place >= GAP_MOMENTS_MIN:
            rows.append(Row(place, end - 1, gap=True, quiet=all(quiet[place:end])))
        else:
            rows.extend(Row(single, single) for single in range(place, end))
        if end < len(shown):
            rows.append(Row(end, end))
        place = end + 1
    return rows


def fold_turns(turns: list[int], border: int) -> list[Row]:
    """Only these moments before the border, with gaps of whatever length between them."""
    rows: list[Row] = []
    place = 0
    for turn in turns:
        if turn > place:
            rows.append(Row(place, turn - 1, gap=turn > place + 1))
        rows.append(Row(turn, turn))
        place = turn + 1
    if place < border:
        rows.append(Row(place, border - 1, gap=True))
    return rows
