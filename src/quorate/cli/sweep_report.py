"""One page about a sweep: violations first, then protocols side by side, in numbers and in pictures.

Everything is in the file: no script, no font, no picture from elsewhere. The same sweep gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log10
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.sweep_charts import COLOURS, Bar, bars, curves
from quorate.sim.measures import upper_s

if TYPE_CHECKING:
    from quorate.sim.run import Violation
    from quorate.spark.sweep_compare import Compared
    from quorate.spark.sweep_parts import Sweep

VIOLATIONS_SHOWN_MAX = 500
LATENCY_MIN_S, LATENCY_MAX_S = 0.001, 10.0
STYLE = """
body { font: 15px/1.5 system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; color: #1f2933;
  max-width: 1060px; margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.7rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { max-width: 46rem } .muted { color: #5b6770 } code { font-size: .86em; background: #f3f5f7; padding: .1em .3em }
table { border-collapse: collapse } th, td { padding: .35rem .8rem; border-bottom: 1px solid #dde2e6 }
th { text-align: right; font-weight: 600 } td { text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child, .left td, .left th { text-align: left; vertical-align: top }
.bad { border-left: 6px solid #b3131b; padding: .2rem 1rem; background: #fdf2f2 }
.good { border-left: 6px solid #00755a; padding: .2rem 1rem; background: #f0f8f5 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1.4rem }
figure { margin: 0 } figcaption { font-size: .9rem; color: #5b6770; max-width: 30rem } svg { max-width: 100% }
"""

OF_LATENCIES = (
    "Commits acknowledged within a time, of all that were acknowledged. The further left, the better."
)

Read = Callable[["Compared"], float]


def seconds(value: float) -> str:
    return f"{value * 1000:,.3g} ms" if value < 1 else f"{value:.3g} s"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


COLUMNS: tuple[tuple[str, Callable[[Compared], str]], ...] = (
    ("worlds", lambda row: f"{row.worlds:,}"),
    ("violations", lambda row: f"{row.violations:,}"),
    ("available", lambda row: percent(row.availability)),
    ("commit p50", lambda row: seconds(row.latency_s(0.5))),
    ("commit p99", lambda row: seconds(row.latency_s(0.99))),
    ("messages a commit", lambda row: say.rounded(row.messages_per_commit)),
    ("bytes a commit", lambda row: f"{row.bytes_per_commit:,.0f}"),
    ("elections a world", lambda row: say.rounded(row.elections / row.worlds)),
    ("rolled back a world", lambda row: say.rounded(row.rolled_back / row.worlds)),
    ("truncated a world", lambda row: say.rounded(row.truncated / row.worlds)),
    ("recovery p50", lambda row: seconds(row.recovery_s[0])),
    ("recovery p99", lambda row: seconds(row.recovery_s[2])),
)


def comparison(compared: Sequence[Compared]) -> tuple[list[str], list[list[str]]]:
    """Names of columns, one a protocol, and rows."""
    names = ["", *(row.protocol for row in compared)]
    return names, [[name, *(told(row) for row in compared)] for name, told in COLUMNS]


def page_of(sweep: Sweep, violations: Sequence[tuple[str, Violation]], compared: Sequence[Compared]) -> str:
    plan = sweep.plans[0]
    worlds = sum(row.worlds for row in compared)
    lived = say.duration(sum(row.virtual_seconds for row in compared))
    faults = escape(", ".join(plan.faults) or "none")
    said = f"Seeds {sweep.first} to {sweep.end - 1}, {plan.nodes} nodes each, {lived} of simulated time."
    said += f" Faults: {faults}."
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>Quorate: {worlds:,} worlds</title><style>{STYLE}</style></head><body>",
            f"<h1>{worlds:,} worlds</h1>",
            f'<p class="muted">{said}</p>',
            _violations(violations),
            "<h2>The same worlds, side by side</h2>",
            _table(*comparison(compared)),
            EXPLAINED,
            '<h2>Pictures</h2><div class="charts">',
            *_charts(compared),
            "</div></body></html>",
            "",
        )
    )


def _violations(violations: Sequence[tuple[str, Violation]]) -> str:
    if not violations:
        return '<div class="good"><p><b>Nothing was violated.</b> Every invariant held after every event.</p></div>'
    rows = [
        [
            protocol,
            str(found.seed),
            escape(found.invariant),
            escape(found.detail),
            f"<code>{escape(found.reproduce)}</code>",
        ]
        for protocol, found in violations[:VIOLATIONS_SHOWN_MAX]
    ]
    more = len(violations) - len(rows)
    said = f"<p>… and {more:,} more, in the rows.</p>" if more else ""
    names = ["", "seed", "invariant", "detail", "shows it again"]
    count = "1 violation" if len(violations) == 1 else f"{len(violations):,} violations"
    return f'<div class="bad"><h2>{count}</h2>{_table(names, rows, kind="left")}{said}</div>'


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


EXPLAINED = """<p class="muted">All times are simulated. <b>Available</b>: tenths of a second in which clients asked
a partition for something and got it within a second, while things went wrong. <b>Commit</b>: from a client's first
try to its acknowledgement, retries included. <b>Messages</b> and <b>bytes</b> (of entries and snapshots) go between
nodes. <b>Rolled back</b>: transactions taken back by a copy; <b>truncated</b>: offsets that copies cut from their
logs, none of them acknowledged. <b>Recovery</b>: from the end of all faults until every partition had acknowledged
something new.</p>"""


def _charts(compared: Sequence[Compared]) -> list[str]:
    def chart(caption: str, read: Read, told: Callable[[float], str]) -> str:
        made = [
            Bar(row.protocol, read(row), told(read(row)), colour)
            for row, colour in zip(compared, COLOURS, strict=False)
        ]
        return f"<figure>{bars(made)}<figcaption>{caption}</figcaption></figure>"

    return [
        f"<figure>{_latencies(compared)}<figcaption>{OF_LATENCIES}</figcaption></figure>",
        chart(
            "Not available: time in which nobody who asked was served within a second.",
            lambda row: 1 - row.availability,
            percent,
        ),
        chart("Messages between nodes for each commit.", lambda row: row.messages_per_commit, say.rounded),
        chart(
            "Bytes of entries and snapshots between nodes for each commit.",
            lambda row: row.bytes_per_commit,
            lambda value: f"{value:,.0f}",
        ),
        chart("Recovery, 99 of 100 worlds.", lambda row: row.recovery_s[2], seconds),
        chart("Elections in a world.", lambda row: row.elections / row.worlds, say.rounded),
        chart(
            "Entries cut from logs, and transactions rolled back, in a world.",
            lambda row: (row.truncated + row.rolled_back) / row.worlds,
            say.rounded,
        ),
    ]


def _latencies(compared: Sequence[Compared]) -> str:
    low, high = log10(LATENCY_MIN_S), log10(LATENCY_MAX_S)
    lines = []
    for row, colour in zip(compared, COLOURS, strict=False):
        points, seen = [(0.0, 0.0)], 0
        for bucket, count in enumerate(row.latencies):
            seen += count
            along = (log10(upper_s(bucket)) - low) / (high - low)
            if 0 <= along <= 1:
                points.append((along, seen / row.committed if row.committed else 0.0))
        lines.append((row.protocol, colour, points))
    ticks = [((log10(value) - low) / (high - low), seconds(value)) for value in (0.001, 0.01, 0.1, 1.0, 10.0)]
    return curves(lines, ticks)
