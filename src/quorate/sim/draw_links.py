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
        for happening, sort in moment.pairs:
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


def rails(sheet: Sheet) -> Iterator[tuple[int, int, int, str]]:
    """(node, first moment, moment that ends it, who is cut off)."""
    for node in sheet.lanes:
        found = deafness(sheet, node)
        ends = [place for place, _ in found[1:]]
        for (place, peers), end in zip(found, [*ends, len(sheet.story.moments)], strict=True):
            if peers:
                yield node, place, end, " ".join(map(sheet.story.names.of, peers))


def cut_rails(sheet: Sheet) -> Iterator[str]:
    """A hatched rail beside a lane as long as links of the node are cut."""
    for node, place, end, names in rails(sheet):
        top, bottom = sheet.y_of(place), sheet.y_of(end)
        yield ink.element(
            "g",
            ink.tooltip(f"{sheet.story.names.of(node)} is cut off from {names}")
            + ink.rectangle(sheet.lanes[node] - 17, top, 6, bottom - top, fill="url(#cut)"),
        )


def rail_words(sheet: Sheet) -> Iterator[str]:
    """Who is cut off from whom, where a rail begins; or at the end of the gap in which it began."""
    for node, place, end, names in rails(sheet):
        spot = sheet.spot_of(place)
        if spot.row.gap and spot.row.last >= end:
            continue
        y = spot.top + spot.height - 4 if spot.row.gap else sheet.y_of(place) + 4
        yield ink.words(sheet.lanes[node] - 20, y, f"cut off from {names}", "small amber end halo")
