"""Which worlds a command line asks for: protocol, seeds, faults and tunables, each refused with a line if wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, no_such

if TYPE_CHECKING:
    from quorate.sim.run import Plan

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
TRANSACTIONS = "transactions"
"""Worlds of another kind: coordinators and partitions, above logs that are taken for granted."""
TRANSACTIONS_FAULTS = ("network", "crash", "pause", "clock")
WORLDS = (*PROTOCOLS, "turning", TRANSACTIONS)
"""Kinds of worlds: of a protocol, of partitions that go from one to another, of transactions."""
NODES_MAX = 9
SEEDS_HELP = "A range of worlds, END left out; one number is one world."
DIGITS_MAX = 18
SETTING_MAX = 10**12


def make_plan(
    seed: int,
    *,
    protocol: str,
    faults: str,
    nodes: int,
    learners: int | None,
    only: tuple[int, ...] | None,
    until: float | None,
    overrides: dict[str, int | float],
) -> Plan:
    if protocol not in WORLDS:
        raise no_such("protocol", protocol, WORLDS)
    if protocol == TRANSACTIONS:
        return _plan_of_transactions(seed, faults, plain=not (learners or only or until or overrides))
    from quorate.sim.run import WITH_LEARNERS, Plan

    profiles = parse_faults(faults, protocol)
    if learners is not None and protocol not in WITH_LEARNERS:
        raise WrongUsage(f"--learners: {protocol} has no learners; only {' and '.join(WITH_LEARNERS)} have")
    check_settings(seed, protocol, overrides)
    if until is not None and not until <= SETTING_MAX:
        raise WrongUsage(f"--until {until}: virtual seconds, at most {SETTING_MAX:,}")
    return Plan(seed, protocol, profiles, nodes, learners, overrides, only, until)


def _plan_of_transactions(seed: int, faults: str, *, plain: bool) -> Plan:
    from quorate.sim.run import Plan

    if not plain:
        raise WrongUsage("transactions: only --seed, --seeds, --faults, --jobs, --json and --trace are known")
    chosen: tuple[str, ...] = ()
    for name in (name.strip() for name in faults.split(",")):
        if name not in ("all", "none", *TRANSACTIONS_FAULTS):
            raise no_such("kind of fault", name, ("all", "none", *TRANSACTIONS_FAULTS))
        chosen += TRANSACTIONS_FAULTS if name == "all" else (name,) if name != "none" else ()
    return Plan(seed, TRANSACTIONS, tuple(dict.fromkeys(chosen)))


def in_words(plan: Plan, seeds: range) -> str:
    """What is going to be run."""

    if plan.protocol == TRANSACTIONS:
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        return f"transactions, {which}, under {', '.join(plan.faults) or 'no'} faults"
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{plan.protocol} on {say.counted(plan.nodes, 'node')}, {which}, under {faults_in_words(plan)}"


def faults_in_words(plan: Plan) -> str:
    """That something expires, is compacted, or waits its turn, is no fault."""
    from quorate.sim.faults import COMPACTION, PACING, RETENTION, parse_profiles, profiles_of

    faults = [name for name in plan.faults if name not in (RETENTION, COMPACTION, PACING)]
    also = "".join(f" and {name}" for name in plan.faults if name not in faults)
    if set(faults) == set(parse_profiles("all")):
        return f"all usual kinds of fault{also}"  # whatever else a protocol has: the same words for the same faults
    if {*faults, RETENTION, COMPACTION, PACING} == set(profiles_of(plan.protocol)):
        return f"every kind of fault{also}"
    return (f"{', '.join(faults)} faults" if faults else "no faults") + also


# ---- seeds ----


def parse_seed(text: str) -> int:
    if not is_number(text):
        raise WrongUsage(f"--seed {text!r} is no seed; write one number, as in --seed 7")
    return int(checked(text))


def parse_seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if not is_number(first) or (colon and not is_number(end)):
        raise WrongUsage(
            f"{text!r} is no range of seeds; write FIRST:END, as in 0:500 (500 is left out), or one number"
        )
    begins = int(checked(first))
    chosen = range(begins, int(checked(end)) if colon else begins + 1)
    if not chosen:
        raise WrongUsage(f"there is no seed in {text!r}; the end is left out and must be above the start")
    return chosen


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def checked(digits: str) -> str:
    if len(digits) > DIGITS_MAX:
        raise WrongUsage(f"a seed has at most {DIGITS_MAX} digits")
    return digits


# ---- faults ----


def parse_faults(text: str, protocol: str) -> tuple[str, ...]:
    from quorate.sim.faults import PROFILES, parse_profiles, profiles_of

    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ("all", "none", *profiles_of(protocol))
    for name in names:
        if name in PROFILES and name not in known:
            raise WrongUsage(f"--faults {name}: {protocol} has no operators; only coordinated and isr have")
        if name not in known:
            raise no_such("kind of fault", name, known)
    if not names:
        raise WrongUsage("--faults names nothing; write all, none, or names with commas between")
    if "none" not in names:
        return parse_profiles(text)
    others = [name for name in names if name != "none"]
    if others:
        raise WrongUsage(
            f"--faults {text}: none and {others[0]} contradict each other; leave one of them out"
        )
    return ()


def parse_only(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text == "none":
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(is_number(word) and len(word) <= DIGITS_MAX for word in words):
        raise WrongUsage(f"--only {text!r}: write the places of faults in the schedule, as in 0,3,5, or none")
    return tuple(sorted({int(word) for word in words}))


def check_only(plan: Plan) -> None:
    """Of one world: its schedule has all these places."""
    if not plan.only:
        return
    from quorate.sim.run import faults_count

    count = faults_count(plan)
    beyond = ", ".join(str(place) for place in plan.only if place >= count)
    if beyond:
        there = f"this world's schedule goes from 0 to {count - 1}" if count else "this world has no faults"
        raise WrongUsage(f"--only {beyond}: {there}; name places in it, or none")


# ---- tunables ----


def parse_settings(texts: list[str]) -> dict[str, int | float]:
    settings: dict[str, int | float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"--set {text!r}: write NAME=NUMBER, as in partitions_count=2")
        try:
            number = int(value) if value.isdigit() and len(value) <= DIGITS_MAX else float(value)
        except ValueError:
            raise WrongUsage(f"--set {text!r}: {value!r} is no number") from None
        if not 0 <= number <= SETTING_MAX:
            raise WrongUsage(f"--set {name}: {value[:40]} is not between 0 and {SETTING_MAX:,}")
        settings[name] = number
    return settings


def check_settings(seed: int, protocol: str, settings: dict[str, int | float]) -> None:
    """Names that a run of this protocol has, and numbers that let its time go on."""
    from quorate.sim.tunables import check_overrides, numbers_of

    numbers = numbers_of(protocol)
    for name in settings:
        elsewhere = [other for other in PROTOCOLS if name in numbers_of(other)]
        if name not in numbers and elsewhere:
            has = "has" if len(elsewhere) == 1 else "have"
            raise WrongUsage(
                f"--set {name}: {protocol} has no such setting, only {' and '.join(elsewhere)} {has}; "
                f"of {protocol} there are: {', '.join(sorted(numbers))}"
            )
        if name not in numbers:
            raise no_such(f"setting of {protocol}", name, sorted(numbers))
    try:
        check_overrides(protocol, settings, seed=seed)
    except ValueError as wrong:
        raise WrongUsage(f"--set {wrong}") from wrong
