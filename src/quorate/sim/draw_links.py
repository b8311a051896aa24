"""Cut links in the story diagram: which directions between which nodes, and the rails beside the lanes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from quorate.sim import draw_ink as ink
from quorate.sim.draw_moments import LINKS, Sort
from quorate.sim.draw_sheet import Sheet
from quorate.sim.happening import Happening

PAIR = re.compile(r"n?(\d+)\s*(→|->|>|↔|<->|–|-)\s*n?(\d+)")
ONE_WAY = ("→", "->", ">")


def links_of(happening: Happening) -> list[tuple[int, int]]:
    """The directions (from, to) that a cut or a healing names; none means all."""
    one_way = "one way" in happening.text or "one-way" in happening.text
    if happening.node and happening.peer:
        ends = (happening.node, happening.peer)
        return [ends] if one_way else [ends, ends[::-1]]
    if "|" in happening.text:
        sides = [[int(node) for node in re.findall(r"\d+", side)] for side in happening.text.split("|")]
        return [
            (source, target)
            for side in sides
            for other in sides
            if other is not side
            for source in side
            for target in other
        ]
    found: list[tuple[int, int]] = []
    for source, sign, target in PAIR.findall(happening.text):
        found.append((int(source), int(target)))
        if sign not in ONE_WAY:
            found.append((int(target), int(source)))
    return found


def deafness(sheet: Sheet, node: int) -> list[tuple[int, tuple[int, ...]]]:
    """(from which moment on, whom the node cannot hear or reach)."""
    cuts: Counter[tuple[int, int]] = Counter()
    found: list[tuple[int, tuple[int, ...]]] = [(-1, ())]
    for place, moment in enumerate(sheet.story.moments):
        if not moment.has(*LINKS):
            continue
        for happening, sort in zip(moment.happenings, moment.sorts, strict=True):
            links = links_of(happening)
            if sort is Sort.LINK_CUT:
                cuts.update(links)
            elif links:
                cuts.subtract(links)
            else:
                cuts.clear()
        peers = {end for link, count in cuts.items() if count > 0 and node in link for end in link}
        shown = tuple(sorted(peer for peer in peers if peer in sheet.lanes and peer != node))
        if shown != found[-1][1]:
            found.append((place, shown))
    return found


def cut_rails(sheet: Sheet) -> Iterator[str]:
    """A hatched rail beside a lane as long as links of the node are cut, with the names of the others."""
    for node, x in sheet.lanes.items():
        found = deafness(sheet, node)
        ends = [place for place, _ in found[1:]]
        for (place, peers), end in zip(found, [*ends, len(sheet.story.moments)], strict=True):
            top, bottom = sheet.y_of(place), sheet.y_of(end)
            if not peers or bottom <= top:
                continue
            names = " ".join(f"n{peer}" for peer in peers)
            yield ink.element(
                "g",
                ink.tooltip(f"n{node} is cut off from {names}")
                + ink.rectangle(x - 17, top, 6, bottom - top, fill="url(#cut)"),
            )
            yield ink.words(x - 20, top + 4, f"cut off from {names}", "small amber end halo")
