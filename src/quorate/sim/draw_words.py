"""The story in words: what each row of the diagram says on its right, and beside the lanes."""

from __future__ import annotations

import re

from quorate.core.confirm import invariants as confirm_invariants
from quorate.core.coordinated import invariants as coordinated_invariants
from quorate.core.coordinated import operator_invariants
from quorate.core.isr import invariants as isr_invariants
from quorate.core.raft import invariants as raft_invariants
from quorate.sim import answers, confirm_steward, invariants, oracle, steward
from quorate.sim.draw_moments import (
    LINKS,
    UNKNOWN,
    Journey,
    Moment,
    Sort,
    State,
    links_of,
    plain,
    split_orders,
)
from quorate.sim.draw_story import Row, Story
from quorate.sim.happening import Happening, Names

Run = tuple[str, str]
"""A piece of text and its style."""

FAULT_MARKS = {
    Sort.CRASHED: "crash",
    Sort.POWER_LOST: "power",
    Sort.RESTARTED: "restart",
    Sort.PAUSED: "pause",
    Sort.RESUMED: "resume",
    Sort.DAMAGED: "damage",
    Sort.WIPED: "wipe",
    Sort.TROUBLED: "trouble",
    Sort.VIOLATED: "violation",
}


CHECKS = (
    *(invariants, oracle, steward, answers, raft_invariants),
    *(coordinated_invariants, operator_invariants, isr_invariants, confirm_invariants, confirm_steward),
)
"""Their docstrings say what each invariant is about."""
CHECK = re.compile(r"^(?:- |\| )([a-z][a-z, -]*?)(?:: | \| )((?:[^|\n]|\n  )+)", re.MULTILINE)


def check_of(violation: str) -> str:
    """What the invariant named at the violation's beginning says, in the words of whoever checks it."""
    name = violation.split(":", 1)[0].strip()
    for module in CHECKS:
        for names, says in CHECK.findall(module.__doc__ or ""):
            if name in names.split(", "):
                return f"{name}: {' '.join(says.split()).rstrip('.;')}."
    return ""


def narrate(moment: Moment, story: Story) -> list[Run]:
    """One row in words: who, what happened, and what it changed."""
    names = story.names
    if moment.has(Sort.SCRIPTED):
        line, _, remark = moment.happenings[0].text.partition("  # ")
        return [(line, "bold"), (f"\u00a0· {remark}" if remark else "", "")]
    who = f"{names.of(moment.node)} " if moment.node else "network " if moment.sorts[0] in LINKS else "world "
    runs: list[Run] = [(who, "bold")]
    parts = [part for part in phrases(moment, story.journeys, names) if part[0]]
    if moment.changes:
        parts += [(names.put(change), "bold" if moment.turns else "") for change in changes(moment)]
    for place, part in enumerate(parts):
        if place:
            runs.append(("\u00a0· ", ""))
        runs.append(part)
    return runs


def phrases(moment: Moment, journeys: dict[int, Journey], names: Names) -> list[Run]:
    """The cause and what was ordered; then, gathered, what was answered and what was sent."""
    said: list[Run] = []
    answers: list[str] = []
    sends: dict[str, list[str]] = {}
    for happening, sort in moment.pairs:
        if sort is Sort.SENT:
            target = names.of(happening.peer) + fate_of(happening, journeys)
            sends.setdefault(names.put(plain(happening)), []).append(target)
        elif sort is Sort.ANSWERED:
            answers.append(names.put(happening.text) or "done")
        elif sort is not Sort.LOST or happening.message not in journeys:
            part = (phrase(happening, sort, names), style_of(sort))
            if part not in said:
                said.append(part)
            if orders := split_orders(happening)[1]:
                said.append((f"ordered: {names.put(orders)}", "muted"))
    if answers:
        said.append((f"answered {'a client' if len(answers) == 1 else 'clients'}: {', '.join(answers)}", ""))
    for text, targets in sends.items():
        said.append((f"sent {text or 'a message'} →\u00a0{', '.join(targets)}", ""))
    return said


def fate_of(happening: Happening, journeys: dict[int, Journey]) -> str:
    journey = journeys.get(happening.message)
    if journey is None or not journey.arrivals:
        return ""
    return " (lost)" if all(arrival.lost for arrival in journey.arrivals) else ""


def style_of(sort: Sort) -> str:
    if sort is Sort.VIOLATED:
        return "alarm"
    return "amber" if sort in FAULT_MARKS or sort in LINKS else ""


def phrase(happening: Happening, sort: Sort, names: Names) -> str:
    text = names.put(split_orders(happening)[0])
    if sort is Sort.RECEIVED:
        return f"received {text or 'a message'} from {names.of(happening.peer)}"
    if sort is Sort.PROPOSED:
        return f"was asked by a client: {text}" if text else "was asked by a client"
    if happening.what == "commanded" and happening.node:
        return f"was ordered: {text}"
    if sort in LINKS:
        text = link_words(links_of(happening), names) or text
    elif happening.peer:
        text = f"{names.of(happening.peer)} {text}".strip()
    return f"{happening.what}: {text}" if text else happening.what


def link_words(links: list[tuple[int, int]], names: Names) -> str:
    """Both ways where both are named: `n1 ↔ n2, n3 → n1`."""
    said = []
    for source, target in links:
        if (target, source) not in links:
            said.append(f"{names.of(source)} → {names.of(target)}")
        elif source < target:
            said.append(f"{names.of(source)} ↔ {names.of(target)}")
    return ", ".join(said)


def changes(moment: Moment) -> list[str]:
    """What the replica's line says now that it did not say before."""
    before, after = moment.before, moment.after
    if moment.returns and before != UNKNOWN:
        was = " ".join(filter(None, [before.log, before.settled or before.notes]))
        said = [f"back as {standing(after)}", after.log, after.settled, after.notes]
        return [*filter(None, said), *([f"before:\u00a0{was}"] if was else [])]
    said = []
    if after.role != before.role and after.role:
        became = "is" if not before.role else "became"
        said.append(f"{became} {standing(after)}")
    elif after.epoch != before.epoch:
        again = "stands again, in" if after.role == "candidate" else "moved to"
        said.append(f"{again} epoch {after.epoch}")
    said += log_changes(before, after, cut=moment.cuts)
    if after.commit is not None and after.commit != before.commit:
        was = before.settled.removeprefix("commit ")
        said.append(f"{after.settled} (was {was})" if was else after.settled)
    if after.notes != before.notes:
        said.append(after.notes or f"no longer {before.notes}")
    return said


def standing(state: State) -> str:
    return f"{state.role} in epoch {state.epoch}" if state.epoch or state.log else state.role


def log_changes(before: State, after: State, *, cut: bool) -> list[str]:
    if cut and after.last is not None and after.last >= (before.last or -1):
        return [f"its log was cut and written anew, up to\u00a0{after.last}"]
    if after.last is None or after.first is None or (after.first, after.last) == (before.first, before.last):
        return []
    if before.last is None:
        return [after.log]
    if after.last < before.last:
        return [f"its log was cut: it ended at {before.last}, now at\u00a0{after.last}"]
    if after.last > before.last:
        return [f"its log now ends at\u00a0{after.last}"]
    return [f"its log now begins at\u00a0{after.first}"]


def gap_words(story: Story, row: Row) -> str:
    """What a gap leaves out, with what it was mostly made of."""
    inside = story.moments[row.first : row.last + 1]
    count = sum(len(moment.happenings) for moment in inside)
    seconds = inside[-1].at - inside[0].at
    beats = sum(
        sort is Sort.SENT and is_heartbeat(happening.text)
        for moment in inside
        for happening, sort in moment.pairs
    )
    refused = sum(moment.has(Sort.PROPOSED) and moment.has(Sort.ANSWERED) for moment in inside)
    what = f"{count_words(count, 'happening')} left out" + (f", {time_words(seconds)}" if seconds else "")
    if row.quiet:
        routine = [f"{count_words(beats, 'heartbeat')} and the answers"] if beats else []
        routine += [f"{count_words(refused, 'request')} refused"] if refused else []
        return f"{what}: {', '.join(routine) or 'routine traffic'}; nothing changed"
    long_gaps = [other for other in story.rows if other.gap and not other.quiet]
    if row != long_gaps[0]:
        return what
    detail = story.moments[min(long_gaps[-1].last + 1, len(story.moments) - 1)].at
    turns = "faults, elections, cuts, changes of who counts"
    return f"{what}. The story is long: before {detail:.4f} s only turns are shown, as many as have room: {turns}."


def count_words(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def is_heartbeat(text: str) -> bool:
    """Entries asked to be appended, without any entries, and not to find out where logs part either."""
    return text.startswith(("append-entries", "add-entry-request")) and not re.search(
        r" headers | frames|search yes", text
    )


def time_words(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    if seconds >= 0.000_9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds * 1_000_000:.0f} µs"


def fault_label(moment: Moment) -> str:
    """The fault of a moment, in a word or two beside its mark."""
    for happening, sort in moment.pairs:
        if sort in FAULT_MARKS:
            return happening.what
    return ""


def kind_of(text: str) -> str:
    """The first word of a message: what stands at the tip of its arrow."""
    return text.split(" ", 1)[0].split("(", 1)[0]
