"""Pen and paper for the story diagram: SVG elements as text, colours, the width of words, little marks.

Nothing outside the file is referred to, numbers are rounded to a tenth, and every text is escaped: the same
story gives the same bytes on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

INK = "#1f2933"
MUTED = "#5b6770"
FAINT = "#c3cad1"
ALARM = "#b3131b"
AMBER = "#b45f06"
GROUND = "#ffffff"

EPOCH_COLOURS = ("#0b62a8", "#b5480a", "#00755a", "#8a3b94", "#7a6200", "#00708f", "#a3296b", "#4a5bbd")
"""Dark enough for text on white (contrast of 4.5 and more), neighbours far apart for colour-blind eyes."""

FONTS = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'Segoe UI', Roboto, system-ui, sans-serif"

STYLE = f"""
text {{ font-family: {FONTS}; font-size: 12px; fill: {INK}; white-space: pre }}
.halo {{ paint-order: stroke; stroke: {GROUND}; stroke-width: 3.5px; stroke-linejoin: round }}
.title {{ font-size: 22px; font-weight: 700 }}
.big {{ font-size: 14px }}
.small {{ font-size: 11px }}
.muted {{ fill: {MUTED} }}
.bold {{ font-weight: 700 }}
.alarm {{ fill: {ALARM}; font-weight: 700 }}
.amber {{ fill: {AMBER}; font-weight: 700 }}
.white {{ fill: #ffffff; font-weight: 700 }}
.plain {{ font-weight: 400 }}
.end {{ text-anchor: end }}
.middle {{ text-anchor: middle }}
.arrow:hover path {{ stroke-width: 3px }}
"""

PATTERNS = f"""<defs>
<pattern id="down" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="7" height="7" fill="#eceff1"/><rect width="2" height="7" fill="#9aa5ad"/></pattern>
<pattern id="paused" width="8" height="8" patternUnits="userSpaceOnUse">
<rect width="8" height="8" fill="#fdf3dc"/><rect width="8" height="2" fill="#d39b2a"/></pattern>
<pattern id="cut" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
<rect width="6" height="6" fill="#fbe3d2"/><rect width="3" height="6" fill="{AMBER}"/></pattern>
</defs>"""

UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

NARROW = frozenset("iIjl.,:;'|!()[]{}ftr/ -·\u00a0")
WIDE = frozenset("mwMW@%→…—")


def colour_of(epoch: int) -> str:
    return EPOCH_COLOURS[epoch % len(EPOCH_COLOURS)] if epoch > 0 else "#77828c"


def clean(text: str) -> str:
    """Without what XML cannot carry, even escaped."""
    return UNPRINTABLE.sub("\ufffd", text)


def width_of(text: str, size: float = 12.0, *, bold: bool = False) -> float:
    """About as wide as Helvetica sets it; on the generous side."""
    ems = 0.0
    for letter in text:
        if letter in NARROW:
            ems += 0.3
        elif letter in WIDE:
            ems += 0.92
        else:
            ems += 0.7 if letter.isupper() else 0.56
    return ems * size * (1.07 if bold else 1.0)


def shorten(text: str, room: float, size: float = 12.0) -> str:
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(runs: Iterable[tuple[str, str]], room: float, size: float = 12.0) -> list[list[tuple[str, str]]]:
    """Breaks (text, class) runs behind spaces into lines of at most `room`; a word too long is shortened."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0.0
    for text, style in runs:
        for word in re.findall(r"[^ ]+ *| +", clean(text).replace("\n", " ")):
            word = shorten(word, room, size)
            wide = width_of(word.rstrip(" "), size, bold=style != "")
            line = lines[-1]
            if line and line[-1][0].endswith(" ") and used + wide > room:
                lines.append(line := [])
                used = 0.0
            if line and line[-1][1] == style:
                line[-1] = (line[-1][0] + word, style)
            else:
                line.append((word, style))
            used += width_of(word, size, bold=style != "")
    return lines


# ---- elements ----


def number(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def element(name: str, inside: str = "", /, **attributes: str | float) -> str:
    """`stroke_width=2` is written `stroke-width="2"`; `class_` is `class`."""
    parts = [name]
    for key, value in attributes.items():
        shown = value if isinstance(value, str) else number(value)
        parts.append(f"{key.rstrip('_').replace('_', '-')}={quoteattr(clean(shown))}")
    opening = " ".join(parts)
    return f"<{opening}>{inside}</{name}>" if inside else f"<{opening}/>"


def words(x: float, y: float, text: str, class_: str = "", **attributes: str | float) -> str:
    return element("text", escape(clean(text)), x=x, y=y, class_=class_, **attributes)


def run_words(x: float, y: float, runs: Sequence[tuple[str, str]], class_: str = "") -> str:
    """One line of text whose parts have styles of their own."""
    parts = [
        f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text) for text, style in runs
    ]
    return element("text", "".join(parts), x=x, y=y, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, **attributes: str | float) -> str:
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str | float) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def tooltip(text: str) -> str:
    return f"<title>{escape(clean(text))}</title>"


def arrow(x1: float, y1: float, x2: float, y2: float, *, colour: str, tip: str, **stroke: str | float) -> str:
    """A shaft with a head at its second end, and a tooltip."""
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    base_x, base_y = x2 - 9 * along_x, y2 - 9 * along_y
    corners = [
        (x2, y2),
        (base_x - 4 * along_y, base_y + 4 * along_x),
        (base_x + 4 * along_y, base_y - 4 * along_x),
    ]
    points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    shaft = path(f"M{number(x1)} {number(y1)}L{number(base_x)} {number(base_y)}", colour, **stroke)
    return shaft_group(shaft + element("polygon", points=points, fill=colour), tip)


def lost_arrow(x1: float, y1: float, x2: float, y2: float, *, colour: str, tip: str) -> str:
    """A shaft that ends in a cross."""
    shaft = path(
        f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}",
        colour,
        stroke_width=1.5,
        stroke_dasharray="6 3",
    )
    return shaft_group(shaft + cross(x2, y2), tip)


def shaft_group(inside: str, tip: str) -> str:
    return element("g", tooltip(tip) + inside, class_="arrow")


def path(points: str, colour: str, **stroke: str | float) -> str:
    return element("path", d=points, fill="none", stroke=colour, **({"stroke_width": 1.5} | stroke))


def cross(x: float, y: float, size: float = 5.0) -> str:
    left, right, top, bottom = (number(value) for value in (x - size, x + size, y - size, y + size))
    return path(f"M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}", ALARM, stroke_width=2.5)


# ---- marks: what befell a node, on its lane ----


def mark(name: str, x: float, y: float) -> str:
    return element("g", MARKS[name], transform=f"translate({number(x)} {number(y)})")


def disc(fill: str, stroke: str, inside: str) -> str:
    return element("circle", r=9, fill=fill, stroke=stroke, stroke_width=1.8) + inside


MARKS = {
    "crash": disc(INK, INK, path("M-4 -4L4 4M-4 4L4 -4", "#ffffff", stroke_width=2.4)),
    "power": disc(
        INK,
        INK,
        path("M-3 -3A4.6 4.6 0 1 0 3 -3M0 -6L0 0", "#ffffff", stroke_width=2, stroke_linecap="round"),
    ),
    "restart": disc(GROUND, INK, element("path", d="M-3 -4.5L5 0L-3 4.5Z", fill=INK)),
    "pause": disc("#fdf3dc", AMBER, path("M-2.8 -4L-2.8 4M2.8 -4L2.8 4", AMBER, stroke_width=2.6)),
    "resume": disc("#fdf3dc", AMBER, element("path", d="M-3 -4.5L5 0L-3 4.5Z", fill=AMBER)),
    "damage": element(
        "path",
        d="M2 -13L-7 2L-1 2L-3 13L7 -3L1 -3Z",
        fill="#ffd23f",
        stroke=INK,
        stroke_width=1.4,
        stroke_linejoin="round",
    ),
    "wipe": element("circle", r=9, fill=GROUND, stroke=ALARM, stroke_width=1.8, stroke_dasharray="3 2")
    + path("M-5 5L5 -5", ALARM, stroke_width=1.8),
    "trouble": element(
        "path",
        d="M0 -10L10 8L-10 8Z",
        fill="#fdf3dc",
        stroke=AMBER,
        stroke_width=1.8,
        stroke_linejoin="round",
    )
    + path("M0 -4L0 2M0 4.2L0 5.8", AMBER, stroke_width=2),
    "violation": element("circle", r=12, fill="none", stroke=ALARM, stroke_width=3)
    + element("circle", r=5, fill=ALARM),
}
