"""A scenario as a picture: the story diagram of draw.py, in the file's own names, with the lines it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quorate.sim.draw import draw
from quorate.sim.happening import Happening, Names
from quorate.sim.scenario import ALL_ACTS, ALL_EXPECTATIONS
from quorate.sim.scenario_script import Cast, parse

ROWS_MAX = 400
"""A scenario asks for everything that happens in it: hardly any is too long to be shown whole."""


def told(text: str, happenings: Sequence[Happening]) -> str:
    """What happened in a scenario of this text, a line each."""
    names = Names(_cast(text).names)
    return "".join(f"{happening.told(names)}\n" for happening in happenings)


def drawn(text: str, path: Path, happenings: Sequence[Happening]) -> str:
    """The same as an SVG."""
    cast = _cast(text)
    offsets = "offsets count from 0 here" if cast.origin else ""
    return draw(
        happenings,
        title=f"{path.stem} ({cast.room.name})",
        subtitle=" · ".join(filter(None, (opening(text), offsets))),
        rows_max=ROWS_MAX,
        names=Names(cast.names),
    )


def _cast(text: str) -> Cast:
    return parse(text, (*ALL_ACTS, *ALL_EXPECTATIONS)).cast


def opening(text: str) -> str:
    """The comment with which a file begins, without the promises that it names."""
    said: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#") or line.startswith(("# behaviour:", "# rule:")):
            break
        said.append(line.lstrip("# "))
    return " ".join(filter(None, said))
