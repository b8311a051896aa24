"""Two kinds of pictures as SVG, for a page that needs nothing else: bars, and curves that rise to all."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#0b62a8", "#b5480a", "#00755a", "#8a3b94")
"""Dark enough for text on white, and told apart by colour-blind eyes."""
WIDTH, LEFT, RIGHT = 480, 100, 84
BAR, GAP = 26, 12
HEIGHT, TOP, BOTTOM = 260, 16, 34
FONT = 'font-family="system-ui, \'Segoe UI\', Roboto, Helvetica, Arial, sans-serif" font-size="13"'


class Bar(NamedTuple):
    name: str
    value: float
    said: str
    colour: str


def bars(rows: Sequence[Bar]) -> str:
    """Lying ones, each with its name before and its value behind it."""
    longest = max((row.value for row in rows), default=0.0) or 1.0
    room = WIDTH - LEFT - RIGHT
    parts = []
    for number, row in enumerate(rows):
        top = GAP + number * (BAR + GAP)
        long = max(1.5, room * row.value / longest)
        middle = top + BAR / 2 + 4.5
        parts.append(f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(row.name)}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{long:.1f}" height="{BAR}" rx="3" fill="{row.colour}"/>'
        )
        parts.append(
            f'<text x="{LEFT + long + 8:.1f}" y="{middle:.1f}" fill="#5b6770">{escape(row.said)}</text>'
        )
    return _svg(GAP + len(rows) * (BAR + GAP), parts)


Line = tuple[str, str, Sequence[tuple[float, float]]]
"""Name, colour, and points, each from 0 to 1 along and up."""


def curves(lines: Sequence[Line], ticks: Sequence[tuple[float, str]]) -> str:
    left, right = 44, 14
    wide, high = WIDTH - left - right, HEIGHT - TOP - BOTTOM
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + high * (1 - share)
        parts.append(f'<line x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dde2e6"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#5b6770">{share:.0%}</text>'
        )
    for along, said in ticks:
        x = left + wide * along
        anchor = "start" if along == 0 else "end" if along == 1 else "middle"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + high}" stroke="#eef1f3"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}" fill="#5b6770">{escape(said)}</text>'
        )
    for number, (name, colour, points) in enumerate(lines):
        said = " ".join(f"{left + wide * x:.1f},{TOP + high * (1 - y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{said}" fill="none" stroke="{colour}" stroke-width="2.4"/>')
        y = TOP + high - 14 - 20 * (len(lines) - 1 - number)
        parts.append(
            f'<text x="{WIDTH - right - 8}" y="{y}" text-anchor="end" fill="{colour}" '
            f'font-weight="600">{escape(name)}</text>'
        )
    return _svg(HEIGHT, parts)


def _svg(height: float, parts: Sequence[str]) -> str:
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" fill="#1f2933" {FONT}>{inside}</svg>'
    )
