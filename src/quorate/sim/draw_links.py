"""Cut links in the story diagram: which directions between which nodes, and the rails beside the lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quorate.sim import draw_ink as ink
from quorate.sim.draw_moments import LINKS, Sort, links_of
from quorate.sim.draw_sheet import Sheet


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
