"""What came of many simulated worlds: summed up, shown while it grows, and told at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.sim.run import Sum, Verdict, Violation

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY_S = 5.0
"""How often progress is told where nobody's terminal shows it live."""
VIOLATIONS_SHOWN_MAX = 20

THROWN = {
    "partitions": ("network partition", "network partitions", ": both ways, one way, bridges, flapping"),
    "storms": ("network storm", "network storms", ": messages lost, doubled, late, replayed"),
    "crashes": ("process", "processes", " crashed"),
    "power_losses": ("power loss", "power losses", ": unflushed writes gone or torn"),
    "pauses": ("process", "processes", " paused beyond every time-out"),
    "clock_changes": ("clock", "clocks", " made to drift or jump"),
    "flush_errors": ("flush", "flushes", " failed, pages dropped"),
    "damaged": ("place on a disk", "places on disks", " damaged: flipped, zeroed, swapped"),
    "filled": ("disk", "disks", " filled up"),
    "slowed": ("disk", "disks", " slowed down, up to a hundred times"),
    "wiped": ("disk", "disks", " wiped"),
    "expired": ("time", "times", " that something of a log expired"),
    "compactions": ("time", "times", " that a log was to be compacted"),
    "rates": ("time", "times", " that copies were to be made at another rate"),
    "changes": ("change", "changes", " of an ensemble ordered, sensible or not"),
    "transfers": ("move", "moves", " of a leader ordered"),
    "orders": ("order", "orders", " to roll back, promote, demote, set read-only, cut loose, join again"),
    "operators_crashed": ("operator", "operators", " crashed; by `operator`, in the middle of what they do"),
    "rumours": ("rumour", "rumours", " told to operators: a failure that was none"),
    "store_troubles": ("time", "times", " that the operators' store was slow or silent"),
}
"""What one is called, what many are, and what became of them."""


class Totals:
    """Everything that is summed up over verdicts."""

    def __init__(self, protocol: str) -> None:
        self.sum = Sum(protocol, violations=[])
        self.reads = 0
        self.thrown = dict.fromkeys(THROWN, 0)
        self.seconds = 0.0
        """Virtual ones."""
        self._began = perf_counter()
        self.taken = 0.0

    def add(self, verdict: Verdict) -> None:
        self.sum.add(verdict)
        self.reads += verdict.reads
        self.seconds += verdict.seconds
        for name in self.thrown:
            self.thrown[name] += getattr(verdict.toll, name)
        self.taken = perf_counter() - self._began
        self.sum.events_per_second = round(self.sum.events / self.taken, 1)

    def finish(self) -> Sum:
        """In the order of seeds, whoever ran them."""
        self.sum.violations.sort(key=lambda violation: violation.seed)
        return self.sum


Progressed = Callable[[Totals], float]
"""How much of the work is done, from 0 to 1."""


def watched(verdicts: Iterable[Verdict], totals: Totals, progressed: Progressed) -> None:
    """Sum up verdicts as they come, while a person can see how far it is."""
    screen = say.console(stderr=True)
    if screen.is_terminal:
        _live(verdicts, totals, progressed, screen)
    else:
        _plain(verdicts, totals, progressed)


def of_seeds(count: int) -> Progressed:
    return lambda totals: totals.sum.seeds / count


def of_seconds(seconds: float) -> Progressed:
    return lambda totals: min(totals.taken / seconds, 1.0)


def _live(verdicts: Iterable[Verdict], totals: Totals, progressed: Progressed, screen: Console) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(totals.sum.protocol, total=1.0, found="")
        for verdict in verdicts:
            totals.add(verdict)
            progress.update(task, completed=progressed(totals), found=_so_far(totals))


def _plain(verdicts: Iterable[Verdict], totals: Totals, progressed: Progressed) -> None:
    told = monotonic()
    for verdict in verdicts:
        totals.add(verdict)
        done = progressed(totals)
        if monotonic() - told >= PLAIN_EVERY_S and done < 1:
            told = monotonic()
            left = totals.taken / done * (1 - done)
            say.progress_line(f"{done:4.0%}  {_so_far(totals)}, {say.duration(left)} left")


def _so_far(totals: Totals) -> str:
    found = totals.sum
    rate = f"{found.events_per_second:,.0f}/s"
    worlds, violations = say.counted(found.seeds, "world"), say.counted(len(found.violations), "violation")
    return f"{worlds}, {say.counted(found.events, 'event')} ({rate}), {violations}"


# ---- the end of it ----


def show(totals: Totals, out: Console, *, shrunk: bool = False) -> None:
    found = totals.finish()
    if found.violations:
        show_violations(found.violations, out, shrunk=shrunk)
    thrown = [row(totals.thrown[name], *words) for name, words in THROWN.items() if totals.thrown[name]]
    if thrown:
        out.print(say.table("What was thrown at it", ("times", ""), thrown, right=(0,)))
    if not found.violations:
        out.print(say.table("What held", ("checked", ""), held(totals), right=(0,)))


def row(count: int, one: str, many: str, more: str) -> tuple[str, str]:
    return f"{count:,}", (one if count == 1 else many) + more


def held(totals: Totals) -> list[tuple[str, str]]:
    found = totals.sum
    if found.protocol == "transactions":
        return _transacted(totals)
    # In some worlds the operators' store is a raft group of its own, which elects its leaders.
    elections = " (of raft stores, too)" if found.operators else ""
    elections += ": never two leaders in one epoch, none without what was settled"
    return [
        row(found.events, "event", "events", ", and after each one every invariant"),
        row(
            found.acknowledged,
            "acknowledged write",
            "acknowledged writes",
            ": none lost, none doubled, order kept",
        ),
        row(totals.reads, "read", "reads", ": only settled entries, never backwards, no phantoms"),
        row(found.elections, "election", "elections", elections),
        row(found.truncations, "log", "logs", " cut back: never below what was settled"),
        *_operated(found),
        row(
            found.seeds,
            "world",
            "worlds",
            " healed: all copies equal, every client answered, idle groups silent",
        ),
    ]


def _transacted(totals: Totals) -> list[tuple[str, str]]:
    found = totals.sum
    more = ": none lost, none twice, none torn, one for each number of an app"
    return [
        row(found.acknowledged, "committed transaction", "committed transactions", more),
        row(totals.reads, "read", "reads", ": nothing that was aborted, always in the same order"),
        row(found.elections, "leader", "leaders", " came to lead a home or a partition"),
        row(found.seeds, "world", "worlds", " healed: every transaction ended, readers got to every end"),
    ]


def _operated(found: Sum) -> list[tuple[str, str]]:
    if found.protocol == "isr":
        return _in_sync(found)
    if found.protocol == "confirm":
        return _decided(found)
    rows = []
    if found.operators:
        more = ": whatever was begun came to its end"
        rows.append(row(found.operators, "life of an operator", "lives of operators", more))
    if found.reconfigurations:
        more = ": what was settled before is on a majority of after"
        rows.append(row(found.reconfigurations, "reconfiguration", "reconfigurations", more))
    return rows


def _in_sync(found: Sum) -> list[tuple[str, str]]:
    said = (
        (
            found.operators,
            "life of a controller",
            "lives of controllers",
            ": each went on from what is stored",
        ),
        (
            found.reports,
            "report of a silent leader",
            "reports of silent leaders",
            ": none of the past counted",
        ),
        (found.shrinks, "shrink of who is in sync", "shrinks of who is in sync", ": counted once agreed"),
        (
            found.expands,
            "expansion of who is in sync",
            "expansions of who is in sync",
            ": counted from the asking",
        ),
        (
            found.reconfigurations,
            "change of copies",
            "changes of copies",
            ": nothing settled was left behind",
        ),
    )
    return [row(count, one, many, more) for count, one, many, more in said if count]


def _decided(found: Sum) -> list[tuple[str, str]]:
    said = (
        (found.promotions, "promotion", "promotions", ": what former leaders left was settled first"),
        (found.confirms, "CONFIRM", "CONFIRMs", ": of what is on a quorum, and nothing else"),
        (
            found.rollbacks,
            "ROLLBACK",
            "ROLLBACKs",
            ": what is void is void on every copy, and read by nobody",
        ),
        (found.undone, "time", "times", " that some copy took a transaction back"),
    )
    return [row(count, one, many, more) for count, one, many, more in said if count]


def show_violations(violations: list[Violation], out: Console, *, shrunk: bool, of: str = "") -> None:
    """Each with its command, in a line of its own that a person can copy. `of`: whose they are, if not of all."""
    shown = violations[:VIOLATIONS_SHOWN_MAX]
    where = f" in {of}" if of else ""
    out.print(f"[bold red]What did not hold{where}[/bold red]")
    for violation in shown:
        said = f"  seed {violation.seed}, {violation.invariant}: {violation.detail}"
        out.print(f"{said}\n    {violation.reproduce}", soft_wrap=True, markup=False)
    if len(violations) > len(shown):
        out.print(f"  … and {len(violations) - len(shown):,} more (--json has them)")
    out.print(f"Again, line by line:  {shown[0].reproduce} --trace", soft_wrap=True, markup=False)
    if not shrunk:
        out.print(f"The shortest story:   {shown[0].reproduce} --shrink", soft_wrap=True, markup=False)
    out.print()


def summary(totals: Totals, *, timed: bool = True) -> str:
    """`timed`: the time is its own, and not that of others as well."""
    found = totals.sum
    verdict = say.counted(len(found.violations), "violation") if found.violations else "nothing was violated"
    took = f" in {say.duration(totals.taken)} ({found.events_per_second:,.0f} events/s)" if timed else ""
    worlds, seen = say.counted(found.seeds, "world"), say.counted(found.events, "event")
    return f"{found.protocol}: {worlds}, {seen}{took}: {verdict}"
