"""The story of a simulated world as a picture: a space-time diagram in SVG that explains itself.

One lane per node, time running downwards, messages as arrows from the sending to the receiving end, roles
and epochs as the weight and the colour of a lane, logs and commit beside it where they change, faults as
marks, and every row once more in words. The modules draw_*.py are its parts, from the inside out:

- `draw_moments` gathers happenings into moments, `draw_story` chooses which to show, `draw_words` says them;
- `draw_sheet` finds each a place, `draw_lanes` and `draw_links` draw it there, with the pens of `draw_ink`;
- `draw_frame` puts the title, the legend and the end around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorate.sim import draw_ink as ink
from quorate.sim.draw_frame import ending, head, lane_heads
from quorate.sim.draw_lanes import body
from quorate.sim.draw_sheet import Sheet
from quorate.sim.draw_story import ROWS_MAX, tell
from quorate.sim.happening import USUAL, Happening, Names, with_store


def draw(
    happenings: Sequence[Happening],
    *,
    title: str,
    subtitle: str = "",
    violation: str | None = None,
    partition: int | None = None,
    rows_max: int = ROWS_MAX,
    names: Names = USUAL,
) -> str:
    """The whole picture, a text to be written to a file. The same happenings give the same bytes."""
    story = tell(happenings, partition=partition, violation=violation, rows_max=rows_max, names=names)
    if violation is not None:
        violation = names.put(with_store(violation, story.partition) if story.in_store else violation)
    sheet = Sheet(story)
    top, opening = head(sheet, title=title, subtitle=subtitle, violation=violation)
    sheet.stack(top)
    bottom, closing = ending(sheet, violation)
    wide, high = ink.number(sheet.width), ink.number(bottom)
    parts = [
        ink.tooltip(title),
        f"<style>{ink.STYLE}</style>",
        ink.PATTERNS,
        ink.rectangle(0, 0, sheet.width, bottom, fill=ink.GROUND),
        opening,
        lane_heads(sheet),
        body(sheet),
        closing,
    ]
    picture = ink.element(
        "svg",
        "\n".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        width=wide,
        height=high,
        viewBox=f"0 0 {wide} {high}",
        role="img",
        **{"xml:space": "preserve"},
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{picture}\n'
